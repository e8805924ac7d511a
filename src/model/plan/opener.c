/*
 * Opening objects. Each costs one small request, so latency rules and threads open them side by
 * side. Three ways, by price: an object of a listing with strong ETags is known without any
 * request; one that may hold a model is asked for its first bytes, which tells length, version and,
 * for most files, the whole index; any other is asked for its first byte. What turns out to be
 * plain data is kept as a known source, without the bytes read: memory does not grow with the
 * number of objects.
 */
#include <stdio.h>

#include "format.h"
#include "log.h"
#include "names.h"
#include "plan_parts.h"
#include "side_by_side.h"
#include "weights.h"

enum { NAMES_BETWEEN_LOOKS = 4096 /* at whether the load is canceled */ };

struct opener {
    struct sl_plan *plan;
    struct {
        uint64_t requests, bytes;
        uint64_t held; /* of long beginnings */
        bool newer;    /* than the listing, or told of otherwise: some object */
    } locked;
    pthread_mutex_t lock;
};

/* By the listing. */
static bool is_versioned(const struct sl_candidate *candidate)
{
    return candidate->etag || candidate->pin;
}

static int open_known(struct sl_plan_own *own, struct sl_candidate *candidate, struct sl_err *err)
{
    struct sl_version version = {0};
    if (candidate->etag)
        memcpy(version.etag, candidate->etag, strlen(candidate->etag) + 1);
    if (candidate->pin)
        memcpy(version.pin, candidate->pin, strlen(candidate->pin) + 1);
    return sl_source_known(own->store, candidate->name, candidate->bytes, &version,
                           &candidate->source, err);
}

static bool takes_what_is_there(const struct sl_plan_own *own)
{
    return own->spec->source.incomplete == SL_INCOMPLETE_WARN;
}

/* Is a broken model file loaded as it is? Only if nobody wants its hashes or its tensors, and no
 * file is left behind with it. One that source.asIs names was never looked into (objects.c). */
static bool is_tolerated(const struct sl_plan_own *own, const struct sl_err *err, const char *name)
{
    bool alone = !own->single || !sl_plan_names_files(name) || takes_what_is_there(own);
    return err->kind == SL_E_FORMAT && own->spec->verify.hashes == SL_HASHES_OFF && !own->picks &&
           alone;
}

static void advise(struct sl_err *err, const char *advice)
{
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof(err->message) - used, "; %s", advice);
}

/* Narrow: about this object, and no hash of any other. */
static const char *advice_for(const struct sl_plan_own *own, const struct sl_err *why)
{
    if (strncmp(why->code, "idx.missing", 11) == 0)
        return "or take what is there with 'source.incomplete: warn'";
    if (own->picks)
        return own->single ? NULL
                           : "if it is not part of the model, leave it out with source.exclude";
    return own->single ? "source.asIs with its name takes it as it is"
                       : "leave it out with source.exclude, or take it as it is with source.asIs";
}

/* Refuse a broken model, or warn and return 0. */
static int tolerate(const struct sl_plan_own *own, const struct sl_err *why, const char *name,
                    struct sl_err *err)
{
    if (is_tolerated(own, why, name)) {
        sl_log(SL_LOG_WARN, "'%s' is loaded as it is, although it is broken: %s", name,
               why->message);
        return 0;
    }
    *err = *why;
    sl_wrap(err, "'%s'", name);
    const char *advice = why->kind == SL_E_FORMAT ? advice_for(own, why) : NULL;
    if (advice)
        advise(err, advice);
    return -1;
}

/* Are its tensors to be had from another object? Repositories hold weights in several formats. */
static bool is_left_out(const struct sl_plan_own *own, const struct sl_candidate *candidate,
                        struct sl_source *source)
{
    if (!own->picks || own->single)
        return false;
    if (candidate->ruled && sl_format_name_says(candidate->name) == SL_SAYS_MODEL)
        return true;
    struct sl_err why = SL_ERR_INIT;
    const struct sl_format *format = sl_format_recognise(source, &why);
    return format && (candidate->ruled || (candidate->first_choice && format->fallback));
}

/* What a web server shows under a name that is no page's: a login, or a folder. */
static int judge_page(const struct sl_plan_own *own, struct sl_source *source, struct sl_err *err)
{
    uint8_t data[SL_FORMAT_PROBE_BYTES];
    struct sl_format_head head;
    if (own->picks || !own->single || !sl_store_traits(own->store)->urls)
        return 0;
    return sl_format_read_head(source, data, &head, err) < 0 ? -1
                                                             : sl_weights_judge_page(&head, err);
}

/* A model in several files: by its bytes, or because the name was asked for. */
static bool is_index_of_files(const struct sl_plan_own *own, const struct sl_candidate *candidate,
                              struct sl_source *source)
{
    struct sl_err unused = SL_ERR_INIT;
    if (own->single && sl_plan_names_files(candidate->name))
        return true;
    return takes_what_is_there(own) &&
           sl_format_recognise(source, &unused) == &sl_shard_index_format;
}

/* Index what it holds; the source is consumed, and without an index the object is data. */
static int index_wanted(const struct sl_plan_own *own, struct sl_candidate *candidate,
                        struct sl_source *source, struct sl_err *err)
{
    candidate->left_out = is_left_out(own, candidate, source);
    if (candidate->left_out) {
        sl_source_free(source);
        return 0;
    }
    if (judge_page(own, source, err) < 0) {
        sl_source_free(source);
        return -1;
    }
    if (!own->picks && !own->single && sl_plan_claims(candidate->name))
        return sl_plan_read_claim(candidate, source, err);
    if (is_index_of_files(own, candidate, source))
        return sl_format_index_shards(source, !own->picks, takes_what_is_there(own),
                                      &candidate->index, err);
    if (!own->picks)
        return sl_format_index_files(source, candidate->name, &candidate->index, err);
    /* A page of HTML that is called model.safetensors is a broken model, not data. */
    return sl_format_name_says(candidate->name) == SL_SAYS_MODEL
               ? sl_format_index_strict(source, candidate->name, &candidate->index, err)
               : sl_format_index(source, &candidate->index, err);
}

static int index_source(struct sl_plan_own *own, struct sl_candidate *candidate,
                        struct sl_source *source, struct sl_err *err)
{
    struct sl_version version = *sl_source_version(source);
    uint64_t bytes = sl_source_bytes(source);
    struct sl_err why = SL_ERR_INIT;
    int done = index_wanted(own, candidate, source, &why);
    if (done < 0) {
        if (tolerate(own, &why, candidate->name, err) < 0)
            return -1;
        candidate->index = NULL;
    }
    if (candidate->index)
        return 0;
    return sl_source_known(own->store, candidate->name, bytes, &version, &candidate->source, err);
}

/* Is what was opened what was listed? */
static bool is_as_listed(const struct sl_candidate *candidate, const struct sl_source *source)
{
    const struct sl_version *version = sl_source_version(source);
    if (candidate->pin && version->pin[0])
        return strcmp(candidate->pin, version->pin) == 0;
    return candidate->etag && strcmp(candidate->etag, version->etag) == 0;
}

/* Those of the listing are of what it listed; what was opened may be newer, and may tell its own.
 */
static int settle_checksums(struct sl_candidate *candidate, const struct sl_source *source,
                            struct sl_err *err)
{
    const struct sl_checksums *known = sl_source_known_checksums(source);
    if (!known && is_as_listed(candidate, source))
        return 0;
    free(candidate->sums);
    candidate->sums = sl_checksums_copy(known, err);
    return known && !candidate->sums ? -1 : 0;
}

/* Other tools find all objects of such a name; here '*' is a letter. */
static int fail_open(const struct sl_candidate *candidate, struct sl_err *err)
{
    size_t used = err ? strlen(err->message) : 0;
    if (err && err->kind == SL_E_NOT_FOUND && strchr(candidate->name, '*'))
        snprintf(err->message + used, sizeof(err->message) - used,
                 "; '*' stands for itself in a URI: load the folder, which ends in '/', with "
                 "--set 'source.include=[PATTERN]'");
    return -1;
}

enum { WHOLE_BYTES_MAX = 16 * 1024 * 1024, HELD_BYTES_MAX = 256 * 1024 * 1024 };

/* What says which tensor is what lands nowhere in layouts that pick them, so it must be held to be
 * proved. */
static bool must_hold(const struct sl_plan_own *own, const struct sl_candidate *candidate)
{
    return candidate->probe && own->picks &&
           (sl_spec_is_signed(own->spec) || own->spec->verify.sidecar == SL_SIDECAR_REQUIRE);
}

static uint64_t head_of(const struct sl_plan_own *own, const struct sl_candidate *candidate)
{
    uint64_t bytes = candidate->bytes ? candidate->bytes : WHOLE_BYTES_MAX;
    if (!candidate->probe)
        return 1;
    if (!must_hold(own, candidate) || !sl_format_of_index(candidate->name))
        return SL_INDEX_HEAD_BYTES;
    return SL_MAX(SL_MIN(bytes, (uint64_t)WHOLE_BYTES_MAX), (uint64_t)SL_INDEX_HEAD_BYTES);
}

/* How long the beginning is that says where tensors lie, if that is more than what is held of it
 * and not too much; else 0. */
static uint64_t longer_head(struct opener *opener, struct sl_source *source)
{
    uint8_t head[9];
    uint64_t held = sl_source_held(source), bytes = 0;
    struct sl_err why = SL_ERR_INIT;
    if (held < sizeof(head) || sl_source_read(source, 0, head, sizeof(head), &why) < 0)
        return 0;
    if (memcmp(head, "GGUF", 4) == 0)
        bytes = SL_MIN(sl_source_bytes(source), (uint64_t)WHOLE_BYTES_MAX);
    else if (head[8] == '{' && sl_get_le64(head) < WHOLE_BYTES_MAX - 8)
        bytes = SL_MIN(sl_source_bytes(source), sl_get_le64(head) + 8);
    SL_LOCKED(&opener->lock);
    if (bytes <= held || opener->locked.held + bytes > HELD_BYTES_MAX)
        return 0;
    opener->locked.held += bytes;
    return bytes;
}

static int open_source(struct opener *opener, const struct sl_candidate *candidate,
                       struct sl_source **source, struct sl_err *err)
{
    const struct sl_plan_own *own = opener->plan->own;
    if (sl_source_open(own->store, candidate->name, head_of(own, candidate), source, err) < 0)
        return fail_open(candidate, err);
    uint64_t longer = must_hold(own, candidate) ? longer_head(opener, *source) : 0;
    if (!longer)
        return 0;
    sl_source_free(*source);
    *source = NULL;
    return sl_source_open(own->store, candidate->name, longer, source, err) < 0
               ? fail_open(candidate, err)
               : 0;
}

static int open_one(struct opener *opener, struct sl_candidate *candidate, struct sl_err *err)
{
    struct sl_plan_own *own = opener->plan->own;
    if (!candidate->probe && is_versioned(candidate))
        return open_known(own, candidate, err);
    struct sl_source *source = NULL;
    if (open_source(opener, candidate, &source, err) < 0)
        return -1;
    if (settle_checksums(candidate, source, err) < 0) {
        sl_source_free(source);
        return -1;
    }
    bool as_listed = is_as_listed(candidate, source) && candidate->bytes == sl_source_bytes(source);
    uint64_t requests, bytes;
    sl_source_counts(source, &requests, &bytes);
    candidate->bytes = sl_source_bytes(source);
    candidate->empty = candidate->bytes == 0;
    if (candidate->probe) {
        if (index_source(own, candidate, source, err) < 0)
            return -1;
    } else {
        candidate->source = source;
    }
    uint64_t objects;
    if (candidate->index)
        sl_index_counts(candidate->index, &objects, &requests, &bytes);
    SL_LOCKED(&opener->lock);
    opener->locked.requests += requests;
    opener->locked.bytes += bytes;
    opener->locked.newer = opener->locked.newer || !as_listed;
    return 0;
}

static int open_numbered(void *arg, size_t number, struct sl_err *err)
{
    struct opener *opener = arg;
    struct sl_candidate *candidate = &opener->plan->own->candidates[number];
    return candidate->source || candidate->index ? 0 : open_one(opener, candidate, err);
}

static size_t count_requests(const struct sl_plan_own *own)
{
    size_t count = 0;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_candidate *candidate = &own->candidates[i];
        count += !candidate->source && !candidate->index &&
                 (candidate->probe || !is_versioned(candidate));
    }
    return count;
}

/* What it holds, before it leaves the candidates. */
static void release_candidate(struct sl_plan_own *own, struct sl_candidate *candidate, bool read)
{
    if (!read)
        own->left_out_bytes = sl_add_capped(own->left_out_bytes, candidate->bytes);
    sl_candidate_release(candidate);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int find_named(struct sl_plan_own *own, char *const *names, size_t count, struct sl_err *err)
{
    for (size_t i = 0; i < own->candidate_count; i++) {
        if (i % NAMES_BETWEEN_LOOKS == 0 && sl_cancel_check(sl_store_cancel(own->store), err) < 0)
            return -1;
        struct sl_candidate *candidate = &own->candidates[i];
        candidate->named =
            count && bsearch(&candidate->name, names, count, sizeof(*names), by_text);
    }
    return 0;
}

/* All names are sorted, so that hundreds of thousands of objects cost one look each. */
int sl_plan_drop_shards(struct sl_plan_own *own, const struct sl_index *index, struct sl_err *err)
{
    size_t count = index->source_count - 1, kept = 0;
    sl_autofree char **names = sl_alloc_array(count + 1, sizeof(*names), err);
    if (!names)
        return -1;
    if (count)
        memcpy(names, index->source_names + 1, count * sizeof(*names));
    qsort(names, count, sizeof(*names), by_text);
    if (find_named(own, names, count, err) < 0)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        if (candidate->named)
            release_candidate(own, candidate, true);
        else
            own->candidates[kept++] = *candidate;
    }
    own->candidate_count = kept;
    return 0;
}

static bool is_first_choice(const struct sl_candidate *candidate)
{
    const struct sl_format *format = sl_format_of_name(candidate->name, NULL);
    return format && !format->fallback && sl_format_name_says(candidate->name) >= SL_SAYS_MODEL;
}

static bool is_ruling(const struct sl_candidate *candidate)
{
    return candidate->index && sl_format_of_index(candidate->name);
}

static int by_folder(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    const char *x_end = strrchr(x, '/'), *y_end = strrchr(y, '/');
    return sl_bytes_compare(x, x_end ? (size_t)(x_end - x) : 0, y, y_end ? (size_t)(y_end - y) : 0);
}

/* Folders are models of their own. */
static bool is_apart(const struct sl_plan_own *own)
{
    return own->spec->tensors.prefix == SL_PREFIX_OBJECT;
}

/* Who has such an object beside it, in its folder where folders are models of their own: the flag
 * of each, in the struct at this offset. How many such there are, or -1. */
static int mark_beside(struct sl_plan_own *own, bool (*is_such)(const struct sl_candidate *),
                       size_t flag, struct sl_err *err)
{
    size_t count = 0;
    sl_autofree const char **such = sl_alloc_array(own->candidate_count + 1, sizeof(*such), err);
    if (!such)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (is_such(&own->candidates[i]))
            such[count++] = own->candidates[i].name;
    qsort(such, count, sizeof(*such), by_folder);
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        const char *name = candidate->name;
        bool beside = count && (!is_apart(own) ||
                                bsearch(&name, such, count, sizeof(*such), by_folder) != NULL);
        memcpy((char *)candidate + flag, &beside, sizeof(beside));
    }
    return 0;
}

/* Where tensors are picked, an index of shards rules: it says which file holds a tensor. One for
 * all, or one for each folder. */
static int open_ruling(struct opener *opener, struct sl_err *err)
{
    struct sl_plan_own *own = opener->plan->own;
    struct sl_candidate *found = NULL;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        const struct sl_format *shards = sl_format_of_index(candidate->name);
        candidate->left_out = shards && shards->fallback && candidate->first_choice;
        if (!shards || candidate->left_out)
            continue;
        if (found && (!is_apart(own) || by_folder(&found->name, &candidate->name) == 0))
            return sl_fail(
                err, SL_E_USAGE,
                "both '%s' and '%s' are indexes of a model: choose one with source.include",
                found->name, candidate->name);
        found = candidate;
        found->probe = true;
        if (is_apart(own) && open_one(opener, found, err) < 0)
            return -1;
    }
    return found && !is_apart(own) ? open_one(opener, found, err) : 0;
}

static int drop_all_shards(struct sl_plan_own *own, struct sl_err *err)
{
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_index *index = own->candidates[i].index;
        if (!is_ruling(&own->candidates[i]))
            continue;
        own->ruled = true;
        if (sl_plan_drop_shards(own, index, err) < 0)
            return -1;
        i = SL_MIN(i,
                   own->candidate_count - 1); /* it has moved to the front, as those before went */
        while (own->candidates[i].index != index)
            i--;
    }
    return 0;
}

/* The same weights in other files. */
static void drop_rivals(struct sl_plan_own *own)
{
    size_t kept = 0;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        if (!candidate->left_out) {
            own->candidates[kept++] = *candidate;
            continue;
        }
        sl_log(SL_LOG_INFO, "'%s' is left out: %s", candidate->name,
               candidate->ruled ? "the model's index does not name it"
                                : "the weights lie beside it in another format");
        release_candidate(own, candidate, false);
    }
    own->candidate_count = kept;
}

/* Open what is not open yet. Behind sl_side_by_side() there is no other thread. */
static int open_all(struct sl_plan *plan, struct opener *opener, struct sl_err *err)
{
    unsigned most = sl_store_openings(plan->own->store, count_requests(plan->own));
    int failed =
        sl_side_by_side(plan->own->candidate_count, most, "sl-open", open_numbered, opener, err);
    plan->index_requests += opener->locked.requests;
    plan->index_bytes += opener->locked.bytes;
    opener->locked.requests = opener->locked.bytes = 0;
    return failed;
}

/* The parts of a set come with its first; a set that is not whole is a broken model. */
static int open_sets(struct sl_plan *plan, struct opener *opener, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct sl_err why = SL_ERR_INIT;
    size_t count = own->candidate_count;
    if (sl_plan_add_parts(plan, &why) == 0 && own->candidate_count > count &&
        open_all(plan, opener, err) < 0)
        return sl_wrap(err, "'%s' is the first part of a set", own->candidates[0].name);
    if (!why.kind && sl_plan_check_sets(plan, &why) == 0)
        return 0;
    return tolerate(own, &why, sl_store_uri(own->store), err);
}

/* Of objects that hold the same weights. */
static int choose(struct opener *opener, struct sl_err *err)
{
    struct sl_plan_own *own = opener->plan->own;
    if (mark_beside(own, is_first_choice, offsetof(struct sl_candidate, first_choice), err) < 0 ||
        open_ruling(opener, err) < 0 ||
        mark_beside(own, is_ruling, offsetof(struct sl_candidate, ruled), err) < 0)
        return -1;
    return drop_all_shards(own, err);
}

int sl_plan_open(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct opener opener = {.plan = plan, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (own->picks && !own->single && choose(&opener, err) < 0)
        return -1;
    if (open_all(plan, &opener, err) < 0)
        return -1;
    drop_rivals(own);
    if (open_sets(plan, &opener, err) < 0)
        return -1;
    /* Shards that an index names are opened by it, and not compared with the listing. */
    plan->asked_known = plan->asked_known && !own->ruled && !opener.locked.newer;
    return 0;
}
