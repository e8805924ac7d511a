/*
 * What a version takes over from another one that is published: files of equal identities
 * (plan/identity.c), which were made of the same bytes by the same steps, and agreed with the same
 * checks when they came.
 *
 * That the old files still hold these bytes is told by what tells it of a version that is loaded
 * once more (survey.c): size, time and inode of each are what they were when it was published, in
 * this boot of the machine. Where that does not hold any more, a file counts that has the size and
 * the time of the manifest, and, read, its CRC32C.
 *
 * A file is linked if nobody but its owner may write it, who is the new one's, too. Both names mean
 * one file then, which costs no memory; sluice itself writes no published file where it lies, and
 * an edit makes a new file of one that has several names (file_journal.c). Else it is copied, and
 * its CRC32C is compared meanwhile: a copy is what a killed load would have left, the journal
 * vouches for it and the checks see it. Files of somebody else are fetched.
 *
 * Of a file that changed, ranges are copied of which its sidecar has the hash that the old file of
 * this name was published with, in the same place (the manifest has these). Each is compared with
 * its CRC32C meanwhile, as if it had been fetched; one that does not agree is fetched over it.
 *
 * Nothing is done to the old version. A kill leaves links in staging, and the next load makes them
 * anew; what it does not take over goes, since writing there would change the old version.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_io.h"
#include "hash.h"
#include "log.h"
#include "lower_bound.h"
#include "mapping.h"
#include "publish_parts.h"
#include "side_by_side.h"
#include "sidecar.h"
#include "thread.h"

enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC, COPY_THREADS_MAX = 8 };
#define AUTO_PUBLISHED __attribute__((cleanup(sl_published_release))) struct sl_published

struct sl_inheritance {
    const struct sl_plan *plan;
    struct sl_publish *publish, *old;
    struct sl_published published; /* of old */
    /* Of each file of the plan: the equal one that is left to take over; NULL: none. */
    const struct sl_published_file **equal;
    const struct sl_sink_file *files; /* of the plan; NULL: none is linked yet */
    uint32_t owner, group;            /* of the plan's files; group UINT32_MAX: any */
    bool untouched;                   /* all of old is as it was published */
    bool warned;
    uint8_t *buffer; /* SL_HASH_BUFFER_BYTES */
};

/* ---- which files are equal ------------------------------------------------------------------ */

static int by_identity(const void *a, const void *b)
{
    const struct sl_published_file *const *x = a, *const *y = b;
    return strcmp((*x)->identity, (*y)->identity);
}

/* Of each file of the plan: one of another version with the same bytes, or NULL. The one decision
 * about that; free() it. */
static const struct sl_published_file **find_equal(const struct sl_plan *plan,
                                                   const struct sl_published *published,
                                                   size_t *found, struct sl_err *err)
{
    size_t count = 0;
    const struct sl_published_file **equal =
        sl_alloc_array(plan->file_count + 1, sizeof(*equal), err);
    sl_autofree const struct sl_published_file **known =
        equal ? sl_alloc_array(published->count + 1, sizeof(*known), err) : NULL;
    *found = 0;
    for (size_t i = 0; known && i < published->count; i++)
        if (published->files[i].identity)
            known[count++] = &published->files[i];
    if (count)
        qsort(known, count, sizeof(*known), by_identity);
    for (size_t i = 0; i < plan->file_count && count; i++) {
        char identity[65];
        sl_hex(plan->files[i].identity, 32, identity);
        size_t at = SL_LOWER_BOUND(n, count, strcmp(known[n]->identity, identity) < 0);
        if (!plan->files[i].identified || at == count ||
            strcmp(known[at]->identity, identity) != 0 || known[at]->bytes != plan->files[i].bytes)
            continue;
        equal[i] = known[at];
        ++*found;
    }
    if (!known)
        free(sl_steal(&equal));
    return equal;
}

/* ---- whether the old bytes are right -------------------------------------------------------- */

static bool is_known(const struct sl_inheritance *own, uint32_t uid)
{
    return !uid || uid == geteuid() || uid == own->owner;
}

/* Why this file is not taken over; NULL: it may be. status: NULL if it cannot be looked at. */
static const char *doubt(const struct sl_inheritance *own, const struct sl_published_file *file,
                         const struct stat *status)
{
    if (!status || !S_ISREG(status->st_mode))
        return "it is not there any more";
    if (!is_known(own, status->st_uid))
        return "it belongs to another user";
    if ((uint64_t)status->st_size != file->bytes || sl_publish_mtime_ns(status) != file->mtime_ns)
        return "it was changed since it was published";
    return NULL;
}

/* As doubt(), of a file that nobody has looked at yet. */
static const char *look_at_file(const struct sl_inheritance *own, struct sl_tree_walk *old,
                                const struct sl_published_file *file, struct stat *status)
{
    const char *leaf;
    int folder = sl_tree_enter(old, file->name, &leaf);
    bool seen = folder >= 0 && fstatat(folder, leaf, status, AT_SYMLINK_NOFOLLOW) == 0;
    return doubt(own, file, seen ? status : NULL);
}

static void leave(struct sl_inheritance *own, const struct sl_published_file *file, const char *why)
{
    sl_log(own->warned ? SL_LOG_DEBUG : SL_LOG_WARN,
           "'%s' in '%s' is not taken over, but fetched again: %s", file->name, own->old->path,
           why);
    own->warned = true;
}

/* ---- links ---------------------------------------------------------------------------------- */

/* Nobody may write it but the one who may write the new one. */
static bool may_link(const struct sl_inheritance *own, const struct stat *status)
{
    return (status->st_mode & 07777) == 0444 && status->st_uid == own->owner &&
           (own->group == UINT32_MAX || status->st_gid == own->group);
}

static int set_owner(struct sl_inheritance *own, const struct sl_tmpfs_options *options,
                     struct sl_err *err)
{
    if (sl_tmpfs_owner(options, &own->owner, &own->group, err) < 0)
        return -1;
    if (own->owner == UINT32_MAX)
        own->owner = geteuid();
    return 0;
}

/* ---- ranges --------------------------------------------------------------------------------- */

/* A range of a file that changed, which an old file has, too. */
struct piece {
    uint32_t file;
    size_t range;
    const struct sl_published_file *from;
};
struct pieces {
    struct piece *items;
    size_t count, capacity;
};

static int by_name(const void *a, const void *b)
{
    const struct sl_published_file *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int add_pieces(struct pieces *pieces, uint32_t file, const struct sl_sidecar *sidecar,
                      const struct sl_published_file *from, struct sl_err *err)
{
    enum sl_hash_kind kind = sl_sidecar_hash(sidecar, true);
    const char *known = kind == SL_HASH_BLAKE2B ? from->range_blake2b : from->range_sha256;
    size_t digits = 2 * sl_hash_bytes(kind);
    bool alike = known && from->range_bytes == sidecar->range_bytes;
    size_t count = alike ? SL_MIN(strlen(known) / digits, sidecar->range_count) : 0;
    for (size_t i = 0; i < count && sl_sidecar_range_end(sidecar, i) <= from->bytes; i++) {
        char text[2 * SL_HASH_BYTES_MAX + 1];
        sl_hex(sidecar->ranges[i].blake2b, digits / 2, text);
        if (memcmp(known + i * digits, text, digits) != 0)
            continue;
        if (sl_grow(&pieces->items, &pieces->capacity, pieces->count + 1, sizeof(*pieces->items),
                    err) < 0)
            return -1;
        pieces->items[pieces->count++] = (struct piece){file, i, from};
    }
    return 0;
}

/* Of each file of the plan: the old one of its name; NULL: there is none. free() it. */
static const struct sl_published_file **find_named(const struct sl_inheritance *own,
                                                   struct sl_err *err)
{
    const struct sl_published *published = &own->published;
    const struct sl_published_file **named =
        sl_alloc_array(own->plan->file_count + 1, sizeof(*named), err);
    sl_autofree const struct sl_published_file **old =
        named ? sl_alloc_array(published->count + 1, sizeof(*old), err) : NULL;
    for (size_t i = 0; old && i < published->count; i++)
        old[i] = &published->files[i];
    if (old && published->count)
        qsort(old, published->count, sizeof(*old), by_name);
    for (size_t i = 0; old && i < own->plan->file_count; i++) {
        const char *name = own->plan->files[i].name;
        size_t at = SL_LOWER_BOUND(n, published->count, strcmp(old[n]->name, name) < 0);
        if (at < published->count && strcmp(old[at]->name, name) == 0)
            named[i] = old[at];
    }
    if (!old)
        free(sl_steal(&named));
    return named;
}

/* The one decision about ranges. Files that are taken over whole have none. */
static int find_pieces(struct sl_inheritance *own, int root_fd, struct pieces *pieces,
                       struct sl_err *err)
{
    SL_AUTO_WALK old = {.root_fd = root_fd, .fd = -1};
    sl_autofree const struct sl_published_file **named = find_named(own, err);
    for (uint32_t i = 0; named && i < own->plan->file_count; i++) {
        const struct sl_sidecar *sidecar = sl_publish_sidecar(own->plan, i);
        bool whole = own->equal[i] || (own->files && own->files[i].inherited);
        struct stat status;
        if (sidecar && named[i] && !whole && !look_at_file(own, &old, named[i], &status) &&
            add_pieces(pieces, i, sidecar, named[i], err) < 0)
            return -1;
    }
    return named ? 0 : -1;
}

/* ---- what a load would take over ------------------------------------------------------------ */

/* The manifest of a folder that may have none. */
static int read_beside(int root_fd, struct sl_published *published)
{
    sl_autoclose int state_fd = openat(root_fd, SL_STATE_DIRECTORY, FOLDER | O_NOFOLLOW);
    return state_fd < 0 ? -1 : sl_published_read(state_fd, SL_MANIFEST, published, NULL);
}

/* Those that are not there any more as they were leave own->equal. */
static void count_files(struct sl_inheritance *own, int root_fd, bool copies,
                        struct sl_inheritable *there)
{
    SL_AUTO_WALK old = {.root_fd = root_fd, .fd = -1};
    for (size_t i = 0; i < own->plan->file_count; i++) {
        struct stat status;
        if (!own->equal[i])
            continue;
        bool doubtful = look_at_file(own, &old, own->equal[i], &status) != NULL;
        bool links = !doubtful && may_link(own, &status);
        if (doubtful || (!links && !copies)) {
            own->equal[i] = NULL;
            continue;
        }
        there->bytes += own->plan->files[i].bytes;
        there->link_bytes += links ? own->plan->files[i].bytes : 0;
    }
    for (size_t i = 0; i < own->plan->extent_count; i++)
        if (own->equal[own->plan->extents[i].file])
            there->fetch_bytes += sl_extent_bytes(own->plan, &own->plan->extents[i]);
}

static int count_ranges(struct sl_inheritance *own, int root_fd, struct sl_inheritable *there,
                        struct sl_err *err)
{
    struct pieces pieces = {.items = NULL};
    int done = find_pieces(own, root_fd, &pieces, err);
    for (size_t i = 0; i < pieces.count; i++) {
        const struct piece *piece = &pieces.items[i];
        const struct sl_sidecar *sidecar = sl_publish_sidecar(own->plan, piece->file);
        uint64_t bytes =
            sl_sidecar_range_end(sidecar, piece->range) - piece->range * sidecar->range_bytes;
        there->bytes += bytes;
        there->fetch_bytes += bytes;
    }
    free(pieces.items);
    return done;
}

int sl_publish_inheritable(const char *path, const struct sl_plan *plan,
                           const struct sl_tmpfs_options *options, struct sl_inheritable *there,
                           struct sl_err *err)
{
    size_t found;
    *there = (struct sl_inheritable){0};
    sl_autoclose int root_fd = open(path, FOLDER);
    SL_AUTO(sl_inheritance) own = sl_alloc(sizeof(*own), err);
    if (!own || set_owner(own, options, err) < 0)
        return -1;
    own->plan = plan;
    if (root_fd < 0 || read_beside(root_fd, &own->published) < 0)
        return 0;                        /* then there is nothing */
    bool copies = options->replace != 1; /* else the old version goes before */
    own->equal = find_equal(plan, &own->published, &found, err);
    if (!own->equal)
        return -1;
    count_files(own, root_fd, copies, there);
    return copies ? count_ranges(own, root_fd, there, err) : 0;
}

/* ---- what two versions share ----------------------------------------------------------------- */

static int by_inode(const void *a, const void *b)
{
    const struct stat *x = a, *y = b;
    return x->st_ino < y->st_ino ? -1 : x->st_ino > y->st_ino;
}

/* Those of a manifest's files that have several names, as they lie there. */
static struct stat *linked_files(int root_fd, size_t *count)
{
    AUTO_PUBLISHED published = {0};
    *count = 0;
    if (read_beside(root_fd, &published) < 0)
        return NULL;
    struct stat *found = sl_alloc_array(published.count + 1, sizeof(*found), NULL);
    SL_AUTO_WALK walk = {.root_fd = root_fd, .fd = -1};
    for (size_t i = 0; found && i < published.count; i++) {
        const char *leaf;
        struct stat *status = &found[*count];
        int folder = sl_tree_enter(&walk, published.files[i].name, &leaf);
        *count += folder >= 0 && fstatat(folder, leaf, status, AT_SYMLINK_NOFOLLOW) == 0 &&
                  S_ISREG(status->st_mode) && status->st_nlink > 1;
    }
    return found;
}

uint64_t sl_publish_shared_bytes(int root_fd, int other_fd)
{
    size_t count, other_count;
    uint64_t bytes = 0;
    sl_autofree struct stat *files = linked_files(root_fd, &count);
    sl_autofree struct stat *others = count ? linked_files(other_fd, &other_count) : NULL;
    if (!others)
        return 0;
    qsort(others, other_count, sizeof(*others), by_inode);
    for (size_t i = 0; i < count; i++) {
        size_t at = SL_LOWER_BOUND(n, other_count, others[n].st_ino < files[i].st_ino);
        if (at < other_count && others[at].st_ino == files[i].st_ino &&
            others[at].st_dev == files[i].st_dev)
            bytes += (uint64_t)files[i].st_size;
    }
    return bytes;
}

/* ---- linking --------------------------------------------------------------------------------- */

/* *linked: what was looked at has this name in staging now, too. */
static int link_file(int folder, const char *leaf, const struct stat *status,
                     struct sl_tree_walk *staging, const char *name, bool *linked,
                     struct sl_err *err)
{
    const char *target;
    struct stat now;
    int to = sl_tree_enter(staging, name, &target);
    if (to < 0)
        return sl_tree_fail(err, errno, "make the directory of", name);
    unlinkat(to, target, 0);
    if (linkat(folder, leaf, to, target, 0) < 0)
        return 0;
    *linked = fstatat(to, target, &now, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(now.st_mode) &&
              now.st_ino == status->st_ino && now.st_size == status->st_size &&
              sl_publish_mtime_ns(&now) == sl_publish_mtime_ns(status);
    if (!*linked)
        unlinkat(to, target, 0);
    return 0;
}

/* *why: it does not match; else as it was. -1: canceled. */
static int compare(struct sl_inheritance *own, const struct sl_published_file *file,
                   const char **why, struct sl_err *err)
{
    struct sl_err problem = SL_ERR_INIT;
    bool good = false;
    if (sl_published_hash(own->old->root_fd, file, own->buffer, own->publish->cancel, &good,
                          &problem) < 0 &&
        problem.kind == SL_E_CANCELED) {
        *err = problem;
        return -1;
    }
    if (!good)
        *why = "it does not match its CRC32C any more";
    return 0;
}

/* equal[number] is NULL afterwards unless it is left to be copied. What is copied over may be what
 * an earlier try has fetched, so it is read before in any case. */
static int take(struct sl_inheritance *own, uint32_t number, struct sl_tree_walk *old,
                struct sl_tree_walk *staging, bool *linked, struct sl_err *err)
{
    const struct sl_published_file *file = own->equal[number];
    const char *leaf, *why;
    struct stat status;
    int folder = sl_tree_enter(old, file->name, &leaf);
    bool seen = folder >= 0 && fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) == 0;
    why = doubt(own, file, seen ? &status : NULL);
    bool links = !why && may_link(own, &status);
    if (!why && !(links && own->untouched) && compare(own, file, &why, err) < 0)
        return -1;
    if (why) {
        leave(own, file, why);
        own->equal[number] = NULL;
        return 0;
    }
    return links ? link_file(folder, leaf, &status, staging, own->plan->files[number].name, linked,
                             err)
                 : 0;
}

static int link_all(struct sl_inheritance *own, struct sl_journal *journal,
                    struct sl_sink_file *files, uint64_t *bytes, struct sl_err *err)
{
    int staging_fd = sl_publish_staging(own->publish, err);
    if (staging_fd < 0)
        return -1;
    SL_AUTO_WALK old = {.root_fd = own->old->root_fd, .fd = -1};
    SL_AUTO_WALK staging = {.root_fd = staging_fd, .make = true, .fd = -1};
    for (uint32_t i = 0; i < own->plan->file_count; i++) {
        const struct sl_published_file *file = own->equal[i];
        if (sl_cancel_check(own->publish->cancel, err) < 0)
            return -1;
        if (!file)
            continue;
        if (take(own, i, &old, &staging, &files[i].inherited, err) < 0)
            return -1;
        if (!files[i].inherited)
            continue;
        own->equal[i] = NULL;
        *bytes += file->bytes;
        if (sl_journal_add(journal, i, 0, file->bytes, file->crc32c, err) < 0)
            return -1;
    }
    return 0;
}

/* Of a load that was killed. */
static int drop_links(const struct sl_inheritance *own, const struct sl_sink_file *files,
                      struct sl_err *err)
{
    struct stat status;
    if (fstatat(own->publish->state_fd, SL_STAGING, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    int staging_fd = sl_publish_staging(own->publish, err);
    if (staging_fd < 0)
        return -1;
    SL_AUTO_WALK staging = {.root_fd = staging_fd, .fd = -1};
    for (size_t i = 0; i < own->plan->file_count; i++) {
        const char *leaf;
        int folder = files[i].inherited ? -1 : sl_tree_enter(&staging, files[i].name, &leaf);
        if (folder >= 0 && fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(status.st_mode) && status.st_nlink > 1 && unlinkat(folder, leaf, 0) < 0)
            return sl_tree_fail(err, errno, "remove", files[i].name);
    }
    return 0;
}

static int look_at_old(struct sl_inheritance *own, struct sl_err *err)
{
    struct sl_publish_facts facts;
    struct sl_err why = SL_ERR_INIT;
    own->buffer = sl_alloc_aligned(4096, SL_HASH_BUFFER_BYTES, err);
    if (!own->buffer)
        return -1;
    /* After another boot a survey would read all of it, whatever cancels the load. */
    bool past = sl_boot_is_past(own->old->root_fd, own->published.document);
    own->untouched = !past && sl_publish_survey(own->old, &facts, &why) == 0 &&
                     strcmp(facts.identity, own->published.identity) == 0;
    if (!own->untouched)
        sl_log(SL_LOG_INFO,
               "files in '%s' are read and compared with the manifest before they are taken over: "
               "%s since it was published",
               own->old->path, past ? "the machine was restarted" : "not all is as it was");
    return 0;
}

static int begin(struct sl_inheritance *own, struct sl_journal *journal, struct sl_sink_file *files,
                 uint64_t *linked, struct sl_err *err)
{
    size_t found = 0;
    if (own->old &&
        sl_published_read(own->old->state_fd, SL_MANIFEST, &own->published, NULL) == 0) {
        own->equal = find_equal(own->plan, &own->published, &found, err);
        if (!own->equal)
            return -1;
    }
    own->files = files;
    if (found && (look_at_old(own, err) < 0 || link_all(own, journal, files, linked, err) < 0))
        return -1;
    return drop_links(own, files, err);
}

struct sl_inheritance *sl_inherit(struct sl_publish *publish, struct sl_publish *old,
                                  const struct sl_plan *plan,
                                  const struct sl_tmpfs_options *options,
                                  struct sl_journal *journal, struct sl_sink_file *files,
                                  uint64_t *linked, struct sl_err *err)
{
    SL_AUTO(sl_inheritance) own = sl_alloc(sizeof(*own), err);
    *linked = 0;
    if (!own)
        return NULL;
    *own = (struct sl_inheritance){.plan = plan, .publish = publish, .old = old};
    if (set_owner(own, options, err) < 0)
        return NULL;
    return begin(own, journal, files, linked, err) < 0 ? NULL : sl_steal(&own);
}

void sl_inheritance_free(struct sl_inheritance *own)
{
    if (!own)
        return;
    sl_published_release(&own->published);
    free(own->equal);
    free(own->buffer);
    free(own);
}

/* ---- copies --------------------------------------------------------------------------------- */

static int put(struct sl_sink *sink, uint32_t file, uint64_t offset, const uint8_t *data,
               size_t bytes, struct sl_err *err)
{
    struct sl_place place;
    if (sl_sink_reserve(sink, file, offset, bytes, &place, err) < 0)
        return -1;
    if (place.memory) {
        memcpy(place.memory, data, bytes);
    } else if (sl_write_at(place.fd, data, bytes, offset) < 0) {
        sl_tree_fail(err, errno, "write", sink->files[file].name);
        sl_sink_abandon(sink, &place);
        return -1;
    }
    return sl_sink_commit(sink, &place, err);
}

/* *crc is that of what could be read. */
static int copy_bytes(struct sl_inheritance *own, int fd, uint32_t number, struct sl_sink *sink,
                      uint32_t *crc, struct sl_err *err)
{
    uint64_t end = own->plan->files[number].bytes;
    *crc = 0;
    for (uint64_t at = 0; at < end;) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)SL_HASH_BUFFER_BYTES);
        if (sl_cancel_check(own->publish->cancel, err) < 0)
            return -1;
        if (sl_read_at(fd, own->buffer, bytes, at) < 0)
            return 0;
        *crc = sl_crc32c(*crc, own->buffer, bytes);
        if (put(sink, number, at, own->buffer, bytes, err) < 0)
            return -1;
        at += bytes;
    }
    return 0;
}

static int copy_file(struct sl_inheritance *own, uint32_t number, struct sl_sink *sink,
                     struct sl_journal *journal, uint64_t *copied, struct sl_err *err)
{
    const struct sl_published_file *file = own->equal[number];
    const char *leaf;
    struct stat status;
    uint32_t crc;
    sl_autoclose int folder = sl_tree_parent(own->old->root_fd, file->name, false, &leaf);
    sl_autoclose int fd =
        folder < 0 ? -1 : openat(folder, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    const char *why = doubt(own, file, fd >= 0 && fstat(fd, &status) == 0 ? &status : NULL);
    if (!why && copy_bytes(own, fd, number, sink, &crc, err) < 0)
        return -1;
    if (!why && crc != file->crc32c)
        why = "it does not match its CRC32C any more";
    if (why) {
        leave(own, file, why);
        return 0;
    }
    *copied += file->bytes;
    return sl_journal_add(journal, number, 0, file->bytes, crc, err);
}

/* ---- copies of ranges ------------------------------------------------------------------------ */

struct copying {
    struct sl_inheritance *own;
    struct sl_sink *sink;
    struct sl_journal *journal;
    struct pieces pieces;
    struct sl_counter copied;
};

/* One sum proves it as it would prove what is fetched. *right: it did. What is copied wrong stays
 * until it is fetched over, since nothing vouches for it. */
static int copy_range(struct copying *copying, int fd, const struct piece *piece,
                      const struct sl_sidecar *sidecar, uint32_t *crc, bool *right,
                      struct sl_err *err)
{
    struct sl_check check = {.kind = sl_sidecar_hash(sidecar, false)};
    uint64_t end = sl_sidecar_range_end(sidecar, piece->range);
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_autodigest sum = {0};
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, SL_HASH_BUFFER_BYTES, err);
    if (!buffer || sl_digest_begin(&sum, check.kind, NULL, 0, err) < 0)
        return -1;
    *right = false;
    *crc = 0;
    for (uint64_t at = piece->range * sidecar->range_bytes; at < end;) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)SL_HASH_BUFFER_BYTES);
        if (sl_cancel_check(copying->own->publish->cancel, err) < 0)
            return -1;
        if (sl_read_at(fd, buffer, bytes, at) < 0)
            return 0;
        *crc = sl_crc32c(*crc, buffer, bytes);
        if (check.kind != SL_HASH_CRC32C)
            sl_digest_update(&sum, buffer, bytes);
        if (put(copying->sink, piece->file, at, buffer, bytes, err) < 0)
            return -1;
        at += bytes;
    }
    if (check.kind == SL_HASH_CRC32C)
        sl_crc_digest(check.kind, *crc, digest);
    else
        sl_digest_finish(&sum, digest);
    sl_sidecar_expect(&sidecar->ranges[piece->range], &check);
    *right = memcmp(digest, check.expected, sl_hash_bytes(check.kind)) == 0;
    return 0;
}

static int copy_piece(void *arg, size_t number, struct sl_err *err)
{
    struct copying *copying = arg;
    const struct piece *piece = &copying->pieces.items[number];
    const struct sl_sidecar *sidecar = sl_publish_sidecar(copying->own->plan, piece->file);
    uint64_t begin = piece->range * sidecar->range_bytes;
    uint64_t end = sl_sidecar_range_end(sidecar, piece->range);
    const char *leaf;
    struct stat status;
    uint32_t crc;
    bool right;
    sl_autoclose int folder =
        sl_tree_parent(copying->own->old->root_fd, piece->from->name, false, &leaf);
    sl_autoclose int fd =
        folder < 0 ? -1 : openat(folder, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (doubt(copying->own, piece->from, fd >= 0 && fstat(fd, &status) == 0 ? &status : NULL))
        return 0;
    if (copy_range(copying, fd, piece, sidecar, &crc, &right, err) < 0)
        return -1;
    if (!right)
        return 0;
    sl_counter_add(&copying->copied, end - begin);
    return sl_journal_add(copying->journal, piece->file, begin, end, crc, err);
}

static int copy_ranges(struct sl_inheritance *own, struct sl_sink *sink, struct sl_journal *journal,
                       uint64_t *copied, struct sl_err *err)
{
    struct copying copying = {.own = own, .sink = sink, .journal = journal};
    int done = find_pieces(own, own->old->root_fd, &copying.pieces, err);
    if (done == 0 && copying.pieces.count)
        done = sl_side_by_side(copying.pieces.count,
                               SL_MIN(sl_cpu_count(), (unsigned)COPY_THREADS_MAX), "sluice-copy",
                               copy_piece, &copying, err);
    *copied += sl_counter_get(&copying.copied);
    free(copying.pieces.items);
    return done;
}

int sl_inherit_copy(struct sl_inheritance *own, struct sl_sink *sink, struct sl_journal *journal,
                    uint64_t *copied, struct sl_err *err)
{
    *copied = 0;
    for (uint32_t i = 0; own->equal && i < own->plan->file_count; i++)
        if (own->equal[i] && copy_file(own, i, sink, journal, copied, err) < 0)
            return -1;
    return own->equal ? copy_ranges(own, sink, journal, copied, err) : 0;
}
