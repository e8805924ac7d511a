/*
 * A socket is bound in a folder that nobody else can enter, gets its mode and group there, listens,
 * and is then renamed to its place. To bind it in place and chmod() the path would let whoever may
 * write to the folder put a link there in between, and have any file opened to all.
 */
#include "node_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "node_folder.h"
#include "selinux_label.h"

#define BOUND "socket"

static int fail_listen(struct sl_err *err, int number, const char *path)
{
    return sl_fail_errno(err, sl_errno_is_short(number) ? SL_E_NO_SPACE : SL_E_NET, number,
                         "cannot listen on the socket '%s'", path);
}

/* The address of a name in a folder, which no link on the way can change. */
static void address_of(int folder_fd, const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/%.79s", folder_fd,
             name);
}

/* Does somebody answer there? Another type of socket than ours is somebody's, too. */
static bool is_served(int folder_fd, const struct sl_node_socket_options *options, const char *name)
{
    struct sockaddr_un address;
    sl_autoclose int fd = socket(AF_UNIX, options->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address_of(folder_fd, name, &address);
    return fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ||
           (errno != ECONNREFUSED && errno != ENOENT);
}

static int look_at_place(int folder_fd, const struct sl_node_socket_options *options,
                         const char *name, struct sl_err *err)
{
    struct stat status;
    if (fstatat(folder_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (!S_ISSOCK(status.st_mode))
        return sl_fail(err, SL_E_NET, "cannot listen on '%s': something else is there",
                       options->path);
    if (is_served(folder_fd, options, name))
        return sl_fail(err, SL_E_NET, "cannot listen on '%s': another process serves it",
                       options->path);
    return 0;
}

/* In the closed folder. */
static int bind_closed(int closed_fd, const struct sl_node_socket_options *options,
                       struct sl_node_socket *at, struct sl_err *err)
{
    struct sockaddr_un address;
    struct stat status;
    address_of(closed_fd, BOUND, &address);
    unlinkat(closed_fd, BOUND, 0);
    at->fd = socket(AF_UNIX, options->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (at->fd < 0 || bind(at->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        (options->group != UINT32_MAX &&
         fchownat(closed_fd, BOUND, UINT32_MAX, options->group, 0) < 0) ||
        fchmodat(closed_fd, BOUND, options->mode, 0) < 0 || listen(at->fd, options->backlog) < 0 ||
        fstatat(closed_fd, BOUND, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_listen(err, errno, options->path);
    at->inode = status.st_ino;
    sl_selinux_give(closed_fd, BOUND, options->path, options->selinux_label);
    return 0;
}

static int bind_and_place(const struct sl_node_socket_options *options, struct sl_node_socket *at,
                          struct sl_err *err)
{
    char closed[300];
    snprintf(closed, sizeof(closed), ".%.200s.%u", at->name, geteuid());
    if (mkdirat(at->folder_fd, closed, 0700) < 0 && errno != EEXIST)
        return fail_listen(err, errno, options->path);
    sl_autoclose int fd = sl_node_open_own(at->folder_fd, closed, false, closed, err);
    if (fd < 0)
        return -1;
    int done = bind_closed(fd, options, at, err);
    if (done == 0 && renameat(fd, BOUND, at->folder_fd, at->name) < 0)
        done = fail_listen(err, errno, options->path);
    if (done < 0)
        unlinkat(fd, BOUND, 0);
    unlinkat(at->folder_fd, closed, AT_REMOVEDIR);
    return done;
}

/* The folder of a path; its last component in at->name. */
static int open_folder(const char *path, struct sl_node_socket *at, struct sl_err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool exposed = false;
    sl_autofree char *folder =
        slash ? sl_strndup(path, (size_t)(slash - path) + 1, err) : sl_strdup(".", err);
    if (!folder)
        return -1;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        strlen(name) >= sizeof(at->name))
        return sl_fail(err, SL_E_USAGE,
                       "'%s' is not a path of a socket: its name may have at most %zu bytes", path,
                       sizeof(at->name) - 1);
    snprintf(at->name, sizeof(at->name), "%s", name);
    at->folder_fd = sl_node_folder_reach(folder, &exposed, err);
    if (at->folder_fd < 0)
        return sl_wrap(err, "cannot listen on the socket '%s'", path);
    if (exposed)
        sl_log(SL_LOG_WARN,
               "other users can replace the socket '%s' and answer its clients: put it into a "
               "folder that only root and this user can write to",
               path);
    return 0;
}

int sl_node_socket_open(const struct sl_node_socket_options *options, struct sl_node_socket *at,
                        struct sl_err *err)
{
    *at = (struct sl_node_socket){.fd = -1, .folder_fd = -1};
    if (strlen(options->path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return sl_fail(err, SL_E_USAGE, "the path of the socket '%.200s' is too long",
                       options->path);
    if (open_folder(options->path, at, err) == 0 &&
        look_at_place(at->folder_fd, options, at->name, err) == 0 &&
        bind_and_place(options, at, err) == 0)
        return 0;
    sl_node_socket_release(at);
    return -1;
}

int sl_node_socket_set_mode(const struct sl_node_socket *at, unsigned mode, struct sl_err *err)
{
    char path[64];
    struct stat status;
    if (at->folder_fd < 0)
        return 0;
    sl_autoclose int fd = openat(at->folder_fd, at->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0 || !S_ISSOCK(status.st_mode) ||
        status.st_ino != at->inode || (status.st_mode & 0777) == mode)
        return 0;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (chmod(path, mode) < 0)
        return sl_fail_errno(err, SL_E_NET, errno, "cannot change the mode of the socket '%s'",
                             at->name);
    return 0;
}

bool sl_node_socket_is_there(const struct sl_node_socket *at, const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == at->inode;
}

void sl_node_socket_release(struct sl_node_socket *at)
{
    struct stat status;
    if (at->folder_fd >= 0 && at->inode &&
        fstatat(at->folder_fd, at->name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISSOCK(status.st_mode) && status.st_ino == at->inode)
        unlinkat(at->folder_fd, at->name, 0);
    sl_autoclose_(&at->folder_fd);
    sl_autoclose_(&at->fd);
    at->fd = at->folder_fd = -1;
}
