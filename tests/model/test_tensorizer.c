/*
 * tensorizer: every golden file exactly, prefixes of them, every length field one off, every
 * failing call; encrypted ones with their key or passphrase.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"

enum { METADATA_AT = 73 };

static uint8_t *read_tensors(const char *name, size_t *bytes)
{
    char path[300];
    snprintf(path, sizeof(path), "tensorizer/%s.tensors.gz", name);
    return golden_read(path, bytes);
}

static json_t *read_sidecar(const char *name)
{
    char path[300];
    snprintf(path, sizeof(path), "tensorizer/%s.json", name);
    return golden_json(path);
}

/* What the sidecar says that its file is opened with; NULL: nothing. Free them. */
static struct sl_keys *sidecar_keys(const json_t *sidecar)
{
    const json_t *encryption = json_object_get(sidecar, "encryption");
    const char *key_hex = json_string_value(json_object_get(encryption, "key_hex")),
               *hex = json_string_value(json_object_get(encryption, "passphrase_hex"));
    uint8_t bytes[256];
    if (key_hex) {
        ck_assert_int_eq(sl_unhex(key_hex, bytes, SL_KEY_BYTES), 0);
        return sl_keys_from_key(bytes, NULL);
    }
    if (!hex)
        return NULL;
    ck_assert_int_eq(sl_unhex(hex, bytes, strlen(hex) / 2), 0);
    return sl_keys_from_passphrase(bytes, strlen(hex) / 2, NULL);
}

static struct sl_keys *keys_of(const char *name)
{
    json_t *sidecar = read_sidecar(name);
    struct sl_keys *keys = sidecar_keys(sidecar);
    json_decref(sidecar);
    return keys;
}

/* Index, unlock and, if that works, digest everything. */
static int ignore_digest(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                         struct sl_err *err)
{
    (void)tensor, (void)digest, (void)err;
    ++*(unsigned *)arg;
    return 0;
}

static int open_and_digest(const uint8_t *data, size_t bytes, struct sl_keys *keys, bool verify,
                           struct sl_err *err)
{
    struct golden_open open;
    unsigned digests = 0;
    int result = golden_index(&open, "x.tensors", data, bytes, err);
    if (result == 0)
        result = sl_index_unlock(open.index, keys, err);
    if (result == 0)
        result = sl_index_digest(open.index, verify, ignore_digest, &digests, err);
    if (result == 0)
        ck_assert_uint_eq(digests, open.index->tensor_count);
    golden_release(&open);
    return result;
}

static int index_and_digest(const uint8_t *data, size_t bytes, bool verify, struct sl_err *err)
{
    return open_and_digest(data, bytes, NULL, verify, err);
}

/* ---- golden files ---------------------------------------------------------------------------- */

static enum sl_err_kind kind_of(const char *code)
{
    if (strcmp(code, "E_KEY_REQUIRED") == 0)
        return SL_E_AUTH;
    if (strcmp(code, "E_NOT_ENCRYPTED") == 0)
        return SL_E_USAGE;
    bool hash = strncmp(code, "E_HASH_", 7) == 0 || strcmp(code, "E_DECRYPT") == 0;
    return hash ? SL_E_INTEGRITY : SL_E_FORMAT;
}

static void check_bad(const char *name, const json_t *sidecar)
{
    const json_t *expect = json_object_get(sidecar, "expect");
    const char *code = json_string_value(json_object_get(expect, "error"));
    struct sl_keys *keys = sidecar_keys(sidecar);
    size_t bytes;
    uint8_t *data = read_tensors(name, &bytes);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(open_and_digest(data, bytes, keys, true, &err) < 0, "%s is not refused", name);
    ck_assert_msg(strcmp(err.code, code) == 0, "%s: %s instead of %s: %s", name, err.code, code,
                  err.message);
    ck_assert_int_eq(err.kind, kind_of(code));
    if (json_is_true(json_object_get(expect, "needs_verify"))) {
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_msg(open_and_digest(data, bytes, keys, false, &err) == 0, "%s: %s", name,
                      err.message);
    }
    sl_keys_free(keys);
    free(data);
}

static void check_roles(const struct sl_index *index, const json_t *tensors)
{
    static const char *const roles[] = {"state_dict", "param", "buffer"};
    for (size_t i = 0; i < index->tensor_count; i++) {
        const json_t *expected = json_array_get(tensors, i);
        ck_assert_str_eq(roles[index->tensors[i].role],
                         json_string_value(json_object_get(expected, "type")));
        ck_assert_uint_eq(index->tensors[i].module_index,
                          json_integer_value(json_object_get(expected, "module_index")));
    }
}

static void check_good(const char *name, const json_t *sidecar)
{
    size_t bytes;
    uint8_t *data = read_tensors(name, &bytes);
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    bool encrypted = json_is_true(json_object_get(sidecar, "encrypted"));
    bool lies =
        strcmp(name, "v4-meta-0d") == 0; /* its stored hash is wrong, see the golden README */
    bool huge = strcmp(name, "v5-long-meta") == 0; /* 4 GiB of zeros */
    struct sl_keys *keys = sidecar_keys(sidecar);
    ck_assert_msg(golden_index(&open, name, data, bytes, &err) == 0, "%s: %s", name, err.message);
    ck_assert_msg(sl_index_unlock(open.index, keys, &err) == 0, "%s: %s", name, err.message);
    ck_assert_uint_eq(open.index->format_version,
                      (unsigned)json_integer_value(json_object_get(sidecar, "data_version")));
    ck_assert_int_eq(open.index->encrypted, encrypted);
    ck_assert_msg(golden_same(open.index, json_object_get(sidecar, "tensors"), !lies, !huge), "%s",
                  name);
    check_roles(open.index, json_object_get(sidecar, "tensors"));
    golden_release(&open);
    sl_keys_free(keys);
    free(data);
}

SL_TEST(golden_files_are_read_exactly_or_refused_with_their_code)
{
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned checked = 0;
    ck_assert(json_array_size(files) > 0);
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(files, i), "name"));
        json_t *sidecar = read_sidecar(name);
        if (json_object_get(sidecar, "expect"))
            check_bad(name, sidecar);
        else
            check_good(name, sidecar);
        checked++;
        json_decref(sidecar);
    }
    ck_assert_uint_eq(checked, 138);
    json_decref(manifest);
}

SL_TEST(encrypted_files_are_listed_and_their_tensors_refused)
{
    size_t bytes;
    uint8_t *data = read_tensors("v4-meta-encrypted", &bytes), digest[32];
    struct golden_open open;
    ck_assert_int_eq(golden_index(&open, "x", data, bytes, NULL), 0);
    for (size_t i = 0; i < open.index->tensor_count; i++) {
        struct sl_err err = SL_ERR_INIT;
        const struct sl_tensor *tensor = &open.index->tensors[i];
        ck_assert_int_lt(sl_tensor_digest(open.index, tensor, false, digest, &err), 0);
        ck_assert_str_eq(err.code, "E_KEY_REQUIRED");
        ck_assert(!tensor->encrypted || (tensor->crypt && !tensor->key));
    }
    golden_release(&open);
    free(data);
}

/* ---- prefixes -------------------------------------------------------------------------------- */

static void check_prefix(const char *name, struct sl_keys *keys, const uint8_t *data, size_t cut)
{
    uint8_t *prefix = malloc(cut + 1);
    memcpy(prefix, data, cut);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(open_and_digest(prefix, cut, keys, true, &err) < 0, "%s, %zu bytes", name, cut);
    ck_assert_msg(strcmp(err.code, "E_TRUNCATED") == 0, "%s, %zu bytes: %s %s", name, cut, err.code,
                  err.message);
    free(prefix);
}

/*
 * A file is 73 bytes of header, 256 KiB of metadata that are nearly all zeros and then a few KiB:
 * every prefix of the first and the last, and one in a thousand of the zeros, where a cut is the
 * same "ends inside the block" each time. The last tensor's data and the terminator behind it are
 * not needed for the listing, so cuts stop at its last byte.
 */
static void check_prefixes(const char *name)
{
    size_t bytes;
    uint8_t *data = read_tensors(name, &bytes);
    struct sl_keys *keys = keys_of(name);
    struct golden_open open;
    ck_assert_int_eq(golden_index(&open, "x.tensors", data, bytes, NULL), 0);
    uint64_t end = 0;
    for (size_t i = 0; i < open.index->tensor_count; i++)
        end = SL_MAX(end, open.index->tensors[i].end);
    golden_release(&open);
    uint64_t metadata_end = METADATA_AT + sl_get_le64(data + 65);
    for (size_t cut = 0; cut < METADATA_AT + 100; cut++)
        check_prefix(name, keys, data, cut);
    for (size_t cut = METADATA_AT + 100; cut < metadata_end; cut += 9973)
        check_prefix(name, keys, data, cut);
    size_t step = end - metadata_end > 3000 ? 61 : 1;
    for (size_t cut = metadata_end - 2; cut < end; cut += step)
        check_prefix(name, keys, data, cut);
    sl_keys_free(keys);
    free(data);
}

SL_TEST(every_prefix_is_refused_as_truncated)
{
    static const char *const names[] = {
        "base-plain",    "v1-tree",           "v4-meta",
        "v5-long-empty", "v3-passphrase-min", "v1-dtypes",
        "v3-key",        "v3-chunks-1024",    "tolerated-sequential-chunk"};
    for (unsigned i = 0; i < SL_COUNT(names); i++)
        check_prefixes(names[i]);
}

/* ---- one byte wrong -------------------------------------------------------------------------- */

/* Every byte of file header, entries and tensor headers, one more and one less and inverted:
   refused or, where the format does not care (tensor_size, module index without hashes, …), read
   without a crash. With hashes checked, only bytes that no hash and no rule covers may pass. */
static void damage(const char *name, size_t metadata_used)
{
    static const uint8_t changes[] = {1, 0xff, 0x80};
    size_t bytes, passed = 0;
    uint8_t *data = read_tensors(name, &bytes);
    size_t metadata_end = METADATA_AT + sl_get_le64(data + 65);
    for (size_t at = 0; at < bytes; at++) {
        if (at == METADATA_AT + metadata_used)
            at = metadata_end;
        for (unsigned i = 0; i < SL_COUNT(changes); i++) {
            struct sl_err err = SL_ERR_INIT;
            data[at] = (uint8_t)(data[at] + changes[i]);
            if (index_and_digest(data, bytes, true, &err) == 0)
                passed++;
            else
                ck_assert_msg(err.code[0], "%s, byte %zu: %s", name, at, err.message);
            data[at] = (uint8_t)(data[at] - changes[i]);
        }
    }
    /* tensor_size and unused field: 16 bytes; version and flags that mean the same; the terminator:
     * 8 bytes. */
    ck_assert_uint_le(passed, 3 * (16 + 8) + 8);
    free(data);
}

SL_TEST(every_damaged_byte_that_matters_is_noticed)
{
    damage("base-plain", 143);
    damage("v4-meta", 153);
}

/* A change of the metadata of base-plain, whose fields have known places (specification,
 * section 17.1). */
static void check_field(size_t at, const void *value, size_t value_bytes, const char *code)
{
    size_t bytes;
    uint8_t *data = read_tensors("base-plain", &bytes);
    struct sl_err err = SL_ERR_INIT;
    memcpy(data + at, value, value_bytes);
    index_and_digest(data, bytes, true, &err);
    ck_assert_msg(strcmp(err.code, code) == 0, "byte %zx: %s instead of %s: %s", at, err.code, code,
                  err.message);
    free(data);
}

SL_TEST(every_length_is_checked_at_its_limit_and_one_past)
{
    check_field(0x39, "\x4f\x23\0\0\0\0\0\0", 8,
                "E_NAME"); /* 262144 / 29 tensors: the fourth is empty */
    check_field(0x39, "\x50\x23\0\0\0\0\0\0", 8, "E_METADATA"); /* one more than can fit */
    check_field(0x41, "\x8f\0\0\0\0\0\0\0", 8, ""); /* metadata: exactly what the entries use */
    check_field(0x41, "\x8e\0\0\0\0\0\0\0", 8, "E_METADATA");   /* one byte too few */
    check_field(0x41, "\x30\x01\x04\0\0\0\0\0", 8, "E_OFFSET"); /* it would swallow headers */
    check_field(0x41, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "E_TRUNCATED");
    check_field(0x5e, "\x48\0\x04\0\0\0\0\0", 8,
                "E_OFFSET"); /* header_offset inside the metadata */
    check_field(0x66, "\x48\0\x04\0\0\0\0\0", 8, "E_OFFSET"); /* data_offset before it */
    check_field(0x6e, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, "E_LENGTH");
    check_field(0x6e, "\0\0\0\0\0\0\0\x80", 8, "E_OFFSET");    /* 2^63 */
    check_field(0x40049, "\x1d\0\0\0\0\0\0\0", 8, "E_HEADER"); /* header_length 29 */
    check_field(0x40049, "\x1e\0\0\0\0\0\0\0", 8, "E_OFFSET"); /* 30 */
    check_field(0x40054, "\xff\xff", 2, "E_HEADER");           /* name_length over the header */
    check_field(0x4005b, "\xff", 1, "E_HEADER");               /* dtype_length */
    check_field(0x4005f, "\xff", 1, "E_HEADER");               /* ndim */
    check_field(0x40068, "\x2a\0", 2, "E_HASHBLOCK");          /* one more than its hashes need */
    check_field(0x40068, "\x28\0", 2, "E_HASHBLOCK");
    check_field(0x40068, "\xff\xff", 2, "E_HASHBLOCK");
    check_field(0x40068, "\0\0", 2, "E_HASHBLOCK");
    check_field(0x4006a, "\x01", 1, "E_HASHBLOCK"); /* count */
    check_field(0x4006c, "\x05", 1, "E_HASHBLOCK"); /* length of the CRC */
}

/* A change of the first crypt block of v3-passphrase-min (specification, section 17.2). */
static void check_crypt_field(struct sl_keys *keys, size_t at, const void *value,
                              size_t value_bytes, const char *code)
{
    size_t bytes;
    uint8_t *data = read_tensors("v3-passphrase-min", &bytes);
    struct sl_err err = SL_ERR_INIT;
    memcpy(data + at, value, value_bytes);
    open_and_digest(data, bytes, keys, true, &err);
    ck_assert_msg(strcmp(err.code, code) == 0, "byte %zx: %s instead of %s: %s", at, err.code, code,
                  err.message);
    free(data);
}

struct crypt_field {
    size_t at, bytes;
    const char *value, *code;
};

SL_TEST(every_length_of_a_crypt_block_is_checked_at_its_limit_and_one_past)
{
    static const char most[] = "\xff\xff\xff\xff\xff\xff\xff\xff";
    static const struct crypt_field fields[] = {
        {0x40085, 1, "\x75", "E_CRYPTINFO"}, /* length of the block */
        {0x40085, 1, "\x77", "E_CRYPTINFO"},
        {0x40085, 1, "\x01", "E_CRYPTINFO"},
        {0x40085, 8, most, "E_CRYPTINFO"},
        {0x4008d, 2, "\x01\0", "E_CRYPTINFO"}, /* number of chunks */
        {0x4008d, 2, "\x03\0", "E_CRYPTINFO"},
        {0x4008d, 2, most, "E_CRYPTINFO"},
        {0x4008f, 1, "\x01", "E_CRYPTINFO"}, /* length of the derivation */
        {0x4008f, 1, "\x29", "E_CRYPTINFO"},
        {0x4008f, 1, "\x2b", "E_CRYPTINFO"},
        {0x4008f, 8, most, "E_CRYPTINFO"},
        {0x40097, 2, "\x02\0", "E_CRYPTINFO"}, /* type: two ciphers, no such, none */
        {0x40097, 2, "\x04\0", "E_CRYPTINFO"},
        {0x40099, 2, "\x02\0", "E_CRYPTINFO"},     /* method */
        {0x4009b, 8, "\0\0\0\0\0\0\0\0", "E_KDF"}, /* opslimit */
        {0x4009b, 1, "\x10", "E_DECRYPT"},         /* another key */
        {0x4009b, 1, "\x11", "E_KDF"},
        {0x4009b, 8, most, "E_KDF"},
        {0x400a3, 8, "\xff\x1f\0\0\0\0\0\0", "E_KDF"}, /* memlimit */
        {0x400a3, 8, "\0\x24\0\0\0\0\0\0", "E_DECRYPT"},
        {0x400a3, 8, "\x01\0\0\x80\0\0\0\0", "E_KDF"},
        {0x400a3, 8, most, "E_KDF"},
        {0x400ab, 4, "\x01\0\0\0", "E_KDF"}, /* alg */
        {0x400ab, 4, "\x03\0\0\0", "E_KDF"},
        {0x400ab, 4, most, "E_KDF"},
        {0x400af, 2, "\0\0", "E_KDF"}, /* salt */
        {0x400af, 2, "\x0f\0", "E_KDF"},
        {0x400af, 2, "\x11\0", "E_CRYPTINFO"},
        {0x400af, 2, most, "E_CRYPTINFO"},
        {0x400c1, 1, "\x39", "E_CRYPTINFO"}, /* length of the cipher block */
        {0x400c1, 1, "\x3b", "E_CRYPTINFO"},
        {0x400c1, 8, most, "E_CRYPTINFO"},
        {0x400cb, 8, "\xff\x03\0\0\0\0\0\0", "E_CRYPTINFO"}, /* piece size */
        {0x400cb, 8, "\0\x04\0\0\0\0\0\0", ""},
        {0x400cb, 8, "\x01\x04\0\0\0\0\0\0", "E_CRYPTINFO"},
        {0x400cb, 8, "\xc0\xff\xff\xff\xff\xff\xff\x7f", ""},
        {0x400cb, 8, "\0\0\0\0\0\0\0\x80", "E_CRYPTINFO"},
        {0x400eb, 1, "\0", "E_CRYPTINFO"}, /* number of MACs */
        {0x400eb, 1, "\x02", "E_CRYPTINFO"},
        {0x400eb, 8, most, "E_CRYPTINFO"},
    };
    struct sl_keys *keys = keys_of("v3-passphrase-min");
    for (unsigned i = 0; i < SL_COUNT(fields); i++)
        check_crypt_field(keys, fields[i].at, fields[i].value, fields[i].bytes, fields[i].code);
    sl_keys_free(keys);
}

/* What is said of golden files that do not open. */
static void check_blame(const char *name, const char *says)
{
    size_t bytes;
    uint8_t *data = read_tensors(name, &bytes);
    struct sl_keys *keys = keys_of(name);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(open_and_digest(data, bytes, keys, true, &err), 0);
    ck_assert_str_eq(err.code, "E_DECRYPT");
    ck_assert_msg(strstr(err.message, says) != NULL, "%s: %s", name, err.message);
    sl_keys_free(keys);
    free(data);
}

SL_TEST(a_wrong_key_is_told_from_damage)
{
    check_blame("bad-key-wrong", "probably wrong");
    check_blame("bad-passphrase-wrong", "probably wrong");
    check_blame("bad-mac", "damaged");
    check_blame("bad-nonce", "damaged");
    check_blame("bad-ciphertext", "damaged");
}

/* ---- failing calls --------------------------------------------------------------------------- */

struct object {
    const uint8_t *data;
    size_t bytes;
    struct sl_keys *keys;
};

static int read_object(void *arg, struct sl_err *err)
{
    const struct object *object = arg;
    return open_and_digest(object->data, object->bytes, object->keys, true, err);
}

SL_TEST(every_failing_allocation_is_reported)
{
    struct object object = {0};
    uint8_t *data = read_tensors("v1-tree", &object.bytes);
    object.data = data;
    ck_assert_uint_gt(golden_each_allocation(read_object, &object), 20);
    free(data);
    data = read_tensors("v3-key", &object.bytes);
    object.data = data;
    object.keys = keys_of("v3-key");
    ck_assert_uint_gt(golden_each_allocation(read_object, &object), 20);
    sl_keys_free(object.keys);
    free(data);
}

SL_TEST(every_failing_read_is_reported)
{
    struct object object = {0};
    uint8_t *data = read_tensors("v1-many", &object.bytes);
    object.data = data;
    ck_assert_uint_ge(golden_each_read(read_object, &object), 4);
    free(data);
}

SL_TEST(a_thousand_headers_take_few_requests)
{
    size_t bytes;
    uint8_t *data = read_tensors("v1-many", &bytes);
    struct golden_open open;
    uint64_t object_bytes, requests, read_bytes;
    ck_assert_int_eq(golden_index(&open, "x.tensors", data, bytes, NULL), 0);
    sl_index_counts(open.index, &object_bytes, &requests, &read_bytes);
    ck_assert_uint_eq(open.index->tensor_count, 1024);
    ck_assert_uint_le(requests, 4);
    ck_assert_uint_le(read_bytes, bytes);
    golden_release(&open);
    free(data);
}
