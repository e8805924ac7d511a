/*
 * A slab: one allocation of memory behind a descriptor that other processes map.
 *
 * Of the host's there are two kinds. A sealed memfd: from before its descriptor leaves the process
 * nobody else, not even root, can change or shrink it. A file without a name on a tmpfs of our own:
 * it may have huge pages, which a memfd has not on a default kernel, but cannot be sealed. Of both,
 * others only ever get a descriptor that was opened read-only, and the file's mode (0400) keeps
 * other users from opening it anew; root, and a process of the same user, could write to a tmpfs
 * file always.
 *
 * A third kind is memory of a GPU, which is not a file: its descriptor imports it. A slab is for
 * one thread at a time, but for sl_slab_find_room() and its bytes; seals are those of fcntl(2).
 */
#ifndef SL_SLAB_H
#define SL_SLAB_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "mem.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

/** The numbers are those of the protocol. */
enum sl_slab_kind { SL_SLAB_MEMFD = 1, SL_SLAB_TMPFS = 2, SL_SLAB_GPU = 3 };

/** Where slabs are made; decided once, by sl_slab_place_probe(). */
struct sl_slab_place {
    enum sl_slab_kind kind;
    bool huge;          /* the kernel is asked for huge pages there */
    int directory_fd;   /* SL_SLAB_TMPFS: borrowed; else -1 */
    struct sl_gpu *gpu; /* SL_SLAB_GPU: borrowed, and outlives every slab; else NULL */
    char why[160];      /* for logs: "sealed memfds, 4 KiB pages: no directory was given" */
};
/**
 * directory_fd: a tmpfs that is ours, or -1: then, and if it is not a tmpfs, slabs are memfds. It
 * has huge pages with the mount option huge=always, within_size or advise. Never fails.
 */
void sl_slab_place_probe(int directory_fd, struct sl_slab_place *place);

struct sl_slab {
    int fd;        /* opened for writing; never leaves the process */
    int reader_fd; /* opened read-only: what others get */
    uint8_t *map;  /* given out while it is filled: the only way to write it; else NULL */
    uint64_t bytes;
    enum sl_slab_kind kind;
    bool sealed;
    struct sl_gpu *gpu;          /* SL_SLAB_GPU */
    struct sl_gpu_memory memory; /* while it is filled; its descriptor is reader_fd */
};
/* clang-format off */
#define SL_SLAB_INIT {.fd = -1, .reader_fd = -1, .memory = SL_GPU_MEMORY_INIT}
/* clang-format on */

/** A slab of zeros, of a GPU of anything; memory of the host is taken as it is written. A GPU's is
 * at least `bytes`. SL_E_GPU. SL_E_NO_SPACE. bytes at least 1. */
int sl_slab_make(const struct sl_slab_place *place, uint64_t bytes, struct sl_slab *slab,
                 struct sl_err *err);
/**
 * A slab that another process made and hands over: *fd is owned by the slab then, and stays the
 * caller's on failure (it may be another then). SL_E_INTEGRITY unless it is a memfd that is sealed
 * against writing, growing and shrinking, of exactly this size.
 */
int sl_slab_adopt(int *fd, uint64_t bytes, struct sl_slab *slab, struct sl_err *err);
/**
 * Make a slab of memory of a GPU that another process made and hands over.
 *
 * @gpu     outlives the slab.
 * @fd      *fd is owned by the slab then; on failure it stays the caller's.
 * @bytes   exactly what the memory has, a multiple of what memory of this GPU comes in.
 * @slab    out: sealed, and not mapped.
 * @return  0, or -1 with SL_E_INTEGRITY (it is no such memory) or SL_E_GPU.
 *
 * Blocks for the GPU's driver.
 */
int sl_slab_adopt_gpu(struct sl_gpu *gpu, int *fd, uint64_t bytes, struct sl_slab *slab,
                      struct sl_err *err);
/** Another descriptor of the same memory of the host, which `of` goes on writing and seals; it can
 * be given out at once. SL_E_INTEGRITY, SL_E_NO_SPACE. */
int sl_slab_share(struct sl_slab *of, struct sl_slab *slab, struct sl_err *err);
/**
 * Before reader_fd leaves the process: from now on nobody else can write to it, and it is written
 * through slab->map. One of a tmpfs, or of a GPU, stays as it is. SL_E_INTEGRITY if it cannot be
 * sealed, SL_E_NO_SPACE if it cannot be mapped; then it is not to be given.
 */
int sl_slab_give_out(struct sl_slab *slab, struct sl_err *err);
/** Before it is written through slab->map: memory for these bytes, whose lack would end the process
 * there. SL_E_NO_SPACE. */
int sl_slab_find_room(const struct sl_slab *slab, uint64_t offset, uint64_t bytes,
                      struct sl_err *err);
/** Of a GPU's, which is full or given up: its descriptor alone keeps the memory from now on. Blocks
 * for the GPU's driver, which may hang: with no lock that others wait for. Of others nothing. */
void sl_slab_unmap_gpu(struct sl_slab *slab);
/** No more writing; a GPU's is unmapped already. Memory that a reader has pinned meanwhile (a GPU
 * driver does) is not a failure. A seal that cannot be set is: SL_E_INTEGRITY. */
int sl_slab_seal(struct sl_slab *slab, struct sl_err *err);
/** Nobody writes into it any more, and it is not to be read: what it takes beside its memory is
 * given back. */
void sl_slab_give_up(struct sl_slab *slab);
/** Where slabs of a GPU are made: `why` says which one. */
void sl_slab_place_gpu(struct sl_gpu *gpu, struct sl_slab_place *place);
/** Closes both; the memory lives on as long as somebody maps it. Whoever has it last waits while
 * the kernel frees it. */
void sl_slab_release(struct sl_slab *slab);

/** Any memfd of ours, 0400, closed on exec, not yet sealed. -1 with SL_E_NO_SPACE. */
int sl_memfd_make(const char *name, uint64_t bytes, struct sl_err *err);
/** Add these seals; `what` is "a slab". SL_E_INTEGRITY. */
int sl_memfd_seal(int fd, int seals, const char *what, struct sl_err *err);
/** *fd, a sealed file of another process, becomes a read-only descriptor of it if it is not: before
 * Linux 6.7 nothing else can be mapped. SL_E_INTEGRITY; *fd stays the caller's. */
int sl_memfd_make_reader(int *fd, struct sl_err *err);
/** The same file again, read-only: a descriptor of the caller's. SL_E_NO_SPACE. */
int sl_memfd_reader(int fd, struct sl_err *err);
/** A sealed memfd with these bytes; what is returned is read-only and the caller's. SL_E_NO_SPACE,
 * SL_E_INTEGRITY. */
int sl_memfd_of(const char *name, const void *data, size_t bytes, struct sl_err *err);

#endif
