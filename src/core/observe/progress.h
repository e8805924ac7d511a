/*
 * The progress of one load, written by the load's threads and read by the bar, the log, /metrics,
 * /v1/loads and /v1/events.
 *
 * A progress stays readable after its load ended, until sl_progress_free(); all live ones are in
 * one list that sl_progress_each() walks. Any thread; nothing blocks but for a lock.
 */
#ifndef SL_PROGRESS_H
#define SL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "json.h"
#include "signed_by.h"
#include "suppliers.h"

enum sl_load_state {
    SL_LOAD_QUEUED,   /* it has not begun */
    SL_LOAD_WAITING,  /* another load holds the directory */
    SL_LOAD_PLANNING, /* reading indexes, checking room */
    SL_LOAD_READING,
    SL_LOAD_CHECKING, /* all bytes are there, hashes still run */
    SL_LOAD_PUBLISHED,
    SL_LOAD_FAILED,
};
/** "queued", … A constant. */
const char *sl_load_state_name(enum sl_load_state state);

struct sl_progress;
enum { SL_TROUBLE_BYTES = 256, SL_DECIDED_BYTES = 320 };
/**
 * Make the progress of a load, and register it in the list.
 *
 * @name  of the model; copied, as are
 * @uri   of the source, without secrets, and
 * @path  of the destination.
 * @return  NULL: SL_E_NO_SPACE.
 */
struct sl_progress *sl_progress_new(const char *name, const char *uri, const char *path,
                                    struct sl_err *err);
/** The same of one that not everybody may know of (sl_progress_view.hidden). */
struct sl_progress *sl_progress_new_hidden(const char *name, const char *uri, struct sl_err *err);
/** Its load has ended, and nobody else has it. NULL is fine. */
void sl_progress_free(struct sl_progress *progress);

/* Any thread; progress may be NULL, then nothing happens. */
void sl_progress_set_state(struct sl_progress *progress, enum sl_load_state state);
/**
 * Say how much there is to do, in all.
 *
 * @bytes    that will land at the destination.
 * @tensors  of the model.
 * @objects  that they are read from.
 */
void sl_progress_set_total(struct sl_progress *progress, uint64_t bytes, uint64_t tensors,
                           uint64_t objects);
/** Landed at the destination. */
void sl_progress_add_bytes(struct sl_progress *progress, uint64_t bytes);
/** The load starts over: nothing has landed, was kept or is verified. */
void sl_progress_begin_again(struct sl_progress *progress);
/** Found from an earlier load; counted as landed too. */
void sl_progress_add_resumed(struct sl_progress *progress, uint64_t bytes);
/** Found in another version; counted as landed too. */
void sl_progress_add_inherited(struct sl_progress *progress, uint64_t bytes);
/** Received from the source, retries included. */
void sl_progress_add_fetched(struct sl_progress *progress, uint64_t bytes);
void sl_progress_add_verified(struct sl_progress *progress, uint64_t bytes);
void sl_progress_add_retry(struct sl_progress *progress);
/**
 * Count a try, and show why the last one failed, until bytes come or the state changes.
 *
 * @next  number of the try that begins now.
 * @most  how many there may be; 0: as many as time allows.
 * @why     borrowed for the call.
 * @logged  the log has said why: its lines say only which try it is.
 */
void sl_progress_note_retry(struct sl_progress *progress, unsigned next, unsigned most,
                            const struct sl_err *why, bool logged);
/** A range came wrong and is fetched again. */
void sl_progress_add_refetched(struct sl_progress *progress);
/** A slow request was sent again; bytes came and were thrown away. */
void sl_progress_add_hedge(struct sl_progress *progress);
void sl_progress_add_wasted(struct sl_progress *progress, uint64_t bytes);
/** A source is read in a simpler way from now on, since the better one failed. */
void sl_progress_add_fallback(struct sl_progress *progress);
/** Bytes came from a mirror of the store's own. */
void sl_progress_add_mirrored(struct sl_progress *progress, uint64_t bytes);
/** … from a cache (source.through). */
void sl_progress_add_cached(struct sl_progress *progress, uint64_t bytes);
/** Count a request's result by its supplier; metrics count it too, and alone where progress is
 * NULL. */
void sl_progress_add_supplied(struct sl_progress *progress, const struct sl_supplied *supplied);
void sl_progress_set_connections(struct sl_progress *progress, unsigned count);
/** The load's own decisions, in the words of readers.fixed; copied. */
void sl_progress_set_decided(struct sl_progress *progress, const char *text);
/** Note the signers of the model; copied. */
void sl_progress_set_signed(struct sl_progress *progress, const struct sl_signed_by *signed_by);
/** How fast the whole load was, in bytes per second: what it shows when it has ended. */
void sl_progress_set_rate(struct sl_progress *progress, double rate);
/** Ends it: PUBLISHED (err NULL) or FAILED with a copy of err. */
void sl_progress_finish(struct sl_progress *progress, const struct sl_err *err);

/** A consistent-enough copy for readers. */
struct sl_progress_view {
    uint64_t id; /* 1, 2, … in this process */
    bool hidden; /* metrics leave it out, and so does whoever tells strangers */
    char name[64], uri[512], path[512];
    enum sl_load_state state;
    uint64_t bytes_total, bytes_done, bytes_resumed, bytes_inherited, bytes_fetched, bytes_verified;
    uint64_t tensors_total, objects_total, retries, refetched, hedged, wasted, fallbacks;
    uint64_t cached; /* of bytes_fetched: from caches */
    struct sl_supplier suppliers[SL_SUPPLIERS_SHOWN];
    unsigned supplier_count; /* also those that are not shown */
    unsigned connections;
    double seconds;                 /* since it began, until it ended */
    int64_t ended_at;               /* seconds of the Unix clock; 0: it has not */
    double bytes_per_second;        /* over the last few seconds */
    double seconds_left;            /* negative if unknown */
    char trouble[SL_TROUBLE_BYTES]; /* "try 3 of 8: cannot connect to …", or "" */
    bool trouble_logged;            /* the log has said why */
    char decided[SL_DECIDED_BYTES]; /* once it has ended; "": it read nothing */
    struct sl_signed_by signed_by;  /* once that was verified */
    struct sl_err err;
};
void sl_progress_view(struct sl_progress *progress, struct sl_progress_view *view);
/**
 * What was counted of the load so far, where it happened; nothing that goes up and down. Its result
 * is made of these, the view is for those who look on. NULL: all 0.
 */
struct sl_progress_counts {
    uint64_t fetched, verified, retries, refetched, hedged, wasted, fallbacks, mirrored, cached;
};
struct sl_progress_counts sl_progress_counts(const struct sl_progress *progress);
/** As sl_suppliers_copy(). NULL: none. */
size_t sl_progress_suppliers(struct sl_progress *progress, struct sl_supplier *copies,
                             size_t limit);
/** Calls back under no lock, with copies, oldest first. */
void sl_progress_each(void (*call)(const struct sl_progress_view *view, void *arg), void *arg);
/** One load as a JSON object. */
void sl_progress_json(struct sl_json *json, const struct sl_progress_view *view);
/**
 * Changes whenever any progress changes state; for event streams and waiting without polling hard.
 */
uint64_t sl_progress_generation(void);

enum sl_progress_mode { SL_PROGRESS_AUTO, SL_PROGRESS_BAR, SL_PROGRESS_LINES, SL_PROGRESS_NONE };
/**
 * Start the thread that shows all live loads on stderr: a bar with rate and time left on a
 * terminal, one line (JSON in json log mode) every 5 s elsewhere. Stop it before exit, which waits
 * for it. Both by one thread. SL_E_NO_SPACE.
 */
int sl_progress_show_start(enum sl_progress_mode mode, struct sl_err *err);
void sl_progress_show_stop(void);
/** Log a line about a load; an entry of the JSON log has the load's figures beside it. Any thread.
 */
void sl_progress_say(struct sl_progress *progress, const char *line);

#endif
