/*
 * Inside libsluice's engine half: a source, and what every call of it does first and last. It is
 * the owners' (sluice_source_hold()) and goes with the last one; but for what is marked it is
 * written by sluice_open() alone, before any other thread has it.
 */
#ifndef SL_OPEN_PARTS_H
#define SL_OPEN_PARTS_H

#include <sys/types.h>

#include "api_memory.h"
#include "crypt.h"
#include "open_call.h"
#include "plan.h"
#include "progress.h"
#include "spec.h"
#include "thread.h"

/** A key of the caller's, until it is wiped. */
struct sl_open_secret {
    struct sl_spec_secret secret; /* points to the bytes */
    uint8_t *bytes;               /* locked in memory where the system lets us */
    size_t count;
    struct sl_kdf kdf; /* of a passphrase, for what is written */
    bool salted;       /* else each file has a salt of its own */
};

struct sluice_source {
    uint32_t owners; /* sl_refcount_add() */
    pid_t process;   /* that opened it: one that was forked has none of its threads */
    struct sl_specs specs;
    struct sl_open_secret secret;
    struct sl_cancel *cancel;     /* of all calls */
    struct sl_progress *progress; /* counts what is fetched */
    struct sl_source_config config;
    struct sl_plan *plan;
    bool as_files, whole;
    uint32_t *files;   /* plan->sources that are data files, which follow the targets */
    char **paths;      /* one a source of the plan: the local file that it is; NULL: it is none */
    uint64_t *sizes;   /* of the data files, for their shapes */
    uint32_t *by_name; /* all numbers, sorted by name */
    size_t file_count, count;
    char *uri;
    pthread_mutex_t lock; /* while the opened sources are read for a plan's part */
};

/** The limits of a call. */
struct sl_open_limits {
    int32_t timeout_ms, cancel_fd; /* 0 or less: none */
    sluice_progress progress;      /* NULL: nobody asks; now and then, how far `of` is */
    void *arg;
    struct sl_progress *of;
};

/* ---- open_call.c ----------------------------------------------------------------------------- */

/**
 * Do the work with a cancel that is raised when `outer` is, when limits->cancel_fd becomes
 * readable, when limits->progress() says so, or when the time is over.
 *
 * @limits  without any, work() gets `outer` itself.
 * @outer   borrowed; NULL: none, unless `raise` is set.
 * @raise   the work has no other cancel than `outer`, which is raised instead, for all who have it.
 * @work    runs on this thread, with `arg`.
 * @return  0, or -1: SL_E_TIMEOUT where the time was over, else what work() says; SL_E_CANCELED
 *          also where the work was done but `outer` had to be raised.
 *
 * Blocks until the work ends.
 */
int sl_open_within(const struct sl_open_limits *limits, struct sl_cancel *outer, bool raise,
                   int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err), void *arg,
                   struct sl_err *err);
/** SL_E_USAGE: another process opened it, of which this one was forked. */
int sl_open_check_process(const struct sluice_source *source, struct sl_err *err);

/* ---- open_spec.c ----------------------------------------------------------------------------- */

/** A caller's demands on a spec. */
struct sl_open_wanted {
    const char *uri, *to; /* to: the directory of its sink; NULL: it has none that counts */
    const char *spec;     /* YAML; NULL: none */
    uint32_t verify;      /* enum sluice_verify */
};
/** The URI as it is now: a relative path is of the current folder, wherever the program goes later.
 * free() it. SL_E_NO_SPACE. */
char *sl_open_uri(const char *uri, struct sl_err *err);
/** One spec. SL_E_USAGE. */
int sl_open_spec(const struct sl_open_wanted *wanted, struct sl_specs *specs, struct sl_err *err);
/** Copy a caller's key. SL_E_USAGE, SL_E_NO_SPACE. */
int sl_open_secret_take(const struct sluice_key *key, struct sl_open_secret *secret,
                        struct sl_err *err);
void sl_open_secret_release(struct sl_open_secret *secret);

/* ---- open_tensors.c -------------------------------------------------------------------------- */

/** Make the tables of the opened plan. */
int sl_open_tables(struct sluice_source *source, struct sl_err *err);
/** Of its first object that has tensors; NULL: none has, or it is opened as files. */
const struct sl_index *sl_open_index(const struct sluice_source *source);
/** Its target, or NULL of a data file. */
const struct sl_target *sl_open_target(const struct sluice_source *source, uint64_t number);
/** The object that it is in: a number of plan->sources. */
uint32_t sl_open_object(const struct sluice_source *source, uint64_t number);
/** Shape of a tensor or data file; *rank numbers. */
const uint64_t *sl_open_shape(const struct sluice_source *source, uint64_t number, unsigned *rank);
uint64_t sl_open_bytes(const struct sluice_source *source, uint64_t number);
/** The local file where the bytes lie as they are read, and where; NULL: there is none, or what is
 * read of it is checked against a sidecar, or must have a hash. */
const char *sl_open_place(const struct sluice_source *source, uint64_t number, uint64_t *offset);
/** SL_E_USAGE: there is no such number. */
int sl_open_check_number(const struct sluice_source *source, uint64_t number, struct sl_err *err);

#endif
