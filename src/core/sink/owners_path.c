/*
 * The way to a destination, from the root on, folder by folder and link by link, as the kernel goes
 * it. Whoever can write a folder can put something else under the next name, unless it is sticky;
 * whoever owns it can, anyway. The path is looked at before it is opened, so this finds what is
 * badly set up, not somebody who is quicker: against that helps only a way that none but this user
 * and root can change.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "fork_guard.h"
#include "log.h"
#include "mem.h"
#include "owners.h"
#include "thread.h"

enum { PATH_BYTES = 4096, LINKS_MAX = 40, WARNED_MAX = 64 };

/* The folder that was reached, and what of the path is still to go. */
struct way {
    char here[PATH_BYTES], rest[PATH_BYTES];
    const char *path; /* as it was given */
    struct stat above, status;
    unsigned links;
    bool warned;
};

/* ---- telling, once for a folder ------------------------------------------------------------- */

static pthread_mutex_t warned_lock = PTHREAD_MUTEX_INITIALIZER;
SL_FORK_GUARD(&warned_lock, NULL)
static struct {
    dev_t device;
    ino_t inode;
} warned[WARNED_MAX];
static size_t warned_count;

static bool is_new(const struct stat *status)
{
    SL_LOCKED(&warned_lock);
    for (size_t i = 0; i < warned_count; i++)
        if (warned[i].device == status->st_dev && warned[i].inode == status->st_ino)
            return false;
    if (warned_count < WARNED_MAX) {
        warned[warned_count].device = status->st_dev;
        warned[warned_count++].inode = status->st_ino;
    }
    return true;
}

/* A number of a user namespace that stands for all users outside of it, the host's root too. */
static bool is_unmapped(uint32_t user)
{
    sl_autobuf map = SL_BUF_INIT(4096), overflow = SL_BUF_INIT(64);
    unsigned long inside, outside, count;
    if (user == 0 || sl_buf_read_file(&overflow, "/proc/sys/fs/overflowuid", NULL) < 0 ||
        strtoul(sl_buf_string(&overflow), NULL, 10) != user ||
        sl_buf_read_file(&map, "/proc/self/uid_map", NULL) < 0)
        return false;
    char *text = map.data, *end;
    inside = strtoul(text, &end, 10);
    outside = strtoul(end, &end, 10);
    count = strtoul(end, NULL, 10);
    return inside != 0 || outside != 0 || count < UINT32_MAX;
}

static bool is_foreign(uint32_t user)
{
    return user != 0 && user != geteuid() && !is_unmapped(user);
}

/* The group that has no member but this user, by the usual custom, or root's. */
static bool is_own_group(uint32_t group)
{
    return group == 0 || group == geteuid();
}

/* Who else can put something in the place of what is in this folder; "" for nobody. */
static void find_who(const struct stat *status, char who[64], const char **advice)
{
    *who = 0;
    if (is_foreign(status->st_uid)) {
        snprintf(who, 64, "user %u", status->st_uid);
        *advice = "use a directory whose folders belong to you or root";
    } else if (status->st_mode & S_ISVTX) {
        return;
    } else if (status->st_mode & S_IWOTH) {
        snprintf(who, 64, "any user");
        *advice = "chmod o-w that folder, or use another directory";
    } else if (status->st_mode & S_IWGRP && !is_own_group(status->st_gid)) {
        snprintf(who, 64, "any user of group %u", status->st_gid);
        *advice = "chmod g-w that folder, or use another directory";
    }
}

static void warn(struct way *way)
{
    char who[64];
    const char *advice = "";
    find_who(&way->status, who, &advice);
    if (!*who || way->warned)
        return;
    way->warned = true;
    if (!is_new(&way->status))
        return;
    const char *here = *way->here ? way->here : "/";
    if (way->status.st_dev != way->above.st_dev && !is_foreign(way->status.st_uid))
        sl_log(SL_LOG_INFO,
               "%s that reaches the volume '%s' can put other files in the place of the model: "
               "fine if it belongs to one pod alone",
               who, here);
    else
        sl_log(SL_LOG_WARN,
               "%s can put other files in the place of the model in '%s', since '%s' is theirs to "
               "change (mode %04o, user %u, group %u): %s",
               who, way->path, here, way->status.st_mode & 07777u, way->status.st_uid,
               way->status.st_gid, advice);
}

/* ---- the way -------------------------------------------------------------------------------- */

/* Did somebody else make it where everybody may make things? The kernel is as careful, where
 * fs.protected_symlinks and fs.protected_regular are set. */
static int refuse_planted(const struct way *way, const char *name, const struct stat *status,
                          struct sl_err *err)
{
    mode_t shared = S_ISVTX | S_IWOTH;
    if ((way->status.st_mode & shared) != shared || !is_foreign(status->st_uid) ||
        status->st_uid == way->status.st_uid)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' is not used: user %u made it in '%s', where anyone may, and could put "
                   "other files in the place of the model: remove it, or choose another directory",
                   name, status->st_uid, *way->here ? way->here : "/");
}

/* What a link says goes before the rest. */
static int follow(struct way *way, const char *link)
{
    char target[PATH_BYTES], rest[PATH_BYTES];
    ssize_t got = readlink(link, target, sizeof(target) - 1);
    if (got <= 0 || ++way->links > LINKS_MAX)
        return -1;
    target[got] = 0;
    if (snprintf(rest, sizeof(rest), "%s/%s", target, way->rest) >= (int)sizeof(rest))
        return -1;
    if (*target == '/')
        *way->here = 0;
    memcpy(way->rest, rest, strlen(rest) + 1);
    return stat(*way->here ? way->here : "/", &way->status);
}

/* The next name of the rest; false at its end. */
static bool take_name(struct way *way, char name[PATH_BYTES])
{
    size_t blank = strspn(way->rest, "/"), bytes = strcspn(way->rest + blank, "/");
    memcpy(name, way->rest + blank, bytes);
    name[bytes] = 0;
    memmove(way->rest, way->rest + blank + bytes, strlen(way->rest + blank + bytes) + 1);
    return bytes > 0;
}

/* 1: on; 0: there is nothing more to look at. */
static int step(struct way *way, const char *name, struct sl_err *err)
{
    char next[PATH_BYTES];
    struct stat status;
    char *slash = strrchr(way->here, '/');
    if (strcmp(name, ".") == 0)
        return 1;
    if (strcmp(name, "..") == 0) {
        if (slash)
            *slash = 0;
        return stat(*way->here ? way->here : "/", &way->status) == 0;
    }
    if (snprintf(next, sizeof(next), "%s/%s", way->here, name) >= (int)sizeof(next) ||
        lstat(next, &status) < 0)
        return 0;
    if (refuse_planted(way, next, &status, err) < 0)
        return -1;
    if (S_ISLNK(status.st_mode))
        return follow(way, next) == 0;
    way->above = way->status;
    way->status = status;
    memcpy(way->here, next, strlen(next) + 1);
    warn(way);
    return S_ISDIR(status.st_mode);
}

/* What a shell would have replaced, or a store's name: nobody means a folder of that name. */
static int refuse_word(const char *path, struct sl_err *err)
{
    const char *home = getenv("HOME");
    if (strstr(path, "://"))
        return sl_fail(err, SL_E_USAGE,
                       "'%s' is not a directory to load into: 'sluice convert' writes to a store",
                       path);
    if (*path != '~' || (path[1] && path[1] != '/'))
        return 0;
    return sl_fail(err, SL_E_USAGE, "'~' is not replaced in '%s': write %s%s", path,
                   home && *home == '/' ? home : "/home/NAME", path + 1);
}

int sl_owners_check_path(const char *path, struct sl_err *err)
{
    if (refuse_word(path, err) < 0)
        return -1;
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISDIR(status.st_mode))
        return 0; /* opening it will say more */
    char name[PATH_BYTES], from[PATH_BYTES] = "";
    sl_autofree struct way *way = sl_alloc(sizeof(*way), err);
    if (!way)
        return -1;
    *way = (struct way){.path = path};
    bool whole = *path == '/' || getcwd(from, sizeof(from));
    if (!whole ||
        snprintf(way->rest, sizeof(way->rest), "%s/%s", from, path) >= (int)sizeof(way->rest) ||
        stat("/", &way->status) < 0)
        return 0; /* opening it will say more */
    int on = 1;
    warn(way);
    while (on > 0 && take_name(way, name))
        on = step(way, name, err);
    return on < 0 ? -1 : 0;
}

/* ---- a daemon's directory -------------------------------------------------------------------- */

/* The daemon's own lock, held. One in a folder that others can write to is anybody's. */
static bool is_daemons(const char *folder)
{
    struct stat own, lock;
    sl_autoclose int folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    sl_autoclose int fd =
        folder_fd < 0
            ? -1
            : openat(folder_fd, ".lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd >= 0 && fstat(folder_fd, &own) == 0 && fstat(fd, &lock) == 0 &&
           !(own.st_mode & (S_IWGRP | S_IWOTH)) && S_ISREG(lock.st_mode) &&
           lock.st_uid == own.st_uid && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

char *sl_owners_daemon_of(const char *path)
{
    sl_autofree char *text = sl_strdup(path, NULL);
    sl_autofree char *whole = NULL;
    while (text && !(whole = realpath(*text ? text : ".", NULL)) && *text) {
        char *slash = strrchr(text, '/'); /* it is not there yet */
        text[slash ? slash - text + (slash == text && slash[1]) : 0] = 0;
    }
    while (whole && !is_daemons(whole)) {
        char *slash = strrchr(whole, '/');
        if (slash == whole)
            return NULL;
        *slash = 0;
    }
    return sl_steal(&whole);
}
