/*
 * Two looks at all threads with a flush of the loopback device between them. A processor delivers
 * what was sent on it in order, and may do so late, in a thread of the kernel: so a datagram of
 * ours on each of them comes after all that was sent before the first look. If the second look
 * finds that still nobody ran, it was for nobody.
 */
#include "quiet.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mem.h"

enum { TASKS_MAX = 512, STATUS_BYTES = 4096 };
/* The states that the C library gives in a header which does not go with that of the kernel. */
enum { TCP_SYN_SENT = 2, TCP_SYN_RECV = 3, TCP_CLOSE = 7 };

struct look {
    unsigned count;
    struct {
        long task;
        unsigned long switches;
    } tasks[TASKS_MAX];
};

/* Check's own assertions are of one thread at a time. */
static void must(bool holds)
{
    if (!holds)
        abort();
}

static atomic_uint busy;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int echo = -1; /* a socket connected to itself */

void quiet_busy_begin(void)
{
    atomic_fetch_add(&busy, 1);
}

void quiet_busy_end(void)
{
    atomic_fetch_sub(&busy, 1);
}

/* ---- threads --------------------------------------------------------------------------------- */

static unsigned long number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    must(at);
    return strtoul(at + strlen(name), NULL, 10);
}

/* false: it does not sleep, or has ended. */
static bool look_at_task(int folder, const char *name, unsigned long *switches)
{
    char path[64], text[STATUS_BYTES];
    snprintf(path, sizeof(path), "%.40s/status", name);
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (bytes <= 0)
        return false;
    text[bytes] = 0;
    const char *state = strstr(text, "State:\t");
    must(state);
    *switches = number_after(text, "\nvoluntary_ctxt_switches:") +
                number_after(text, "\nnonvoluntary_ctxt_switches:");
    return state[7] == 'S';
}

/* All threads but the caller's. */
static bool look(struct look *look)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    bool asleep = true;
    must(folder);
    look->count = 0;
    while (asleep && (entry = readdir(folder))) {
        long task = strtol(entry->d_name, NULL, 10);
        if (!task || task == gettid())
            continue;
        must(look->count < TASKS_MAX);
        look->tasks[look->count].task = task;
        asleep = look_at_task(dirfd(folder), entry->d_name, &look->tasks[look->count++].switches);
    }
    closedir(folder);
    return asleep;
}

static bool are_same(const struct look *one, const struct look *other)
{
    if (one->count != other->count)
        return false;
    for (unsigned i = 0; i < one->count; i++)
        if (one->tasks[i].task != other->tasks[i].task ||
            one->tasks[i].switches != other->tasks[i].switches)
            return false;
    return true;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void open_echo(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    echo = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(bind(echo, (struct sockaddr *)&address, bytes) == 0);
    must(getsockname(echo, (struct sockaddr *)&address, &bytes) == 0);
    must(connect(echo, (struct sockaddr *)&address, bytes) == 0);
}

static void flush_loopback(void)
{
    cpu_set_t all, one;
    char byte = 0;
    must(sched_getaffinity(0, sizeof(all), &all) == 0);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &all))
            continue;
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        must(sched_setaffinity(0, sizeof(one), &one) == 0);
        must((int)send(echo, &byte, 1, 0) == 1);
        must((int)recv(echo, &byte, 1, 0) == 1);
    }
    must(sched_setaffinity(0, sizeof(all), &all) == 0);
}

/* Not what waits until its reader makes room for it. */
static bool has_more_to_send(int fd, const struct tcp_info *info)
{
    int unsent = 0, unacknowledged = 0;
    if (ioctl(fd, SIOCOUTQNSD, &unsent) != 0 || !unsent ||
        ioctl(fd, SIOCOUTQ, &unacknowledged) != 0)
        return false;
    unsigned next = SL_MIN((unsigned)unsent, info->tcpi_snd_mss);
    return (unsigned)(unacknowledged - unsent) + next <= info->tcpi_snd_wnd;
}

static bool is_under_way(int fd)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        info.tcpi_state == TCP_CLOSE) /* what it had to send is not forgotten in the counts */
        return false;
    return info.tcpi_state == TCP_SYN_SENT || info.tcpi_state == TCP_SYN_RECV ||
           has_more_to_send(fd, &info);
}

static bool is_any_under_way(void)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    bool found = false;
    must(folder);
    while (!found && (entry = readdir(folder)))
        found = *entry->d_name != '.' && is_under_way((int)strtol(entry->d_name, NULL, 10));
    closedir(folder);
    return found;
}

bool quiet_now(void)
{
    struct look before, after;
    pthread_once(&once, open_echo);
    if (atomic_load(&busy) || !look(&before))
        return false;
    flush_loopback();
    return !is_any_under_way() && look(&after) && are_same(&before, &after) && !atomic_load(&busy);
}
