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
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mem.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum { GROUPS_MAX = 65536, PROC_BYTES = 4096 /* what is longer does not tell it */ };

/* ---- where it lives ---------------------------------------------------------------------------
 */

/* How many numbers it has; 0: it does not tell. */
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
            return count;
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

static bool read_proc(const char *who, const char *file, char text[PROC_BYTES])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%s/%s", who, file);
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, PROC_BYTES - 1);
    text[SL_MAX(bytes, 0)] = 0;
    return bytes > 0;
}

static bool lives_here(int32_t pid)
{
    char own_status[PROC_BYTES], own_map[PROC_BYTES], status[PROC_BYTES], map[PROC_BYTES], who[16];
    snprintf(who, sizeof(who), "%d", pid);
    return read_proc("self", "status", own_status) && read_proc("self", "uid_map", own_map) &&
           read_proc(who, "status", status) && read_proc(who, "uid_map", map) &&
           sl_peer_shares_home(own_status, own_map, status, map);
}

static bool is_at_home(int fd, int32_t pid)
{
    int pid_fd = -1;
    socklen_t bytes = sizeof(pid_fd);
    if (pid <= 0)
        return false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pid_fd, &bytes) < 0)
        return errno == ENOPROTOOPT && lives_here(pid);
    struct pollfd alive = {pid_fd, POLLIN, 0};
    bool home = lives_here(pid) && poll(&alive, 1, 0) == 0;
    close(pid_fd);
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
