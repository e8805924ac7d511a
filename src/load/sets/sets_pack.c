/*
 * What lies below the folder, as one archive: names in the order of their bytes, so that equal
 * folders give equal archives. What a set cannot hold (sockets, links that lead out, names that a
 * destination refuses) is passed over and counted. A file that is not all the time the one that was
 * found, and as it was then, ends the packing: half of it is code that nobody wrote.
 *
 *     folder ──▶ names, sorted ──▶ tar ──▶ zstd ──▶ file, SHA-256
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "exact_io.h"
#include "hash.h"
#include "packed_stream.h"
#include "packer.h"
#include "sets_parts.h"
#include "sink.h"
#include "tar_write.h"
#include "tree.h"
#include "unpack.h"

enum { PIECE_BYTES = 256 * 1024, NAME_BYTES = SL_UNPACK_NAME_BYTES_MAX + 1, DEPTH_MAX = 64 };

struct item {
    char *name;
    struct stat status;
};
/* All entries below the folder that a set can hold. */
struct items {
    struct item *items;
    size_t count, capacity;
    struct sl_sets_count sums;
    int64_t after_ns;
    struct sl_cancel *cancel;
};
#define AUTO_ITEMS __attribute__((cleanup(release_items))) struct items

static void release_items(struct items *items)
{
    for (size_t i = 0; i < items->count; i++)
        free(items->items[i].name);
    free(items->items);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Which of two times is later stays true beyond 2262. */
static int64_t in_ns(const struct timespec *time)
{
    int64_t seconds_max = INT64_MAX / (int64_t)SL_NS_PER_S - 1;
    if (time->tv_sec > seconds_max)
        return INT64_MAX;
    return SL_MAX((int64_t)time->tv_sec, -seconds_max) * (int64_t)SL_NS_PER_S + time->tv_nsec;
}

static int add(struct items *items, const char *name, const struct stat *status, struct sl_err *err)
{
    int64_t changed = in_ns(&status->st_mtim);
    if (items->count == SL_UNPACK_ENTRIES_MAX)
        return sl_fail(err, SL_E_USAGE, "the caches have more than %d files and folders",
                       SL_UNPACK_ENTRIES_MAX);
    if (sl_grow(&items->items, &items->capacity, items->count + 1, sizeof(*items->items), err) < 0)
        return -1;
    struct item *item = &items->items[items->count];
    *item = (struct item){sl_strdup(name, err), *status};
    if (!item->name)
        return -1;
    items->count++;
    items->sums.newest_ns = SL_MAX(items->sums.newest_ns, changed);
    if (S_ISDIR(status->st_mode))
        return 0;
    items->sums.files++;
    if (!S_ISREG(status->st_mode)) /* a link has the time at which it was made */
        return 0;
    uint64_t bytes = (uint64_t)status->st_size;
    bool later = changed > items->after_ns;
    items->sums.bytes += bytes;
    items->sums.newest_file_ns = SL_MAX(items->sums.newest_file_ns, changed);
    items->sums.later_files += later;
    items->sums.later_bytes += later ? bytes : 0;
    return items->sums.bytes <= SL_SETS_BLOB_BYTES_MAX
               ? 0
               : sl_fail(err, SL_E_USAGE, "the caches have more than 16 GiB");
}

static int walk(struct items *items, int folder_fd, const char *name, unsigned depth,
                struct sl_err *err);

static int take(struct items *items, int folder_fd, const char *leaf, const char *name,
                unsigned depth, struct sl_err *err)
{
    struct stat status;
    if (fstatat(folder_fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0
                               : sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read '%s'", name);
    if (sl_name_check(name, strlen(name), NULL) < 0 ||
        !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) || S_ISLNK(status.st_mode))) {
        items->sums.passed++;
        return 0;
    }
    if (add(items, name, &status, err) < 0)
        return -1;
    if (!S_ISDIR(status.st_mode))
        return 0;
    sl_autoclose int fd = openat(folder_fd, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && sl_tree_is_gone(errno))
        return 0;
    return fd < 0 ? sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot open the folder '%s'", name)
                  : walk(items, fd, name, depth + 1, err);
}

static int walk(struct items *items, int folder_fd, const char *name, unsigned depth,
                struct sl_err *err)
{
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int done = dir ? 0 : sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", name);
    if (!dir)
        sl_autoclose_(&fd);
    if (depth > DEPTH_MAX)
        done = sl_fail(err, SL_E_USAGE, "folders of the caches are nested more than %d deep",
                       DEPTH_MAX);
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(dir)) != NULL;) {
        sl_autofree char *whole = sl_asprintf(err, "%s%s%s", name, *name ? "/" : "", entry->d_name);
        done = whole ? sl_cancel_check(items->cancel, err) : -1;
        if (done == 0)
            done = take(items, folder_fd, entry->d_name, whole, depth, err);
    }
    if (done == 0 && errno)
        done = sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", name);
    if (dir)
        closedir(dir);
    return done;
}

int sl_sets_count(int folder_fd, int64_t after_ns, struct sl_cancel *cancel,
                  struct sl_sets_count *count, struct sl_err *err)
{
    AUTO_ITEMS items = {.after_ns = after_ns, .cancel = cancel};
    int done = walk(&items, folder_fd, "", 0, err);
    *count = items.sums;
    return done;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->name, ((const struct item *)b)->name);
}

/* ---- the archive ----------------------------------------------------------------------------- */

struct pack {
    int folder_fd, out_fd;
    struct sl_packer *packer;
    struct sl_sha256 *sha;
    struct sl_cancel *cancel;
    struct sl_sets_saved *saved;
    uint8_t piece[PIECE_BYTES];
};

/* sl_packer_output.put */
static int put(void *arg, const void *data, size_t bytes, struct sl_err *err)
{
    struct pack *pack = arg;
    if (sl_write_at(pack->out_fd, data, bytes, pack->saved->packed_bytes) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "no room for the packed set beside the caches");
    sl_sha256_update(pack->sha, data, bytes);
    pack->saved->packed_bytes += bytes;
    return 0;
}

static int put_zeros(struct pack *pack, size_t bytes, struct sl_err *err)
{
    static const char zeros[SL_TAR_ZERO_BYTES];
    return bytes ? sl_packer_write(pack->packer, zeros, bytes, err) : 0;
}

static int changed(const struct item *item, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, SL_SETS_CHANGED,
                        "'%s' changed while it was packed: save when the engine stands still",
                        item->name);
}

static int check_same(int fd, const struct item *item, struct sl_err *err)
{
    struct stat now;
    const struct stat *found = &item->status;
    if (fstat(fd, &now) == 0 && now.st_ino == found->st_ino && now.st_dev == found->st_dev &&
        now.st_size == found->st_size && now.st_mtim.tv_sec == found->st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == found->st_mtim.tv_nsec)
        return 0;
    return changed(item, err);
}

static int put_data(struct pack *pack, int fd, const struct item *item, struct sl_err *err)
{
    uint64_t bytes = (uint64_t)item->status.st_size;
    for (uint64_t at = 0; at < bytes;) {
        size_t part = (size_t)SL_MIN(bytes - at, (uint64_t)PIECE_BYTES);
        if (sl_cancel_check(pack->cancel, err) < 0)
            return -1;
        if (sl_read_at(fd, pack->piece, part, at) < 0)
            return check_same(fd, item, err) < 0
                       ? -1
                       : sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read '%s'", item->name);
        if (sl_packer_write(pack->packer, pack->piece, part, err) < 0)
            return -1;
        at += part;
    }
    return check_same(fd, item, err) < 0 ? -1 : put_zeros(pack, sl_tar_padding(bytes), err);
}

static int put_head(struct pack *pack, const struct item *item, const char *link,
                    struct sl_err *err)
{
    sl_autobuf head = SL_BUF_INIT(64 * 1024);
    mode_t mode = item->status.st_mode;
    const struct sl_tar_entry entry = {
        .kind = S_ISDIR(mode)   ? SL_TAR_FOLDER
                : S_ISLNK(mode) ? SL_TAR_SYMLINK
                                : SL_TAR_FILE,
        .name = item->name,
        .name_bytes = strlen(item->name),
        .link = link,
        .link_bytes = strlen(link),
        .bytes = S_ISREG(mode) ? (uint64_t)item->status.st_size : 0,
        .executable = mode & S_IXUSR,
        .seconds = (int64_t)item->status.st_mtim.tv_sec,
    };
    return sl_tar_write_head(&entry, &head, err) < 0
               ? -1
               : sl_packer_write(pack->packer, head.data, head.used, err);
}

/* A link that a reader would refuse is passed over. */
static int put_link(struct pack *pack, const struct item *item, int parent, const char *leaf,
                    struct sl_err *err)
{
    char target[NAME_BYTES + 1]; /* what is cut off here is too long */
    ssize_t got = parent < 0 ? -1 : readlinkat(parent, leaf, target, sizeof(target) - 1);
    if (got < 0)
        return changed(item, err);
    if (got == 0 || sl_unpack_target_fault(item->name, target, (size_t)got)) {
        pack->saved->passed++;
        return 0;
    }
    target[got] = 0;
    pack->saved->files++;
    return put_head(pack, item, target, err);
}

static int put_item(struct pack *pack, const struct item *item, struct sl_err *err)
{
    const char *leaf;
    if (S_ISDIR(item->status.st_mode))
        return put_head(pack, item, "", err);
    sl_autoclose int parent = sl_tree_parent(pack->folder_fd, item->name, false, &leaf);
    if (S_ISLNK(item->status.st_mode))
        return put_link(pack, item, parent, leaf, err);
    sl_autoclose int fd =
        parent < 0 ? -1 : openat(parent, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && sl_tree_is_gone(errno))
        return changed(item, err);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_INTEGRITY, errno, "cannot open '%s' to pack it", item->name);
    pack->saved->files++;
    pack->saved->bytes += (uint64_t)item->status.st_size;
    return put_head(pack, item, "", err) < 0 ? -1 : put_data(pack, fd, item, err);
}

static int put_all(struct pack *pack, const struct items *items, struct sl_err *err)
{
    for (size_t i = 0; i < items->count; i++)
        if (put_item(pack, &items->items[i], err) < 0)
            return -1;
    if (!pack->saved->files)
        return sl_fail(err, SL_E_NOT_FOUND, "there is nothing to save: no file is in the caches");
    if (put_zeros(pack, SL_TAR_ZERO_BYTES, err) < 0 || sl_packer_end(pack->packer, err) < 0)
        return -1;
    if (pack->saved->bytes <= sl_packed_limit(pack->saved->packed_bytes))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "the caches are more than %d times as large as they are packed, which no "
                   "restore takes: keep files that are almost all zeros elsewhere",
                   SL_PACKED_RATIO_MAX);
}

int sl_sets_pack(int folder_fd, int out_fd, struct sl_cancel *cancel, struct sl_sets_saved *saved,
                 struct sl_err *err)
{
    AUTO_ITEMS items = {.cancel = cancel};
    sl_autofree struct pack *pack = sl_alloc(sizeof(*pack), err);
    SL_AUTO(sl_sha256) sha = pack ? sl_sha256_new(err) : NULL;
    SL_AUTO(sl_packer)
    packer = sha ? sl_packer_new(&(struct sl_packer_output){put, pack}, err) : NULL;
    uint8_t digest[32];
    if (!packer || walk(&items, folder_fd, "", 0, err) < 0)
        return -1;
    if (items.count)
        qsort(items.items, items.count, sizeof(*items.items), by_name);
    *pack = (struct pack){.folder_fd = folder_fd,
                          .out_fd = out_fd,
                          .packer = packer,
                          .sha = sha,
                          .cancel = cancel,
                          .saved = saved};
    saved->passed = items.sums.passed;
    if (put_all(pack, &items, err) < 0)
        return -1;
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), saved->sha256);
    return 0;
}
