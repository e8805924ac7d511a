/* A thread waits for the time or the outer cancel and hands it to the inner one. */
#include "deadline.h"

#include <poll.h>

#include "mem.h"

struct watch {
    struct sl_cancel *outer, *inner, *stop;
    uint64_t seconds;
    bool timed_out;
    pthread_t thread;
};

static void *watch_run(void *arg)
{
    struct watch *watch = arg;
    uint64_t end = sl_now_ns() + watch->seconds * SL_NS_PER_S;
    while (!sl_cancel_raised(watch->stop)) {
        uint64_t now = sl_now_ns();
        if (sl_cancel_raised(watch->outer)) {
            sl_cancel_raise(watch->inner, sl_cancel_signal(watch->outer));
            break;
        }
        if (now >= end) {
            watch->timed_out = true;
            sl_cancel_raise(watch->inner, 0);
            break;
        }
        struct pollfd fds[2] = {{sl_cancel_fd(watch->outer), POLLIN, 0},
                                {sl_cancel_fd(watch->stop), POLLIN, 0}};
        poll(fds, 2, (int)SL_MIN((end - now) / SL_NS_PER_MS + 1, (uint64_t)3600 * 1000));
    }
    return NULL;
}

int sl_deadline_run(uint64_t seconds, struct sl_cancel *outer,
                    int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err), void *arg,
                    struct sl_err *err)
{
    struct watch watch = {.outer = outer, .seconds = seconds};
    if (!seconds)
        return work(arg, outer, err);
    watch.inner = sl_cancel_new(err);
    watch.stop = watch.inner ? sl_cancel_new(err) : NULL;
    int done = -1;
    if (watch.stop &&
        sl_thread_start(&watch.thread, "sluice-timeout", watch_run, &watch, err) == 0) {
        done = work(arg, watch.inner, err);
        sl_cancel_raise(watch.stop, 0);
        pthread_join(watch.thread, NULL);
        if (done < 0 && watch.timed_out && err && err->kind == SL_E_CANCELED)
            sl_fail(err, SL_E_TIMEOUT, "it took longer than readers.timeoutSeconds (%llu s)",
                    (unsigned long long)seconds);
    }
    sl_cancel_free(watch.inner);
    sl_cancel_free(watch.stop);
    return done;
}
