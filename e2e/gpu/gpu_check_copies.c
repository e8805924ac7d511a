/*
 * Copies to the device: the peak of pinned memory, from which on sizes reach it, what other kinds
 * of memory give, and how near the staging ring of loads comes to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu_check.h"
#include "gpu_ring.h"
#include "mem.h"

enum { ROUNDS = 5 };
static const uint64_t MIB = 1 << 20, GIB = 1 << 30;

struct copies {
    uint64_t to, from_device;
    uint8_t *from;
    uint64_t bytes, total; /* of a copy; of all, round and round through `from` */
    uint64_t room;         /* bytes of `from` */
    bool back;
    struct sl_cuda_stream *second;
};

static void copy_all(const struct gpu_check *check, void *arg)
{
    const struct copies *copies = arg;
    for (uint64_t at = 0; at < copies->total; at += copies->bytes) {
        uint64_t place = at % copies->room;
        bool other = copies->second && at / copies->bytes % 2;
        struct sl_cuda_stream *stream = other ? copies->second : check->stream;
        int result = copies->back
                         ? check->cuda->copy_to_host(copies->from + place, copies->to + place,
                                                     copies->bytes, stream)
                         : check->cuda->copy_to_device(copies->to + place, copies->from + place,
                                                       copies->bytes, stream);
        gpu_must(check, result, "copy");
    }
    if (copies->second)
        gpu_must(check, check->cuda->stream_synchronize(copies->second), "wait for a stream");
}

/* GB/s */
static double rate(const struct gpu_check *check, struct copies *copies)
{
    return (double)copies->total / gpu_seconds(check, ROUNDS, copy_all, copies) / 1e9;
}

static void curve(struct gpu_check *check, struct copies *copies)
{
    char what[64];
    for (uint64_t bytes = 64 << 10; bytes <= copies->room; bytes *= 4) {
        copies->bytes = bytes;
        copies->total =
            bytes < MIB ? copies->room : gpu_size(check, 4 * copies->room, copies->room);
        copies->second = NULL;
        snprintf(what, sizeof(what), "to the device in copies of %llu KiB",
                 (unsigned long long)bytes / 1024);
        gpu_row("copies", what, rate(check, copies), "GB/s", "", GPU_MEASURED);
        gpu_must(check, check->cuda->stream_create(&copies->second, SL_CUDA_STREAM_NON_BLOCKING),
                 "create a stream");
        snprintf(what, sizeof(what), "the same on two streams, %llu KiB",
                 (unsigned long long)bytes / 1024);
        gpu_row("copies", what, rate(check, copies), "GB/s", "", GPU_MEASURED);
        check->cuda->stream_destroy(copies->second);
    }
    copies->second = NULL;
}

/* Ordinary memory, then the same memory registered. */
static void others(struct gpu_check *check, struct copies *copies, bool huge)
{
    uint8_t *memory =
        mmap(NULL, copies->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    madvise(memory, copies->room, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    gpu_fill_random(memory, copies->room);
    copies->from = memory;
    if (huge)
        gpu_row("copies", "from memory that is not pinned", rate(check, copies), "GB/s", "",
                GPU_MEASURED);
    double begin = gpu_now();
    int result = check->cuda->host_register(memory, copies->room, SL_CUDA_HOST_PORTABLE);
    double seconds = gpu_now() - begin;
    const char *pages =
        huge ? "registered memory, huge pages asked for" : "registered memory, 4 KiB pages";
    if (result == 0) {
        gpu_row("copies", pages, rate(check, copies), "GB/s", "", GPU_MEASURED);
        gpu_row("copies", "registering it, for each GiB",
                seconds * 1e3 * (double)GIB / (double)copies->room, "ms", "", GPU_MEASURED);
        check->cuda->host_unregister(memory);
    } else {
        gpu_row("copies", pages, result, "result", "0", GPU_FAIL);
    }
    munmap(memory, copies->room);
}

void gpu_check_copies(struct gpu_check *check)
{
    struct gpu_area area;
    struct copies copies = {.room = gpu_size(check, 256 * MIB, 4 * MIB)};
    void *pinned;
    gpu_must(check, gpu_area_make(check, copies.room, &area) < 0 ? SL_CUDA_OUT_OF_MEMORY : 0,
             "take device memory");
    double begin = gpu_now();
    gpu_must(check, check->cuda->host_alloc(&pinned, copies.room, SL_CUDA_HOST_PORTABLE),
             "pin host memory");
    gpu_row("copies", "allocating pinned memory, for each GiB",
            (gpu_now() - begin) * 1e3 * (double)GIB / (double)copies.room, "ms", "", GPU_MEASURED);
    gpu_fill_random(pinned, copies.room);
    copies.to = area.address;
    copies.from = pinned;
    copies.bytes = SL_MIN(64 * MIB, copies.room);
    copies.total = gpu_size(check, 4 * GIB, 8 * MIB);
    check->peak = rate(check, &copies);
    gpu_row("copies", "pinned peak, to the device", check->peak, "GB/s", "", GPU_MEASURED);
    copies.back = true;
    gpu_row("copies", "pinned peak, to the host", rate(check, &copies), "GB/s", "", GPU_MEASURED);
    copies.back = false;
    curve(check, &copies);
    copies.bytes = SL_MIN(64 * MIB, copies.room);
    copies.total = gpu_size(check, 2 * GIB, 8 * MIB);
    others(check, &copies, true);
    others(check, &copies, false);
    check->cuda->host_free(pinned);
    gpu_area_free(check, &area);
}

/* ---- the ring -------------------------------------------------------------------------------- */

enum { PIECE_BYTES = 256 * 1024, RING_THREADS_MAX = 64 }; /* a reader's */

struct feeder {
    pthread_t thread;
    struct sl_gpu_ring *ring;
    const uint8_t *from;
    uint64_t begin, end, room, step;
    int fd; /* -1 unless bytes are read from a file, into what the ring lends */
    bool failed;
};

static int take_room(const struct feeder *feeder, uint64_t at, uint64_t bytes, uint8_t **data,
                     struct sl_err *err)
{
    *data = NULL;
    if (!feeder->from && sl_gpu_ring_lend(feeder->ring, 0, at, bytes, data, err) < 0)
        return -1;
    return *data ? 0 : sl_gpu_ring_reserve(feeder->ring, 0, at, bytes, data, err);
}

/* As a reader does, in its pieces: bytes land in what the ring lends, or are copied into it. */
static void *feed(void *arg)
{
    struct feeder *feeder = arg;
    struct sl_err err = SL_ERR_INIT;
    for (uint64_t at = feeder->begin; at < feeder->end; at += feeder->step) {
        uint64_t bytes = SL_MIN(feeder->step, feeder->end - at);
        uint8_t *data;
        if (take_room(feeder, at, bytes, &data, &err) < 0) {
            fprintf(stderr, "gpu_check: %s\n", err.message);
            feeder->failed = true;
            return NULL;
        }
        if (feeder->from)
            memcpy(data, feeder->from + at % feeder->room, bytes);
        if (feeder->fd >= 0)
            feeder->failed |=
                pread(feeder->fd, data, bytes, (off_t)(at % feeder->room)) != (ssize_t)bytes;
        sl_gpu_ring_commit(feeder->ring, data);
    }
    return NULL;
}

/* Where bytes come from: memory that is copied, a file that is read; neither: nothing is written,
 * so that only the ring and the link count. */
struct origin {
    const char *name;
    const uint8_t *from;
    int fd;
    uint64_t room;
};

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* GB/s; 0: it failed. *piece_us: processor time of all threads, the GPU's included, for a piece. */
static double feed_all(struct sl_gpu *gpu, const struct sl_gpu_memory *memory,
                       const struct origin *origin, unsigned threads, double *piece_us)
{
    struct feeder feeders[RING_THREADS_MAX];
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu_ring_config config = {.addresses = &memory->address, .file_count = 1};
    SL_AUTO(sl_gpu_ring) ring = sl_gpu_ring_new(gpu, &config, &err);
    if (!ring) {
        fprintf(stderr, "gpu_check: %s\n", err.message);
        return 0;
    }
    uint64_t share = memory->bytes / threads;
    bool failed = false;
    double begin = gpu_now(), used = processor_seconds();
    for (unsigned i = 0; i < threads; i++) {
        feeders[i] = (struct feeder){.ring = ring,
                                     .from = origin->from,
                                     .fd = origin->fd,
                                     .room = origin->room,
                                     .step = PIECE_BYTES};
        feeders[i].begin = i * share / PIECE_BYTES * PIECE_BYTES;
        feeders[i].end = (i + 1) * share / PIECE_BYTES * PIECE_BYTES;
        pthread_create(&feeders[i].thread, NULL, feed, &feeders[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(feeders[i].thread, NULL);
        failed |= feeders[i].failed;
    }
    if (failed || sl_gpu_ring_finish(ring, &err) < 0)
        return 0;
    *piece_us = (processor_seconds() - used) * 1e6 * PIECE_BYTES / (double)memory->bytes;
    return (double)memory->bytes / (gpu_now() - begin) / 1e9;
}

/* The least of 8 to 64 threads is what counts: a load may have any number. */
static double feed_with_all(struct sl_gpu *gpu, const struct sl_gpu_memory *memory,
                            const struct origin *origin)
{
    double least = 0;
    for (unsigned threads = 1; threads <= RING_THREADS_MAX; threads *= 2) {
        double piece_us = 0, got = feed_all(gpu, memory, origin, threads, &piece_us);
        char what[96];
        snprintf(what, sizeof(what), "%u threads of a load, 256 KiB at a time, %s", threads,
                 origin->name);
        gpu_row("ring", what, got, "GB/s", "", got > 0 ? GPU_MEASURED : GPU_FAIL);
        if (!origin->from && origin->fd < 0) /* locks and calls alone: is one lock too few? */
            gpu_row("ring", "its processor time for a piece", piece_us, "us", "", GPU_MEASURED);
        if (threads >= 8 && (least == 0 || got < least))
            least = got;
    }
    return least;
}

static bool write_all(int fd, const uint8_t *data, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        ssize_t done = write(fd, data + at, bytes - at);
        if (done <= 0)
            return false;
        at += (uint64_t)done;
    }
    return true;
}

void gpu_check_ring(struct gpu_check *check)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    uint64_t room = gpu_size(check, GIB, 4 * MIB), bytes = gpu_size(check, 8 * GIB, 16 * MIB);
    SL_AUTO(sl_gpu) gpu = sl_gpu_open(0, &err);
    uint8_t *from = malloc(room);
    if (!gpu || !from || sl_gpu_memory_make(gpu, bytes, &memory, &err) < 0) {
        gpu_row("ring", err.message, 0, "", "it works", GPU_FAIL);
        free(from);
        return;
    }
    gpu_fill_random(from, room);
    const struct origin copied = {"copied", from, -1, room},
                        none = {"lent, nothing written", .fd = -1};
    struct origin file = {"lent, read from a file in memory", NULL,
                          memfd_create("ring", MFD_CLOEXEC), room};
    feed_with_all(gpu, &memory, &copied);
    if (file.fd >= 0 && write_all(file.fd, from, room))
        feed_with_all(gpu, &memory, &file);
    double least = feed_with_all(gpu, &memory, &none);
    close(file.fd);
    if (check->peak > 0)
        gpu_row("ring", "lent, least of 8 to 64 threads, share of the pinned peak",
                least / check->peak, "", ">= 0.9",
                check->quick                 ? GPU_MEASURED
                : least >= 0.9 * check->peak ? GPU_OK
                                             : GPU_FAIL);
    sl_gpu_memory_release(gpu, &memory);
    free(from);
}

/* ---- memory of the host ---------------------------------------------------------------------- */

static double available_mib(void)
{
    char line[128];
    double kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib / 1024;
}

/* Other ways to pin what is mapped from a descriptor: do they work, and do they copy it? */
static void try_register(const struct gpu_check *check, int reader, uint64_t bytes, bool private)
{
    char what[96];
    int protection = private ? PROT_READ | PROT_WRITE : PROT_READ;
    void *memory = mmap(NULL, bytes, protection, private ? MAP_PRIVATE : MAP_SHARED, reader, 0);
    if (memory == MAP_FAILED)
        return;
    double before = available_mib();
    int result = check->cuda->host_register(memory, bytes, SL_CUDA_HOST_PORTABLE);
    snprintf(what, sizeof(what), "registering a %s map without the flag for reading",
             private ? "private, writable" : "shared, read-only");
    gpu_row("host", what, result, "result", "", GPU_MEASURED);
    gpu_row("host",
            private ? "memory of the host that the private one takes"
                    : "memory of the host that the shared one takes",
            before - available_mib(), "MiB", "", GPU_MEASURED);
    if (result == 0)
        check->cuda->host_unregister(memory);
    munmap(memory, bytes);
}

/* The host pool's slabs, as a client of a GPU uses them. */
void gpu_check_host(struct gpu_check *check)
{
    uint64_t bytes = gpu_size(check, GIB, 4 * MIB);
    struct copies copies = {.room = bytes, .bytes = SL_MIN(64 * MIB, bytes), .total = bytes};
    struct gpu_area area;
    int readonly = 0;
    char again[64];
    int fd = memfd_create("gpu-check", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || gpu_area_make(check, bytes, &area) < 0)
        return;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    gpu_fill_random(memory, bytes);
    munmap(memory, bytes);
    /* As clients have it: what is mapped from a descriptor for writing might be written one day,
     * and keeps the seal away. */
    snprintf(again, sizeof(again), "/proc/self/fd/%d", fd);
    int reader = open(again, O_RDONLY | O_CLOEXEC);
    try_register(check, reader, bytes, false);
    try_register(check, reader, bytes, true);
    memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, reader, 0);
    close(reader);
    check->cuda->device_attribute(&readonly, SL_CUDA_READ_ONLY_HOST_REGISTER, check->device.handle);
    gpu_row("host", "read-only memory can be registered", readonly, "", "", GPU_MEASURED);
    double begin = gpu_now();
    int result = check->cuda->host_register(
        memory, bytes, SL_CUDA_HOST_PORTABLE | SL_CUDA_HOST_REGISTER_READ_ONLY);
    double seconds = gpu_now() - begin;
    if (result == 0) {
        gpu_row("host", "registering a memfd, for each GiB",
                seconds * 1e3 * (double)GIB / (double)bytes, "ms", "", GPU_MEASURED);
        int sealed = fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
        gpu_row("host", sealed < 0 ? strerror(errno) : "sealed", sealed < 0 ? errno : 0,
                "sealing it while registered", "", GPU_MEASURED);
        copies.to = area.address;
        copies.from = memory;
        gpu_row("host", "to the device from a registered slab of the host", rate(check, &copies),
                "GB/s", "", GPU_MEASURED);
        check->cuda->host_unregister(memory);
    } else {
        gpu_row("host", "registering a memfd", result, "result", readonly ? "0" : "any",
                readonly ? GPU_FAIL : GPU_MEASURED);
    }
    gpu_claim("host", "it can be sealed once it is not registered",
              fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0, "sealed");
    munmap(memory, bytes);
    close(fd);
    gpu_area_free(check, &area);
}
