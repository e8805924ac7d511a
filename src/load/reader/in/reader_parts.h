/* Inside the reader: what its threads share, and the pieces they are made of. */
#ifndef SL_READER_PARTS_H
#define SL_READER_PARTS_H

#include "crypt.h"
#include "fetch.h"
#include "file_queues.h"
#include "hash.h"
#include "host_growth.h"
#include "mapping.h"
#include "pace.h"
#include "reader.h"
#include "thread.h"
#include "verify.h"

/** Is this file there already (sl_sink_file)? */
static inline bool sl_is_inherited(const struct sl_sink *sink, uint32_t file)
{
    return file < sink->file_count && sink->files[file].inherited;
}

/* ---- work: the ranges that are left to read ------------------------------------------------- */

struct sl_work {
    const struct sl_range *ranges;
    size_t range_count;
    const struct sl_extent *extents;
    struct sl_range *own_ranges; /* not NULL: a resumed load reads only what is missing, or it has
                                    an order of its own */
    struct sl_extent *own_extents;
    struct sl_stretch *kept; /* stretches of files, sorted: only if the plan composes */
    size_t kept_count, kept_capacity;
    uint64_t resumed_bytes;
    uint64_t inherited_bytes; /* of files that are */
};
struct sl_stretch {
    uint32_t file;
    uint64_t begin, end;
};
struct sl_deferred;
/**
 * Find the work of a load: the plan's ranges less what is inherited and what the journal vouches
 * for.
 *
 * @work      out: release it, after a failure too.
 * @plan      borrowed until then.
 * @sink      holds what was kept, and says which files are inherited.
 * @journal   NULL: there is none, and all ranges are left.
 * @verify    is fed the kept bytes.
 * @deferred  the same; NULL: no headers wait.
 * @return    0, or -1 with the errors of the journal and of both.
 */
int sl_work_make(struct sl_work *work, const struct sl_plan *plan, struct sl_sink *sink,
                 struct sl_journal *journal, struct sl_verify *verify, struct sl_deferred *deferred,
                 struct sl_err *err);
/** Into an order of this load's own, for many that read the same through caches
 * (sl_caches_order()); its ranges of a file stay side by side. SL_E_NO_SPACE. */
int sl_work_scatter(struct sl_work *work, const struct sl_plan *plan, uint64_t seed,
                    struct sl_err *err);
void sl_work_release(struct sl_work *work);
/**
 * Does the journal vouch for these bytes of a file? Only for what is composed.
 *
 * @file        its number in the plan.
 * @begin, end  in the file.
 * @return      true: they need not be made again.
 */
bool sl_work_keeps(const struct sl_work *work, uint32_t file, uint64_t begin, uint64_t end);

/** A range, or a part of one, for a slot. */
struct sl_reader_job {
    struct sl_range range;
};

enum { SL_WRITE_TURNS = 64, SL_HEDGE_CREDIT = 128 /* of a load that begins */ };

/* ---- repair: what came wrong, once more (repair.c) ----------------------------------------- */

/** Bytes of a file that were replaced by right ones. */
struct sl_repaired {
    uint32_t file, crc32c;
    uint64_t begin, end;
};
struct sl_repair {
    pthread_mutex_t lock;
    pthread_cond_t more; /* checks or stop changed */
    pthread_t thread;
    struct {
        const struct sl_check **checks; /* next of them are done or in work */
        size_t count, capacity, next;
        bool started, stop;
    } locked;
    struct sl_repaired *repaired; /* the thread's own until it is gone */
    size_t repaired_count, repaired_capacity;
};
struct sl_reader;
void sl_repair_init(struct sl_repair *repair);
/** As sl_verify_config.repair: a few tries, then sl_verify_settle(). Any thread; SL_E_CANCELED
 * after sl_repair_stop(). */
int sl_repair_add(struct sl_reader *reader, const struct sl_check *check, struct sl_err *err);
/** End the thread; before verify is freed. */
void sl_repair_stop(struct sl_repair *repair);
void sl_repair_release(struct sl_repair *repair);

/* ---- what the threads share ----------------------------------------------------------------- */

/** The next block of what is composed. */
struct sl_block_cursor {
    size_t target;  /* whose blocks are taken */
    uint64_t bytes; /* of it: taken */
    uint64_t count; /* of all blocks: taken */
};
struct sl_reader {
    const struct sl_plan *plan;
    struct sl_sink *sink;
    struct sl_journal *journal; /* may be NULL */
    const struct sl_reader_config *config;
    struct sl_verify *verify;
    struct sl_deferred *deferred; /* NULL: none */
    struct sl_work work;
    struct sl_repair repair;
    struct sl_cancel *stop; /* raised by the first failure */
    struct sl_cancel *done; /* raised when the last range has ended */
    struct sl_load_facts facts;
    struct sl_concurrency concurrency; /* decided before the threads start; growth: see locked */
    unsigned given_max;
    uint64_t began_ns;
    uint64_t asked_before;       /* requests for the plan's objects until then */
    enum sl_vouch *vouches;      /* of each source; NULL: none */
    bool started;                /* it has its threads */
    bool forms, grows;           /* some bytes change on their way; and become more */
    struct sl_counter landed;    /* bytes of this run */
    struct sl_counter dropped;   /* that came between rows */
    struct sl_counter decrypted; /* encrypted pieces whose MAC agreed */
    struct sl_counter resumed;   /* bytes that the journal vouched for */
    struct sl_counter inherited; /* bytes that another version had */
    /*
     * Whose turn it is to write to a file (number modulo SL_WRITE_TURNS): writers that meet at the
     * page cache's lock of one file spin and burn CPU, so a thread that finds it taken goes on with
     * its other slots.
     */
    pthread_mutex_t turns[SL_WRITE_TURNS];
    pthread_mutex_t lock;
    struct {
        struct sl_file_queues queues;
        struct sl_block_cursor composed;
        struct sl_reader_job *given; /* jobs that slots gave away, at most given_max */
        unsigned given_count;
        unsigned busy;         /* ranges that are being read */
        unsigned idle;         /* slots that would take one */
        unsigned doubtful;     /* slots that may be slow */
        uint64_t waste;        /* bytes that answers broken off may cost */
        unsigned hedge_credit; /* each range adds 1, a request sent again takes many */
        struct sl_pace pace;
        unsigned slots;              /* open now */
        size_t begun;                /* slots so far, each with its first request */
        unsigned slots_most;         /* that were open at a time */
        size_t window_most;          /* that a slot chose */
        unsigned wanted;             /* connections that the growth asks for */
        unsigned throttled;          /* answers since the last tick */
        struct sl_host_share growth; /* its part of what all loads have of the host */
        struct sl_weigh weigh;
        const struct sl_check **bad; /* checks that did not match */
        size_t bad_count, bad_capacity;
        struct sl_err err; /* the first */
    } locked;
};
/** The first failure counts and stops everyone. */
void sl_reader_fail(struct sl_reader *reader, const struct sl_err *err);
/** The reader's treatment of wrong bytes of this source. Any thread. */
enum sl_vouch sl_reader_vouch(const struct sl_reader *reader, uint32_t source);

/* ---- jobs: who reads what (any thread) ------------------------------------------------------ */

/** Something to read for one of the threads, to be followed by sl_reader_ended(). False if there is
 * nothing now or the load has failed. */
bool sl_reader_take(struct sl_reader *reader, unsigned thread, struct sl_reader_job *job);
/**
 * As sl_reader_take(), of a load that is pinned: the range of this number, which nobody else takes.
 *
 * @thread  the number of the one that reads.
 * @number  of the range in the work; each once.
 * @job     out: to be followed by sl_reader_ended().
 * @return  false if the work has no range of that number, or the load has failed.
 */
bool sl_reader_deal(struct sl_reader *reader, unsigned thread, size_t number,
                    struct sl_reader_job *job);
/** This thread reads nothing for now: others may go on with its file. */
void sl_reader_leave(struct sl_reader *reader, unsigned thread);
/** An answer began, so long after its request; fresh: on a connection that may be new. */
void sl_reader_began(struct sl_reader *reader, uint64_t first_ns, bool fresh);
/**
 * Tell that a taken range has been read.
 *
 * @bytes   what it weighed, as of sl_slot_weight().
 * @ns      that it took.
 * @gap_ns  the longest pause between two reads; 0: all came in one.
 */
void sl_reader_ended(struct sl_reader *reader, uint64_t bytes, uint64_t ns, uint64_t gap_ns);
/** Nothing is left to read and nobody reads, or the load has failed. */
bool sl_reader_finished(struct sl_reader *reader);
/** Only what slots give away is left to take. */
bool sl_reader_used_up(struct sl_reader *reader);
/** So many bytes, as they are fetched, lie there since another version had them. */
void sl_reader_count_inherited(struct sl_reader *reader, uint64_t bytes);
/** Give a part away: true if someone idle will have it. */
bool sl_reader_give(struct sl_reader *reader, const struct sl_reader_job *job);
/** A request that is slow. */
struct sl_slow {
    uint64_t landed_then; /* reader->landed when it fell into doubt */
    uint64_t quiet_ns;    /* so long nothing came */
    uint64_t unread;      /* sl_slot_unread_bytes() */
    uint64_t range_bytes; /* of its range */
    bool begun, fresh;    /* its answer; its connection may be new */
    bool stuck;           /* it would be slow even if it were the only one */
};
/** Whether it may be sent again; if so it is counted. */
bool sl_reader_may_hedge(struct sl_reader *reader, const struct sl_slow *slow);
/** May an answer be broken off, of which so many bytes came and would not be read? If so more are
 * on their way, and all are counted against what a load may waste. */
bool sl_reader_may_waste(struct sl_reader *reader, uint64_t unread);
/** sl_pace_delays() of this load. */
struct sl_latency_delays sl_reader_delays(struct sl_reader *reader);
/** Whether sl_reader_give() would find someone. */
bool sl_reader_hungry(struct sl_reader *reader);
void sl_reader_count_idle(struct sl_reader *reader, int change);
void sl_reader_count_doubtful(struct sl_reader *reader, int change);
/** Bytes that a request of this size is worth by now; *span: most bytes of one request. */
uint64_t sl_reader_worth(struct sl_reader *reader, uint64_t row, uint64_t *span);
/** sl_pace_expect() of this load. */
uint64_t sl_reader_expect(struct sl_reader *reader, uint64_t bytes);

/* ---- writer: bytes go to the sink, the hashes and the journal ------------------------------ */

enum { SL_STRETCH_BYTES = 1024 * 1024 /* of a slot; the journal is told of so many at once */ };
/** One slot's stretch of written bytes that the journal has not got yet. */
struct sl_writer {
    struct sl_reader *reader;
    uint32_t file, crc;
    uint64_t begin, end; /* equal: none */
    uint64_t began_ns;   /* when its first bytes were written */
};
/**
 * Write source bytes of an extent that land as they are, and tell checks, headers, journal and
 * device of them.
 *
 * @extent  the first one; the bytes may go on into the next, if that follows in source and file.
 * @begin   of the bytes, in the source.
 * @data    `bytes` bytes.
 * @return  0, or -1: errors of the sink and the journal; SL_E_INTEGRITY: a check failed.
 */
int sl_writer_write(struct sl_writer *writer, const struct sl_extent *extent, uint64_t begin,
                    const uint8_t *data, size_t bytes, struct sl_err *err);
/** As above for bytes that were read straight into the place. */
int sl_writer_commit(struct sl_writer *writer, const struct sl_extent *extent,
                     const struct sl_place *place, struct sl_err *err);
/** Tell the journal what it has not got yet. */
int sl_writer_flush(struct sl_writer *writer, struct sl_err *err);
/** The same if it is that old. */
int sl_writer_flush_old(struct sl_writer *writer, uint64_t now_ns, struct sl_err *err);
/** Bytes that came longer ago than this are written, and in the journal. */
#define SL_UNTOLD_NS (250 * SL_NS_PER_MS)
/**
 * Count bytes of a file that are in the sink and as they should be, and note them for the journal.
 *
 * @file        its number in the plan.
 * @begin, end  in the file.
 * @crc         CRC32C of the bytes.
 * @fetched     how many were fetched for them, which is what is counted.
 * @return      0, or -1 with errors of the journal.
 */
int sl_writer_note(struct sl_writer *writer, uint32_t file, uint64_t begin, uint64_t end,
                   uint32_t crc, uint64_t fetched, struct sl_err *err);
/**
 * Tell the device, if the load has one, what landed.
 *
 * @file    its number in the plan.
 * @offset  of the bytes in the file.
 * @bytes   0: it is not told.
 */
void sl_writer_report(struct sl_reader *reader, uint32_t file, uint64_t offset, uint64_t bytes);
/**
 * Copy bytes into the sink, and no more: nothing is counted, checked or noted.
 *
 * @file    its number in the plan.
 * @offset  of the bytes in the file.
 * @data    `bytes` bytes.
 * @return  0, or -1: SL_E_NO_SPACE; as sl_sink_reserve().
 */
int sl_writer_put(struct sl_reader *reader, uint32_t file, uint64_t offset, const uint8_t *data,
                  uint64_t bytes, struct sl_err *err);
/** The plan's own bytes. */
int sl_writer_literal(struct sl_reader *reader, const struct sl_literal *literal,
                      struct sl_err *err);

/* ---- deferred: headers that hold hashes (deferred_headers.c) -------------------------------- */

struct sl_deferred;
/** *deferred is NULL if the plan has none; the functions below take that. */
int sl_deferred_new(struct sl_deferred **deferred, struct sl_reader *reader, struct sl_err *err);
void sl_deferred_free(struct sl_deferred *deferred);
SL_AUTO_DEFINE(sl_deferred)
/**
 * Tell of bytes that are final and in the sink (each byte once, in any order): whoever commits what
 * is to be published calls this. Writes headers that are complete now.
 *
 * @deferred  NULL: nothing is done.
 * @file      its number in the plan.
 * @offset    of the bytes in the file.
 * @data      `bytes` bytes.
 * @return    0, or -1: the headers cannot be hashed or written.
 *
 * Any thread.
 */
int sl_deferred_feed(struct sl_deferred *deferred, uint32_t file, uint64_t offset, const void *data,
                     size_t bytes, struct sl_err *err);
/**
 * As sl_deferred_feed(), of bytes that the journal keeps: they are read back.
 *
 * @deferred  NULL: nothing is done.
 * @file      its number in the plan.
 * @offset    of the bytes in the file.
 * @bytes     how many.
 * @return    0, or -1: as sl_deferred_feed(), or they cannot be read.
 */
int sl_deferred_feed_landed(struct sl_deferred *deferred, uint32_t file, uint64_t offset,
                            uint64_t bytes, struct sl_err *err);
/**
 * Make headers anew over bytes that were others when they were fed. Every header has been written.
 *
 * @deferred    NULL: nothing is done.
 * @file        its number in the plan.
 * @begin, end  of the bytes in the file.
 * @return      0, or -1: the data cannot be read, or a header not written.
 */
int sl_deferred_redo(struct sl_deferred *deferred, uint32_t file, uint64_t begin, uint64_t end,
                     struct sl_err *err);
/** Everything was fed: wait until every header is written. */
int sl_deferred_finish(struct sl_deferred *deferred, struct sl_err *err);

/* ---- transform: stored bytes become what is written ----------------------------------------- */

/** One slot's tensor in the making, from the begin of one of its units on. */
struct sl_transform {
    struct sl_reader *reader;
    const struct sl_mapping *mapping; /* NULL: none */
    uint64_t at;                      /* the place that comes next */
    uint64_t sure;                    /* before this place every piece has opened */
    uint64_t piece_begin, piece_end;  /* of the piece that is open; end 0: none */
    struct sl_opening opening;
    uint32_t crc;          /* ordered checks */
    struct sl_sha256 *sha; /* the same; NULL: not wanted */
    struct {
        bool open;             /* there is something, perhaps only bytes that nobody takes */
        uint64_t place, begin; /* of its first byte in the source, in the file */
        uint64_t end, fetched;
        uint32_t crc;
    } pending;         /* written, but not sure */
    uint8_t *expanded; /* buffer for bytes that grow; NULL unless reader->grows */
    size_t used, put;  /* of it: made; written */
};
int sl_transform_init(struct sl_transform *transform, struct sl_reader *reader, struct sl_err *err);
void sl_transform_release(struct sl_transform *transform);
/** Forget what is unfinished: the next extent begins at a unit. */
void sl_transform_drop(struct sl_transform *transform);
/**
 * Decrypt, hash, cut and cast source bytes of an extent with a target, in place. They begin where
 * the last ones ended or at a unit, and end at whole elements.
 *
 * @begin, end  in the source.
 * @data        what was fetched of them; then what is written, but for casts to larger elements.
 * @return      0, or -1: SL_E_INTEGRITY, code E_DECRYPT for a wrong piece; or a check failed.
 */
int sl_transform_add(struct sl_transform *transform, const struct sl_extent *extent, uint64_t begin,
                     uint64_t end, uint8_t *data, struct sl_err *err);
/**
 * Write what was made: called for each sl_transform_add() of a window, in the same order.
 *
 * @writer              of the same slot.
 * @extent, begin, end  as of that call.
 * @data                the same buffer.
 * @return              0, or -1: errors of sink, journal and device; SL_E_INTEGRITY: a check
 *                      failed.
 */
int sl_transform_land(struct sl_transform *transform, struct sl_writer *writer,
                      const struct sl_extent *extent, uint64_t begin, uint64_t end,
                      const uint8_t *data, struct sl_err *err);
/** A new window begins. */
void sl_transform_turn(struct sl_transform *transform);

/* ---- composing: what no range of bytes gives (composing.c) ----------------------------------- */

bool sl_reader_composes(const struct sl_plan *plan);
/** Take block after block until none is left or the load fails; if it is pinned, those of this
 * thread. Any thread. */
void sl_reader_compose(struct sl_reader *reader, unsigned thread);

/* ---- slot: one connection, range after range ------------------------------------------------ */

struct sl_slot;
/** large: its windows may become as long as a large buffer. */
struct sl_slot *sl_slot_new(struct sl_reader *reader, bool large, struct sl_err *err);
/** The journal learns what the slot has written. */
void sl_slot_free(struct sl_slot *slot);

enum sl_slot_state { SL_SLOT_FAILED = -1, SL_SLOT_WAIT, SL_SLOT_RUN, SL_SLOT_FULL, SL_SLOT_IDLE };
/**
 * One move, without blocking. WAIT: sl_slot_poll() says for what; RUN: call again; IDLE:
 * between two ranges; FULL: another thread writes to the file: call again when the other slots have
 * moved, with `insist` to wait for the turn.
 */
enum sl_slot_state sl_slot_step(struct sl_slot *slot, bool insist, struct sl_err *err);
/** Give an idle slot something to read. */
int sl_slot_start(struct sl_slot *slot, const struct sl_reader_job *job, struct sl_err *err);
/** Let its fetch begin [begin, end) of the source that its range is of. As sl_fetch_start(). */
int sl_slot_fetch(struct sl_slot *slot, uint64_t begin, uint64_t end, struct sl_err *err);
/** Give up the connection and the permit of an idle slot to any load that needs them. */
void sl_slot_rest(struct sl_slot *slot);
int sl_slot_poll(struct sl_slot *slot, struct pollfd fds[SL_IO_POLL_MAX], uint64_t *deadline_ns);
/** Bytes of its range that no window has begun to read. */
uint64_t sl_slot_left(const struct sl_slot *slot);
/** Whether so much is left, and so far off, that a part is worth another request. */
bool sl_slot_may_split(const struct sl_slot *slot);
/** Give half of what is left to someone idle; false if nobody is. */
bool sl_slot_split(struct sl_slot *slot);

enum sl_slot_pace { SL_PACE_FINE, SL_PACE_DOUBTFUL, SL_PACE_SLOW, SL_PACE_STUCK };
/** How it does beside the ranges before. quiet: poll() just found nothing for it. */
enum sl_slot_pace sl_slot_pace(struct sl_slot *slot, bool quiet,
                               const struct sl_latency_delays *patience);
/** Drop the connection of a slot that is SLOW or STUCK and ask for what has not come on another
 * one: 1, or 0 if it may not. */
int sl_slot_hedge(struct sl_slot *slot, enum sl_slot_pace pace, struct sl_err *err);
/** Bytes have come that poll() does not tell of (SO_RCVLOWAT): a step takes them. */
bool sl_slot_has_unread(const struct sl_slot *slot);
unsigned sl_slot_take_throttled(struct sl_slot *slot);
/** Bytes that landed long ago are told to the journal. *due: a step takes and lands what has come
 * since, though its window is not full. */
int sl_slot_keep(struct sl_slot *slot, uint64_t now_ns, bool *due, struct sl_err *err);
/** The load has been told to end: what has come of an unfinished window lands, and the journal
 * learns it. Does not wait for the network. */
void sl_slot_rescue(struct sl_slot *slot);

/* ---- self: the slots of one thread ---------------------------------------------------------- */

/** Drive the share of this thread until there is nothing left to read or the load fails. */
void sl_reader_thread_run(struct sl_reader *reader, unsigned thread);
/** The shortest answer of the store so far; 0: none. */
uint64_t sl_reader_first_byte_ns(const struct sl_reader *reader);

#endif
