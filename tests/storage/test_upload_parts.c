/* Parts of an upload: every byte in its place, whatever the order; bounded memory; no deadlock. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "mem.h"
#include "thread_cancel.h"
#include "upload_parts.h"

enum { BYTES = 1000003, PART = 10000, THREADS = 4 };

/* A store in memory. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint8_t *stored;
    uint64_t part_bytes;
    unsigned sent, channels, at_once, most_at_once;
    bool closed;          /* sends wait until it is opened, or stop is raised */
    uint64_t fail_number; /* the part + 1 that cannot be sent; 0: none */
} store;
static uint8_t *data;
static struct sl_err err;
static struct sl_cancel *cancel; /* of the uploads; NULL: none */

/* Memory that parts hold: the linker gives us what upload_parts.c takes and gives back (--wrap). */
static struct {
    pthread_mutex_t mutex;
    void *buffers[2 * (BYTES / PART + 1)]; /* of parts, and spare ones */
    unsigned count, most;
} held = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Threads beyond the first ones cannot be had (--wrap). */
static unsigned threads_left = UINT32_MAX;
/* Nor channels (with the store's mutex). */
static unsigned channels_left = UINT32_MAX;

int __real_sl_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                           struct sl_err *why);
int __wrap_sl_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                           struct sl_err *why);
int __wrap_sl_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                           struct sl_err *why)
{
    if (!threads_left)
        return sl_fail(why, SL_E_NO_SPACE, "no thread");
    threads_left--;
    return __real_sl_thread_start(thread, name, run, arg, why);
}

void *__real_sl_alloc_aligned(size_t alignment, size_t bytes, struct sl_err *why);
void *__wrap_sl_alloc_aligned(size_t alignment, size_t bytes, struct sl_err *why);
void *__wrap_sl_alloc_aligned(size_t alignment, size_t bytes, struct sl_err *why)
{
    void *buffer = __real_sl_alloc_aligned(alignment, bytes, why);
    SL_LOCKED(&held.mutex);
    if (buffer) {
        held.buffers[held.count++] = buffer;
        held.most = SL_MAX(held.most, held.count);
    }
    return buffer;
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    { /* no ck_assert(), which calls free() */
        SL_LOCKED(&held.mutex);
        for (unsigned i = 0; memory && i < held.count; i++)
            if (held.buffers[i] == memory) {
                held.buffers[i] = held.buffers[--held.count];
                break;
            }
    }
    __real_free(memory);
}

static void check_peak(unsigned parts)
{
    ck_assert_uint_gt(held.most, 0);
    ck_assert_uint_le(held.most, parts);
}

static void setup(void)
{
    memset(&store, 0, sizeof(store));
    pthread_mutex_init(&store.mutex, NULL);
    pthread_cond_init(&store.changed, NULL);
    store.stored = calloc(1, BYTES);
    store.part_bytes = PART;
    data = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 7 + i / 253);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    free(store.stored);
    free(data);
}

static void *begin(void *arg, struct sl_cancel *stop, struct sl_err *why)
{
    ck_assert_ptr_eq(arg, &store);
    SL_LOCKED(&store.mutex);
    if (!channels_left) {
        sl_fail(why, SL_E_NO_SPACE, "no channel");
        return NULL;
    }
    channels_left--;
    store.channels++;
    return stop;
}

static void end(void *arg, void *channel)
{
    (void)arg, (void)channel;
    SL_LOCKED(&store.mutex);
    store.channels--;
}

static int send_part(void *arg, void *channel, uint64_t number, const void *bytes, size_t count,
                     struct sl_err *why)
{
    (void)arg;
    SL_LOCKED(&store.mutex);
    store.at_once++;
    store.most_at_once = SL_MAX(store.most_at_once, store.at_once);
    pthread_cond_broadcast(&store.changed);
    while (store.closed && !sl_cancel_raised(channel)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 2000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&store.changed, &store.mutex, &until);
    }
    store.at_once--;
    if (sl_cancel_raised(channel))
        return sl_fail(why, SL_E_CANCELED, "stopped");
    if (number + 1 == store.fail_number)
        return sl_fail(why, SL_E_NET, "part %u is refused", (unsigned)number);
    memcpy(store.stored + number * store.part_bytes, bytes, count);
    store.sent++;
    return 0;
}

static struct sl_parts *new_parts(uint64_t bytes, uint64_t memory_bytes, unsigned connections)
{
    const struct sl_parts_config config = {.bytes = bytes,
                                           .part_bytes = store.part_bytes,
                                           .memory_bytes = memory_bytes,
                                           .connections = connections,
                                           .cancel = cancel,
                                           .arg = &store,
                                           .begin = begin,
                                           .send = send_part,
                                           .end = end};
    return sl_parts_new(&config, &err);
}

static void open_store(void)
{
    SL_LOCKED(&store.mutex);
    store.closed = false;
    pthread_cond_broadcast(&store.changed);
}

static void wait_at_once(unsigned count)
{
    SL_LOCKED(&store.mutex);
    while (store.at_once < count)
        pthread_cond_wait(&store.changed, &store.mutex);
}

SL_TEST(part_sizes_follow_object_and_memory)
{
    const uint64_t mib = SL_PARTS_MIB, gib = 1024 * mib;
    ck_assert_uint_eq(sl_parts_size(1, 128 * mib), 16 * mib);
    ck_assert_uint_eq(sl_parts_size(100 * gib, 128 * mib), 16 * mib);
    ck_assert_uint_eq(sl_parts_size(100 * gib, 4 * gib), 64 * mib);
    ck_assert_uint_eq(sl_parts_size(100 * gib, 32 * mib), 11 * mib);
    ck_assert_uint_eq(sl_parts_size(1 * gib, 32 * mib), 8 * mib);
    ck_assert_uint_eq(sl_parts_size(1 * gib, 1), 5 * mib);
    ck_assert_uint_eq(sl_parts_size(160000 * mib, 128 * mib), 16 * mib);
    ck_assert_uint_eq(sl_parts_size(160000 * mib + 1, 128 * mib), 17 * mib);
    ck_assert_uint_eq(sl_parts_size(UINT64_MAX, 1) % mib, 0);
}

/* ---- threads that write blocks in a mixed order ---------------------------------------------- */

struct writer {
    pthread_t thread;
    struct sl_parts *parts;
    uint64_t block;
    _Atomic uint64_t *next; /* blocks are dispatched in their order */
    int result;
    struct sl_err err;
};

static void *write_blocks(void *arg)
{
    struct writer *writer = arg;
    while (writer->result == 0) {
        writer->result = sl_parts_admit(writer->parts, &writer->err);
        uint64_t at = (*writer->next)++ * writer->block;
        if (at >= BYTES || writer->result < 0)
            break;
        size_t bytes = (size_t)SL_MIN(writer->block, BYTES - at);
        writer->result = sl_parts_write(writer->parts, at, data + at, bytes, &writer->err);
    }
    return NULL;
}

static void write_all(struct sl_parts *parts, uint64_t block, struct writer writers[THREADS])
{
    _Atomic uint64_t next = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        writers[i] = (struct writer){.parts = parts, .block = block, .next = &next};
        ck_assert_int_eq(pthread_create(&writers[i].thread, NULL, write_blocks, &writers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(writers[i].thread, NULL);
}

SL_TEST_LOOP(blocks_of_several_threads_become_parts, 0, 6)
{
    static const uint64_t blocks[] = {777, 9999, 10000, 10001, 123456, BYTES};
    struct writer writers[THREADS];
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 5 * PART, 3);
    ck_assert_ptr_nonnull(parts);
    write_all(parts, blocks[_i], writers);
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    ck_assert_mem_eq(store.stored, data, BYTES);
    ck_assert_uint_eq(store.sent, 101);
    ck_assert_uint_le(store.most_at_once, 3);
    sl_parts_free(sl_steal(&parts));
    ck_assert_uint_eq(store.channels, 0);
}

SL_TEST(bytes_in_random_order_become_parts)
{
    enum { PIECE = 501, PIECES = (BYTES - 1) / PIECE + 1 };
    static unsigned order[PIECES];
    unsigned random = 12345;
    for (unsigned i = 0; i < PIECES; i++) {
        unsigned other = (random = random * 1103515245 + 12345) / 65536 % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 2 * PART, 0);
    for (unsigned i = 0; i < PIECES; i++) {
        uint64_t at = (uint64_t)order[i] * PIECE;
        ck_assert_int_eq(sl_parts_admit(parts, &err), 0); /* all parts are incomplete: no wait */
        ck_assert_int_eq(
            sl_parts_write(parts, at, data + at, (size_t)SL_MIN(PIECE, BYTES - at), &err), 0);
    }
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    ck_assert_mem_eq(store.stored, data, BYTES);
}

SL_TEST(memory_is_bounded_while_the_store_is_slow)
{
    struct writer writers[THREADS];
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 5 * PART, 2);
    write_all(parts, 1000, writers);
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    check_peak(5 + THREADS);
}

SL_TEST(a_part_with_a_hole_is_held_while_later_ones_pass)
{
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 3 * PART, 2);
    for (uint64_t at = 0; at < BYTES; at += 1000) { /* the first 40 bytes come last: a head */
        size_t head = at ? 0 : 40;
        ck_assert_int_eq(sl_parts_admit(parts, &err), 0);
        ck_assert_int_eq(sl_parts_write(parts, at + head, data + at + head,
                                        (size_t)SL_MIN(1000, BYTES - at) - head, &err),
                         0);
    }
    ck_assert_int_eq(sl_parts_write(parts, 0, data, 40, &err), 0);
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    ck_assert_mem_eq(store.stored, data, BYTES);
    check_peak(5);
}

SL_TEST(incomplete_parts_alone_never_make_admit_wait)
{
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 2 * PART, 2);
    for (uint64_t at = 0; at < BYTES; at += PART) { /* every part lacks its last byte */
        ck_assert_int_eq(sl_parts_admit(parts, &err), 0);
        ck_assert_int_eq(
            sl_parts_write(parts, at, data + at, (size_t)SL_MIN(PART, BYTES - at) - 1, &err), 0);
    }
    ck_assert_uint_eq(store.sent, 0);
    for (uint64_t at = 0; at < BYTES; at += PART) {
        uint64_t last = SL_MIN(at + PART, BYTES) - 1;
        ck_assert_int_eq(sl_parts_write(parts, last, data + last, 1, &err), 0);
    }
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    ck_assert_mem_eq(store.stored, data, BYTES);
}

SL_TEST(complete_parts_make_admit_wait_until_one_is_sent)
{
    _Atomic uint64_t next = 0;
    struct writer writer = {.block = 3 * PART, .next = &next};
    store.closed = true;
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 3 * PART, 2);
    writer.parts = parts;
    ck_assert_int_eq(pthread_create(&writer.thread, NULL, write_blocks, &writer), 0);
    wait_at_once(2);
    open_store();
    pthread_join(writer.thread, NULL);
    ck_assert_int_eq(writer.result, 0);
    check_peak(6);
}

SL_TEST(the_first_failure_ends_all_that_waits)
{
    struct writer writers[THREADS];
    store.fail_number = 31;
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 3 * PART, 2);
    write_all(parts, 1000, writers);
    ck_assert_int_eq(sl_parts_finish(parts, &err), -1);
    ck_assert_str_eq(err.message, "part 30 is refused");
    for (unsigned i = 0; i < THREADS; i++)
        if (writers[i].result < 0)
            ck_assert_str_eq(writers[i].err.message, "part 30 is refused");
    ck_assert_int_eq(sl_parts_write(parts, 0, data, 1, NULL), -1);
    ck_assert_int_eq(sl_parts_admit(parts, NULL), -1);
}

SL_TEST_LOOP(one_channel_is_enough_and_none_is_a_failure, 0, 3)
{
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 20 * PART, 8);
    channels_left = (unsigned)_i;
    store.closed = _i > 0; /* so that each part wants a thread of its own */
    int result = sl_parts_write(parts, 0, data, 15 * PART, &err);
    open_store();
    if (result == 0)
        result = sl_parts_write(parts, 15 * PART, data + 15 * PART, BYTES - 15 * PART, &err);
    if (result == 0)
        result = sl_parts_finish(parts, &err);
    ck_assert_msg(result == (_i ? 0 : -1), "%s", err.message);
    if (_i == 0) {
        ck_assert_str_eq(err.message, "no channel");
        return;
    }
    ck_assert_mem_eq(store.stored, data, BYTES);
    ck_assert_uint_le(store.most_at_once, (unsigned)_i);
}

SL_TEST_LOOP(one_thread_is_enough_and_none_is_a_failure, 0, 3)
{
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 20 * PART, 8);
    threads_left = (unsigned)_i;
    store.closed = true; /* so that each part wants a thread of its own */
    int result = sl_parts_write(parts, 0, data, 15 * PART, &err);
    open_store();
    if (result == 0)
        result = sl_parts_write(parts, 15 * PART, data + 15 * PART, BYTES - 15 * PART, &err);
    ck_assert_int_eq(result, _i ? 0 : -1);
    if (_i == 0) {
        ck_assert_str_eq(err.message, "no thread");
        return;
    }
    ck_assert_int_eq(sl_parts_finish(parts, &err), 0);
    ck_assert_mem_eq(store.stored, data, BYTES);
    ck_assert_uint_le(store.most_at_once, (unsigned)_i);
}

SL_TEST(giving_up_stops_what_is_being_sent)
{
    store.closed = true;
    SL_AUTO(sl_parts) parts = new_parts(BYTES, 10 * PART, 3);
    ck_assert_int_eq(sl_parts_write(parts, 0, data, 5 * PART, &err), 0);
    wait_at_once(3);
    sl_parts_free(sl_steal(&parts));
    ck_assert_uint_eq(store.channels, 0);
    ck_assert_uint_eq(store.sent, 0);
}

static int await_all(struct sl_parts *parts)
{
    return sl_parts_finish(parts, &err);
}

static int admit_more(struct sl_parts *parts)
{
    return sl_parts_admit(parts, &err);
}

static int (*const waits[])(struct sl_parts *parts) = {await_all, admit_more};

struct waiting {
    struct sl_parts *parts;
    int (*wait)(struct sl_parts *parts);
    int result;
};

static void *run_wait(void *arg)
{
    struct waiting *waiting = arg;
    waiting->result = waiting->wait(waiting->parts);
    return NULL;
}

/* The store does not answer, and its client does not look. */
SL_TEST_LOOP(cancellation_ends_a_wait_for_parts_that_nobody_sends, 0, 2)
{
    pthread_t thread;
    cancel = sl_cancel_new(&err);
    store.closed = true;
    SL_AUTO(sl_parts) parts = new_parts(5 * PART, 5 * PART, 2);
    ck_assert_int_eq(sl_parts_write(parts, 0, data, 5 * PART, &err), 0);
    wait_at_once(2);
    fake_clock_hold();
    struct waiting waiting = {.parts = parts, .wait = waits[_i]};
    ck_assert_int_eq(pthread_create(&thread, NULL, run_wait, &waiting), 0);
    fake_clock_await(SL_THREAD_CANCEL_LOOK_MS * SL_NS_PER_MS);
    sl_cancel_raise(cancel, SIGTERM);
    pthread_join(thread, NULL);
    ck_assert_int_eq(waiting.result, -1);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
    ck_assert_uint_eq(store.sent, 0);
    sl_parts_free(sl_steal(&parts));
    sl_cancel_free(sl_steal(&cancel));
}

SL_TEST(every_failing_allocation_is_an_error_and_leaks_nothing)
{
    int result = -1;
    for (unsigned nth = 1; result < 0; nth++) {
        SL_AUTO(sl_parts) parts = NULL;
        sl_alloc_fail_at(nth);
        parts = new_parts(3 * PART, 3 * PART, 1);
        result = parts ? sl_parts_write(parts, 0, data, 3 * PART, &err) : -1;
        sl_alloc_fail_at(0);
        if (result == 0)
            result = sl_parts_finish(parts, &err);
        else
            ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
        ck_assert_uint_lt(nth, 50);
    }
    ck_assert_mem_eq(store.stored, data, 3 * PART);
}

SL_CASE(.setup = setup, .teardown = teardown)
