/*
 * Layers that are tars. Of a large one only the headers are read, by small ranges: each file in it
 * is a piece of the blob, which a load reads by ranges like any object. Only the blob as a whole
 * has a hash, so such pieces have none. A small layer is read whole, checked against its digest,
 * and its files get hashes of their own. So is a packed one, of any size (oci_unpack.c): its first
 * bytes tell, whatever the manifest calls it.
 */
#include <string.h>

#include "hash.h"
#include "log.h"
#include "oci_tree.h"
#include "oci_unpack.h"

enum {
    WINDOW_BYTES = 32 * 1024, /* a header, and small files behind it */
    CHECK_WINDOW_BYTES = 4 * 1024 * 1024,
    HEADERS_BYTES_MAX = 256 * 1024 * 1024, /* of one layer */
};
#define CHECK_BYTES_DEFAULT (UINT64_C(32) * 1024 * 1024)

/* A layer, read in order. */
struct reading {
    struct sl_source *source;
    uint64_t at, bytes;
    uint64_t begin, end; /* of what the window holds */
    uint8_t *window;
    size_t window_bytes;
    uint64_t read_bytes;
    struct sl_sha256 *sha; /* of all of it; NULL: it is not checked */
};

/* The next window begins where the input stands: with a hash nothing is ever left out. */
static int fill(struct reading *reading, struct sl_err *err)
{
    size_t bytes = (size_t)SL_MIN(reading->bytes - reading->at, (uint64_t)reading->window_bytes);
    reading->read_bytes += bytes;
    if (!reading->sha && reading->read_bytes > HEADERS_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "its headers need more than 256 MiB");
    if (sl_source_read(reading->source, reading->at, reading->window, bytes, err) < 0)
        return -1;
    if (reading->sha)
        sl_sha256_update(reading->sha, reading->window, bytes);
    reading->begin = reading->at;
    reading->end = reading->at + bytes;
    return 0;
}

/* sl_tar_input.read */
static int read_on(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err)
{
    struct reading *reading = arg;
    bytes = SL_MIN(bytes, reading->bytes - reading->at);
    *got = 0;
    if (!data && !reading->sha) {
        reading->at += bytes;
        *got = bytes;
        return 0;
    }
    while (*got < bytes) {
        if ((reading->at < reading->begin || reading->at >= reading->end) && fill(reading, err) < 0)
            return -1;
        uint64_t part = SL_MIN(bytes - *got, reading->end - reading->at);
        if (data)
            memcpy((uint8_t *)data + *got, reading->window + (reading->at - reading->begin),
                   (size_t)part);
        reading->at += part;
        *got += part;
    }
    return 0;
}

/* By what its first bytes say. */
static int find_packing(const struct reading *reading, enum sl_packing *packing, struct sl_err *err)
{
    const char *name = sl_tar_packing(reading->window, (size_t)reading->end);
    *packing = SL_PACKING_NONE;
    if (!name || sl_packing_find(name, packing))
        return 0;
    return sl_fail_code(
        err, SL_E_FORMAT, "archive.packing",
        "it is packed by %s: build the image with `docker buildx build --output "
        "type=registry,compression=uncompressed,force-compression=true`, or push the "
        "model's files one by one (oras push)",
        name);
}

/* What is left is hashed, too. */
static int find_blame(struct reading *reading, const struct sl_oci_layer *layer, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    uint64_t passed;
    if (!sl_oci_may_be_changed(layer, err))
        return -1;
    reading->at = SL_MAX(reading->at, reading->end);
    int result = read_on(reading, NULL, INT64_MAX, &passed, &why);
    if (result == 0)
        result = sl_oci_check_layer(layer, reading->sha, &why);
    else if (why.kind != SL_E_CANCELED)
        return -1;
    if (result < 0)
        *err = why;
    return -1;
}

static int read_layer(struct sl_source *source, struct sl_oci_layer *layer, bool check,
                      struct sl_oci_tree *tree, struct sl_err *err)
{
    struct reading reading = {.source = source,
                              .bytes = layer->bytes,
                              .window_bytes = check ? CHECK_WINDOW_BYTES : WINDOW_BYTES};
    SL_AUTO(sl_sha256) sha = check ? sl_sha256_new(err) : NULL;
    sl_autofree uint8_t *window = sl_alloc(reading.window_bytes, err);
    if (!window || (check && !sha))
        return -1;
    reading.window = window;
    reading.sha = sha;
    if (layer->bytes &&
        (fill(&reading, err) < 0 || find_packing(&reading, &layer->packing, err) < 0))
        return -1;
    if (layer->packing != SL_PACKING_NONE) {
        source->vouch = SL_VOUCH_WHOLE;
        return sl_oci_unpack_layer(source, layer, tree, err);
    }
    const struct sl_tar_input input = {read_on, &reading};
    if (sl_oci_tree_add(tree, layer, &input, &reading.at, check, err) < 0)
        return check ? find_blame(&reading, layer, err) : -1;
    return check ? sl_oci_check_layer(layer, sha, err) : 0;
}

/* A layer that is too large to be checked is so after all where its headers make no sense. */
static int read_tar(struct sl_source *source, struct sl_oci_layer *layer, bool check,
                    struct sl_oci_tree *tree, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    source->vouch = check ? SL_VOUCH_WHOLE : SL_VOUCH_NONE;
    int result = read_layer(source, layer, check, tree, &why);
    if (result == 0 || check || layer->packing != SL_PACKING_NONE ||
        strcmp(why.code, "archive.packing") == 0 || !sl_oci_may_be_changed(layer, &why)) {
        if (result < 0 && err)
            *err = why;
        return result;
    }
    sl_log(SL_LOG_WARN,
           "layer %.19s… is read whole, to see by its digest whether it came right: %s",
           layer->digest, why.message);
    sl_oci_tree_drop(tree);
    source->vouch = SL_VOUCH_WHOLE;
    return read_layer(source, layer, true, tree, err);
}

static int add_layer(struct sl_oci *oci, struct sl_oci_layer *layer, uint64_t check_up_to,
                     struct sl_oci_tree *tree, struct sl_err *err)
{
    struct sl_version version = {0};
    memcpy(version.pin, layer->digest, sizeof(layer->digest));
    SL_AUTO(sl_source) source = NULL;
    if (sl_source_known(oci->store, layer->digest, layer->bytes, &version, &source, err) < 0)
        return -1;
    return read_tar(source, layer, layer->bytes <= check_up_to, tree, err);
}

/* source.oci.imageFolder without slashes around it. */
static char *image_folder(const struct sl_oci_options *options, struct sl_err *err)
{
    const char *text = options && options->image_folder ? options->image_folder : "models";
    size_t bytes = strlen(text);
    char *folder = sl_alloc(bytes + 1, err);
    const char *fault = folder ? sl_tar_clean_name(text, bytes, folder, bytes + 1) : NULL;
    if (!fault)
        return folder;
    sl_fail(err, SL_E_USAGE, "source.oci.imageFolder: '%.200s' %s", text, fault);
    free(folder);
    return NULL;
}

static int unpack(struct sl_oci *oci, struct sl_oci_manifest *manifest, const char *folder,
                  const char *what, struct sl_err *err)
{
    const struct sl_oci_options *options = sl_source_options(&oci->store->config, &sl_oci_table);
    uint64_t check_up_to = options ? options->check_layers_up_to : CHECK_BYTES_DEFAULT;
    SL_AUTO(sl_oci_tree) tree = sl_oci_tree_new(folder, oci->store->config.cancel, err);
    if (!tree)
        return -1;
    for (size_t i = 0; i < manifest->layer_count; i++)
        if (add_layer(oci, &manifest->layers[i], check_up_to, tree, err) < 0)
            return sl_wrap(err, "%s: layer %.19s…", what, manifest->layers[i].digest);
    if (sl_oci_tree_finish(tree, manifest, err) < 0)
        return sl_wrap(err, "%s", what);
    if (manifest->count)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND,
                   "%s: no layer of it holds a file below '%s': source.oci.imageFolder names the "
                   "folder of the model",
                   what, folder);
}

int sl_oci_unpack(struct sl_oci *oci, struct sl_oci_manifest *manifest, const char *what,
                  struct sl_err *err)
{
    const struct sl_oci_options *options = sl_source_options(&oci->store->config, &sl_oci_table);
    if (!manifest->layer_count)
        return 0;
    sl_autofree char *folder = image_folder(options, err);
    return folder ? unpack(oci, manifest, folder, what, err) : -1;
}
