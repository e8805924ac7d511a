/*
 * The folder of the caches. What is in it becomes code of the engine, so it must be this user's
 * alone: made with mode 0700, or found to be this user's and closed to the writing of others, in a
 * folder where others cannot put another one under its name.
 *
 * A set is unpacked beside it, into .NAME.sluice-restoring, and renamed over the empty folder: it
 * is there whole or not at all. Two that restore to one path meet at the lock of that folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "owners.h"
#include "sets_parts.h"
#include "tree.h"

enum { OTHERS_WRITE = S_IWGRP | S_IWOTH };

void sl_sets_folder_close(struct sl_sets_folder *folder)
{
    sl_autoclose_(&folder->staging);
    sl_autoclose_(&folder->fd);
    sl_autoclose_(&folder->parent);
    folder->staging = folder->fd = folder->parent = -1;
}

/* The folders above it, as mkdir -p makes them. */
static int make_parents(const char *path, struct sl_err *err)
{
    sl_autofree char *text = sl_strdup(path, err);
    if (!text)
        return -1;
    for (char *slash = strchr(text + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(text, 0755) < 0 && errno != EEXIST)
            return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make the folder '%s'", text);
        *slash = '/';
    }
    return 0;
}

static int open_parent(struct sl_sets_folder *folder, struct sl_err *err)
{
    const char *slash = strrchr(folder->path, '/');
    sl_autofree char *parent =
        sl_strndup(folder->path, SL_MAX((size_t)(slash - folder->path), (size_t)1), err);
    if (!parent)
        return -1;
    folder->name = slash + 1;
    folder->parent = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder->parent < 0
               ? sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot open the folder '%s'", parent)
               : 0;
}

/* Can others put another folder under its name? The root of a volume, which mostly belongs to one
 * pod, is often open to all and nobody in the pod can change that. */
static int check_parent(const struct sl_sets_folder *folder, struct sl_err *err)
{
    struct stat parent, above;
    if (fstat(folder->parent, &parent) < 0 || fstatat(folder->parent, "..", &above, 0) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot look at the folder of '%s'",
                             folder->path);
    bool own_group = parent.st_gid == 0 || parent.st_gid == getegid();
    bool open_to_others = (parent.st_mode & S_IWOTH) || ((parent.st_mode & S_IWGRP) && !own_group);
    if (parent.st_uid != 0 && parent.st_uid != geteuid())
        open_to_others = true;
    if (!open_to_others || parent.st_mode & S_ISVTX || parent.st_dev != above.st_dev)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "others can put their code in the place of '%s', since they can write to the "
                   "folder that holds it: take that right from them, or choose another path",
                   folder->path);
}

static int check_own(const struct sl_sets_folder *folder, struct sl_err *err)
{
    struct stat status, parent;
    if (fstat(folder->fd, &status) < 0 || fstat(folder->parent, &parent) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot look at '%s'", folder->path);
    if (status.st_dev != parent.st_dev)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' is the root of a volume, which cannot be replaced: name a folder in "
                       "it",
                       folder->path);
    if (status.st_uid != geteuid())
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' belongs to user %u, whose code would run here as user %u: remove it, "
                       "or choose another path",
                       folder->path, status.st_uid, geteuid());
    if (status.st_mode & OTHERS_WRITE)
        return sl_fail(err, SL_E_NO_SPACE,
                       "others can write to '%s' (mode %04o), and its files become code: chmod it "
                       "to 0700, or choose another path",
                       folder->path, status.st_mode & 07777u);
    return 0;
}

int sl_sets_folder_open(struct sl_sets_folder *folder, const char *path, struct sl_err *err)
{
    *folder = (struct sl_sets_folder){.parent = -1, .fd = -1, .staging = -1, .path = path};
    if (sl_owners_check_path(path, err) < 0 || make_parents(path, err) < 0 ||
        open_parent(folder, err) < 0 || check_parent(folder, err) < 0)
        return -1;
    if (mkdirat(folder->parent, folder->name, 0700) < 0 && errno != EEXIST)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make the folder '%s'", path);
    folder->fd =
        openat(folder->parent, folder->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot open the folder '%s'", path);
    if (check_own(folder, err) < 0)
        return -1;
    (void)fchmod(folder->fd, 0700);
    return 0;
}

bool sl_sets_folder_is_used(const struct sl_sets_folder *folder)
{
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        sl_autoclose_(&fd);
        return true;
    }
    bool used = sl_next_entry(dir) || errno;
    closedir(dir);
    return used;
}

/* Whoever had it before may have renamed it since it was opened here. */
static bool is_still_there(const struct sl_sets_folder *folder)
{
    struct stat own, named;
    return fstat(folder->staging, &own) == 0 &&
           fstatat(folder->parent, folder->staging_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           own.st_ino == named.st_ino && own.st_dev == named.st_dev && own.st_uid == geteuid();
}

static int empty(const struct sl_sets_folder *folder)
{
    int fd = openat(folder->staging, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int done = dir ? 0 : -1;
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(dir)) != NULL;)
        done = sl_tree_remove(folder->staging, entry->d_name);
    int number = errno;
    if (done == 0 && number)
        done = -1;
    if (dir)
        closedir(dir);
    errno = number;
    return done;
}

int sl_sets_folder_stage(struct sl_sets_folder *folder, struct sl_err *err)
{
    snprintf(folder->staging_name, sizeof(folder->staging_name), ".%.255s.sluice-restoring",
             folder->name);
    if (mkdirat(folder->parent, folder->staging_name, 0700) < 0 && errno != EEXIST)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make a folder beside '%s'",
                             folder->path);
    folder->staging = openat(folder->parent, folder->staging_name,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->staging < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot open a folder beside '%s'",
                             folder->path);
    if (flock(folder->staging, LOCK_EX | LOCK_NB) < 0 || !is_still_there(folder)) {
        sl_autoclose_(&folder->staging); /* another's, who alone may remove it */
        folder->staging = -1;
        return sl_fail(err, SL_E_NO_SPACE, "another process restores to '%s'", folder->path);
    }
    if (fchmod(folder->staging, 0700) < 0 || empty(folder) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot remove what an earlier run left beside '%s'", folder->path);
    return 0;
}

int sl_sets_folder_publish(struct sl_sets_folder *folder, struct sl_err *err)
{
    if (renameat(folder->parent, folder->staging_name, folder->parent, folder->name) == 0)
        return 0;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return 1;
    return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                         "cannot put the files in the place of '%s', which must be a folder and "
                         "not the root of a volume",
                         folder->path);
}

void sl_sets_folder_clear(struct sl_sets_folder *folder)
{
    if (folder->staging >= 0 && is_still_there(folder))
        (void)sl_tree_remove(folder->parent, folder->staging_name);
}

int sl_sets_folder_file(const struct sl_sets_folder *folder, struct sl_err *err)
{
    char name[300];
    int fd = openat(folder->parent, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    snprintf(name, sizeof(name), ".%.255s.%llx", folder->name, (unsigned long long)sl_now_ns());
    fd = openat(folder->parent, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make a file beside '%s'",
                             folder->path);
    unlinkat(folder->parent, name, 0);
    return fd;
}
