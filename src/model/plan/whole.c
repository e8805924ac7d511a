/*
 * Is all there that the model says it consists of? Indexes of shards, numbers in names, diffusers'
 * model_index.json and the .metadata of torch's distributed checkpoints say so themselves, and are
 * believed: an upload that is under way, or broke off, looks like a model that is finished.
 *
 * What the spec, a caller or the usual choice leaves out is not missed. An index of which no file
 * is there, beside weights that are, is of an earlier upload: that is a warning, as is everything
 * with source.incomplete set to warn.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "folder_claims.h"
#include "format.h"
#include "log.h"
#include "lower_bound.h"
#include "names.h"
#include "rank_name.h"

enum {
    WARNINGS_MAX = 10,
    FINDING_BYTES = 700,
    NUMBER_DIGITS = 5, /* "-00001-of-00003" */
};

/* ---- findings -------------------------------------------------------------------------------- */

struct check {
    struct sl_plan_own *own;
    unsigned warnings;
    struct sl_err *err;
};

static int refuse(const char *text, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_INCOMPLETE",
                        "%s: complete the upload, or take what is there with "
                        "'source.incomplete: warn'",
                        text);
}

static void warn(const char *text)
{
    sl_log(SL_LOG_WARN, "the model may not be complete: %s", text);
}

/* Refuse, or warn and go on. harmless: the model may be whole all the same. */
__attribute__((format(printf, 3, 4))) static int find(struct check *check, bool harmless,
                                                      const char *format, ...)
{
    char text[FINDING_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!harmless && check->own->spec->source.incomplete == SL_INCOMPLETE_REFUSE)
        return refuse(text, check->err);
    if (check->warnings++ < WARNINGS_MAX)
        warn(text);
    return 0;
}

int sl_plan_find_missing(const struct sl_plan_own *own, struct sl_err *err, const char *format, ...)
{
    char text[FINDING_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (own->spec->source.incomplete == SL_INCOMPLETE_REFUSE)
        return refuse(text, err);
    warn(text);
    return 0;
}

static int by_name(const void *name, const void *candidate)
{
    return strcmp(name, ((const struct sl_candidate *)candidate)->name);
}

static struct sl_candidate *present(const struct sl_plan_own *own, const char *name)
{
    return own->candidate_count ? bsearch(name, own->candidates, own->candidate_count,
                                          sizeof(*own->candidates), by_name)
                                : NULL;
}

/* Is something below the folder, listed or left out? */
static bool has_folder(const struct sl_plan_own *own, const char *folder)
{
    size_t bytes = strlen(folder);
    size_t at = SL_LOWER_BOUND(i, own->candidate_count,
                               strncmp(own->candidates[i].name, folder, bytes) < 0);
    if (at < own->candidate_count && strncmp(own->candidates[at].name, folder, bytes) == 0)
        return true;
    at = SL_LOWER_BOUND(i, own->passed_count, strncmp(own->passed[i], folder, bytes) < 0);
    return own->passed_more ||
           (at < own->passed_count && strncmp(own->passed[at], folder, bytes) == 0);
}

static char *beside(const char *name, const char *other, struct sl_err *err)
{
    return sl_asprintf(err, "%.*s%s", (int)(sl_base_name(name) - name), name, other);
}

static bool same_folder(const char *a, const char *b)
{
    size_t bytes = (size_t)(sl_base_name(a) - a);
    return bytes == (size_t)(sl_base_name(b) - b) && memcmp(a, b, bytes) == 0;
}

static bool has_weights_beside(const struct sl_plan_own *own, const char *name)
{
    for (size_t i = 0; i < own->candidate_count; i++) {
        enum sl_format_says says = sl_format_name_says(own->candidates[i].name);
        if ((says == SL_SAYS_MODEL || says == SL_SAYS_LIKELY) &&
            same_folder(own->candidates[i].name, name))
            return true;
    }
    return false;
}

/* ---- indexes of shards ----------------------------------------------------------------------- */

/* Tensors of shards whose headers were read. */
static int check_tensors(struct check *check, const char *name, const struct sl_shard_map *map,
                         struct sl_candidate *const *shards)
{
    for (size_t i = 0; i < map->place_count; i++) {
        const struct sl_shard_place *place = &map->places[i];
        struct sl_index *index =
            shards[place->shard_number] ? shards[place->shard_number]->index : NULL;
        const struct sl_format *format = index ? sl_format_by_name(index->format) : NULL;
        if (!format || format->tensors_only)
            continue;
        if (sl_index_sort_names(index, check->err) < 0)
            return -1;
        if (!sl_index_find(index, place->tensor, place->tensor_bytes, NULL))
            return find(check, false,
                        "'%.200s' says that tensor '%.*s' is in '%.200s', which has "
                        "no such tensor",
                        name, SL_NAME_ARGS(place->tensor, place->tensor_bytes), place->shard);
    }
    return 0;
}

static int check_shards(struct check *check, const struct sl_candidate *candidate)
{
    const struct sl_plan_own *own = check->own;
    const struct sl_shard_map *map = &candidate->claim->map;
    size_t there = 0, left_out = 0, missing = SIZE_MAX;
    uint64_t bytes = 0;
    sl_autofree struct sl_candidate **shards =
        sl_alloc_array(map->shard_count + 1, sizeof(*shards), check->err);
    if (!shards)
        return -1;
    for (size_t i = 0; i < map->shard_count; i++) {
        sl_autofree char *name = beside(candidate->name, map->shards[i], check->err);
        if (!name)
            return -1;
        shards[i] = present(own, name);
        there += shards[i] != NULL;
        bytes = sl_add_capped(bytes, shards[i] ? shards[i]->bytes : 0);
        if (!shards[i] && sl_plan_leaves_out(own, name))
            left_out++;
        else if (!shards[i] && missing == SIZE_MAX)
            missing = i;
    }
    if (missing != SIZE_MAX)
        return find(check, there == 0 && has_weights_beside(own, candidate->name),
                    "'%.200s' names '%.200s', which is not there", candidate->name,
                    map->shards[missing]);
    if (!left_out && map->total_bytes > bytes &&
        find(check, true,
             "'%.200s' says that its tensors have %" PRIu64 " bytes, and its files have %" PRIu64,
             candidate->name, map->total_bytes, bytes) < 0)
        return -1;
    return check_tensors(check, candidate->name, map, shards);
}

/* ---- folders and files ----------------------------------------------------------------------- */

static int check_folders(struct check *check, const struct sl_candidate *candidate)
{
    const struct sl_plan_own *own = check->own;
    for (size_t i = 0; i < candidate->claim->name_count; i++) {
        const char *part = candidate->claim->names[i];
        sl_autofree char *folder = sl_asprintf(
            check->err, "%.*s%s/", (int)(sl_base_name(candidate->name) - candidate->name),
            candidate->name, part);
        sl_autofree char *some = folder ? sl_asprintf(check->err, "%sconfig.json", folder) : NULL;
        if (!some)
            return -1;
        if (!has_folder(own, folder) && !sl_plan_leaves_out(own, some) &&
            find(check, false, "'%.200s' names '%.200s', and nothing lies in that folder",
                 candidate->name, part) < 0)
            return -1;
    }
    return 0;
}

static int check_files(struct check *check, const struct sl_candidate *candidate)
{
    for (size_t i = 0; i < candidate->claim->name_count; i++) {
        const char *file = candidate->claim->names[i];
        sl_autofree char *name = beside(candidate->name, file, check->err);
        if (!name)
            return -1;
        const struct sl_candidate *found = present(check->own, name);
        if (found ? found->bytes == 0 : !sl_plan_leaves_out(check->own, name))
            return find(check, false, "'%.200s' names '%.200s', which is %s", candidate->name, file,
                        found ? "empty" : "not there");
    }
    return 0;
}

static int check_claim(struct check *check, const struct sl_candidate *candidate)
{
    switch (candidate->claim->kind) {
    case SL_CLAIM_SHARDS:
        return check_shards(check, candidate);
    case SL_CLAIM_FOLDERS:
        return check_folders(check, candidate);
    case SL_CLAIM_FILES:
        return check_files(check, candidate);
    case SL_CLAIM_NONE:
        break;
    }
    return 0;
}

/* torch writes .metadata when all files of a distributed checkpoint are there. */
static int check_distributed(struct check *check)
{
    const struct sl_plan_own *own = check->own;
    const char *last = NULL;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const char *name = own->candidates[i].name;
        if (!sl_format_has_suffix(name, ".distcp") || (last && same_folder(last, name)))
            continue;
        last = name;
        sl_autofree char *metadata = beside(name, ".metadata", check->err);
        if (!metadata)
            return -1;
        if (!present(own, metadata) && !sl_plan_leaves_out(own, metadata) &&
            find(check, false,
                 "'%.200s' is part of a distributed checkpoint, and '%.200s', which "
                 "is written last, is not there",
                 name, metadata) < 0)
            return -1;
    }
    return 0;
}

/* ---- numbers in names ------------------------------------------------------------------------ */

/* NAME-00001-of-00003.EXT: total 3. model-rank-0-part-0.EXT: total 0, nobody says how many. */
struct numbered {
    const struct sl_candidate *candidate;
    size_t prefix_bytes; /* of its name, the folder included */
    const char *suffix;  /* what follows the number; of ranks only the next word counts */
    unsigned long number, total;
};

static bool all_digits(const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return true;
}

static bool take_shard_number(const struct sl_candidate *candidate, struct numbered *numbered)
{
    const char *base = sl_base_name(candidate->name);
    if (sl_format_is_fork(base))
        return false;
    for (const char *of = strstr(base, "-of-"); of; of = strstr(of + 1, "-of-")) {
        const char *number = of - NUMBER_DIGITS, *total = of + 4;
        if (number <= base || number[-1] != '-' || strlen(total) < NUMBER_DIGITS ||
            !all_digits(number, NUMBER_DIGITS) || !all_digits(total, NUMBER_DIGITS) ||
            (total[NUMBER_DIGITS] >= '0' && total[NUMBER_DIGITS] <= '9'))
            continue;
        *numbered =
            (struct numbered){candidate, (size_t)(number - candidate->name), total + NUMBER_DIGITS,
                              strtoul(number, NULL, 10), strtoul(total, NULL, 10)};
        return numbered->total > 0;
    }
    return false;
}

static bool take_rank(const struct sl_candidate *candidate, struct numbered *numbered)
{
    struct sl_rank_name rank;
    if (!sl_rank_name(candidate->name, &rank))
        return false;
    *numbered = (struct numbered){candidate, rank.prefix_bytes, rank.suffix, rank.number, 0};
    return true;
}

static int by_set(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    int order =
        sl_bytes_compare(x->candidate->name, x->prefix_bytes, y->candidate->name, y->prefix_bytes);
    if (!order && x->total != y->total)
        order = x->total < y->total ? -1 : 1;
    if (!order && x->total)
        order = strcmp(x->suffix, y->suffix);
    if (!order && !x->total) /* parts of ranks may be more or fewer */
        order = (unsigned char)*x->suffix - (unsigned char)*y->suffix;
    return order;
}

static int by_set_and_number(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    int order = by_set(a, b);
    if (!order)
        order = (x->number > y->number) - (x->number < y->number);
    return order ? order : strcmp(x->candidate->name, y->candidate->name);
}

static int has_shard(const struct check *check, const struct sl_candidate *candidate)
{
    const struct sl_shard_map *map = &candidate->claim->map;
    for (size_t i = 0; i < map->shard_count; i++) {
        sl_autofree char *name = beside(candidate->name, map->shards[i], check->err);
        if (!name)
            return -1;
        if (present(check->own, name))
            return 1;
    }
    return 0;
}

/* Does an index of these files rule in their folder? -1: no memory. */
static int is_ruled(const struct check *check, const struct numbered *first)
{
    const struct sl_plan_own *own = check->own;
    const char *dot = strrchr(first->suffix, '.');
    sl_autofree char *mark = sl_asprintf(check->err, "%s.index.", dot ? dot : "");
    int rules = mark ? 0 : -1;
    for (size_t i = 0; rules == 0 && i < own->candidate_count; i++) {
        const struct sl_candidate *candidate = &own->candidates[i];
        if (candidate->claim && candidate->claim->kind == SL_CLAIM_SHARDS &&
            strstr(sl_base_name(candidate->name), mark) &&
            same_folder(candidate->name, first->candidate->name))
            rules = has_shard(check, candidate);
    }
    return rules;
}

static bool has_number(const struct numbered *set, size_t count, unsigned long number)
{
    size_t at = SL_LOWER_BOUND(i, count, set[i].number < number);
    return at < count && set[at].number == number;
}

static int check_counted(struct check *check, const struct numbered *set, size_t count)
{
    const struct numbered *first = &set[0];
    unsigned long from = first->number == 0 ? 0 : 1;
    for (unsigned long number = from; number < from + first->total; number++) {
        if (has_number(set, count, number))
            continue;
        sl_autofree char *name =
            sl_asprintf(check->err, "%.*s%05lu-of-%05lu%s", (int)first->prefix_bytes,
                        first->candidate->name, number, first->total, first->suffix);
        if (!name)
            return -1;
        if (sl_plan_leaves_out(check->own, name))
            continue;
        int rules = is_ruled(check, first);
        return rules < 0 ? -1
                         : find(check, rules > 0,
                                "'%.200s' is not there, and '%.200s' is one of %lu parts", name,
                                first->candidate->name, first->total);
    }
    return 0;
}

/* Ranks count from 0; a folder of another machine's ranks begins later, and is not judged. */
static int check_ranks(struct check *check, const struct numbered *set, size_t count)
{
    for (size_t i = 1; set[0].number == 0 && i < count; i++) {
        const struct numbered *before = &set[i - 1], *at = &set[i];
        if (at->number <= before->number + 1)
            continue;
        while (before > set && before[-1].number == before->number)
            before--;
        const char *number = before->candidate->name + before->prefix_bytes;
        sl_autofree char *name = sl_asprintf(
            check->err, "%.*s%0*lu%s", (int)before->prefix_bytes, before->candidate->name,
            (int)(before->suffix - number), before->number + 1, before->suffix);
        if (!name)
            return -1;
        if (!sl_plan_leaves_out(check->own, name))
            return find(check, false, "'%.200s' is not there, between '%.200s' and '%.200s'", name,
                        before->candidate->name, at->candidate->name);
    }
    return 0;
}

static int check_numbers(struct check *check)
{
    const struct sl_plan_own *own = check->own;
    size_t count = 0;
    sl_autofree struct numbered *all =
        sl_alloc_array(own->candidate_count + 1, sizeof(*all), check->err);
    if (!all)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        count += take_shard_number(&own->candidates[i], &all[count]) ||
                 take_rank(&own->candidates[i], &all[count]);
    if (count > 1)
        qsort(all, count, sizeof(*all), by_set_and_number);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && by_set(&all[first], &all[end]) == 0;)
            end++;
        if ((all[first].total ? check_counted : check_ranks)(check, all + first, end - first) < 0)
            return -1;
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int sl_plan_check_whole(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct check check = {.own = own, .err = err};
    if (own->single)
        return 0;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (own->candidates[i].claim && check_claim(&check, &own->candidates[i]) < 0)
            return -1;
    if (check_distributed(&check) < 0 || check_numbers(&check) < 0)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        sl_plan_claim_free(sl_steal(&own->candidates[i].claim));
    if (check.warnings > WARNINGS_MAX)
        sl_log(SL_LOG_WARN, "%u more things may be missing", check.warnings - WARNINGS_MAX);
    return 0;
}
