/*
 * Carry out a plan: a few threads, each driving several connections through one poll(), take range
 * after range, read into a hot buffer (or into the sink's memory), feed the checks, write, commit.
 * Any free connection takes the next range.
 */
#ifndef SL_READER_H
#define SL_READER_H

#include "journal.h"
#include "plan.h"
#include "progress.h"
#include "sink.h"

/** Told while a run goes on, by any of its threads, which do not wait for each other. */
struct sl_reader_watch {
    /** These bytes of a file are in the sink and as they will be, but not checked yet: each byte
     * that a range or a block brings, once. */
    void (*landed)(void *arg, uint32_t file, uint64_t offset, uint64_t bytes);
    /** A check of the plan agreed. Those that are `ordered` agreed before their last bytes landed,
     * and are not told. */
    void (*agreed)(void *arg, const struct sl_check *check);
    void *arg;
};

struct sl_mapping;
/** Who casts what a reader would have cast. Any thread of it. */
struct sl_reader_caster {
    /** Of a tensor that is cast: is it this one's? The same every time. */
    bool (*takes)(void *arg, const struct sl_mapping *mapping);
    /** Bytes of whole elements, as they are before the cast (their own order, decrypted, cut); the
     * first becomes what lies at `offset` of the mapping's file. Instead of the sink. */
    int (*put)(void *arg, const struct sl_mapping *mapping, uint64_t offset, const uint8_t *data,
               uint64_t bytes, struct sl_err *err);
    void *arg;
};

struct sl_verify;
/** Who computes CRCs over what has landed, instead of the readers. */
struct sl_reader_crcs {
    /** Asked once for each check; it may take those that are CRC32 or CRC32C, SL_AGAIN_FETCH and
     * not empty. */
    bool (*takes)(void *arg, const struct sl_check *check);
    /** sl_verify_tell() this one, from any thread; or NULL: nobody any more, and when it returns no
     * call is under way. */
    void (*bind)(void *arg, struct sl_verify *verify);
    /** As sl_verify_config.going. */
    int (*going)(void *arg, struct sl_err *err);
    void *arg;
};

/** What a run did, told when it has ended, well or not. */
struct sl_reader_outcome {
    uint64_t resumed; /* bytes that the journal vouched for, as they are fetched */
    size_t buffer_bytes;
    unsigned first, most; /* connections: begun with; open at a time, stand-ins included */
    enum sl_connections_why why;
    enum sl_connections_bound bound;
    unsigned threads; /* 0: it ended before it began to read */
    enum sl_threads_why threads_why;
};

struct sl_reader_config {
    unsigned connections;  /* fixed number, or 0: grow by feedback within plan->connections */
    unsigned threads;      /* 0: auto (concurrency.h) */
    uint64_t memory_bytes; /* bound on all staging buffers; 0: 48 MiB */
    enum sl_hedge hedge;   /* whether slow ranges are asked for again on another connection */
    int hashes;            /* enum sl_verify_hashes, already applied by the plan */
    struct sl_cancel *cancel;
    struct sl_progress *progress;
    const struct sl_reader_watch *watch; /* may be NULL */
    uint64_t sealed_bytes; /* tensors with pieces of at most so many bytes whose plaintext lies as
                              their ciphertext does (sl_mapping_keeps_pieces()) land encrypted, told
                              in whole pieces, for the watch to open and check; 0: none */
    const struct sl_reader_crcs *crcs;     /* NULL: readers compute them; only without a journal */
    const struct sl_reader_caster *caster; /* NULL: readers cast; only without a journal */
    struct sl_reader_outcome *outcome;     /* out, of this run; NULL: not wanted */
};

/**
 * Read all ranges of the plan that the journal does not already vouch for, and check every check.
 * journal may be NULL. Blocks. On failure everything that was written stays for a resume; the first
 * error wins and the other connections stop within a second. A wrong hash is SL_E_INTEGRITY and
 * names what, algorithm, expected and actual; its bytes are struck from the journal.
 */
int sl_reader_run(const struct sl_plan *plan, struct sl_sink *sink, struct sl_journal *journal,
                  const struct sl_reader_config *config, struct sl_err *err);

#endif
