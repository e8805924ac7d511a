/*
 * One thread, one connection, one poll(): ranges that came wrong are few. Cancellation is looked
 * for at least every LOOK_AGAIN_MS.
 */
#include "reread.h"

#include <inttypes.h>

#include "fetch.h"
#include "tensor_reader.h"

enum { CHUNK_BYTES = 256 * 1024, LOOK_AGAIN_MS = 50 };

static void wait_for_bytes(struct sl_fetch *fetch, const struct sl_reread *again)
{
    struct pollfd fds[SL_IO_POLL_MAX + 2];
    uint64_t deadline_ns, now = sl_now_ns();
    int count = sl_fetch_poll(fetch, fds, &deadline_ns), timeout_ms = LOOK_AGAIN_MS;
    fds[count++] = (struct pollfd){sl_cancel_fd(again->cancel), POLLIN, 0};
    fds[count++] = (struct pollfd){sl_cancel_fd(again->stop), POLLIN, 0};
    if (deadline_ns <= now)
        timeout_ms = 0;
    else if (deadline_ns - now < LOOK_AGAIN_MS * SL_NS_PER_MS)
        timeout_ms = (int)((deadline_ns - now) / SL_NS_PER_MS) + 1;
    poll(fds, (nfds_t)count, timeout_ms);
}

static int check_going(const struct sl_reread *again, struct sl_err *err)
{
    if (sl_cancel_check(again->cancel, err) < 0)
        return -1;
    return sl_cancel_check(again->stop, err);
}

int sl_reread_range(struct sl_source *source, uint64_t begin, uint64_t end,
                    const struct sl_reread *again, struct sl_err *err)
{
    sl_autofree uint8_t *chunk = sl_alloc_aligned(4096, CHUNK_BYTES, err);
    SL_AUTO(sl_fetch) fetch = chunk ? sl_fetch_new_apart(sl_source_store(source), err) : NULL;
    if (!fetch)
        return -1;
    sl_fetch_vouch(fetch, again->vouch);
    if (sl_fetch_start(fetch, source, begin, end, err) < 0)
        return -1;
    for (;;) {
        size_t got = 0;
        if (check_going(again, err) < 0) /* a fast source never waits */
            return -1;
        switch (sl_fetch_read(fetch, chunk, CHUNK_BYTES, &got, err)) {
        case SL_IO_WAIT:
            wait_for_bytes(fetch, again);
            break;
        case SL_IO_DATA:
            if (again->take(again->arg, chunk, got, err) < 0)
                return -1;
            break;
        case SL_IO_END:
            return 0;
        case SL_IO_FAILED:
            return -1;
        }
    }
}

int sl_reread_blame(const struct sl_target *target, uint64_t number, bool opened,
                    struct sl_err *err)
{
    const struct sl_tensor *tensor = target->from;
    if (!opened)
        return sl_tensor_blame(target->index, tensor, number, err);
    return sl_fail_code(err, SL_E_INTEGRITY, "E_DECRYPT",
                        "tensor '%s' cannot be decrypted: piece %" PRIu64 " of %" PRIu64
                        " does not match its MAC; others open with this key, so the data or their "
                        "headers are damaged",
                        tensor->name, number + 1, tensor->crypt->mac_count);
}
