/*
 * A path is only as good as every folder on it: who may rename one of them decides what the path
 * means a moment later. So it is walked component by component by descriptors, and what is used in
 * the end is a descriptor. Where nobody else can rename anything on the way, its path is as good,
 * and is used, too, where a call takes no descriptor; else such calls get the descriptor's name in
 * /proc.
 *
 * In a sticky folder (1777) nobody renames what is another's. In one that others may write without
 * that (a volume of Kubernetes) they may exchange the daemon's own folder for theirs: the daemon
 * goes on in its own, and says that readers must see to theirs.
 */
#include "node_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "entries.h"
#include "log.h"
#include "tree.h"

enum {
    FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    LINKS_MAX = 40,
    PATH_BYTES = 4096,
    NAME_BYTES = 256,
};

/* ---- who ------------------------------------------------------------------------------------ */

static bool is_ours(const struct stat *status)
{
    return status->st_uid == 0 || status->st_uid == geteuid();
}

/* The group's bits are those of the widest entry of an access list, too. */
static bool others_write(const struct stat *status)
{
    return status->st_mode & (S_IWGRP | S_IWOTH);
}

bool sl_node_is_own(const struct stat *status)
{
    return is_ours(status) && (S_ISLNK(status->st_mode) || !others_write(status)) &&
           (S_ISDIR(status->st_mode) || status->st_nlink == 1);
}

static int fail_owner(struct sl_err *err, const struct stat *status, const char *path)
{
    if (!is_ours(status))
        return sl_fail_code(err, SL_E_NO_SPACE, "owner",
                            "'%s' belongs to user %u, who could replace what is in it: remove it, "
                            "or choose a directory that only root or this user (%u) can create",
                            path, status->st_uid, geteuid());
    return sl_fail_code(err, SL_E_NO_SPACE, "owner",
                        "other users can write to '%s' (mode %04o), or it has a second hard link: "
                        "check what is in it, then remove it or run chmod go-w on it",
                        path, status->st_mode & 07777);
}

/* Can somebody else put another thing in this one's place? */
static bool can_be_exchanged(const struct stat *folder, const struct stat *entry)
{
    if (!is_ours(folder))
        return true;
    return others_write(folder) && !((folder->st_mode & S_ISVTX) && is_ours(entry));
}

/* ---- the way -------------------------------------------------------------------------------- */

struct way {
    const char *path; /* all of it */
    char *rest;       /* what is still to go */
    int fd;           /* of the folder that was reached; O_PATH */
    struct stat status;
    bool exposed;
    unsigned links;
};

static int enter(struct way *way, int fd, const char *name, struct sl_err *err)
{
    if (fd < 0 || fstat(fd, &way->status) < 0) {
        int number = errno;
        sl_autoclose_(&fd);
        return sl_tree_fail(err, number, "open directory", *name ? name : way->path);
    }
    sl_autoclose_(&way->fd);
    way->fd = fd;
    return 0;
}

static int follow(struct way *way, int link_fd, const struct stat *link, const char *name,
                  struct sl_err *err)
{
    char target[PATH_BYTES];
    if (!is_ours(link) || can_be_exchanged(&way->status, link))
        return sl_fail_code(err, SL_E_NO_SPACE, "owner",
                            "'%s' on the way to '%s' is a link of user %u, or in a folder that "
                            "others may write: name the place that it leads to",
                            name, way->path, link->st_uid);
    ssize_t bytes = readlinkat(link_fd, "", target, sizeof(target) - 1);
    if (bytes <= 0 || ++way->links > LINKS_MAX)
        return sl_tree_fail(err, bytes < 0 ? errno : ELOOP, "follow", name);
    target[bytes] = 0;
    char *rest = sl_asprintf(err, "%s/%s", target, way->rest);
    if (!rest)
        return -1;
    free(way->rest);
    way->rest = rest;
    return *target == '/' ? enter(way, open("/", O_PATH | O_CLOEXEC), "/", err) : 0;
}

static int open_name(struct way *way, const char *name)
{
    int fd = openat(way->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    if (mkdirat(way->fd, name, 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(way->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static int step(struct way *way, const char *name, struct sl_err *err)
{
    struct stat status;
    sl_autoclose int fd = open_name(way, name);
    if (fd < 0 || fstat(fd, &status) < 0)
        return sl_tree_fail(err, errno, "open directory", way->path);
    if (S_ISLNK(status.st_mode))
        return follow(way, fd, &status, name, err);
    if (!S_ISDIR(status.st_mode))
        return sl_tree_fail(err, ENOTDIR, "open directory", way->path);
    if (strcmp(name, "..") != 0)
        way->exposed = way->exposed || can_be_exchanged(&way->status, &status);
    int entered = fd;
    fd = -1;
    return enter(way, entered, name, err);
}

static int go(struct way *way, struct sl_err *err)
{
    if (enter(way, open("/", O_PATH | O_CLOEXEC), "/", err) < 0)
        return -1;
    while (way->rest[strspn(way->rest, "/")]) {
        char name[NAME_BYTES];
        const char *begin = way->rest + strspn(way->rest, "/");
        size_t bytes = strcspn(begin, "/");
        if (bytes >= sizeof(name))
            return sl_tree_fail(err, ENAMETOOLONG, "open directory", way->path);
        memcpy(name, begin, bytes);
        name[bytes] = 0;
        memmove(way->rest, begin + bytes, strlen(begin + bytes) + 1);
        if (strcmp(name, ".") != 0 && step(way, name, err) < 0)
            return -1;
    }
    return 0;
}

static int reach(struct way *way, struct sl_err *err)
{
    char here[PATH_BYTES] = "";
    if (*way->path != '/' && !getcwd(here, sizeof(here)))
        return sl_tree_fail(err, errno, "tell where this is, for", way->path);
    way->rest = sl_asprintf(err, "%s/%s", here, way->path);
    if (!way->rest)
        return -1;
    int done = go(way, err);
    free(way->rest);
    if (done == 0 && !is_ours(&way->status))
        done = fail_owner(err, &way->status, way->path);
    if (done < 0)
        sl_autoclose_(&way->fd);
    return done;
}

int sl_node_folder_reach(const char *path, bool *exposed, struct sl_err *err)
{
    struct way way = {.path = path, .fd = -1};
    if (reach(&way, err) < 0)
        return -1;
    *exposed = way.exposed || (others_write(&way.status) && !(way.status.st_mode & S_ISVTX));
    return way.fd;
}

/* ---- below one that is trusted -------------------------------------------------------------- */

int sl_node_open_own(int parent_fd, const char *name, bool make, const char *where,
                     struct sl_err *err)
{
    struct stat status;
    if (make && mkdirat(parent_fd, name, 0755) < 0 && errno != EEXIST)
        return sl_tree_fail(err, errno, "make the folder", where);
    int fd = openat(parent_fd, name, FOLDER);
    if (fd < 0 && errno == ENOENT)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no '%s'", where);
    if (fd < 0 || fstat(fd, &status) < 0) {
        int number = errno;
        sl_autoclose_(&fd);
        return sl_tree_fail(err, number, "open the folder", where);
    }
    if (sl_node_is_own(&status))
        return fd;
    close(fd);
    return fail_owner(err, &status, where);
}

int sl_node_check_entries(int folder_fd, const char *where, struct sl_err *err)
{
    int fd = openat(folder_fd, ".", FOLDER), done = 0;
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        int number = errno;
        sl_autoclose_(&fd);
        return sl_tree_fail(err, number, "read the folder", where);
    }
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));) {
        struct stat status;
        if (fstatat(folder_fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            done = errno == ENOENT ? 0 : sl_tree_fail(err, errno, "look at", entry->d_name);
        else if (!sl_node_is_own(&status))
            done = sl_fail_code(err, SL_E_NO_SPACE, "owner",
                                "'%s' holds files of other users: remove it", where);
    }
    if (done == 0 && errno)
        done = sl_tree_fail(err, errno, "read the folder", where);
    closedir(folder);
    return done;
}

int sl_node_read_own(int folder_fd, const char *name, struct sl_buf *buf, struct sl_err *err)
{
    struct stat status;
    sl_autoclose int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no '%s'", name);
    if (fd < 0 || fstat(fd, &status) < 0)
        return sl_tree_fail(err, errno, "open", name);
    if (!S_ISREG(status.st_mode))
        return sl_fail(err, SL_E_NO_SPACE, "'%s' is not a regular file: remove it", name);
    if (!sl_node_is_own(&status))
        return fail_owner(err, &status, name);
    if (status.st_mode & 0077) /* an earlier version let everybody read it */
        (void)fchmod(fd, 0600);
    return sl_buf_read_fd(buf, fd, name, SL_E_NO_SPACE, err);
}

/* ---- the daemon's --------------------------------------------------------------------------- */

void sl_node_folder_release(struct sl_node_folder *folder)
{
    sl_autoclose_(&folder->fd);
    folder->fd = -1;
    free(sl_steal(&folder->path));
    free(sl_steal(&folder->work));
}

static int take_paths(struct sl_node_folder *folder, const char *path, const char *own,
                      struct sl_err *err)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    folder->path = sl_asprintf(err, "%.*s%s%s", (int)bytes, path, *own ? "/" : "", own);
    folder->work = !folder->path     ? NULL
                   : folder->exposed ? sl_asprintf(err, "/proc/self/fd/%d", folder->fd)
                                     : sl_strdup(folder->path, err);
    if (!folder->work)
        return -1;
    if (folder->exposed)
        sl_log(SL_LOG_WARN,
               "other users can replace the folder '%s', so its readers must trust them. Specs of "
               "requests are not kept there. Use a folder that only root and this user can "
               "replace, or set the sticky bit (chmod +t)",
               folder->path);
    return 0;
}

static int open_reached(struct way *way, struct sl_node_folder *folder, struct sl_err *err)
{
    char own[32] = "";
    sl_autoclose int fd = openat(way->fd, ".", FOLDER);
    if (fd < 0)
        return sl_tree_fail(err, errno, "open directory", way->path);
    folder->exposed = way->exposed;
    if (!others_write(&way->status)) {
        folder->fd = fd;
        fd = -1;
        return take_paths(folder, way->path, own, err);
    }
    folder->exposed = folder->exposed || !(way->status.st_mode & S_ISVTX);
    snprintf(own, sizeof(own), ".sluice-%u", geteuid());
    sl_autofree char *where = sl_asprintf(err, "%s/%s", way->path, own);
    folder->fd = where ? sl_node_open_own(fd, own, true, where, err) : -1;
    return folder->fd < 0 ? -1 : take_paths(folder, way->path, own, err);
}

int sl_node_folder_open(const char *path, struct sl_node_folder *folder, struct sl_err *err)
{
    struct way way = {.path = path, .fd = -1};
    if (reach(&way, err) < 0)
        return -1;
    int done = open_reached(&way, folder, err);
    sl_autoclose_(&way.fd);
    if (done < 0)
        sl_node_folder_release(folder);
    return done;
}

void sl_node_folder_explain(const struct sl_node_folder *folder, struct sl_err *err)
{
    char text[sizeof(err->message)];
    char *at = folder->exposed && err ? strstr(err->message, folder->work) : NULL;
    for (unsigned i = 0; at && i < 8; i++) {
        size_t before = (size_t)(at - err->message), bytes = strlen(folder->work);
        snprintf(text, sizeof(text), "%s%s", folder->path, at + bytes);
        snprintf(at, sizeof(err->message) - before, "%s", text);
        char *rest = at + SL_MIN(strlen(at), strlen(folder->path));
        at = strstr(rest, folder->work);
    }
}
