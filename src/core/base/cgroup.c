/*
 * /proc/self/cgroup has a line for each hierarchy: "0::/path" for version 2, "9:cpu,cpuacct:/path"
 * for version 1. In a container without a cgroup namespace that is a path of the host, which is not
 * below our mount: then the mount's root is our own group. Limits add up downwards, so whoever asks
 * takes the narrowest of what is shown. Files are read anew each time, since limits may be changed
 * while we run; the one of processors once a second, since every small read asks for it. Nothing is
 * allocated: whoever asks for the number of processors cannot fail.
 */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fork_guard.h"
#include "mem.h"
#include "thread.h"

enum { FOLDER_BYTES = 4200 };
#define MOUNT "/sys/fs/cgroup"

/* ---- files ---------------------------------------------------------------------------------- */

int sl_cgroup_read(const char *path, char text[SL_CGROUP_TEXT_BYTES])
{
    size_t used = 0;
    text[0] = 0;
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && used < SL_CGROUP_TEXT_BYTES - 1) {
        ssize_t got = read(fd, text + used, SL_CGROUP_TEXT_BYTES - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    text[used] = 0;
    return fd < 0 ? -1 : 0;
}

uint64_t sl_cgroup_file_member(const char *path, const char *word)
{
    char text[SL_CGROUP_TEXT_BYTES];
    uint64_t value = 0;
    if (sl_cgroup_read(path, text) < 0)
        return 0;
    size_t bytes = strlen(word);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, bytes) == 0 && (line[bytes] == ' ' || line[bytes] == ':'))
            return sscanf(line + bytes + 1, "%" SCNu64, &value) == 1 ? value : 0;
    }
    return 0;
}

static int read_file(const struct sl_cgroup *group, const char *file,
                     char text[SL_CGROUP_TEXT_BYTES])
{
    char path[FOLDER_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", group->folder, file);
    return sl_cgroup_read(path, text);
}

uint64_t sl_cgroup_number(const struct sl_cgroup *group, const char *file)
{
    char text[SL_CGROUP_TEXT_BYTES];
    uint64_t value;
    if (read_file(group, file, text) < 0)
        return UINT64_MAX;
    return *text != '-' && sscanf(text, "%" SCNu64, &value) == 1 ? value : UINT64_MAX;
}

static uint64_t member(const struct sl_cgroup *group, const char *file, const char *word)
{
    char path[FOLDER_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", group->folder, file);
    return sl_cgroup_file_member(path, word);
}

/* ---- groups --------------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

struct walk {
    void (*visit)(const struct sl_cgroup *group, void *arg);
    void *arg;
    bool found;
};

/* From a group up to the root of its mount. */
static void climb(struct walk *walk, unsigned version, const char *mount, const char *own)
{
    char path[FOLDER_BYTES / 2], folder[FOLDER_BYTES];
    snprintf(path, sizeof(path), "%s", own);
    snprintf(folder, sizeof(folder), "%s%s", mount, path);
    if (!is_folder(folder))
        path[0] = 0;
    walk->found = true;
    for (;;) {
        size_t bytes = strlen(path);
        while (bytes && path[bytes - 1] == '/')
            path[--bytes] = 0;
        snprintf(folder, sizeof(folder), "%s%s", mount, path);
        walk->visit(&(struct sl_cgroup){version, path, folder}, walk->arg);
        if (bytes == 0)
            return;
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
}

/* "cpu" is in "cpu,cpuacct", not in "cpuset". */
static bool is_listed(const char *list, const char *word)
{
    size_t bytes = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += bytes)
        if ((at == list || at[-1] == ',') && (at[bytes] == ',' || !at[bytes]))
            return true;
    return false;
}

/* Mounted as /sys/fs/cgroup/cpu, or under the names of all that are mounted together. */
static void climb_version_1(struct walk *walk, const char *controller, const char *all,
                            const char *own)
{
    char mount[256];
    snprintf(mount, sizeof(mount), MOUNT "/%s", controller);
    if (!is_folder(mount))
        snprintf(mount, sizeof(mount), MOUNT "/%.100s", all);
    climb(walk, 1, mount, own);
}

void sl_cgroup_each(const char *controller, void (*visit)(const struct sl_cgroup *group, void *arg),
                    void *arg)
{
    struct walk walk = {visit, arg, false};
    char text[SL_CGROUP_TEXT_BYTES];
    char *rest = sl_cgroup_read("/proc/self/cgroup", text) == 0 ? text : NULL;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *all = strchr(line, ':'), *path = all ? strchr(all + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        all++;
        if (!*all)
            climb(&walk, 2, MOUNT, path);
        else if (is_listed(all, controller))
            climb_version_1(&walk, controller, all, path);
    }
    if (!walk.found) /* a /proc that hides it: the mount may still tell */
        climb(&walk, 2, MOUNT, "");
}

/* ---- processors ----------------------------------------------------------------------------- */

/* cpu.max is "QUOTA PERIOD" or "max PERIOD", in microseconds; version 1 has a file for each. */
static void take_quota(const struct sl_cgroup *group, void *arg)
{
    double *cpus = arg;
    uint64_t quota = UINT64_MAX, period = 100000;
    if (group->version == 2) {
        char text[SL_CGROUP_TEXT_BYTES];
        if (read_file(group, "cpu.max", text) < 0 ||
            sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period) != 2)
            return;
    } else {
        quota = sl_cgroup_number(group, "cpu.cfs_quota_us");
        period = sl_cgroup_number(group, "cpu.cfs_period_us");
    }
    if (quota == UINT64_MAX || period == UINT64_MAX || quota == 0 || period == 0)
        return;
    double here = (double)quota / (double)period;
    if (*cpus == 0 || here < *cpus)
        *cpus = here;
}

double sl_cgroup_cpus(void)
{
    double cpus = 0;
    sl_cgroup_each("cpu", take_quota, &cpus);
    return cpus;
}

static struct {
    pthread_mutex_t mutex;
    uint64_t stale_ns;
    double cpus;
} recent = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&recent.mutex, NULL)

double sl_cgroup_cpus_recent(void)
{
    uint64_t now = sl_now_ns();
    SL_LOCKED(&recent.mutex);
    if (now >= recent.stale_ns) {
        recent.cpus = sl_cgroup_cpus();
        recent.stale_ns = now + SL_NS_PER_S;
    }
    return recent.cpus;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static const uint64_t UNLIMITED = (uint64_t)1 << 60; /* v1 writes a huge number for "none" */

struct group_files {
    const char *current, *inactive;
    const char *limits[3];
};
static const struct group_files version_2 = {
    "memory.current", "inactive_file", {"memory.max", "memory.high", NULL}};
static const struct group_files version_1 = {
    "memory.usage_in_bytes", "total_inactive_file", {"memory.limit_in_bytes", NULL}};

struct memory_visit {
    void (*visit)(const struct sl_cgroup *group, const char *file, uint64_t limit,
                  uint64_t available, void *arg);
    void *arg;
};

static void look_at_memory(const struct sl_cgroup *group, void *arg)
{
    const struct memory_visit *with = arg;
    const struct group_files *files = group->version == 2 ? &version_2 : &version_1;
    uint64_t current = sl_cgroup_number(group, files->current);
    if (current == UINT64_MAX)
        return;
    uint64_t inactive = member(group, "memory.stat", files->inactive);
    uint64_t used = current - SL_MIN(current, inactive);
    for (size_t i = 0; files->limits[i]; i++) {
        uint64_t limit = sl_cgroup_number(group, files->limits[i]);
        if (limit < UNLIMITED)
            with->visit(group, files->limits[i], limit, limit - SL_MIN(limit, used), with->arg);
    }
}

void sl_cgroup_memory(void (*visit)(const struct sl_cgroup *group, const char *file, uint64_t limit,
                                    uint64_t available, void *arg),
                      void *arg)
{
    struct memory_visit with = {visit, arg};
    sl_cgroup_each("memory", look_at_memory, &with);
}

static void take_least(const struct sl_cgroup *group, const char *file, uint64_t limit,
                       uint64_t available, void *arg)
{
    uint64_t *least = arg;
    (void)group, (void)file, (void)limit;
    *least = SL_MIN(*least, available);
}

uint64_t sl_memory_available(void)
{
    uint64_t least = sl_cgroup_file_member("/proc/meminfo", "MemAvailable") * 1024;
    sl_cgroup_memory(take_least, &least);
    return least;
}
