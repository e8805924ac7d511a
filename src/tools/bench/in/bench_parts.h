/* Between the files of bench/. */
#ifndef SL_BENCH_PARTS_H
#define SL_BENCH_PARTS_H

#include <sys/types.h>

#include "bench.h"
#include "plan.h"

struct sl_connect;

/* ---- bench_work.c: ranges for several threads ------------------------------------------------ */

/** All ranges of a plan's objects, each given out once. */
struct sl_bench_work {
    const struct sl_plan *plan;
    uint64_t range_bytes, limit_bytes;
    const struct sl_connect *connect; /* of the network; else NULL */
    pthread_mutex_t mutex;
    struct {
        size_t object;
        uint64_t at, given;
        bool stopped;
        struct sl_err err; /* why */
    } locked;
};
struct sl_bench_piece {
    struct sl_source *source;
    uint64_t begin, end;
};
/** Bytes that a run over the plan reads: all of its objects, at most limit (0: no limit). */
uint64_t sl_bench_work_bytes(const struct sl_plan *plan, uint64_t limit);
/** Run `each` on so many threads until the work is done; the first error ends all of them. */
int sl_bench_work_run(struct sl_bench_work *work, unsigned threads,
                      int (*each)(struct sl_bench_work *work, struct sl_err *err),
                      struct sl_err *err);
/** The next range, false if there is none or the work was stopped. */
bool sl_bench_work_next(struct sl_bench_work *work, struct sl_bench_piece *piece);

/* ---- one run of each way; the caller measures ------------------------------------------------ */

/** Each thread reads into a buffer of this size and forgets. */
enum { SL_BENCH_BUFFER_BYTES = 256 * 1024 };
/**
 * Read ranges by recv() alone, and throw them away.
 *
 * @spec         whose `tls` is used.
 * @plan         of the model.
 * @range_bytes  of a range; at least 1.
 * @connections  a thread each; at least 1.
 * @limit_bytes  no more is read; 0: the model.
 * @cancel       ends it, SL_E_CANCELED.
 * @return       0, or -1: SL_E_USAGE where there is no network (file, redis), or a proxy is in
 *               between; else as sl_load_run().
 */
int sl_bench_network(const struct sl_spec *spec, const struct sl_plan *plan, uint64_t range_bytes,
                     unsigned connections, uint64_t limit_bytes, struct sl_cancel *cancel,
                     struct sl_err *err);
/**
 * Read the same ranges through the source layer, and throw them away.
 *
 * @plan         of the model; its store has the cancel.
 * @range_bytes  of a range; at least 1.
 * @connections  a thread each; at least 1.
 * @limit_bytes  no more is read; 0: the model.
 * @return       0, or -1 as sl_load_run().
 */
int sl_bench_store(const struct sl_plan *plan, uint64_t range_bytes, unsigned connections,
                   uint64_t limit_bytes, struct sl_err *err);
/**
 * Load the model, as a user would.
 *
 * @spec                      of the model; its path is not looked at.
 * @to                        where it is published instead.
 * @range_bytes, connections  0: as the spec says.
 * @cancel                    ends it, SL_E_CANCELED.
 * @return                    0, or -1 as sl_load_run().
 */
int sl_bench_load(const struct sl_spec *spec, const char *to, uint64_t range_bytes,
                  unsigned connections, struct sl_cancel *cancel, struct sl_err *err);

/** Anonymous memory for all files of a plan, every page touched. */
struct sl_bench_memory;
struct sl_bench_memory *sl_bench_memory_new(const struct sl_plan *plan, struct sl_err *err);
/**
 * Read the plan into memory that is there, once.
 *
 * @memory  made for this plan.
 * @spec    how it is read: its readers and hashes.
 * @cancel  ends it, SL_E_CANCELED.
 * @return  0, or -1 as sl_load_run().
 */
int sl_bench_memory_load(struct sl_bench_memory *memory, const struct sl_spec *spec,
                         const struct sl_plan *plan, struct sl_cancel *cancel, struct sl_err *err);
void sl_bench_memory_free(struct sl_bench_memory *memory);
SL_AUTO_DEFINE(sl_bench_memory)

/* ---- bench_place.c: a folder for loads ------------------------------------------------------- */

struct sl_bench_place {
    int fd;           /* of the folder, which is locked */
    char *path, *run; /* TO/sluice-bench, TO/sluice-bench/run */
    const char *name; /* "sluice-bench"; borrowed */
    int parent_fd;
};
/** Make TO/NAME and empty it. SL_E_NO_SPACE; SL_E_USAGE if it is somebody else's or in use. */
int sl_bench_place_open(struct sl_bench_place *place, const char *to, const char *name,
                        struct sl_err *err);
/** Make the empty folder of a run; a load makes its own. */
int sl_bench_place_make(struct sl_bench_place *place, struct sl_err *err);
/** Bytes that a run has left; UINT64_MAX if that cannot be told. */
uint64_t sl_bench_place_bytes(const struct sl_bench_place *place);
/** Take away what a run has left. */
int sl_bench_place_clear(struct sl_bench_place *place, struct sl_err *err);
/** Allocate and free so many bytes there, so that the next run does not wait for the host of a
 * virtual machine; nothing if they do not fit. */
void sl_bench_place_warm(struct sl_bench_place *place, uint64_t bytes);
/** Removes the folder. {.fd = -1, .parent_fd = -1} was never opened. */
void sl_bench_place_close(struct sl_bench_place *place);

/* ---- bench_meter.c: time, processor, memory -------------------------------------------------- */

struct sl_bench_meter;
/** Of this process. */
struct sl_bench_meter *sl_bench_meter_start(struct sl_err *err);
/** Ends and frees it. */
void sl_bench_meter_stop(struct sl_bench_meter *meter, struct sl_bench_sample *sample);
/** Anonymous memory of a process now; 0 if it cannot be told. */
uint64_t sl_bench_memory(pid_t pid);

/* ---- bench_stats.c --------------------------------------------------------------------------- */

/** Best, median, worst and the like into *point, of runs of point->bytes. Sorts the samples. */
void sl_bench_summarize(struct sl_bench_point *point, struct sl_bench_sample *samples,
                        size_t count);
/** Of an array, which is sorted here; the mean of the middle two if count is even; 0 if 0. */
double sl_bench_median(double *values, size_t count);
/** (best - worst) / median; 0 without runs. */
double sl_bench_spread(const struct sl_bench_point *point);
/** The point with the highest median among those of a way that were measured; NULL if none. */
const struct sl_bench_point *sl_bench_best(const struct sl_bench_result *result,
                                           enum sl_bench_way way);
/** The load as it comes (nothing chosen), else the best one. */
const struct sl_bench_point *sl_bench_headline(const struct sl_bench_result *result);
/**
 * Find the point of a setting.
 *
 * @way                       how it was measured.
 * @range_bytes, connections  0: the client chose.
 * @return                    the result's, the first that fits; NULL if there is none.
 */
const struct sl_bench_point *sl_bench_find(const struct sl_bench_result *result,
                                           enum sl_bench_way way, uint64_t range_bytes,
                                           uint32_t connections);
/** Point's median to that of the network at its best; 0 if the network was not measured. */
double sl_bench_share(const struct sl_bench_result *result, const struct sl_bench_point *point);

/* ---- bench_child.c, bench_peer.c: other programs --------------------------------------------- */

struct sl_bench_child {
    char *const *argv; /* argv[0] is looked for in PATH */
    uint64_t limit_seconds;
    struct sl_cancel *cancel;
};
/** Run to its end. SL_E_TIMEOUT, SL_E_NOT_FOUND (no such program), SL_E_NET with the last line it
 * wrote to stderr. */
int sl_bench_child_run(const struct sl_bench_child *child, struct sl_bench_sample *sample,
                       struct sl_err *err);
/** Whether a program of this name can be executed from PATH. */
bool sl_bench_program_found(const char *name);

/** What peers are to bring, and where to. Everything is borrowed. */
struct sl_bench_target {
    const char *uri, *kind; /* as given; of the store: "http", "s3", "file" */
    const char *endpoint;   /* S3; "" for Amazon's */
    size_t objects;         /* of the model */
    bool folder;            /* the URI is a prefix or a directory, all of which is the model */
    bool chosen;            /* include or exclude say which objects */
    const char *name;       /* of the first one, relative to its folder */
    bool anonymous;         /* S3 without credentials */
    const char *directory;  /* exists and is empty */
};
struct sl_bench_peer; /* a row of the table */
/** The row of a name, NULL if there is none. */
const struct sl_bench_peer *sl_bench_peer_find(const char *name);
/** All of them, NULL past the end. */
const struct sl_bench_peer *sl_bench_peer_at(size_t index);
const char *sl_bench_peer_name(const struct sl_bench_peer *peer);
/** Whether it leaves files in the directory, not only memory. */
bool sl_bench_peer_writes(const struct sl_bench_peer *peer);
/** Why it cannot bring the target, NULL if it can. */
const char *sl_bench_peer_unfit(const struct sl_bench_peer *peer,
                                const struct sl_bench_target *target);

enum { SL_BENCH_ARGUMENTS_MAX = 31 };
struct sl_bench_arguments {
    char *items[SL_BENCH_ARGUMENTS_MAX + 1]; /* NULL-terminated; the program is the first */
    size_t count;
};
/** Release it in either case. */
int sl_bench_peer_arguments(const struct sl_bench_peer *peer, const struct sl_bench_target *target,
                            struct sl_bench_arguments *arguments, struct sl_err *err);
void sl_bench_arguments_release(struct sl_bench_arguments *arguments);
/**
 * Run a peer to its end.
 *
 * @peer           a row of the table.
 * @target         what it brings; sl_bench_peer_unfit() has nothing against it.
 * @limit_seconds  then it is ended, SL_E_TIMEOUT.
 * @cancel         ends it, SL_E_CANCELED.
 * @sample         out: of this run; filled in also where the program fails.
 * @return         0, or -1 as sl_bench_child_run().
 */
int sl_bench_peer_run(const struct sl_bench_peer *peer, const struct sl_bench_target *target,
                      uint64_t limit_seconds, struct sl_cancel *cancel,
                      struct sl_bench_sample *sample, struct sl_err *err);

/* ---- bench_text.c: figures for people -------------------------------------------------------- */

/** "8 MiB", "auto" for 0. text holds 32. */
const char *sl_bench_size_text(uint64_t bytes, char text[32]);
/** "16", "auto" for 0. */
const char *sl_bench_count_text(uint32_t count, char text[32]);
/** "1.98": GB/s; "-" for 0. */
const char *sl_bench_rate_text(double bytes_per_second, char text[32]);
/** The node; with the pod's index where it has several, and the model where not all results are of
 * one. text holds SL_BENCH_ROW_MAX. */
const char *sl_bench_row_name(const struct sl_bench_results *results,
                              const struct sl_bench_result *result, char *text);
enum { SL_BENCH_ROW_MAX = SL_BENCH_NAME_MAX + SL_BENCH_URI_MAX + 36 };
/** The model without its folders, or the URI. */
const char *sl_bench_label(const struct sl_bench_result *result);

/* ---- bench_nodes.c: several results ---------------------------------------------------------- */

/** One setting over all nodes that measured it. */
struct sl_bench_group {
    struct sl_bench_point key; /* way, client, range_bytes, connections */
    size_t nodes;
    double total, median, slowest, fastest; /* of the nodes' medians */
    const struct sl_bench_result *slowest_result;
};
struct sl_bench_groups {
    struct sl_bench_group *items;
    size_t count, capacity;
};
/** Seconds during which all of them ran; 0 if never. */
double sl_bench_overlap(const struct sl_bench_results *results);
/** "all ran at once for 61 s". */
const char *sl_bench_overlap_text(const struct sl_bench_results *results, char text[64]);
int sl_bench_nodes_table(struct sl_buf *out, const struct sl_bench_results *results, bool utf8,
                         struct sl_err *err);
int sl_bench_nodes_svg(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err);

/* ---- bench_chart.c, bench_draw.c, bench_svg.c ----------------------------------------------- */

/** Bars of one result; width: characters of the longest. */
int sl_bench_bars(struct sl_buf *out, const struct sl_bench_result *result, bool utf8,
                  struct sl_err *err);
/**
 * Append one bar, of characters.
 *
 * @value, full  how much of it is filled: their ratio, 0 to 1.
 * @width        characters of a full one.
 * @utf8         blocks of eighths; false: '#'.
 */
int sl_bench_bar(struct sl_buf *out, double value, double full, unsigned width, bool utf8,
                 struct sl_err *err);

/** 1, 2 or 5 times a power of ten, so that `full` takes at most six of them. */
double sl_bench_step(double full);
/**
 * Append <svg …> with its style and background.
 *
 * @width, height  in pixels.
 * @title          is escaped.
 */
int sl_bench_svg_begin(struct sl_buf *out, unsigned width, unsigned height, const char *title,
                       struct sl_err *err);
/**
 * Append a text.
 *
 * @attributes  not escaped; "" is none.
 * @x, y        in pixels: where its line begins, or ends, as the attributes say.
 * @text        is escaped.
 */
int sl_bench_svg_text(struct sl_buf *out, const char *attributes, double x, double y,
                      const char *text, struct sl_err *err);
/**
 * Append a line.
 *
 * @attributes      not escaped.
 * @x1, y1, x2, y2  in pixels: its ends.
 */
int sl_bench_svg_line(struct sl_buf *out, const char *attributes, double x1, double y1, double x2,
                      double y2, struct sl_err *err);
enum { SL_BENCH_COLORS = 6 };
extern const char *const sl_bench_colors[SL_BENCH_COLORS];

#endif
