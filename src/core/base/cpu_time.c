/* /proc/self/task/TID/schedstat: "USED WAITED TURNS", in ns (kernel document sched-stats.rst). */
#include "cpu_time.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "entries.h"
#include "thread.h"

static uint64_t waited_of(int tasks_fd, const char *task)
{
    char path[64], text[128], *end;
    if (task[0] == '.' || snprintf(path, sizeof(path), "%.20s/schedstat", task) < 0)
        return 0;
    int fd = openat(tasks_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    strtoull(text, &end, 10);
    return strtoull(end, NULL, 10);
}

struct sl_cpu_time sl_cpu_time(void)
{
    struct timespec used = {0};
    struct sl_cpu_time time = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    time.used_ns = (uint64_t)used.tv_sec * SL_NS_PER_S + (uint64_t)used.tv_nsec;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *task; tasks && (task = sl_next_entry(tasks));)
        time.waited_ns += waited_of(dirfd(tasks), task->d_name);
    if (tasks)
        closedir(tasks);
    return time;
}

struct sl_cpu_time sl_cpu_time_between(struct sl_cpu_time before, struct sl_cpu_time now)
{
    return (struct sl_cpu_time){now.used_ns > before.used_ns ? now.used_ns - before.used_ns : 0,
                                now.waited_ns > before.waited_ns ? now.waited_ns - before.waited_ns
                                                                 : 0};
}
