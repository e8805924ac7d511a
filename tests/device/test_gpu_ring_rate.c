/*
 * How much of the link the staging ring uses, in virtual time: readers, link and the GPU's thread
 * are events of one simulation, which runs as a task of that thread, so that nothing else turns the
 * ring. To ask for a copy takes the thread 5.5 us; the copy engine takes the bytes at the rate of
 * the link, one copy after another, with 1 us between them. Readers are faster than the link
 * together; each receives pieces of a range of its own: of 256 KiB, as those are that are hashed,
 * or of 1 MiB.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "gpu_ring_parts.h"
#include "seed.h"
#include "use_fake_cuda.h"

enum {
    PIECE = 256 * 1024,
    LARGE = 1024 * 1024, /* of what is lent and not looked into */
    RANGE = 8 * 1024 * 1024,
    READERS_MAX = 64,
    ASK_NS = 5500, /* the thread's, for a copy */
    GAP_NS = 1000,
    PUT_NS = 10000, /* a piece from a reader's memory into a buffer */
};
#define WARM_BYTES  (UINT64_C(512) << 20)
#define TOTAL_BYTES (UINT64_C(2560) << 20)

static const struct fake_cuda_control *fake;

/* ---- the link: what the driver is asked for ----------------------------------------------------
 */

static struct {
    double ns_per_byte;
    uint64_t now_ns;
    uint64_t thread_ns;     /* until then the thread asks for copies */
    uint64_t free_ns;       /* when the last copy ends */
    uint64_t bytes, copies; /* ever asked for */
    struct {
        struct sl_cuda_event *event;
        uint64_t ns; /* when it comes */
    } events[SL_RING_COPIES_MAX];
} link;

static int copy_to_device(uint64_t to, const void *from, size_t bytes,
                          struct sl_cuda_stream *stream)
{
    (void)to, (void)from, (void)stream;
    link.thread_ns = SL_MAX(link.now_ns, link.thread_ns) + ASK_NS;
    uint64_t begin = SL_MAX(link.thread_ns, link.free_ns + GAP_NS);
    link.free_ns = begin + (uint64_t)((double)bytes * link.ns_per_byte);
    link.bytes += bytes;
    link.copies++;
    return 0;
}

static uint64_t *time_of(struct sl_cuda_event *event)
{
    unsigned i = 0;
    while (link.events[i].event && link.events[i].event != event)
        i++;
    link.events[i].event = event;
    return &link.events[i].ns;
}

static int event_record(struct sl_cuda_event *event, struct sl_cuda_stream *stream)
{
    (void)stream;
    *time_of(event) = link.free_ns;
    return 0;
}

static int event_query(struct sl_cuda_event *event)
{
    return *time_of(event) <= link.now_ns ? SL_CUDA_SUCCESS : SL_CUDA_NOT_READY;
}

/* ---- readers -----------------------------------------------------------------------------------
 */

struct reader {
    enum { RECEIVES, WAITS, PUTS } state;
    uint64_t due_ns; /* unless it waits */
    uint64_t at, end;
    uint8_t *data; /* lent, or reserved */
};
struct run {
    struct sl_gpu_ring *ring;
    unsigned count;
    bool lends;
    uint64_t piece;
    struct reader readers[READERS_MAX];
    uint64_t receive_ns; /* a piece, by one reader, before it is put */
    uint64_t next_range, turn_ns;
    uint64_t warm_ns, warm_bytes; /* when the link had carried so much */
    double share;
};

/* The next piece, lent where that is wanted and there is something to lend. */
static void receive(struct run *run, struct reader *reader)
{
    if (reader->at == reader->end) {
        reader->at = run->next_range;
        reader->end = run->next_range += RANGE;
    }
    reader->data = NULL;
    if (run->lends)
        ck_assert_int_eq(
            sl_gpu_ring_lend(run->ring, 0, reader->at, run->piece, &reader->data, NULL), 0);
    reader->state = RECEIVES;
    reader->due_ns = link.now_ns + run->receive_ns;
}

static void end_piece(struct run *run, struct reader *reader)
{
    sl_gpu_ring_commit(run->ring, reader->data);
    reader->at += run->piece;
    receive(run, reader);
}

static void begin_put(struct run *run, struct reader *reader)
{
    reader->state = WAITS;
    if (!(reader->data = sl_gpu_ring_try(run->ring, 0, reader->at, run->piece)))
        return;
    reader->state = PUTS;
    reader->due_ns = link.now_ns + PUT_NS;
}

static void advance(struct run *run, struct reader *reader)
{
    if (reader->state == WAITS)
        begin_put(run, reader);
    else if (reader->due_ns > link.now_ns)
        return;
    else if (reader->state == RECEIVES && !reader->data)
        begin_put(run, reader);
    else
        end_piece(run, reader);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t next_event(const struct run *run)
{
    uint64_t next = run->turn_ns;
    for (unsigned i = 0; i < run->count; i++)
        if (run->readers[i].state != WAITS)
            next = SL_MIN(next, run->readers[i].due_ns);
    return next;
}

static void pass_until(uint64_t ns)
{
    if (ns <= link.now_ns)
        return;
    fake_clock_turn(ns - link.now_ns);
    link.now_ns = ns;
}

/* The thread's round, if it was poked or it is time. */
static void turn(struct run *run)
{
    struct sl_gpu *gpu = run->ring->queues->gpu;
    if (run->turn_ns > link.now_ns && (link.thread_ns > link.now_ns || !gpu->locked.poked))
        return;
    gpu->locked.poked = false;
    uint64_t next = sl_gpu_queue_turn(&run->ring->queues->chore);
    bool asked = link.thread_ns > link.now_ns;
    run->turn_ns = next == SL_GPU_IDLE ? UINT64_MAX : link.now_ns + next;
    if (asked) /* it looks again when it has asked for all of them */
        run->turn_ns = link.thread_ns;
}

static void simulate(struct run *run)
{
    uint64_t begin_ns = link.now_ns = sl_now_ns();
    for (unsigned i = 0; i < run->count; i++) {
        receive(run, &run->readers[i]);
        run->readers[i].due_ns += i * run->receive_ns / run->count; /* not all at once */
    }
    while (link.bytes < TOTAL_BYTES) {
        for (unsigned i = 0; i < run->count; i++)
            advance(run, &run->readers[i]);
        turn(run);
        ck_assert_int_eq(sl_gpu_ring_check(run->ring, NULL), 0);
        if (!run->warm_ns && link.bytes >= WARM_BYTES) {
            run->warm_ns = link.free_ns;
            run->warm_bytes = link.bytes;
        }
        pass_until(next_event(run));
        ck_assert_uint_lt(link.now_ns - begin_ns, 60 * SL_NS_PER_S);
    }
    run->share = (double)(link.bytes - run->warm_bytes) * link.ns_per_byte /
                 (double)(link.free_ns - run->warm_ns);
}

/* What was lent or reserved is given back, so that the ring can end. */
static void leave(struct run *run)
{
    for (unsigned i = 0; i < run->count; i++)
        if (run->readers[i].state != WAITS && run->readers[i].data)
            sl_gpu_ring_commit(run->ring, run->readers[i].data);
}

static int simulate_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    const struct sl_cuda *real = gpu->cuda;
    struct sl_cuda model = *real;
    struct run *run = arg;
    (void)err;
    model.copy_to_device = copy_to_device;
    model.event_record = event_record;
    model.event_query = event_query;
    gpu->cuda = &model;
    simulate(run);
    leave(run);
    pass_until(link.free_ns);
    gpu->cuda = real;
    return 0;
}

/* ---- claims ------------------------------------------------------------------------------------
 */

/* gb: of the link in a second; faster: how much faster readers are, all together. */
static double share_of(unsigned readers, bool lends, uint64_t piece, double gb, double faster)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t addresses[] = {1 << 20};
    struct run run = {.count = readers, .lends = lends, .piece = piece};
    const struct sl_gpu_ring_config config = {.addresses = addresses, .file_count = 1};
    memset(&link, 0, sizeof(link));
    link.ns_per_byte = 1 / gb;
    run.receive_ns =
        (uint64_t)((double)(readers * piece) * link.ns_per_byte / faster) - (lends ? 0 : PUT_NS);
    struct sl_gpu *gpu = sl_gpu_open(0, &err);
    ck_assert_msg(gpu && (run.ring = sl_gpu_ring_new(gpu, &config, &err)), "%s", err.message);
    fake_clock_hold();
    ck_assert_int_eq(sl_gpu_call(gpu, simulate_task, &run, false, &err), 0);
    fake_clock_release();
    printf("%2u readers, %s, %4u KiB, %2.0f GB/s: %.3f of the link, %.2f MiB a copy\n", readers,
           lends ? "lent" : "put ", (unsigned)(piece / 1024), gb, run.share,
           (double)link.bytes / (double)link.copies / (1 << 20));
    sl_gpu_ring_free(run.ring);
    sl_gpu_free(gpu);
    check_no_cuda_left(fake);
    return run.share;
}

static void expect_link(bool lends, uint64_t piece, double gb)
{
    static const unsigned counts[] = {8, 12, 16, 24, 32, 48, 64};
    for (size_t i = 0; i < SL_COUNT(counts); i += SL_TEST_STEP)
        ck_assert_double_ge(share_of(counts[i], lends, piece, gb, 1.5), 0.95);
}

SL_TEST(readers_that_put_reach_the_link)
{
    expect_link(false, PIECE, 55);
    expect_link(false, PIECE, 25);
}

SL_TEST(readers_that_are_lent_memory_reach_the_link)
{
    expect_link(true, PIECE, 55);
    expect_link(true, PIECE, 25);
    expect_link(true, LARGE, 55);
    expect_link(true, LARGE, 25);
}

/* Many connections of which none is fast: small copies do no harm as long as the link waits. */
SL_TEST(slow_readers_lose_nothing)
{
    ck_assert_double_ge(share_of(64, true, PIECE, 25, 0.5), 0.49);
    ck_assert_double_ge(share_of(64, true, LARGE, 25, 0.5), 0.49);
    ck_assert_double_ge(share_of(64, false, PIECE, 25, 0.5), 0.49);
}

static void setup(void)
{
    fake->reset();
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .prepare = prepare)
