/* The expected bytes are found row by row, the slow and plain way. */
#include "form_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cast.h"
#include "hash.h"
#include "mapping.h"
#include "memory_store.h"
#include "plan_maker.h"
#include "stores.h"

enum { TENSORS_MAX = 64, PREFIX_BYTES = 5 };

struct made {
    struct sl_form_tensor wanted;
    uint64_t begin, bytes, taken;
    uint8_t *plain;
    uint8_t *macs;
    struct sl_crypt crypt;
    struct sl_index_hash hashes[2];
    uint64_t strides[4], out_shape[4], out_bytes, out_offset;
    struct sl_slice slice;
    char name[16];
};
struct sl_form {
    struct made *tensors[TENSORS_MAX];
    unsigned count;
    uint8_t *object, *image;
    uint64_t object_bytes, image_bytes;
    struct sl_spec spec;
    struct sl_plan *plan;
    struct sl_sink_file file;
};

static const uint8_t right_key[SL_KEY_BYTES] = "a key of thirty-two bytes, so it";
static const uint8_t nonce[SL_NONCE_BYTES] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 7};
static const uint8_t prefix[PREFIX_BYTES] = "head";

static void *must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

struct sl_form *sl_form_new(void)
{
    if (sl_crypt_init(NULL) < 0)
        abort();
    return must(calloc(1, sizeof(struct sl_form)));
}

void sl_form_free(struct sl_form *form)
{
    sl_plan_free(form->plan);
    for (unsigned i = 0; i < form->count; i++) {
        free(form->tensors[i]->plain);
        free(form->tensors[i]->macs);
        free(form->tensors[i]);
    }
    free(form->object);
    free(form->image);
    free(form);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static unsigned item(enum sl_dtype dtype)
{
    return sl_dtype_row(dtype)->bits / 8;
}

static void take_shape(struct made *made)
{
    const struct sl_form_tensor *wanted = &made->wanted;
    made->bytes = made->taken = item(wanted->dtype);
    for (unsigned i = 0; i < wanted->rank; i++) {
        made->slice.begin[i] = wanted->sliced ? wanted->begin[i] : 0;
        made->slice.end[i] = wanted->sliced ? wanted->end[i] : wanted->shape[i];
        made->out_shape[i] = made->slice.end[i] - made->slice.begin[i];
        made->bytes *= wanted->shape[i];
        made->taken *= made->out_shape[i];
    }
    uint64_t stride = 1;
    for (unsigned i = 0; i < wanted->rank; i++) {
        unsigned dim = wanted->turned ? i : wanted->rank - 1 - i;
        made->strides[dim] = stride;
        stride *= wanted->shape[dim];
    }
    made->out_bytes =
        made->taken / item(wanted->dtype) * item(wanted->cast ? wanted->cast : wanted->dtype);
}

static void hash_it(struct made *made)
{
    struct sl_sha256 *sha = must(sl_sha256_new(NULL));
    sl_sha256_update(sha, prefix, sizeof(prefix));
    sl_sha256_update(sha, made->plain, made->bytes);
    sl_sha256_finish(sha, made->hashes[1].expected);
    sl_sha256_free(sha);
    uint32_t crc = sl_crc32(sl_crc32(0, prefix, sizeof(prefix)), made->plain, made->bytes);
    for (int i = 0; i < 4; i++)
        made->hashes[0].expected[i] = (uint8_t)(crc >> (24 - 8 * i));
    made->hashes[1].sha256 = true;
    for (int i = 0; i < 2; i++) {
        made->hashes[i].prefix = prefix;
        made->hashes[i].prefix_bytes = sizeof(prefix);
    }
}

static void seal(struct made *made, uint8_t *at)
{
    uint64_t piece = made->wanted.piece_bytes ? made->wanted.piece_bytes : made->bytes;
    uint64_t count = (made->bytes + piece - 1) / piece;
    made->macs = must(calloc(count + 1, SL_MAC_BYTES));
    made->crypt = (struct sl_crypt){
        .piece_bytes = piece, .mac_count = count, .nonce = nonce, .macs = made->macs};
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bytes = SL_MIN(piece, made->bytes - i * piece);
        sl_crypt_seal(right_key, nonce, i, at + i * piece, at + i * piece, bytes,
                      made->macs + i * SL_MAC_BYTES);
    }
}

static void append_image(struct sl_form *form, struct made *made)
{
    const struct sl_form_tensor *wanted = &made->wanted;
    unsigned in = item(wanted->dtype), out = item(wanted->cast ? wanted->cast : wanted->dtype);
    uint64_t at[4] = {0}, row = wanted->rank ? made->out_shape[wanted->rank - 1] : 1;
    made->out_offset = form->image_bytes + wanted->gap % 3 * 8;
    form->image_bytes = made->out_offset + made->out_bytes;
    form->image = must(realloc(form->image, form->image_bytes + 1));
    memset(form->image + made->out_offset - wanted->gap % 3 * 8, 0, wanted->gap % 3 * 8);
    uint8_t *elements = must(malloc(row * in + 1));
    for (uint64_t i = 0; i < made->taken / in; i += row) {
        uint8_t *to = form->image + made->out_offset + i * out;
        for (uint64_t j = 0; j < row; j++) {
            uint64_t place = 0;
            for (unsigned d = 0; d < wanted->rank; d++)
                place += made->strides[d] *
                         (made->slice.begin[d] + at[d] + (d + 1 == wanted->rank ? j : 0));
            memcpy(elements + j * in, made->plain + place * in, in);
        }
        if (wanted->swapped)
            sl_swap_bytes(elements, in, row);
        if (wanted->cast)
            sl_cast(wanted->dtype, wanted->cast, SL_CAST_IEEE, elements, to, row);
        else
            memcpy(to, elements, row * in);
        for (unsigned d = wanted->rank; d-- > 1 && ++at[d - 1] == made->out_shape[d - 1];)
            at[d - 1] = 0;
    }
    free(elements);
}

void sl_form_add(struct sl_form *form, const struct sl_form_tensor *tensor)
{
    if (form->count == TENSORS_MAX)
        abort();
    struct made *made = form->tensors[form->count++] = must(calloc(1, sizeof(*made)));
    made->wanted = *tensor;
    snprintf(made->name, sizeof(made->name), "t%u", form->count - 1);
    take_shape(made);
    made->begin = form->object_bytes + tensor->gap;
    made->plain = must(malloc(made->bytes + 1));
    sl_made_noise(made->plain, made->bytes, form->count);
    hash_it(made);
    form->object = must(realloc(form->object, made->begin + made->bytes + 1));
    memset(form->object + form->object_bytes, 0x55, tensor->gap);
    memcpy(form->object + made->begin, made->plain, made->bytes);
    form->object_bytes = made->begin + made->bytes;
    append_image(form, made);
    if (tensor->encrypted)
        seal(made, form->object + made->begin);
}

/* ---- chance ---------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 8;
}

static void random_tensor(struct sl_form *form, uint64_t *state, bool encrypted)
{
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16,     SL_DTYPE_BF16,
                                          SL_DTYPE_U8,  SL_DTYPE_F64,     SL_DTYPE_I64,
                                          SL_DTYPE_F32, SL_DTYPE_F8_E4M3, SL_DTYPE_F8_E5M2};
    static const uint64_t pieces[] = {0, 1024, 1024, 4096, 65536, 2 << 20};
    static const unsigned limits[] = {1, 2000, 300, 60, 20};
    struct sl_form_tensor wanted = {.dtype = types[next(state) % SL_COUNT(types)],
                                    .rank = (unsigned)(next(state) % 5),
                                    .encrypted = encrypted,
                                    .piece_bytes = pieces[next(state) % SL_COUNT(pieces)],
                                    .crc32 = next(state) % 2,
                                    .sha256 = next(state) % 2,
                                    .gap = next(state) % 4 ? next(state) % 400 : 0};
    enum sl_dtype cast = types[next(state) % SL_COUNT(types)];
    if (next(state) % 2 && cast != wanted.dtype && sl_cast_offered(wanted.dtype, cast))
        wanted.cast = cast;
    wanted.swapped = !encrypted && next(state) % 5 == 0 && item(wanted.dtype) > 1;
    wanted.turned = !encrypted && wanted.rank > 1 && next(state) % 4 == 0;
    wanted.crc32 = wanted.crc32 && !wanted.turned; /* nobody hashes those */
    wanted.sha256 = wanted.sha256 && !wanted.turned;
    wanted.sliced = next(state) % 3 == 0;
    for (unsigned i = 0; i < wanted.rank; i++) {
        uint64_t parts = 1 + next(state) % 8,
                 size = parts * (1 + next(state) % (limits[wanted.rank] / 8 + 1));
        uint64_t rank = next(state) % parts;
        bool whole = next(state) % 2;
        wanted.shape[i] = size;
        wanted.begin[i] = whole ? 0 : size / parts * rank;
        wanted.end[i] = whole ? size : size / parts * (rank + 1);
    }
    sl_form_add(form, &wanted);
}

void sl_form_add_random(struct sl_form *form, unsigned seed, bool encrypted)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        next(&state);
    unsigned count = 1 + (unsigned)(next(&state) % 12);
    for (unsigned i = 0; i < count; i++)
        random_tensor(form, &state, encrypted);
}

/* ---- the plan -------------------------------------------------------------------------------- */

uint8_t *sl_form_object(struct sl_form *form, size_t *bytes)
{
    *bytes = form->object_bytes;
    return form->object;
}

uint64_t sl_form_begin(const struct sl_form *form, unsigned number)
{
    return form->tensors[number]->begin;
}

const uint8_t *sl_form_plaintext(const struct sl_form *form, unsigned number, size_t *bytes)
{
    *bytes = form->tensors[number]->bytes;
    return form->tensors[number]->plain;
}

static void index_tensor(struct sl_index *index, struct made *made, const uint8_t *key)
{
    struct sl_tensor *tensor = must(sl_index_add_tensor(index, NULL));
    const struct sl_form_tensor *wanted = &made->wanted;
    tensor->name = made->name;
    tensor->name_bytes = strlen(made->name);
    tensor->dtype = wanted->dtype;
    tensor->dtype_name = sl_dtype_row(wanted->dtype)->name;
    tensor->rank = wanted->rank;
    tensor->shape = wanted->shape;
    tensor->bytes = made->bytes;
    tensor->begin = made->begin;
    tensor->end = made->begin + made->bytes;
    tensor->strides = wanted->turned ? made->strides : NULL;
    tensor->swap_bytes = wanted->swapped ? item(wanted->dtype) : 0;
    tensor->encrypted = wanted->encrypted;
    tensor->crypt = wanted->encrypted ? &made->crypt : NULL;
    tensor->key = wanted->encrypted ? key : NULL;
    tensor->hashes = wanted->crc32 ? made->hashes : made->hashes + 1;
    tensor->hash_count = wanted->crc32 + wanted->sha256;
}

static struct sl_target make_target(struct sl_index *index, const struct made *made,
                                    unsigned number)
{
    const struct sl_tensor *from = &index->tensors[number];
    struct sl_target target = {.out = *from, .from = from, .index = index};
    enum sl_dtype dtype = made->wanted.cast ? made->wanted.cast : made->wanted.dtype;
    target.out.dtype = dtype;
    target.out.dtype_name = sl_dtype_row(dtype)->name;
    target.out.shape = made->out_shape;
    target.out.bytes = made->out_bytes;
    target.slice = made->wanted.sliced ? &made->slice : NULL;
    return target;
}

static void open_source(struct sl_form *form, struct sl_index *index,
                        const struct sl_form_options *wanted)
{
    static const struct sl_source_config none;
    struct sl_source *source;
    struct sl_plan_own *own = form->plan->own;
    char *key = NULL;
    if (!wanted->uri && sl_memory_put("formed", form->object, form->object_bytes, NULL) < 0)
        abort();
    if (sl_store_open(wanted->uri ? wanted->uri : "memory:formed",
                      wanted->config ? wanted->config : &none, &own->store, &key, NULL) < 0 ||
        sl_source_open(own->store, key, 1, &source, NULL) < 0 ||
        sl_index_add_source(index, source, NULL) < 0)
        abort();
    free(key);
    free(index->source_names[0]);
    index->source_names[0] = must(strdup("formed"));
    form->plan->sources = must(calloc(1, sizeof(*form->plan->sources)));
    form->plan->sources[0] = (struct sl_plan_source){source, index, "formed"};
    form->plan->source_count = 1;
}

static void fill_plan(struct sl_form *form, const struct sl_form_options *wanted)
{
    struct sl_plan *plan = form->plan;
    struct sl_index *index = must(sl_index_new("formed", NULL));
    plan->own->candidates = must(calloc(1, sizeof(*plan->own->candidates)));
    plan->own->candidate_count = 1;
    plan->own->candidates[0].index = index;
    open_source(form, index, wanted);
    for (unsigned i = 0; i < form->count; i++)
        index_tensor(index, form->tensors[i], wanted->key ? wanted->key : right_key);
    plan->targets = must(calloc(form->count, sizeof(*plan->targets)));
    plan->mappings = must(calloc(form->count, sizeof(*plan->mappings)));
    for (unsigned i = 0; i < form->count; i++)
        plan->targets[plan->target_count++] = make_target(index, form->tensors[i], i);
    plan->files = must(calloc(1, sizeof(*plan->files)));
    plan->files[0] = (struct sl_plan_file){must(strdup("formed")), form->image_bytes};
    plan->file_count = 1;
    form->file = (struct sl_sink_file){plan->files[0].name, form->image_bytes};
}

int sl_form_plan(struct sl_form *form, const struct sl_form_options *wanted, struct sl_err *err)
{
    form->plan = must(calloc(1, sizeof(*form->plan)));
    form->plan->own = must(calloc(1, sizeof(*form->plan->own)));
    form->plan->own->spec = &form->spec;
    form->spec.verify.hashes = wanted->hashes;
    form->spec.readers.range_bytes = wanted->range_bytes;
    form->spec.readers.slices = wanted->least_bytes ? SL_SLICES_LEAST_BYTES : SL_SLICES_AUTO;
    form->plan->own->output.layout = SL_LAYOUT_SAFETENSORS;
    fill_plan(form, wanted);
    for (unsigned i = 0; i < form->count; i++)
        if (sl_plan_place(form->plan, &form->plan->targets[i], 0, form->tensors[i]->out_offset,
                          err) < 0)
            return -1;
    return sl_plan_check(form->plan, err) < 0 || sl_plan_cut(form->plan, err) < 0 ? -1 : 0;
}

struct sl_plan *sl_form_planned(struct sl_form *form)
{
    return form->plan;
}

const struct sl_sink_file *sl_form_file(const struct sl_form *form)
{
    return &form->file;
}

bool sl_form_matches(const struct sl_form *form, struct sl_sink *sink)
{
    uint8_t *data = must(malloc(form->image_bytes + 1));
    bool same = sl_sink_read(sink, 0, 0, data, form->image_bytes, NULL) == 0 &&
                memcmp(data, form->image, form->image_bytes) == 0;
    free(data);
    return same;
}

uint64_t sl_form_taken(const struct sl_form *form)
{
    uint64_t taken = 0;
    for (unsigned i = 0; i < form->count; i++)
        taken += form->tensors[i]->taken;
    return taken;
}
