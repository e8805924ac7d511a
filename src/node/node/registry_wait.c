/* Asking for a model and waiting for the answer: for callers that have a thread of their own. */
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "registry_parts.h"

/* One who waits and the answer share this; the second to leave frees it. */
struct waiting {
    struct sl_registry *registry;
    pthread_mutex_t lock;
    int event_fd;
    struct {
        bool answered, left;
        struct sl_model_ref *ref;
        struct sl_err err;
    } locked;
};

static void waiting_free(struct waiting *waiting)
{
    close(waiting->event_fd);
    pthread_mutex_destroy(&waiting->lock);
    free(waiting);
}

static void on_answer(void *arg, struct sl_model_ref *ref, const struct sl_err *err)
{
    struct waiting *waiting = arg;
    bool left;
    {
        SL_LOCKED(&waiting->lock);
        left = waiting->locked.left;
        waiting->locked.answered = true;
        waiting->locked.ref = ref;
        if (err)
            waiting->locked.err = *err;
        if (!left)
            eventfd_write(waiting->event_fd, 1);
    }
    if (!left)
        return;
    sl_registry_release(waiting->registry, ref);
    waiting_free(waiting);
}

/* Until the answer, a cancellation, or this time. */
static void await_any(const struct waiting *waiting, struct sl_cancel *cancel, uint64_t until_ns)
{
    struct pollfd fds[] = {{waiting->event_fd, POLLIN, 0}, {sl_cancel_fd(cancel), POLLIN, 0}};
    for (;;) {
        uint64_t now = sl_now_ns();
        if (now >= until_ns)
            return;
        uint64_t ms = (until_ns - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS;
        int wait_ms = until_ns == UINT64_MAX ? -1 : (int)SL_MIN(ms, (uint64_t)INT_MAX);
        if (poll(fds, 2, wait_ms) > 0)
            return;
    }
}

static struct sl_model_ref *fail_left(bool raised, struct sl_err *err)
{
    if (raised)
        sl_fail(err, SL_E_CANCELED, "canceled while a load was awaited");
    else
        sl_fail_code(err, SL_E_TIMEOUT, "waiting", "the model is still being loaded");
    return NULL;
}

static struct sl_model_ref *await(struct waiting *waiting, struct sl_cancel *cancel,
                                  uint64_t until_ns, struct sl_err *err)
{
    await_any(waiting, cancel, until_ns);
    struct sl_model_ref *ref;
    bool raised = sl_cancel_raised(cancel);
    if ((raised || sl_now_ns() >= until_ns) && sl_registry_leave(waiting->registry, waiting)) {
        waiting_free(waiting);
        return fail_left(raised, err);
    }
    {
        SL_LOCKED(&waiting->lock);
        if (!waiting->locked.answered) {
            waiting->locked.left = true;
            return fail_left(raised, err);
        }
        ref = waiting->locked.ref;
        if (!ref && err)
            *err = waiting->locked.err;
    }
    waiting_free(waiting);
    return ref;
}

struct sl_model_ref *sl_registry_wait_until(struct sl_registry *registry, const char *name,
                                            enum sl_ref_kind kind, const char *who,
                                            const char *sharer, uint64_t until_ns,
                                            struct sl_cancel *cancel, struct sl_err *err)
{
    struct waiting *waiting = sl_alloc(sizeof(*waiting), err);
    if (!waiting)
        return NULL;
    waiting->registry = registry;
    pthread_mutex_init(&waiting->lock, NULL);
    waiting->event_fd = eventfd(0, EFD_CLOEXEC);
    struct sl_ask ask = {.name = name,
                         .kind = kind,
                         .who = who,
                         .sharer = sharer,
                         .answer = on_answer,
                         .arg = waiting};
    if (waiting->event_fd < 0)
        sl_fail(err, SL_E_NO_SPACE, "no descriptors are left to wait for the model '%s'", name);
    if (waiting->event_fd < 0 || sl_registry_ask(registry, &ask, err) < 0) {
        waiting_free(waiting);
        return NULL;
    }
    return await(waiting, cancel, until_ns, err);
}
