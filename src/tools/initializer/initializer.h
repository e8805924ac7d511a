/*
 * KServe's storage initializer: models of any number of sources into directories, ready to be
 * listed by an engine, with nothing else in them. docs/kserve.md is its contract. For one thread of
 * the process at a time.
 */
#ifndef SL_INITIALIZER_H
#define SL_INITIALIZER_H

#include "load.h"
#include "storage_uri.h"

enum sl_initializer_local { SL_INITIALIZER_LINK, SL_INITIALIZER_COPY };

struct sl_initializer {
    char *const *arguments; /* SRC DST [SRC DST …]; borrowed, as all here */
    size_t pair_count;
    bool strict_prefix;
    int local;                              /* enum sl_initializer_local */
    const struct sl_spec_setting *settings; /* over those of the environment */
    size_t setting_count;
    struct sl_cancel *cancel;
};

/** What became of a pair. */
struct sl_initialized {
    bool linked, unpacked, moved; /* moved: an earlier run had it ready */
    uint64_t files, bytes;        /* at the destination; of links the number alone */
    struct sl_load_result load;   /* zero if nothing was loaded */
};

/**
 * Do it. Blocks; cancel ends it within a second and leaves what can be resumed. Nothing becomes
 * visible in any destination before everything is complete and checked. `done` has room for
 * pair_count. The environment has been seen to by sl_storage_env_apply(). Errors as sl_load_run().
 */
int sl_initializer_run(const struct sl_initializer *job, struct sl_initialized *done,
                       struct sl_err *err);

/** Is another initializer at work in this directory? false, too, where its lock cannot be opened.
 * *bytes: what it, or one that was ended, has fetched so far. Any thread. */
bool sl_initializer_is_at_work(const char *path, uint64_t *bytes);
/** Remove what one that was ended has left. state_fd: .sluice. SL_E_NO_SPACE. */
int sl_initializer_clear(int state_fd, struct sl_err *err);

#endif
