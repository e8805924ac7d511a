/* What Xet is made of, each part alone: BLAKE3, hashes of chunks and files, chunks and their
 * compression, answers about ranges and about tokens. */
#include <check.h>
#include <lz4frame.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "thread.h"
#include "xet.h"
#include "xet_chunk.h"
#include "xet_hash.h"
#include "xet_plan.h"
#include "xet_store.h"

/* ---- BLAKE3 ---------------------------------------------------------------------------------- */

/* Bytes i mod 251 under the key of the official vectors
 * (https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json). */
static const struct {
    size_t bytes;
    const char *hash;
} vectors[] = {
    {0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"},
    {1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"},
    {63, "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae"},
    {64, "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6"},
    {65, "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72"},
    {1023, "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e"},
    {1024, "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4"},
    {1025, "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69"},
    {2048, "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1"},
    {2049, "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5"},
    {3072, "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770"},
    {3073, "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a"},
    {5120, "2c493e48e9b9bf31e0553a22b23503c0a3388f035cece68eb438d22fa1943e20"},
    {8192, "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac11498517f08d44c8fc00d58a"},
    {8193, "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5"},
    {16384, "9e9fc4eb7cf081ea7c47d1807790ed211bfec56aa25bb7037784c13c4b707b0d"},
    {31744, "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419"},
    {102400, "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7"},
    {131072, "def66234dd1a614a994a3dbe7bbc8edf9bbc3fae90222334c8a77320f94d3fe8"},
};

SL_TEST_LOOP(keyed_hashes_are_those_of_the_vectors, 0, (int)SL_COUNT(vectors))
{
    static uint8_t data[SL_BLAKE3_INPUT_MAX];
    uint8_t hash[SL_BLAKE3_BYTES];
    char hex[2 * SL_BLAKE3_BYTES + 1];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i % 251);
    sl_blake3_keyed((const uint8_t *)"whats the Elvish word for friend", data, vectors[_i].bytes,
                    hash);
    sl_hex(hash, sizeof(hash), hex);
    ck_assert_str_eq(hex, vectors[_i].hash);
}

/* ---- hashes of Xet --------------------------------------------------------------------------- */

/* As hf_xet hashes bytes (7 i + 3) mod 256, in chunks of 128 KiB. */
static const struct {
    size_t bytes;
    const char *hash;
} files[] = {
    {0, "0000000000000000000000000000000000000000000000000000000000000000"},
    {1000, "59e947075dcbb9dea17b716935c100776f7f4e3c52b2f2c46d96fcf0e2198c70"},
    {400000, "0206badc66709f8a98dd03ce7edcc15f10aed09684eef6d09d70257caa41c4f6"},
};

SL_TEST_LOOP(files_have_the_hashes_of_the_reference, 0, (int)SL_COUNT(files))
{
    static uint8_t data[400000];
    struct sl_xet_node nodes[4];
    uint8_t hash[SL_XET_HASH_BYTES];
    char text[SL_XET_HASH_TEXT];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(7 * i + 3);
    for (size_t at = 0; at < files[_i].bytes; at += nodes[count++].bytes) {
        nodes[count].bytes = SL_MIN((size_t)SL_XET_RAW_MAX, files[_i].bytes - at);
        sl_xet_chunk_hash(data + at, nodes[count].bytes, nodes[count].hash);
    }
    sl_xet_file_hash(nodes, count, hash);
    sl_xet_hash_text(hash, text);
    ck_assert_str_eq(text, files[_i].hash);
    ck_assert(sl_xet_is_hash(text));
}

SL_TEST(a_hash_is_written_by_numbers_of_eight_bytes)
{
    uint8_t hash[SL_XET_HASH_BYTES];
    char text[SL_XET_HASH_TEXT];
    for (unsigned i = 0; i < sizeof(hash); i++)
        hash[i] = (uint8_t)i;
    sl_xet_hash_text(hash, text);
    ck_assert_str_eq(text, "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918");
    ck_assert(!sl_xet_is_hash("07"));
    text[3] = 'A';
    ck_assert(!sl_xet_is_hash(text));
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static uint8_t raw[SL_XET_RAW_MAX], packed[SL_XET_PACKED_MAX + 8], out[SL_XET_RAW_MAX];

/* Half of it repeats, half is noise. */
static void make_raw(size_t bytes)
{
    uint32_t noise = 1;
    for (size_t i = 0; i < bytes; i++) {
        noise = noise * 1664525 + 1013904223;
        raw[i] = (uint8_t)(i % 4 == 3 || i % 700 < 300 ? 0x3c : noise >> 24);
    }
}

static int decode(const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct sl_xet_chunk chunk;
    SL_AUTO(sl_xet_decoder) decoder = sl_xet_decoder_new(err);
    ck_assert_ptr_nonnull(decoder);
    if (bytes < SL_XET_HEAD_BYTES || sl_xet_chunk_head(data, &chunk, err) < 0)
        return -1;
    if (bytes != chunk.packed_bytes + SL_XET_HEAD_BYTES)
        return -1;
    return sl_xet_decode(decoder, &chunk, data + SL_XET_HEAD_BYTES, out, err);
}

static const size_t lengths[] = {1, 2, 3, 4, 5, 63, 64, 65, 1001, 65535, 65536, 100003, 131072};

SL_TEST_LOOP(every_scheme_gives_back_its_bytes, 0, 3 * (int)SL_COUNT(lengths))
{
    struct sl_err err = SL_ERR_INIT;
    size_t bytes = lengths[_i / 3];
    make_raw(bytes);
    size_t used = sl_xet_pack((unsigned)_i % 3, raw, bytes, packed);
    ck_assert_msg(decode(packed, used, &err) == 0, "%s", err.message);
    ck_assert_mem_eq(out, raw, bytes);
}

/* The chunk around a frame that LZ4's own writer makes of raw[]. */
static size_t pack_frame(const LZ4F_preferences_t *preferences, size_t bytes)
{
    size_t used =
        LZ4F_compressFrame(packed + SL_XET_HEAD_BYTES, SL_XET_PACKED_MAX, raw, bytes, preferences);
    ck_assert(!LZ4F_isError(used));
    for (unsigned i = 0; i < 3; i++) {
        packed[1 + i] = (uint8_t)(used >> (8 * i));
        packed[5 + i] = (uint8_t)(bytes >> (8 * i));
    }
    packed[0] = 0;
    packed[4] = 1;
    return used + SL_XET_HEAD_BYTES;
}

/* Blocks that need those before them, sums, lengths: Xet's own client writes none of these. */
SL_TEST_LOOP(frames_of_every_kind_are_read, 0, 32)
{
    struct sl_err err = SL_ERR_INIT;
    make_raw(130000);
    const LZ4F_preferences_t preferences = {
        .frameInfo = {.blockMode = _i & 1 ? LZ4F_blockLinked : LZ4F_blockIndependent,
                      .contentSize = _i & 2 ? 130000 : 0,
                      .contentChecksumFlag = _i & 4 ? LZ4F_contentChecksumEnabled : 0,
                      .blockChecksumFlag = _i & 8 ? LZ4F_blockChecksumEnabled : 0,
                      .blockSizeID = _i & 16 ? LZ4F_max64KB : LZ4F_max256KB}};
    size_t used = pack_frame(&preferences, 130000);
    ck_assert_msg(decode(packed, used, &err) == 0, "%s", err.message);
    ck_assert_mem_eq(out, raw, 130000);
}

/* Blocks by their heads: longer than the frame, longer than the chunk, with nothing in them,
 * without an end; bytes behind the end. */
SL_TEST_LOOP(a_frame_whose_blocks_lie_is_refused, 0, 7)
{
    static const struct {
        uint8_t bytes[16];
        unsigned used;
    } blocks[] = {
        {{200, 0, 0, 0x80, 'a', 'b', 'c', 0, 0, 0, 0}, 11},
        {{4, 0, 0, 0x80, 'a', 'b', 'c', 'd', 0, 0, 0, 0}, 12},
        {{3, 0, 0, 0x80, 'a', 'b', 'c', 0, 0, 0, 0x80}, 11},
        {{3, 0, 0, 0x80, 'a', 'b', 'c', 1, 0, 0, 0, 0}, 12},
        {{3, 0, 0, 0x80, 'a', 'b', 'c'}, 7},
        {{3, 0, 0, 0x80, 'a', 'b', 'c', 0, 0, 0, 0, 0}, 12},
        {{2, 0, 0, 0x80, 'a', 'b', 0, 0, 0, 0}, 10},
    };
    struct sl_err err = SL_ERR_INIT;
    const LZ4F_preferences_t preferences = {.frameInfo.blockMode = LZ4F_blockIndependent};
    memcpy(raw, "abc", 3);
    pack_frame(&preferences, 3);
    uint8_t *block = packed + SL_XET_HEAD_BYTES + LZ4F_HEADER_SIZE_MIN;
    static const uint8_t right_block[] = {3, 0, 0, 0x80, 'a', 'b', 'c', 0, 0, 0, 0};
    memcpy(block, right_block, sizeof(right_block));
    packed[1] = LZ4F_HEADER_SIZE_MIN + sizeof(right_block);
    ck_assert_msg(decode(packed, packed[1] + SL_XET_HEAD_BYTES, &err) == 0, "%s", err.message);
    memcpy(block, blocks[_i].bytes, blocks[_i].used);
    packed[1] = (uint8_t)(LZ4F_HEADER_SIZE_MIN + blocks[_i].used);
    ck_assert_int_eq(decode(packed, packed[1] + SL_XET_HEAD_BYTES, &err), -1);
    ck_assert_str_eq(err.code, "xet");
}

/* Cut to every length, with a header that says that this is all. */
SL_TEST_LOOP(every_prefix_of_a_frame_is_refused, 1, 3)
{
    make_raw(3000);
    size_t used = sl_xet_pack((unsigned)_i, raw, 3000, packed) - SL_XET_HEAD_BYTES;
    for (size_t cut = 0; cut < used; cut++) {
        struct sl_err err = SL_ERR_INIT;
        packed[1] = (uint8_t)cut;
        packed[2] = (uint8_t)(cut >> 8);
        ck_assert_int_eq(decode(packed, cut + SL_XET_HEAD_BYTES, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_str_eq(err.code, "xet");
    }
}

/* Lengths one less and one more than there is, versions and schemes that are not known. */
SL_TEST_LOOP(a_header_that_lies_is_refused, 0, 8)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_xet_chunk chunk;
    make_raw(3000);
    sl_xet_pack(_i == 7 ? 0 : 1, raw, 3000, packed);
    static const struct {
        unsigned at;
        int add;
    } lies[] = {{5, 1}, {5, -1}, {0, 1}, {4, 2}, {7, 2}, {3, 3}, {1, 1}, {5, 1}};
    packed[lies[_i].at] = (uint8_t)(packed[lies[_i].at] + lies[_i].add);
    SL_AUTO(sl_xet_decoder) decoder = sl_xet_decoder_new(&err);
    int result = sl_xet_chunk_head(packed, &chunk, &err);
    if (result == 0)
        result = sl_xet_decode(decoder, &chunk, packed + SL_XET_HEAD_BYTES, out, &err);
    ck_assert_int_eq(result, -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
}

/* ---- answers --------------------------------------------------------------------------------- */

#define ENTRY(first, end, begin, last)                                                             \
    "{\"range\": {\"start\": " #first ", \"end\": " #end "}, \"url\": \"http://x/y\", "            \
    "\"url_range\": {\"start\": " #begin ", \"end\": " #last "}}"
#define TERM(xorb, bytes, first, end)                                                              \
    "{\"hash\": \"" xorb "\", \"unpacked_length\": " #bytes ", "                                   \
    "\"range\": {\"start\": " #first ", \"end\": " #end "}}"
#define ANSWER(skip, terms, info)                                                                  \
    "{\"offset_into_first_range\": " #skip ", \"terms\": [" terms "], \"fetch_info\": {" info "}}"

static int parse(const char *text, uint64_t wanted, struct sl_xet_plan *plan, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_xet_plan_parse(text, strlen(text), wanted, plan, err);
}

static const char right[] = ANSWER(
    10, TERM("a", 100, 2, 4) ", " TERM("b", 50, 0, 1) ", " TERM("a", 60, 5, 6),
    "\"b\": [" ENTRY(0, 2, 0, 99) "], \"a\": [" ENTRY(5, 6, 500, 599) ", " ENTRY(1, 4, 7, 7) "]");

SL_TEST(terms_find_their_entries)
{
    struct sl_err err;
    struct sl_xet_plan plan;
    ck_assert_msg(parse(right, 200, &plan, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(plan.skip, 10);
    ck_assert_uint_eq(plan.term_count, 3);
    ck_assert_uint_eq(plan.entry_count, 3);
    const struct sl_xet_entry *first = &plan.entries[plan.terms[0].entry];
    ck_assert_uint_eq(first->begin, 7);
    ck_assert_uint_eq(first->end, 8);
    ck_assert_uint_eq(first->first_chunk, 1);
    ck_assert_uint_eq(plan.entries[plan.terms[1].entry].end, 100);
    ck_assert_uint_eq(plan.entries[plan.terms[2].entry].begin, 500);
    ck_assert_uint_eq(plan.terms[2].bytes, 60);
    sl_xet_plan_release(&plan);
}

static const struct {
    const char *text, *why;
} bad_plans[] = {
    {"[]", "not an object"},
    {"{", ""},
    {"{}", "no fetch_info"},
    {ANSWER(0, "", "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "no terms"},
    {ANSWER(0, TERM("b", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "without an entry"},
    {ANSWER(0, TERM("a", 9, 0, 2), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "without an entry"},
    {ANSWER(0, TERM("a", 9, 0, 1), "\"a\": []"), "no entries"},
    {ANSWER(0, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(1, 1, 0, 9) "]"), "without URL or chunks"},
    {ANSWER(0, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 9, 8) "]"), "makes no sense"},
    {ANSWER(0, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 68157440) "]"), "makes no sense"},
    {ANSWER(0, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9223372036854775807) "]"),
     "makes no sense"},
    {ANSWER(0, TERM("a", 9, 1, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "makes no sense"},
    {ANSWER(0, TERM("a", 0, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "makes no sense"},
    {ANSWER(0, TERM("a", 131073, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "makes no sense"},
    {ANSWER(0, TERM("a", -9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "makes no sense"},
    {ANSWER(9, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "does not cover"},
    {ANSWER(-1, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "does not cover"},
    {ANSWER(5, TERM("a", 9, 0, 1), "\"a\": [" ENTRY(0, 1, 0, 9) "]"), "does not cover"},
};

SL_TEST_LOOP(hostile_answers_are_refused, 0, (int)SL_COUNT(bad_plans))
{
    struct sl_err err;
    struct sl_xet_plan plan;
    ck_assert_int_eq(parse(bad_plans[_i].text, 5, &plan, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_msg(strstr(err.message, bad_plans[_i].why) != NULL, "%s", err.message);
    sl_xet_plan_release(&plan);
}

SL_TEST(every_prefix_of_an_answer_is_refused)
{
    for (size_t cut = 0; cut < sizeof(right) - 1; cut++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_xet_plan plan;
        sl_autofree char *text = sl_strndup(right, cut, NULL);
        ck_assert_int_eq(sl_xet_plan_parse(text, cut, 200, &plan, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        sl_xet_plan_release(&plan);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

SL_TEST(a_token_comes_with_its_place)
{
    static const char text[] =
        "{\"casUrl\": \"https://cas.example/\", \"accessToken\": \"abc\", \"exp\": 4000000000}";
    struct sl_err err = SL_ERR_INIT;
    int64_t expires = 0;
    sl_autosecret char *access = NULL;
    ck_assert_int_eq(sl_xet_access_parse(text, strlen(text), &access, &expires, &err), 0);
    ck_assert_str_eq(access, "https://cas.example abc");
    ck_assert_int_eq(expires, 4000000000);
}

static const struct {
    const char *text;
    enum sl_err_kind kind;
} bad_tokens[] = {
    {"{}", SL_E_FORMAT},
    {"{\"casUrl\": \"https://x\", \"exp\": 4000000000}", SL_E_FORMAT},
    {"{\"casUrl\": \"https://x\", \"accessToken\": \"s3cret\"}", SL_E_FORMAT},
    {"{\"casUrl\": \"https://x\", \"accessToken\": \"s3cret\", \"exp\": -1}", SL_E_FORMAT},
    {"{\"casUrl\": \"ftp://x\", \"accessToken\": \"s3cret\", \"exp\": 4000000000}", SL_E_FORMAT},
    {"{\"casUrl\": \"https://u:p@x\", \"accessToken\": \"s3cret\", \"exp\": 4000000000}",
     SL_E_FORMAT},
    {"{\"casUrl\": \"https://x?y\", \"accessToken\": \"s3cret\", \"exp\": 4000000000}",
     SL_E_FORMAT},
    {"{\"casUrl\": \"http://far.example\", \"accessToken\": \"s3cret\", \"exp\": 4000000000}",
     SL_E_AUTH},
    {"{\"casUrl\": \"https://x\", \"accessToken\": \"s3cret\\nAb\", \"exp\": 4000000000}",
     SL_E_AUTH},
    {"{\"casUrl\": \"https://x\", \"accessToken\": \"s3cret b\", \"exp\": 4000000000}",
     SL_E_FORMAT},
};

SL_TEST_LOOP(a_token_that_cannot_be_used_is_refused_and_not_told, 0, (int)SL_COUNT(bad_tokens))
{
    struct sl_err err = SL_ERR_INIT;
    int64_t expires = 0;
    sl_autosecret char *access = NULL;
    const char *text = bad_tokens[_i].text;
    ck_assert_int_eq(sl_xet_access_parse(text, strlen(text), &access, &expires, &err), -1);
    ck_assert_msg(err.kind == bad_tokens[_i].kind, "%d: %s", err.kind, err.message);
    ck_assert_ptr_null(access);
    ck_assert_msg(!strstr(err.message, "s3cret"), "%s", err.message);
}

/* Our clock may be ahead: a token that has just been given is good for a while. */
SL_TEST(a_token_from_the_past_is_not_asked_for_in_a_circle)
{
    static const char text[] =
        "{\"casUrl\": \"https://x\", \"accessToken\": \"abc\", \"exp\": 1000}";
    int64_t expires = 0;
    sl_autosecret char *access = NULL;
    ck_assert_int_eq(sl_xet_access_parse(text, strlen(text), &access, &expires, NULL), 0);
    ck_assert_int_gt(expires, sl_wall_seconds());
}
