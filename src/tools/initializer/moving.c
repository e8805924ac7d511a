/*
 * A list of what lies in the work places, in the order of finding: folders before what is in them.
 * A final name is the end of the name in the work place, so an entry has one text for both.
 *
 * Links are judged by going their way in a tree that does not exist yet: what is listed, and below
 * it what the destination holds.
 */
#include "moving.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "lower_bound.h"
#include "own_names.h"
#include "owners.h"
#include "sink.h"
#include "tree.h"

enum {
    DEPTH_MAX = 600,
    NAME_BYTES = 1025,
    WAY_BYTES = 4096,
    LINKS_MAX = 40,
    STEPS_MAX = 2 * 1000 * 1000, /* of all links together: ten names for each entry of an archive */
    FOLDER_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
};

enum kind { FILE_ENTRY, FOLDER_ENTRY, LINK_ENTRY, LOCAL_ENTRY };
struct entry {
    enum kind kind;
    unsigned source;
    char *from;       /* the name in the work place */
    const char *name; /* the final one: the end of `from` */
    char *target;     /* of a link */
    ino_t inode;
    dev_t device;
};
struct sl_moving {
    int to_fd;
    const char *path;
    struct entry *entries;
    size_t count, capacity;
    int *sources; /* descriptors of the work places; -1: of local links */
    size_t source_count, source_capacity;
    const struct entry **sorted; /* by final name, then in the order of finding */
};

struct sl_moving *sl_moving_new(int to_fd, const char *path, struct sl_err *err)
{
    struct sl_moving *moving = sl_alloc(sizeof(*moving), err);
    if (moving)
        *moving = (struct sl_moving){.to_fd = to_fd, .path = path};
    return moving;
}

void sl_moving_free(struct sl_moving *moving)
{
    if (!moving)
        return;
    for (size_t i = 0; i < moving->count; i++) {
        free(moving->entries[i].from);
        free(moving->entries[i].target);
    }
    for (size_t i = 0; i < moving->source_count; i++)
        sl_autoclose_(&moving->sources[i]);
    free(moving->entries);
    free(moving->sources);
    free(moving->sorted);
    free(moving);
}

/* ---- the list ------------------------------------------------------------------------------- */

/* Takes fd. */
static int add_source(struct sl_moving *moving, int fd, struct sl_err *err)
{
    if (sl_grow(&moving->sources, &moving->source_capacity, moving->source_count + 1,
                sizeof(*moving->sources), err) < 0) {
        sl_autoclose_(&fd);
        return -1;
    }
    moving->sources[moving->source_count++] = fd;
    return 0;
}

/* An entry of the last source; `from` is copied. */
static struct entry *add_entry(struct sl_moving *moving, enum kind kind, const char *from,
                               size_t cut, struct sl_err *err)
{
    if (sl_grow(&moving->entries, &moving->capacity, moving->count + 1, sizeof(*moving->entries),
                err) < 0)
        return NULL;
    struct entry *entry = &moving->entries[moving->count];
    *entry = (struct entry){.kind = kind, .source = (unsigned)moving->source_count - 1};
    entry->from = sl_strdup(from, err);
    if (!entry->from)
        return NULL;
    entry->name = entry->from + cut;
    moving->count++;
    return entry;
}

/* How much of a name is cut off: KServe's own cuts the prefix and the slashes behind it. */
static size_t cut_of(const char *from, const char *strip)
{
    size_t bytes = strlen(strip);
    if (bytes == 0 || strncmp(from, strip, bytes) != 0)
        return 0;
    return bytes + strspn(from + bytes, "/");
}

/* The walk over one source. */
struct walk {
    struct sl_moving *moving;
    const char *strip;
    char from[NAME_BYTES + 256];
};

static int walk_folder(struct walk *walk, int fd, size_t used, unsigned depth, struct sl_err *err);

static char *read_target(int folder_fd, const char *leaf, const char *name, struct sl_err *err)
{
    char target[WAY_BYTES];
    ssize_t got = readlinkat(folder_fd, leaf, target, sizeof(target) - 1);
    if (got <= 0) {
        sl_tree_fail(err, got ? errno : EINVAL, "read the link", name);
        return NULL;
    }
    return sl_strndup(target, (size_t)got, err);
}

static int fail_kind(const char *name, struct sl_err *err)
{
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' is neither a file nor a folder nor a link: keep others out of the "
                   "destination and start again",
                   name);
}

/* walk->from is the name of what is `leaf` in the folder; a folder that is cut off whole is the
 * destination itself. */
static int take(struct walk *walk, int folder_fd, const char *leaf, unsigned depth,
                struct sl_err *err)
{
    struct stat status;
    size_t cut = cut_of(walk->from, walk->strip);
    const char *name = walk->from + cut;
    if (fstatat(folder_fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_tree_fail(err, errno, "look at", walk->from);
    bool folder = S_ISDIR(status.st_mode), link = S_ISLNK(status.st_mode);
    if (!folder && !link && !S_ISREG(status.st_mode))
        return fail_kind(walk->from, err);
    if (!*name && !folder)
        cut = 0, name = walk->from;
    if (*name) {
        enum kind kind = folder ? FOLDER_ENTRY : link ? LINK_ENTRY : FILE_ENTRY;
        if (sl_name_check(name, strlen(name), err) < 0)
            return cut ? sl_wrap(err, "'%.200s' without '%.200s'", walk->from, walk->strip) : -1;
        struct entry *entry = add_entry(walk->moving, kind, walk->from, cut, err);
        if (!entry)
            return -1;
        entry->inode = status.st_ino;
        entry->device = status.st_dev;
        if (link && !(entry->target = read_target(folder_fd, leaf, walk->from, err)))
            return -1;
    }
    if (!folder)
        return 0;
    int fd = openat(folder_fd, leaf, FOLDER_FLAGS);
    return fd < 0 ? sl_tree_fail(err, errno, "open", walk->from)
                  : walk_folder(walk, fd, strlen(walk->from), depth + 1, err);
}

/* Takes fd; walk->from[0, used) is its name. */
static int walk_folder(struct walk *walk, int fd, size_t used, unsigned depth, struct sl_err *err)
{
    DIR *folder = depth > DEPTH_MAX ? NULL : fdopendir(fd);
    int done = 0;
    if (!folder) {
        sl_tree_fail(err, depth > DEPTH_MAX ? ELOOP : errno, "list", walk->from);
        close(fd);
        return -1;
    }
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));) {
        const char *leaf = entry->d_name;
        size_t bytes = strlen(leaf);
        if (depth == 0 && sl_own_name(leaf, bytes))
            continue;
        if (used + 1 + bytes >= sizeof(walk->from)) {
            done = sl_tree_fail(err, ENAMETOOLONG, "move", walk->from);
            break;
        }
        snprintf(walk->from + used, sizeof(walk->from) - used, "%s%s", used ? "/" : "", leaf);
        done = take(walk, dirfd(folder), leaf, depth, err);
        walk->from[used] = 0;
    }
    if (done == 0 && errno)
        done = sl_tree_fail(err, errno, "list", walk->from);
    closedir(folder);
    return done;
}

int sl_moving_add(struct sl_moving *moving, int from_fd, const char *strip, struct sl_err *err)
{
    struct walk walk = {.moving = moving, .strip = strip};
    if (add_source(moving, from_fd, err) < 0)
        return -1;
    int fd = openat(from_fd, ".", FOLDER_FLAGS);
    if (fd < 0)
        return sl_tree_fail(err, errno, "list what is ready for", moving->path);
    return walk_folder(&walk, fd, 0, 0, err);
}

int sl_moving_add_local(struct sl_moving *moving, const char *name, struct sl_err *err)
{
    if (add_source(moving, -1, err) < 0)
        return -1;
    return add_entry(moving, LOCAL_ENTRY, name, 0, err) ? 0 : -1;
}

/* ---- names ---------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : x < y ? -1 : x > y;
}

/* Two folders become one. Of two sources' files the later one stays. */
static bool may_share(const struct entry *a, const struct entry *b)
{
    if (a->kind == FOLDER_ENTRY || b->kind == FOLDER_ENTRY)
        return a->kind == b->kind;
    if (a->kind == LOCAL_ENTRY || b->kind == LOCAL_ENTRY)
        return true; /* what is there stays */
    if (a->kind == LINK_ENTRY && b->kind == LINK_ENTRY)
        return a->source != b->source && strcmp(a->target, b->target) == 0;
    return a->source != b->source && a->kind == b->kind;
}

static int sort(struct sl_moving *moving, struct sl_err *err)
{
    free(moving->sorted);
    moving->sorted = sl_alloc_array(moving->count, sizeof(*moving->sorted), err);
    if (!moving->sorted)
        return -1;
    for (size_t i = 0; i < moving->count; i++)
        moving->sorted[i] = &moving->entries[i];
    qsort(moving->sorted, moving->count, sizeof(*moving->sorted), by_name);
    for (size_t i = 1; i < moving->count; i++) {
        const struct entry *a = moving->sorted[i - 1], *b = moving->sorted[i];
        if (strcmp(a->name, b->name) == 0 && !may_share(a, b))
            return sl_fail_code(err, SL_E_FORMAT, "E_NAME",
                                "'%.200s' and '%.200s' would both be '%.200s': end the URI with "
                                "'/', use --strict-prefix, or give each source its own directory",
                                a->from, b->from, a->name);
    }
    return 0;
}

/* The last one of this final name, which is what will be there. */
static const struct entry *find(const struct sl_moving *moving, const char *name)
{
    size_t behind = SL_LOWER_BOUND(i, moving->count, strcmp(moving->sorted[i]->name, name) <= 0);
    const struct entry *last = behind ? moving->sorted[behind - 1] : NULL;
    return last && strcmp(last->name, name) == 0 ? last : NULL;
}

/* ---- links ---------------------------------------------------------------------------------- */

/* Where a link has led so far, and what is still to go. */
struct way {
    char here[WAY_BYTES], rest[WAY_BYTES];
    unsigned links, steps; /* steps: of all links so far */
};

/* Into target: what the link that will be at `name` says; "" if there will be none. */
static void link_at(const struct sl_moving *moving, const char *name, char target[WAY_BYTES])
{
    const char *leaf;
    const struct entry *entry = find(moving, name);
    *target = 0;
    if (entry) {
        if (entry->kind == LINK_ENTRY || entry->kind == LOCAL_ENTRY)
            snprintf(target, WAY_BYTES, "%s", entry->kind == LINK_ENTRY ? entry->target : "/");
        return;
    }
    sl_autoclose int fd = sl_tree_parent(moving->to_fd, name, false, &leaf);
    ssize_t got = fd < 0 ? -1 : readlinkat(fd, leaf, target, WAY_BYTES - 1);
    target[got > 0 ? got : 0] = 0;
}

/* A text of `bytes` bytes goes before the rest. */
static bool go_first(struct way *way, const char *text)
{
    size_t bytes = strlen(text), rest = strlen(way->rest);
    if (bytes + 1 + rest >= sizeof(way->rest))
        return false;
    memmove(way->rest + bytes + 1, way->rest, rest + 1);
    memcpy(way->rest, text, bytes);
    way->rest[bytes] = '/';
    return true;
}

static void go_up(struct way *way)
{
    char *slash = strrchr(way->here, '/');
    *(slash ? slash : way->here) = 0;
}

/* One name of the way; false if it leads out. */
static bool go(const struct sl_moving *moving, struct way *way, const char *name, size_t bytes)
{
    char target[WAY_BYTES];
    size_t used = strlen(way->here);
    if (bytes == 0 || (bytes == 1 && *name == '.'))
        return true;
    if (bytes == 2 && memcmp(name, "..", 2) == 0) {
        if (used == 0)
            return false;
        go_up(way);
        return true;
    }
    if (bytes > 255 || used + 1 + bytes >= NAME_BYTES)
        return false; /* no place could be called so; nothing to lead to */
    snprintf(way->here + used, sizeof(way->here) - used, "%s%.*s", used ? "/" : "", (int)bytes,
             name);
    link_at(moving, way->here, target);
    if (!*target)
        return true;
    if (*target == '/' || ++way->links > LINKS_MAX)
        return false;
    go_up(way);
    return go_first(way, target);
}

static int bad_link(const struct sl_moving *moving, const struct entry *entry, const char *why,
                    struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.link",
                        "the link '%.200s' would lead %s '%.200s': nothing was put there",
                        entry->name, why, moving->path);
}

static int check_inside(const struct sl_moving *moving, const struct entry *entry, struct way *way,
                        const struct sl_cancel *cancel, struct sl_err *err)
{
    way->links = 1;
    if (*entry->target == '/' || strlen(entry->target) >= sizeof(way->rest))
        return bad_link(moving, entry, "out of", err);
    snprintf(way->here, sizeof(way->here), "%s", entry->name);
    go_up(way);
    snprintf(way->rest, sizeof(way->rest), "%s", entry->target);
    while (*way->rest) {
        char name[WAY_BYTES];
        size_t bytes = strcspn(way->rest, "/"), gone = bytes + (way->rest[bytes] == '/');
        memcpy(name, way->rest, bytes);
        memmove(way->rest, way->rest + gone, strlen(way->rest + gone) + 1);
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        if (++way->steps > STEPS_MAX)
            return bad_link(moving, entry, "with others through too many names below", err);
        if (!go(moving, way, name, bytes))
            return bad_link(moving, entry, "out of", err);
    }
    return 0;
}

int sl_moving_judge(struct sl_moving *moving, const struct sl_cancel *cancel, struct sl_err *err)
{
    if (sort(moving, err) < 0)
        return -1;
    sl_autofree struct way *way = sl_alloc(sizeof(*way), err);
    for (size_t i = 0; way && i < moving->count; i++)
        if (moving->entries[i].kind == LINK_ENTRY &&
            check_inside(moving, &moving->entries[i], way, cancel, err) < 0)
            return -1;
    return way ? 0 : -1;
}

/* ---- what is there -------------------------------------------------------------------------- */

static int look_at(const struct sl_moving *moving, struct sl_tree_walk *to,
                   const struct entry *entry, struct sl_err *err)
{
    const char *leaf;
    struct stat status;
    int folder = sl_tree_enter(to, entry->name, &leaf);
    if (folder < 0 && errno != ENOENT)
        return sl_tree_fail(err, errno, "put into place", entry->name);
    if (folder < 0 || fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (entry->kind != FOLDER_ENTRY)
        return S_ISDIR(status.st_mode) ? sl_tree_fail(err, EISDIR, "put into place", entry->name)
                                       : 0;
    if (!S_ISDIR(status.st_mode))
        return sl_tree_fail(err, ENOTDIR, "make the folder", entry->name);
    sl_autoclose int fd = openat(folder, leaf, FOLDER_FLAGS);
    if (fd < 0)
        return sl_tree_fail(err, errno, "open the folder", entry->name);
    return sl_owners_check_folder(fd, entry->name, err) < 0
               ? sl_wrap(err, "cannot put the model into '%s'", moving->path)
               : 0;
}

int sl_moving_look(const struct sl_moving *moving, struct sl_err *err)
{
    SL_AUTO_WALK to = {.root_fd = moving->to_fd, .fd = -1};
    for (size_t i = 0; i < moving->count; i++)
        if (moving->entries[i].kind != LOCAL_ENTRY &&
            look_at(moving, &to, &moving->entries[i], err) < 0)
            return -1;
    return 0;
}

/* ---- moving --------------------------------------------------------------------------------- */

static int make_folder(const struct sl_moving *moving, const struct entry *entry,
                       struct sl_err *err)
{
    char below[NAME_BYTES + 2];
    const char *leaf;
    snprintf(below, sizeof(below), "%s/x", entry->name); /* the folder is what would hold x */
    sl_autoclose int fd = sl_tree_parent(moving->to_fd, below, true, &leaf);
    return fd < 0 ? sl_tree_fail(err, errno, "make the folder", entry->name) : 0;
}

static int fail_changed(const struct entry *entry, struct sl_err *err)
{
    return sl_fail(err, SL_E_INTEGRITY,
                   "'%s' was changed by another process while it was put into place: keep others "
                   "out of the destination and start again",
                   entry->from);
}

/* Other users read it, its owner may remove it. Of a hard link somebody else's file would get the
 * mode, but those of an archive have theirs. */
static int set_mode(int folder_fd, const char *leaf, const struct entry *entry, struct sl_err *err)
{
    struct stat status;
    sl_autoclose int fd = openat(folder_fd, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_tree_fail(err, errno, "open", entry->from);
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_ino != entry->inode ||
        status.st_dev != entry->device)
        return fail_changed(entry, err);
    mode_t mode = status.st_mode & 0100 ? 0755 : 0644;
    if ((status.st_mode & 07777) == mode)
        return 0;
    if (status.st_nlink > 1)
        return fail_changed(entry, err);
    return fchmod(fd, mode) < 0 ? sl_tree_fail(err, errno, "set the mode of", entry->from) : 0;
}

static int move_entry(struct sl_tree_walk *from, struct sl_tree_walk *to, const struct entry *entry,
                      struct sl_err *err)
{
    const char *leaf, *new_leaf;
    struct stat status;
    int from_fd = sl_tree_enter(from, entry->from, &leaf);
    if (from_fd < 0)
        return sl_tree_fail(err, errno, "open the folder of", entry->from);
    if (fstatat(from_fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_tree_fail(err, errno, "look at", entry->from);
    if (status.st_ino != entry->inode || status.st_dev != entry->device)
        return fail_changed(entry, err);
    if (entry->kind == FILE_ENTRY && set_mode(from_fd, leaf, entry, err) < 0)
        return -1;
    int to_fd = sl_tree_enter(to, entry->name, &new_leaf);
    if (to_fd < 0 || renameat(from_fd, leaf, to_fd, new_leaf) < 0)
        return sl_tree_fail(err, errno, "put into place", entry->name);
    return 0;
}

/* Folders that nothing is in any more; the others go with the work place. */
static void remove_folders(const struct sl_moving *moving)
{
    for (size_t i = moving->count; i-- > 0;) {
        const struct entry *entry = &moving->entries[i];
        const char *leaf;
        if (entry->kind != FOLDER_ENTRY)
            continue;
        sl_autoclose int fd =
            sl_tree_parent(moving->sources[entry->source], entry->from, false, &leaf);
        if (fd >= 0)
            (void)unlinkat(fd, leaf, AT_REMOVEDIR);
    }
}

int sl_moving_carry_out(const struct sl_moving *moving, struct sl_err *err)
{
    SL_AUTO_WALK to = {.root_fd = moving->to_fd, .make = true, .fd = -1};
    SL_AUTO_WALK from = {.make = true, .fd = -1}; /* a load seals its folders: opened for change */
    unsigned source = UINT32_MAX;
    for (size_t i = 0; i < moving->count; i++) {
        const struct entry *entry = &moving->entries[i];
        if (entry->source != source) {
            sl_tree_walk_end(&from);
            source = entry->source;
            from.root_fd = moving->sources[source];
        }
        int done = entry->kind == LOCAL_ENTRY    ? 0
                   : entry->kind == FOLDER_ENTRY ? make_folder(moving, entry, err)
                                                 : move_entry(&from, &to, entry, err);
        if (done < 0)
            return sl_wrap(err, "cannot put the model into '%s'", moving->path);
    }
    sl_tree_walk_end(&from);
    remove_folders(moving);
    return 0;
}
