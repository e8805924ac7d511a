/*
 * A sidecar is JSON, read token by token into arrays that its own numbers have sized: how many
 * ranges there are follows from two lengths, so ranges can neither overlap nor leave gaps, and a
 * count that differs is refused. The tree is made of the ranges anew and must be the one in the
 * file. What is signed is not the JSON but a few lines of plain text, which have one spelling.
 */
#include "sidecar.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>

#include "check.h"
#include "hash.h"
#include "json.h"
#include "json_pull.h"

enum {
    LEAF_BYTES = 1 + 8 + 8 + 4,
    LEAF_BYTES_MAX = LEAF_BYTES + SL_HASH_BYTES_MAX,
    NODE_BYTES = 1 + 32 + 32
};

/* ---- life ------------------------------------------------------------------------------------ */

void sl_sidecar_free(struct sl_sidecar *sidecar)
{
    if (!sidecar)
        return;
    free(sidecar->name);
    free(sidecar->ranges);
    free(sidecar->signature);
    free(sidecar);
}

static const char *last_part(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static uint64_t count_ranges(uint64_t bytes, uint64_t range_bytes)
{
    return bytes / range_bytes + (bytes % range_bytes != 0);
}

struct sl_sidecar *sl_sidecar_new(const char *name, uint64_t bytes, uint64_t range_bytes,
                                  struct sl_err *err)
{
    uint64_t count = count_ranges(bytes, range_bytes);
    if (count > SL_SIDECAR_RANGES_MAX) {
        sl_fail(err, SL_E_USAGE,
                "'%s' has %" PRIu64 " ranges of %" PRIu64
                " bytes, a sidecar holds at most %d: choose a larger --range-bytes",
                name, count, range_bytes, SL_SIDECAR_RANGES_MAX);
        return NULL;
    }
    SL_AUTO(sl_sidecar) sidecar = sl_alloc(sizeof(*sidecar), err);
    if (!sidecar)
        return NULL;
    sidecar->bytes = bytes;
    sidecar->range_bytes = range_bytes;
    sidecar->range_count = (size_t)count;
    sidecar->name = sl_strdup(last_part(name), err);
    sidecar->ranges = sl_alloc_array(sidecar->range_count, sizeof(*sidecar->ranges), err);
    return sidecar->name && sidecar->ranges ? sl_steal(&sidecar) : NULL;
}

uint64_t sl_sidecar_range_end(const struct sl_sidecar *sidecar, size_t i)
{
    return SL_MIN((i + 1) * sidecar->range_bytes, sidecar->bytes);
}

/* ---- the tree -------------------------------------------------------------------------------- */

static void hash_leaf(const struct sl_sidecar *sidecar, size_t i, uint8_t out[32])
{
    const struct sl_sidecar_range *range = &sidecar->ranges[i];
    size_t digest_bytes = sl_hash_bytes(sl_sidecar_hash(sidecar, true));
    uint8_t leaf[LEAF_BYTES_MAX] = {0}, crc[SL_HASH_BYTES_MAX];
    sl_put_le64(leaf + 1, i * sidecar->range_bytes);
    sl_put_le64(leaf + 9, sl_sidecar_range_end(sidecar, i));
    sl_crc_digest(SL_HASH_CRC32C, range->crc32c, crc);
    memcpy(leaf + 17, crc, 4);
    memcpy(leaf + LEAF_BYTES, range->blake2b, digest_bytes);
    crypto_hash_sha256(out, leaf, LEAF_BYTES + digest_bytes);
}

static void hash_node(const uint8_t left[32], const uint8_t right[32], uint8_t out[32])
{
    uint8_t node[NODE_BYTES] = {1};
    memcpy(node + 1, left, 32);
    memcpy(node + 33, right, 32);
    crypto_hash_sha256(out, node, sizeof(node));
}

/* Whole subtrees wait on a stack, the largest at the bottom; at the end they are joined from the
 * right. */
void sl_sidecar_tree(const struct sl_sidecar *sidecar, uint8_t tree[32])
{
    uint8_t stack[64][32];
    unsigned depth = 0;
    for (size_t i = 0; i < sidecar->range_count; i++) {
        hash_leaf(sidecar, i, stack[depth++]);
        for (size_t whole = i + 1; whole % 2 == 0; whole /= 2) {
            hash_node(stack[depth - 2], stack[depth - 1], stack[depth - 2]);
            depth--;
        }
    }
    for (; depth > 1; depth--)
        hash_node(stack[depth - 2], stack[depth - 1], stack[depth - 2]);
    if (depth)
        memcpy(tree, stack[0], 32);
    else
        crypto_hash_sha256(tree, NULL, 0);
}

/* ---- writing --------------------------------------------------------------------------------- */

int sl_sidecar_signed_text(const struct sl_sidecar *sidecar, struct sl_buf *text,
                           struct sl_err *err)
{
    char hex[65];
    sl_hex(sidecar->tree, 32, hex);
    return sl_buf_printf(text, err,
                         "sluice sidecar 1\nname %s\nbytes %" PRIu64 "\nrange_bytes %" PRIu64
                         "\ntree_sha256 %s\n",
                         sidecar->name, sidecar->bytes, sidecar->range_bytes, hex);
}

static void write_hashes(struct sl_json *json, const struct sl_sidecar *sidecar, bool sha)
{
    char text[65];
    sl_json_key(json, sha ? "sha256" : "crc32c");
    sl_json_array(json);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        if (sha)
            sl_hex(sidecar->ranges[i].sha256, 32, text);
        else
            snprintf(text, sizeof(text), "%08" PRIx32, sidecar->ranges[i].crc32c);
        sl_json_string(json, text);
    }
    sl_json_end(json);
}

static void write_members(struct sl_json *json, const struct sl_sidecar *sidecar)
{
    char hex[65];
    sl_hex(sidecar->tree, 32, hex);
    sl_json_key_uint(json, "sluice_sidecar", 1);
    sl_json_key_string(json, "name", sidecar->name);
    sl_json_key_uint(json, "bytes", sidecar->bytes);
    sl_json_key_uint(json, "range_bytes", sidecar->range_bytes);
    sl_json_key(json, "made_from");
    sl_json_object(json);
    sl_json_key_string(json, "etag", sidecar->made_from.etag);
    sl_json_key_string(json, "version_id", sidecar->made_from.version_id);
    sl_json_key_string(json, "last_modified", sidecar->made_from.last_modified);
    sl_json_end(json);
    sl_json_key_string(json, "tree_sha256", hex);
    if (sidecar->signature)
        sl_json_key_string(json, "minisign", sidecar->signature);
    write_hashes(json, sidecar, false);
    write_hashes(json, sidecar, true);
}

int sl_sidecar_write(const struct sl_sidecar *sidecar, struct sl_buf *text, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SL_SIDECAR_TEXT_BYTES_MAX);
    sl_json_object(&json);
    write_members(&json, sidecar);
    sl_json_end(&json);
    const char *written = sl_json_text(&json, err);
    int done = written && sl_buf_text(text, written, err) == 0 ? sl_buf_text(text, "\n", err) : -1;
    sl_json_release(&json);
    return done;
}

/* ---- reading --------------------------------------------------------------------------------- */

enum member {
    VERSION,
    NAME,
    BYTES,
    RANGE_BYTES,
    TREE,
    SIGNATURE,
    CRC32C,
    SHA256,
    MADE_FROM,
    OTHER
};
static const char *const members[] = {"sluice_sidecar", "name",        "bytes",
                                      "range_bytes",    "tree_sha256", "minisign",
                                      "crc32c",         "sha256",      "made_from"};

struct parse {
    struct sl_pull pull;
    struct sl_sidecar *sidecar;
    unsigned seen; /* bits of enum member */
    size_t range_capacity, crc_count, sha_count;
    uint64_t version;
};

static int refuse(const char *why, struct sl_err *err)
{
    return sl_fail_code(
        err, SL_E_INTEGRITY, "E_SIDECAR",
        "not a sidecar: %s; make it again with `sluice sign`, or load without it with "
        "'verify.sidecar: off'",
        why);
}

static int take_uint(struct parse *parse, uint64_t *value, const char *why, struct sl_err *err)
{
    if (sl_pull_next(&parse->pull) != SL_PULL_NUMBER || !sl_pull_uint(&parse->pull, value))
        return refuse(why, err);
    return 0;
}

/* A string without NULs and control characters but newlines. */
static const char *take_text(struct parse *parse, size_t limit)
{
    struct sl_pull *pull = &parse->pull;
    if (sl_pull_next(pull) != SL_PULL_STRING || pull->string_bytes > limit ||
        memchr(pull->string, 0, pull->string_bytes))
        return NULL;
    return pull->string;
}

static int take_hashes(struct parse *parse, bool sha, struct sl_err *err)
{
    struct sl_sidecar *sidecar = parse->sidecar;
    size_t *count = sha ? &parse->sha_count : &parse->crc_count;
    enum sl_pull_token token;
    if (sl_pull_next(&parse->pull) != SL_PULL_ARRAY)
        return refuse("its hashes are not an array", err);
    while ((token = sl_pull_next(&parse->pull)) == SL_PULL_STRING) {
        if (*count == SL_SIDECAR_RANGES_MAX)
            return refuse("more than 262144 ranges", err);
        if (sl_grow(&sidecar->ranges, &parse->range_capacity, *count + 1, sizeof(*sidecar->ranges),
                    err) < 0)
            return -1;
        struct sl_sidecar_range *range = &sidecar->ranges[(*count)++];
        uint8_t crc[4];
        if (sl_unhex(parse->pull.string, sha ? range->sha256 : crc, sha ? 32 : 4) < 0)
            return refuse(sha ? "a SHA-256 is not 64 hex digits" : "a CRC32C is not 8 hex digits",
                          err);
        if (!sha)
            range->crc32c =
                (uint32_t)crc[0] << 24 | (uint32_t)crc[1] << 16 | (uint32_t)crc[2] << 8 | crc[3];
    }
    return token == SL_PULL_CLOSE ? 0 : refuse("a hash is not a string", err);
}

static int take_version(struct parse *parse, struct sl_err *err)
{
    struct sl_version *version = &parse->sidecar->made_from;
    enum sl_pull_token token;
    if (sl_pull_next(&parse->pull) != SL_PULL_OBJECT)
        return refuse("'made_from' is not an object", err);
    while ((token = sl_pull_next(&parse->pull)) == SL_PULL_KEY) {
        char *to = strcmp(parse->pull.string, "etag") == 0            ? version->etag
                   : strcmp(parse->pull.string, "version_id") == 0    ? version->version_id
                   : strcmp(parse->pull.string, "last_modified") == 0 ? version->last_modified
                                                                      : NULL;
        size_t room =
            to == version->last_modified ? sizeof(version->last_modified) : SL_VERSION_TEXT_MAX;
        const char *text = take_text(parse, room - 1);
        if (!text)
            return refuse("'made_from' holds what is not a version", err);
        if (to)
            memcpy(to, text, strlen(text) + 1);
    }
    return token == SL_PULL_CLOSE ? 0 : refuse("'made_from' is broken off", err);
}

static int skip_value(struct parse *parse, struct sl_err *err)
{
    unsigned depth = parse->pull.depth;
    enum sl_pull_token token;
    do {
        token = sl_pull_next(&parse->pull);
        if (token == SL_PULL_ERROR || token == SL_PULL_DONE)
            return refuse(parse->pull.why ? parse->pull.why : "it is broken off", err);
    } while (parse->pull.depth > depth);
    return 0;
}

static int take_copy(struct parse *parse, char **to, size_t limit, const char *why,
                     struct sl_err *err)
{
    const char *text = take_text(parse, limit);
    if (!text)
        return refuse(why, err);
    *to = sl_strdup(text, err);
    return *to ? 0 : -1;
}

static int take_tree(struct parse *parse, struct sl_err *err)
{
    const char *text = take_text(parse, 64);
    if (!text || sl_unhex(text, parse->sidecar->tree, 32) < 0)
        return refuse("'tree_sha256' is not 64 hex digits", err);
    return 0;
}

static int take_member(struct parse *parse, enum member member, struct sl_err *err)
{
    struct sl_sidecar *sidecar = parse->sidecar;
    switch (member) {
    case VERSION:
        return take_uint(parse, &parse->version, "'sluice_sidecar' is not a number", err);
    case NAME:
        return take_copy(parse, &sidecar->name, SL_SIDECAR_NAME_BYTES_MAX, "'name' is not a name",
                         err);
    case BYTES:
        return take_uint(parse, &sidecar->bytes, "'bytes' is not a number of bytes", err);
    case RANGE_BYTES:
        return take_uint(parse, &sidecar->range_bytes, "'range_bytes' is not a number of bytes",
                         err);
    case TREE:
        return take_tree(parse, err);
    case SIGNATURE:
        return take_copy(parse, &sidecar->signature, SL_MINISIGN_FILE_BYTES_MAX,
                         "'minisign' is not a signature", err);
    case CRC32C:
    case SHA256:
        return take_hashes(parse, member == SHA256, err);
    case MADE_FROM:
        return take_version(parse, err);
    case OTHER:
        break;
    }
    return skip_value(parse, err);
}

static enum member member_of(const struct sl_pull *pull)
{
    unsigned i = 0;
    while (i < SL_COUNT(members) && strcmp(pull->string, members[i]) != 0)
        i++;
    return (enum member)i;
}

static int take_members(struct parse *parse, struct sl_err *err)
{
    enum sl_pull_token token = sl_pull_next(&parse->pull);
    if (token != SL_PULL_OBJECT)
        return refuse("it is not a JSON object", err);
    while ((token = sl_pull_next(&parse->pull)) == SL_PULL_KEY) {
        enum member member = member_of(&parse->pull);
        if (member != OTHER && parse->seen & 1u << member)
            return refuse("a member is there twice", err);
        parse->seen |= 1u << member;
        if (take_member(parse, member, err) < 0)
            return -1;
    }
    if (token != SL_PULL_CLOSE || sl_pull_next(&parse->pull) != SL_PULL_DONE)
        return refuse(parse->pull.why ? parse->pull.why : "it is broken off", err);
    return 0;
}

/* Every number against its limit and against the others. */
static int judge(struct parse *parse, struct sl_err *err)
{
    struct sl_sidecar *sidecar = parse->sidecar;
    unsigned needed = (1u << VERSION | 1u << NAME | 1u << BYTES | 1u << RANGE_BYTES | 1u << TREE |
                       1u << CRC32C | 1u << SHA256);
    uint8_t tree[32];
    if (parse->seen & 1u << VERSION && parse->version != 1)
        return refuse("it is of a version that this sluice does not know", err);
    if ((parse->seen & needed) != needed)
        return refuse("a member is missing", err);
    if (!*sidecar->name || strpbrk(sidecar->name, "/\n\r"))
        return refuse("'name' is not a name", err);
    if (sidecar->range_bytes < SL_SIDECAR_RANGE_BYTES_MIN ||
        sidecar->range_bytes > SL_SIDECAR_RANGE_BYTES_MAX)
        return refuse("'range_bytes' is not between 64 KiB and 1 GiB", err);
    if (sidecar->bytes > INT64_MAX)
        return refuse("'bytes' is more than an object can have", err);
    if (parse->crc_count != count_ranges(sidecar->bytes, sidecar->range_bytes) ||
        parse->sha_count != parse->crc_count)
        return refuse("it has not as many hashes as 'bytes' and 'range_bytes' make ranges", err);
    sidecar->range_count = parse->crc_count;
    sl_sidecar_tree(sidecar, tree);
    if (memcmp(tree, sidecar->tree, sizeof(tree)) != 0)
        return refuse("'tree_sha256' is not the hash of its ranges: it was changed or is damaged",
                      err);
    return 0;
}

int sl_sidecar_parse(char *text, size_t bytes, struct sl_sidecar **out, struct sl_err *err)
{
    if (bytes > SL_SIDECAR_TEXT_BYTES_MAX)
        return refuse("it is longer than 24 MiB", err);
    if (!sl_is_utf8(text, bytes))
        return refuse("it is not UTF-8", err);
    SL_AUTO(sl_sidecar) sidecar = sl_alloc(sizeof(*sidecar), err);
    if (!sidecar)
        return -1;
    struct parse parse = {.sidecar = sidecar};
    sl_pull_init(&parse.pull, text, bytes);
    if (take_members(&parse, err) < 0 || judge(&parse, err) < 0)
        return -1;
    *out = sl_steal(&sidecar);
    return 0;
}

/* ---- judging --------------------------------------------------------------------------------- */

int sl_sidecar_check_signature(const struct sl_sidecar *sidecar, const char *name,
                               const struct sl_minisign_key *key, struct sl_err *err)
{
    struct sl_minisign_signature signature;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_autobuf text = SL_BUF_INIT(SL_SIDECAR_NAME_BYTES_MAX + 512);
    if (!sidecar->signature)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the sidecar of '%s' is not signed: sign it with `sluice sign "
                            "--minisign-key FILE`",
                            name);
    if (strcmp(sidecar->name, last_part(name)) != 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the sidecar of '%s' was signed for '%s': sign it again under its name",
                            name, sidecar->name);
    if (sl_minisign_parse(sidecar->signature, strlen(sidecar->signature), key, &signature, err) < 0)
        return sl_wrap(err, "the sidecar of '%s'", name);
    if (sl_sidecar_signed_text(sidecar, &text, err) < 0 ||
        sl_digest_of(SL_HASH_BLAKE2B, NULL, 0, text.data, text.used, digest, err) < 0)
        return -1;
    bool right = signature.prehashed
                     ? sl_minisign_matches(key->key, signature.signature, digest, sizeof(digest))
                     : sl_minisign_matches(key->key, signature.signature, text.data, text.used);
    if (right)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the signature in the sidecar of '%s' is not of its hashes: it was "
                        "changed; do not use the object, or sign it again if it is right",
                        name);
}

static bool differ(const char *a, const char *b)
{
    return *a && *b && strncmp(a, "W/", 2) != 0 && strncmp(b, "W/", 2) != 0 && strcmp(a, b) != 0;
}

const char *sl_sidecar_stale(const struct sl_sidecar *sidecar, uint64_t bytes,
                             const struct sl_version *version, char text[256])
{
    const struct sl_version *from = &sidecar->made_from;
    if (sidecar->bytes != bytes) {
        snprintf(text, 256, "it is of %" PRIu64 " bytes, the object has %" PRIu64, sidecar->bytes,
                 bytes);
        return text;
    }
    bool etags = differ(from->etag, version->etag);
    if (!etags && !differ(from->version_id, version->version_id))
        return NULL;
    snprintf(text, 256, "it was made from version %.80s, the object is of version %.80s",
             etags ? from->etag : from->version_id, etags ? version->etag : version->version_id);
    return text;
}

enum sl_hash_kind sl_sidecar_hash(const struct sl_sidecar *sidecar, bool strong)
{
    if (!strong && !sidecar->of_signature)
        return SL_HASH_CRC32C;
    return sidecar->blake2b ? SL_HASH_BLAKE2B : SL_HASH_SHA256;
}

void sl_sidecar_expect(const struct sl_sidecar_range *range, struct sl_check *check)
{
    if (check->kind != SL_HASH_CRC32C) {
        memcpy(check->expected, range->blake2b, sl_hash_bytes(check->kind));
        return;
    }
    sl_crc_digest(SL_HASH_CRC32C, range->crc32c, check->expected);
}
