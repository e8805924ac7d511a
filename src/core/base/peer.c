/*
 * SO_PEERCRED tells the user and the first group, SO_PEERGROUPS (Linux 4.13) the others; without it
 * there are none.
 *
 * Where a process lives, files of /proc tell that everybody may read: NSpid of its status has one
 * number for each PID namespace from that of /proc downwards, and uid_map is how its users are
 * seen from here. Its number may be another process's by then, so it is held by SO_PEERPIDFD (Linux
 * 6.5), and nothing is believed of one that has ended. Before Linux 6.5 the number alone is known.
 */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buf.h"
#include "mem.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* A process has 65,536 groups at most, which its status names before NSpid. */
enum { GROUPS_MAX = 65536, PROC_BYTES_MAX = 1 << 20 };

/* ---- where it lives ---------------------------------------------------------------------------
 */

/* How many numbers it has; 0: it does not tell, to the end of the line. */
static unsigned count_pids(const char *status)
{
    const char *line = strstr(status, "\nNSpid:");
    unsigned count = 0;
    if (!line)
        return 0;
    line += strlen("\nNSpid:");
    for (;;) {
        line += strspn(line, "\t ");
        size_t digits = strspn(line, "0123456789");
        if (!digits)
            return *line == '\n' ? count : 0;
        count++;
        line += digits;
    }
}

bool sl_peer_shares_home(const char *own_status, const char *own_map, const char *status,
                         const char *map)
{
    return count_pids(own_status) == 1 && count_pids(status) == 1 && *own_map &&
           strcmp(own_map, map) == 0;
}

/* The whole of it: whoever is asked about chooses how long it is. */
static bool read_proc(const char *who, const char *file, struct sl_buf *text)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%s/%s", who, file);
    return sl_buf_read_file(text, path, NULL) == 0 && text->used > 0;
}

/* False with errno: 0 where it is known that it does not. */
static bool lives_here(int32_t pid)
{
    char who[16];
    sl_autobuf own_status = SL_BUF_INIT(PROC_BYTES_MAX), own_map = SL_BUF_INIT(PROC_BYTES_MAX),
               status = SL_BUF_INIT(PROC_BYTES_MAX), map = SL_BUF_INIT(PROC_BYTES_MAX);
    snprintf(who, sizeof(who), "%d", pid);
    errno = 0;
    if (!read_proc("self", "status", &own_status) || !read_proc("self", "uid_map", &own_map) ||
        !read_proc(who, "status", &status) || !read_proc(who, "uid_map", &map))
        return false;
    errno = 0;
    return sl_peer_shares_home(sl_buf_string(&own_status), sl_buf_string(&own_map),
                               sl_buf_string(&status), sl_buf_string(&map));
}

/* False with errno, as above. */
static bool is_at_home(int fd, int32_t pid)
{
    int pid_fd = -1;
    socklen_t bytes = sizeof(pid_fd);
    errno = 0;
    if (pid <= 0)
        return false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pid_fd, &bytes) < 0)
        return errno == ENOPROTOOPT && lives_here(pid);
    struct pollfd alive = {pid_fd, POLLIN, 0};
    bool home = lives_here(pid);
    int number = errno;
    home = home && poll(&alive, 1, 0) == 0;
    close(pid_fd);
    errno = number;
    return home;
}

/* ---- who it is --------------------------------------------------------------------------------
 */

static int find_groups(int fd, struct sl_peer *peer, struct sl_err *err)
{
    socklen_t bytes = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || errno != ERANGE ||
        bytes > GROUPS_MAX * sizeof(uint32_t))
        return 0;
    peer->groups = sl_alloc(bytes, err);
    if (!peer->groups)
        return -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &bytes) == 0)
        peer->group_count = bytes / sizeof(uint32_t);
    return 0;
}

static bool is_of_ours(uint32_t uid)
{
    return uid == 0 || uid == geteuid();
}

int sl_peer_find(int fd, struct sl_peer *peer, struct sl_err *err)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);
    memset(peer, 0, sizeof(*peer));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0)
        return sl_fail_errno(err, SL_E_AUTH, errno, "cannot see who is at the other end");
    peer->pid = credentials.pid;
    peer->uid = credentials.uid;
    peer->gid = credentials.gid;
    peer->home = is_of_ours(peer->uid) && is_at_home(fd, peer->pid);
    if (is_of_ours(peer->uid) && !peer->home && sl_errno_is_short(errno))
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot see where the process at the other end lives: let it try "
                             "again, and raise the limit of open files");
    return find_groups(fd, peer, err);
}

bool sl_peer_is_privileged(const struct sl_peer *peer)
{
    return peer->home && is_of_ours(peer->uid);
}

uint32_t sl_peer_user(const struct sl_peer *peer)
{
    return sl_peer_is_privileged(peer) ? SL_PEER_PRIVILEGED : peer->uid;
}

uint32_t sl_peer_user_uid(uint32_t user)
{
    return user == SL_PEER_PRIVILEGED ? geteuid() : user;
}

void sl_peer_release(struct sl_peer *peer)
{
    free(peer->groups);
    memset(peer, 0, sizeof(*peer));
}

bool sl_peer_is_in(const struct sl_peer *peer, uint32_t gid)
{
    if (peer->gid == gid)
        return true;
    for (size_t i = 0; i < peer->group_count; i++)
        if (peer->groups[i] == gid)
            return true;
    return false;
}
