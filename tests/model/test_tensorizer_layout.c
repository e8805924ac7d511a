/*
 * The tensorizer layout: every file of the reference writer is built again bit for bit from its
 * tensors, keys and nonces; what it never writes is read back by our reader or refused.
 */
#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "layout.h"
#include "memory_store.h"

enum { METADATA_AT = 73, METADATA_BYTES = 256 * 1024, VALID_FILES = 32 };

/* ---- writing a file from a layout ------------------------------------------------------------ */

/* How the data of one tensor come to be: from the caller. */
struct content {
    const uint8_t *plain;
    const uint8_t *key; /* NULL: not encrypted */
    uint8_t nonce[crypto_secretbox_NONCEBYTES];
};

static void seal(const struct sl_layout_place *place, const struct content *content, uint8_t *out)
{
    struct sl_layout_header *header = place->header;
    uint8_t nonce[crypto_secretbox_NONCEBYTES];
    memcpy(header->data + header->nonce_at, content->nonce, sizeof(nonce));
    memcpy(nonce, content->nonce, sizeof(nonce));
    for (uint64_t i = 0; i < header->mac_count; i++) {
        uint64_t begin = i * header->piece_bytes;
        uint64_t bytes = SL_MIN(header->piece_bytes, place->bytes - begin);
        crypto_secretbox_detached(out + begin, header->data + header->macs_at + i * SL_MAC_BYTES,
                                  content->plain + begin, bytes, nonce, content->key);
        sodium_increment(nonce, sizeof(nonce));
    }
}

static void write_tensor(const struct sl_layout_place *place, const struct content *content,
                         uint8_t *file)
{
    struct sl_layout_header *header = place->header;
    uint8_t sha256[32];
    if (place->bytes > 0) {
        struct sl_sha256 *sha = sl_sha256_new(NULL);
        sl_sha256_update(sha, header->prefix, header->prefix_bytes);
        sl_sha256_update(sha, content->plain, place->bytes);
        sl_sha256_finish(sha, sha256);
        sl_sha256_free(sha);
        uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
        sl_layout_header_hashes(header, sl_crc32(crc, content->plain, place->bytes), sha256);
        if (header->mac_count)
            seal(place, content, file + place->offset);
        else
            memcpy(file + place->offset, content->plain, place->bytes);
    }
    memcpy(file + header->offset, header->data, header->bytes);
}

/* The whole file; contents belong to the places in order. free() it. */
static uint8_t *write_file(const struct sl_layout *layout, const struct content *contents)
{
    const struct sl_layout_file *file = &layout->files[0];
    uint8_t *data = calloc(1, file->bytes);
    ck_assert_ptr_nonnull(data);
    memcpy(data, file->head.data, file->head.used);
    for (size_t i = 0; i < layout->place_count; i++)
        write_tensor(&layout->places[i], &contents[i], data);
    return data;
}

/* ---- golden files ---------------------------------------------------------------------------- */

static void unhex(const json_t *object, const char *key, uint8_t *out, size_t bytes)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_int_eq(sl_unhex(json_string_value(value), out, bytes), 0);
}

/* A golden file taken apart. */
struct parts {
    uint8_t *data;
    size_t bytes, count;
    struct golden_open open;
    json_t *sidecar;
    struct sl_tensor *tensors;
    const struct sl_tensor **pointers;
    struct content *contents;
    uint8_t key[crypto_secretbox_KEYBYTES];
    struct sl_kdf kdf;
    struct sl_tensorizer_options options;
};

static void take_keys(struct parts *parts)
{
    const json_t *how = json_object_get(parts->sidecar, "encryption");
    if (!json_is_object(how))
        return;
    parts->options.encrypt = true;
    if (json_object_get(how, "key_hex")) {
        unhex(how, "key_hex", parts->key, sizeof(parts->key));
        return;
    }
    unhex(how, "derived_key_hex", parts->key, sizeof(parts->key));
    unhex(how, "salt_hex", parts->kdf.salt, SL_SALT_BYTES);
    parts->kdf.salt_bytes = SL_SALT_BYTES;
    parts->kdf.opslimit = (uint64_t)json_integer_value(json_object_get(how, "opslimit"));
    parts->kdf.memlimit = (uint64_t)json_integer_value(json_object_get(how, "memlimit"));
    parts->kdf.alg = (int32_t)json_integer_value(json_object_get(how, "alg"));
    parts->options.kdf = &parts->kdf;
}

/* Decrypt in place what the sidecar says how to. */
static void open_data(struct parts *parts, const json_t *chunk, struct content *content,
                      uint8_t *data, uint64_t bytes)
{
    uint8_t nonce[crypto_secretbox_NONCEBYTES], mac[crypto_secretbox_MACBYTES];
    uint64_t piece = (uint64_t)json_integer_value(json_object_get(chunk, "chunk_size"));
    const json_t *macs = json_object_get(chunk, "macs");
    unhex(chunk, "nonce", nonce, sizeof(nonce));
    memcpy(content->nonce, nonce, sizeof(nonce));
    content->key = parts->key;
    parts->options.piece_bytes = piece;
    for (size_t i = 0; i < json_array_size(macs); i++) {
        uint8_t *at = data + i * piece;
        sl_unhex(json_string_value(json_array_get(macs, i)), mac, sizeof(mac));
        ck_assert_int_eq(crypto_secretbox_open_detached(
                             at, at, mac, SL_MIN(piece, bytes - i * piece), nonce, parts->key),
                         0);
        sodium_increment(nonce, sizeof(nonce));
    }
}

static void take_tensor(struct parts *parts, size_t i, uint8_t *plain)
{
    struct sl_tensor *tensor = &parts->tensors[i];
    const json_t *row = json_array_get(json_object_get(parts->sidecar, "tensors"), i);
    const json_t *crypt = json_object_get(row, "crypt");
    *tensor = parts->open.index->tensors[i];
    tensor->refused = 0;
    parts->pointers[i] = tensor;
    parts->contents[i].plain = plain + tensor->begin;
    if (crypt && tensor->begin < tensor->end)
        open_data(parts, json_array_get(crypt, json_array_size(crypt) - 1), &parts->contents[i],
                  plain + tensor->begin, tensor->end - tensor->begin);
}

static void take_apart(struct parts *parts, const char *name)
{
    char path[300];
    struct sl_err err = SL_ERR_INIT;
    memset(parts, 0, sizeof(*parts));
    snprintf(path, sizeof(path), "tensorizer/%s.tensors.gz", name);
    parts->data = golden_read(path, &parts->bytes);
    snprintf(path, sizeof(path), "tensorizer/%s.json", name);
    parts->sidecar = golden_json(path);
    ck_assert_msg(golden_index(&parts->open, "x.tensors", parts->data, parts->bytes, &err) == 0,
                  "%s: %s", name, err.message);
    parts->count = parts->open.index->tensor_count;
    parts->tensors = calloc(parts->count, sizeof(*parts->tensors));
    parts->pointers = calloc(parts->count, sizeof(*parts->pointers));
    parts->contents = calloc(parts->count, sizeof(*parts->contents));
    uint8_t *plain = malloc(parts->bytes);
    memcpy(plain, parts->data, parts->bytes);
    take_keys(parts);
    for (size_t i = 0; i < parts->count; i++)
        take_tensor(parts, i, plain);
    ck_assert_int_eq(sl_index_keep(parts->open.index, plain, NULL), 0);
}

static void put_away(struct parts *parts)
{
    golden_release(&parts->open);
    sl_memory_clear();
    json_decref(parts->sidecar);
    free(parts->tensors);
    free(parts->pointers);
    free(parts->contents);
    free(parts->data);
}

static void rebuild(const char *name, uint64_t align)
{
    struct parts parts;
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_layout) layout = NULL;
    take_apart(&parts, name);
    parts.options.align = align;
    ck_assert_msg(
        sl_tensorizer_layout(parts.pointers, parts.count, &parts.options, &layout, &err) == 0,
        "%s: %s", name, err.message);
    ck_assert_uint_eq(layout->files[0].bytes, parts.bytes);
    uint8_t *file = write_file(layout, parts.contents);
    size_t same = 0;
    while (same < parts.bytes && file[same] == parts.data[same])
        same++;
    ck_assert_msg(same == parts.bytes, "%s differs from byte %zu on", name, same);
    free(file);
    put_away(&parts);
}

SL_TEST(every_valid_golden_file_is_rebuilt_bit_for_bit)
{
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned rebuilt = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        const char *category = json_string_value(json_object_get(file, "category"));
        if (strcmp(category, "valid") != 0 || strcmp(name, "v4-meta-0d") == 0)
            continue; /* that one has hashes over memory that its writer never set */
        rebuild(name, 0);
        rebuilt++;
    }
    json_decref(manifest);
    ck_assert_uint_eq(rebuilt, VALID_FILES);
}

SL_TEST(aligned_files_are_those_that_every_release_was_tried_with)
{
    rebuild("tolerated-aligned-4096", 4096);
    rebuild("tolerated-encrypted-aligned", 512);
}

/* ---- made-up tensors ------------------------------------------------------------------------- */

static const uint64_t shape_12[] = {3, 4}, shape_long[] = {0, UINT64_C(1) << 32};
static const struct sl_path_part deep_path[] = {
    {.text = "a", .text_bytes = 1},
    {.number = 7},
    {.text = "\xc3\xa9\xf0\x9f\x98\x80\"\\/\x7f\x01\n\0", .text_bytes = 13},
};

static struct sl_tensor vector(const char *name)
{
    return (struct sl_tensor){.name = name,
                              .name_bytes = strlen(name),
                              .dtype = SL_DTYPE_F32,
                              .dtype_name = "F32",
                              .rank = 2,
                              .shape = shape_12,
                              .bytes = 48};
}

static struct sl_layout *lay(const struct sl_tensor *tensor,
                             const struct sl_tensorizer_options *options)
{
    struct sl_layout *layout = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_tensorizer_layout(&tensor, 1, options, &layout, &err) == 0, "%s", err.message);
    return layout;
}

static void check_version(struct sl_tensor tensor, bool encrypt, unsigned version, unsigned flags)
{
    const struct sl_tensorizer_options options = {.encrypt = encrypt};
    SL_AUTO(sl_layout) layout = lay(&tensor, &options);
    const uint8_t *head = (const uint8_t *)layout->files[0].head.data;
    ck_assert_uint_eq(sl_get_le32(head + 5), version);
    ck_assert_uint_eq(head[9], flags);
}

SL_TEST(the_version_is_the_lowest_that_can_say_it)
{
    struct sl_tensor tensor = vector("a");
    check_version(tensor, false, 1, 0);
    check_version(tensor, true, 3, 0);
    tensor.dtype = SL_DTYPE_BF16, tensor.bytes = 24;
    check_version(tensor, false, 2, 0);
    check_version(tensor, true, 3, 0);
    tensor.meta = true;
    check_version(tensor, false, 4, 0);
    check_version(tensor, true, 4, 1);
    tensor.meta = false, tensor.shape = shape_long, tensor.bytes = 0;
    check_version(tensor, false, 5, 2);
    check_version(tensor, true, 5, 3);
    tensor = vector("a");
    tensor.meta = true, tensor.rank = 0, tensor.bytes = 4;
    check_version(tensor, false, 1, 0); /* it becomes a zero with data */
}

static const uint8_t zeros[64 * 1024];

/* Lay out, write with zeros for data, index and check all hashes. */
static void read_back(const struct sl_tensor *const *tensors, size_t count,
                      const struct sl_tensorizer_options *options, struct golden_open *open,
                      uint8_t **file, struct sl_layout **layout)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t digest[32];
    ck_assert_msg(sl_tensorizer_layout(tensors, count, options, layout, &err) == 0, "%s",
                  err.message);
    struct content *contents = calloc(count, sizeof(*contents));
    for (size_t i = 0; i < count; i++)
        contents[i].plain = zeros;
    *file = write_file(*layout, contents);
    free(contents);
    ck_assert_msg(golden_index(open, "x.tensors", *file, (*layout)->files[0].bytes, &err) == 0,
                  "%s", err.message);
    ck_assert_uint_eq(open->index->tensor_count, count);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(sl_tensor_digest(open->index, &open->index->tensors[i], true, digest, &err) ==
                          0,
                      "%s", err.message);
}

static void forget(struct golden_open *open, uint8_t *file)
{
    golden_release(open);
    sl_memory_clear();
    free(file);
}

SL_TEST(metadata_beyond_256_kib_get_a_larger_block)
{
    enum { COUNT = 3000, NAME_BYTES = 100 };
    static char names[COUNT][NAME_BYTES];
    static struct sl_tensor tensors[COUNT];
    static const struct sl_tensor *pointers[COUNT];
    struct golden_open open;
    uint8_t *file;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(names[i], NAME_BYTES, "model.layers.%zu.a_rather_long_name_of_a_module.weight", i);
        tensors[i] = vector(names[i]);
        pointers[i] = &tensors[i];
    }
    SL_AUTO(sl_layout) layout = NULL;
    read_back(pointers, COUNT, NULL, &open, &file, &layout);
    uint64_t metadata = sl_get_le64(file + 65);
    ck_assert_uint_gt(metadata, METADATA_BYTES);
    ck_assert_uint_eq(metadata % 4096, 0);
    ck_assert_uint_eq(layout->files[0].head.used, METADATA_AT + metadata);
    forget(&open, file);
}

SL_TEST(data_begin_where_align_says)
{
    const struct sl_tensor tensors[] = {vector("a"), vector("bb"), vector("ccc")};
    const struct sl_tensor *pointers[] = {&tensors[0], &tensors[1], &tensors[2]};
    for (uint64_t align = 1; align <= 4096; align *= 2) {
        const struct sl_tensorizer_options options = {.align = align};
        struct golden_open open;
        uint8_t *file;
        SL_AUTO(sl_layout) layout = NULL;
        read_back(pointers, 3, &options, &open, &file, &layout);
        for (size_t i = 0; i < 3; i++)
            ck_assert_uint_eq(open.index->tensors[i].begin % align, 0);
        forget(&open, file);
    }
}

SL_TEST(a_path_of_several_parts_is_spelled_as_the_reference_spells_it)
{
    static const char expected[] = "\x1e[\"a\",7,\"\\u00e9\\ud83d\\ude00\\\"\\\\/\x7f\\u0001\\n"
                                   "\\u0000\"]";
    struct sl_tensor tensor = vector("shown");
    const struct sl_tensor *pointers[] = {&tensor};
    tensor.path = deep_path, tensor.path_count = 3;
    tensor.role = SL_ROLE_PARAMETER; /* no such thing with a JSON name: an entry */
    struct golden_open open;
    uint8_t *file;
    SL_AUTO(sl_layout) layout = NULL;
    read_back(pointers, 1, NULL, &open, &file, &layout);
    ck_assert_uint_eq(sl_get_le16(file + METADATA_AT), sizeof(expected) - 1);
    ck_assert_int_eq(memcmp(file + METADATA_AT + 2, expected, sizeof(expected) - 1), 0);
    ck_assert_uint_eq(open.index->tensors[0].path_count, 3);
    ck_assert_uint_eq(open.index->tensors[0].path[2].text_bytes, 13);
    ck_assert_int_eq(memcmp(open.index->tensors[0].path[2].text, deep_path[2].text, 13), 0);
    ck_assert_int_eq(open.index->tensors[0].role, SL_ROLE_ENTRY);
    forget(&open, file);
}

SL_TEST(meta_tensors_stay_meta_and_scalars_become_a_zero)
{
    struct sl_tensor wide = vector("wide"), scalar = vector("scalar");
    const struct sl_tensor *pointers[] = {&wide, &scalar};
    wide.meta = scalar.meta = true;
    scalar.rank = 0, scalar.bytes = 4;
    struct golden_open open;
    uint8_t *file;
    SL_AUTO(sl_layout) layout = NULL;
    read_back(pointers, 2, NULL, &open, &file, &layout);
    ck_assert(open.index->tensors[0].meta && !open.index->tensors[1].meta);
    ck_assert_uint_eq(layout->places[0].bytes, 0);
    ck_assert_uint_eq(layout->places[1].bytes, 4);
    ck_assert_uint_eq(sl_get_le64(file + 41), 4); /* tensor_size */
    forget(&open, file);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void check_refused(const struct sl_tensor *a, const struct sl_tensor *b, const char *code)
{
    const struct sl_tensor *tensors[] = {a, b};
    SL_AUTO(sl_layout) layout = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_tensorizer_layout(tensors, b ? 2 : 1, NULL, &layout, &err), 0);
    ck_assert_msg(strcmp(err.code, code) == 0, "%s instead of %s: %s", err.code, code, err.message);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
}

static void check_name_refused(const char *name, size_t bytes)
{
    struct sl_tensor tensor = vector("");
    tensor.name = name;
    tensor.name_bytes = bytes;
    check_refused(&tensor, NULL, "E_NAME");
}

SL_TEST(names_that_break_the_rules_are_refused)
{
    char *large = malloc(65537);
    memset(large, 'x', 65536);
    large[65536] = '\0';
    check_name_refused("", 0);
    check_name_refused("\x1e[\"a\"]", 6);
    check_name_refused("\xed\xa0\x80", 3);
    check_name_refused(large, 65536);
    struct sl_tensor tensor = vector("x");
    tensor.name = large, tensor.name_bytes = 65535;
    SL_AUTO(sl_layout) layout = lay(&tensor, NULL);
    const struct sl_path_part parts[] = {{.text = large, .text_bytes = 65527},
                                         {.number = 10}}; /* 1e [ " " , 10 ] */
    tensor = vector("x");
    tensor.path = parts, tensor.path_count = 2;
    SL_AUTO(sl_layout) other = lay(&tensor, NULL);
    const struct sl_path_part longer[] = {{.text = large, .text_bytes = 65527}, {.number = 100}};
    tensor.path = longer;
    check_refused(&tensor, NULL, "E_NAME");
    free(large);
}

SL_TEST(paths_that_conflict_are_refused)
{
    static const struct sl_path_part inner[] = {{.text = "a", .text_bytes = 1}, {.number = 1}};
    static const struct sl_path_part number[] = {{.number = 1}};
    struct sl_tensor a = vector("a"), b = vector("a"), nested = vector("n"), list = vector("l");
    nested.path = inner, nested.path_count = 2;
    list.path = number, list.path_count = 1;
    check_refused(&a, &b, "E_DUPLICATE");
    check_refused(&a, &nested, "E_NAME");
    check_refused(&a, &list, "E_NAME");
}

SL_TEST(types_and_shapes_without_a_place_are_refused)
{
    static uint64_t ones[65];
    struct sl_tensor tensor = vector("a");
    tensor.dtype = SL_DTYPE_F4;
    check_refused(&tensor, NULL, "E_DTYPE");
    tensor.dtype = SL_DTYPE_Q4_0;
    check_refused(&tensor, NULL, "E_DTYPE");
    tensor = vector("a");
    tensor.rank = 65, tensor.shape = ones, tensor.bytes = 0;
    check_refused(&tensor, NULL, "E_METADATA");
    tensor.rank = 64;
    SL_AUTO(sl_layout) layout = lay(&tensor, NULL);
    tensor = vector("a");
    tensor.refused = SL_E_FORMAT, tensor.refused_code = "E_KEY_REQUIRED";
    tensor.refused_why = "no key";
    check_refused(&tensor, NULL, "E_KEY_REQUIRED");
    struct sl_layout *none = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_tensorizer_layout(NULL, 0, NULL, &none, &err), 0);
    ck_assert_str_eq(err.code, "E_EMPTY");
}

SL_TEST(options_out_of_their_range_are_refused)
{
    const struct sl_kdf kdf = {.salt_bytes = 8};
    const struct sl_tensorizer_options bad[] = {
        {.align = 3},       {.align = 2 * SL_TENSORIZER_ALIGN_MAX},      {.piece_bytes = 512},
        {.piece_bytes = 1}, {.encrypt = true, .piece_bytes = 1024 + 32}, {.kdf = &kdf},
    };
    const struct sl_tensor tensor = vector("a"), *pointer = &tensor;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_layout *layout = NULL;
        ck_assert_int_lt(sl_tensorizer_layout(&pointer, 1, &bad[i], &layout, NULL), 0);
    }
    struct sl_tensor huge = vector("a");
    static const uint64_t shape[] = {UINT64_C(1) << 40};
    huge.dtype = SL_DTYPE_U8, huge.rank = 1, huge.shape = shape, huge.bytes = shape[0];
    pointer = &huge;
    struct sl_layout *layout = NULL;
    struct sl_err err = SL_ERR_INIT;
    const struct sl_tensorizer_options small = {.encrypt = true, .piece_bytes = 1024};
    ck_assert_int_lt(sl_tensorizer_layout(&pointer, 1, &small, &layout, &err), 0);
    ck_assert_str_eq(err.code, "E_HEADER"); /* 16 GiB of MACs */
}

static int lay_out(void *arg, struct sl_err *err)
{
    const struct parts *parts = arg;
    SL_AUTO(sl_layout) layout = NULL;
    return sl_tensorizer_layout(parts->pointers, parts->count, &parts->options, &layout, err);
}

SL_TEST(every_failing_allocation_is_reported)
{
    static const char *const names[] = {"v1-tree", "v4-meta-encrypted", "v3-passphrase-min"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct parts parts;
        take_apart(&parts, names[i]);
        ck_assert_uint_gt(golden_each_allocation(lay_out, &parts), 6);
        put_away(&parts);
    }
}

static bool prepare(void)
{
    if (sodium_init() < 0)
        abort();
    return true;
}

SL_CASE(.prepare = prepare)
