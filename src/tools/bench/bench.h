/*
 * How fast a server can be read: the bare network, our source layer, whole loads, and other
 * programs, over range sizes and connection counts, in turns.
 *
 * Rates are bytes of the model per second of wall-clock time. A GB is 10^9 bytes.
 *
 * For the thread of a command, but for pure functions over text. What makes text appends to `out`
 * and fails with SL_E_NO_SPACE.
 */
#ifndef SL_BENCH_H
#define SL_BENCH_H

#include "json.h"
#include "spec.h"

enum {
    SL_BENCH_LIST_MAX = 32,         /* range sizes, connection counts of one sweep */
    SL_BENCH_CONNECTIONS_MAX = 256, /* a thread each */
    SL_BENCH_ROUNDS_MAX = 1000,
    SL_BENCH_POINTS_MAX = 3 * SL_BENCH_LIST_MAX * SL_BENCH_LIST_MAX + 64,
    SL_BENCH_NAME_MAX = 128,
    SL_BENCH_URI_MAX = 512,
    SL_BENCH_FORMAT = 1, /* the value of "sluice_bench", which opens a result's line */
};

enum sl_bench_way {
    SL_BENCH_NETWORK, /* ranges by recv() alone, thrown away */
    SL_BENCH_STORE,   /* the same ranges through the source layer, thrown away */
    SL_BENCH_LOAD,    /* a whole load: checked, published */
    SL_BENCH_MEMORY,  /* the same into memory that is there, without publishing; only as it comes */
    SL_BENCH_PEER,    /* another program */
    SL_BENCH_WAY_COUNT
};
/** "network", "store", "load", "memory", "peer": constants. */
const char *sl_bench_way_name(enum sl_bench_way way);
/** What people read: "network", "store", "sluice"; constants. */
const char *sl_bench_way_title(enum sl_bench_way way);

/** One run. */
struct sl_bench_sample {
    double seconds, cpu_seconds; /* user and system time of the client, its children included */
    uint64_t peak_memory_bytes;  /* anonymous memory, sampled every 10 ms; 0: not known */
};

/** All runs of one way with one setting. */
struct sl_bench_point {
    enum sl_bench_way way;
    char client[32];      /* "sluice", "s5cmd" */
    uint64_t range_bytes; /* 0: the client chooses */
    uint32_t connections; /* 0: the client chooses */
    uint64_t bytes;       /* of one run */
    uint64_t runs, failed;
    char why[200];              /* why it was not measured or the last run failed, or "" */
    double best, median, worst; /* bytes per second; 0 without runs */
    double cpu_seconds_per_gb;  /* median */
    uint64_t peak_memory_bytes; /* of all runs */
};

/** What figures depend on. Empty texts and zeros: not known. */
struct sl_bench_facts {
    char node[SL_BENCH_NAME_MAX], pod[SL_BENCH_NAME_MAX], region[SL_BENCH_NAME_MAX];
    char link_speed[32];
    bool indexed; /* of an Indexed Job: */
    uint64_t index;
    char version[32], kernel[SL_BENCH_NAME_MAX], machine[32], cpu[SL_BENCH_NAME_MAX];
    uint32_t cpus;         /* that this process may use: affinity and cgroup */
    uint64_t memory_bytes; /* the machine's */
    uint64_t memory_limit; /* the cgroup's; 0: none */
};

/** One benchmark of one model on one node. */
struct sl_bench_result {
    struct sl_bench_facts facts;
    char source[SL_BENCH_URI_MAX]; /* without secrets */
    uint64_t bytes, objects;
    uint64_t rounds;
    char started[SL_TIME_TEXT]; /* 2026-11-21T04:31:02.123Z */
    double started_at, seconds; /* since 1970; of the whole */
    struct sl_bench_point *points;
    size_t point_count, point_capacity;
};
struct sl_bench_results {
    struct sl_bench_result *items;
    size_t count, capacity;
    uint64_t wrong_lines; /* of what was gathered */
};
/** Frees all of them; zeroed ones are fine. */
void sl_bench_results_release(struct sl_bench_results *results);
/** A zeroed one at the end; borrowed until the next is added. At most SL_BENCH_RESULTS_MAX, then
 * SL_E_FORMAT; SL_E_NO_SPACE. */
struct sl_bench_result *sl_bench_results_add(struct sl_bench_results *results, struct sl_err *err);
enum { SL_BENCH_RESULTS_MAX = 5000 };
/** A copy of *point at the end; borrowed until the next is added. SL_E_FORMAT: too many;
 * SL_E_NO_SPACE. */
struct sl_bench_point *sl_bench_point_add(struct sl_bench_result *result,
                                          const struct sl_bench_point *point, struct sl_err *err);

/* ---- measuring ------------------------------------------------------------------------------ */

struct sl_bench_config {
    uint64_t range_bytes[SL_BENCH_LIST_MAX];
    uint32_t connections[SL_BENCH_LIST_MAX];
    size_t range_count, connection_count;
    bool ways[SL_BENCH_WAY_COUNT]; /* PEER is not looked at: peers says it */
    uint64_t rounds, warmups;
    uint64_t bytes;    /* NETWORK and STORE read no more; 0: the model */
    const char *to;    /* loads and peers write below it, in a folder that is removed */
    const char *peers; /* "auto", "none", "curl,s5cmd" */
    uint64_t peer_seconds;
};
/**
 * Measure one model.
 *
 * @spec    of the model; its path is not looked at.
 * @config  what is measured; borrowed for the call.
 * @cancel  ends it, SL_E_CANCELED.
 * @result  zeroed before; its facts and points are filled in also where it fails.
 * @return  0, or -1: SL_E_USAGE names what cannot be measured; others as sl_load_run().
 *
 * Blocks.
 */
int sl_bench_run(const struct sl_spec *spec, const struct sl_bench_config *config,
                 struct sl_cancel *cancel, struct sl_bench_result *result, struct sl_err *err);

/** "1MiB,8MiB" or "256KiB..256MiB", which doubles; each once, in order. SL_E_USAGE. */
int sl_bench_parse_sizes(const char *text, uint64_t *items, size_t *count, struct sl_err *err);
/** "1,4,16" or "1..64". SL_E_USAGE, here and below. */
int sl_bench_parse_counts(const char *text, uint32_t *items, size_t *count, struct sl_err *err);
/** "network,load" into ways. */
int sl_bench_parse_ways(const char *text, bool ways[SL_BENCH_WAY_COUNT], struct sl_err *err);
/**
 * "+30", "2026-11-21T12:00:00Z", "/120" (the next full two minutes of the clock) as seconds since
 * 1970; now is that too. At most a day ahead.
 */
int sl_bench_parse_start(const char *text, double now, double *start, struct sl_err *err);

/** Describe this machine. Never fails: unknown members stay empty. */
void sl_bench_facts(struct sl_bench_facts *facts);

struct sl_bench_loopback;
/**
 * Make a synthetic .tensors model with its hashes, and start a `sluice share` of it on loopback, in
 * a child process, so that its processor time is not counted as ours.
 *
 * @program  of sluice.
 * @to       the model's folder is made below it.
 * @bytes    of the model's data, about.
 * @cancel   ends it; may be NULL.
 * @return   what to free in the end. NULL: SL_E_NO_SPACE, SL_E_CANCELED, SL_E_INTERNAL (the server
 *           did not start), and those of sl_bench_place_open().
 *
 * From a process with one thread. Blocks until the server answers.
 */
struct sl_bench_loopback *sl_bench_loopback_start(const char *program, const char *to,
                                                  uint64_t bytes, struct sl_cancel *cancel,
                                                  struct sl_err *err);
/** Borrowed until it is freed. */
const char *sl_bench_loopback_uri(const struct sl_bench_loopback *loopback);
/** Ends the child, waits for it, and removes the model. NULL is fine. */
void sl_bench_loopback_free(struct sl_bench_loopback *loopback);
SL_AUTO_DEFINE(sl_bench_loopback)

/* ---- telling -------------------------------------------------------------------------------- */

/** One line, without its end: {"sluice_bench":1,…}. */
void sl_bench_json(struct sl_json *json, const struct sl_bench_result *result);
/** Read such a line. SL_E_FORMAT says what is wrong with it; SL_E_NO_SPACE. */
int sl_bench_json_read(const char *text, size_t bytes, struct sl_bench_result *result,
                       struct sl_err *err);
/** The line's marker, with which it begins. */
#define SL_BENCH_MARKER "{\"sluice_bench\":"
/** RFC 4180, a header line, a row for each point of each result. */
int sl_bench_csv(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err);
/** For people: one result in full, several as one table over nodes. */
int sl_bench_table(struct sl_buf *out, const struct sl_bench_results *results, bool utf8,
                   struct sl_err *err);
/** A drawing: one result as lines over range sizes, several as bars of nodes. */
int sl_bench_svg(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err);
enum { SL_BENCH_TEXT_MAX = 64 * 1024 * 1024 };

/**
 * Take the results out of text: lines that hold the marker, whatever stands before it; other lines
 * are logs. A line that cannot be read, or repeats another, is told by sl_log() with name and
 * number, and counted in wrong_lines.
 *
 * @results      get them at the end.
 * @name         of the text, for the log.
 * @text, bytes  the whole text; not trusted.
 * @return       0, or -1 with SL_E_NO_SPACE.
 */
int sl_bench_gather(struct sl_bench_results *results, const char *name, const char *text,
                    size_t bytes, struct sl_err *err);
/** A file, a directory (its regular files), or "-" for standard input, read whole. SL_E_NOT_FOUND,
 * SL_E_USAGE, SL_E_NO_SPACE. */
int sl_bench_gather_path(struct sl_bench_results *results, const char *path, struct sl_err *err);
/** Medians, bytes per second: of the network at its best and of the load as it comes; 0 where not
 * measured. */
void sl_bench_rates(const struct sl_bench_result *result, double *network, double *load);
/** The nodes together, as one JSON object without the marker. */
int sl_bench_summary_json(struct sl_json *json, const struct sl_bench_results *results,
                          struct sl_err *err);

#endif
