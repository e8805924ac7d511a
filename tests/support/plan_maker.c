/* Arrays grow one by one, which is good enough for tests; whatever fails aborts. */
#include "plan_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "memory_store.h"
#include "stores.h"

static void *must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

static void *one_more(void *array, size_t count, size_t size)
{
    return must(realloc(array, (count + 1) * size));
}

struct sl_made *sl_made_new(void)
{
    struct sl_made *made = must(calloc(1, sizeof(*made)));
    made->plan.connections = (struct sl_connections){.first = 4, .most = 4};
    sl_fixed_parse(getenv("SLUICE_FIXED"), &made->plan.fixed, NULL); /* as a spec's */
    return made;
}

void sl_made_free(struct sl_made *made)
{
    for (size_t i = 0; i < made->plan.file_count; i++) {
        free(made->plan.files[i].name);
        free(made->images[i]);
    }
    for (size_t i = 0; i < made->plan.source_count; i++) {
        sl_source_free(made->plan.sources[i].source);
        sl_store_free(made->stores[i]);
        free(made->blobs[i]);
    }
    free(made->plan.sources);
    free(made->plan.files);
    free(made->plan.extents);
    free(made->plan.ranges);
    free(made->plan.literals);
    free(made->plan.checks);
    free(made->files);
    free(made->images);
    free(made->stores);
    free(made->blobs);
    free(made);
}

uint32_t sl_made_source(struct sl_made *made, const char *uri,
                        const struct sl_source_config *config)
{
    static const struct sl_source_config plain;
    size_t count = made->plan.source_count++;
    struct sl_err err = SL_ERR_INIT;
    char *key = NULL;
    made->plan.sources = one_more(made->plan.sources, count, sizeof(*made->plan.sources));
    made->stores = one_more(made->stores, count, sizeof(*made->stores));
    made->blobs = one_more(made->blobs, count, sizeof(*made->blobs));
    made->blobs[count] = NULL;
    made->plan.sources[count] = (struct sl_plan_source){.name = "source"};
    if (sl_store_open(uri, config ? config : &plain, &made->stores[count], &key, &err) < 0 ||
        sl_source_open(made->stores[count], key, 1, &made->plan.sources[count].source, &err) < 0) {
        fprintf(stderr, "%s: %s\n", uri, err.message);
        abort();
    }
    free(key);
    return (uint32_t)count;
}

uint32_t sl_made_file(struct sl_made *made, const char *name, uint64_t bytes)
{
    size_t count = made->plan.file_count++;
    made->plan.files = one_more(made->plan.files, count, sizeof(*made->plan.files));
    made->files = one_more(made->files, count, sizeof(*made->files));
    made->images = one_more(made->images, count, sizeof(*made->images));
    made->plan.files[count] = (struct sl_plan_file){must(strdup(name)), bytes};
    made->files[count] = (struct sl_sink_file){made->plan.files[count].name, bytes};
    made->images[count] = must(calloc(1, bytes + 1));
    return (uint32_t)count;
}

void sl_made_extent(struct sl_made *made, uint32_t source, uint64_t begin, uint64_t end,
                    uint32_t file, uint64_t offset, const uint8_t *data)
{
    size_t count = made->plan.extent_count++;
    made->plan.extents = one_more(made->plan.extents, count, sizeof(*made->plan.extents));
    made->plan.extents[count] = (struct sl_extent){begin, end, source, file, offset};
    made->open_extents++;
    if (data)
        memcpy(made->images[file] + offset, data, end - begin);
}

void sl_made_range(struct sl_made *made)
{
    if (!made->open_extents)
        return;
    size_t count = made->plan.range_count++;
    size_t first = made->plan.extent_count - made->open_extents;
    made->plan.ranges = one_more(made->plan.ranges, count, sizeof(*made->plan.ranges));
    made->plan.ranges[count] = (struct sl_range){
        made->plan.extents[first].begin, made->plan.extents[made->plan.extent_count - 1].end,
        made->plan.extents[first].source, (uint32_t)first, (uint32_t)made->open_extents};
    made->open_extents = 0;
}

void sl_made_whole(struct sl_made *made, uint32_t source, const char *name, uint64_t range_bytes,
                   const uint8_t *data)
{
    uint64_t bytes = sl_source_bytes(made->plan.sources[source].source);
    uint32_t file = sl_made_file(made, name, data ? bytes : 0);
    made->plan.files[file].bytes = made->files[file].bytes = bytes;
    for (uint64_t begin = 0; begin < bytes; begin += range_bytes) {
        uint64_t end = bytes - begin < range_bytes ? bytes : begin + range_bytes;
        sl_made_extent(made, source, begin, end, file, begin, data ? data + begin : NULL);
        sl_made_range(made);
    }
}

static void put_digest(struct sl_check *check, const uint8_t *data, uint64_t bytes)
{
    if (check->kind == SL_HASH_SHA256) {
        struct sl_sha256 *sha = must(sl_sha256_new(NULL));
        sl_sha256_update(sha, check->prefix, check->prefix_bytes);
        sl_sha256_update(sha, data, bytes);
        sl_sha256_finish(sha, check->expected);
        sl_sha256_free(sha);
        return;
    }
    uint32_t (*crc_of)(uint32_t, const void *, size_t) =
        check->kind == SL_HASH_CRC32 ? sl_crc32 : sl_crc32c;
    uint32_t crc = crc_of(crc_of(0, check->prefix, check->prefix_bytes), data, bytes);
    for (int i = 0; i < 4; i++)
        check->expected[i] = (uint8_t)(crc >> (24 - 8 * i));
}

struct sl_check *sl_made_check(struct sl_made *made, enum sl_hash_kind kind, uint32_t source,
                               uint64_t begin, uint64_t end, uint32_t file, uint64_t offset,
                               const uint8_t *data)
{
    static const uint8_t prefix[] = "prefix";
    size_t count = made->plan.check_count++;
    made->plan.checks = one_more(made->plan.checks, count, sizeof(*made->plan.checks));
    struct sl_check *check = &made->plan.checks[count];
    *check = (struct sl_check){.kind = kind,
                               .source = source,
                               .begin = begin,
                               .end = end,
                               .file = file,
                               .file_offset = offset,
                               .prefix = prefix,
                               .prefix_bytes = count % 3 * 3,
                               .what = "tensor 'made'"};
    put_digest(check, data, end - begin);
    return check;
}

void sl_made_literal(struct sl_made *made, uint32_t file, uint64_t offset, const uint8_t *data,
                     uint64_t bytes)
{
    size_t count = made->plan.literal_count++;
    made->plan.literals = one_more(made->plan.literals, count, sizeof(*made->plan.literals));
    made->plan.literals[count] = (struct sl_literal){file, offset, data, bytes};
    memcpy(made->images[file] + offset, data, bytes);
}

/* ---- chance --------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Mostly small, sometimes large: 1 to about `most`. */
static uint64_t some(uint64_t *state, uint64_t most)
{
    uint64_t limit = 1 + (most >> (next(state) % 12));
    return 1 + next(state) % limit;
}

void sl_made_noise(uint8_t *data, size_t bytes, unsigned seed)
{
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i % 8 ? state >> i % 8 * 8 : next(&state));
}

static void check_by_chance(struct sl_made *made, uint64_t *state, uint32_t source, uint64_t begin,
                            uint64_t end, uint32_t file, uint64_t offset, const uint8_t *data)
{
    for (uint64_t kinds = next(state) % 8, kind = 0; kind < 3; kind++)
        if (kinds >> kind & 1)
            sl_made_check(made, (enum sl_hash_kind)kind, source, begin, end, file, offset, data);
    uint64_t part = (end - begin) / 3;
    if (next(state) % 4 == 0)
        sl_made_check(made, SL_HASH_CRC32, source, begin + part, end, file, offset + part,
                      data + part);
    if (next(state) % 8 == 0)
        sl_made_check(made, SL_HASH_SHA256, source, begin, begin + part, file, offset, data);
}

/* One tensor, cut into some extents in some ranges. */
static void tensor_by_chance(struct sl_made *made, uint64_t *state, uint32_t source, uint64_t begin,
                             uint64_t end, uint32_t file, uint64_t offset, const uint8_t *data)
{
    check_by_chance(made, state, source, begin, end, file, offset, data);
    while (begin < end) {
        uint64_t cut = next(state) % 3 ? end - begin : some(state, end - begin);
        cut = cut < end - begin ? cut : end - begin;
        sl_made_extent(made, source, begin, begin + cut, file, offset, data);
        if (next(state) % 4 == 0)
            sl_made_range(made);
        begin += cut;
        offset += cut;
        data += cut;
    }
}

static void source_by_chance(struct sl_made *made, uint64_t *state, unsigned number)
{
    static const uint8_t head[100] = "a head";
    char uri[64], name[32];
    uint64_t bytes = some(state, 3 << 20), gap, at, offset = next(state) % sizeof(head);
    uint8_t *blob = must(malloc(bytes));
    sl_made_noise(blob, bytes, (unsigned)next(state));
    snprintf(name, sizeof(name), "made-%u", number);
    snprintf(uri, sizeof(uri), "memory:%s", name);
    if (sl_memory_put(name, blob, bytes, NULL) < 0)
        abort();
    uint32_t source = sl_made_source(made, uri, NULL);
    made->blobs[source] = blob;
    uint32_t file = sl_made_file(made, name, offset + bytes);
    if (offset)
        sl_made_literal(made, file, 0, head, offset);
    for (at = 0; at < bytes; at += gap) {
        uint64_t tensor = some(state, 1 << 20);
        tensor = tensor < bytes - at ? tensor : bytes - at;
        tensor_by_chance(made, state, source, at, at + tensor, file, offset, blob + at);
        offset += tensor;
        at += tensor;
        gap = next(state) % 2 ? some(state, 1 << 14) : 0;
    }
    sl_made_range(made);
}

struct sl_made *sl_made_random(unsigned seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    struct sl_made *made = sl_made_new();
    for (int i = 0; i < 8; i++)
        next(&state);
    unsigned count = 1 + (unsigned)(next(&state) % 4);
    for (unsigned i = 0; i < count; i++)
        source_by_chance(made, &state, i);
    return made;
}

int sl_made_compare(const struct sl_made *made, struct sl_sink *sink)
{
    for (size_t i = 0; i < made->plan.file_count; i++) {
        uint64_t bytes = made->files[i].bytes;
        uint8_t *data = must(malloc(bytes + 1));
        int failed = sl_sink_read(sink, (uint32_t)i, 0, data, bytes, NULL) < 0 ||
                     memcmp(data, made->images[i], bytes) != 0;
        free(data);
        if (failed)
            return -1;
    }
    return 0;
}
