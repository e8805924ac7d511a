/* Everything in it is a stranger's: numbers have limits, each term needs an entry that holds its
 * chunks, and the terms must be long enough for what was asked for. */
#include "xet_plan.h"

#include <pthread.h>

#include "json.h"
#include "thread.h"
#include "xet_chunk.h"

enum {
    TERMS_MAX = 64 * 1024,
    CHUNKS_MAX = 1024 * 1024,           /* of a xorb; it has 8,192 of the usual size */
    ENTRY_BYTES_MAX = 65 * 1024 * 1024, /* a xorb has 64 MiB */
    ENTRIES_PER_XORB_MAX = 1024,
};

static int hostile(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "xet", "the answer of Xet %s", why);
}

/* {"start": a, "end": b}, a < b <= most. */
static bool take_range(const json_t *range, uint64_t most, uint64_t *begin, uint64_t *end)
{
    *begin = sl_json_get_uint(range, "start", UINT64_MAX);
    *end = sl_json_get_uint(range, "end", UINT64_MAX);
    return *begin < *end && *end <= most;
}

static int take_entry(const json_t *item, struct sl_xet_entry *entry, struct sl_err *err)
{
    const char *url = sl_json_get_string(item, "url");
    const json_t *bytes = json_object_get(item, "url_range");
    uint64_t first, end;
    if (!url || !take_range(json_object_get(item, "range"), CHUNKS_MAX, &first, &end))
        return hostile(err, "has an entry without URL or chunks");
    entry->begin = sl_json_get_uint(bytes, "start", UINT64_MAX);
    entry->end = sl_json_get_uint(bytes, "end", UINT64_MAX);
    if (entry->begin > entry->end || entry->end >= INT64_MAX ||
        entry->end - entry->begin >= ENTRY_BYTES_MAX)
        return hostile(err, "has an entry with a range that makes no sense");
    entry->end++;
    entry->first_chunk = (uint32_t)first;
    entry->end_chunk = (uint32_t)end;
    entry->url = sl_strdup(url, err);
    return entry->url ? 0 : -1;
}

/* Where the entries of each xorb begin. */
struct places {
    json_t *first; /* xorb's hash: number */
};

static int take_entries(const json_t *info, struct sl_xet_plan *plan, struct places *places,
                        struct sl_err *err)
{
    size_t capacity = 0;
    const char *hash;
    const json_t *items;
    if (!json_is_object(info))
        return hostile(err, "has no fetch_info");
    json_object_foreach((json_t *)info, hash, items)
    {
        size_t count = json_array_size(items);
        if (!count || count > ENTRIES_PER_XORB_MAX || plan->entry_count + count > TERMS_MAX)
            return hostile(err, "has no entries of a xorb, or too many");
        if (sl_grow(&plan->entries, &capacity, plan->entry_count + count, sizeof(*plan->entries),
                    err) < 0)
            return -1;
        json_object_set_new(places->first, hash, json_integer(plan->entry_count));
        for (size_t i = 0; i < count; i++) {
            struct sl_xet_entry *entry = &plan->entries[plan->entry_count++];
            *entry = (struct sl_xet_entry){.uses = 0};
            if (take_entry(json_array_get(items, i), entry, err) < 0)
                return -1;
        }
    }
    return 0;
}

/* The entry that holds the term's chunks. */
static int find_entry(const json_t *info, const struct places *places, const char *hash,
                      struct sl_xet_plan *plan, struct sl_xet_term *term, struct sl_err *err)
{
    size_t count = json_array_size(json_object_get(info, hash));
    uint32_t first = (uint32_t)sl_json_get_uint(places->first, hash, 0);
    for (uint32_t i = first; i < first + count; i++)
        if (plan->entries[i].first_chunk <= term->first_chunk &&
            plan->entries[i].end_chunk >= term->end_chunk) {
            plan->entries[i].uses++;
            term->entry = i;
            return 0;
        }
    return hostile(err, "has a term without an entry");
}

static int take_terms(const json_t *document, struct sl_xet_plan *plan, const struct places *places,
                      struct sl_err *err)
{
    const json_t *terms = json_object_get(document, "terms");
    const json_t *info = json_object_get(document, "fetch_info");
    size_t count = json_array_size(terms);
    if (!count || count > TERMS_MAX)
        return hostile(err, "has no terms, or too many");
    plan->terms = sl_alloc_array(count, sizeof(*plan->terms), err);
    if (!plan->terms)
        return -1;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(terms, i);
        struct sl_xet_term *term = &plan->terms[plan->term_count++];
        const char *hash = sl_json_get_string(item, "hash");
        uint64_t first, end;
        term->bytes = sl_json_get_uint(item, "unpacked_length", 0);
        if (!hash || !take_range(json_object_get(item, "range"), CHUNKS_MAX, &first, &end) ||
            term->bytes < end - first || term->bytes > (end - first) * SL_XET_RAW_MAX)
            return hostile(err, "has a term that makes no sense");
        term->first_chunk = (uint32_t)first;
        term->end_chunk = (uint32_t)end;
        if (find_entry(info, places, hash, plan, term, err) < 0)
            return -1;
    }
    return 0;
}

static int check_length(const json_t *document, uint64_t wanted, struct sl_xet_plan *plan,
                        struct sl_err *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < plan->term_count; i++)
        total += plan->terms[i].bytes; /* at most 2^16 * 2^20 * 2^17 */
    plan->skip = sl_json_get_uint(document, "offset_into_first_range", UINT64_MAX);
    if (plan->skip >= plan->terms[0].bytes || total - plan->skip < wanted)
        return hostile(err, "does not cover what was asked for");
    return 0;
}

int sl_xet_plan_parse(const char *text, size_t bytes, uint64_t wanted, struct sl_xet_plan *plan,
                      struct sl_err *err)
{
    /* Every connection asks, and a tree may be ten times its text: one at a time. */
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    SL_LOCKED(&one);
    *plan = (struct sl_xet_plan){.skip = 0};
    json_t *document = sl_json_parse(text, bytes, "the answer of Xet", err);
    struct places places = {json_object()};
    int result = document && places.first ? 0 : -1;
    if (result == 0 && !json_is_object(document))
        result = hostile(err, "is not an object");
    if (result == 0)
        result = take_entries(json_object_get(document, "fetch_info"), plan, &places, err);
    if (result == 0)
        result = take_terms(document, plan, &places, err);
    if (result == 0)
        result = check_length(document, wanted, plan, err);
    json_decref(places.first);
    json_decref(document);
    return result;
}

void sl_xet_plan_release(struct sl_xet_plan *plan)
{
    for (uint32_t i = 0; i < plan->entry_count; i++)
        free(plan->entries[i].url);
    free(plan->entries);
    free(plan->terms);
    *plan = (struct sl_xet_plan){.skip = 0};
}
