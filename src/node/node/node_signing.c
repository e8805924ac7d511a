/*
 * Names are compared in one form: the first scheme of their kind ("http" for https), no user, no
 * default port, escapes undone, revisions and tags cut off, all letters small. So a rule may catch
 * more than it says, and never less. What could still lead elsewhere (dots, empty parts,
 * backslashes) is refused where there are rules.
 */
#include "node_signing.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stores.h"
#include "url.h"

enum { NAME_MAX_BYTES = 8192 };

/* Kinds of stores, by their first scheme, whose names have more than one spelling. */
static const struct spelling {
    const char *scheme, *port; /* that need not be written; NULL */
    bool revisions;            /* "@REV" or ":TAG" behind a part */
    const char *skips;         /* a first part that says what is said already; NULL */
} spellings[] = {
    {"http", ":80", false, NULL}, {"hf", NULL, true, "models"},    {"ms", NULL, true, "models"},
    {"oci", NULL, true, NULL},    {"redis", ":6379", false, NULL},
};

/* A scheme stands for all of its kind. */
static const char *first_scheme(const char *uri, char scheme[32])
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    snprintf(scheme, 32, "%.*s", (int)SL_MIN(strcspn(uri, ":"), 31u),
             kind ? kind->schemes[0] : uri);
    return scheme;
}

static const struct spelling *find_spelling(const char *scheme)
{
    static const struct spelling plain = {"", NULL, false, NULL};
    for (size_t i = 0; i < SL_COUNT(spellings); i++)
        if (strcmp(spellings[i].scheme, scheme) == 0)
            return &spellings[i];
    return &plain;
}

static void drop_end(char *text, const char *end)
{
    size_t bytes = strlen(text), suffix = strlen(end);
    if (bytes > suffix && strcmp(text + bytes - suffix, end) == 0)
        text[bytes - suffix] = 0;
}

/* "abfs://container@account.dfs.core.windows.net" is "account/container". */
static void write_authority(const char *scheme, const char *from, size_t bytes,
                            char to[NAME_MAX_BYTES])
{
    char text[NAME_MAX_BYTES];
    const struct spelling *spelling = find_spelling(scheme);
    snprintf(text, sizeof(text), "%.*s", (int)bytes, from);
    char *at = strrchr(text, '@'), *host = at ? at + 1 : text;
    if (at && strcmp(scheme, "az") == 0) {
        *at = 0;
        host[strcspn(host, ".")] = 0;
        snprintf(to, NAME_MAX_BYTES, "%.4000s/%.4000s", host, text);
        return;
    }
    if (spelling->port)
        drop_end(host, spelling->port);
    if (strcmp(scheme, "http") == 0)
        drop_end(host, ":443");
    drop_end(host, ".");
    bool skipped = spelling->skips && strcmp(host, spelling->skips) == 0;
    snprintf(to, NAME_MAX_BYTES, "%s", skipped ? "" : host);
}

/* The path part by part. */
static int write_path(bool revisions, const char *path, char to[NAME_MAX_BYTES])
{
    size_t used = 0;
    for (const char *part = path; *part;) {
        size_t bytes = strcspn(part, "/"), kept = bytes;
        bool dots = (bytes == 1 && *part == '.') || (bytes == 2 && memcmp(part, "..", 2) == 0);
        if (dots || !bytes || memchr(part, '\\', bytes))
            return -1;
        if (revisions)
            kept = SL_MIN(kept, strcspn(part, "@:"));
        if (used + kept + 2 > NAME_MAX_BYTES)
            return -1;
        memcpy(to + used, part, kept);
        used += kept;
        part += bytes;
        if (*part == '/') {
            to[used++] = '/';
            part++;
        }
    }
    to[used] = 0;
    return 0;
}

/* Of a path of this machine: where links lead, as far as it exists. */
static void follow_links(const char *path, char to[NAME_MAX_BYTES])
{
    char real[PATH_MAX], there[NAME_MAX_BYTES];
    snprintf(there, sizeof(there), "%s", path);
    while (!realpath(there, real)) {
        char *slash = strrchr(there, '/');
        if (!slash || slash == there) {
            snprintf(to, NAME_MAX_BYTES, "%s", path);
            return;
        }
        *slash = 0;
    }
    const char *rest = path + strlen(there);
    bool slash = *rest == '/' || (*path && path[strlen(path) - 1] == '/');
    rest += *rest == '/';
    snprintf(to, NAME_MAX_BYTES, "%s%s%s", strcmp(real, "/") == 0 ? "" : real, slash ? "/" : "",
             rest);
}

/* What is behind "file:", and a path: of this machine. NULL: it is somewhere else. */
static const char *local_path(const char *uri)
{
    if (strncmp(uri, "file:", 5) == 0)
        return uri + 5 + (strncmp(uri + 5, "//", 2) == 0 ? 2 : 0);
    return strstr(uri, "://") ? NULL : uri;
}

static int write_local(const char *path, char form[NAME_MAX_BYTES])
{
    char real[NAME_MAX_BYTES], rest[NAME_MAX_BYTES];
    follow_links(path, real);
    if (write_path(false, real + (*real == '/'), rest) < 0)
        return -1;
    return snprintf(form, NAME_MAX_BYTES, "file://%s", rest) < NAME_MAX_BYTES ? 0 : -1;
}

/* The one form of a name; -1: it could mean another place. */
static int write_form(const char *uri, char form[NAME_MAX_BYTES])
{
    char scheme[32], authority[NAME_MAX_BYTES], path[NAME_MAX_BYTES], rest[NAME_MAX_BYTES];
    if (strlen(uri) >= NAME_MAX_BYTES)
        return -1;
    if (local_path(uri))
        return write_local(local_path(uri), form);
    const char *at = strstr(uri, "://") + 3;
    size_t bytes = strcspn(at, "/?#");
    write_authority(first_scheme(uri, scheme), at, bytes, authority);
    at += bytes + (at[bytes] == '/');
    snprintf(path, sizeof(path), "%.*s", (int)strcspn(at, "?#"), at);
    if (write_path(find_spelling(scheme)->revisions, path, rest) < 0)
        return -1;
    int length = snprintf(form, NAME_MAX_BYTES, "%s://%s%s%s", scheme, authority,
                          *authority ? "/" : "", rest);
    for (char *c = form; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return length < NAME_MAX_BYTES ? 0 : -1;
}

/* By whole parts of the path. */
static bool is_below(const char *prefix, const char *name)
{
    size_t bytes = strlen(prefix);
    if (strncmp(prefix, name, bytes) == 0 &&
        (!bytes || prefix[bytes - 1] == '/' || !name[bytes] || name[bytes] == '/'))
        return true;
    /* the folder itself, without its slash */
    return bytes && prefix[bytes - 1] == '/' && strlen(name) == bytes - 1 &&
           strncmp(prefix, name, bytes - 1) == 0;
}

static bool is_every(const struct sl_node_spec_signing *rule)
{
    return strcmp(rule->prefix, "*") == 0;
}

/* As it is written, and with its escapes undone: a server may read it either way. */
struct forms {
    char written[NAME_MAX_BYTES], read[NAME_MAX_BYTES];
};

static int make_forms(const char *uri, struct forms *forms)
{
    sl_autofree char *decoded = sl_url_decode(uri, strlen(uri), NULL);
    return decoded && write_form(uri, forms->written) == 0 ? write_form(decoded, forms->read) : -1;
}

static bool wants(const struct sl_node_spec_signing *rule, const char *uri,
                  const struct forms *forms)
{
    char prefix[NAME_MAX_BYTES];
    if (is_every(rule))
        return true;
    if (write_form(rule->prefix, prefix) < 0)
        return sl_spec_signing_is_set(&rule->model_signing);
    bool written = is_below(prefix, forms->written), read = is_below(prefix, forms->read);
    if (sl_spec_signing_is_set(&rule->model_signing))
        return written || read;
    return written && read && is_below(rule->prefix, uri); /* it takes away: to the letter */
}

/* In one form, so that they can be compared. */
static size_t length_of(const struct sl_node_spec_signing *rule)
{
    char prefix[NAME_MAX_BYTES];
    return is_every(rule) || write_form(rule->prefix, prefix) < 0 ? 0 : strlen(prefix);
}

/* The longer one, and of equal ones that which wants a signature. */
static bool goes_before(const struct sl_node_spec_signing *rule,
                        const struct sl_node_spec_signing *than)
{
    size_t length = length_of(rule), other = than ? length_of(than) : 0;
    bool more = sl_spec_signing_is_set(&rule->model_signing) && than &&
                !sl_spec_signing_is_set(&than->model_signing);
    return !than || length > other || (length == other && more);
}

int sl_node_signing_find(const struct sl_items *rules, const char *uri,
                         const struct sl_node_spec_signing **found, struct sl_err *err)
{
    const struct sl_node_spec_signing *rule = rules->items;
    struct forms forms;
    bool by_name = false;
    *found = NULL;
    for (size_t i = 0; i < rules->count; i++)
        by_name = by_name || !is_every(&rule[i]);
    if (by_name && make_forms(uri, &forms) < 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' could mean another place than it says, and this node has rules "
                       "for who signs what: write it without '.', '..', empty parts, '\\' and "
                       "broken escapes",
                       uri);
    for (size_t i = 0; i < rules->count; i++)
        if (wants(&rule[i], uri, &forms) && goes_before(&rule[i], *found))
            *found = &rule[i];
    if (*found && !sl_spec_signing_is_set(&(*found)->model_signing))
        *found = NULL;
    return 0;
}

int sl_node_signing_rule(const struct sl_items *rules, struct sl_spec *spec, struct sl_err *err)
{
    const struct sl_spec_source *source = &spec->source;
    const struct sl_node_spec_signing *rule = NULL, *other;
    if (!rules->count || !source->uri)
        return 0;
    if (sl_node_signing_find(rules, source->uri, &rule, err) < 0)
        return -1;
    for (size_t i = 0; i < source->mirrors.count; i++) {
        if (sl_node_signing_find(rules, source->mirrors.items[i], &other, err) < 0)
            return -1;
        if (rule && other && rule != other)
            return sl_fail(err, SL_E_USAGE,
                           "this node has one rule for who signs '%.200s' and another for its "
                           "mirror '%.200s': name the mirror in a model of its own",
                           source->uri, source->mirrors.items[i]);
        rule = rule ? rule : other;
    }
    if (!rule)
        return 0;
    return sl_spec_signing_copy(&rule->model_signing, &spec->verify.rule, err);
}
