/*
 * Models whose files are one rank's each, as engines write what they hold. With source.rank a rank
 * takes its own, and what is no weights at all; what belongs to others is not looked at.
 *
 * The names are all that says how many ranks there are: files of more than source.rank.of were made
 * for others, and a rank that is missing means that they were too, or that an upload is under way.
 */
#include <stdlib.h>
#include <string.h>

#include "lower_bound.h"
#include "names.h"
#include "plan_parts.h"
#include "rank_name.h"
#include "weights.h"

static const char part_mark[] = "-part-";

/* One file of a rank. */
struct rank_file {
    const char *name;
    struct sl_rank_name rank;
};

/* "model-rank-", "-part-0.safetensors": files of one set differ in numbers alone. */
static int by_set(const void *a, const void *b)
{
    const struct rank_file *x = a, *y = b;
    const char *x_dot = strrchr(x->rank.suffix, '.'), *y_dot = strrchr(y->rank.suffix, '.');
    int order = sl_bytes_compare(x->name, x->rank.prefix_bytes, y->name, y->rank.prefix_bytes);
    if (!order)
        order = (unsigned char)*x->rank.suffix - (unsigned char)*y->rank.suffix;
    return order ? order : strcmp(x_dot ? x_dot : "", y_dot ? y_dot : "");
}

static bool has_part(const struct rank_file *file)
{
    return strncmp(file->rank.suffix, part_mark, sizeof(part_mark) - 1) == 0;
}

/* The part's number; 0 of what has no parts. */
static unsigned long part_of(const struct rank_file *file)
{
    return has_part(file) ? strtoul(file->rank.suffix + sizeof(part_mark) - 1, NULL, 10) : 0;
}

static int by_set_and_number(const void *a, const void *b)
{
    const struct rank_file *x = a, *y = b;
    int order = by_set(a, b);
    if (!order)
        order = (x->rank.number > y->rank.number) - (x->rank.number < y->rank.number);
    if (!order)
        order = (part_of(x) > part_of(y)) - (part_of(x) < part_of(y));
    return order ? order : strcmp(x->name, y->name);
}

/* Numbers of one set have leading zeros up to the width of the lowest, or none. */
static bool is_written_alike(const struct rank_file *lowest, const struct rank_file *file)
{
    size_t width = (size_t)(lowest->rank.suffix - lowest->name) - lowest->rank.prefix_bytes;
    size_t digits = (size_t)(file->rank.suffix - file->name) - file->rank.prefix_bytes;
    return digits == width || (digits > width && file->name[file->rank.prefix_bytes] != '0');
}

struct rank_set {
    struct rank_file *files; /* sorted */
    size_t count;
};

static int find_set(const struct sl_plan_own *own, struct rank_set *set, struct sl_err *err)
{
    set->files = sl_alloc_array(own->candidate_count + 1, sizeof(*set->files), err);
    if (!set->files)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct rank_file *file = &set->files[set->count];
        file->name = own->candidates[i].name;
        set->count += !sl_plan_names_files(file->name) && sl_rank_name(file->name, &file->rank);
    }
    if (!set->count)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "nothing below '%s' is called like the file of a rank, such as "
                       "'model-rank-0-part-0.safetensors', 'rank0.safetensors' or "
                       "'model-rank-000.tensors': leave out 'source.rank', or name their folder",
                       sl_store_uri(own->store));
    qsort(set->files, set->count, sizeof(*set->files), by_set_and_number);
    for (size_t i = 1; i < set->count; i++)
        if (by_set(&set->files[0], &set->files[i]) != 0 ||
            !is_written_alike(&set->files[0], &set->files[i]))
            return sl_fail(err, SL_E_USAGE,
                           "'%.200s' and '%.200s' are of two sets of ranks: choose one with "
                           "source.include",
                           set->files[0].name, set->files[i].name);
    return 0;
}

/* ---- is all there? --------------------------------------------------------------------------- */

/* The name that the file of a rank would have, by that of another. */
static char *name_of(const struct rank_file *like, unsigned long number, struct sl_err *err)
{
    const char *digits = like->name + like->rank.prefix_bytes;
    return sl_asprintf(err, "%.*s%0*lu%s", (int)like->rank.prefix_bytes, like->name,
                       (int)(like->rank.suffix - digits), number, like->rank.suffix);
}

static bool has_rank(const struct rank_set *set, unsigned long number)
{
    size_t at = SL_LOWER_BOUND(i, set->count, set->files[i].rank.number < number);
    return at < set->count && set->files[at].rank.number == number;
}

static int check_ranks(const struct sl_plan_own *own, const struct rank_set *set,
                       struct sl_err *err)
{
    const struct sl_spec_rank *wanted = &own->spec->source.rank;
    const struct rank_file *first = &set->files[0], *last = &set->files[set->count - 1];
    if (last->rank.number >= wanted->of)
        return sl_fail_code(err, SL_E_FORMAT, "E_INCOMPLETE",
                            "'%.200s' is there, and 'source.rank' says that there are %u ranks, "
                            "from 0: name as many as the files were made for",
                            last->name, (unsigned)wanted->of);
    if (!has_rank(set, wanted->index)) {
        sl_autofree char *name = name_of(first, wanted->index, err);
        return name ? sl_fail_code(err, SL_E_FORMAT, "E_INCOMPLETE",
                                   "'%.200s' is not there, and '%.200s' is: were the files made "
                                   "for %u ranks, and are all of them stored?",
                                   name, last->name, (unsigned)wanted->of)
                    : -1;
    }
    for (unsigned long number = 0; number < wanted->of; number++) {
        if (has_rank(set, number))
            continue;
        sl_autofree char *name = name_of(first, number, err);
        if (!name)
            return -1;
        if (!sl_plan_leaves_out(own, name))
            return sl_plan_find_missing(
                own, err, "'%.200s' is not there, of %u ranks that 'source.rank' says", name,
                (unsigned)wanted->of);
    }
    return 0;
}

/* Parts count from 0, and nobody says how many there are but an index. Sorted by rank and part. */
static int check_parts(const struct sl_plan_own *own, const struct rank_set *set,
                       struct sl_err *err)
{
    const struct rank_file *last = NULL;
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct rank_file *file = &set->files[i];
        if (file->rank.number != own->spec->source.rank.index)
            continue;
        if (last && has_part(file) && has_part(last) && part_of(file) == part_of(last))
            return sl_fail(err, SL_E_USAGE,
                           "'%.200s' and '%.200s' are the same part of rank %u: choose one with "
                           "source.include",
                           last->name, file->name, (unsigned)own->spec->source.rank.index);
        count++;
        last = file;
    }
    if (!last || part_of(last) < count)
        return 0;
    return sl_plan_find_missing(own, err, "of rank %u %zu %s there, and the last is '%.200s'",
                                (unsigned)own->spec->source.rank.index, count,
                                count == 1 ? "file is" : "files are", last->name);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Weights of other ranks, and of none. */
static bool is_of_others(const struct sl_plan_own *own, const char *name)
{
    struct sl_rank_name rank;
    if (sl_rank_name(name, &rank))
        return rank.number != own->spec->source.rank.index;
    return sl_weights_named(name) || sl_plan_names_files(name);
}

int sl_plan_choose_rank(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct rank_set set = {0};
    if (!own->spec->source.rank.of)
        return 0;
    int done = find_set(own, &set, err);
    if (done == 0)
        done = check_ranks(own, &set, err) < 0 ? -1 : check_parts(own, &set, err);
    free(set.files);
    if (done < 0)
        return -1;
    sl_autofree bool *out = sl_alloc_array(own->candidate_count + 1, sizeof(*out), err);
    if (!out)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        out[i] = is_of_others(own, own->candidates[i].name);
    return sl_plan_leave_out(own, out, err);
}
