/*
 * The plan is made in six steps, a file each: gather (which objects), open (versions and indexes;
 * then keys), select (tensors), assemble (files and extents), check (hashes), cut (ranges). Rules
 * that are decided here or there and nowhere else:
 *
 * - Every object is pinned to one version before anything is planned; objects that a listing
 * describes with a strong ETag are pinned by it, without a request.
 * - A file that is of a known format but breaks its rules is refused, unless the layout is verbatim
 * and `verify.hashes` is `off`: then it is plain data, with a warning.
 */

#include "mapping.h"
#include "plan_parts.h"

static void own_free(struct sl_plan_own *own)
{
    if (!own)
        return;
    sl_layout_free(own->layout);
    for (size_t i = 0; i < own->candidate_count; i++)
        sl_candidate_release(&own->candidates[i]);
    free(own->candidates);
    for (size_t i = 0; i < own->passed_count; i++)
        free(own->passed[i]);
    free(own->passed);
    sl_buf_release(&own->texts);
    free(own->covered);
    pthread_mutex_destroy(&own->ahead.lock);
    if (!own->borrowed) {
        sl_store_free(own->store);
        sl_keys_free(own->keys);
        free(own->signer);
        sl_plan_signature_free(own->signature);
        sl_plan_free_sidecars(own);
    }
    free(own);
}

void sl_plan_free(struct sl_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->file_count; i++)
        free(plan->files[i].name);
    free(plan->files);
    for (size_t i = 0; plan->own && plan->own->borrowed && i < plan->source_count; i++)
        if (i == 0 || plan->sources[i].index != plan->sources[i - 1].index)
            sl_index_free(plan->sources[i].index);
    if (plan->own)
        sl_plan_free_guards(plan);
    free(plan->sources);
    free(plan->extents);
    free(plan->ranges);
    free(plan->literals);
    free(plan->deferred_headers);
    free(plan->checks);
    free(plan->tensors);
    free(plan->targets);
    free(plan->mappings);
    own_free(plan->own);
    free(plan);
}

struct sl_plan_output sl_plan_output_of_spec(const struct sl_spec *spec)
{
    const struct sl_tmpfs_options *tmpfs = &spec->sink.tmpfs;
    bool cache = tmpfs->layout == SL_LAYOUT_HF_CACHE;
    return (struct sl_plan_output){.layout = cache ? SL_LAYOUT_VERBATIM
                                                   : (enum sl_sink_layout)tmpfs->layout,
                                   .cache = cache ? tmpfs->path : NULL,
                                   .part_bytes = tmpfs->shard_bytes,
                                   .align_bytes = tmpfs->align_bytes};
}

struct sl_plan *sl_plan_new(const struct sl_spec *spec, const struct sl_plan_output *output,
                            bool picks, struct sl_err *err)
{
    SL_AUTO(sl_plan) plan = sl_alloc(sizeof(*plan), err);
    if (!plan)
        return NULL;
    plan->own = sl_alloc(sizeof(*plan->own), err);
    if (!plan->own)
        return NULL;
    pthread_mutex_init(&plan->own->ahead.lock, NULL);
    plan->own->spec = spec;
    plan->fixed = spec->fixed;
    plan->own->output = *output;
    plan->own->picks = picks;
    return sl_steal(&plan);
}

/* *keys stays NULL where there are none. */
static int open_keys(const struct sl_spec_decrypt *decrypt, struct sl_keys **keys,
                     struct sl_err *err)
{
    const struct sl_spec_secret *secret = decrypt->secret;
    if (!secret)
        return sl_keys_open(decrypt->key_file, decrypt->passphrase_file, keys, err);
    *keys = secret->key
                ? sl_keys_from_key(secret->key, err)
                : sl_keys_from_passphrase(secret->passphrase, secret->passphrase_bytes, err);
    return *keys ? 0 : -1;
}

/* Keys for every index, or none for any. */
static int unlock(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    const struct sl_spec_decrypt *decrypt = &own->spec->decrypt;
    if (!own->picks && (decrypt->key_file || decrypt->passphrase_file || decrypt->secret))
        return sl_fail(err, SL_E_USAGE,
                       "a key is given, but 'layout: verbatim' copies objects as they are, "
                       "encrypted ones too: set 'sink.tmpfs.layout' to safetensors or tensorizer, "
                       "or leave the key out");
    if (!own->picks)
        return 0;
    if (open_keys(decrypt, &own->keys, err) < 0)
        return -1;
    if (own->keys) {
        sl_keys_heed(own->keys, sl_store_cancel(own->store));
        sl_keys_defer(own->keys);
    } else if (own->lists) {
        return 0; /* names are in the clear, and whoever reads is told */
    }
    for (size_t i = 0; i < own->candidate_count; i++)
        if (own->candidates[i].index &&
            sl_index_unlock(own->candidates[i].index, own->keys, err) < 0)
            return -1;
    return 0;
}

/* Only whole objects are signed. */
static int refuse_signed(const struct sl_plan *plan, struct sl_err *err)
{
    if (!plan->own->picks || !sl_plan_is_signed(plan->own->spec))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "verify.minisign needs whole objects, but only their tensors are read: use "
                   "'layout: verbatim', or leave it out and check the objects before with `sluice "
                   "verify`");
}

/* Where the tensors lie is known; what is read from now on is data. */
static void end_notes(struct sl_plan *plan)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        sl_source_end_notes(plan->sources[i].source, sl_plan_sidecar(plan, i) != NULL);
}

/* From URIs to sources, and to targets if single tensors are picked. */
static int prepare(struct sl_plan *plan, const struct sl_source_config *config, struct sl_err *err)
{
    if (refuse_signed(plan, err) < 0 || sl_plan_gather(plan, config, err) < 0 ||
        sl_plan_read_signature(plan, config, err) < 0 || sl_plan_ask(plan, err) < 0)
        return -1;
    if (plan->there)
        return 0;
    if (sl_plan_set_sidecars_aside(plan, err) < 0)
        return -1;
    sl_plan_begin_sidecars(plan);
    int failed = sl_plan_open(plan, err);
    sl_plan_end_sidecars(plan, failed < 0);
    if (failed < 0)
        return sl_plan_explain_missing(plan, err);
    if (sl_plan_refuse_marker(plan, err) < 0 || sl_plan_check_whole(plan, err) < 0)
        return -1;
    if (sl_plan_add_sources(plan, err) < 0 || sl_plan_cover_by_signature(plan, err) < 0 ||
        sl_plan_read_sidecars(plan, err) < 0 || unlock(plan, err) < 0)
        return -1;
    end_notes(plan);
    return plan->own->picks ? sl_plan_select(plan, err) : 0;
}

int sl_plan_begin_keys(const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_keys *keys = plan->own->keys;
    return keys ? sl_keys_begin(keys, err) : 0;
}

bool sl_plan_keys_busy(const struct sl_plan *plan)
{
    return plan->own->keys && sl_keys_busy(plan->own->keys);
}

int sl_plan_await_keys(const struct sl_plan *plan, struct sl_err *err)
{
    if (!plan->own->keys || sl_keys_wait(plan->own->keys, err) == 0)
        return 0;
    return sl_wrap(err, "cannot decrypt '%s'", sl_plan_uri(plan));
}

static int make_targets(struct sl_plan *plan, const struct sl_source_config *config,
                        struct sl_plan **out, struct sl_err *err)
{
    SL_AUTO(sl_plan) held = plan;
    if (prepare(plan, config, err) < 0 || sl_plan_judge_versions(plan, err) < 0 ||
        sl_plan_begin_keys(plan, err) < 0 || sl_plan_await_keys(plan, err) < 0)
        return -1;
    *out = sl_steal(&held); /* the caller's, whatever comes now */
    return 0;
}

int sl_plan_make_targets(const struct sl_spec *spec, const struct sl_source_config *config,
                         struct sl_plan **out, struct sl_err *err)
{
    const struct sl_plan_output none = {SL_LAYOUT_VERBATIM};
    struct sl_plan *plan = sl_plan_new(spec, &none, true, err);
    return plan ? make_targets(plan, config, out, err) : -1;
}

int sl_plan_make_listed(const struct sl_spec *spec, bool as_files,
                        const struct sl_source_config *config, struct sl_plan **out,
                        struct sl_err *err)
{
    const struct sl_plan_output none = {SL_LAYOUT_VERBATIM};
    struct sl_plan *plan = sl_plan_new(spec, &none, !as_files, err);
    if (!plan)
        return -1;
    plan->own->lists = true;
    if (make_targets(plan, config, out, err) < 0)
        return -1;
    return sl_plan_identify(*out, err);
}

static int take_index(struct sl_plan *plan, const struct sl_index *index, struct sl_err *err)
{
    if (sl_plan_add_sources(plan, err) < 0 ||
        (index->tensor_count && sl_plan_select(plan, err) < 0) ||
        sl_plan_judge_versions(plan, err) < 0)
        return -1;
    plan->metadata = index->metadata;
    plan->metadata_count = index->metadata_count;
    return 0;
}

int sl_plan_make_given(const struct sl_spec *spec, struct sl_store *store, struct sl_index *index,
                       struct sl_plan **out, struct sl_err *err)
{
    const struct sl_plan_output none = {SL_LAYOUT_VERBATIM};
    const struct sl_entry entry = {.name = "model", .etag = ""};
    SL_AUTO(sl_plan) plan = sl_plan_new(spec, &none, true, err);
    if (!plan || !(plan->own->store = store) ||
        sl_plan_add_candidate(plan, &entry, true, err) < 0) {
        sl_index_free(index);
        if (!plan)
            sl_store_free(store);
        return -1;
    }
    plan->own->single = true;
    plan->own->candidates[0].index = index;
    if (take_index(plan, index, err) < 0)
        return -1;
    *out = sl_steal(&plan);
    return 0;
}

enum { HOLD_BYTES_MAX = 128 << 20 };

uint64_t sl_plan_may_hold(const struct sl_spec *spec, enum sl_sink_layout layout)
{
    const struct sl_spec_tensors *tensors = &spec->tensors;
    bool some = tensors->include.count || tensors->exclude.count || tensors->shard.rules.count;
    if (some && layout != SL_LAYOUT_VERBATIM)
        return 0;
    return SL_MIN(spec->readers.memory_bytes, (uint64_t)HOLD_BYTES_MAX);
}

int sl_plan_make(const struct sl_spec *spec, const struct sl_plan_output *output,
                 const struct sl_source_config *config, struct sl_plan **out, struct sl_err *err)
{
    SL_AUTO(sl_plan) plan = sl_plan_new(spec, output, output->layout != SL_LAYOUT_VERBATIM, err);
    if (!plan)
        return -1;
    if (prepare(plan, config, err) < 0)
        return -1;
    if (plan->there) {
        *out = sl_steal(&plan);
        return 0;
    }
    if (sl_plan_assemble(plan, err) < 0 || sl_plan_check(plan, err) < 0 ||
        sl_plan_judge_versions(plan, err) < 0 || sl_plan_identify(plan, err) < 0 ||
        sl_plan_cut(plan, err) < 0)
        return -1;
    *out = sl_steal(&plan);
    return 0;
}

struct sl_sink_file *sl_plan_sink_files(const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_sink_file *files = sl_alloc_array(plan->file_count, sizeof(*files), err);
    for (size_t i = 0; files && i < plan->file_count; i++)
        files[i] = (struct sl_sink_file){plan->files[i].name, plan->files[i].bytes};
    return files;
}

static void json_sources(struct sl_json *json, const struct sl_plan *plan)
{
    sl_json_key(json, "objects");
    sl_json_array(json);
    for (size_t i = 0; i < plan->source_count; i++) {
        const struct sl_plan_source *source = &plan->sources[i];
        sl_json_object(json);
        sl_json_key_string(json, "name", source->name);
        sl_json_key_uint(json, "bytes", sl_source_bytes(source->source));
        sl_json_key_string(json, "format", source->index ? source->index->format : NULL);
        sl_json_key_string(json, "etag", sl_source_version(source->source)->etag);
        sl_json_end(json);
    }
    sl_json_end(json);
}

static void json_files(struct sl_json *json, const struct sl_plan *plan)
{
    sl_json_key(json, "files");
    sl_json_array(json);
    for (size_t i = 0; i < plan->file_count; i++) {
        sl_json_object(json);
        sl_json_key_string(json, "name", plan->files[i].name);
        sl_json_key_uint(json, "bytes", plan->files[i].bytes);
        sl_json_end(json);
    }
    sl_json_end(json);
}

static void json_cost(struct sl_json *json, const char *key, const struct sl_plan_cost *cost)
{
    sl_json_key(json, key);
    sl_json_object(json);
    sl_json_key_uint(json, "requests", cost->requests);
    sl_json_key_uint(json, "bytes", cost->bytes);
    sl_json_end(json);
}

static void json_rows(struct sl_json *json, const struct sl_plan *plan)
{
    const struct sl_plan_rows *rows = &plan->rows;
    sl_json_key(json, "rows");
    sl_json_object(json);
    sl_json_key_uint(json, "count", rows->rows);
    sl_json_key_uint(json, "request_worth_bytes", sl_request_worth(&plan->weigh.facts, 0));
    sl_json_key_string(json, "request_worth_why", sl_worth_why_name(plan->weigh.why));
    json_cost(json, "wanted", &rows->wanted);
    json_cost(json, "least_bytes", &rows->least);
    json_cost(json, "whole_spans", &rows->whole);
    sl_json_end(json);
}

void sl_plan_json(struct sl_json *json, const struct sl_plan *plan)
{
    char hex[65];
    struct sl_plan_changes changes = sl_plan_changes(plan);
    sl_hex(plan->identity, 32, hex);
    sl_json_object(json);
    sl_json_key_uri(json, "uri", sl_plan_uri(plan));
    sl_json_key_string(json, "identity", hex);
    json_sources(json, plan);
    json_files(json, plan);
    sl_json_key_uint(json, "tensors", plan->tensor_count);
    sl_json_key_uint(json, "decrypted", changes.decrypted);
    sl_json_key_uint(json, "cast", changes.cast);
    sl_json_key_uint(json, "sliced", changes.sliced);
    sl_json_key_uint(json, "extents", plan->extent_count);
    sl_json_key_uint(json, "ranges", plan->range_count);
    sl_json_key_uint(json, "range_bytes", plan->range_bytes);
    sl_json_key_uint(json, "connections", plan->connections.first);
    sl_json_key_uint(json, "connections_max", plan->connections.most);
    sl_json_key_uint(json, "checks", plan->check_count);
    sl_json_key_uint(json, "sidecars", plan->sidecar_count);
    sl_json_key_uint(json, "fetch_bytes", plan->fetch_bytes);
    if (plan->rows.rows)
        json_rows(json, plan);
    sl_json_key_uint(json, "skipped_bytes", plan->skipped_bytes);
    sl_json_key_uint(json, "destination_bytes", plan->sink_bytes);
    sl_json_key_uint(json, "unhashed_bytes", plan->unhashed_bytes);
    sl_json_key_uint(json, "unusual_objects", plan->unusual_count);
    sl_json_key_uint(json, "unusual_bytes", plan->unusual_bytes);
    sl_json_key_uint(json, "index_requests", plan->index_requests);
    sl_json_key_uint(json, "index_bytes", plan->index_bytes);
    const struct sl_signed_by signed_by = sl_plan_signed_by(plan);
    sl_signed_by_json(json, &signed_by);
    sl_json_end(json);
}
