/*
 * What every call does first and last: limits, errors, a log that is silent. Cancellation is a
 * descriptor, so one thread waits for the caller's, the source's and the clock; calls without
 * limits have no such thread.
 */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fork_guard.h"
#include "log.h"
#include "open_parts.h"
#include "retry.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin_once(void)
{
    sl_log_silence();
    sl_fork_guard_begin();
}

void sl_open_begin(void)
{
    pthread_once(&once, begin_once);
}

struct watch {
    const struct sl_open_limits *limits;
    struct sl_cancel *outer, *inner, *stop;
    uint64_t end_ns; /* 0: never */
    bool timed_out, raised;
};

/* What poll() may wait, rounded up; -1: for ever. */
static int wait_ms(const struct watch *watch)
{
    enum { LONGEST_MS = 3600 * 1000, REPORT_MS = 100 };
    uint64_t now = sl_now_ns();
    if (watch->limits->progress)
        return REPORT_MS;
    if (!watch->end_ns)
        return -1;
    if (now >= watch->end_ns)
        return 0;
    return (int)SL_MIN((watch->end_ns - now) / SL_NS_PER_MS + 1, (uint64_t)LONGEST_MS);
}

/* What the caller says of it: true to end the work. */
static bool report(const struct watch *watch)
{
    const struct sl_open_limits *limits = watch->limits;
    struct sl_progress_view view;
    if (!limits->progress)
        return false;
    sl_progress_view(limits->of, &view);
    return limits->progress(limits->arg, view.bytes_done, view.bytes_total) != 0;
}

static void *watch_run(void *arg)
{
    struct watch *watch = arg;
    int asked = watch->limits->cancel_fd > 0 ? watch->limits->cancel_fd : -1;
    for (;;) {
        struct pollfd fds[3] = {{sl_cancel_fd(watch->stop), POLLIN, 0},
                                {sl_cancel_fd(watch->outer), POLLIN, 0},
                                {asked, POLLIN, 0}};
        poll(fds, 3, wait_ms(watch));
        if (sl_cancel_raised(watch->stop))
            return NULL;
        watch->timed_out = watch->end_ns && sl_now_ns() >= watch->end_ns;
        if (watch->timed_out || fds[2].revents || sl_cancel_raised(watch->outer) || report(watch)) {
            watch->raised = true;
            sl_cancel_raise(watch->inner, 0);
            return NULL;
        }
    }
}

/* With what was waited for meanwhile, where nothing was reached. */
static int fail_late(const struct watch *watch, uint64_t before, struct sl_err *err)
{
    char text[sizeof(err->message)];
    int ms = watch->limits->timeout_ms;
    if (sl_retry_waits_for(text, sizeof(text)) > before)
        return sl_fail(err, SL_E_TIMEOUT, "it took longer than %d ms: %s", ms, text);
    return sl_fail(err, SL_E_TIMEOUT, "it took longer than %d ms", ms);
}

static int run_watched(struct watch *watch,
                       int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err),
                       void *arg, struct sl_err *err)
{
    pthread_t thread;
    struct sl_err why = SL_ERR_INIT;
    char text[1];
    uint64_t before = sl_retry_waits_for(text, sizeof(text));
    if (sl_thread_start(&thread, "sluice-watch", watch_run, watch, err) < 0)
        return -1;
    int done = work(arg, watch->inner, &why);
    sl_cancel_raise(watch->stop, 0);
    pthread_join(thread, NULL);
    if (done == 0 && watch->raised && watch->inner == watch->outer)
        done = sl_fail(&why, SL_E_CANCELED, "canceled"); /* and so is what was opened */
    if (done == 0)
        report(watch); /* all of it */
    if (done < 0 && watch->timed_out && why.kind == SL_E_CANCELED)
        fail_late(watch, before, &why);
    if (done < 0)
        *err = why;
    return done;
}

int sl_open_within(const struct sl_open_limits *limits, struct sl_cancel *outer, bool raise,
                   int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err), void *arg,
                   struct sl_err *err)
{
    struct watch watch = {.limits = limits, .outer = outer, .inner = outer};
    if (limits->timeout_ms <= 0 && limits->cancel_fd <= 0 && !limits->progress)
        return work(arg, outer, err);
    if (limits->timeout_ms > 0)
        watch.end_ns = sl_now_ns() + (uint64_t)limits->timeout_ms * SL_NS_PER_MS;
    watch.stop = sl_cancel_new(err);
    struct sl_cancel *own = NULL;
    if (watch.stop && !raise)
        watch.inner = own = sl_cancel_new(err);
    int done = watch.stop && watch.inner ? run_watched(&watch, work, arg, err) : -1;
    sl_cancel_free(own);
    sl_cancel_free(watch.stop);
    return done;
}

int sl_open_check_size(const void *theirs, struct sl_err *err)
{
    size_t size = *(const size_t *)theirs;
    if (size > sizeof(size))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "the size in a struct is %zu: set its first member to the sizeof of the struct",
                   size);
}

int sl_open_take(void *to, size_t bytes, const void *theirs, struct sl_err *err)
{
    if (theirs && sl_open_check_size(theirs, err) < 0)
        return -1;
    sl_api_take(to, bytes, theirs);
    return 0;
}

int sl_open_check_flags(uint32_t flags, uint32_t known, struct sl_err *err)
{
    if (!(flags & ~known))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "flags has 0x%x, which this version of the library does not know: leave it out",
                   flags & ~known);
}

int sl_open_check_process(const struct sluice_source *source, struct sl_err *err)
{
    if (source->process == getpid())
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "forked",
                        "this model was opened before this process was forked: open it again here");
}

int sl_open_fail(struct sluice_error *error, const struct sl_err *err)
{
    if (!error)
        return -1;
    memset(error, 0, sizeof(*error));
    error->kind = sl_err_exit(err);
    memccpy(error->code, err->code, 0, sizeof(error->code) - 1);
    memccpy(error->message, err->message, 0, sizeof(error->message) - 1);
    return -1;
}
