/*
 * Slots of a range each: as many as hold what the threads of a conversion work at, since the blocks
 * that they take begin and end within ranges, and neighbours are read by another thread. Who needs
 * a range that is in none takes the slot that was used the longest time ago, fetches and checks
 * without the lock, and tells those who waited for it. A thread holds one slot at a time, so two
 * are enough for none to wait for ever.
 */
#include "verified_reader.h"

#include <inttypes.h>
#include <string.h>

#include "fetch.h"
#include "hash.h"
#include "log.h"
#include "lower_bound.h"
#include "metrics.h"
#include "thread.h"
#include "verify.h"

enum { SLOTS_MIN = 2, SLOTS_MAX = 1024, TRIES_MAX = 4, PIECE_BYTES = 256 * 1024 };

enum state { EMPTY, LOADING, READY };
struct slot {
    uint64_t number; /* of the range, unless EMPTY */
    enum state state;
    unsigned users;
    uint64_t used; /* when it was taken last */
    uint8_t *data; /* of a range; NULL: not needed yet */
};
struct sl_verified_reader {
    struct sl_source_verifier base;
    const struct sl_sidecar *sidecar;
    char *what; /* "object 'a'" */
    struct sl_progress *progress;
    enum sl_hash_kind kind;
    struct sl_source_note *notes; /* of what was read before; by begin, or NULL */
    bool *proved;                 /* one a note; by who has the range that it lies in */
    size_t note_count;
    unsigned slot_count;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct {
        struct slot slots[SLOTS_MAX]; /* data of a READY one may be read by its users */
        uint64_t clock;
    } locked;
};

/* ---- one range ------------------------------------------------------------------------------- */

static struct sl_check check_of(const struct sl_verified_reader *verified, uint64_t number)
{
    struct sl_check check = {.kind = verified->kind,
                             .begin = number * verified->sidecar->range_bytes,
                             .end = sl_sidecar_range_end(verified->sidecar, (size_t)number),
                             .what = verified->what,
                             .range = true};
    sl_sidecar_expect(&verified->sidecar->ranges[number], &check);
    return check;
}

/* *tries: 1 at first. */
static int fetch_until_right(const struct sl_verified_reader *verified, struct sl_source *source,
                             const struct sl_check *check, uint8_t *data, unsigned *tries,
                             struct sl_err *err)
{
    size_t bytes = (size_t)(check->end - check->begin);
    for (;; ++*tries) {
        uint8_t digest[SL_HASH_BYTES_MAX] = {0};
        if (sl_source_read_checked(source, check->begin, data, bytes, *tries > 1, err) < 0 ||
            sl_digest_of(verified->kind, NULL, 0, data, bytes, digest, err) < 0)
            return -1;
        if (sl_verify_agrees(check, digest))
            return 0;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
        if (*tries == TRIES_MAX) {
            sl_verify_mismatch(check, digest, err);
            return sl_wrap(err, "fetched %d times", TRIES_MAX);
        }
        sl_log(SL_LOG_WARN,
               "%s: checksum mismatch in bytes %" PRIu64 " to %" PRIu64
               " of '%s': fetching them again",
               verified->what, check->begin, check->end, sl_source_uri(source));
        sl_metric_add(SL_M_REFETCHED_RANGES, 1);
        sl_progress_add_refetched(verified->progress);
        sl_source_doubt(source, check->begin, check->end);
    }
}

static int fetch_range(const struct sl_verified_reader *verified, struct sl_source *source,
                       uint64_t number, uint8_t *data, struct sl_err *err)
{
    struct sl_check check = check_of(verified, number);
    unsigned tries = 1;
    int failed = fetch_until_right(verified, source, &check, data, &tries, err);
    if (tries > 1)
        sl_source_settle(source, check.begin, check.end, !failed);
    return failed;
}

/* ---- what was read before -------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b)
{
    const struct sl_source_note *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int take_notes(struct sl_verified_reader *verified, struct sl_source *source,
                      struct sl_err *err)
{
    verified->notes = sl_source_take_notes(source, &verified->note_count);
    verified->proved = sl_alloc_array(verified->note_count + 1, sizeof(bool), err);
    if (verified->note_count)
        qsort(verified->notes, verified->note_count, sizeof(*verified->notes), by_begin);
    return verified->proved ? 0 : -1;
}

static int judge_note(struct sl_verified_reader *verified, size_t number, const uint8_t *digest,
                      struct sl_err *err)
{
    const struct sl_source_note *note = &verified->notes[number];
    verified->proved[number] = true;
    if (memcmp(note->sha256, digest, sizeof(note->sha256)) == 0)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                        "%s: its bytes %" PRIu64 " to %" PRIu64
                        " did not match its sidecar when its index was read: try again",
                        verified->what, note->begin, note->end);
}

/* Those within a range that is right. */
static int judge_within(struct sl_verified_reader *verified, uint64_t number, const uint8_t *data,
                        struct sl_err *err)
{
    const struct sl_source_note *notes = verified->notes;
    uint64_t begin = number * verified->sidecar->range_bytes;
    uint64_t end = sl_sidecar_range_end(verified->sidecar, (size_t)number);
    size_t i = SL_LOWER_BOUND(n, verified->note_count, notes[n].begin < begin);
    for (; i < verified->note_count && notes[i].begin < end; i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        if (verified->proved[i] || notes[i].end > end)
            continue;
        if (sl_digest_of(SL_HASH_SHA256, NULL, 0, data + (notes[i].begin - begin),
                         (size_t)(notes[i].end - notes[i].begin), digest, err) < 0 ||
            judge_note(verified, i, digest, err) < 0)
            return -1;
    }
    return 0;
}

static int guarded_read(struct sl_source_verifier *base, struct sl_source *source, uint64_t offset,
                        void *data, size_t bytes, struct sl_err *err);

/* One that lies in several ranges, piece by piece. */
static int judge_across(struct sl_verified_reader *verified, struct sl_source *source,
                        size_t number, struct sl_err *err)
{
    const struct sl_source_note note = verified->notes[number];
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    sl_autofree uint8_t *data = sha ? sl_alloc(PIECE_BYTES, err) : NULL;
    if (!data)
        return -1;
    for (uint64_t at = note.begin; at < note.end;) {
        size_t bytes = (size_t)SL_MIN(note.end - at, (uint64_t)PIECE_BYTES);
        if (guarded_read(&verified->base, source, at, data, bytes, err) < 0)
            return -1;
        sl_sha256_update(sha, data, bytes);
        at += bytes;
    }
    if (verified->proved[number]) /* as its range came */
        return 0;
    sl_sha256_finish(sha, digest);
    return judge_note(verified, number, digest, err);
}

int sl_verified_reader_prove(struct sl_verified_reader *verified, struct sl_source *source,
                             struct sl_err *err)
{
    for (size_t i = 0; i < verified->note_count; i++)
        if (!verified->proved[i] && judge_across(verified, source, i, err) < 0)
            return -1;
    return 0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static struct slot *find(struct sl_verified_reader *verified, uint64_t number)
{
    for (unsigned i = 0; i < verified->slot_count; i++) {
        struct slot *slot = &verified->locked.slots[i];
        if (slot->state != EMPTY && slot->number == number)
            return slot;
    }
    return NULL;
}

/* Whose range is needed least; NULL while all are in use. */
static struct slot *find_free(struct sl_verified_reader *verified)
{
    struct slot *found = NULL;
    for (unsigned i = 0; i < verified->slot_count; i++) {
        struct slot *slot = &verified->locked.slots[i];
        if (slot->state == EMPTY)
            return slot;
        if (slot->state == READY && !slot->users && (!found || slot->used < found->used))
            found = slot;
    }
    return found;
}

/* The lock is held, but not while the range is fetched. */
static int fill(struct sl_verified_reader *verified, struct slot *slot, struct sl_source *source,
                uint64_t number, struct sl_err *err)
{
    slot->number = number;
    slot->state = LOADING;
    pthread_mutex_unlock(&verified->lock);
    if (!slot->data)
        slot->data = sl_alloc_aligned(4096, (size_t)verified->sidecar->range_bytes, err);
    int done = slot->data ? fetch_range(verified, source, number, slot->data, err) : -1;
    if (done == 0)
        done = judge_within(verified, number, slot->data, err);
    pthread_mutex_lock(&verified->lock);
    slot->state = done < 0 ? EMPTY : READY;
    pthread_cond_broadcast(&verified->moved);
    return done;
}

/* The slot with the range, ours until give(). */
static struct slot *take(struct sl_verified_reader *verified, struct sl_source *source,
                         uint64_t number, struct sl_err *err)
{
    SL_LOCKED(&verified->lock);
    for (;;) {
        struct slot *slot = find(verified, number);
        if (!slot && (slot = find_free(verified)) && fill(verified, slot, source, number, err) < 0)
            return NULL;
        if (slot && slot->state == READY) {
            slot->users++;
            slot->used = ++verified->locked.clock;
            return slot;
        }
        pthread_cond_wait(&verified->moved, &verified->lock);
    }
}

static void give(struct sl_verified_reader *verified, struct slot *slot)
{
    SL_LOCKED(&verified->lock);
    if (--slot->users == 0)
        pthread_cond_broadcast(&verified->moved);
}

static int guarded_read(struct sl_source_verifier *base, struct sl_source *source, uint64_t offset,
                        void *data, size_t bytes, struct sl_err *err)
{
    struct sl_verified_reader *verified = (struct sl_verified_reader *)base;
    for (uint8_t *out = data; bytes;) {
        uint64_t number = offset / verified->sidecar->range_bytes;
        uint64_t begin = number * verified->sidecar->range_bytes;
        uint64_t end = sl_sidecar_range_end(verified->sidecar, (size_t)number);
        size_t piece = (size_t)SL_MIN((uint64_t)bytes, end - offset);
        struct slot *slot = take(verified, source, number, err);
        if (!slot)
            return -1;
        memcpy(out, slot->data + (offset - begin), piece);
        give(verified, slot);
        out += piece, offset += piece, bytes -= piece;
    }
    return 0;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Read again what was read before there was a verified reader, and compare. */
static int check_held(struct sl_verified_reader *verified, struct sl_source *source,
                      struct sl_err *err)
{
    size_t bytes = (size_t)sl_source_held(source);
    sl_autofree uint8_t *held = sl_alloc(bytes + 1, err);
    sl_autofree uint8_t *right = held ? sl_alloc(bytes + 1, err) : NULL;
    if (!right || (bytes && (sl_source_read(source, 0, held, bytes, err) < 0 ||
                             guarded_read(&verified->base, source, 0, right, bytes, err) < 0)))
        return -1;
    if (memcmp(held, right, bytes) == 0)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                        "%s: its first %zu bytes did not match its sidecar when its index was "
                        "read: try again",
                        verified->what, bytes);
}

struct sl_verified_reader *sl_verified_reader_new(struct sl_source *source,
                                                  const struct sl_sidecar *sidecar, bool strong,
                                                  uint64_t memory_bytes,
                                                  struct sl_progress *progress, struct sl_err *err)
{
    if (sidecar->range_bytes > SL_VERIFIED_READER_RANGE_BYTES_MAX) {
        sl_fail(err, SL_E_USAGE,
                "the sidecar of '%s' has ranges of %" PRIu64 " bytes, too large to check single "
                "reads by: sign it again with --range-bytes 8MiB",
                sl_source_name(source), sidecar->range_bytes);
        return NULL;
    }
    SL_AUTO(sl_verified_reader) verified = sl_alloc(sizeof(*verified), err);
    if (!verified)
        return NULL;
    uint64_t slots =
        (memory_bytes ? memory_bytes : SL_VERIFIED_READER_BYTES_MAX) / sidecar->range_bytes;
    verified->base.read = guarded_read;
    verified->sidecar = sidecar;
    verified->progress = progress;
    verified->kind = sl_sidecar_hash(sidecar, strong);
    verified->slot_count =
        (unsigned)SL_MIN(SL_MAX(slots, (uint64_t)SLOTS_MIN), (uint64_t)SLOTS_MAX);
    pthread_mutex_init(&verified->lock, NULL);
    pthread_cond_init(&verified->moved, NULL);
    verified->what = sl_asprintf(err, "object '%s'", sl_source_name(source));
    if (!verified->what || take_notes(verified, source, err) < 0 ||
        check_held(verified, source, err) < 0)
        return NULL;
    sl_source_set_verifier(source, &verified->base);
    return sl_steal(&verified);
}

void sl_verified_reader_free(struct sl_verified_reader *verified)
{
    if (!verified)
        return;
    for (unsigned i = 0; i < verified->slot_count; i++)
        free(verified->locked.slots[i].data);
    free(verified->notes);
    free(verified->proved);
    free(verified->what);
    pthread_cond_destroy(&verified->moved);
    pthread_mutex_destroy(&verified->lock);
    free(verified);
}
