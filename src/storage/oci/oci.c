/*
 * Models in OCI registries, read over http_channel.c.
 *
 * A reference is made a manifest by one request. It names each file by the SHA-256 of its bytes,
 * which is the pin of the object and is checked as it arrives, so a tag that moves meanwhile
 * changes nothing. A blob's bytes come from the registry or from where it leads to: http_object.c
 * asks once a file and again when a signed link has expired.
 */
#include <stdio.h>
#include <string.h>

#include "oci_channel.h"

/* ---- the store ------------------------------------------------------------------------------- */

static int oci_check(const char *uri, struct sl_err *err)
{
    struct sl_oci_uri parts;
    int result = sl_oci_uri_parse(uri, &parts, err);
    sl_oci_uri_release(&parts);
    return result;
}

static int open_registry(struct sl_oci *oci, bool plain, struct sl_err *err)
{
    const struct sl_oci_place_facts facts = {.name = oci->uri.host,
                                             .host = oci->uri.host,
                                             .prefix = "",
                                             .repo = oci->uri.repo,
                                             .plain = plain};
    return sl_oci_endpoint_open(&oci->registry, &oci->store->config, &facts, err);
}

static int oci_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_oci_options *options = sl_source_options(&store->config, &sl_oci_table);
    struct sl_oci *oci = store->impl = sl_alloc(sizeof(*oci), err);
    if (!oci)
        return -1;
    oci->store = store;
    store->advice.reads_to_list = true;
    store->advice.hash_advice = "raise source.oci.checkLayersUpTo";
    pthread_mutex_init(&oci->locked.mutex, NULL);
    sl_places_init(&oci->places);
    if (sl_oci_uri_parse(uri, &oci->uri, err) < 0)
        return -1;
    bool plain = sl_oci_host_is_near(oci->uri.host) || (options && options->plain_http);
    if (sl_repository_split(store, uri, oci->uri.path, &oci->folder, key, err) < 0 ||
        open_registry(oci, plain, err) < 0)
        return -1;
    return sl_oci_open_mirrors(oci, options, err);
}

static void oci_close(struct sl_store *store)
{
    struct sl_oci *oci = store->impl;
    if (!oci)
        return;
    sl_oci_endpoint_close(&oci->registry);
    for (unsigned i = 0; i < oci->places.count; i++)
        sl_oci_endpoint_close(&oci->mirrors[i]);
    sl_places_release(&oci->places);
    sl_oci_uri_release(&oci->uri);
    sl_oci_manifest_release(&oci->locked.manifest);
    free(oci->folder);
    pthread_mutex_destroy(&oci->locked.mutex);
    free(oci);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* source->impl: the blob that the source is pinned to, at the registry. */
static int find_blob(struct sl_source *source, struct sl_err *err)
{
    struct sl_oci *oci = source->store->impl;
    struct sl_oci_piece piece;
    bool good = sl_oci_pin_parse(source->version.pin, &piece);
    bool packed = good && piece.packing != SL_PACKING_NONE;
    if (!good || (!packed && piece.of && source->bytes > piece.of - piece.at))
        return sl_fail(err, SL_E_USAGE, "the version of '%s' is not a digest", source->uri);
    source->piece_at = packed ? 0 : piece.at;
    source->piece_of = packed ? 0 : piece.of;
    source->unchecked = piece.of != 0;
    source->past_caches = packed ? "its layer is packed" : NULL;
    if (!source->blob)
        source->blob = sl_strdup(piece.digest, err);
    if (!source->impl)
        source->impl = sl_alloc(sizeof(struct sl_oci_place), err);
    return source->blob && source->impl
               ? sl_oci_place_find(&oci->registry, piece.digest, source->impl, err)
               : -1;
}

static void oci_forget(struct sl_source *source)
{
    free(source->impl);
}

static int oci_locate(struct sl_source *source, struct sl_err *err)
{
    source->uri = sl_asprintf(err, "%s%s", source->store->uri, source->name);
    if (!source->uri)
        return -1;
    return source->version.pin[0] ? find_blob(source, err) : 0;
}

/* Of a packed layer's file: what was kept when the layer was read. */
static int take_head(struct sl_source *source, const struct sl_oci_file *file, struct sl_err *err)
{
    if (!file->head)
        return 0;
    source->head = sl_alloc(file->head_bytes, err);
    if (!source->head)
        return -1;
    memcpy(source->head, file->head, file->head_bytes);
    source->head_bytes = file->head_bytes;
    return 0;
}

static int oci_resolve(struct sl_source *source, struct sl_err *err)
{
    struct sl_oci *oci = source->store->impl;
    const struct sl_oci_manifest *manifest;
    struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_SHA256};
    if (sl_oci_files(oci, &manifest, err) < 0)
        return -1;
    const struct sl_oci_file *file = sl_oci_manifest_find(manifest, oci->folder, source->name);
    if (!file)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "'%s': the artifact has no such file; a folder is written with '/' at its "
                       "end",
                       source->uri);
    memcpy(source->version.pin, file->pin, sizeof(file->pin));
    memcpy(sums.items[0].value, file->sha256, sizeof(file->sha256));
    if (file->hashed && !source->checksums && sl_source_set_checksums(source, &sums, err) < 0)
        return -1;
    source->opened = strchr(file->pin, '+') != NULL; /* a tar told how long it is, no answer will */
    source->bytes = source->opened ? file->bytes : 0;
    return take_head(source, file, err) < 0 ? -1 : find_blob(source, err);
}

/* ---- the kind -------------------------------------------------------------------------------- */

/* A link that has expired, and a token: either may be what was refused, or both. */
static bool oci_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    struct sl_oci_place *place = source->impl;
    return place && sl_oci_endpoint_recover(place->at, place->object, why, err);
}

const struct sl_store_kind sl_oci_store = {
    .name = "oci",
    .schemes = {"oci"},
    .example = "oci://ghcr.io/org/model:v1/file",
    .help = "a model in an OCI registry: oci://HOST/REPOSITORY[:TAG|@sha256:DIGEST][/FILE]",
    .options = &sl_oci_table,
    .options_help = "OCI registries",
    .login = "log in with a container tool, such as docker login",
    .traits = {.listing = true, .folders = true, .signatures = true},
    .open = oci_open,
    .close = oci_close,
    .locate = oci_locate,
    .transport = &sl_oci_transport,
    .hooks = &sl_oci_hooks,
    .check = oci_check,
    .list = sl_oci_list,
    .signatures = sl_oci_signatures,
    .resolve = oci_resolve,
    .forget = oci_forget,
    .recover = oci_recover,
    .describe = sl_oci_describe,
};
