/*
 * Memory that clients hand over goes with its last descriptor, and the kernel takes its time, a
 * second for some gigabytes: so whatever may be the last is closed by another thread, while this
 * one serves the others. Where that cannot be, without memory or without another thread, it is
 * closed here; so it is while too many wait for that thread, which may be at work for seconds:
 * clients could hand over descriptors faster than it closes them.
 */
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "pool_server_parts.h"

struct closing {
    struct sl_deferred_call call; /* first */
    struct sl_pool_mailbox *mailbox;
    size_t count;
    int fds[];
};

static void run_closing(struct sl_deferred_call *call)
{
    struct closing *closing = (struct closing *)call;
    for (size_t i = 0; i < closing->count; i++)
        close(closing->fds[i]);
    if (closing->mailbox)
        sl_pool_mailbox_closed(closing->mailbox, closing->count);
    free(closing);
}

struct sl_pool_mailbox *sl_pool_later(struct sl_pool_server *server, size_t fds)
{
    bool call = server->handler.defer &&
                sl_pool_mailbox_defer(server->mailbox, fds, server->shares.user_fds);
    return call ? server->mailbox : NULL;
}

void sl_pool_defer(struct sl_pool_server *server, struct sl_deferred_call *call, bool to_other)
{
    if (to_other)
        server->handler.defer(server->arg, call);
    else
        call->run(call);
}

void sl_pool_close_later(struct sl_pool_server *server, int *fds, size_t count)
{
    size_t open = 0;
    for (size_t i = 0; i < count; i++)
        open += fds[i] >= 0;
    if (!open)
        return;
    struct closing *closing = sl_alloc(sizeof(*closing) + open * sizeof(int), NULL);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0 && closing)
            closing->fds[closing->count++] = fds[i];
        else if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
    if (!closing)
        return;
    closing->call.run = run_closing;
    closing->mailbox = sl_pool_later(server, closing->count);
    sl_pool_defer(server, &closing->call, closing->mailbox != NULL);
}

void sl_pool_close_socket(struct sl_pool_server *server, int fd)
{
    int unread = 0;
    if (ioctl(fd, SIOCINQ, &unread) == 0 && unread == 0) {
        close(fd);
        return;
    }
    shutdown(fd, SHUT_RDWR); /* the client learns of it now */
    sl_pool_close_later(server, &fd, 1);
}
