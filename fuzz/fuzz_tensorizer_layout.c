/*
 * Tensors by chance are laid out as .tensors, written, and read back: either the layout refuses
 * them or the reader finds the same tensors, with hashes that agree, encrypted ones too.
 */
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "hash.h"
#include "layout.h"
#include "memory_store.h"
#include "stores.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum {
    TENSORS_MAX = 6,
    PARTS_MAX = 4,
    RANK_MAX = 5,
    TENSOR_BYTES_MAX = 8192, /* larger ones are meta tensors */
    META_BYTES_MAX = 1 << 20,
};

struct input {
    const uint8_t *data;
    size_t bytes;
};
struct chance {
    struct sl_tensor tensor;
    struct sl_path_part parts[PARTS_MAX];
    uint64_t shape[RANK_MAX];
};

static const uint8_t key[SL_KEY_BYTES] = "a key", zeros[TENSOR_BYTES_MAX];

static unsigned take(struct input *in)
{
    return in->bytes ? in->bytes--, *in->data++ : 0;
}

static void take_path(struct input *in, struct chance *chance)
{
    chance->tensor.name = "shown";
    chance->tensor.name_bytes = 5;
    chance->tensor.path = chance->parts;
    chance->tensor.path_count = 1 + take(in) % PARTS_MAX;
    for (unsigned i = 0; i < chance->tensor.path_count; i++) {
        struct sl_path_part *part = &chance->parts[i];
        size_t length = take(in);
        if (length & 1) {
            part->number = take(in);
            continue;
        }
        part->text_bytes = SL_MIN(length / 8, in->bytes);
        part->text = (const char *)in->data;
        in->data += part->text_bytes;
        in->bytes -= part->text_bytes;
    }
}

static void take_shape(struct input *in, struct chance *chance)
{
    struct sl_tensor *tensor = &chance->tensor;
    uint64_t elements = 1;
    bool overflow = false, empty = false;
    tensor->dtype = (enum sl_dtype)(1 + take(in) % (SL_DTYPE_COUNT - 1));
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    tensor->rank = take(in) % (RANK_MAX + 1);
    tensor->shape = chance->shape;
    for (unsigned i = 0; i < tensor->rank; i++) {
        unsigned dimension = take(in);
        chance->shape[i] = dimension < 250 ? dimension % 16 : UINT64_C(1) << (dimension - 220);
        empty = empty || chance->shape[i] == 0;
        overflow = __builtin_mul_overflow(elements, chance->shape[i], &elements) || overflow;
    }
    unsigned item = SL_MAX(sl_dtype_row(tensor->dtype)->bits / 8, 1u);
    overflow = __builtin_mul_overflow(elements, item, &tensor->bytes) || overflow;
    if (overflow || empty)
        tensor->bytes = 0;
    if (overflow && !empty)
        tensor->rank = 1, chance->shape[0] = 0;
    tensor->meta = tensor->bytes > TENSOR_BYTES_MAX || (tensor->bytes && take(in) % 8 == 0);
}

static void seal(struct sl_layout_header *header, uint64_t bytes, uint8_t *data)
{
    static const uint8_t nonce[SL_NONCE_BYTES] = "a nonce";
    memcpy(header->data + header->nonce_at, nonce, sizeof(nonce));
    for (uint64_t i = 0; i < header->mac_count; i++) {
        uint64_t begin = i * header->piece_bytes;
        sl_crypt_seal(key, nonce, i, data + begin, data + begin,
                      SL_MIN(header->piece_bytes, bytes - begin),
                      header->data + header->macs_at + i * SL_MAC_BYTES);
    }
}

static void write_tensor(const struct sl_layout_place *place, uint8_t *file)
{
    struct sl_layout_header *header = place->header;
    uint8_t digest[32];
    if (place->bytes) {
        SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
        sl_sha256_update(sha, header->prefix, header->prefix_bytes);
        sl_sha256_update(sha, zeros, place->bytes);
        sl_sha256_finish(sha, digest);
        uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
        sl_layout_header_hashes(header, sl_crc32(crc, zeros, place->bytes), digest);
    }
    if (header->mac_count)
        seal(header, place->bytes, file + place->offset);
    memcpy(file + header->offset, header->data, header->bytes);
}

static bool same(const struct sl_tensor *a, const struct sl_tensor *b)
{
    bool equal = a->dtype == b->dtype && a->rank == b->rank && a->bytes == b->bytes &&
                 a->path_count == b->path_count &&
                 (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0);
    for (unsigned i = 0; equal && i < a->path_count; i++) {
        const struct sl_path_part *x = &a->path[i], *y = &b->path[i];
        equal = !x->text == !y->text && x->number == y->number && x->text_bytes == y->text_bytes &&
                (x->text_bytes == 0 || memcmp(x->text, y->text, x->text_bytes) == 0);
    }
    return equal;
}

static void must(bool right)
{
    if (!right)
        abort();
}

static void read_back(const struct sl_layout *layout, const uint8_t *file, bool encrypted)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_keys) keys = encrypted ? sl_keys_from_key(key, NULL) : NULL;
    SL_AUTO(sl_index) index = NULL;
    struct sl_source *source = NULL;
    sl_autofree char *name = NULL;
    uint8_t digest[32];
    must(sl_memory_put("x.tensors", file, layout->files[0].bytes, NULL) == 0 &&
         sl_store_open("memory:x.tensors", NULL, &store, &name, NULL) == 0 &&
         sl_source_open(store, name, SL_INDEX_HEAD_BYTES, &source, NULL) == 0);
    must(sl_format_index_strict(source, name, &index, NULL) == 0);
    must(sl_index_unlock(index, keys, NULL) == 0);
    must(index->tensor_count == layout->place_count);
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct sl_tensor *tensor = &index->tensors[i];
        must(same(layout->places[i].tensor, tensor));
        must(tensor->bytes > META_BYTES_MAX ||
             sl_tensor_digest(index, tensor, true, digest, NULL) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input in = {data, bytes};
    struct chance chances[TENSORS_MAX] = {0};
    const struct sl_tensor *tensors[TENSORS_MAX];
    SL_AUTO(sl_layout) layout = NULL;
    must(sl_crypt_init(NULL) == 0);
    size_t count = take(&in) % (TENSORS_MAX + 1);
    unsigned flags = take(&in);
    const struct sl_tensorizer_options options = {.encrypt = flags & 1,
                                                  .piece_bytes = flags & 2 ? 1024 : 0,
                                                  .align = flags & 4 ? 1u << (flags >> 4) : 0};
    for (size_t i = 0; i < count; i++) {
        take_path(&in, &chances[i]);
        take_shape(&in, &chances[i]);
        tensors[i] = &chances[i].tensor;
    }
    if (sl_tensorizer_layout(tensors, count, &options, &layout, NULL) < 0)
        return 0;
    sl_autofree uint8_t *file = sl_alloc(layout->files[0].bytes, NULL);
    must(file != NULL);
    memcpy(file, layout->files[0].head.data, layout->files[0].head.used);
    for (size_t i = 0; i < count; i++)
        write_tensor(&layout->places[i], file);
    read_back(layout, file, options.encrypt);
    sl_memory_clear();
    return 0;
}
