/*
 * Which files a manifest names. Whoever packs models gives them names in annotations (ModelPack,
 * ORAS), beside the digest (Ollama), or none at all: then the kind of a layer says what it is.
 * Layers that are tars are noted, packed or not: oci_layers.c reads them.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>

#include "json.h"
#include "lower_bound.h"
#include "oci_store.h"

static int hostile(const char *what, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "manifest", "%s: %s", what, why);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Layers that have no names of their own; several of one kind are numbered. */
static const struct unnamed {
    const char *type, *stem, *extension;
} unnamed[] = {
    {"application/vnd.ollama.image.model", "model", ".gguf"},
    {"application/vnd.ollama.image.projector", "mmproj", ".gguf"},
    {"application/vnd.ollama.image.adapter", "adapter", ".gguf"},
    {"application/vnd.ollama.image.template", "template", ""},
    {"application/vnd.ollama.image.params", "params", ".json"},
    {"application/vnd.ollama.image.system", "system", ".txt"},
    {"application/vnd.ollama.image.license", "LICENSE", ""},
    {"application/vnd.docker.ai.gguf.v3", "model", ".gguf"},
    {"application/vnd.docker.ai.gguf.v3.lora", "adapter", ".gguf"},
    {"application/vnd.docker.ai.safetensors", "model", ".safetensors"},
    {"application/vnd.docker.ai.mmproj", "mmproj", ".gguf"},
    {"application/vnd.docker.ai.dduf", "model", ".dduf"},
    {"application/vnd.docker.ai.license", "LICENSE", ""},
    {"application/vnd.docker.ai.chat.template.jinja", "chat_template", ".jinja"},
};

static const struct unnamed *find_unnamed(const char *type)
{
    for (size_t i = 0; i < SL_COUNT(unnamed); i++)
        if (strcmp(unnamed[i].type, type) == 0)
            return &unnamed[i];
    return NULL;
}

static const char *type_of(const json_t *layer)
{
    const char *type = sl_json_get_string(layer, "mediaType");
    return type ? type : "";
}

/* Of each kind: how many layers there are, and how many came until now. */
struct kinds {
    size_t all[SL_COUNT(unnamed)], come[SL_COUNT(unnamed)];
};

static void count_kinds(const json_t *layers, struct kinds *kinds)
{
    *kinds = (struct kinds){{0}};
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const struct unnamed *kind = find_unnamed(type_of(json_array_get(layers, i)));
        if (kind)
            kinds->all[kind - unnamed]++;
    }
}

static char *make_name(const struct unnamed *kind, const struct kinds *kinds, struct sl_err *err)
{
    size_t all = kinds->all[kind - unnamed], place = kinds->come[kind - unnamed];
    if (all == 1)
        return sl_asprintf(err, "%s%s", kind->stem, kind->extension);
    return sl_asprintf(err, "%s-%05zu-of-%05zu%s", kind->stem, place, all, kind->extension);
}

static const char *annotation(const json_t *layer, const char *key)
{
    const char *text = sl_json_get_string(json_object_get(layer, "annotations"), key);
    return text && *text ? text : NULL;
}

/* As whoever pushed it says; NULL: not at all. Borrowed. */
static const char *given_name(const json_t *layer)
{
    const char *path = annotation(layer, "org.cncf.model.filepath");
    const char *title = annotation(layer, "org.opencontainers.image.title");
    if (path || title)
        return path ? path : title;
    return sl_json_get_string(layer, "name");
}

static bool is_image_layer(const json_t *layer)
{
    return strstr(type_of(layer), ".image.layer.") || strstr(type_of(layer), ".image.rootfs.");
}

/* As `oras push` marks a folder that it has packed. */
static bool is_folder(const json_t *layer)
{
    const char *unpack = annotation(layer, "io.deis.oras.content.unpack");
    return unpack && strcmp(unpack, "true") == 0;
}

static bool is_packed(const json_t *layer)
{
    static const char *const marks[] = {"+gzip", ".gzip", "+zstd", ".zstd"};
    for (size_t i = 0; i < SL_COUNT(marks); i++)
        if (strstr(type_of(layer), marks[i]))
            return true;
    return false;
}

/* Files that `oras push` was told no kind of have that of an image's layer, and a title. */
static bool is_archive(const json_t *layer)
{
    if (is_image_layer(layer) && annotation(layer, "org.opencontainers.image.title"))
        return is_folder(layer);
    return is_folder(layer) || is_packed(layer) || strstr(type_of(layer), ".tar");
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int take_digest(const json_t *item, const char *what, char digest[SL_OCI_DIGEST_BYTES],
                       struct sl_err *err)
{
    const char *text = sl_json_get_string(item, "digest");
    if (!text || !sl_oci_is_digest(text))
        return hostile(what, err, "a digest in its manifest is not sha256: and 64 hex digits");
    memcpy(digest, text, SL_OCI_DIGEST_BYTES);
    return 0;
}

static int take_size(const json_t *layer, const char *what, uint64_t *bytes, struct sl_err *err)
{
    const json_t *size = json_object_get(layer, "size");
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        (uint64_t)json_integer_value(size) > SL_OBJECT_BYTES_MAX)
        return hostile(what, err, "the size of a layer is not a size");
    *bytes = (uint64_t)json_integer_value(size);
    return 0;
}

static int take_tar(const json_t *layer, const char *what, struct sl_oci_manifest *manifest,
                    struct sl_err *err)
{
    struct sl_oci_layer *tar = &manifest->layers[manifest->layer_count];
    if (take_size(layer, what, &tar->bytes, err) < 0 ||
        take_digest(layer, what, tar->digest, err) < 0)
        return -1;
    tar->image = is_image_layer(layer) && !is_folder(layer);
    manifest->layer_count++;
    return 0;
}

/* Nothing is added for a layer that is not a file, such as a signature. */
static int take_layer(const json_t *layer, struct kinds *kinds, const char *what,
                      struct sl_oci_manifest *manifest, struct sl_err *err)
{
    const struct unnamed *kind = find_unnamed(type_of(layer));
    const char *name = given_name(layer);
    struct sl_oci_file *file = &manifest->files[manifest->count];
    if (kind)
        kinds->come[kind - unnamed]++;
    if (is_archive(layer))
        return take_tar(layer, what, manifest, err);
    if (!name && !kind)
        return 0;
    if (take_size(layer, what, &file->bytes, err) < 0 ||
        take_digest(layer, what, file->pin, err) < 0)
        return -1;
    sl_unhex(file->pin + sizeof("sha256:") - 1, file->sha256, sizeof(file->sha256));
    file->hashed = true;
    file->name = name ? sl_strdup(name, err) : make_name(kind, kinds, err);
    manifest->count += file->name != NULL;
    return file->name ? 0 : -1;
}

static int take_layers(const json_t *layers, const char *what, struct sl_oci_manifest *manifest,
                       struct sl_err *err)
{
    size_t count = json_array_size(layers);
    struct kinds kinds;
    manifest->files = sl_alloc_array(count + 1, sizeof(*manifest->files), err);
    manifest->layers = sl_alloc_array(count + 1, sizeof(*manifest->layers), err);
    if (!manifest->files || !manifest->layers)
        return -1;
    count_kinds(layers, &kinds);
    for (size_t i = 0; i < count; i++)
        if (take_layer(json_array_get(layers, i), &kinds, what, manifest, err) < 0)
            return -1;
    if (manifest->count || manifest->layer_count)
        return 0;
    return sl_fail(err, SL_E_FORMAT,
                   "%s: none of its %zu layers is a file with a name: is it a model? (oras and "
                   "ModelPack name files by annotations)",
                   what, count);
}

/* ---- an index -------------------------------------------------------------------------------- */

/* As container tools call processors. */
static const char *architecture(void)
{
    struct utsname machine;
    if (uname(&machine) < 0)
        return "amd64";
    return strcmp(machine.machine, "aarch64") == 0 ? "arm64" : "amd64";
}

/* 0: not at all, as what is only attached to another entry; 2: it is made for this machine. */
static unsigned fits(const json_t *item)
{
    const json_t *platform = json_object_get(item, "platform");
    const char *os = sl_json_get_string(platform, "os");
    const char *processor = sl_json_get_string(platform, "architecture");
    if (os && strcmp(os, "unknown") == 0)
        return 0;
    if (!os || !processor)
        return 1;
    return strcmp(os, "linux") == 0 && strcmp(processor, architecture()) == 0 ? 2 : 1;
}

static int take_index(const json_t *items, const char *what, struct sl_oci_manifest *manifest,
                      struct sl_err *err)
{
    const json_t *best = NULL;
    unsigned best_fit = 0, equal = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        unsigned fit = fits(item);
        if (!fit || fit < best_fit)
            continue;
        equal = fit > best_fit ? 1 : equal + 1;
        best = fit > best_fit ? item : best;
        best_fit = fit;
    }
    if (!best || (best_fit == 1 && equal > 1))
        return sl_fail(err, SL_E_NOT_FOUND,
                       "%s: it is an index of %zu manifests, and %s is for linux/%s: name one by "
                       "its digest",
                       what, json_array_size(items), best ? "not one of them" : "none",
                       architecture());
    return take_digest(best, what, manifest->child, err);
}

int sl_oci_manifest_parse(const char *text, size_t bytes, const char *what,
                          struct sl_oci_manifest *manifest, struct sl_err *err)
{
    *manifest = (struct sl_oci_manifest){0};
    json_t *document = sl_json_parse(text, bytes, what, err);
    if (!document)
        return -1;
    const json_t *layers = json_object_get(document, "layers");
    const json_t *entries = json_object_get(document, "manifests");
    int result;
    if (json_is_array(layers))
        result = take_layers(layers, what, manifest, err);
    else if (json_is_array(entries))
        result = take_index(entries, what, manifest, err);
    else
        result = hostile(what, err, "the answer is not a manifest: is this a registry?");
    json_decref(document);
    if (result < 0)
        sl_oci_manifest_release(manifest);
    return result;
}

static void release_layer(struct sl_oci_layer *layer)
{
    for (size_t i = 0; i < layer->point_count; i++)
        sl_packed_point_release(&layer->points[i]);
    free(layer->points);
    *layer = (struct sl_oci_layer){0};
}

void sl_oci_manifest_release(struct sl_oci_manifest *manifest)
{
    for (size_t i = 0; i < manifest->count; i++) {
        free(manifest->files[i].name);
        free(manifest->files[i].head);
    }
    for (size_t i = 0; i < manifest->layer_count; i++)
        release_layer(&manifest->layers[i]);
    free(manifest->files);
    free(manifest->sorted);
    free(manifest->layers);
    *manifest = (struct sl_oci_manifest){0};
}

/* ---- by name --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct sl_oci_file *x = *(const struct sl_oci_file *const *)a,
                             *y = *(const struct sl_oci_file *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x > y) - (x < y);
}

int sl_oci_manifest_sort(struct sl_oci_manifest *manifest, struct sl_err *err)
{
    free(manifest->sorted);
    manifest->sorted = sl_alloc_array(manifest->count + 1, sizeof(*manifest->sorted), err);
    if (!manifest->sorted)
        return -1;
    for (size_t i = 0; i < manifest->count; i++)
        manifest->sorted[i] = &manifest->files[i];
    qsort(manifest->sorted, manifest->count, sizeof(*manifest->sorted), by_name);
    return 0;
}

static int compare(const struct sl_oci_file *file, const char *folder, const char *name)
{
    size_t below = strlen(folder);
    int order = strncmp(file->name, folder, below);
    return order ? order : strcmp(file->name + below, name);
}

const struct sl_oci_file *sl_oci_manifest_find(const struct sl_oci_manifest *manifest,
                                               const char *folder, const char *name)
{
    size_t at = SL_LOWER_BOUND(i, manifest->count, compare(manifest->sorted[i], folder, name) < 0);
    bool found = at < manifest->count && compare(manifest->sorted[at], folder, name) == 0;
    return found ? manifest->sorted[at] : NULL;
}
