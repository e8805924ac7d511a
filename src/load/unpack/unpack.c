/*
 * Every file is made new, by a path whose components are opened one after another without following
 * links, so the only way out of the directory would be a link that we made ourselves. Those come
 * last, and only if their target stays inside whatever else is a link: ".." may only lead the
 * target, where it climbs real folders; behind a name it could climb out of what another link
 * points to.
 *
 * A few packed bytes can stand for any number of unpacked ones. What may come is bounded by the
 * archive's size, and room is asked for before it is filled.
 */
#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "packed_stream.h"
#include "publish.h"
#include "tar.h"
#include "tree.h"

enum { ROOM_STEP_BYTES = 16 * 1024 * 1024, SHOWN_BYTES_MAX = 200 };

struct link {
    char *name, *target;
};
struct sl_unpack {
    int directory_fd, old_fd; /* old_fd: -1, or see sl_unpack_over() */
    const char *path;
    uint64_t packed_bytes, limit_bytes;
    struct sl_cancel *cancel;
    bool full, eats, hollow, dates;
    uint64_t eaten;                          /* of the archive */
    uint64_t entries, files, bytes, unasked; /* unasked: announced since room was asked for */
    struct link *links;
    size_t link_count, link_capacity;
    /* the file in hand */
    int fd;
    uint64_t missing;
    int64_t seconds; /* when it was changed; 0: now */
    char name[SL_UNPACK_NAME_BYTES_MAX + 1];
};

struct sl_unpack *sl_unpack_new(int directory_fd, const char *path, uint64_t packed_bytes,
                                struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_unpack *unpack = sl_alloc(sizeof(*unpack), err);
    if (!unpack)
        return NULL;
    *unpack = (struct sl_unpack){.directory_fd = directory_fd,
                                 .old_fd = -1,
                                 .path = path,
                                 .packed_bytes = packed_bytes,
                                 .limit_bytes = sl_packed_limit(packed_bytes),
                                 .cancel = cancel,
                                 .fd = -1};
    return unpack;
}

void sl_unpack_free(struct sl_unpack *unpack)
{
    if (!unpack)
        return;
    sl_autoclose_(&unpack->fd);
    for (size_t i = 0; i < unpack->link_count; i++) {
        free(unpack->links[i].name);
        free(unpack->links[i].target);
    }
    free(unpack->links);
    free(unpack);
}

void sl_unpack_over(struct sl_unpack *unpack, int old_fd)
{
    unpack->old_fd = old_fd;
}

void sl_unpack_hollow(struct sl_unpack *unpack)
{
    unpack->hollow = true;
}

void sl_unpack_eat(struct sl_unpack *unpack)
{
    unpack->eats = true;
}

void sl_unpack_keep_times(struct sl_unpack *unpack)
{
    unpack->dates = true;
}

void sl_unpack_date(struct sl_unpack *unpack, int64_t seconds)
{
    unpack->seconds = seconds;
}

/* A file system that cannot do it leaves the bytes where they are. */
void sl_unpack_eaten(struct sl_unpack *unpack, int fd, uint64_t begin, uint64_t end)
{
    if (unpack->eats && end > begin &&
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin,
                  (off_t)(end - begin)) == 0)
        unpack->eaten += end - begin;
}

bool sl_unpack_is_full(const struct sl_unpack *unpack)
{
    return unpack->full;
}

uint64_t sl_unpack_limit(const struct sl_unpack *unpack)
{
    return unpack->limit_bytes;
}

uint64_t sl_unpack_files(const struct sl_unpack *unpack)
{
    return unpack->files;
}

uint64_t sl_unpack_bytes(const struct sl_unpack *unpack)
{
    return unpack->bytes;
}

/* ---- names ---------------------------------------------------------------------------------- */

static int bad_name(struct sl_err *err, const char *name, size_t bytes, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.name",
                        "the archive's entry '%.*s' %s: nothing of it was taken",
                        (int)SL_MIN(bytes, (size_t)SHOWN_BYTES_MAX), name, why);
}

/* Into clean: what the name means below the directory, "" for the directory itself. */
static int clean_name(const char *name, size_t bytes, char clean[SL_UNPACK_NAME_BYTES_MAX + 1],
                      struct sl_err *err)
{
    const char *fault = sl_tar_clean_name(name, bytes, clean, SL_UNPACK_NAME_BYTES_MAX + 1);
    if (fault)
        return bad_name(err, name, bytes, fault);
    struct sl_err why = SL_ERR_INIT;
    if (*clean && sl_name_check(clean, strlen(clean), &why) < 0)
        return bad_name(err, name, bytes, "has a name that cannot be a file here");
    return 0;
}

static int count_entry(struct sl_unpack *unpack, struct sl_err *err)
{
    if (++unpack->entries > SL_UNPACK_ENTRIES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "archive.limit",
                            "the archive has more than %d entries: store the files by themselves",
                            SL_UNPACK_ENTRIES_MAX);
    return sl_cancel_check(unpack->cancel, err);
}

/* The name, judged, not empty. */
static int take_name(struct sl_unpack *unpack, const char *name, size_t bytes,
                     char clean[SL_UNPACK_NAME_BYTES_MAX + 1], struct sl_err *err)
{
    if (count_entry(unpack, err) < 0 || clean_name(name, bytes, clean, err) < 0)
        return -1;
    return *clean ? 0 : bad_name(err, name, bytes, "has no name");
}

/* ---- folders and files ---------------------------------------------------------------------- */

/* number: an errno. Lack of room is noted, since another way may need less. */
static int fail(struct sl_unpack *unpack, int number, const char *doing, const char *name,
                struct sl_err *err)
{
    unpack->full |= number == ENOSPC || number == EDQUOT;
    return sl_tree_fail(err, number, doing, name);
}

int sl_unpack_folder(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                     struct sl_err *err)
{
    char clean[SL_UNPACK_NAME_BYTES_MAX + 3];
    const char *leaf;
    if (count_entry(unpack, err) < 0 || clean_name(name, name_bytes, clean, err) < 0)
        return -1;
    if (!*clean)
        return 0;
    memcpy(clean + strlen(clean), "/x", 3); /* the folder is what would hold x */
    sl_autoclose int fd = sl_tree_parent(unpack->directory_fd, clean, true, &leaf);
    return fd < 0 ? fail(unpack, errno, "make the folder of", clean, err) : 0;
}

/* Will it fit, and may it be that much? */
static int admit(struct sl_unpack *unpack, uint64_t bytes, struct sl_err *err)
{
    if (bytes > unpack->limit_bytes || unpack->bytes > unpack->limit_bytes - bytes)
        return sl_fail_code(err, SL_E_FORMAT, "archive.ratio",
                            "the archive of %" PRIu64 " bytes unpacks to more than %d times its "
                            "size: store the files by themselves",
                            unpack->packed_bytes, SL_PACKED_RATIO_MAX);
    unpack->bytes += bytes;
    unpack->unasked += bytes;
    if (unpack->unasked < ROOM_STEP_BYTES || unpack->hollow)
        return 0;
    unpack->unasked = 0;
    uint64_t coming = unpack->eats ? unpack->packed_bytes - unpack->eaten : 0; /* free by then */
    if (sl_room_check(unpack->path, SL_MAX(bytes, (uint64_t)ROOM_STEP_BYTES), coming, NULL, err) ==
        0)
        return 0;
    unpack->full = true;
    return sl_wrap(err, "cannot unpack '%s'", unpack->name);
}

static int make_file(struct sl_unpack *unpack, bool executable, struct sl_err *err)
{
    const char *leaf;
    sl_autoclose int parent = sl_tree_parent(unpack->directory_fd, unpack->name, true, &leaf);
    if (parent < 0)
        return fail(unpack, errno, "make the folder of", unpack->name, err);
    enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
    mode_t mode = executable ? 0755 : 0644;
    unpack->fd = openat(parent, leaf, FLAGS, mode);
    if (unpack->fd < 0 && errno == EEXIST && unlinkat(parent, leaf, 0) == 0)
        unpack->fd = openat(parent, leaf, FLAGS, mode);
    if (unpack->fd < 0 || fchmod(unpack->fd, mode) < 0) /* whatever the umask is */
        return fail(unpack, errno, "make", unpack->name, err);
    return 0;
}

int sl_unpack_begin(struct sl_unpack *unpack, const char *name, size_t name_bytes, uint64_t bytes,
                    bool executable, struct sl_err *err)
{
    if (take_name(unpack, name, name_bytes, unpack->name, err) < 0)
        return -1;
    if (unpack->old_fd >= 0)
        (void)sl_tree_unlink(unpack->old_fd, unpack->name);
    if (admit(unpack, bytes, err) < 0 || make_file(unpack, executable, err) < 0)
        return -1;
    unpack->missing = bytes;
    unpack->seconds = 0;
    unpack->files++;
    return 0;
}

int sl_unpack_write(struct sl_unpack *unpack, const void *data, size_t bytes, struct sl_err *err)
{
    if (bytes > unpack->missing)
        return sl_fail_code(err, SL_E_FORMAT, "archive.bounds",
                            "the archive's entry '%s' holds more bytes than it says", unpack->name);
    if (sl_cancel_check(unpack->cancel, err) < 0)
        return -1;
    unpack->missing -= bytes;
    for (const char *p = data; bytes && !unpack->hollow;) {
        ssize_t wrote = write(unpack->fd, p, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return fail(unpack, wrote < 0 ? errno : ENOSPC, "unpack", unpack->name, err);
        p += wrote;
        bytes -= (size_t)wrote;
    }
    return 0;
}

int sl_unpack_end(struct sl_unpack *unpack, struct sl_err *err)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = unpack->seconds}};
    if (unpack->dates && unpack->seconds)
        (void)futimens(unpack->fd, times);
    sl_autoclose_(&unpack->fd);
    unpack->fd = -1;
    if (unpack->missing)
        return sl_fail_code(err, SL_E_FORMAT, "archive.truncated",
                            "the archive's entry '%s' lacks its last %" PRIu64
                            " bytes: store it again",
                            unpack->name, unpack->missing);
    return 0;
}

/* ---- links ---------------------------------------------------------------------------------- */

static int bad_link(struct sl_err *err, const char *name, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.link", "the archive's link '%.200s' %s", name,
                        why);
}

int sl_unpack_hard_link(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                        const char *target, size_t target_bytes, struct sl_err *err)
{
    char from[SL_UNPACK_NAME_BYTES_MAX + 1], clean[SL_UNPACK_NAME_BYTES_MAX + 1];
    const char *from_leaf, *leaf;
    struct stat status;
    if (take_name(unpack, name, name_bytes, clean, err) < 0 ||
        clean_name(target, target_bytes, from, err) < 0)
        return -1;
    if (strcmp(clean, from) == 0)
        return 0;
    sl_autoclose int from_fd =
        *from ? sl_tree_parent(unpack->directory_fd, from, false, &from_leaf) : -1;
    if (from_fd < 0 || fstatat(from_fd, from_leaf, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(status.st_mode))
        return bad_link(err, clean, "is another name of a file that did not come before it");
    sl_autoclose int parent = sl_tree_parent(unpack->directory_fd, clean, true, &leaf);
    if (parent < 0)
        return fail(unpack, errno, "make the folder of", clean, err);
    if (linkat(from_fd, from_leaf, parent, leaf, 0) == 0)
        return 0;
    if (errno == EEXIST && unlinkat(parent, leaf, 0) == 0 &&
        linkat(from_fd, from_leaf, parent, leaf, 0) == 0)
        return 0;
    return fail(unpack, errno, "link", clean, err);
}

/* Relative, printable, ".." only at its beginning and as often as there are folders above. */
const char *sl_unpack_target_fault(const char *name, const char *target, size_t bytes)
{
    size_t above = 0;
    bool named = false;
    for (const char *p = name; *p; p++)
        above += *p == '/';
    if (bytes == 0 || bytes > SL_UNPACK_NAME_BYTES_MAX || *target == '/')
        return "has an empty, an absolute or a very long target";
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)target[i] < 0x20 || target[i] == 0x7f)
            return "has a control character in its target";
    for (size_t begin = 0; begin < bytes;) {
        const char *slash = memchr(target + begin, '/', bytes - begin);
        size_t end = slash ? (size_t)(slash - target) : bytes, length = end - begin;
        bool climbs = length == 2 && memcmp(target + begin, "..", 2) == 0;
        bool stays = length == 0 || (length == 1 && target[begin] == '.');
        if (climbs && (named || above-- == 0))
            return "leads out of the archive";
        named |= !climbs && !stays;
        begin = end + 1;
    }
    return NULL;
}

int sl_unpack_symlink(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                      const char *target, size_t target_bytes, struct sl_err *err)
{
    char clean[SL_UNPACK_NAME_BYTES_MAX + 1];
    if (take_name(unpack, name, name_bytes, clean, err) < 0)
        return -1;
    const char *fault = sl_unpack_target_fault(clean, target, target_bytes);
    if (fault)
        return bad_link(err, clean, fault);
    if (sl_grow(&unpack->links, &unpack->link_capacity, unpack->link_count + 1,
                sizeof(*unpack->links), err) < 0)
        return -1;
    struct link *link = &unpack->links[unpack->link_count++];
    *link = (struct link){0};
    link->name = sl_strdup(clean, err);
    link->target = link->name ? sl_strndup(target, target_bytes, err) : NULL;
    return link->target ? 0 : -1;
}

int sl_unpack_finish(struct sl_unpack *unpack, struct sl_err *err)
{
    for (size_t i = 0; i < unpack->link_count; i++) {
        const struct link *link = &unpack->links[i];
        const char *leaf;
        sl_autoclose int parent = sl_tree_parent(unpack->directory_fd, link->name, true, &leaf);
        if (parent < 0 || symlinkat(link->target, parent, leaf) < 0)
            return errno == EEXIST || errno == ENOTDIR || errno == ELOOP
                       ? bad_link(err, link->name, "has the name of something else in it")
                       : fail(unpack, errno, "link", link->name, err);
    }
    if (unpack->files == 0)
        return sl_fail(err, SL_E_NOT_FOUND, "the archive holds no file");
    return 0;
}
