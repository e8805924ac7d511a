/*
 * Which objects take part. A prefix is listed once; every name is judged before it is used, since a
 * listing is as hostile as a file, and sorted, so that equal listings make equal plans whatever
 * order the store answers in.
 */

#include "lower_bound.h"
#include "names.h"
#include "plan_parts.h"
#include "stores.h"
#include "weights.h"

enum {
    OBJECTS_MAX = 100000,          /* of one load; each costs about 2 KiB */
    FORGOTTEN_MAX = 1000,          /* counted below a name without its slash: a page */
    POINTER_BYTES_MIN = 100,       /* of git-lfs: with a version, a hash and a size */
    POINTER_BYTES_MAX = 1024,      /* of the same, by its specification */
    PROBE_BYTES_MIN = 1024 * 1024, /* smaller objects of other names are data, see needs_probe() */
};

static bool may_be_pointer(uint64_t bytes)
{
    return bytes >= POINTER_BYTES_MIN && bytes < POINTER_BYTES_MAX;
}

/*
 * The format is found from the first bytes, which costs a request. For thousands of small files
 * (tokenizers, configurations) that would double the requests, so with `hashes: auto` and `off` an
 * object below 1 MiB is probed only if it is called like weights, is as short as a pointer of
 * git-lfs, or may say what the model consists of.
 */
static bool needs_probe(const struct sl_plan_own *own, const char *name, uint64_t bytes)
{
    const struct sl_spec *spec = own->spec;
    enum sl_format_says says = sl_format_name_says(name);
    if (sl_plan_matches(&spec->source.as_is, name, false))
        return false;
    if (!own->picks && (sl_plan_claims(name) || sl_weights_named(name) ||
                        (says == SL_SAYS_PERHAPS && may_be_pointer(bytes))))
        return true;
    if (says == SL_SAYS_INDEX || says == SL_SAYS_STATE) /* objects of an index are listed too */
        return false;
    if (spec->verify.hashes == SL_HASHES_ALL || spec->verify.hashes == SL_HASHES_REQUIRE)
        return true;
    return bytes >= PROBE_BYTES_MIN || says == SL_SAYS_MODEL ||
           (own->picks && (says == SL_SAYS_PERHAPS || says == SL_SAYS_LIKELY));
}

struct listing {
    struct sl_plan *plan;
    uint64_t seen;
};

/* Patterns tell of names that were left out, but not whether there was one in a folder. */
static int note_folder(struct sl_plan_own *own, const char *name, struct sl_err *err)
{
    const char *slash = strrchr(name, '/');
    size_t bytes = slash ? (size_t)(slash + 1 - name) : 0;
    const char *last = own->passed_count ? own->passed[own->passed_count - 1] : "";
    if (!bytes || (strlen(last) == bytes && memcmp(last, name, bytes) == 0))
        return 0;
    sl_autofree char *folder = sl_strndup(name, bytes, err);
    return folder ? sl_plan_note_passed(own, folder, err) : -1;
}

static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    struct sl_plan_own *own = listing->plan->own;
    const struct sl_spec *spec = own->spec;
    listing->seen++;
    if (!sl_plan_matches(&spec->source.include, entry->name, true) ||
        sl_plan_matches(&spec->source.exclude, entry->name, false)) {
        own->left_out_bytes = sl_add_capped(own->left_out_bytes, entry->bytes);
        if (note_folder(own, entry->name, err) < 0)
            return -1;
        return own->listed_count < OBJECTS_MAX
                   ? sl_plan_note_sidecar(own, entry->name, entry->bytes, err)
                   : 0;
    }
    if (sl_name_check(entry->name, strlen(entry->name), err) < 0)
        return -1;
    if (own->candidate_count == OBJECTS_MAX)
        return sl_fail(
            err, SL_E_USAGE,
            "more than %d objects below '%s': choose with source.include, or name a longer prefix",
            OBJECTS_MAX, sl_store_uri(own->store));
    return sl_plan_add_candidate(listing->plan, entry, needs_probe(own, entry->name, entry->bytes),
                                 err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sl_candidate *)a)->name, ((const struct sl_candidate *)b)->name);
}

/* The object whose name is this one up to `end`. */
static struct sl_candidate *find_begin(struct sl_plan_own *own, const char *name, const char *end)
{
    size_t bytes = (size_t)(end - name);
    size_t at = SL_LOWER_BOUND(i, own->candidate_count,
                               sl_bytes_compare(own->candidates[i].name,
                                                strlen(own->candidates[i].name), name, bytes) < 0);
    bool found = at < own->candidate_count && strlen(own->candidates[at].name) == bytes &&
                 memcmp(own->candidates[at].name, name, bytes) == 0;
    return found ? &own->candidates[at] : NULL;
}

/* "a" and "a/b" cannot both be files. */
static int refuse_conflict(struct sl_plan_own *own, const char *name, struct sl_err *err)
{
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        const struct sl_candidate *parent = find_begin(own, name, slash);
        if (parent)
            return sl_fail_code(
                err, SL_E_FORMAT, "E_NAME",
                "object '%s' is also the folder of '%s': leave one out with source.exclude",
                parent->name, name);
    }
    return 0;
}

/* Who makes folders in a bucket may leave an empty object of the folder's name: its mark. */
static void drop_marks(struct sl_plan_own *own)
{
    size_t kept = 0;
    for (size_t i = 0; i < own->candidate_count; i++)
        for (const char *slash = strchr(own->candidates[i].name, '/'); slash;
             slash = strchr(slash + 1, '/')) {
            struct sl_candidate *mark = find_begin(own, own->candidates[i].name, slash);
            if (mark && mark->bytes == 0)
                mark->left_out = true;
        }
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        if (candidate->left_out)
            sl_candidate_release(candidate);
        else
            own->candidates[kept++] = *candidate;
    }
    own->candidate_count = kept;
}

static int sort_names(struct sl_plan_own *own, struct sl_err *err)
{
    qsort(own->candidates, own->candidate_count, sizeof(*own->candidates), by_name);
    drop_marks(own);
    for (size_t i = 0; i < own->candidate_count; i++) {
        const char *name = own->candidates[i].name;
        if (i && strcmp(own->candidates[i - 1].name, name) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "E_NAME", "the store lists object '%s' twice",
                                name);
        if (refuse_conflict(own, name, err) < 0)
            return -1;
    }
    return 0;
}

static int list_prefix(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct listing listing = {.plan = plan};
    if (sl_store_list(own->store, take_entry, &listing, err) < 0)
        return strstr(err->message, sl_store_uri(own->store)) /* said already */
                   ? -1
                   : sl_wrap(err, "cannot list '%s'", sl_store_uri(own->store));
    plan->index_requests++;
    if (own->candidate_count == 0)
        return sl_fail(
            err, SL_E_NOT_FOUND,
            listing.seen ? "none of the objects below '%s' passes source.include and source.exclude"
                         : "nothing lies below '%s': check the prefix",
            sl_store_uri(own->store));
    if (sort_names(own, err) < 0 || sl_plan_choose_rank(plan, err) < 0)
        return -1;
    bool chosen = own->spec->source.include.count > 0;
    return sl_store_traits(own->store)->repository && !chosen ? sl_plan_choose_usual(plan, err) : 0;
}

static int take_chosen(struct sl_plan *plan, const struct sl_chosen *chosen, struct sl_err *err)
{
    struct listing listing = {.plan = plan};
    for (size_t i = 0; i < chosen->count; i++) {
        const struct sl_chosen_object *object = &chosen->items[i];
        const struct sl_entry entry = {object->name, object->bytes, object->etag, object->pin,
                                       object->sums};
        if (take_entry(&entry, &listing, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < chosen->passed_count; i++)
        if (sl_plan_note_passed(plan->own, chosen->passed[i], err) < 0)
            return -1;
    if (plan->own->candidate_count == 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "none of the objects below '%s' passes source.include and source.exclude",
                       sl_store_uri(plan->own->store));
    return sort_names(plan->own, err) < 0 ? -1 : sl_plan_choose_rank(plan, err);
}

/* Objects below what was taken for one: enough of them to know that there are some. */
static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    size_t *count = arg;
    (void)entry;
    return ++*count < FORGOTTEN_MAX ? 0 : sl_fail(err, SL_E_CANCELED, "enough");
}

/* How many objects lie below the only one's name, as if it were a folder's. *known: the store has
 * listed them. */
static size_t count_below(const struct sl_plan_own *own, bool *known)
{
    const struct sl_store_traits *traits = sl_store_traits(own->store);
    struct sl_err why = SL_ERR_INIT;
    size_t count = 0;
    *known = false;
    if (!own->single || !own->candidate_count || !traits->listing ||
        traits->local) /* a folder of this machine needs no slash */
        return 0;
    sl_autofree char *begin = sl_asprintf(NULL, "%s/", own->candidates[0].name);
    if (begin) {
        int listed = sl_store_list_begin(own->store, begin, count_entry, &count, &why);
        *known = listed == 0 || count || why.kind == SL_E_NOT_FOUND;
    }
    return count;
}

static int slash_missing(const struct sl_plan_own *own, const char *what, size_t count,
                         struct sl_err *err)
{
    const char *uri = sl_store_uri(own->store), *name = own->candidates[0].name;
    return sl_fail(err, SL_E_NOT_FOUND,
                   "%s '%s%s', but %s%zu %s below '%s%s/': add the slash to load them", what, uri,
                   name, count == FORGOTTEN_MAX ? "at least " : "", count,
                   count == 1 ? "object" : "objects", uri, name);
}

/* The only object is empty, and may be a folder's: -1 with words if it is, else 0. */
static int judge_marker(const struct sl_plan_own *own, struct sl_err *err)
{
    const char *uri = sl_store_uri(own->store), *name = own->candidates[0].name;
    SL_AUTO(sl_source) source = NULL;
    bool known;
    size_t count = count_below(own, &known);
    if (count)
        return slash_missing(own, "there is only an empty object", count, err);
    if (sl_source_known(own->store, name, 0, &(struct sl_version){0}, &source, NULL) < 0 ||
        !sl_source_is_folder(source))
        return 0;
    if (known)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "'%s%s' stands for an empty folder: there is nothing to load in it", uri,
                       name);
    return sl_fail(err, SL_E_NOT_FOUND,
                   "'%s%s' stands for a folder: name '%s%s/' to load what is in it", uri, name, uri,
                   name);
}

int sl_plan_explain_missing(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    bool known;
    if (!err || !own->single || own->candidate_count != 1)
        return -1;
    if (err->kind == SL_E_FORMAT && own->candidates[0].empty) {
        (void)judge_marker(own, err);
        return -1;
    }
    size_t count = err->kind == SL_E_NOT_FOUND ? count_below(own, &known) : 0;
    if (count)
        (void)slash_missing(own, "there is no object", count, err);
    return -1;
}

int sl_plan_refuse_marker(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    return own->single && own->candidate_count == 1 && !own->candidates[0].bytes
               ? judge_marker(own, err)
               : 0;
}

/* The key is what the URI says behind the store's base; "": it is a prefix. */
int sl_plan_list(struct sl_plan *plan, const char *key, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (!*key)
        return own->spec->source.chosen ? take_chosen(plan, own->spec->source.chosen, err)
                                        : list_prefix(plan, err);
    own->single = true;
    if (sl_name_check(key, strlen(key), err) < 0)
        return -1;
    if (own->spec->source.rank.of)
        return sl_fail(
            err, SL_E_USAGE,
            "'source.rank' chooses among the files of a folder, and '%s%s' is one object: "
            "name the folder, with a '/' at the end, or leave out 'source.rank'",
            sl_store_uri(own->store), key);
    bool probe = !sl_plan_matches(&own->spec->source.as_is, key, false);
    return sl_plan_add_candidate(plan, &(struct sl_entry){.name = key}, probe, err);
}

int sl_plan_gather(struct sl_plan *plan, const struct sl_source_config *config, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    sl_autofree char *key = NULL;
    if (sl_store_open(own->spec->source.uri, config, &own->store, &key, err) < 0 ||
        sl_plan_list(plan, key, err) < 0)
        return -1;
    if (own->picks && own->spec->verify.sidecar != SL_SIDECAR_OFF)
        sl_store_note_reads(own->store); /* of what is opened to be indexed */
    uint64_t listed = 0;
    for (size_t i = 0; i < own->candidate_count; i++)
        listed = sl_add_capped(listed, own->candidates[i].bytes);
    sl_store_hold_for(own->store, listed);
    sl_plan_sort_passed(own);
    return 0;
}
