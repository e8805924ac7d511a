/*
 * The rules under `tensors`, judged when the spec is read, so that no mistake waits for the store:
 * expressions that do not compile, groups that do not exist, types that cannot be cast.
 *
 * Expressions are bounded in length and in what they repeat, and take no back-references, which
 * makes compiling and matching them cheap whoever wrote the spec.
 */
#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cast.h"
#include "spec_decode.h"

enum { MATCH_BYTES_MAX = 1024, RULES_MAX = 256, REPEATS_MAX = 1000 };

/* The product of all {n} and {m,n}: about how often the expression is copied when it is compiled.
 */
static bool repeats_too_much(const char *match)
{
    unsigned long total = 1;
    for (const char *brace = strchr(match, '{'); brace; brace = strchr(brace + 1, '{')) {
        char *end;
        unsigned long most = isdigit((unsigned char)brace[1]) ? strtoul(brace + 1, &end, 10) : 1;
        if (isdigit((unsigned char)brace[1]) && *end == ',' && isdigit((unsigned char)end[1]))
            most = strtoul(end + 1, NULL, 10);
        if (most > REPEATS_MAX || (total *= most ? most : 1) > REPEATS_MAX)
            return true;
    }
    return false;
}

static bool has_back_reference(const char *match)
{
    for (; *match; match++)
        if (*match == '\\' && (isdigit((unsigned char)*++match) || !*match))
            return *match != '\0';
    return false;
}

int sl_spec_check_match(const char *text, struct sl_err *err)
{
    regex_t regex;
    char why[128];
    if (strlen(text) > MATCH_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "the expression has %zu bytes, at most %d are taken",
                       strlen(text), MATCH_BYTES_MAX);
    if (repeats_too_much(text))
        return sl_fail(err, SL_E_USAGE, "the expression '%.200s' repeats more than %d times", text,
                       REPEATS_MAX);
    if (has_back_reference(text))
        return sl_fail(err, SL_E_USAGE,
                       "the expression '%.200s' refers to a group of its own: \\1 to \\9 belong "
                       "into 'to'",
                       text);
    int failed = regcomp(&regex, text, REG_EXTENDED);
    if (!failed) {
        regfree(&regex);
        return 0;
    }
    regerror(failed, &regex, why, sizeof(why));
    return sl_fail(err, SL_E_USAGE, "'%.200s' is not a regular expression: %s", text, why);
}

static struct sl_mark mark_at(const struct sl_yaml_node *root, const char *path)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, path);
    return pair ? pair->mark : root->mark;
}

/* Where item i of a list of rules stands. */
static struct sl_mark mark_item(const struct sl_yaml_node *root, const char *path, size_t i)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, path);
    if (pair && pair->value->kind == SL_YAML_LIST && i < pair->value->count)
        return pair->value->items[i]->mark;
    return mark_at(root, path);
}

static void check_count(const struct sl_yaml_node *root, const char *path, size_t count,
                        struct sl_complaints *complaints)
{
    if (count > RULES_MAX)
        sl_complain(complaints, mark_at(root, path), "'%s' has %zu rules, at most %d are taken",
                    path, count, RULES_MAX);
}

/* ---- rename --------------------------------------------------------------------------------- */

static void check_replacement(const struct sl_spec_rename_rule *rule, struct sl_mark mark,
                              struct sl_complaints *complaints)
{
    regex_t regex;
    if (!rule->match || regcomp(&regex, rule->match, REG_EXTENDED) != 0)
        return; /* said already */
    size_t groups = regex.re_nsub;
    regfree(&regex);
    for (const char *at = rule->to ? rule->to : ""; *at; at++) {
        if (*at != '\\')
            continue;
        at++;
        if (*at == '\\')
            continue;
        if (*at < '1' || *at > '9') {
            sl_complain(complaints, mark,
                        "'to' takes \\1 to \\9 for groups and \\\\ for a backslash, not '\\%.1s'",
                        at);
            return;
        }
        if ((size_t)(*at - '0') > groups) {
            sl_complain(complaints, mark, "'to' names group %c, but '%.200s' has %zu", *at,
                        rule->match, groups);
            return;
        }
    }
}

static void check_rename(const struct sl_yaml_node *root, const struct sl_spec *spec,
                         struct sl_complaints *complaints)
{
    const struct sl_items *rules = &spec->tensors.rename;
    check_count(root, "tensors.rename", rules->count, complaints);
    for (size_t i = 0; i < rules->count; i++)
        check_replacement((const struct sl_spec_rename_rule *)rules->items + i,
                          mark_item(root, "tensors.rename", i), complaints);
}

/* ---- cast ----------------------------------------------------------------------------------- */

/* "F64, F32, …": what a cast goes between. */
static void list_types(char *text, size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    for (int type = 1; type < SL_DTYPE_COUNT && used < room; type++)
        if (sl_cast_offered((enum sl_dtype)type, (enum sl_dtype)type))
            used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "",
                                     sl_dtype_row((enum sl_dtype)type)->name);
}

static bool is_cast(const char *name)
{
    enum sl_dtype type = sl_dtype_by_name(name, (unsigned)strlen(name));
    return sl_cast_offered(type, type);
}

static void check_cast(const struct sl_yaml_node *root, const struct sl_spec *spec,
                       struct sl_complaints *complaints)
{
    char types[256];
    const struct sl_map *cast = &spec->tensors.cast;
    const struct sl_yaml_pair *section = sl_yaml_find(root, "tensors.cast");
    list_types(types, sizeof(types));
    for (size_t i = 0; i < cast->count * 2; i++) {
        const char *name = i % 2 ? cast->values[i / 2] : cast->keys[i / 2];
        const struct sl_yaml_pair *pair =
            section ? sl_yaml_get(section->value, cast->keys[i / 2]) : NULL;
        if (!is_cast(name))
            sl_complain(complaints, pair ? pair->mark : mark_at(root, "tensors.cast"),
                        "'%.80s' cannot be cast: the floating types are %s", name, types);
    }
}

/* ---- shard ---------------------------------------------------------------------------------- */

static void check_shard(const struct sl_yaml_node *root, const struct sl_spec *spec,
                        struct sl_complaints *complaints)
{
    const struct sl_spec_shard *shard = &spec->tensors.shard;
    check_count(root, "tensors.shard.rules", shard->rules.count, complaints);
    if (shard->rank >= shard->of && shard->of)
        sl_complain(complaints, mark_at(root, "tensors.shard"),
                    "rank %u is not below %u, the value of 'of'", (unsigned)shard->rank,
                    (unsigned)shard->of);
    if (shard->of > 1 && !shard->rules.count)
        sl_complain(complaints, mark_at(root, "tensors.shard"),
                    "'shard' without 'rules' cuts nothing: name tensors and the dimension to cut, "
                    "as in rules: [{match: \"*.q_proj.weight\", dim: 0}]");
}

void sl_spec_check_tensors(const struct sl_yaml_node *root, const struct sl_spec *spec,
                           struct sl_complaints *complaints)
{
    check_rename(root, spec, complaints);
    check_cast(root, spec, complaints);
    check_shard(root, spec, complaints);
}
