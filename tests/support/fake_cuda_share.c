/*
 * Descriptors of the fake driver's memory. One from a real driver is a character device: it has no
 * size, takes no seals, and keeps memory alive by itself. Here it is a socket whose other end is
 * closed and in which one message waits for ever, with the memory's own descriptor in it: that can
 * be looked at as often as somebody likes, and goes with the last descriptor of the socket.
 *
 * Whether it is closed on exec is documented nowhere, so it is not.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

static const char magic[16] = "fake-cuda-memory";

struct carrier {
    char magic[16];
    int32_t device;
    uint64_t bytes, state; /* of the GPU, when it was exported */
};

/* ---- the GPU's state ------------------------------------------------------------------------- */

static uint64_t state; /* how often nobody had the GPU open */

/* Whoever has it open has the file locked, and the kernel lets go of that for those who are
 * killed. */
void fake_open_node(void)
{
    static int node = -1;
    const char *path = getenv("FAKE_CUDA_NODE");
    if (!path || node >= 0)
        return;
    node = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (node < 0)
        abort();
    bool first = flock(node, LOCK_EX | LOCK_NB) == 0;
    if (!first)
        flock(node, LOCK_SH);
    if (pread(node, &state, sizeof(state), 0) != sizeof(state))
        state = 0;
    if (!first)
        return;
    state++;
    if (pwrite(node, &state, sizeof(state), 0) != sizeof(state) || flock(node, LOCK_SH) < 0)
        abort();
}

/* ---- descriptors ----------------------------------------------------------------------------- */

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static int put(int into, const struct carrier *carrier, int fd)
{
    union control control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)carrier, sizeof(*carrier)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    return sendmsg(into, &message, MSG_NOSIGNAL) == sizeof(*carrier) ? 0 : -1;
}

int fake_carry(int fd, int device, size_t bytes)
{
    int pair[2];
    struct carrier carrier = {.device = device, .bytes = bytes, .state = state};
    memcpy(carrier.magic, magic, sizeof(magic));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
        return -1;
    int done = put(pair[0], &carrier, fd);
    close(pair[0]);
    if (done == 0)
        return pair[1];
    close(pair[1]);
    return -1;
}

int fake_carried(int fd, int *device, size_t *bytes)
{
    struct carrier carrier;
    union control control;
    struct iovec part = {&carrier, sizeof(carrier)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int own = -1;
    if (recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(carrier))
        return -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS)
        memcpy(&own, CMSG_DATA(head), sizeof(own));
    if (memcmp(carrier.magic, magic, sizeof(magic)) == 0 && carrier.state == state) {
        *device = carrier.device;
        *bytes = carrier.bytes;
        return own;
    }
    if (own >= 0)
        close(own);
    return -1;
}
