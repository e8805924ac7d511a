/* The staging ring, against the fake driver: a copy reads its source when it is done. */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "gpu_ring.h"
#include "use_fake_cuda.h"

enum { MIB = 1024 * 1024, FILE_BYTES = 8 * MIB, BUFFER = 256 * 1024 };

static const struct fake_cuda_control *fake;

struct device {
    struct sl_gpu *gpu;
    struct sl_gpu_memory memory;
    uint64_t addresses[1];
    struct sl_gpu_ring *ring;
};

static int open_device(struct device *device, unsigned buffers, unsigned age_ms, struct sl_err *err)
{
    *device = (struct device){.memory = SL_GPU_MEMORY_INIT};
    device->gpu = sl_gpu_open(0, err);
    if (!device->gpu || sl_gpu_memory_make(device->gpu, FILE_BYTES, &device->memory, err) < 0)
        return -1;
    device->addresses[0] = device->memory.address;
    const struct sl_gpu_ring_config config = {.addresses = device->addresses,
                                              .file_count = 1,
                                              .buffers = buffers,
                                              .buffer_bytes = BUFFER,
                                              .age_ms = age_ms};
    device->ring = sl_gpu_ring_new(device->gpu, &config, err);
    return device->ring ? 0 : -1;
}

static void close_device(struct device *device)
{
    sl_gpu_ring_free(device->ring);
    if (device->gpu)
        sl_gpu_memory_release(device->gpu, &device->memory);
    sl_gpu_free(device->gpu);
    check_no_cuda_left(fake);
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 2654435761u >> 13);
}

static void fill(uint8_t *data, uint64_t offset, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = byte_at(offset + i);
}

static int put(struct device *device, uint64_t offset, uint64_t bytes, struct sl_err *err)
{
    uint8_t *data;
    if (sl_gpu_ring_reserve(device->ring, 0, offset, bytes, &data, err) < 0)
        return -1;
    fill(data, offset, bytes);
    sl_gpu_ring_commit(device->ring, data);
    return 0;
}

/* In the fake driver the device's addresses can be read here. */
static void check_bytes(const struct device *device, uint64_t begin, uint64_t end)
{
    const uint8_t *data = (const uint8_t *)(uintptr_t)device->memory.address;
    uint64_t at = begin;
    while (at < end && data[at] == byte_at(at))
        at++;
    ck_assert_uint_eq(at, end);
}

SL_TEST(everything_arrives_through_two_buffers)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct fake_cuda_counts counts;
    ck_assert_int_eq(open_device(&device, 2, 1000, &err), 0);
    for (uint64_t at = 0; at < FILE_BYTES; at += 40000)
        ck_assert_int_eq(put(&device, at, SL_MIN(40000u, FILE_BYTES - at), &err), 0);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, FILE_BYTES);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_uint_eq(counts.copied_bytes, FILE_BYTES);
    ck_assert_uint_le(counts.copies, FILE_BYTES / 240000 + 2); /* gathered */
    close_device(&device);
}

struct putter {
    struct device *device;
    uint64_t begin, end;
    pthread_t thread;
};

static void *run_putter(void *arg)
{
    struct putter *putter = arg;
    struct sl_err err = SL_ERR_INIT;
    for (uint64_t at = putter->begin; at < putter->end; at += 65536)
        if (put(putter->device, at, 65536, &err) < 0)
            return putter;
    return NULL;
}

SL_TEST(more_threads_than_buffers_do_not_block_each_other)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct putter putters[8];
    ck_assert_int_eq(open_device(&device, 3, 5, &err), 0);
    for (unsigned i = 0; i < 8; i++) {
        putters[i] = (struct putter){&device, i * (uint64_t)MIB, (i + 1) * (uint64_t)MIB, 0};
        pthread_create(&putters[i].thread, NULL, run_putter, &putters[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        void *failed;
        pthread_join(putters[i].thread, &failed);
        ck_assert_ptr_null(failed);
    }
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, FILE_BYTES);
    close_device(&device);
}

static void *put_elsewhere(void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    return put(arg, 7 * MIB, BUFFER, &err) < 0 ? arg : NULL;
}

/* Four buffers: two on their way, two half full. Who needs a fifth waits for the link, and no
 * half-full one goes. */
SL_TEST(buffers_go_whole_while_others_are_on_their_way)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct fake_cuda_counts counts;
    pthread_t thread;
    void *failed;
    ck_assert_int_eq(open_device(&device, 4, 1000000, &err), 0);
    fake->hold(true);
    ck_assert_int_eq(put(&device, 0, BUFFER, &err), 0);
    ck_assert_int_eq(put(&device, MIB, BUFFER, &err), 0);
    SL_AWAIT(fake->calls("cuMemcpyHtoDAsync") == 2, "two copies on their way");
    ck_assert_int_eq(put(&device, 2 * MIB, BUFFER / 2, &err), 0);
    ck_assert_int_eq(put(&device, 3 * MIB, BUFFER / 2, &err), 0);
    pthread_create(&thread, NULL, put_elsewhere, &device);
    uint64_t looks = fake->calls("cuEventQuery");
    SL_AWAIT(fake->calls("cuEventQuery") > looks + 20, "more looks at the copies");
    ck_assert_uint_eq(fake->calls("cuMemcpyHtoDAsync"), 2);
    fake->hold(false);
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
    ck_assert_int_eq(put(&device, 2 * MIB + BUFFER / 2, BUFFER / 2, &err), 0);
    ck_assert_int_eq(put(&device, 3 * MIB + BUFFER / 2, BUFFER / 2, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.copies, 5);
    check_bytes(&device, 2 * MIB, 2 * MIB + BUFFER);
    check_bytes(&device, 7 * MIB, 7 * MIB + BUFFER);
    close_device(&device);
}

/* ---- lending --------------------------------------------------------------------------------- */

SL_TEST(what_is_lent_keeps_nobody_from_reserving)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    uint8_t *lent[8] = {NULL};
    ck_assert_int_eq(open_device(&device, 4, 5, &err), 0);
    for (unsigned i = 0; i < 8; i++) /* one stretch each, as connections have */
        ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, i * (uint64_t)MIB, 65536, &lent[i], &err),
                         0);
    ck_assert(lent[0] && lent[1] && lent[2] && !lent[3] && !lent[7]);
    for (uint64_t at = 4 * MIB; at < 8 * MIB; at += 65536)
        ck_assert_int_eq(put(&device, at, 65536, &err), 0);
    for (unsigned i = 0; i < 3; i++) {
        memset(lent[i], 0x70 + (int)i, 65536);
        sl_gpu_ring_commit(device.ring, lent[i]);
    }
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 4 * MIB, 8 * MIB);
    const uint8_t *data = (const uint8_t *)(uintptr_t)device.memory.address;
    for (unsigned i = 0; i < 3; i++)
        ck_assert(data[i * MIB] == 0x70 + i && data[i * MIB + 65535] == 0x70 + i);
    close_device(&device);
}

SL_TEST(what_is_lent_in_turn_is_gathered)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct fake_cuda_counts counts;
    ck_assert_int_eq(open_device(&device, 4, 1000000, &err), 0);
    for (uint64_t at = 0; at < 2 * BUFFER; at += 65536) {
        uint8_t *data;
        ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, at, 65536, &data, &err), 0);
        fill(data, at, 65536);
        sl_gpu_ring_commit(device.ring, data);
    }
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, 2 * BUFFER);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.copies, 2);
    close_device(&device);
}

/* Who was lent memory reads what it has committed before, in the same buffer, on its way and on
 * the device; and what was put again is read as it was put last. */
SL_TEST(committed_bytes_are_read_back_while_more_is_lent)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    static uint8_t back[3 * BUFFER];
    uint8_t *lent;
    ck_assert_int_eq(open_device(&device, 8, 1000000, &err), 0);
    ck_assert_int_eq(put(&device, 0, BUFFER, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    fake->hold(true);
    ck_assert_int_eq(put(&device, BUFFER, BUFFER, &err), 0); /* on its way for good */
    ck_assert_int_eq(put(&device, 2 * BUFFER, BUFFER / 2, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 2 * BUFFER + BUFFER / 2, 4096, &lent, &err),
                     0);
    ck_assert_ptr_nonnull(lent);
    ck_assert_int_eq(sl_gpu_ring_read(device.ring, 0, BUFFER, back, BUFFER + BUFFER / 2, &err), 0);
    size_t at = 0;
    while (at < BUFFER + BUFFER / 2 && back[at] == byte_at(BUFFER + at))
        at++;
    ck_assert_uint_eq(at, BUFFER + BUFFER / 2);
    uint8_t *again;
    ck_assert_int_eq(sl_gpu_ring_reserve(device.ring, 0, BUFFER + 100, 50, &again, &err), 0);
    sl_gpu_ring_commit(device.ring, memset(again, 0x99, 50));
    ck_assert_int_eq(sl_gpu_ring_read(device.ring, 0, BUFFER, back, 1000, &err), 0);
    ck_assert(back[99] == byte_at(BUFFER + 99) && back[100] == 0x99 && back[149] == 0x99 &&
              back[150] == byte_at(BUFFER + 150));
    fake->hold(false);
    ck_assert_int_eq(sl_gpu_ring_read(device.ring, 0, 0, back, BUFFER, &err), 0);
    ck_assert_uint_eq(back[77], byte_at(77));
    memset(lent, 1, 4096);
    sl_gpu_ring_commit(device.ring, lent);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    close_device(&device);
}

/* ---- notes ---------------------------------------------------------------------------------- */

struct told {
    const struct device *device;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t bytes;
    unsigned subjects;
    bool early;
};

static void tell(void *arg, const struct sl_gpu_note *note)
{
    struct told *told = arg;
    const uint8_t *data = (const uint8_t *)(uintptr_t)told->device->memory.address;
    pthread_mutex_lock(&told->lock);
    for (uint64_t i = note->offset; i < note->offset + note->bytes; i++)
        told->early |= data[i] != byte_at(i);
    told->bytes += note->bytes;
    told->subjects += note->subject != NULL;
    pthread_cond_signal(&told->moved);
    pthread_mutex_unlock(&told->lock);
}

static uint64_t told_bytes(struct told *told)
{
    pthread_mutex_lock(&told->lock);
    uint64_t bytes = told->bytes;
    pthread_mutex_unlock(&told->lock);
    return bytes;
}

SL_TEST(a_note_comes_when_the_bytes_are_there_and_not_before)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct told told = {&device, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};
    ck_assert_int_eq(open_device(&device, 4, 1, &err), 0);
    fake->hold(true);
    struct sl_gpu_note note = {.deliver = tell, .arg = &told, .bytes = 1000};
    ck_assert_int_eq(put(&device, 0, 1000, &err), 0);
    sl_gpu_ring_note(device.ring, &note);
    note.subject = &note;
    note.bytes = 0;
    sl_gpu_ring_note(device.ring, &note);
    SL_AWAIT(fake->calls("cuEventQuery") >= 3, "the third look at a copy"); /* not there yet */
    ck_assert_uint_eq(told_bytes(&told), 0);
    fake->hold(false);
    pthread_mutex_lock(&told.lock);
    while (!told.subjects) /* nobody has to finish: a buffer that is old goes by itself */
        pthread_cond_wait(&told.moved, &told.lock);
    pthread_mutex_unlock(&told.lock);
    ck_assert_uint_eq(told_bytes(&told), 1000);
    ck_assert(!told.early);
    close_device(&device);
}

SL_TEST(every_note_is_told_once_and_none_early)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct told told = {&device, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};
    ck_assert_int_eq(open_device(&device, 4, 1, &err), 0);
    fake->set_delay_us(300);
    for (uint64_t at = 0; at < FILE_BYTES; at += 32768) {
        struct sl_gpu_note note = {.deliver = tell, .arg = &told, .offset = at, .bytes = 32768};
        ck_assert_int_eq(put(&device, at, 32768, &err), 0);
        sl_gpu_ring_note(device.ring, &note);
    }
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    ck_assert_uint_eq(told.bytes, FILE_BYTES);
    ck_assert(!told.early);
    close_device(&device);
}

/* A source stalls within what it was lent; what came before it is told all the same, and nothing of
 * the rest before it is there. */
SL_TEST(what_lies_before_a_slow_window_goes_by_itself)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct told told = {&device, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};
    struct sl_gpu_note note = {.deliver = tell, .arg = &told, .bytes = 50000, .subject = &note};
    uint8_t *lent, *next;
    ck_assert_int_eq(open_device(&device, 4, 1, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 0, 50000, &lent, &err), 0);
    fill(lent, 0, 50000);
    sl_gpu_ring_commit(device.ring, lent);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 50000, 10000, &lent, &err), 0);
    ck_assert_ptr_nonnull(lent);
    sl_gpu_ring_note(device.ring, &note);
    pthread_mutex_lock(&told.lock);
    while (!told.subjects)
        pthread_cond_wait(&told.moved, &told.lock);
    pthread_mutex_unlock(&told.lock);
    fill(lent, 50000, 10000);
    sl_gpu_ring_commit(device.ring, lent);
    note.offset = 50000;
    note.bytes = 10000;
    sl_gpu_ring_note(device.ring, &note);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 60000, 5000, &next, &err), 0);
    memset(next, 0, 5000);
    sl_gpu_ring_commit(device.ring, next);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, 60000);
    ck_assert_uint_eq(told_bytes(&told), 60000);
    ck_assert(!told.early);
    close_device(&device);
}

/* The same where nothing lies before it: what is put elsewhere meanwhile is told. */
SL_TEST(a_slow_window_holds_up_no_note)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct told told = {&device, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};
    struct sl_gpu_note note = {.deliver = tell, .arg = &told, .offset = MIB, .bytes = 5000};
    uint8_t *slow;
    ck_assert_int_eq(open_device(&device, 4, 1, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 0, 5000, &slow, &err), 0);
    ck_assert_ptr_nonnull(slow);
    ck_assert_int_eq(put(&device, MIB, 5000, &err), 0);
    sl_gpu_ring_note(device.ring, &note);
    SL_AWAIT(told_bytes(&told) == 5000, "what came elsewhere");
    note.offset = 0;
    fill(slow, 0, 5000);
    sl_gpu_ring_commit(device.ring, slow);
    sl_gpu_ring_note(device.ring, &note);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    ck_assert_uint_eq(told_bytes(&told), 10000);
    ck_assert(!told.early);
    close_device(&device);
}

/* A source is lent what lies behind the window of another, and takes long. What came in that window
 * is told when it is on the device, and not with what lay before it. */
SL_TEST(what_came_before_a_slow_window_is_not_told_with_what_goes_before_it)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct told told = {&device, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};
    struct sl_gpu_note note = {.deliver = tell, .arg = &told, .bytes = 5000, .subject = &note};
    uint8_t *window, *slow;
    ck_assert_int_eq(open_device(&device, 4, 100, &err), 0);
    ck_assert_int_eq(put(&device, 0, 5000, &err), 0);
    sl_gpu_ring_note(device.ring, &note);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 5000, 5000, &window, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, 10000, 5000, &slow, &err), 0);
    ck_assert(window && slow);
    fill(window, 5000, 5000);
    sl_gpu_ring_commit(device.ring, window);
    note.offset = 5000;
    sl_gpu_ring_note(device.ring, &note);
    SL_AWAIT(told_bytes(&told) >= 5000, "what goes first");
    fill(slow, 10000, 5000);
    sl_gpu_ring_commit(device.ring, slow);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, 15000);
    ck_assert_uint_eq(told_bytes(&told), 10000);
    ck_assert(!told.early);
    close_device(&device);
}

/* ---- again, back, wrong --------------------------------------------------------------------- */

SL_TEST(what_is_put_again_lands_later)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    uint8_t *data;
    ck_assert_int_eq(open_device(&device, 8, 1000, &err), 0);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(sl_gpu_ring_reserve(device.ring, 0, 100, 5000, &data, &err), 0);
        sl_gpu_ring_commit(device.ring, memset(data, 0x99, 5000));
        ck_assert_int_eq(put(&device, 0, 8000, &err), 0);
        ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
        check_bytes(&device, 0, 8000);
    }
    close_device(&device);
}

/* What came wrong lies in one buffer with a window that is not there yet, and is put again. */
SL_TEST(what_is_put_again_lands_later_than_what_lies_before_a_slow_window)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    uint8_t *wrong, *slow;
    ck_assert_int_eq(open_device(&device, 4, 1000000, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, BUFFER - 5000, 5000, &wrong, &err), 0);
    sl_gpu_ring_commit(device.ring, memset(wrong, 0x99, 5000));
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, BUFFER, 5000, &slow, &err), 0);
    ck_assert_ptr_nonnull(slow);
    ck_assert_int_eq(put(&device, 0, BUFFER, &err), 0); /* full: it goes */
    fill(slow, BUFFER, 5000);
    sl_gpu_ring_commit(device.ring, slow);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, BUFFER + 5000);
    close_device(&device);
}

/* As many are on their way as may go ahead of their buffers. */
SL_TEST(what_is_put_again_waits_for_what_cannot_go_before_it)
{
    enum { STEP = 1000, PARTS = 4, BYTES = (PARTS + 2) * STEP };
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    uint8_t *data = NULL, *again;
    ck_assert_int_eq(open_device(&device, PARTS, 1000000, &err), 0);
    fake->hold(true);
    for (uint64_t at = 0; at < BYTES; at += STEP) {
        if (data)
            sl_gpu_ring_commit(device.ring, memset(data, 0x99, STEP));
        ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, at, STEP, &data, &err), 0);
        if (at && at < BYTES - STEP)
            ck_assert_int_eq(put(&device, at - STEP, STEP, &err), 0);
    }
    ck_assert_int_eq(sl_gpu_ring_lend(device.ring, 0, BYTES - 2 * STEP, STEP, &again, &err), 0);
    ck_assert_ptr_null(again);
    fake->hold(false);
    ck_assert_int_eq(put(&device, BYTES - 2 * STEP, STEP, &err), 0);
    fill(data, BYTES - STEP, STEP);
    sl_gpu_ring_commit(device.ring, data);
    ck_assert_int_eq(sl_gpu_ring_finish(device.ring, &err), 0);
    check_bytes(&device, 0, BYTES);
    close_device(&device);
}

SL_TEST(committed_bytes_are_read_back)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    static uint8_t back[3 * MIB];
    ck_assert_int_eq(open_device(&device, 4, 1000, &err), 0);
    for (uint64_t begin = 0; begin < 4 * MIB; begin += 131072)
        ck_assert_int_eq(put(&device, begin, 131072, &err), 0);
    ck_assert_int_eq(sl_gpu_ring_read(device.ring, 0, 77, back, sizeof(back), &err), 0);
    size_t at = 0;
    while (at < sizeof(back) && back[at] == byte_at(77 + at))
        at++;
    ck_assert_uint_eq(at, sizeof(back));
    close_device(&device);
}

static int fill_some(struct device *device, struct sl_err *err)
{
    uint8_t back[100];
    if (open_device(device, 2, 5, err) < 0)
        return -1;
    for (uint64_t at = 0; at < MIB; at += 131072)
        if (put(device, at, 131072, err) < 0)
            return -1;
    if (sl_gpu_ring_read(device->ring, 0, 5, back, sizeof(back), err) < 0)
        return -1;
    return sl_gpu_ring_finish(device->ring, err);
}

SL_TEST(every_call_that_fails_ends_the_ring_and_leaves_nothing)
{
    static const char *const names[] = {"cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuMemHostAlloc",
                                        "cuStreamCreate",
                                        "cuEventCreate",
                                        "cuMemcpyHtoDAsync",
                                        "cuEventRecord",
                                        "cuEventQuery",
                                        "cuMemcpyDtoHAsync"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        for (uint64_t nth = 1; nth <= 4; nth++) {
            struct sl_err err = SL_ERR_INIT;
            struct device device;
            fake->reset();
            fake->fail_call(names[i], nth, SL_CUDA_UNKNOWN);
            int done = fill_some(&device, &err);
            bool failed = fake->calls(names[i]) >= nth;
            ck_assert_msg(done == (failed ? -1 : 0), "%s %d", names[i], (int)nth);
            if (failed)
                ck_assert_msg(err.kind == SL_E_GPU && strstr(err.message, "CUDA_ERROR_UNKNOWN"),
                              "%s: %s", names[i], err.message);
            close_device(&device);
        }
}

SL_TEST(a_lost_device_ends_who_waits)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    ck_assert_int_eq(open_device(&device, 2, 5, &err), 0);
    fake->fail_call("cuEventQuery", 2, SL_CUDA_ILLEGAL_ADDRESS);
    int done = 0;
    for (uint64_t at = 0; at < FILE_BYTES && done == 0; at += 131072)
        done = put(&device, at, 131072, &err);
    if (done == 0)
        done = sl_gpu_ring_finish(device.ring, &err);
    ck_assert_int_eq(done, -1);
    ck_assert_msg(strstr(err.message, "restart the process"), "%s", err.message);
    sl_gpu_ring_free(device.ring);
    sl_gpu_memory_release(device.gpu, &device.memory);
    sl_gpu_free(device.gpu); /* the driver takes nothing back any more: no check */
}

SL_TEST(cancel_ends_a_wait_for_a_device_that_hangs)
{
    struct sl_err err = SL_ERR_INIT;
    struct device device;
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    ck_assert_int_eq(open_device(&device, 2, 5, &err), 0);
    struct sl_gpu_ring_config config = {.addresses = device.addresses,
                                        .file_count = 1,
                                        .buffers = 1,
                                        .buffer_bytes = BUFFER,
                                        .cancel = cancel};
    struct sl_gpu_ring *ring = sl_gpu_ring_new(device.gpu, &config, &err);
    uint8_t *data;
    fake->hold(true);
    ck_assert_int_eq(sl_gpu_ring_reserve(ring, 0, 0, BUFFER, &data, &err), 0);
    sl_gpu_ring_commit(ring, data);
    sl_cancel_raise(cancel, 0);
    ck_assert_int_eq(sl_gpu_ring_reserve(ring, 0, BUFFER, BUFFER, &data, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    fake->hold(false);
    sl_gpu_ring_free(ring);
    close_device(&device);
    sl_cancel_free(cancel);
}

SL_TEST(no_allocation_that_fails_leaves_anything)
{
    for (unsigned nth = 1;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        struct device device;
        sl_alloc_fail_at(nth);
        int done = open_device(&device, 2, 5, &err);
        sl_alloc_fail_at(0);
        close_device(&device);
        if (done == 0)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
