/* Control groups, versions 1 and 2: the group of this process and those above it, as far as they
 * are visible. Kernel documents cgroup-v2.rst, cgroup-v1/. Any thread; each call reads small files.
 */
#ifndef SL_CGROUP_H
#define SL_CGROUP_H

#include <stdint.h>

/** One group; borrowed for the call that it is shown to. */
struct sl_cgroup {
    unsigned version;
    const char *path;   /* below the mount: "/kubepods/pod1", "" at its root */
    const char *folder; /* where its files are */
};

/**
 * Show every group that has a say in `controller` ("memory", "cpu"): our own, then each one above
 * it. With both versions mounted those of both are shown. A machine without groups has none.
 */
void sl_cgroup_each(const char *controller, void (*visit)(const struct sl_cgroup *group, void *arg),
                    void *arg);

/** The number in a file of the group; UINT64_MAX for "max", "-1", nonsense and absence. */
uint64_t sl_cgroup_number(const struct sl_cgroup *group, const char *file);

/** Show every limit of memory, and how much of it is free: page cache that can be dropped
 * (inactive_file) counts as free. */
void sl_cgroup_memory(void (*visit)(const struct sl_cgroup *group, const char *file, uint64_t limit,
                                    uint64_t available, void *arg),
                      void *arg);
/** Bytes that machine and groups still allow; 0: not known. */
uint64_t sl_memory_available(void);

/** Processors' worth of time that the narrowest of our groups may take; 0: no limit. */
double sl_cgroup_cpus(void);
/** The same as it was at some time of the last second. */
double sl_cgroup_cpus_recent(void);

/** More than these files have. */
enum { SL_CGROUP_TEXT_BYTES = 16 * 1024 };
/** A file of /proc or /sys, as a string. -1: it cannot be read. */
int sl_cgroup_read(const char *path, char text[SL_CGROUP_TEXT_BYTES]);
/** The number after a word at the beginning of a line of a file: "inactive_file 4096"; 0 if absent.
 * The word may end in a colon. */
uint64_t sl_cgroup_file_member(const char *path, const char *word);

#endif
