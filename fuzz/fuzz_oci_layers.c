/* Layers of images that are tars: two of them, one over the other. */
#include <stdlib.h>
#include <string.h>

#include "oci_tree.h"

enum { BLOCK_BYTES = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct memory {
    const uint8_t *data;
    uint64_t at, bytes;
};

static int read_on(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err)
{
    struct memory *memory = arg;
    (void)err;
    *got = SL_MIN(bytes, memory->bytes - memory->at);
    if (data && *got)
        memcpy(data, memory->data + memory->at, *got);
    memory->at += *got;
    return 0;
}

static void check_files(const struct sl_oci_manifest *manifest)
{
    for (size_t i = 0; i < manifest->count; i++) {
        const struct sl_oci_file *file = &manifest->files[i];
        struct sl_oci_piece piece;
        if (!sl_oci_pin_parse(file->pin, &piece) || piece.at > piece.of ||
            file->bytes > piece.of - piece.at)
            abort();
        if (!*file->name || *file->name == '/' || strncmp(file->name, "../", 3) == 0 ||
            strstr(file->name, "/../"))
            abort();
    }
}

/* The first byte says how, the second where the first layer ends. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2)
        return 0;
    size_t first = SL_MIN((size_t)data[1] * BLOCK_BYTES, bytes - 2);
    const size_t sizes[] = {first, bytes - 2 - first};
    struct sl_oci_layer layers[2];
    struct sl_oci_manifest manifest = {0};
    struct sl_err err = SL_ERR_INIT;
    struct sl_oci_tree *tree = sl_oci_tree_new(data[0] & 1 ? "models" : "", NULL, &err);
    int result = 0;
    for (size_t i = 0; tree && result == 0 && i < 2 && sizes[i]; i++) {
        struct memory memory = {data + 2 + (i ? first : 0), 0, sizes[i]};
        const struct sl_tar_input input = {read_on, &memory};
        layers[i] = (struct sl_oci_layer){.bytes = sizes[i], .image = data[0] & 2};
        memcpy(layers[i].digest, "sha256:", 7);
        memset(layers[i].digest + 7, '0', 64);
        result = sl_oci_tree_add(tree, &layers[i], &input, &memory.at, data[0] & 4, &err);
    }
    if (tree && result == 0 && sl_oci_tree_finish(tree, &manifest, &err) == 0)
        check_files(&manifest);
    sl_oci_manifest_release(&manifest);
    sl_oci_tree_free(tree);
    return 0;
}
