/*
 * Readers get a descriptor that /proc/self/fd/N was opened for, read-only: a mapping of it can
 * never be made writable. But root, and processes of our own user, can open it anew for writing:
 * so before anybody has it a memfd is sealed with F_SEAL_FUTURE_WRITE, which leaves one way of
 * writing, the mapping that was made here just before. As long as nobody has it, it is written with
 * pwrite() and not mapped, which costs half of what page faults do. A pwrite() that the seal
 * overtakes is EPERM as a whole, since the kernel looks at seals with the inode locked, and is done
 * again through the mapping.
 *
 * A tmpfs file cannot be sealed. It has no name (O_TMPFILE) until its model is kept
 * (pool_files.c): nothing that is not whole is left behind however the process ends.
 */
#include "slab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "buf.h"
#include "exact_io.h"
#include "pages.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { SHAPE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

/* ---- where ----------------------------------------------------------------------------------- */

/* memfds follow this switch: "always within_size advise [never] deny force". */
static bool memfds_are_huge(void)
{
    sl_autobuf text = SL_BUF_INIT(256);
    if (sl_buf_read_file(&text, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", NULL) < 0)
        return false;
    const char *chosen = strchr(sl_buf_string(&text), '[');
    return chosen && (strncmp(chosen, "[always", 7) == 0 || strncmp(chosen, "[force", 6) == 0 ||
                      strncmp(chosen, "[within", 7) == 0);
}

static int open_unnamed(int directory_fd)
{
    return openat(directory_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0400);
}

void sl_slab_place_probe(int directory_fd, struct sl_slab_place *place)
{
    struct statfs system;
    const char *why = "no directory was given";
    *place = (struct sl_slab_place){.kind = SL_SLAB_MEMFD, .directory_fd = -1};
    if (directory_fd >= 0) {
        int fd = -1;
        if (fstatfs(directory_fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
            why = "the directory is not a tmpfs";
        else if ((fd = open_unnamed(directory_fd)) < 0)
            why = "the tmpfs takes no files";
        if (fd >= 0) {
            close(fd);
            place->kind = SL_SLAB_TMPFS;
            place->directory_fd = directory_fd;
            place->huge = sl_pages_of(directory_fd) == SL_PAGES_HUGE;
            snprintf(place->why, sizeof(place->why), "tmpfs files, %s pages, read-only",
                     place->huge ? "huge" : "4 KiB");
            return;
        }
    }
    place->huge = memfds_are_huge();
    if (place->huge)
        snprintf(place->why, sizeof(place->why), "sealed memfds, huge pages");
    else
        snprintf(place->why, sizeof(place->why), "sealed memfds, 4 KiB pages: %s", why);
}

void sl_slab_place_gpu(struct sl_gpu *gpu, struct sl_slab_place *place)
{
    const struct sl_cuda_device *device = sl_gpu_device(gpu);
    *place = (struct sl_slab_place){.kind = SL_SLAB_GPU, .directory_fd = -1, .gpu = gpu};
    snprintf(place->why, sizeof(place->why), "memory of cuda:%d, %s", device->ordinal,
             device->name);
}

/* ---- files ----------------------------------------------------------------------------------- */

static int fail(struct sl_err *err, int number, const char *what)
{
    const char *next = number == EMFILE || number == ENFILE ? "raise the limit of open files"
                                                            : "free memory or raise the limit";
    return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot %s of the pool (%s)", what, next);
}

int sl_memfd_make(const char *name, uint64_t bytes, struct sl_err *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail(err, errno, "make a memfd");
    if (ftruncate(fd, (off_t)bytes) < 0 || fchmod(fd, 0400) < 0) {
        fail(err, errno, "size a memfd");
        close(fd);
        return -1;
    }
    return fd;
}

int sl_memfd_seal(int fd, int seals, const char *what, struct sl_err *err)
{
    if (fcntl(fd, F_ADD_SEALS, seals) == 0)
        return 0;
    if (errno == EINVAL && seals & F_SEAL_FUTURE_WRITE)
        return sl_fail(err, SL_E_INTEGRITY,
                       "cannot seal %s of the pool, so others could change it: the pool takes "
                       "Linux 5.1 or newer",
                       what);
    return sl_fail_errno(err, SL_E_INTEGRITY, errno,
                         "cannot seal %s of the pool, so others could change it: see which "
                         "process had it for writing",
                         what);
}

int sl_memfd_reader(int fd, struct sl_err *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    return reader >= 0 ? reader : fail(err, errno, "open a slab for readers");
}

int sl_memfd_make_reader(int *fd, struct sl_err *err)
{
    int flags = fcntl(*fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY)
        return 0;
    int reader = sl_memfd_reader(*fd, NULL), number = errno;
    if (reader < 0 && sl_errno_is_short(number))
        return fail(err, number, "open a slab for readers");
    if (reader < 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the received file is open for writing: open it again read-only through "
                       "/proc/self/fd, and send that descriptor");
    close(*fd);
    *fd = reader;
    return 0;
}

int sl_memfd_of(const char *name, const void *data, size_t bytes, struct sl_err *err)
{
    sl_autoclose int fd = sl_memfd_make(name, bytes, err);
    if (fd < 0)
        return -1;
    if (sl_write_at(fd, data, bytes, 0) < 0)
        return fail(err, errno, "write a memfd");
    if (sl_memfd_seal(fd, SHAPE_SEALS | F_SEAL_WRITE | F_SEAL_SEAL, "a memfd", err) < 0)
        return -1;
    return sl_memfd_reader(fd, err);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static int make_tmpfs(const struct sl_slab_place *place, uint64_t bytes, struct sl_err *err)
{
    int fd = open_unnamed(place->directory_fd);
    if (fd < 0)
        return fail(err, errno, "make a slab");
    if (ftruncate(fd, (off_t)bytes) < 0 || fchmod(fd, 0400) < 0) {
        fail(err, errno, "size a slab");
        close(fd);
        return -1;
    }
    return fd;
}

static int make_gpu(const struct sl_slab_place *place, uint64_t bytes, struct sl_slab *slab,
                    struct sl_err *err)
{
    struct sl_slab made = SL_SLAB_INIT;
    made.kind = SL_SLAB_GPU;
    made.gpu = place->gpu;
    made.bytes = sl_gpu_round(place->gpu, bytes);
    if (sl_gpu_memory_make(place->gpu, made.bytes, &made.memory, err) < 0)
        return -1;
    made.reader_fd = made.memory.fd;
    made.memory.fd = -1;
    *slab = made;
    return 0;
}

int sl_slab_make(const struct sl_slab_place *place, uint64_t bytes, struct sl_slab *slab,
                 struct sl_err *err)
{
    struct sl_slab made = SL_SLAB_INIT;
    if (place->kind == SL_SLAB_GPU)
        return make_gpu(place, bytes, slab, err);
    made.bytes = bytes;
    made.kind = place->kind;
    made.fd = place->kind == SL_SLAB_TMPFS ? make_tmpfs(place, bytes, err)
                                           : sl_memfd_make("sluice-slab", bytes, err);
    bool sealed = made.fd >= 0 && (place->kind != SL_SLAB_MEMFD ||
                                   sl_memfd_seal(made.fd, SHAPE_SEALS, "a slab", err) == 0);
    if (sealed)
        made.reader_fd = sl_memfd_reader(made.fd, err);
    if (made.reader_fd < 0) {
        sl_slab_release(&made);
        return -1;
    }
    *slab = made;
    return 0;
}

int sl_slab_adopt(int *fd, uint64_t bytes, struct sl_slab *slab, struct sl_err *err)
{
    struct stat status;
    int seals = fcntl(*fd, F_GET_SEALS);
    if (seals < 0)
        return sl_fail(err, SL_E_INTEGRITY, "the received slab is not a memfd that can be sealed");
    bool fixed = (seals & SHAPE_SEALS) == SHAPE_SEALS;
    bool read_only = seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE);
    if (!fixed || !(seals & F_SEAL_WRITE))
        return sl_fail(err, SL_E_INTEGRITY,
                       "a slab is not sealed against %s: seal it with F_SEAL_WRITE, F_SEAL_SHRINK "
                       "and F_SEAL_GROW before sending it",
                       read_only ? "resizing or its writer's own mapping" : "writing");
    if (fstat(*fd, &status) < 0 || (uint64_t)status.st_size != bytes)
        return sl_fail(err, SL_E_INTEGRITY, "a slab has %llu bytes, and its index says %llu",
                       (unsigned long long)status.st_size, (unsigned long long)bytes);
    if (sl_memfd_make_reader(fd, err) < 0)
        return -1;
    *slab = (struct sl_slab){
        .fd = -1, .reader_fd = *fd, .bytes = bytes, .kind = SL_SLAB_MEMFD, .sealed = true};
    return 0;
}

int sl_slab_share(struct sl_slab *of, struct sl_slab *slab, struct sl_err *err)
{
    if (sl_slab_give_out(of, err) < 0)
        return -1;
    int fd = fcntl(of->reader_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return fail(err, errno, "share a slab");
    *slab = (struct sl_slab){
        .fd = -1, .reader_fd = fd, .bytes = of->bytes, .kind = of->kind, .sealed = true};
    return 0;
}

int sl_slab_adopt_gpu(struct sl_gpu *gpu, int *fd, uint64_t bytes, struct sl_slab *slab,
                      struct sl_err *err)
{
    struct sl_slab adopted = SL_SLAB_INIT;
    if (sl_gpu_memory_check(gpu, *fd, bytes, err) < 0)
        return -1;
    adopted.kind = SL_SLAB_GPU;
    adopted.gpu = gpu;
    adopted.reader_fd = *fd;
    adopted.bytes = bytes;
    adopted.sealed = true;
    *slab = adopted;
    return 0;
}

int sl_slab_give_out(struct sl_slab *slab, struct sl_err *err)
{
    if (slab->kind != SL_SLAB_MEMFD || slab->sealed || slab->map)
        return 0;
    void *map = mmap(NULL, (size_t)slab->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slab->fd, 0);
    if (map == MAP_FAILED)
        return fail(err, errno, "map a slab");
    if (sl_memfd_seal(slab->fd, F_SEAL_FUTURE_WRITE, "a slab", err) < 0) {
        munmap(map, (size_t)slab->bytes);
        return -1;
    }
    slab->map = map;
    return 0;
}

int sl_slab_find_room(const struct sl_slab *slab, uint64_t offset, uint64_t bytes,
                      struct sl_err *err)
{
    while (fallocate(slab->fd, 0, (off_t)offset, (off_t)bytes) < 0)
        if (errno != EINTR)
            return fail(err, errno, "find memory for a slab");
    return 0;
}

static void unmap(struct sl_slab *slab)
{
    if (slab->map)
        munmap(slab->map, (size_t)slab->bytes);
    slab->map = NULL;
}

/* What was mapped here was given out, and nobody could map it for writing since: then only pages
 * that a reader has pinned (a GPU's driver does) are EBUSY, and the seal that it has is enough. */
static int seal_memfd(struct sl_slab *slab, struct sl_err *err)
{
    bool was_given = slab->map;
    unmap(slab);
    bool pinned = was_given && fcntl(slab->fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EBUSY;
    if (!pinned && sl_memfd_seal(slab->fd, F_SEAL_WRITE, "a slab", err) < 0)
        return -1;
    if (sl_memfd_seal(slab->fd, F_SEAL_SEAL, "a slab", err) < 0)
        return -1;
    close(slab->fd);
    slab->fd = -1;
    return 0;
}

void sl_slab_unmap_gpu(struct sl_slab *slab)
{
    if (slab->gpu)
        sl_gpu_memory_unmap(slab->gpu, &slab->memory);
}

int sl_slab_seal(struct sl_slab *slab, struct sl_err *err)
{
    if (!slab->sealed && slab->kind == SL_SLAB_MEMFD && seal_memfd(slab, err) < 0)
        return -1;
    slab->sealed = true;
    return 0;
}

void sl_slab_give_up(struct sl_slab *slab)
{
    if (slab->map)
        slab->sealed = seal_memfd(slab, NULL) == 0; /* it is sealed for writing in any case */
}

void sl_slab_release(struct sl_slab *slab)
{
    sl_slab_unmap_gpu(slab);
    unmap(slab);
    if (slab->fd >= 0)
        close(slab->fd);
    if (slab->reader_fd >= 0)
        close(slab->reader_fd);
    *slab = (struct sl_slab)SL_SLAB_INIT;
}
