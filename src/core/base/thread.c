/*
 * Cancellation is an eventfd that is written once and never read: every poll() that includes it
 * wakes, in every thread, for good.
 */
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cgroup.h"
#include "mem.h"

struct sl_cancel {
    _Atomic bool raised;
    _Atomic int signal_number;
    int fd;
};

struct sl_cancel *sl_cancel_new(struct sl_err *err)
{
    struct sl_cancel *cancel = sl_alloc(sizeof(*cancel), err);
    if (!cancel)
        return NULL;
    cancel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cancel->fd < 0) {
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make an eventfd");
        free(cancel);
        return NULL;
    }
    return cancel;
}

void sl_cancel_free(struct sl_cancel *cancel)
{
    if (!cancel)
        return;
    close(cancel->fd);
    free(cancel);
}

void sl_cancel_raise(struct sl_cancel *cancel, int signal_number)
{
    int saved = errno, none = 0;
    atomic_compare_exchange_strong(&cancel->signal_number, &none, signal_number);
    atomic_store(&cancel->raised, true);
    uint64_t one = 1;
    ssize_t ignored = write(cancel->fd, &one, sizeof(one));
    (void)ignored;
    errno = saved;
}

bool sl_cancel_raised(const struct sl_cancel *cancel)
{
    return cancel && atomic_load(&cancel->raised);
}

int sl_cancel_signal(const struct sl_cancel *cancel)
{
    return cancel ? atomic_load(&cancel->signal_number) : 0;
}

int sl_cancel_fd(const struct sl_cancel *cancel)
{
    return cancel ? cancel->fd : -1;
}

int sl_cancel_check(const struct sl_cancel *cancel, struct sl_err *err)
{
    if (!sl_cancel_raised(cancel))
        return 0;
    int number = sl_cancel_signal(cancel);
    return number == SIGINT ? sl_fail(err, SL_E_CANCELED, "interrupted")
           : number         ? sl_fail(err, SL_E_CANCELED, "stopped by SIG%s", sigabbrev_np(number))
                            : sl_fail(err, SL_E_CANCELED, "canceled");
}

int sl_sleep_ms(unsigned ms, struct sl_cancel *cancel, struct sl_err *err)
{
    uint64_t end = sl_now_ns() + ms * SL_NS_PER_MS;
    for (;;) {
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        uint64_t now = sl_now_ns();
        if (now >= end)
            return 0;
        struct pollfd fd = {sl_cancel_fd(cancel), POLLIN, 0};
        poll(&fd, 1, (int)((end - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS));
    }
}

int sl_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                    struct sl_err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed)
        return sl_fail_errno(err, SL_E_NO_SPACE, failed, "cannot start thread '%s'", name);
    char short_name[16];
    snprintf(short_name, sizeof(short_name), "%s", name);
    pthread_setname_np(*thread, short_name);
    return 0;
}

/* "0-3,8"; those that there are no places for are nobody's. */
static void read_cpus(FILE *file, cpu_set_t *set)
{
    unsigned first, last;
    char comma = ',';
    CPU_ZERO(set);
    while (comma == ',' && fscanf(file, "%u", &first) == 1) {
        last = first;
        comma = 0;
        if (fscanf(file, "-%u", &last) < 0 || fscanf(file, "%c", &comma) < 0)
            comma = 0;
        for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, set);
    }
}

bool sl_thread_stay(const char *path)
{
    cpu_set_t own, listed, both;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    read_cpus(file, &listed);
    fclose(file);
    if (sched_getaffinity(0, sizeof(own), &own) != 0)
        return false;
    CPU_AND(&both, &own, &listed);
    return CPU_COUNT(&both) && sched_setaffinity(0, sizeof(both), &both) == 0;
}

unsigned sl_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    unsigned count = sched_getaffinity(0, sizeof(set), &set) == 0
                         ? (unsigned)CPU_COUNT(&set)
                         : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    double quota = sl_cgroup_cpus_recent();
    if (quota > 0 && quota < count)
        count = (unsigned)(quota + 0.5);
    return count ? count : 1;
}

void sl_counter_add(struct sl_counter *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(&counter->value, amount, memory_order_relaxed);
}

uint64_t sl_counter_get(const struct sl_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}
