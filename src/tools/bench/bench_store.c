/* Ranges by the source layer's fetches: requests, signatures, retry and versions as in a load, but
 * no checks and no destination. */
#include <poll.h>

#include "bench_parts.h"
#include "fetch.h"

static int wait_for(struct sl_fetch *fetch, struct sl_cancel *cancel, struct sl_err *err)
{
    struct pollfd fds[SL_IO_POLL_MAX + 1];
    uint64_t deadline = UINT64_MAX, now = sl_now_ns();
    int count = sl_fetch_poll(fetch, fds, &deadline);
    fds[count++] = (struct pollfd){.fd = sl_cancel_fd(cancel), .events = POLLIN};
    uint64_t ms = deadline <= now ? 0 : (deadline - now) / SL_NS_PER_MS + 1;
    poll(fds, (nfds_t)count, deadline == UINT64_MAX ? -1 : (int)SL_MIN(ms, UINT64_C(60000)));
    return sl_cancel_check(cancel, err);
}

static int read_piece(struct sl_fetch *fetch, const struct sl_bench_piece *piece, uint8_t *buffer,
                      struct sl_err *err)
{
    struct sl_cancel *cancel = sl_store_cancel(sl_source_store(piece->source));
    if (sl_fetch_start(fetch, piece->source, piece->begin, piece->end, err) < 0)
        return -1;
    for (;;) {
        size_t got = 0;
        switch (sl_fetch_read(fetch, buffer, SL_BENCH_BUFFER_BYTES, &got, err)) {
        case SL_IO_END:
            return 0;
        case SL_IO_FAILED:
            return -1;
        case SL_IO_DATA:
            if (sl_cancel_check(cancel, err) < 0)
                return -1;
            break;
        case SL_IO_WAIT:
            if (wait_for(fetch, cancel, err) < 0)
                return -1;
            break;
        }
    }
}

static int read_all(struct sl_bench_work *work, struct sl_err *err)
{
    struct sl_bench_piece piece;
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, SL_BENCH_BUFFER_BYTES, err);
    SL_AUTO(sl_fetch) fetch = NULL;
    while (buffer && sl_bench_work_next(work, &piece)) {
        if (!fetch)
            fetch = sl_fetch_new(sl_source_store(piece.source), err);
        if (!fetch || read_piece(fetch, &piece, buffer, err) < 0)
            return -1;
    }
    return buffer ? 0 : -1;
}

int sl_bench_store(const struct sl_plan *plan, uint64_t range_bytes, unsigned connections,
                   uint64_t limit_bytes, struct sl_err *err)
{
    struct sl_bench_work work = {.plan = plan,
                                 .range_bytes = range_bytes,
                                 .limit_bytes = sl_bench_work_bytes(plan, limit_bytes)};
    return sl_bench_work_run(&work, connections, read_all, err);
}
