/*
 * A user's files are known by their number. A mount may show all files as those of one user (NFS
 * with squashed users, FUSE, SMB): where a number is foreign, a file that is made for a moment
 * tells what ours look like there.
 */
#include "owners.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"
#include "thread.h"
#include "tree.h"

enum { OTHERS_WRITE = S_IWGRP | S_IWOTH, PROBE_TRIES = 8 };

/* Whose a new file in this folder is; UINT32_MAX if none can be made. */
static uint32_t new_owner(int folder_fd)
{
    struct stat status;
    char name[64];
    for (unsigned i = 0; i < PROBE_TRIES; i++) {
        snprintf(name, sizeof(name), ".sluice-owner-%" PRIx64, sl_now_ns() + i);
        sl_autoclose int fd =
            openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno == EEXIST)
            continue;
        bool known = fd >= 0 && fstat(fd, &status) == 0;
        if (fd >= 0)
            unlinkat(folder_fd, name, 0);
        return known ? status.st_uid : UINT32_MAX;
    }
    return UINT32_MAX;
}

static bool is_near(uint32_t owner)
{
    return owner == geteuid() || owner == 0;
}

/* In a folder that belongs to us and that nobody else writes there are no files of others. */
static bool is_private(int folder_fd)
{
    struct stat status;
    return fstat(folder_fd, &status) == 0 && is_near(status.st_uid) &&
           !(status.st_mode & OTHERS_WRITE);
}

int sl_owners_check_file(int folder_fd, int fd, const char *name, struct sl_err *err)
{
    struct stat status;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return sl_fail(err, SL_E_NO_SPACE, "'%s' is not a regular file: remove it", name);
    if (status.st_nlink > 1)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' is a hard link, so that writing it would change another file: remove "
                       "it, and keep others out of the destination",
                       name);
    if (is_near(status.st_uid) || is_private(folder_fd) || new_owner(folder_fd) == status.st_uid)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' belongs to user %u, and this is user %u: load as that user, or remove it",
                   name, status.st_uid, geteuid());
}

static bool is_ours(int fd, uint32_t *owner)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return false;
    *owner = status.st_uid;
    return is_near(status.st_uid) || new_owner(fd) == status.st_uid;
}

int sl_owners_fail_folder(struct sl_err *err, const char *name, size_t bytes, uint32_t owner)
{
    return sl_fail(err, SL_E_NO_SPACE,
                   "the folder '%.*s' belongs to user %u, and this is user %u: load as that user, "
                   "or remove the folder",
                   (int)SL_MIN(bytes, (size_t)1024), name, owner, geteuid());
}

int sl_owners_check_folder(int fd, const char *path, struct sl_err *err)
{
    uint32_t owner = UINT32_MAX;
    return is_ours(fd, &owner) ? 0 : sl_owners_fail_folder(err, path, strlen(path), owner);
}

size_t sl_owners_foreign_folder(int root_fd, const char *name, uint32_t *owner)
{
    char below[1025 + 2];
    const char *leaf;
    for (const char *slash = name; (slash = strchr(slash, '/')); slash++) {
        size_t bytes = (size_t)(slash - name);
        if (bytes > sizeof(below) - 3)
            return 0;
        memcpy(below, name, bytes);
        memcpy(below + bytes, "/x", 3); /* the folder is what would hold x */
        sl_autoclose int fd = sl_tree_parent(root_fd, below, false, &leaf);
        if (fd < 0)
            return 0;
        if (!is_ours(fd, owner))
            return bytes;
    }
    return 0;
}
