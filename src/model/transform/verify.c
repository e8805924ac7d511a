/*
 * Which checks a piece belongs to is found in an interval tree: the checks sorted by source and
 * begin, every middle of a (sub)array knowing the largest end below it, so whole-object checks over
 * per-tensor ones cost O(log n) as well. What arrived of a check is kept as merged pieces with the
 * CRC of each; most checks are small, lie within one piece and never need that. One lock guards all
 * state; hashing is done outside it. The hashing threads are in hash_workers.c, and what comes of a
 * hash in verify_judge.c.
 */
#include "verify.h"

#include <string.h>

#include "hash.h"
#include "hash_workers.h"
#include "lower_bound.h"

enum { READ_BACK_BYTES = 256 * 1024 };

/* What is fed: bytes [begin, end) of a source, and where they can be seen. */
struct feed {
    const struct sl_verify_bytes *landed;
    uint64_t begin, end;
    const uint8_t *data;    /* NULL: read them back through buffer */
    const uint32_t *crc32c; /* of all of them; NULL: not known */
    uint8_t *buffer;
    bool resumed; /* they landed in an earlier load */
};

static int by_begin(const void *a, const void *b)
{
    const struct sl_check *x = ((const struct sl_verify_item *)a)->check;
    const struct sl_check *y = ((const struct sl_verify_item *)b)->check;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end ? 1 : 0;
}

/* ---- the tree ------------------------------------------------------------------------------- */

static uint64_t plant(struct sl_verify_item *items, size_t low, size_t high)
{
    if (low == high)
        return 0;
    size_t middle = low + (high - low) / 2;
    uint64_t left = plant(items, low, middle), right = plant(items, middle + 1, high);
    uint64_t end = SL_MAX(items[middle].check->end, SL_MAX(left, right));
    items[middle].max_end = end;
    return end;
}

/* How many of the sorted items lie before this source. */
static size_t items_before(const struct sl_verify *verify, uint64_t source)
{
    return SL_LOWER_BOUND(i, verify->item_count, verify->items[i].check->source < source);
}

static void plant_all(struct sl_verify *verify)
{
    for (size_t low = 0; low < verify->item_count;) {
        size_t high = items_before(verify, (uint64_t)verify->items[low].check->source + 1);
        plant(verify->items, low, high);
        low = high;
    }
}

/* Bytes that several checks cover count as verified once, for the one that begins first. */
static void count_fresh(struct sl_verify *verify)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < verify->item_count; i++) {
        const struct sl_check *check = verify->items[i].check;
        if (i == 0 || verify->items[i - 1].check->source != check->source)
            covered = 0;
        uint64_t begin = SL_MAX(check->begin, covered);
        verify->items[i].fresh = check->end > begin ? check->end - begin : 0;
        covered = SL_MAX(covered, check->end);
    }
}

/* ---- the end of a check --------------------------------------------------------------------- */

static struct sl_verify_item *item_of(struct sl_verify *verify, const struct sl_check *check)
{
    const struct sl_verify_item key = {.check = check};
    size_t at = SL_LOWER_BOUND(i, verify->item_count, by_begin(&verify->items[i], &key) < 0);
    while (verify->items[at].check != check)
        at++;
    return &verify->items[at];
}

void sl_verify_settle(struct sl_verify *verify, const struct sl_check *check,
                      const struct sl_err *why)
{
    sl_verify_conclude(verify, item_of(verify, check), why);
    SL_LOCKED(&verify->lock);
    verify->locked.doubtful--;
    pthread_cond_broadcast(&verify->idle);
}

static bool has_crc(enum sl_hash_kind kind, const struct feed *feed, uint64_t begin, uint64_t end)
{
    return kind == SL_HASH_CRC32C && feed->crc32c && begin == feed->begin && end == feed->end;
}

/* The CRC of bytes [begin, end) of what is fed. */
static uint64_t crc_of_feed(enum sl_hash_kind kind, const struct feed *feed, uint64_t begin,
                            uint64_t end)
{
    if (has_crc(kind, feed, begin, end))
        return *feed->crc32c;
    return sl_crc_of(kind, 0, feed->data + (begin - feed->begin), (size_t)(end - begin));
}

/* crc is that of all bytes of the check, without its prefix. */
static int complete_crc(struct sl_verify *verify, struct sl_verify_item *item, uint64_t crc,
                        struct sl_err *err)
{
    const struct sl_check *check = item->check;
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (check->prefix_bytes) {
        uint64_t prefix = sl_crc_of(check->kind, 0, check->prefix, check->prefix_bytes);
        crc = sl_crc_join(check->kind, prefix, crc, check->end - check->begin);
    }
    sl_crc_digest(check->kind, crc, digest);
    return sl_verify_complete(verify, item, digest, err);
}

void sl_verify_take_crc(struct sl_verify *verify, const struct sl_check *check, uint32_t crc)
{
    complete_crc(verify, item_of(verify, check), crc, NULL); /* what is wrong is remembered */
}

/* The whole check lies in memory. */
static int complete_at_once(struct sl_verify *verify, struct sl_verify_item *item,
                            const uint8_t *data, struct sl_err *err)
{
    const struct sl_check *check = item->check;
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (sl_digest_of(check->kind, check->prefix, check->prefix_bytes, data,
                     (size_t)(check->end - check->begin), digest, err) < 0)
        return -1;
    return sl_verify_complete(verify, item, digest, err);
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* Put one piece among the others, joined with its neighbours. The lock is held. */
static int add_piece(struct sl_verify_item *item, struct sl_verify_piece piece, struct sl_err *err)
{
    enum sl_hash_kind kind = item->check->kind;
    size_t at = item->piece_count;
    while (at && item->pieces[at - 1].begin > piece.begin)
        at--;
    struct sl_verify_piece *before = at ? &item->pieces[at - 1] : NULL;
    struct sl_verify_piece *after = at < item->piece_count ? &item->pieces[at] : NULL;
    if ((before && before->end > piece.begin) || (after && after->begin < piece.end))
        return sl_fail(err, SL_E_INTERNAL, "%s: bytes were fed to its hash twice",
                       item->check->what);
    bool crcs = !sl_hash_is_ordered(kind);
    if (before && before->end == piece.begin) {
        if (crcs)
            before->crc = sl_crc_join(kind, before->crc, piece.crc, piece.end - piece.begin);
        before->end = piece.end;
    } else {
        if (sl_grow(&item->pieces, &item->piece_capacity, item->piece_count + 1,
                    sizeof(*item->pieces), err) < 0)
            return -1;
        before = &item->pieces[at];
        memmove(before + 1, before, (item->piece_count++ - at) * sizeof(*before));
        *before = piece;
    }
    after = before + 1;
    if (after == item->pieces + item->piece_count || after->begin != before->end)
        return 0;
    if (crcs)
        before->crc = sl_crc_join(kind, before->crc, after->crc, after->end - after->begin);
    before->end = after->end;
    memmove(after, after + 1,
            (size_t)(item->pieces + --item->piece_count - after) * sizeof(*after));
    return 0;
}

static bool is_whole(const struct sl_verify_item *item)
{
    return item->pieces[0].begin == item->check->begin && item->pieces[0].end == item->check->end;
}

static enum sl_delivery delivery_of(struct sl_verify *verify, const struct sl_verify_item *item)
{
    const struct sl_check *check = item->check;
    bool resumed;
    {
        SL_LOCKED(&verify->lock);
        resumed = item->resumed;
    }
    return check->delivery && !resumed && verify->config.delivery
               ? verify->config.delivery(verify->config.arg, check)
               : SL_DELIVERY_UNCHECKED;
}

/* As long as its delivery may turn out to be checked nothing is hashed: either all of it is right
 * without, or all of it is read back then. */
static int land_ordered(struct sl_verify *verify, struct sl_verify_item *item, bool whole,
                        struct sl_err *err)
{
    enum sl_delivery delivery = delivery_of(verify, item);
    {
        SL_LOCKED(&verify->lock);
        if (item->delivered || (!item->task && delivery != SL_DELIVERY_UNCHECKED && !whole))
            return 0;
        if (item->task || delivery != SL_DELIVERY_CHECKED)
            return sl_verify_add_task(verify, item, err);
        item->delivered = true;
    }
    sl_verify_conclude(verify, item, NULL);
    return 0;
}

static int land(struct sl_verify *verify, struct sl_verify_item *item, uint64_t begin, uint64_t end,
                uint64_t crc, struct sl_err *err)
{
    bool whole, ordered = sl_hash_is_ordered(item->check->kind);
    {
        SL_LOCKED(&verify->lock);
        if (add_piece(item, (struct sl_verify_piece){begin, end, crc}, err) < 0)
            return -1;
        whole = is_whole(item);
        if (whole && !ordered) {
            crc = item->pieces[0].crc;
            free(sl_steal(&item->pieces));
            item->piece_count = item->piece_capacity = 0;
        }
    }
    if (ordered)
        return land_ordered(verify, item, whole, err);
    return whole ? complete_crc(verify, item, crc, err) : 0;
}

static int land_from_sink(struct sl_verify *verify, struct sl_verify_item *item, uint64_t begin,
                          uint64_t end, uint8_t *buffer, struct sl_err *err)
{
    const struct sl_check *check = item->check;
    uint64_t crc = 0;
    for (uint64_t at = begin; !sl_hash_is_ordered(check->kind) && at < end;) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)READ_BACK_BYTES);
        if (verify->config.read(verify->config.arg, check->file,
                                check->file_offset + (at - check->begin), buffer, bytes, err) < 0)
            return -1;
        crc = sl_crc_of(check->kind, crc, buffer, bytes);
        at += bytes;
    }
    return land(verify, item, begin, end, crc, err);
}

/* Bytes that several tensors share land several times, for each check in its own place. */
static bool is_elsewhere(const struct sl_check *check, const struct feed *feed)
{
    const struct sl_verify_bytes *landed = feed->landed;
    return check->placed && landed->placed &&
           (landed->file != check->file ||
            landed->file_offset + check->begin != check->file_offset + landed->begin);
}

static int feed_item(struct sl_verify *verify, struct sl_verify_item *item, const struct feed *feed,
                     struct sl_err *err)
{
    const struct sl_check *check = item->check;
    uint64_t begin = SL_MAX(feed->begin, check->begin), end = SL_MIN(feed->end, check->end);
    if (begin >= end || check->crc_on == SL_ON_DEVICE || is_elsewhere(check, feed))
        return 0;
    if (feed->resumed) {
        SL_LOCKED(&verify->lock);
        item->resumed = true;
    }
    bool known = has_crc(check->kind, feed, begin, end);
    if (!feed->data && !known)
        return land_from_sink(verify, item, begin, end, feed->buffer, err);
    if (feed->data && begin == check->begin && end == check->end)
        return complete_at_once(verify, item, feed->data + (begin - feed->begin), err);
    uint64_t crc = 0;
    if (!sl_hash_is_ordered(check->kind))
        crc = crc_of_feed(check->kind, feed, begin, end);
    return land(verify, item, begin, end, crc, err);
}

static int feed_tree(struct sl_verify *verify, size_t low, size_t high, const struct feed *feed,
                     struct sl_err *err)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        struct sl_verify_item *item = &verify->items[middle];
        if (item->max_end <= feed->begin)
            return 0;
        if (feed_tree(verify, low, middle, feed, err) < 0)
            return -1;
        if (item->check->begin >= feed->end)
            return 0;
        if (feed_item(verify, item, feed, err) < 0)
            return -1;
        low = middle + 1;
    }
    return 0;
}

static int feed_source(struct sl_verify *verify, uint32_t source, const struct feed *feed,
                       struct sl_err *err)
{
    if (!verify->item_count || feed->begin == feed->end)
        return 0;
    size_t low = items_before(verify, source), high = items_before(verify, (uint64_t)source + 1);
    if (feed_tree(verify, low, high, feed, err) < 0)
        return -1;
    SL_LOCKED(&verify->lock);
    if (!verify->locked.err.kind)
        return 0;
    if (err)
        *err = verify->locked.err;
    return -1;
}

static int take(struct sl_verify *verify, const struct sl_verify_bytes *landed, bool resumed,
                struct sl_err *err)
{
    struct feed feed = {.landed = landed,
                        .resumed = resumed,
                        .begin = landed->begin,
                        .end = landed->begin + landed->bytes,
                        .data = landed->data,
                        .crc32c = landed->crc32c};
    if (landed->data || !verify->item_count)
        return feed_source(verify, landed->source, &feed, err);
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, READ_BACK_BYTES, err);
    if (!buffer)
        return -1;
    feed.buffer = buffer;
    return feed_source(verify, landed->source, &feed, err);
}

int sl_verify_take(struct sl_verify *verify, const struct sl_verify_bytes *landed,
                   struct sl_err *err)
{
    return take(verify, landed, false, err);
}

int sl_verify_feed(struct sl_verify *verify, uint32_t source, uint64_t begin, const void *data,
                   size_t bytes, struct sl_err *err)
{
    struct sl_verify_bytes landed = {
        .source = source, .begin = begin, .bytes = bytes, .data = data};
    return bytes ? sl_verify_take(verify, &landed, err) : 0;
}

int sl_verify_feed_landed(struct sl_verify *verify, uint32_t source, uint64_t begin, uint64_t bytes,
                          struct sl_err *err)
{
    struct sl_verify_bytes landed = {.source = source, .begin = begin, .bytes = bytes};
    return take(verify, &landed, true, err);
}

/* ---- life ----------------------------------------------------------------------------------- */

static int complete_empty(struct sl_verify *verify, struct sl_err *err)
{
    for (size_t i = 0; i < verify->item_count; i++) {
        struct sl_verify_item *item = &verify->items[i];
        if (item->check->begin == item->check->end &&
            complete_at_once(verify, item, NULL, err) < 0 && !verify->locked.err.kind)
            return -1; /* a mismatch is told by the first feed or by finish */
    }
    return 0;
}

struct sl_verify *sl_verify_new(const struct sl_check *checks, size_t count,
                                const struct sl_verify_config *config, struct sl_err *err)
{
    SL_AUTO(sl_verify) verify = sl_alloc(sizeof(*verify), err);
    if (!verify)
        return NULL;
    verify->config = *config;
    sl_verify_tasks_init(verify);
    verify->items = sl_alloc_array(count, sizeof(*verify->items), err);
    if (!verify->items)
        return NULL;
    bool sorted = true;
    for (size_t i = 0; i < count; i++) {
        struct sl_verify_item *item = &verify->items[verify->item_count];
        if (checks[i].ordered || (config->passes && config->passes(config->arg, &checks[i])))
            continue;
        item->check = &checks[i];
        sorted = sorted && (verify->item_count == 0 || by_begin(item - 1, item) <= 0);
        verify->item_count++;
    }
    verify->locked.remaining = verify->item_count;
    if (!sorted)
        qsort(verify->items, verify->item_count, sizeof(*verify->items), by_begin);
    plant_all(verify);
    count_fresh(verify);
    return complete_empty(verify, err) < 0 ? NULL : sl_steal(&verify);
}

void sl_verify_free(struct sl_verify *verify)
{
    if (!verify)
        return;
    sl_verify_tasks_release(verify);
    for (size_t i = 0; verify->items && i < verify->item_count; i++)
        free(verify->items[i].pieces);
    free(verify->items);
    free(verify);
}
