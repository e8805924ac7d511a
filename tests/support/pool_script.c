/* One thread polls the listener and every client; a packet is answered before the next is read, so
 * nothing waits for anything but the clients. */
#include "pool_script.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mem.h"
#include "slab.h"
#include "thread.h"

enum { DEPOSIT_ID = 77 };

union packet {
    struct sl_wire_head head;
    struct sl_wire_attach attach;
    struct sl_wire_slabs slabs;
    struct sl_wire_commit commit;
    struct sl_wire_deposit deposit;
    char bytes[SL_WIRE_PACKET_BYTES];
};

/* ---- packets -------------------------------------------------------------------------------- */

static void answer(int client, const union packet *to, void *packet, size_t bytes, const int *fds,
                   size_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * (POOL_SCRIPT_SLABS + 2))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {packet, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct sl_wire_head *head = packet;
    *head = (struct sl_wire_head){.bytes = (uint32_t)bytes,
                                  .type = SL_WIRE_ANSWER | to->head.type,
                                  .serial = to->head.serial};
    if (fd_count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    sendmsg(client, &message, MSG_NOSIGNAL); /* a client may have gone */
}

static void welcome(const struct pool_script *script, int client, const union packet *packet)
{
    struct sl_wire_welcome welcome = {.version =
                                          script->version ? script->version : SL_WIRE_VERSION,
                                      .leases_max = 8,
                                      .rights = 7,
                                      .name_bytes = 6};
    char bytes[sizeof(welcome) + 6];
    memcpy(bytes, &welcome, sizeof(welcome));
    memcpy(bytes + sizeof(welcome), "script", 6);
    answer(client, packet, bytes, sizeof(bytes), NULL, 0);
}

/* The last of a packet's texts. */
static void keep_device(struct pool_script *script, const char *end, uint16_t bytes)
{
    SL_LOCKED(&script->lock);
    ck_assert_uint_le(bytes, SL_WIRE_DEVICE_BYTES);
    memcpy(script->locked.device, end - bytes, bytes);
    script->locked.device[bytes] = 0;
}

static void attached(struct pool_script *script, int client, const union packet *packet)
{
    int fds[POOL_SCRIPT_SLABS + 2] = {script->index_fd, script->page_fd};
    struct sl_wire_attached attached = {.lease = 5,
                                        .index_bytes = script->index_bytes,
                                        .page_bytes = script->page_bytes,
                                        .tensor_count = script->item_count,
                                        .slab_count = script->slab_count,
                                        .slabs_here = script->slab_count};
    keep_device(script, packet->bytes + packet->head.bytes, packet->attach.device_bytes);
    memcpy(fds + 2, script->fds, script->slab_count * sizeof(int));
    answer(client, packet, &attached, sizeof(attached), fds, script->slab_count + 2);
}

static void take_deposit(struct pool_script *script, int client, const union packet *packet,
                         const int *fds, size_t fd_count)
{
    struct sl_wire_id id = {.id = DEPOSIT_ID};
    if (packet->head.type == SL_WIRE_DEPOSIT)
        keep_device(script, packet->bytes + packet->head.bytes, packet->deposit.device_bytes);
    SL_LOCKED(&script->lock);
    if (packet->head.type == SL_WIRE_DEPOSIT)
        script->locked.announced = packet->deposit.bytes;
    if (packet->head.type == SL_WIRE_DEPOSIT_SLABS) {
        ck_assert_uint_eq(packet->slabs.count, fd_count);
        for (size_t i = 0; i < fd_count; i++)
            script->locked.deposited[script->locked.deposited_count++] = fds[i];
    }
    if (packet->head.type == SL_WIRE_COMMIT) {
        ck_assert_uint_eq(fd_count, 1);
        script->locked.deposited_index = fds[0];
        script->locked.deposited_index_bytes = packet->commit.index_bytes;
    }
    answer(client, packet, &id, sizeof(id), NULL, 0);
}

/* ---- connections ---------------------------------------------------------------------------- */

static void serve(struct pool_script *script, struct pollfd *client)
{
    static union packet packet; /* of the one thread there is */
    union {
        char bytes[CMSG_SPACE(sizeof(int) * POOL_SCRIPT_SLABS)];
        struct cmsghdr aligned;
    } control;
    int fds[POOL_SCRIPT_SLABS];
    size_t fd_count = 0;
    struct iovec part = {&packet, sizeof(packet)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header) {
        fd_count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(header), fd_count * sizeof(int));
    }
    if (got <= 0) {
        close(client->fd);
        client->fd = -1;
        SL_LOCKED(&script->lock);
        script->locked.clients--;
    } else if (packet.head.type == SL_WIRE_HELLO) {
        welcome(script, client->fd, &packet);
    } else if (packet.head.type == SL_WIRE_ATTACH) {
        attached(script, client->fd, &packet);
    } else {
        take_deposit(script, client->fd, &packet, fds, fd_count);
    }
}

static void greet(struct pool_script *script, struct pollfd *clients)
{
    for (int i = 0; i < POOL_SCRIPT_CLIENTS; i++) {
        if (clients[i].fd >= 0)
            continue;
        clients[i].fd = accept(script->listen_fd, NULL, NULL);
        SL_LOCKED(&script->lock);
        script->locked.clients += clients[i].fd >= 0;
        return;
    }
    ck_abort_msg("too many clients");
}

static void *run(void *arg)
{
    struct pool_script *script = arg;
    struct pollfd polled[POOL_SCRIPT_CLIENTS + 2];
    struct pollfd *clients = polled + 2;
    polled[0] = (struct pollfd){.fd = script->end[0], .events = POLLIN};
    polled[1] = (struct pollfd){.fd = script->listen_fd, .events = POLLIN};
    for (int i = 0; i < POOL_SCRIPT_CLIENTS; i++)
        clients[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    while (poll(polled, SL_COUNT(polled), -1) >= 0 && !polled[0].revents) {
        for (int i = 0; i < POOL_SCRIPT_CLIENTS; i++)
            if (clients[i].fd >= 0 && clients[i].revents)
                serve(script, &clients[i]);
        if (polled[1].revents)
            greet(script, clients);
    }
    for (int i = 0; i < POOL_SCRIPT_CLIENTS; i++)
        if (clients[i].fd >= 0)
            close(clients[i].fd);
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

void pool_script_init(struct pool_script *script)
{
    memset(script, 0, sizeof(*script));
    script->locked.deposited_index = script->index_fd = script->page_fd = script->listen_fd = -1;
    pthread_mutex_init(&script->lock, NULL);
    script->directory_fd = sl_scratch_open(script->directory);
    snprintf(script->socket, sizeof(script->socket), "%s/pool.sock", script->directory);
    ck_assert_int_eq(pipe(script->end), 0);
}

static void *make_file(const char *name, size_t bytes, int *fd)
{
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert(*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    ck_assert(map != MAP_FAILED);
    return map;
}

static void make_files(struct pool_script *script)
{
    const struct sl_pool_contents contents = {.name = "m",
                                              .key = "",
                                              .slabs = script->slabs,
                                              .slab_count = script->slab_count,
                                              .items = script->items,
                                              .item_count = script->item_count};
    script->index_bytes = sl_pool_index_size(&contents);
    void *index = make_file("index", script->index_bytes, &script->index_fd);
    sl_pool_index_write(&contents, index);
    munmap(index, script->index_bytes);
    ck_assert_int_eq(
        fcntl(script->index_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
    script->page_bytes = sizeof(struct sl_wire_page) + script->item_count * sizeof(uint32_t);
    script->page = make_file("page", script->page_bytes, &script->page_fd);
    script->page->magic = SL_WIRE_PAGE_MAGIC;
    script->page->version = SL_WIRE_INDEX_VERSION;
    script->page->header_bytes = sizeof(struct sl_wire_page);
    script->page->count = script->item_count;
    ck_assert_int_eq(
        fcntl(script->page_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
}

void pool_script_start(struct pool_script *script)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    make_files(script);
    ck_assert_uint_lt(strlen(script->socket), sizeof(address.sun_path));
    memcpy(address.sun_path, script->socket, strlen(script->socket));
    script->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(script->listen_fd, (void *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(script->listen_fd, 16), 0);
    ck_assert_int_eq(pthread_create(&script->thread, NULL, run, script), 0);
}

void pool_script_asked(struct pool_script *script, char device[SL_WIRE_DEVICE_BYTES + 1])
{
    SL_LOCKED(&script->lock);
    memcpy(device, script->locked.device, sizeof(script->locked.device));
}

void pool_script_release(struct pool_script *script)
{
    int fds[] = {script->index_fd, script->page_fd, script->listen_fd,
                 script->end[0],   script->end[1],  script->locked.deposited_index};
    if (script->listen_fd >= 0) {
        ck_assert_int_eq(write(script->end[1], "x", 1), 1);
        pthread_join(script->thread, NULL);
        munmap(script->page, script->page_bytes);
    }
    for (size_t i = 0; i < SL_COUNT(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (uint32_t i = 0; i < script->slab_count; i++)
        close(script->fds[i]);
    for (uint32_t i = 0; i < script->locked.deposited_count; i++)
        close(script->locked.deposited[i]);
    pthread_mutex_destroy(&script->lock);
    sl_scratch_close(script->directory_fd, script->directory);
}
