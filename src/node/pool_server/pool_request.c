/*
 * A request is answered by whatever thread has the answer, perhaps long after its client, or even
 * the server, has gone. So the two meet in a mailbox that lives as long as either: the answer is
 * put there under its lock, where it is also decided whether anybody still waits for it.
 *
 *     its client asks          granted, refused, accepted         the server's thread takes it
 *     --------------> WAITING ---------------------------> ANSWERED -------------------> sent;
 *                       |                                     |                   granted: a lease
 *                       | its client goes:                    | its client goes:  with the cookie
 *                       v withdrawn()                         v
 *                     GONE -------> freed by its answer:    freed, the cookie
 *                                   a grant is false, and   is given back
 *                                   the cookie stays the
 *                                   owner's
 *
 * A client goes, too, when it does not take an earlier answer in time, or the server ends. A
 * deposit that is answered at once (deposit_begin() returns 0 or -1) has no use for its request,
 * which is freed without any of this.
 *
 * The cookie is thus the owner's before a grant, the request's while it is in the mailbox, the
 * lease's from then on, and given back once, by whoever has it when the client goes or detaches.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "pool_server_parts.h"

struct sl_pool_mailbox *sl_pool_mailbox_new(struct sl_err *err)
{
    struct sl_pool_mailbox *mailbox = sl_alloc(sizeof(*mailbox), err);
    if (!mailbox)
        return NULL;
    mailbox->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mailbox->wake_fd < 0) {
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make a descriptor for the pool");
        free(mailbox);
        return NULL;
    }
    pthread_mutex_init(&mailbox->lock, NULL);
    mailbox->locked.count = 1;
    return mailbox;
}

static bool was_last(struct sl_pool_mailbox *mailbox)
{
    SL_LOCKED(&mailbox->lock);
    return --mailbox->locked.count == 0;
}

void sl_pool_mailbox_free(struct sl_pool_mailbox *mailbox)
{
    if (!mailbox || !was_last(mailbox))
        return;
    close(mailbox->wake_fd);
    pthread_mutex_destroy(&mailbox->lock);
    free(mailbox);
}

bool sl_pool_mailbox_defer(struct sl_pool_mailbox *mailbox, size_t fds, size_t most)
{
    SL_LOCKED(&mailbox->lock);
    if (mailbox->locked.closing_fds > most)
        return false;
    mailbox->locked.closing_fds += fds;
    mailbox->locked.count++;
    return true;
}

void sl_pool_mailbox_closed(struct sl_pool_mailbox *mailbox, size_t fds)
{
    {
        SL_LOCKED(&mailbox->lock);
        mailbox->locked.closing_fds -= fds;
    }
    sl_pool_mailbox_free(mailbox);
}

/* Text of the args, in the memory behind the request. */
static const char *keep(char **at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = memcpy(*at, text, bytes);
    *at += bytes;
    return copy;
}

struct sl_pool_request *sl_pool_request_new(struct sl_pool_mailbox *mailbox,
                                            const struct sl_pool_packet *packet,
                                            const struct sl_pool_peer *peer, struct sl_err *err)
{
    const char *device = packet->device[0] ? packet->device : "host";
    size_t texts = strlen(packet->model) + strlen(packet->key) + strlen(device) + 3;
    struct sl_pool_request *request = sl_alloc(sizeof(*request) + texts, err);
    if (!request)
        return NULL;
    char *at = (char *)(request + 1);
    request->mailbox = mailbox;
    request->since_ns = sl_now_ns();
    request->args =
        (struct sl_pool_attach_args){.peer = *peer,
                                     .model = keep(&at, packet->model),
                                     .key = keep(&at, packet->key),
                                     .device = keep(&at, device),
                                     .present_only = packet->flags & SL_WIRE_PRESENT_ONLY};
    SL_LOCKED(&mailbox->lock);
    mailbox->locked.count++;
    return request;
}

void sl_pool_request_end(struct sl_pool_request *request)
{
    sl_pool_mailbox_free(request->mailbox);
    free(request);
}

const struct sl_pool_attach_args *sl_pool_request_args(const struct sl_pool_request *request)
{
    return &request->args;
}

/* True if somebody will find the answer. */
static bool post(struct sl_pool_request *request, struct sl_pool_copy *copy, void *cookie,
                 const struct sl_err *why)
{
    struct sl_pool_mailbox *mailbox = request->mailbox;
    uint64_t one = 1;
    SL_LOCKED(&mailbox->lock);
    if (request->gone)
        return false;
    request->copy = copy;
    request->cookie = cookie;
    if (why)
        request->err = *why;
    request->answered = true;
    request->next = mailbox->locked.answered;
    mailbox->locked.answered = request;
    ssize_t wrote = write(mailbox->wake_fd, &one, sizeof(one)); /* full: it is awake */
    (void)wrote;
    return true;
}

bool sl_pool_request_grant(struct sl_pool_request *request, struct sl_pool_copy *copy, void *cookie)
{
    struct sl_err err = SL_ERR_INIT;
    if (sl_pool_copy_give_out(copy, &err) < 0) {
        sl_pool_request_refuse(request, &err);
        return false;
    }
    bool posted = post(request, copy, cookie, NULL);
    if (!posted)
        sl_pool_request_end(request);
    return posted;
}

void sl_pool_request_refuse(struct sl_pool_request *request, const struct sl_err *why)
{
    if (!post(request, NULL, NULL, why))
        sl_pool_request_end(request);
}

void sl_pool_request_accept(struct sl_pool_request *request)
{
    if (!post(request, NULL, NULL, NULL))
        sl_pool_request_end(request);
}

bool sl_pool_request_adopted(struct sl_pool_request *request, const struct sl_err *why)
{
    bool posted = post(request, NULL, NULL, why);
    if (!posted)
        sl_pool_request_end(request);
    return posted;
}

struct sl_pool_request *sl_pool_mailbox_take(struct sl_pool_mailbox *mailbox)
{
    SL_LOCKED(&mailbox->lock);
    struct sl_pool_request *request = mailbox->locked.answered;
    if (request)
        mailbox->locked.answered = request->next;
    return request;
}

bool sl_pool_request_leave(struct sl_pool_request *request)
{
    struct sl_pool_mailbox *mailbox = request->mailbox;
    SL_LOCKED(&mailbox->lock);
    if (!request->answered) {
        request->gone = true;
        return false;
    }
    struct sl_pool_request **at = &mailbox->locked.answered;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    return true;
}
