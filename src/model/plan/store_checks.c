/*
 * Checksums that a store keeps of whole objects, or told of in a listing. To ask costs a request
 * each, which a large object is worth, many small ones are not: `auto` asks for objects of 64 MiB
 * and more that come without any other hash, `all` and `require` for every one. They are asked for
 * side by side. That a store does not say is not a failure: then there is none.
 */
#include <inttypes.h>

#include "hash.h"
#include "log.h"
#include "plan_parts.h"
#include "side_by_side.h"

#define LARGE_BYTES (UINT64_C(64) * 1024 * 1024)

struct asking {
    struct sl_plan *plan;
    struct sl_checksums *sums; /* one a source */
};

static bool costs_nothing(const struct sl_plan *plan, uint32_t number)
{
    return sl_source_known_checksums(plan->sources[number].source) != NULL;
}

/* Is the whole object written unchanged? Objects without tensors are, in each layout of files. */
static bool is_whole(const struct sl_plan *plan, uint32_t number)
{
    return !plan->mappings ||
           (!plan->sources[number].index && plan->own->output.layout != SL_LAYOUT_SLABS);
}

static bool is_asked(const struct sl_plan *plan, uint32_t number)
{
    const struct sl_plan_own *own = plan->own;
    uint64_t bytes = sl_source_bytes(plan->sources[number].source);
    int hashes = own->spec->verify.hashes;
    if (hashes == SL_HASHES_OFF || sl_plan_sidecar(plan, number) || !bytes ||
        !is_whole(plan, number))
        return false;
    if (!costs_nothing(plan, number) && !sl_store_advice(own->store).checksums)
        return false;
    if (hashes == SL_HASHES_ALL)
        return true;
    return own->covered[number] == 0 &&
           (hashes == SL_HASHES_REQUIRE || bytes >= LARGE_BYTES || costs_nothing(plan, number));
}

static int ask(void *arg, size_t number, struct sl_err *err)
{
    struct asking *asking = arg;
    struct sl_source *source = asking->plan->sources[number].source;
    struct sl_err why = SL_ERR_INIT;
    (void)err; /* that a store does not say is not a failure */
    if (is_asked(asking->plan, (uint32_t)number) &&
        sl_source_checksums(source, &asking->sums[number], &why) < 0)
        sl_log(SL_LOG_DEBUG, "no checksums of '%s': %s", sl_source_uri(source), why.message);
    return 0;
}

/* What git hashes before the bytes of a blob. */
static int add_git_head(struct sl_plan *plan, struct sl_check *check, struct sl_err *err)
{
    struct sl_buf *texts = &plan->own->texts;
    size_t before = texts->used;
    check->prefix = (const uint8_t *)texts->data + before;
    if (sl_buf_printf(texts, err, "blob %" PRIu64, check->end) < 0)
        return -1;
    check->prefix_bytes = ++texts->used - before; /* with its NUL */
    return 0;
}

/* A crypto library in FIPS mode lacks some. It is said of the first object. */
static void leave_out_missing(struct sl_plan *plan, uint32_t number, struct sl_checksums *sums,
                              bool *said)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sums->count; i++) {
        const char *name = sl_hash_name(sums->items[i].kind);
        if (sl_hash_is_available(sums->items[i].kind)) {
            sums->items[count++] = sums->items[i];
            continue;
        }
        sl_log(*said ? SL_LOG_DEBUG : SL_LOG_WARN,
               "'%s' comes with its %s, which is not checked: the crypto library of this machine "
               "has no %s (in FIPS mode it has none)",
               plan->sources[number].name, name, name);
        *said = true;
    }
    sums->count = count;
}

/* The cheapest comes first; `all` takes every one. */
static int add_checks(struct sl_plan *plan, uint32_t number, const struct sl_checksums *sums,
                      struct sl_err *err)
{
    bool all = plan->own->spec->verify.hashes == SL_HASHES_ALL;
    struct sl_check check = {.source = number,
                             .file = sl_plan_whole_file(plan, number),
                             .end = sl_source_bytes(plan->sources[number].source),
                             .delivery = !all};
    if (sums->composite)
        sl_log(SL_LOG_DEBUG,
               "the store's checksum of '%s' is composite, of the parts of its upload, and cannot "
               "be compared",
               plan->sources[number].name);
    for (unsigned i = 0; i < sums->count && (all || i == 0); i++) {
        check.kind = sums->items[i].kind;
        memcpy(check.expected, sums->items[i].value, sl_hash_bytes(check.kind));
        if (sums->items[i].git && add_git_head(plan, &check, err) < 0)
            return -1;
        if ((i == 0 &&
             sl_plan_object_text(plan, plan->sources[number].name, &check.what, err) < 0) ||
            sl_plan_add_check(plan, &check, err) < 0)
            return -1;
        plan->own->covered[number] = check.end;
    }
    return 0;
}

int sl_plan_check_stores(struct sl_plan *plan, struct sl_err *err)
{
    size_t count = 0, requests = 0;
    bool said = false;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (is_asked(plan, i)) {
            count++;
            requests += !costs_nothing(plan, i);
        }
    if (!count)
        return 0;
    sl_autofree struct sl_checksums *sums = sl_alloc_array(plan->source_count, sizeof(*sums), err);
    if (!sums)
        return -1;
    struct asking asking = {.plan = plan, .sums = sums};
    if (sl_side_by_side(plan->source_count, sl_store_openings(plan->own->store, count), "sl-ask",
                        ask, &asking, err) < 0)
        return -1;
    plan->index_requests += requests;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        leave_out_missing(plan, i, &sums[i], &said);
        if (sums[i].count + sums[i].composite && add_checks(plan, i, &sums[i], err) < 0)
            return -1;
    }
    return 0;
}
