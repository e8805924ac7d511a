/* A slot from inside: what the files that make it up share. slot.c moves it, window.c fills and
 * lands its buffer, split.c gives parts of its range away, slow.c tells when its request is slow.
 */
#ifndef SL_SLOT_PARTS_H
#define SL_SLOT_PARTS_H

#include "reader_parts.h"
#include "source.h"

enum { SL_PAGE_BYTES = 4096, SL_KEEP_BYTES_MIN = 4 * SL_PAGE_BYTES };

enum sl_slot_request {
    SL_REQUEST_NONE, /* the slot has no range */
    SL_REQUEST_ASKED,
    SL_REQUEST_BEGUN, /* it has brought bytes */
    SL_REQUEST_BACKS_OFF,
};
enum sl_slot_window {
    SL_WINDOW_NONE,
    SL_WINDOW_FILLING,
    SL_WINDOW_FULL,
    SL_WINDOW_FORMED, /* decrypted, cut, cast: it waits to be written */
    SL_WINDOW_WRONG,  /* so is what comes before its end; from there on bytes came wrong */
};

struct sl_slot {
    struct sl_reader *reader;
    struct sl_store *store; /* whose connection it is */
    struct sl_fetch *fetch;
    uint8_t *buffer;
    size_t buffer_bytes, window_most; /* the longest window; that of the next one */
    enum sl_slot_request request;
    enum sl_slot_window window;
    struct sl_range range;           /* its end may come nearer: sl_slot_split() */
    unsigned hedges, wrongs;         /* requests sent again; how often its bytes did not open */
    uint64_t wrong_begin, wrong_end; /* around these bytes, if any */
    uint64_t fetch_end, started_ns;
    uint64_t asked_ns, longest_gap_ns; /* when its request was sent; within its answer */
    bool fresh;                        /* its connection may have to be made */
    bool doubted;                      /* it may be slow, since `landed_then` bytes had landed */
    uint64_t landed_then;
    uint64_t row_at;            /* of a sparse range: the next byte that comes, a gap's too */
    uint64_t got, moved_ns;     /* bytes of the range so far; when the last came */
    uint64_t mark_got, mark_ns; /* where its rate is measured from */
    unsigned lags;              /* how often in a row it was low */
    const struct sl_extent *first_extent, *extents_end; /* of the range */
    const struct sl_extent *extent;                     /* the first that ends after `at` */
    uint64_t at, window_end;                            /* source positions */
    size_t window_bytes, filled; /* of it in the buffer: all; those that came */
    struct sl_place place;       /* memory not NULL: this window is read there */
    uint64_t opened_ns;          /* when this window was opened */
    uint64_t looked_ns;          /* when this window was opened, or last cut short or looked at */
    bool cut;                    /* it is to end with what has come */
    struct sl_writer writer;
    struct sl_transform transform;
};

/** What holds before each move, in builds with assertions. */
void sl_slot_check(const struct sl_slot *slot);
/** A step of its request, drawn in slot.c. */
void sl_slot_set_request(struct sl_slot *slot, enum sl_slot_request to);
/** A step of its window, drawn in window.c. */
void sl_slot_set_window(struct sl_slot *slot, enum sl_slot_window to);
/** Of a range that is sparse, else NULL. */
const struct sl_mapping *sl_slot_sparse(const struct sl_slot *slot);
/** Cost of [begin, end) of its range, in bytes; each row of a sparse range is a request, or comes
 * with the gaps around it. */
uint64_t sl_slot_weight(const struct sl_slot *slot, uint64_t begin, uint64_t end);
/** The extent of the range that this place is within, NULL for a gap or a boundary. */
const struct sl_extent *sl_slot_extent_around(const struct sl_slot *slot, uint64_t place);
/** What its range is of. */
struct sl_source *sl_slot_source(const struct sl_slot *slot);
/** From where on another slot must read: what changes on its way begins with its unit. */
uint64_t sl_slot_unfinished(const struct sl_slot *slot);
/** The first byte that has not come. */
uint64_t sl_slot_awaits(const struct sl_slot *slot);
/** Read into the window what has come. */
enum sl_slot_state sl_slot_fill_window(struct sl_slot *slot, struct sl_err *err);
/** Bytes that have come and are not read yet; costs a system call. */
uint64_t sl_slot_unread_bytes(const struct sl_slot *slot);
/** Its connection is about to be given up: count that. */
void sl_slot_waste(struct sl_slot *slot);
/** A request is about to be sent. */
void sl_slot_asks(struct sl_slot *slot, uint64_t now_ns);
/** Its pace is measured from here on. */
void sl_slot_start_clock(struct sl_slot *slot, uint64_t now_ns);

/** Choose what the next window spans, and where it is read to. */
int sl_slot_open_window(struct sl_slot *slot, struct sl_err *err);
/** Can the window end with what has come? */
bool sl_slot_may_cut(const struct sl_slot *slot);
/** End it with what has come, if that is `least` bytes or more of which none change on their way:
 * then it is full. */
bool sl_slot_cut_window(struct sl_slot *slot, size_t least);
/** It is full: land it. FULL: it is another thread's turn to write, and insist is not set. */
enum sl_slot_state sl_slot_close_window(struct sl_slot *slot, bool insist, struct sl_err *err);

#endif
