/*
 * Making a load visible, so that a kill at any instruction leaves either the old version (before
 * the marker) or something that the next load completes without the network (after it):
 *
 *     manifest.new        what will be, with size and time of every staged file
 *     commit              the marker: from here on only forwards
 *     ready is removed    consumers that come now wait
 *     old files removed   those that the new version lacks; first, since "a" may be a folder of
 *                         the new version
 *     renames             each file is wholly old or wholly new; one that is not in staging any
 *                         more has been renamed
 *     manifest.json       manifest.new, renamed
 *     ready               after every file was seen at its place with the size and time it had in
 *                         staging
 *     commit, staging, journal removed
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "hash.h"
#include "log.h"
#include "lower_bound.h"
#include "owners.h"
#include "publish_parts.h"

enum { READ_BUFFER_BYTES = 256 * 1024, FOLDER_DEPTH_MAX = 600 };

/* ---- from the marker on --------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int remove_old(struct sl_publish *publish, const struct sl_published *new,
                      struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published old = {0};
    if (!sl_published_old(publish, &old))
        return 0;
    sl_autofree const char **names = sl_alloc_array(new->count, sizeof(*names), err);
    if (!names)
        return -1;
    for (size_t i = 0; i < new->count; i++)
        names[i] = new->files[i].name;
    qsort(names, new->count, sizeof(*names), compare_names);
    for (size_t i = 0; i < old.count; i++) {
        const char *name = old.files[i].name;
        if (bsearch(&name, names, new->count, sizeof(name), compare_names))
            continue;
        if (sl_tree_unlink(publish->root_fd, name) < 0)
            return sl_tree_fail(err, errno, "remove", name);
    }
    return 0;
}

static int place_file(struct sl_tree_walk *staging, struct sl_tree_walk *root, const char *name,
                      struct sl_err *err)
{
    const char *leaf, *target;
    int from = sl_tree_enter(staging, name, &leaf);
    if (from < 0 && errno != ENOENT)
        return sl_tree_fail(err, errno, "open the folder of", name);
    struct stat status;
    if (from < 0 || fstatat(from, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* renamed before the kill; is_placed() looks */
    int to = sl_tree_enter(root, name, &target);
    if (to < 0 || renameat(from, leaf, to, target) < 0)
        return sl_tree_fail(err, errno, "put into place", name);
    return 0;
}

static int place_all(struct sl_publish *publish, const struct sl_published *new, struct sl_err *err)
{
    int staging_fd = sl_publish_staging(publish, err);
    if (staging_fd < 0)
        return -1;
    SL_AUTO_WALK staging = {.root_fd = staging_fd, .fd = -1};
    SL_AUTO_WALK root = {.root_fd = publish->root_fd, .make = true, .fd = -1};
    for (size_t i = 0; i < new->count; i++) {
        if (place_file(&staging, &root, new->files[i].name, err) < 0)
            return -1;
    }
    return 0;
}

static int check_placed(struct sl_tree_walk *root, const struct sl_published_file *file,
                        struct sl_err *err)
{
    const char *leaf;
    int fd = sl_tree_enter(root, file->name, &leaf);
    struct stat status;
    if (fd < 0 || fstatat(fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_fail_errno(err, sl_tree_is_gone(errno) ? SL_E_INTEGRITY : SL_E_NO_SPACE, errno,
                             "'%s' vanished while it was published", file->name);
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size != file->bytes ||
        sl_publish_mtime_ns(&status) != file->mtime_ns)
        return sl_fail(err, SL_E_INTEGRITY,
                       "'%s' was changed by another process while it was published", file->name);
    return 0;
}

/* They are all there, as they were; then their folders are made read-only. */
static int seal_all(struct sl_publish *publish, const struct sl_published *new, struct sl_err *err)
{
    SL_AUTO_WALK root = {.root_fd = publish->root_fd, .fd = -1};
    for (size_t i = 0; i < new->count; i++)
        if (check_placed(&root, &new->files[i], err) < 0)
            return -1;
    for (size_t i = 0; i < new->count; i++)
        if (!i || !sl_tree_siblings(new->files[i - 1].name, new->files[i].name))
            sl_tree_seal(publish->root_fd, new->files[i].name);
    return 0;
}

static const char *published_name(const void *arg, size_t i)
{
    return ((const struct sl_published *)arg)->files[i].name;
}

/* What ready says; beside one of our own, with the names, too. */
static int write_marker(struct sl_publish *publish, const struct sl_published *new,
                        const char *stamp, bool beside, struct sl_err *err)
{
    char boot[SL_BOOT_BYTES], time_text[SL_TIME_TEXT];
    uint64_t bytes = 0;
    struct sl_json json;
    sl_boot_id(boot);
    sl_json_init(&json, beside ? SL_MANIFEST_BYTES_MAX : 4096);
    sl_json_object(&json);
    sl_json_key_string(&json, "identity", new->identity);
    sl_json_key_string(&json, "stamp", stamp);
    sl_json_key_string(&json, "boot", boot);
    sl_json_key_string(&json, "time", sl_json_time(time_text));
    if (beside) {
        sl_json_key(&json, "files");
        sl_json_array(&json);
        for (size_t i = 0; i < new->count; bytes += new->files[i++].bytes)
            sl_json_string_n(&json, new->files[i].name, strlen(new->files[i].name));
        sl_json_end(&json);
        sl_json_key_uint(&json, "bytes", bytes);
    }
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    int done = !text ? -1
               : beside
                   ? sl_tree_write_own(publish->beside_fd, publish->beside, text, strlen(text), err)
                   : sl_tree_write(publish->state_fd, SL_READY, text, strlen(text), err);
    sl_json_release(&json);
    return done;
}

void sl_commit_write_beside(struct sl_publish *publish, const struct sl_published *published)
{
    char stamp[65];
    struct sl_err why = SL_ERR_INIT;
    if (sl_published_stamp(publish->root_fd, published_name, published, published->count, stamp,
                           &why) < 0 ||
        write_marker(publish, published, stamp, true, &why) < 0)
        sl_log(SL_LOG_DEBUG, "%s", why.message);
}

int sl_commit_write_ready(struct sl_publish *publish, const struct sl_published *new,
                          struct sl_err *err)
{
    char stamp[65];
    if (sl_published_stamp(publish->root_fd, published_name, new, new->count, stamp, err) < 0)
        return sl_wrap(err, "cannot publish into '%s'", publish->path);
    if (publish->beside_fd >= 0 && write_marker(publish, new, stamp, true, err) < 0)
        return -1;
    return write_marker(publish, new, stamp, false, err);
}

static int carry_out(struct sl_publish *publish, const struct sl_published *new,
                     bool manifest_is_new, struct sl_err *err)
{
    if (sl_tree_remove(publish->state_fd, SL_READY) < 0)
        return sl_tree_fail(err, errno, "remove " SL_READY " in", publish->path);
    if (manifest_is_new && (remove_old(publish, new, err) < 0 || place_all(publish, new, err) < 0))
        return -1;
    if (seal_all(publish, new, err) < 0)
        return -1;
    if (manifest_is_new &&
        renameat(publish->state_fd, SL_MANIFEST_NEW, publish->state_fd, SL_MANIFEST) < 0)
        return sl_tree_fail(err, errno, "write", SL_MANIFEST);
    if (sl_commit_write_ready(publish, new, err) < 0)
        return -1;
    if (sl_tree_remove(publish->state_fd, SL_COMMIT) < 0)
        return sl_tree_fail(err, errno, "remove the commit marker in", publish->path);
    return sl_publish_discard(publish, false, err);
}

/* What a marker promised can not be kept (files vanished or were changed): nothing is published,
 * and the next load starts over. */
static int give_up(struct sl_publish *publish, const struct sl_err *why, struct sl_err *err)
{
    sl_log(SL_LOG_WARN,
           "an interrupted publish in '%s' cannot be completed and is loaded again: %s",
           publish->path, why->message);
    if (sl_tree_remove(publish->state_fd, SL_READY) < 0 ||
        sl_tree_remove(publish->state_fd, SL_COMMIT) < 0)
        return sl_tree_fail(err, errno, "remove the commit marker in", publish->path);
    return sl_publish_discard(publish, false, err);
}

/* What another boot of the machine began to publish on a disk may never have reached it. */
static int check_outlived(struct sl_publish *publish, const struct sl_published *new,
                          struct sl_err *err)
{
    if (!sl_boot_is_past(publish->root_fd, new->document))
        return 0;
    int staging_fd = sl_publish_staging(publish, err);
    if (staging_fd < 0)
        return -1;
    return sl_published_check(publish->root_fd, staging_fd, new, publish->cancel, err);
}

int sl_commit_finish(struct sl_publish *publish, struct sl_err *err)
{
    struct stat status;
    if (fstatat(publish->state_fd, SL_COMMIT, &status, AT_SYMLINK_NOFOLLOW) < 0) {
        unlinkat(publish->state_fd, SL_MANIFEST_NEW, 0);
        return 0;
    }
    __attribute__((cleanup(sl_published_release))) struct sl_published new = {0};
    struct sl_err why = SL_ERR_INIT;
    bool manifest_is_new = true;
    int done = sl_published_read(publish->state_fd, SL_MANIFEST_NEW, &new, &why);
    if (done < 0 && why.kind == SL_E_NOT_FOUND) {
        manifest_is_new = false;
        why = (struct sl_err)SL_ERR_INIT;
        done = sl_published_read(publish->state_fd, SL_MANIFEST, &new, &why);
    }
    if (done == 0)
        done = check_outlived(publish, &new, &why);
    if (done == 0)
        done = carry_out(publish, &new, manifest_is_new, &why);
    if (done == 0)
        return 0;
    if (why.kind == SL_E_NO_SPACE || why.kind == SL_E_CANCELED) {
        *err = why;
        return -1;
    }
    return give_up(publish, &why, err);
}

/* ---- up to the marker ----------------------------------------------------------------------- */

static int hash_file(int fd, uint64_t bytes, uint32_t *crc, struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, READ_BUFFER_BYTES, err);
    if (!buffer)
        return -1;
    *crc = 0;
    for (uint64_t at = 0; at < bytes;) {
        ssize_t got = pread(fd, buffer, READ_BUFFER_BYTES, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return sl_fail(err, SL_E_INTEGRITY, "a staged file is shorter than it should be");
        *crc = sl_crc32c(*crc, buffer, (size_t)got);
        at += (uint64_t)got;
    }
    return 0;
}

static int describe(struct sl_tree_walk *staging, const struct sl_plan_file *from,
                    const uint32_t *crc, struct sl_published_file *file, struct sl_err *err)
{
    const char *leaf;
    struct stat status;
    int folder = sl_tree_enter(staging, from->name, &leaf);
    if (folder < 0 || fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_tree_fail(err, errno, "look at the staged file", from->name);
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size != from->bytes)
        return sl_fail(err, SL_E_INTEGRITY, "the staged file '%s' was changed by another process",
                       from->name);
    *file = (struct sl_published_file){
        .name = from->name, .bytes = from->bytes, .mtime_ns = sl_publish_mtime_ns(&status)};
    if (crc) {
        file->crc32c = *crc;
        return 0;
    }
    sl_autoclose int fd = openat(folder, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_tree_fail(err, errno, "open the staged file", from->name);
    return hash_file(fd, from->bytes, &file->crc32c, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sl_published_file *)a)->name,
                  ((const struct sl_published_file *)b)->name);
}

/* Of the old version, whose files are sorted: the first that is not before these bytes. */
static const char *find_old(const struct sl_published *old, const char *name, size_t bytes)
{
    size_t at = SL_LOWER_BOUND(i, old->count, strncmp(old->files[i].name, name, bytes) < 0);
    return at < old->count ? old->files[at].name : "";
}

static bool is_old_file(const struct sl_published *old, const char *name, size_t bytes)
{
    const char *found = find_old(old, name, bytes);
    return strncmp(found, name, bytes) == 0 && !found[bytes];
}

/* Will this folder be gone when the old version's files are? True if nothing else is in it. Takes
 * fd. */
static bool folder_goes(int fd, const char *name, const struct sl_published *old, unsigned depth)
{
    char below[SL_PUBLISH_PATH_MAX];
    DIR *folder = fd < 0 || depth > FOLDER_DEPTH_MAX ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool goes = true, empty = true;
    for (struct dirent *entry; goes && (entry = sl_next_entry(folder));) {
        empty = goes = false;
        if (snprintf(below, sizeof(below), "%s/%s", name, entry->d_name) >= (int)sizeof(below))
            break;
        goes = is_old_file(old, below, strlen(below)) ||
               folder_goes(openat(dirfd(folder), entry->d_name,
                                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                           below, old, depth + 1);
    }
    goes = goes && !errno;
    closedir(folder);
    return goes && !empty;
}

/* The parent of `name` cannot be entered: fine if a file of the old version is in the way. */
static bool parent_goes(const char *name, const struct sl_published *old)
{
    for (const char *slash = name; (slash = strchr(slash, '/')); slash++)
        if (is_old_file(old, name, (size_t)(slash - name)))
            return true;
    return false;
}

/* A folder of somebody else, who could exchange what is put into it; not one that an earlier load
 * gave away with the files in it. */
static int refuse_foreign(struct sl_publish *publish, const char *name,
                          const struct sl_published *old, struct sl_err *err)
{
    uint32_t owner;
    size_t bytes = sl_owners_foreign_folder(publish->root_fd, name, &owner);
    if (!bytes || strncmp(find_old(old, name, bytes + 1), name, bytes + 1) == 0) /* and its slash */
        return 0;
    return sl_owners_fail_folder(err, name, bytes, owner);
}

static int look_at(struct sl_tree_walk *root, const char *name, const struct sl_published *old,
                   struct sl_err *err)
{
    const char *leaf;
    struct stat status;
    int fd = sl_tree_enter(root, name, &leaf), number = errno;
    if (fd < 0 && number != ENOENT && !(number == ENOTDIR && parent_goes(name, old)))
        return sl_tree_fail(err, number, "put into place", name);
    if (fd < 0 || fstatat(fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(status.st_mode) ||
        folder_goes(openat(fd, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), name, old,
                    0))
        return 0;
    return sl_tree_fail(err, EISDIR, "put into place", name);
}

/* What is in the way would stop the commit halfway, with the old version half gone: refused before
 * the first byte, and once more before the marker. */
int sl_publish_look_ahead(struct sl_publish *publish, const struct sl_plan *plan,
                          struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published old = {0};
    struct sl_err unreadable = SL_ERR_INIT; /* then nothing is known to be ours */
    sl_published_read(publish->state_fd, SL_MANIFEST, &old, &unreadable);
    if (old.count)
        qsort(old.files, old.count, sizeof(*old.files), by_name);
    SL_AUTO_WALK root = {.root_fd = publish->root_fd, .fd = -1};
    for (size_t i = 0; i < plan->file_count; i++) {
        const char *name = plan->files[i].name;
        bool same = i && sl_tree_siblings(plan->files[i - 1].name, name);
        if ((!same && refuse_foreign(publish, name, &old, err) < 0) ||
            look_at(&root, name, &old, err) < 0)
            return -1;
    }
    return 0;
}

static int write_new(struct sl_publish *publish, const struct sl_plan *plan,
                     const struct sl_spec *spec, const struct sl_published *new, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SL_MANIFEST_BYTES_MAX);
    int done = sl_manifest_write(&json, plan, spec, new, err);
    if (done == 0)
        done = sl_tree_write(publish->state_fd, SL_MANIFEST_NEW, sl_buf_string(&json.buf),
                             json.buf.used, err);
    sl_json_release(&json);
    return done;
}

int sl_publish_commit(struct sl_publish *publish, const struct sl_plan *plan,
                      const struct sl_spec *spec, const uint32_t *crcs, const bool *known,
                      struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published new = {0};
    int staging_fd = sl_publish_staging(publish, err);
    if (staging_fd < 0)
        return -1;
    new.files = sl_alloc_array(plan->file_count, sizeof(*new.files), err);
    if (!new.files)
        return -1;
    sl_hex(plan->identity, 32, new.identity_text);
    new.identity = new.identity_text;
    SL_AUTO_WALK staging = {.root_fd = staging_fd, .fd = -1};
    for (; new.count < plan->file_count; new.count++) {
        bool have = crcs && known && known[new.count];
        if (describe(&staging, &plan->files[new.count], have ? &crcs[new.count] : NULL,
                     &new.files[new.count], err) < 0)
            return -1;
    }
    if (sl_publish_look_ahead(publish, plan, err) < 0)
        return -1;
    if (write_new(publish, plan, spec, &new, err) < 0)
        return -1;
    if (sl_tree_write(publish->state_fd, SL_COMMIT, new.identity, strlen(new.identity), err) < 0)
        return -1;
    return carry_out(publish, &new, true, err);
}
