/* See xet_store.h. A file is a row of chunks; terms are made of those that follow one another in a
 * xorb, cut to what a question is about. */
#include "xet_store.h"

#include <lz4frame.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "xet_chunk.h"

enum { CHUNKS_MAX = 512, XORBS_MAX = 64, XORB_CHUNKS = 5, ENTRIES_MAX = 512 };
static const size_t sizes[] = {100001, 8192, 50000, 3, 131072, 65537, 1};

struct chunk {
    unsigned xorb, number; /* in it */
    uint64_t place;        /* in the file */
    size_t bytes;
};
struct xorb {
    uint8_t *data;
    size_t bytes, begins[XORB_CHUNKS + 2]; /* of each chunk, and the end */
    unsigned schemes[XORB_CHUNKS + 1];
    unsigned chunks;
};
struct sl_xet_layout {
    struct chunk chunks[CHUNKS_MAX];
    unsigned chunk_count;
    struct xorb xorbs[XORBS_MAX];
    unsigned xorb_count;
    size_t spoilt; /* the place in the first xorb; 0: none */
};

/* ---- making ---------------------------------------------------------------------------------- */

static void group(const uint8_t *raw, size_t bytes, uint8_t *grouped)
{
    size_t at = 0;
    for (unsigned g = 0; g < 4; g++)
        for (size_t i = g; i < bytes; i += 4)
            grouped[at++] = raw[i];
}

size_t sl_xet_pack(unsigned scheme, const uint8_t *raw, size_t bytes, uint8_t *out)
{
    static uint8_t grouped[SL_XET_RAW_MAX];
    LZ4F_preferences_t preferences = {.frameInfo.blockMode = LZ4F_blockIndependent,
                                      .frameInfo.blockSizeID = LZ4F_max64KB};
    size_t packed = bytes;
    if (scheme == 2)
        group(raw, bytes, grouped);
    if (scheme)
        packed = LZ4F_compressFrame(out + 8, LZ4F_compressFrameBound(bytes, &preferences),
                                    scheme == 2 ? grouped : raw, bytes, &preferences);
    else
        memcpy(out + 8, raw, bytes);
    for (unsigned i = 0; i < 3; i++) {
        out[1 + i] = (uint8_t)(packed >> (8 * i));
        out[5 + i] = (uint8_t)(bytes >> (8 * i));
    }
    out[0] = 0;
    out[4] = (uint8_t)scheme;
    return packed + 8;
}

static void pack_into(struct xorb *xorb, unsigned scheme, const uint8_t *raw, size_t bytes)
{
    if (!xorb->data)
        xorb->data = malloc((XORB_CHUNKS + 1) * (size_t)(SL_XET_PACKED_MAX + 8));
    xorb->schemes[xorb->chunks++] = scheme;
    xorb->bytes += sl_xet_pack(scheme, raw, bytes, xorb->data + xorb->bytes);
    xorb->begins[xorb->chunks] = xorb->bytes;
}

/* It begins with what is not of the file. */
static void begin_xorb(struct xorb *xorb, bool alone)
{
    if (!alone)
        pack_into(xorb, 0, (const uint8_t *)"another's", 9);
}

/* A chunk of the same bytes that is kept already. */
static const struct chunk *find_same(const struct sl_xet_layout *layout, const uint8_t *data,
                                     const uint8_t *raw, size_t bytes)
{
    for (unsigned i = 0; i < layout->chunk_count; i++)
        if (layout->chunks[i].bytes == bytes &&
            memcmp(data + layout->chunks[i].place, raw, bytes) == 0)
            return &layout->chunks[i];
    return NULL;
}

static void add_chunk(struct sl_xet_layout *layout, const uint8_t *data, uint64_t place,
                      size_t bytes, bool alone)
{
    const struct chunk *same = find_same(layout, data, data + place, bytes);
    struct chunk *chunk = &layout->chunks[layout->chunk_count];
    if (layout->chunk_count == CHUNKS_MAX)
        abort();
    *chunk = same ? *same : (struct chunk){.bytes = bytes};
    chunk->place = place;
    if (!same) {
        if (!layout->xorb_count || layout->xorbs[layout->xorb_count - 1].chunks > XORB_CHUNKS)
            begin_xorb(&layout->xorbs[layout->xorb_count++], alone);
        struct xorb *xorb = &layout->xorbs[layout->xorb_count - 1];
        chunk->xorb = layout->xorb_count - 1;
        chunk->number = xorb->chunks;
        pack_into(xorb, layout->chunk_count % 3, data + place, bytes);
    }
    layout->chunk_count++;
}

static void offer(struct sl_xet_store *store, unsigned number)
{
    char path[32];
    snprintf(path, sizeof(path), "/xorb/%u", number);
    sl_server_put(store->cdn, path, store->layout->xorbs[number].data,
                  store->layout->xorbs[number].bytes, NULL);
}

void sl_xet_store_put(struct sl_xet_store *store, const uint8_t *data, size_t bytes)
{
    static struct sl_xet_node nodes[CHUNKS_MAX];
    struct sl_xet_layout *layout = store->layout;
    uint8_t hash[SL_XET_HASH_BYTES];
    for (uint64_t at = 0; at < bytes; at += layout->chunks[layout->chunk_count - 1].bytes) {
        size_t size = sizes[layout->chunk_count % SL_COUNT(sizes)];
        add_chunk(layout, data, at, SL_MIN(size, (size_t)(bytes - at)), store->shares_nothing);
    }
    for (unsigned i = 0; i < layout->chunk_count; i++) {
        nodes[i].bytes = layout->chunks[i].bytes;
        sl_xet_chunk_hash(data + layout->chunks[i].place, nodes[i].bytes, nodes[i].hash);
    }
    sl_xet_file_hash(nodes, layout->chunk_count, hash);
    sl_xet_hash_text(hash, store->file_hash);
    for (unsigned i = 0; i < layout->xorb_count; i++)
        offer(store, i);
}

void sl_xet_store_spoil(struct sl_xet_store *store, bool compressed)
{
    struct xorb *xorb = &store->layout->xorbs[0];
    for (unsigned i = 1; i < xorb->chunks; i++)
        if ((xorb->schemes[i] != 0) == compressed) {
            store->layout->spoilt = xorb->begins[i + 1] - 1;
            xorb->data[store->layout->spoilt] ^= 1;
            offer(store, 0);
            return;
        }
    abort();
}

void sl_xet_store_heal(struct sl_xet_store *store)
{
    if (!store->layout->spoilt)
        return;
    store->layout->xorbs[0].data[store->layout->spoilt] ^= 1;
    store->layout->spoilt = 0;
    offer(store, 0);
}

/* ---- answers --------------------------------------------------------------------------------- */

struct entry {
    unsigned xorb, first, end;
};

static void add_entry(struct entry *entries, unsigned *count, struct entry entry)
{
    for (unsigned i = 0; i < *count; i++)
        if (memcmp(&entries[i], &entry, sizeof(entry)) == 0)
            return;
    if (*count == ENTRIES_MAX)
        abort();
    entries[(*count)++] = entry;
}

static void write_entries(const struct sl_xet_store *store, const struct entry *entries,
                          unsigned count, struct sl_buf *text)
{
    for (unsigned x = 0, xorbs = 0; x < store->layout->xorb_count; x++) {
        unsigned written = 0;
        for (unsigned i = 0; i < count; i++) {
            const struct xorb *xorb = &store->layout->xorbs[x];
            if (entries[i].xorb != x)
                continue;
            if (!written++)
                sl_buf_printf(text, NULL, "%s\"%064u\": [", xorbs++ ? ", " : "", x);
            sl_buf_printf(text, NULL,
                          "%s{\"range\": {\"start\": %u, \"end\": %u}, \"url\": "
                          "\"http://127.0.0.1:%u/xorb/%u?sig=%u\", "
                          "\"url_range\": {\"start\": %zu, \"end\": %zu}}",
                          written > 1 ? ", " : "", entries[i].first, entries[i].end,
                          sl_server_port(store->cdn), x, store->signatures,
                          xorb->begins[entries[i].first], xorb->begins[entries[i].end] - 1);
        }
        if (written)
            sl_buf_text(text, "]", NULL);
    }
}

/* The chunks from first to below end, all of which are wanted. */
static void write_answer(const struct sl_xet_store *store, unsigned first, unsigned end,
                         uint64_t begin, struct sl_buf *text)
{
    static struct entry entries[ENTRIES_MAX];
    const struct chunk *chunks = store->layout->chunks;
    unsigned count = 0;
    sl_buf_printf(text, NULL, "{\"offset_into_first_range\": %llu, \"terms\": [",
                  (unsigned long long)(begin - chunks[first].place));
    for (unsigned i = first, next; i < end; i = next) {
        size_t bytes = chunks[i].bytes;
        for (next = i + 1; next < end && chunks[next].xorb == chunks[i].xorb &&
                           chunks[next].number == chunks[next - 1].number + 1;
             next++)
            bytes += chunks[next].bytes;
        const struct entry entry = {chunks[i].xorb, chunks[i].number, chunks[next - 1].number + 1};
        add_entry(entries, &count, entry);
        sl_buf_printf(text, NULL,
                      "%s{\"hash\": \"%064u\", \"unpacked_length\": %zu, "
                      "\"range\": {\"start\": %u, \"end\": %u}}",
                      i > first ? ", " : "", entry.xorb, bytes, entry.first, entry.end);
    }
    sl_buf_text(text, "], \"fetch_info\": {", NULL);
    write_entries(store, entries, count, text);
    sl_buf_text(text, "}}", NULL);
}

static void give_plan(struct sl_xet_store *store, uint64_t begin, uint64_t last,
                      struct sl_server_reply *reply)
{
    const struct sl_xet_layout *layout = store->layout;
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    unsigned first = 0, end;
    while (first < layout->chunk_count &&
           layout->chunks[first].place + layout->chunks[first].bytes <= begin)
        first++;
    for (end = first; end < layout->chunk_count && layout->chunks[end].place <= last;)
        end++;
    if (++store->asked == store->heals_at)
        sl_xet_store_heal(store);
    store->signatures++;
    if (first == end)
        reply->status = 416;
    else
        write_answer(store, first, end, begin, &text);
    reply->body = strdup(store->answer ? store->answer : sl_buf_string(&text));
    reply->body_bytes = strlen(reply->body);
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct sl_xet_store *store = arg;
    char text[256], path[128];
    unsigned token = 0;
    unsigned long long begin, last;
    snprintf(path, sizeof(path), "/v1/reconstructions/%s", store->file_hash);
    bool has = sl_server_header(request, "Authorization", text, sizeof(text));
    if (!has || sscanf(text, "Bearer xet-%u", &token) != 1)
        store->leaked_tokens += has;
    if (token < SL_MAX(store->oldest_token, 1u))
        reply->status = 401;
    else if (strcmp(request->target, path) != 0)
        reply->status = 404;
    else if (!sl_server_header(request, "Range", text, sizeof(text)) ||
             sscanf(text, "bytes=%llu-%llu", &begin, &last) != 2)
        reply->status = 400;
    else if (store->refuse_times) {
        store->refuse_times--;
        reply->status = store->refuse_status;
        snprintf(reply->headers, sizeof(reply->headers), "Retry-After: 0\r\n");
    } else
        give_plan(store, begin, last, reply);
    return true;
}

static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct sl_xet_store *store = arg;
    char text[256];
    const char *sig = strstr(request->target, "?sig=");
    store->leaked_tokens += sl_server_header(request, "Authorization", text, sizeof(text));
    if (sig && strtoul(sig + 5, NULL, 10) >= store->oldest_signed)
        return false;
    reply->status = 403;
    return true;
}

void sl_xet_store_start(struct sl_xet_store *store)
{
    *store = (struct sl_xet_store){.cas = sl_server_start(), .cdn = sl_server_start()};
    store->layout = calloc(1, sizeof(*store->layout));
    sl_server_handle(store->cas, answer, store);
    sl_server_handle(store->cdn, serve, store);
}

void sl_xet_store_stop(struct sl_xet_store *store)
{
    sl_server_stop(store->cas);
    sl_server_stop(store->cdn);
    for (unsigned i = 0; i < store->layout->xorb_count; i++)
        free(store->layout->xorbs[i].data);
    free(store->layout);
}

unsigned sl_xet_store_fetched(struct sl_xet_store *store)
{
    return sl_server_request_count(store->cdn);
}
