/*
 * Sidecars (docs/sidecars.md): NAME.sluice.json beside an object has hashes for every range of it,
 * so a wrong range is known as such and fetched again alone. They are found in the listing, which
 * costs nothing; of single objects they are asked for only where the spec insists. One that is of
 * another version is left aside with a warning, or refused where it is needed.
 *
 * What a signature of the model says of an object's ranges (model_signing.c) takes the place of its
 * sidecar, and is used in the same way.
 *
 * Where objects are taken whole every byte is below a range, and the hashes of tensors are left out
 * for such bytes, unless all hashes are wanted; those that remain, and those of whole objects, are
 * judged once more when ranges within them have been fetched again. Where tensors are picked,
 * sidecar_coverage.c says which ranges can be checked.
 */
#include "sidecar.h"

#include <inttypes.h>

#include "format.h"
#include "log.h"
#include "lower_bound.h"
#include "mapping.h"
#include "plan_parts.h"
#include "side_by_side.h"

void sl_plan_free_sidecars(struct sl_plan_own *own)
{
    for (size_t i = 0; i < own->listed_count; i++) {
        free(own->listed[i].name);
        sl_sidecar_free(own->listed[i].read);
        free(own->listed[i].why);
    }
    for (size_t i = 0; own->sidecars && i < own->sidecars_of; i++)
        sl_sidecar_free(own->sidecars[i]);
    free(own->listed);
    free(own->sidecars);
    free(own->authentic);
}

static bool wanted(const struct sl_plan *plan)
{
    return plan->own->spec->verify.sidecar != SL_SIDECAR_OFF;
}

/* ---- in the listing -------------------------------------------------------------------------- */

static int by_candidate(const void *a, const void *b)
{
    return strcmp(((const struct sl_candidate *)a)->name, ((const struct sl_candidate *)b)->name);
}

static int by_owner(const void *a, const void *b)
{
    return strcmp(((const struct sl_plan_sidecar *)a)->name,
                  ((const struct sl_plan_sidecar *)b)->name);
}

/* The object that this one would be the sidecar of, malloc'ed; NULL if it is none. */
static char *owner_of(const struct sl_plan_own *own, const char *name, struct sl_err *err)
{
    size_t suffix = strlen(SL_SIDECAR_SUFFIX);
    if (!sl_format_has_suffix(name, SL_SIDECAR_SUFFIX) || strlen(name) == suffix)
        return NULL;
    char *owner = sl_strndup(name, strlen(name) - suffix, err);
    struct sl_candidate key = {.name = owner};
    if (owner && bsearch(&key, own->candidates, own->candidate_count, sizeof(key), by_candidate))
        return owner;
    free(owner);
    return NULL;
}

static int set_aside(struct sl_plan_own *own, char *owner, uint64_t bytes, struct sl_err *err)
{
    if (sl_grow(&own->listed, &own->listed_capacity, own->listed_count + 1, sizeof(*own->listed),
                err) < 0) {
        free(owner);
        return -1;
    }
    own->listed[own->listed_count++] = (struct sl_plan_sidecar){.name = owner, .bytes = bytes};
    return 0;
}

int sl_plan_note_sidecar(struct sl_plan_own *own, const char *name, uint64_t bytes,
                         struct sl_err *err)
{
    size_t suffix = strlen(SL_SIDECAR_SUFFIX);
    if (!sl_format_has_suffix(name, SL_SIDECAR_SUFFIX) || strlen(name) == suffix)
        return 0;
    char *owner = sl_strndup(name, strlen(name) - suffix, err);
    return owner ? set_aside(own, owner, bytes, err) : -1;
}

/* Candidates are sorted by name. Owners are looked up before any leaves: of a sidecar's sidecar
 * the first is an object. */
int sl_plan_set_sidecars_aside(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (!wanted(plan) || own->single)
        return 0;
    sl_autofree bool *leaves = sl_alloc_array(own->candidate_count, sizeof(*leaves), err);
    if (!leaves)
        return -1;
    struct sl_err why = SL_ERR_INIT;
    for (size_t i = 0; i < own->candidate_count; i++) {
        char *owner = owner_of(own, own->candidates[i].name, &why);
        if (why.kind || (owner && set_aside(own, owner, own->candidates[i].bytes, &why) < 0)) {
            *err = why;
            return -1;
        }
        leaves[i] = owner != NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        if (!leaves[i]) {
            own->candidates[kept++] = *candidate;
            continue;
        }
        sl_candidate_release(candidate);
    }
    own->candidate_count = kept;
    if (own->listed_count)
        qsort(own->listed, own->listed_count, sizeof(*own->listed), by_owner);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct sl_plan_sidecar *find_listed(const struct sl_plan_own *own, const char *name)
{
    size_t at = SL_LOWER_BOUND(i, own->listed_count, strcmp(own->listed[i].name, name) < 0);
    bool found = at < own->listed_count && strcmp(own->listed[at].name, name) == 0;
    return found ? &own->listed[at] : NULL;
}

static int read_whole(struct sl_source *source, char **text, struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_SIDECAR_TEXT_BYTES_MAX)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                            "'%s' is not a sidecar: it has %" PRIu64
                            " bytes, at most 24 MiB are taken",
                            sl_source_name(source), bytes);
    *text = sl_alloc((size_t)bytes + 1, err);
    return *text ? sl_source_read(source, 0, *text, (size_t)bytes, err) : -1;
}

/* Of the object of this name; NULL without a failure: it has none. */
static int read_one(struct sl_plan_own *own, const char *name, uint64_t bytes,
                    struct sl_sidecar **out, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *text = NULL;
    sl_autofree char *path = sl_asprintf(err, "%s%s", name, SL_SIDECAR_SUFFIX);
    uint64_t head = SL_MIN(SL_MAX(bytes, 64u * 1024), (uint64_t)SL_SIDECAR_TEXT_BYTES_MAX);
    if (!path)
        return -1;
    if (sl_source_open(own->store, path, head, &source, err) < 0)
        return err->kind == SL_E_NOT_FOUND ? 0 : sl_wrap(err, "cannot read '%s'", path);
    if (read_whole(source, &text, err) < 0 ||
        sl_sidecar_parse(text, (size_t)sl_source_bytes(source), out, err) < 0)
        return sl_wrap(err, "'%s'", path);
    uint64_t requests;
    sl_source_counts(source, &requests, &bytes);
    SL_LOCKED(&own->ahead.lock);
    own->ahead.locked.requests += requests;
    own->ahead.locked.bytes += bytes;
    return 0;
}

/* ---- ahead of need ---- */

static bool is_stopped(struct sl_plan_own *own)
{
    SL_LOCKED(&own->ahead.lock);
    return own->ahead.locked.stop;
}

/* A failure is kept for where it counts: it may be of an object that is left out. */
static int read_ahead(void *arg, size_t number, struct sl_err *err)
{
    struct sl_plan_own *own = arg;
    struct sl_plan_sidecar *listed = &own->listed[number];
    struct sl_err why = SL_ERR_INIT;
    if (is_stopped(own))
        return sl_fail(err, SL_E_CANCELED, "the plan has ended");
    if (!listed->wanted || read_one(own, listed->name, listed->bytes, &listed->read, &why) == 0)
        return 0;
    sl_log(SL_LOG_DEBUG, "%s", why.message);
    listed->why = sl_alloc(sizeof(why), NULL); /* else it is read again */
    if (listed->why)
        *listed->why = why;
    return 0;
}

static void *run_ahead(void *arg)
{
    struct sl_plan_own *own = arg;
    struct sl_err unused = SL_ERR_INIT;
    (void)sl_side_by_side(own->listed_count, sl_store_openings(own->store, own->listed_count),
                          "sl-sidecar", read_ahead, own, &unused);
    return NULL;
}

void sl_plan_begin_sidecars(struct sl_plan *plan)
{
    struct sl_plan_own *own = plan->own;
    bool any = false;
    for (size_t i = 0; i < own->listed_count; i++) {
        struct sl_plan_sidecar *listed = &own->listed[i];
        const struct sl_candidate key = {.name = listed->name};
        listed->wanted =
            bsearch(&key, own->candidates, own->candidate_count, sizeof(key), by_candidate) != NULL;
        any = any || listed->wanted;
    }
    own->ahead.started =
        any && wanted(plan) && sl_store_openings(own->store, own->listed_count + 1) > 1 &&
        sl_thread_start(&own->ahead.thread, "sl-sidecars", run_ahead, own, NULL) == 0;
}

void sl_plan_end_sidecars(struct sl_plan *plan, bool stop)
{
    struct sl_plan_own *own = plan->own;
    if (!own->ahead.started)
        return;
    {
        SL_LOCKED(&own->ahead.lock);
        own->ahead.locked.stop = stop;
    }
    pthread_join(own->ahead.thread, NULL);
    own->ahead.started = false;
}

/* ---- of the sources ---- */

/* Is it to be asked for? */
static bool is_asked_for(const struct sl_plan *plan, const struct sl_plan_sidecar *listed)
{
    return listed || plan->own->spec->verify.sidecar == SL_SIDECAR_REQUIRE;
}

static int read_numbered(void *arg, size_t number, struct sl_err *err)
{
    struct sl_plan *plan = arg;
    struct sl_plan_own *own = plan->own;
    const char *name = plan->sources[number].name;
    const struct sl_plan_sidecar *listed = find_listed(own, name);
    if (own->sidecars[number] || !is_asked_for(plan, listed))
        return 0;
    if (listed && listed->why) {
        *err = *listed->why;
        return -1;
    }
    return read_one(own, name, listed ? listed->bytes : 0, &own->sidecars[number], err);
}

/* Those that were not read ahead. */
static int read_all(struct sl_plan *plan, size_t count, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        struct sl_plan_sidecar *listed = find_listed(own, plan->sources[i].name);
        if (!listed || !listed->read || own->sidecars[i])
            continue;
        own->sidecars[i] = sl_steal(&listed->read);
        count--;
    }
    int failed = sl_side_by_side(plan->source_count, sl_store_openings(own->store, count),
                                 "sl-sidecar", read_numbered, plan, err);
    plan->index_requests += own->ahead.locked.requests; /* no other thread is left */
    plan->index_bytes += own->ahead.locked.bytes;
    return failed;
}

/* ---- judging --------------------------------------------------------------------------------- */

static int judge_signature(struct sl_plan *plan, uint32_t number, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    if (!own->signer || !own->sidecars[number]->signature)
        return 0;
    if (sl_sidecar_check_signature(own->sidecars[number], plan->sources[number].name, own->signer,
                                   err) < 0)
        return -1;
    own->authentic[number] = true;
    return 0;
}

/* One that speaks of other bytes is left aside, unless it is needed. */
static int judge_one(struct sl_plan *plan, uint32_t number, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    const struct sl_plan_source *object = &plan->sources[number];
    bool required = own->spec->verify.sidecar == SL_SIDECAR_REQUIRE;
    char why[256];
    if (own->sidecars[number] && own->sidecars[number]->of_signature)
        return 0;
    if (!own->sidecars[number] && required)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                            "object '%s' has no sidecar: there is no '%s%s' beside it, and "
                            "verify.sidecar is 'require': make it with `sluice sign`, or use "
                            "'auto'",
                            object->name, object->name, SL_SIDECAR_SUFFIX);
    if (!own->sidecars[number])
        return 0;
    if (judge_signature(plan, number, err) < 0)
        return -1;
    if (!sl_sidecar_stale(own->sidecars[number], sl_source_bytes(object->source),
                          sl_source_version(object->source), why))
        return 0;
    if (required ||
        (own->authentic[number] && own->sidecars[number]->bytes != sl_source_bytes(object->source)))
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                            "the sidecar of '%s' is of another version: %s; make it again with "
                            "`sluice sign`",
                            object->name, why);
    if (own->authentic[number])
        return 0; /* what is signed are bytes, not the name that a store has for them */
    sl_log(SL_LOG_WARN,
           "the sidecar of '%s' is not used, since it is of another version: %s; make it again "
           "with `sluice sign`",
           object->name, why);
    sl_sidecar_free(sl_steal(&own->sidecars[number]));
    return 0;
}

int sl_plan_make_sidecar_room(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (own->sidecars)
        return 0;
    own->sidecars = sl_alloc_array(plan->source_count, sizeof(struct sl_sidecar *), err);
    own->sidecars_of = own->sidecars ? plan->source_count : 0;
    own->authentic = sl_alloc_array(plan->source_count, sizeof(*own->authentic), err);
    return own->sidecars && own->authentic ? 0 : -1;
}

int sl_plan_read_sidecars(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    size_t count = 0;
    if (sl_plan_read_signer(plan, err) < 0)
        return -1;
    if (!wanted(plan))
        return 0;
    for (uint32_t i = 0; i < plan->source_count; i++)
        count += is_asked_for(plan, find_listed(own, plan->sources[i].name)) &&
                 !sl_plan_sidecar(plan, i);
    if (!count)
        return 0;
    if (sl_plan_make_sidecar_room(plan, err) < 0 || read_all(plan, count, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (judge_one(plan, i, err) < 0)
            return -1;
    return 0;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Layout verbatim: each object is the file of its number. */
static int check_whole(struct sl_plan *plan, const struct sl_sidecar *sidecar,
                       const struct sl_check *shared, struct sl_err *err)
{
    struct sl_check check = *shared;
    for (size_t i = 0; i < sidecar->range_count; i++) {
        check.begin = check.file_offset = i * sidecar->range_bytes;
        check.end = sl_sidecar_range_end(sidecar, i);
        sl_sidecar_expect(&sidecar->ranges[i], &check);
        if (sl_plan_add_check(plan, &check, err) < 0)
            return -1;
    }
    plan->own->covered[check.source] = sidecar->bytes;
    return 0;
}

/* Bytes below hashes of tensors are not counted twice: rather some too few. */
static int check_picked(struct sl_plan *plan, const struct sl_sidecar *sidecar,
                        const struct sl_check *shared, struct sl_err *err)
{
    uint64_t covered;
    if (sl_plan_cover(plan, sidecar, shared, &covered, err) < 0)
        return -1;
    uint64_t *known = &plan->own->covered[shared->source];
    *known = SL_MAX(*known, covered);
    return 0;
}

static int check_ranges_of(struct sl_plan *plan, uint32_t number, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    const struct sl_sidecar *sidecar = own->sidecars[number];
    bool strong = own->authentic[number] || own->spec->verify.hashes == SL_HASHES_ALL;
    struct sl_check check = {.kind = sl_sidecar_hash(sidecar, strong),
                             .source = number,
                             .file = number,
                             .repair = SL_REPAIR_FETCH,
                             .range = true,
                             .of_signature = sidecar->of_signature,
                             .given = true};
    if (sl_plan_object_text(plan, plan->sources[number].name, &check.what, err) < 0)
        return -1;
    plan->sidecar_count += !sidecar->of_signature;
    return (own->picks ? check_picked : check_whole)(plan, sidecar, &check, err);
}

/* Does the check of a tensor see bytes as they come? */
static void may_fetch_again(struct sl_plan *plan)
{
    for (size_t i = 0; i < plan->check_count; i++) {
        struct sl_check *check = &plan->checks[i];
        bool whole = !plan->mappings || !plan->sources[check->source].index;
        if (whole && !check->given && !sl_plan_sidecar(plan, check->source))
            check->repair = SL_REPAIR_FETCH;
    }
    for (size_t t = 0; plan->mappings && t < plan->target_count; t++) {
        const struct sl_mapping *mapping = &plan->mappings[t];
        for (uint32_t i = 0; i < mapping->check_count && !mapping->changes; i++)
            plan->checks[mapping->check_first + i].repair = SL_REPAIR_FETCH;
    }
}

int sl_plan_check_ranges(struct sl_plan *plan, struct sl_err *err)
{
    may_fetch_again(plan);
    for (uint32_t i = 0; plan->own->sidecars && i < plan->source_count; i++)
        if (plan->own->sidecars[i] && check_ranges_of(plan, i, err) < 0)
            return -1;
    sl_autofree bool *again = sl_alloc_array(plan->source_count, sizeof(*again), err);
    if (!again)
        return -1;
    for (size_t i = 0; i < plan->check_count; i++)
        if (plan->checks[i].repair == SL_REPAIR_FETCH)
            again[plan->checks[i].source] = true;
    for (size_t i = 0; i < plan->check_count; i++)
        if (plan->checks[i].repair == SL_REPAIR_NEVER && again[plan->checks[i].source])
            plan->checks[i].repair = SL_REPAIR_LATER;
    return 0;
}
