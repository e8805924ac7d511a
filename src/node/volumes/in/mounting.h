/* Mounts below the kubelet's directory, reached by descriptors only: no link on the way counts, and
 * nothing that is exchanged meanwhile leads elsewhere. Any thread. */
#ifndef SL_MOUNTING_H
#define SL_MOUNTING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "err.h"

enum { SL_TARGET_MAX = 1024 };

/** The kubelet's directory. Zero but fd, which is -1, before it is opened. */
struct sl_mounting {
    int fd;
    char *path; /* as the config has it, without a slash at the end */
    char *real; /* as the mount table has it */
};
/** SL_E_USAGE: it is not there, or not a folder. */
int sl_mounting_open(const char *path, struct sl_mounting *mounting, struct sl_err *err);
void sl_mounting_release(struct sl_mounting *mounting);

/** Can it be a target: absolute, below the directory, without "..", "." and empty parts?
 * SL_E_USAGE. */
int sl_mounting_check(const struct sl_mounting *mounting, const char *target, struct sl_err *err);
/**
 * Bind the folder of source_fd, read-only, nosuid, nodev and noexec, at the target, which is made
 * if it is missing. SL_E_USAGE, code "precondition": something is there, or a link is on the way;
 * SL_E_NOT_FOUND: the folder that is to hold it is not there; SL_E_NO_SPACE. What was begun is
 * undone.
 */
int sl_mounting_bind(const struct sl_mounting *mounting, const char *target, int source_fd,
                     struct sl_err *err);
enum sl_mounted {
    SL_MOUNTED_NOTHING,  /* nor a folder */
    SL_MOUNTED_FOLDER,   /* an empty folder, or one with something in it */
    SL_MOUNTED_RIGHT,    /* the folder of source_fd, read-only */
    SL_MOUNTED_WRITABLE, /* the folder of source_fd, as a bind that was interrupted leaves it */
    SL_MOUNTED_OTHER,
    SL_MOUNTED_UNKNOWN, /* it cannot be looked at just now */
};
/** Say what is at a target. source_fd: the folder expected there, or -1. */
enum sl_mounted sl_mounting_look(const struct sl_mounting *mounting, const char *target,
                                 int source_fd);
/**
 * Unmount what is at a target, as often as something is, and remove its folder. Nothing there is
 * fine.
 *
 * @target          below the directory.
 * @devices, count  only what is of one of these file systems is unmounted; count 0: whatever it is.
 * @return          0, or -1 with SL_E_USAGE, code "precondition" (something else is there), or
 *                  SL_E_NO_SPACE.
 */
int sl_mounting_undo(const struct sl_mounting *mounting, const char *target, const dev_t *devices,
                     size_t count, struct sl_err *err);
/** Is nothing else in a folder but a socket of this name, and what begins with a dot? */
bool sl_mounting_holds_only(int folder_fd, const char *socket);
/** Is there certainly no folder of this name below the directory? relative: "pods/UID". */
bool sl_mounting_lacks_folder(const struct sl_mounting *mounting, const char *relative);

/** One line of the mount table; texts are borrowed for the call, without escapes. */
struct sl_mount_line {
    dev_t device;
    const char *root, *point;
};
/** Every mount of this process's namespace, in the order in which they were made. SL_E_NO_SPACE. */
int sl_mount_table_each(void (*each)(void *arg, const struct sl_mount_line *line), void *arg,
                        struct sl_err *err);
/** Parse one; false: it is none. text is changed. */
bool sl_mount_line_parse(char *text, struct sl_mount_line *line);

#endif
