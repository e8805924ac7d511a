/*
 * Local files: a path or file:// URI.
 *
 * A range is opened, checked against the version (mtime, ctime, inode, length), read with pread()
 * and checked once more at its end, so neither a file that is replaced nor one that is written
 * while it is read goes unnoticed. Times are as fine as the kernel's tick: two changes within one
 * look like one, so a file that has just changed is opened only after the tick. No descriptor is
 * held between ranges, since a model may have thousands of files.
 *
 * A store that somebody else named may be bound to a folder (config.beneath_bytes): then everything
 * is opened through a descriptor of that folder, and nothing leads out of it.
 *
 * Listings follow links to regular files, wherever they lead, because hub caches keep their files
 * as links into a store of blobs and the user named this directory; links to directories are not
 * followed, so a listing ends and stays below its base.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "beneath.h"
#include "buf.h"
#include "entries.h"
#include "file_edit.h"
#include "file_store.h"
#include "log.h"
#include "own_names.h"

enum {
    DIRECTORY_DEPTH_MAX = 32,
    DIRECTORY_ENTRIES_MAX = 1000000,
    PATH_BYTES_MAX = 4096,
    TICK_MS = 20, /* two of the slowest kernel's */
    FAR_MS = 2000,
    SETTLE_TRIES = 5, /* then somebody writes all the time */
};

static int fail_open(struct sl_err *err, int number, const char *path)
{
    if (number == ENOENT || number == ENOTDIR)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "there is no file '%s': check the path, and that it is mounted here", path);
    if (number == EACCES || number == EPERM)
        return sl_fail_errno(err, SL_E_AUTH, number, "cannot read '%s'", path);
    if (sl_errno_is_short(number))
        return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot open '%s'", path);
    if (number == ENAMETOOLONG || number == ELOOP || number == EINVAL)
        return sl_fail_errno(err, SL_E_USAGE, number, "cannot open '%s'", path);
    return sl_fail_errno(err, SL_E_NET, number, "cannot read '%s'", path);
}

/* ---- the place ------------------------------------------------------------------------------ */

struct place {
    char *base;        /* with its last slash */
    int root_fd;       /* nothing outside of this folder is opened; -1: anything may be */
    size_t root_bytes; /* of its path, which all paths begin with */
};

/* Whatever a path of this store means, over links where those may be followed. */
static int open_at(const struct place *place, const char *path, int flags)
{
    if (place->root_fd < 0)
        return open(path, flags | O_CLOEXEC);
    path += place->root_bytes;
    return sl_beneath_open(place->root_fd, path + strspn(path, "/"), flags);
}

static int fail_at(const struct place *place, struct sl_err *err, int number, const char *path)
{
    if (place->root_fd >= 0 && (number == EXDEV || number == ELOOP))
        return sl_fail_code(err, SL_E_AUTH, "beneath",
                            "'%s' is behind a link that leads out of '%.*s', or that is not "
                            "followed here: put the file itself below that folder",
                            path, (int)place->root_bytes, path);
    return fail_open(err, number, path);
}

static bool is_directory(const struct place *place, const char *path)
{
    struct stat info;
    sl_autoclose int fd = open_at(place, path, O_PATH);
    return fd >= 0 && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The folder that the first bytes of the URI name, or that holds the file which they name. Links on
 * the way to it are of whoever wrote the prefix. */
static int bind_place(struct place *place, const char *uri, size_t bytes, const char *path,
                      struct sl_err *err)
{
    sl_autofree char *prefix = sl_strndup(uri, bytes, err);
    sl_autofree char *root = prefix ? sl_file_path(prefix, err) : NULL;
    if (!root)
        return -1;
    place->root_bytes = strlen(root);
    if (strncmp(path, root, place->root_bytes) != 0)
        return sl_fail(err, SL_E_USAGE, "'%s' is not below '%s'", path, root);
    place->root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place->root_fd < 0 && errno == ENOTDIR && strcmp(path, root) == 0) {
        const char *slash = strrchr(root, '/');
        place->root_bytes = slash ? (size_t)(slash - root) + 1 : 0;
        root[place->root_bytes] = 0;
        place->root_fd = open(slash ? root : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    return place->root_fd < 0 ? fail_open(err, errno, root) : 0;
}

static void file_close(struct sl_store *store)
{
    struct place *place = store->impl;
    if (!place)
        return;
    sl_autoclose_(&place->root_fd);
    free(place->base);
    free(place);
}

static int open_place(struct sl_store *store, const char *uri, const char *path, char **key,
                      struct sl_err *err)
{
    struct place *place = store->impl;
    size_t bytes = strlen(path);
    if (store->config.beneath_bytes &&
        bind_place(place, uri, store->config.beneath_bytes, path, err) < 0)
        return -1;
    const char *slash = strrchr(path, '/');
    size_t base_bytes = slash ? (size_t)(slash - path) + 1 : 0;
    if (base_bytes != bytes && is_directory(place, path)) {
        place->base = sl_asprintf(err, "%s/", path);
        base_bytes = bytes;
    } else {
        place->base = base_bytes ? sl_strndup(path, base_bytes, err) : sl_strdup("./", err);
    }
    store->uri = place->base ? sl_strdup(place->base, err) : NULL;
    *key = store->uri ? sl_strdup(path + base_bytes, err) : NULL;
    return *key ? 0 : -1;
}

static int file_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    sl_autofree char *path = sl_file_path(uri, err);
    if (!path)
        return -1;
    if (!*path || strcmp(path, "-") == 0)
        return sl_fail(err, SL_E_USAGE,
                       "cannot load from '%s': ranges are read in any order, so the source must be "
                       "a file or a directory",
                       uri);
    struct place *place = sl_alloc(sizeof(*place), err);
    if (!place)
        return -1;
    place->root_fd = -1;
    store->impl = place;
    return open_place(store, uri, path, key, err);
}

/* ---- listing -------------------------------------------------------------------------------- */

struct walk {
    struct sl_store *store;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    struct sl_buf name; /* relative to the base, of the entry in hand */
    uint64_t found;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct names {
    char **items;
    size_t count, capacity;
};

static void names_release(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
}

static int read_names(DIR *directory, struct names *names, struct sl_err *err)
{
    struct dirent *entry;
    while ((entry = sl_next_entry(directory))) {
        if (names->count == DIRECTORY_ENTRIES_MAX)
            return sl_fail(err, SL_E_FORMAT, "a directory of more than %d entries",
                           DIRECTORY_ENTRIES_MAX);
        if (sl_grow(&names->items, &names->capacity, names->count + 1, sizeof(char *), err) < 0)
            return -1;
        names->items[names->count] = sl_strdup(entry->d_name, err);
        if (!names->items[names->count])
            return -1;
        names->count++;
    }
    if (errno)
        return sl_fail_errno(err, SL_E_NET, errno, "cannot list a directory");
    if (names->count)
        qsort(names->items, names->count, sizeof(char *), by_name);
    return 0;
}

static int walk_directory(struct walk *walk, int fd, unsigned depth, struct sl_err *err);

static int look_behind(struct walk *walk, struct stat *info, struct sl_err *err)
{
    const struct place *place = walk->store->impl;
    sl_autofree char *path = sl_asprintf(err, "%s%s", place->base, sl_buf_string(&walk->name));
    if (!path)
        return -1;
    sl_autoclose int fd = open_at(place, path, O_PATH);
    if (fd >= 0 && fstat(fd, info) == 0)
        return 0;
    if (place->root_fd >= 0)
        return fail_at(place, err, errno, path);
    return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "cannot follow the link '%s'", path);
}

/* A spec with its secrets, a record, a salt: a copy of it would be for everybody. */
static bool is_kept_by_node(const struct walk *walk, const char *name, const struct stat *info)
{
    bool closed = S_ISREG(info->st_mode) && !(info->st_mode & 077);
    if (!sl_own_name_of_node(name, strlen(name), closed))
        return false;
    sl_log(SL_LOG_WARN, "left out '%s%s': a node keeps such a file for itself%s",
           ((struct place *)walk->store->impl)->base, sl_buf_string(&walk->name),
           closed ? ", and its owner alone can read it; if it is the model's, let others read it"
                  : "");
    return true;
}

/* One name of a directory, which walk->name ends with: a file is told, a directory entered,
 * anything else passed over. */
static int take_entry(struct walk *walk, int parent, const char *name, unsigned depth,
                      struct sl_err *err)
{
    struct stat info;
    if (sl_own_name(walk->name.data, walk->name.used))
        return 0;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail_open(err, errno, name);
    bool link = S_ISLNK(info.st_mode);
    if (link && look_behind(walk, &info, err) < 0)
        return -1;
    if (is_kept_by_node(walk, name, &info))
        return 0;
    if (S_ISREG(info.st_mode)) {
        struct sl_entry entry = {sl_buf_string(&walk->name), (uint64_t)info.st_size, ""};
        walk->found++;
        return walk->each(&entry, walk->arg, err);
    }
    if (S_ISDIR(info.st_mode) && !link) {
        if (sl_buf_text(&walk->name, "/", err) < 0)
            return -1;
        int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? fail_open(err, errno, sl_buf_string(&walk->name))
                      : walk_directory(walk, fd, depth + 1, err);
    }
    sl_log(SL_LOG_WARN, "left out '%s%s': neither a file nor a directory of its own",
           ((struct place *)walk->store->impl)->base, sl_buf_string(&walk->name));
    return 0;
}

static int walk_entry(struct walk *walk, int parent, const char *name, unsigned depth,
                      struct sl_err *err)
{
    size_t before = walk->name.used;
    if (sl_buf_text(&walk->name, name, err) < 0)
        return -1;
    int result = take_entry(walk, parent, name, depth, err);
    walk->name.used = before;
    walk->name.data[before] = 0;
    return result;
}

/* Takes fd. */
static int walk_directory(struct walk *walk, int fd, unsigned depth, struct sl_err *err)
{
    DIR *directory = fdopendir(fd);
    if (!directory) {
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", walk->store->uri);
        close(fd);
        return -1;
    }
    struct names names = {0};
    int result = depth > DIRECTORY_DEPTH_MAX
                     ? sl_fail(err, SL_E_FORMAT, "directories below '%s' are nested deeper than %d",
                               walk->store->uri, DIRECTORY_DEPTH_MAX)
                     : read_names(directory, &names, err);
    for (size_t i = 0; result == 0 && i < names.count; i++) {
        result = sl_cancel_check(walk->store->config.cancel, err);
        if (result == 0)
            result = walk_entry(walk, dirfd(directory), names.items[i], depth, err);
    }
    names_release(&names);
    closedir(directory);
    return result;
}

static int file_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    struct walk walk = {store, listing->each, listing->arg, SL_BUF_INIT(PATH_BYTES_MAX), 0};
    const struct place *place = store->impl;
    int fd = open_at(place, place->base, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail_at(place, err, errno, place->base);
    int result = walk_directory(&walk, fd, 0, err);
    sl_buf_release(&walk.name);
    if (result == 0 && walk.found == 0)
        return sl_fail(err, SL_E_NOT_FOUND, "no file below '%s'", store->uri);
    return result;
}

/* ---- ranges --------------------------------------------------------------------------------- */

static int file_locate(struct sl_source *source, struct sl_err *err)
{
    const struct place *place = source->store->impl;
    source->impl = sl_asprintf(err, "%s%s", place->base, source->name);
    source->uri = source->impl ? sl_strdup(source->impl, err) : NULL;
    return source->uri ? 0 : -1;
}

static void file_forget(struct sl_source *source)
{
    free(source->impl);
}

struct sl_channel {
    int fd;
    struct sl_source *source;
    uint64_t at, end;
};

static struct sl_channel *file_channel_new(struct sl_store *store, struct sl_err *err)
{
    (void)store;
    struct sl_channel *channel = sl_alloc(sizeof(*channel), err);
    if (channel)
        channel->fd = -1;
    return channel;
}

static void file_channel_abort(struct sl_channel *channel)
{
    if (channel->fd >= 0)
        close(channel->fd);
    channel->fd = -1;
}

static void file_channel_free(struct sl_channel *channel)
{
    if (channel)
        file_channel_abort(channel);
    free(channel);
}

static const char *special_kind(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory: end its name with '/'"
           : S_ISFIFO(mode) ? "a pipe, but ranges are read in any order: write it to a file first"
           : S_ISSOCK(mode) ? "a socket, not a file"
                            : "a device, not a file";
}

static int look(const struct sl_channel *channel, struct stat *info, struct sl_err *err)
{
    const char *uri = channel->source->uri;
    if (fstat(channel->fd, info) < 0)
        return sl_fail_errno(err, SL_E_NET, errno, "cannot read '%s'", uri);
    if (!S_ISREG(info->st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is %s", uri, special_kind(info->st_mode));
    return 0;
}

/* The resolution of its times: of file systems elsewhere, and of those that keep whole seconds,
 * more than a tick. */
static int64_t resolution_ms(int fd, const struct stat *info)
{
    struct statfs system;
    if (info->st_ctim.tv_nsec == 0 || fstatfs(fd, &system) < 0)
        return FAR_MS;
    switch ((uint32_t)system.f_type) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case V9FS_MAGIC:
    case FUSE_SUPER_MAGIC:
        return FAR_MS;
    default:
        return TICK_MS;
    }
}

/* ctime counts: nobody can set it back. *dated: a change from now on has another one. */
static int settle(struct sl_channel *channel, struct stat *info, bool *dated, struct sl_err *err)
{
    for (int tries = 0; tries < SETTLE_TRIES; tries++) {
        const int64_t second = (int64_t)SL_NS_PER_S, now = sl_wall_ns();
        int64_t resolution = resolution_ms(channel->fd, info);
        int64_t age = (now / second - info->st_ctim.tv_sec) * 1000 +
                      (now % second - info->st_ctim.tv_nsec) / (int64_t)SL_NS_PER_MS;
        *dated = age >= resolution;
        if (*dated || age < 0 || resolution > TICK_MS)
            return 0;
        if (sl_sleep_ms((unsigned)(resolution - age), channel->source->store->config.cancel, err) <
            0)
            return -1;
        if (look(channel, info, err) < 0)
            return -1;
    }
    return 0;
}

/* Learn the version from the first range, or hold the file to it. */
static int check_version(struct sl_channel *channel, bool first, struct sl_err *err)
{
    struct sl_source *source = channel->source;
    struct stat info;
    struct sl_version now = {.etag = ""};
    if (look(channel, &info, err) < 0 || (first && settle(channel, &info, &now.dated, err) < 0))
        return -1;
    snprintf(now.last_modified, sizeof(now.last_modified),
             "%" PRId64 ".%09ld ctime %" PRId64 ".%09ld inode %" PRIu64,
             (int64_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec, (int64_t)info.st_ctim.tv_sec,
             info.st_ctim.tv_nsec, (uint64_t)info.st_ino);
    if (first) {
        source->version = now;
        source->bytes = (uint64_t)info.st_size;
    } else if (strcmp(now.last_modified, source->version.last_modified) != 0 ||
               (uint64_t)info.st_size != source->bytes) {
        return sl_fail_code(err, SL_E_INTEGRITY, "changed", "'%s' changed while it was read",
                            source->uri);
    }
    return 0;
}

static int open_channel(struct sl_channel *channel, struct sl_err *err)
{
    const struct place *place = channel->source->store->impl;
    file_channel_abort(channel);
    channel->fd = open_at(place, channel->source->impl, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    return channel->fd < 0 ? fail_at(place, err, errno, channel->source->impl) : 0;
}

static int file_channel_start(struct sl_channel *channel, struct sl_source *source,
                              const struct sl_try *try, struct sl_err *err)
{
    channel->source = source;
    if (open_channel(channel, err) < 0)
        return -1;
    if ((try->first && sl_file_edit_check(channel->fd, err) < 0) ||
        check_version(channel, try->first, err) < 0) {
        file_channel_abort(channel);
        return -1;
    }
    channel->at = try->begin;
    channel->end = SL_MIN(try->end, source->bytes);
    return 0;
}

static enum sl_io_state file_channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                          size_t *got, struct sl_err *err)
{
    ssize_t came = 0;
    if (channel->at < channel->end)
        came =
            pread(channel->fd, data, SL_MIN(bytes, channel->end - channel->at), (off_t)channel->at);
    if (came > 0) {
        channel->at += (uint64_t)came;
        *got = (size_t)came;
        return SL_IO_DATA;
    }
    if (came < 0 && errno == EINTR)
        return SL_IO_WAIT;

    int result = 0;
    if (came < 0)
        result = sl_fail_errno(err, SL_E_NET, errno, "cannot read '%s'", channel->source->uri);
    else if (check_version(channel, false, err) < 0)
        result = -1;
    else if (channel->at < channel->end)
        result = sl_fail_code(err, SL_E_INTEGRITY, "changed",
                              "'%s' became shorter while it was read", channel->source->uri);
    file_channel_abort(channel);
    return result < 0 ? SL_IO_FAILED : SL_IO_END;
}

/* pread() waits for nothing but the disk, so there is nothing to poll. */
static int file_channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                             uint64_t *deadline_ns)
{
    (void)channel, (void)fds;
    *deadline_ns = 0;
    return 0;
}

static const struct sl_transport transport = {
    .channel_new = file_channel_new,
    .channel_free = file_channel_free,
    .channel_start = file_channel_start,
    .channel_read = file_channel_read,
    .channel_poll = file_channel_poll,
    .channel_abort = file_channel_abort,
};

const struct sl_store_kind sl_file_store = {
    .name = "file",
    .schemes = {"file"},
    .bare = true,
    .example = "/models/m.safetensors, file:///models/",
    .help = "local files and directories",
    .traits = {.local = true, .listing = true, .folders = true},
    .open = file_open,
    .close = file_close,
    .locate = file_locate,
    .transport = &transport,
    .list = file_list,
    .forget = file_forget,
    .upload = &sl_upload_file_ops,
};
