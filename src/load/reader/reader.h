/*
 * Carry out a plan: a few threads, each driving several connections through one poll(), take range
 * after range, read into a hot buffer (or into the sink's memory), feed the checks, write, commit.
 * A thread keeps to one file as long as there are others for those beside it. Several runs may go
 * on at once, one for each sink.
 */
#ifndef SL_READER_H
#define SL_READER_H

#include "journal.h"
#include "plan.h"
#include "progress.h"
#include "sink.h"
#include "stage_device.h"

/** A run's figures, given when it ends, well or not. */
struct sl_reader_outcome {
    uint64_t resumed;     /* bytes that the journal vouched for, as they are fetched */
    uint64_t inherited;   /* the same, that another version had */
    size_t buffer_bytes;  /* the longest window of a connection */
    unsigned first, most; /* connections: begun with; open at a time, stand-ins included */
    enum sl_connections_why why;
    enum sl_connections_bound bound;
    unsigned last; /* connections wanted when it ended */
    enum sl_growth_why last_why;
    unsigned threads; /* 0: it ended before it began to read */
    enum sl_threads_why threads_why;
    size_t shared_files; /* that more threads than one wrote to */
    uint64_t requests;   /* for ranges, those that were sent again too */
    uint64_t rows;       /* of slices, that were asked for with or without what lies between them */
    uint64_t dropped;    /* bytes that lay there */
    uint64_t worth;      /* worth of a request when the run ended, in bytes */
    enum sl_worth_why worth_why;
    char decided[SL_FIXED_TEXT_BYTES]; /* all of it as readers.fixed takes it; "": nothing was read
                                        */
};

struct sl_reader_config {
    unsigned connections;  /* fixed number, or 0: grow by feedback within plan->connections */
    unsigned threads;      /* 0: auto (concurrency.h) */
    uint64_t memory_bytes; /* bound on all staging buffers; 0: 48 MiB */
    enum sl_hedge hedge;   /* whether slow ranges are asked for again on another connection */
    uint64_t copied;       /* of what the journal vouches for: not of an earlier try, but of another
                              version; files that are inherited besides */
    int hashes;            /* enum sl_verify_hashes, already applied by the plan */
    struct sl_cancel *cancel;             /* borrowed for the run; may be NULL */
    struct sl_progress *progress;         /* the same */
    const struct sl_stage_device *device; /* NULL: the plan leaves nothing to one */
    struct sl_reader_outcome *outcome;    /* out, of this run; NULL: not wanted */
};

/**
 * Read all ranges of a plan that the journal does not already vouch for, and check every check.
 * Everything is borrowed for the call.
 *
 * @plan     its files are those that the sink was opened with.
 * @sink     where bytes go.
 * @journal  what has landed, and is told what lands; may be NULL.
 * @config   limits, and whom to tell.
 * @return   0, or -1 with the first error; the other connections stop within a second, and
 *           everything that was written stays for a resume. A wrong hash is SL_E_INTEGRITY and
 *           names what, algorithm, expected and actual; its bytes are struck from the journal.
 *           Other errors are those of the sources, the sink, the journal and the device, and
 *           SL_E_CANCELED.
 *
 * Blocks.
 */
int sl_reader_run(const struct sl_plan *plan, struct sl_sink *sink, struct sl_journal *journal,
                  const struct sl_reader_config *config, struct sl_err *err);

#endif
