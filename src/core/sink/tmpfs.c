/*
 * Files of a staging directory. A place is a file range: whole pages written from a buffer that is
 * hot in cache are the cheapest way to fill new pages of a tmpfs, cheaper than faults on a mapping.
 *
 * A file is made with its full size before its first byte, so that readers may write in any order:
 * so many of them as may stay open before any byte, so that a limit shows at once, the others with
 * their first use. A model may have more files than a process may have descriptors: only
 * OPEN_FILES_MAX stay open, or fewer where the limit of descriptors is small, the least lucky one
 * without users is closed when another is needed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "descriptors.h"
#include "exact_io.h"
#include "option.h"
#include "owners.h"
#include "sink.h"
#include "thread.h"
#include "tree.h"

enum { OPEN_FILES_MAX = 128, ALLOCATE_BYTES = 8 * 1024 * 1024 };

static const struct sl_option tmpfs_rows[] = {
    SL_OPTION(sl_tmpfs_options, path, STRING, "",
              "the directory that the model is published into, best on a tmpfs", .required = true,
              .value = "DIR"),
    SL_OPTION(
        sl_tmpfs_options, layout, CHOICE, "verbatim",
        "the objects as they are; the selected tensors written as files of this format; or the "
        "objects as they are where Hugging Face's own client looks for them (hf:// alone)",
        .choices = "verbatim|safetensors|tensorizer|hf-cache"),
    SL_OPTION(sl_tmpfs_options, shard_bytes, BYTES, "5GiB",
              "largest file that layout safetensors writes before it begins another",
              .minimum = 1024 * 1024, .maximum = UINT64_MAX / 2),
    SL_OPTION(
        sl_tmpfs_options, align_bytes, BYTES, "0",
        "data in files of layout tensorizer begin at multiples of this power of two; 0: where "
        "the reference writer puts them",
        .maximum = 1024 * 1024),
    SL_OPTION(sl_tmpfs_options, replace, CHOICE, "keep-old",
              "whether an older version stays until the new one is complete, or makes room first",
              .choices = "keep-old|free-first"),
    SL_OPTION(sl_tmpfs_options, owner, STRING, "", "numeric user id that the files are given to",
              .value = "ID"),
    SL_OPTION(sl_tmpfs_options, group, STRING, "", "numeric group id that the files are given to",
              .value = "ID"),
    SL_OPTION_END,
};
const struct sl_option_table sl_tmpfs_table = {"tmpfs", sizeof(struct sl_tmpfs_options),
                                               tmpfs_rows};

struct tmpfs_file {
    int fd;         /* -1: closed */
    uint32_t users; /* places lent out and reads in progress */
    bool passing;   /* opened beyond OPEN_FILES_MAX: closed by its last user */
    ino_t inode;    /* once it was made */
};
struct tmpfs {
    struct sl_sink base;
    uid_t owner; /* (uid_t)-1: leave */
    gid_t group;
    size_t open_max; /* files that stay open, at most OPEN_FILES_MAX */
    pthread_mutex_t lock;
    struct {
        struct tmpfs_file *files;
        uint32_t open[OPEN_FILES_MAX]; /* file numbers of the open ones */
        size_t open_count, hand;
        struct sl_tree_walk walk; /* below the staging directory */
    } locked;
};

enum { OPEN_FLAGS = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK };

/* A load that was killed in finish() left it read-only. */
static int open_again(int parent, const char *leaf, const char *name, struct sl_err *err)
{
    sl_autoclose int own = openat(parent, leaf, O_RDONLY | OPEN_FLAGS);
    if (own >= 0 && sl_owners_check_file(parent, own, name, err) < 0)
        return -1;
    int fd = own < 0 || fchmod(own, 0644) < 0 ? -1 : openat(parent, leaf, O_RDWR | OPEN_FLAGS);
    return fd < 0 ? sl_tree_fail(err, EACCES, "open", name) : fd;
}

static int open_leaf(int parent, const char *leaf, bool made, const char *name, struct sl_err *err)
{
    int fd = openat(parent, leaf, O_RDWR | OPEN_FLAGS | (made ? 0 : O_CREAT), 0644);
    if (fd < 0)
        return errno == EACCES ? open_again(parent, leaf, name, err)
                               : sl_tree_fail(err, errno, "open", name);
    if (sl_owners_check_file(parent, fd, name, err) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The first time the file gets its size; afterwards it must still be the same one, or bytes would
 * be missing. */
static int settle_file(int fd, const struct sl_sink_file *file, ino_t *inode, struct sl_err *err)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return sl_tree_fail(err, errno, "look at", file->name);
    if (status.st_nlink > 1)
        return sl_fail(err, SL_E_NO_SPACE,
                       "cannot write '%s': it became a hard link: keep others out of the "
                       "destination and load again",
                       file->name);
    bool sized = (uint64_t)status.st_size == file->bytes;
    if (*inode && (*inode != status.st_ino || !sized))
        return sl_fail(err, SL_E_NO_SPACE,
                       "cannot write '%s': another process changed it: keep others out of the "
                       "destination and load again",
                       file->name);
    if (!sized && ftruncate(fd, (off_t)file->bytes) < 0)
        return sl_tree_fail(err, errno, "size", file->name);
    *inode = status.st_ino;
    return 0;
}

/* With the lock. */
static int open_file(struct tmpfs *tmpfs, uint32_t number, ino_t *inode, struct sl_err *err)
{
    const struct sl_sink_file *file = &tmpfs->base.files[number];
    const char *leaf;
    if (file->inherited)
        return sl_fail(err, SL_E_INTERNAL, "'%s' is of another version, too", file->name);
    int parent = sl_tree_enter(&tmpfs->locked.walk, file->name, &leaf);
    if (parent < 0)
        return sl_tree_fail(err, errno, "make the directory of", file->name);
    int fd = open_leaf(parent, leaf, *inode != 0, file->name, err);
    if (fd < 0)
        return -1;
    if (settle_file(fd, file, inode, err) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Room for one more open file: close one that nobody uses; none if every one is in use. */
static void make_room(struct tmpfs *tmpfs)
{
    for (size_t tries = 0; tries < tmpfs->locked.open_count; tries++) {
        size_t hand = tmpfs->locked.hand++ % tmpfs->locked.open_count;
        struct tmpfs_file *file = &tmpfs->locked.files[tmpfs->locked.open[hand]];
        if (file->users)
            continue;
        close(file->fd);
        file->fd = -1;
        tmpfs->locked.open[hand] = tmpfs->locked.open[--tmpfs->locked.open_count];
        return;
    }
}

/* The file's descriptor, which stays open until drop(). */
static int use(struct tmpfs *tmpfs, uint32_t number, struct sl_err *err)
{
    SL_LOCKED(&tmpfs->lock);
    struct tmpfs_file *file = &tmpfs->locked.files[number];
    if (file->fd < 0) {
        if (tmpfs->locked.open_count == tmpfs->open_max)
            make_room(tmpfs);
        file->fd = open_file(tmpfs, number, &file->inode, err);
        if (file->fd < 0)
            return -1;
        file->passing = tmpfs->locked.open_count == tmpfs->open_max;
        if (!file->passing)
            tmpfs->locked.open[tmpfs->locked.open_count++] = number;
    }
    file->users++;
    return file->fd;
}

static void drop(struct tmpfs *tmpfs, uint32_t number)
{
    SL_LOCKED(&tmpfs->lock);
    struct tmpfs_file *file = &tmpfs->locked.files[number];
    if (--file->users || !file->passing)
        return;
    close(file->fd);
    file->fd = -1;
}

static int tmpfs_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                         struct sl_place *place, struct sl_err *err)
{
    (void)offset, (void)bytes;
    place->fd = use((struct tmpfs *)sink, file, err);
    return place->fd < 0 ? -1 : 0;
}

static int tmpfs_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err)
{
    (void)err;
    drop((struct tmpfs *)sink, place->file);
    return 0;
}

static void tmpfs_abandon(struct sl_sink *sink, const struct sl_place *place)
{
    drop((struct tmpfs *)sink, place->file);
}

static int tmpfs_read(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data,
                      size_t bytes, struct sl_err *err)
{
    struct tmpfs *tmpfs = (struct tmpfs *)sink;
    int fd = use(tmpfs, file, err), failed = 0;
    if (fd < 0)
        return -1;
    if (sl_read_at(fd, data, bytes, offset) < 0)
        failed = errno == ENODATA
                     ? sl_fail(err, SL_E_NO_SPACE,
                               "cannot read back '%s': another process made it shorter",
                               sink->files[file].name)
                     : sl_tree_fail(err, errno, "read back", sink->files[file].name);
    drop(tmpfs, file);
    return failed;
}

static int finish_file(struct tmpfs *tmpfs, uint32_t number, struct sl_err *err)
{
    int fd = use(tmpfs, number, err), failed = 0;
    if (fd < 0)
        return -1;
    const char *name = tmpfs->base.files[number].name;
    ino_t inode = tmpfs->locked.files[number].inode; /* in use: no other thread opens it anew */
    bool given = tmpfs->owner != (uid_t)-1 || tmpfs->group != (gid_t)-1;
    if (settle_file(fd, &tmpfs->base.files[number], &inode, err) < 0)
        failed = -1;
    else if (given && fchown(fd, tmpfs->owner, tmpfs->group) < 0)
        failed = sl_tree_fail(err, errno, "give away", name);
    else if (fchmod(fd, 0444) < 0)
        failed = sl_tree_fail(err, errno, "set the mode of", name);
    drop(tmpfs, number);
    return failed;
}

static int tmpfs_finish(struct sl_sink *sink, struct sl_err *err)
{
    for (size_t i = 0; i < sink->file_count; i++)
        if (!sink->files[i].inherited && finish_file((struct tmpfs *)sink, (uint32_t)i, err) < 0)
            return -1;
    return 0;
}

static bool allocate_file(int fd, uint64_t bytes, bool (*more)(const void *arg), const void *arg)
{
    for (uint64_t at = 0; at < bytes; at += ALLOCATE_BYTES)
        if (!more(arg) ||
            fallocate(fd, 0, (off_t)at, (off_t)SL_MIN(ALLOCATE_BYTES, bytes - at)) < 0)
            return false;
    return true;
}

static void tmpfs_allocate(struct sl_sink *sink, bool (*more)(const void *arg), const void *arg)
{
    struct tmpfs *tmpfs = (struct tmpfs *)sink;
    bool went = true;
    for (size_t i = 0; went && i < sink->file_count; i++) {
        if (sink->files[i].inherited)
            continue;
        int fd = use(tmpfs, (uint32_t)i, NULL);
        if (fd < 0)
            return;
        went = allocate_file(fd, sink->files[i].bytes, more, arg);
        drop(tmpfs, (uint32_t)i);
    }
}

static void tmpfs_close(struct sl_sink *sink)
{
    struct tmpfs *tmpfs = (struct tmpfs *)sink;
    for (size_t i = 0; tmpfs->locked.files && i < sink->file_count; i++)
        if (tmpfs->locked.files[i].fd >= 0)
            close(tmpfs->locked.files[i].fd);
    sl_tree_walk_end(&tmpfs->locked.walk);
    pthread_mutex_destroy(&tmpfs->lock);
    free(tmpfs->locked.files);
    free(tmpfs);
}

static const struct sl_sink_ops tmpfs_ops = {
    .name = "tmpfs",
    .reserve = tmpfs_reserve,
    .commit = tmpfs_commit,
    .abandon = tmpfs_abandon,
    .read = tmpfs_read,
    .allocate = tmpfs_allocate,
    .finish = tmpfs_finish,
    .close = tmpfs_close,
};

static int parse_id(const char *text, const char *key, uint32_t *id, struct sl_err *err)
{
    if (!text)
        return 0;
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value >= UINT32_MAX)
        return sl_fail(err, SL_E_USAGE, "sink.tmpfs.%s is '%s', which is not a numeric id", key,
                       text);
    *id = (uint32_t)value;
    return 0;
}

int sl_tmpfs_owner(const struct sl_tmpfs_options *options, uint32_t *owner, uint32_t *group,
                   struct sl_err *err)
{
    *owner = *group = UINT32_MAX;
    if (!options)
        return 0;
    if (parse_id(options->owner, "owner", owner, err) < 0)
        return -1;
    return parse_id(options->group, "group", group, err);
}

struct sl_sink *sl_tmpfs_open(int directory_fd, const struct sl_sink_file *files, size_t count,
                              const struct sl_tmpfs_options *options, struct sl_err *err)
{
    struct tmpfs *tmpfs = sl_alloc(sizeof(*tmpfs), err);
    if (!tmpfs)
        return NULL;
    tmpfs->base = (struct sl_sink){.ops = &tmpfs_ops, .files = files, .file_count = count};
    tmpfs->locked.walk = (struct sl_tree_walk){.root_fd = directory_fd, .make = true, .fd = -1};
    tmpfs->open_max = sl_descriptors_for_files(OPEN_FILES_MAX);
    pthread_mutex_init(&tmpfs->lock, NULL);
    SL_AUTO(sl_sink) sink = &tmpfs->base;
    if (sl_tmpfs_owner(options, &tmpfs->owner, &tmpfs->group, err) < 0)
        return NULL;
    tmpfs->locked.files = sl_alloc_array(count, sizeof(*tmpfs->locked.files), err);
    if (!tmpfs->locked.files)
        return NULL;
    for (size_t i = 0; i < count; i++)
        tmpfs->locked.files[i].fd = -1;
    for (size_t i = 0; i < count && i < tmpfs->open_max; i++) {
        if (files[i].inherited)
            continue;
        if (use(tmpfs, (uint32_t)i, err) < 0)
            return NULL;
        drop(tmpfs, (uint32_t)i);
    }
    return sl_steal(&sink);
}
