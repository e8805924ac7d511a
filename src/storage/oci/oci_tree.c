/*
 * Every entry of every layer is kept with the number of its layer, then all are sorted by path, so
 * that what was said of a path stands together, and behind what was said of the folders above it.
 * The last word counts, unless a later layer has taken away the path, or a folder above it, or made
 * something else of that. What folders say is handed down from path to path, and where a link leads
 * is kept, so that the work grows with the names alone, whatever their depth.
 */
#include "oci_tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "thread.h"

enum {
    PATH_BYTES_MAX = 1024,
    LINKS_MAX = 8,
    COPY_BYTES = 256 * 1024,
    HEAD_BYTES = COPY_BYTES, /* of a file of a packed layer, kept for whoever opens it */
    HEADS_BYTES_MAX = 32 * 1024 * 1024,
};

enum kind { FILE_NODE, FOLDER_NODE, HARD_LINK_NODE, SYMLINK_NODE, WHITEOUT_NODE, OPAQUE_NODE };

struct node {
    char *path; /* below the folder that is wanted; "": that folder */
    size_t path_bytes;
    char *target;
    enum kind kind;
    unsigned layer; /* from 1 on */
    size_t place;   /* among all */
    const struct sl_oci_layer *blob;
    uint64_t at, bytes; /* of a file's data in it */
    bool hashed;
    uint8_t sha256[32];
    uint8_t *head; /* NULL: none is kept */
    size_t head_bytes;
    const struct node *file; /* of a link that was followed: where it leads in the end */
    unsigned hops;           /* on the way there */
};

/* What was said of one path. */
struct group {
    struct node *nodes;
    size_t count;
    struct node *last;      /* that is not a whiteout; NULL: none */
    unsigned gone, emptied; /* the last layer that took it away, or what is in it; 0: none */
    /* Of the folders above: the last layer that took one away or emptied it, and the highest of
     * them that is no folder; what is below that does not count. */
    unsigned cleared;
    const struct node *blocker; /* NULL: all are folders */
};

struct sl_oci_tree {
    const char *folder;
    const struct sl_cancel *cancel; /* may be NULL */
    struct node *nodes;
    size_t count, capacity, entries, name_bytes, heads_bytes;
    unsigned layers;
    struct group *groups;
    size_t group_count;
    uint8_t *buffer; /* COPY_BYTES */
    struct sl_oci_packed packed;
};

struct sl_oci_packed *sl_oci_tree_packed(struct sl_oci_tree *tree)
{
    return &tree->packed;
}

struct sl_oci_tree *sl_oci_tree_new(const char *folder, const struct sl_cancel *cancel,
                                    struct sl_err *err)
{
    SL_AUTO(sl_oci_tree) tree = sl_alloc(sizeof(*tree), err);
    if (!tree)
        return NULL;
    tree->folder = folder;
    tree->cancel = cancel;
    tree->buffer = sl_alloc(COPY_BYTES, err);
    return tree->buffer ? sl_steal(&tree) : NULL;
}

static void node_release(struct node *node)
{
    free(node->path);
    free(node->target);
    free(node->head);
}

void sl_oci_tree_free(struct sl_oci_tree *tree)
{
    if (!tree)
        return;
    for (size_t i = 0; i < tree->count; i++)
        node_release(&tree->nodes[i]);
    free(tree->nodes);
    free(tree->groups);
    free(tree->buffer);
    free(tree);
}

static int bad_entry(const char *name, size_t bytes, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.name", "its entry '%.*s' %s",
                        (int)SL_MIN(bytes, (size_t)200), name, why);
}

/* ---- one layer ------------------------------------------------------------------------------- */

/* Is it the folder, or below it? */
static bool is_below(const char *path, const char *folder)
{
    size_t bytes = strlen(folder);
    return !bytes || (strncmp(path, folder, bytes) == 0 && (!path[bytes] || path[bytes] == '/'));
}

/* A whiteout names what it takes away: ".wh.NAME"; ".wh..wh..opq" all that is in its folder. */
static int take_whiteout(char *path, struct node *node, struct sl_err *err)
{
    static const char mark[] = ".wh.", opaque[] = ".wh..wh..opq";
    char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    const char *gone = leaf + sizeof(mark) - 1;
    if (strncmp(leaf, mark, sizeof(mark) - 1) != 0)
        return 0;
    if (strcmp(leaf, opaque) == 0) {
        node->kind = OPAQUE_NODE;
        *(slash ? slash : path) = 0;
        return 0;
    }
    if (!*gone || strcmp(gone, ".") == 0 || strcmp(gone, "..") == 0)
        return bad_entry(path, strlen(path), err, "is a whiteout without a name");
    node->kind = WHITEOUT_NODE;
    memmove(leaf, gone, strlen(gone) + 1);
    return 0;
}

static int keep(struct sl_oci_tree *tree, struct node *model, const char *path, struct sl_err *err)
{
    tree->name_bytes += strlen(path) + (model->target ? strlen(model->target) : 0) + 2;
    if (tree->name_bytes > SL_OCI_NAMES_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "its names need more than 64 MiB");
    if (sl_grow(&tree->nodes, &tree->capacity, tree->count + 1, sizeof(*tree->nodes), err) < 0)
        return -1;
    struct node *node = &tree->nodes[tree->count];
    *node = *model;
    node->place = tree->count;
    node->target = NULL;
    node->head = NULL;
    node->path = sl_strdup(path, err);
    if (!node->path)
        return -1;
    node->path_bytes = strlen(path);
    tree->count++;
    node->head = sl_steal(&model->head);
    node->target = model->target ? sl_strdup(model->target, err) : NULL;
    return model->target && !node->target ? -1 : 0;
}

/* What lies beside the folder is nobody's; what takes the place of a folder above it empties it. */
static int keep_wanted(struct sl_oci_tree *tree, struct node *node, char *path, struct sl_err *err)
{
    const char *folder = node->blob->image ? tree->folder : "";
    if (node->blob->image && take_whiteout(path, node, err) < 0)
        return -1;
    if (is_below(path, folder) && strcmp(path, folder) != 0)
        return keep(tree, node, path + strlen(folder) + (*folder != 0), err);
    if (!is_below(folder, path) || node->kind == FOLDER_NODE)
        return 0;
    node->kind = OPAQUE_NODE;
    node->target = NULL;
    return keep(tree, node, "", err);
}

/* A packed layer is read in order only: opening each of its files would begin anew. */
static int keep_head(struct sl_oci_tree *tree, struct node *node, size_t bytes, struct sl_err *err)
{
    bytes = SL_MIN(bytes, (size_t)HEAD_BYTES);
    if (node->blob->packing == SL_PACKING_NONE || !bytes ||
        tree->heads_bytes + bytes > HEADS_BYTES_MAX)
        return 0;
    node->head = sl_alloc(bytes, err);
    if (!node->head)
        return -1;
    memcpy(node->head, tree->buffer, bytes);
    node->head_bytes = bytes;
    tree->heads_bytes += bytes;
    return 0;
}

static int hash_file(struct sl_oci_tree *tree, struct sl_tar *tar, struct node *node,
                     struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    for (uint64_t left = node->bytes; left;) {
        size_t part = (size_t)SL_MIN(left, (uint64_t)COPY_BYTES);
        if (sl_cancel_check(tree->cancel, err) < 0)
            return -1;
        if (sl_tar_read(tar, tree->buffer, part, err) < 0)
            return -1;
        if (left == node->bytes && keep_head(tree, node, part, err) < 0)
            return -1;
        sl_sha256_update(sha, tree->buffer, part);
        left -= part;
    }
    sl_sha256_finish(sha, node->sha256);
    node->hashed = true;
    return 0;
}

static int take_link(const struct sl_tar_entry *entry, char **target, struct sl_err *err)
{
    if (memchr(entry->link, 0, entry->link_bytes) || entry->link_bytes > PATH_BYTES_MAX ||
        !entry->link_bytes)
        return bad_entry(entry->name, entry->name_bytes, err, "is a link without a target");
    *target = sl_strndup(entry->link, entry->link_bytes, err);
    return *target ? 0 : -1;
}

static int take_kept(struct sl_oci_tree *tree, struct sl_tar *tar, const struct sl_tar_entry *entry,
                     struct node *node, char *path, bool check, struct sl_err *err)
{
    static const enum kind kinds[] = {[SL_TAR_FILE] = FILE_NODE,
                                      [SL_TAR_FOLDER] = FOLDER_NODE,
                                      [SL_TAR_HARD_LINK] = HARD_LINK_NODE,
                                      [SL_TAR_SYMLINK] = SYMLINK_NODE};
    sl_autofree char *target = NULL;
    const char *folder = node->blob->image ? tree->folder : "";
    if (entry->kind == SL_TAR_DEVICE || entry->kind == SL_TAR_PIPE)
        return is_below(path, folder) ? sl_tar_refuse(entry, err) : 0;
    node->kind = kinds[entry->kind];
    if ((node->kind == HARD_LINK_NODE || node->kind == SYMLINK_NODE) &&
        take_link(entry, &target, err) < 0)
        return -1;
    bool wanted = is_below(path, folder) && node->kind == FILE_NODE;
    node->target = target;
    int result = check && wanted ? hash_file(tree, tar, node, err) : 0;
    if (result == 0)
        result = keep_wanted(tree, node, path, err);
    free(node->head); /* if it was not kept */
    return result;
}

static int take_entry(struct sl_oci_tree *tree, struct sl_tar *tar,
                      const struct sl_tar_entry *entry, struct node *node, bool check,
                      struct sl_err *err)
{
    char path[PATH_BYTES_MAX + 1];
    if (++tree->entries > SL_OCI_ENTRIES_MAX)
        return sl_fail(err, SL_E_FORMAT, "the layers have more than %d entries",
                       SL_OCI_ENTRIES_MAX);
    const char *fault = sl_tar_clean_name(entry->name, entry->name_bytes, path, sizeof(path));
    if (fault)
        return bad_entry(entry->name, entry->name_bytes, err, fault);
    if (!*path && entry->kind != SL_TAR_FOLDER)
        return bad_entry(entry->name, entry->name_bytes, err, "has no name");
    return take_kept(tree, tar, entry, node, path, check, err);
}

int sl_oci_tree_add(struct sl_oci_tree *tree, const struct sl_oci_layer *layer,
                    const struct sl_tar_input *input, const uint64_t *at, bool check,
                    struct sl_err *err)
{
    struct sl_tar_entry entry;
    SL_AUTO(sl_tar) tar = sl_tar_new(input, err);
    int more = tar ? 1 : -1;
    uint64_t passed;
    tree->layers++;
    while (more > 0 && (more = sl_tar_next(tar, &entry, err)) > 0) {
        struct node node = {.layer = tree->layers, .blob = layer, .at = *at, .bytes = entry.bytes};
        if (sl_cancel_check(tree->cancel, err) < 0 ||
            take_entry(tree, tar, &entry, &node, check, err) < 0)
            return -1;
    }
    if (more < 0 || !check)
        return more;
    return input->read(input->arg, NULL, INT64_MAX, &passed, err);
}

void sl_oci_tree_drop(struct sl_oci_tree *tree)
{
    while (tree->count && tree->nodes[tree->count - 1].layer == tree->layers)
        node_release(&tree->nodes[--tree->count]);
    tree->layers--;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* A path comes before what lies in it, and that before any other: '/' is the least of all
 * characters. Paths are compared by eights of bytes, since they may have a thousand in common. */
static int compare_paths(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t least = SL_MIN(a_bytes, b_bytes), at = 0;
    while (least - at >= 8 && memcmp(a + at, b + at, 8) == 0)
        at += 8;
    while (at < least && a[at] == b[at])
        at++;
    if (at == least)
        return (a_bytes > b_bytes) - (a_bytes < b_bytes);
    int x = a[at] == '/' ? 0 : (unsigned char)a[at], y = b[at] == '/' ? 0 : (unsigned char)b[at];
    return x - y;
}

static int by_path(const void *a, const void *b)
{
    const struct node *x = a, *y = b;
    int order = compare_paths(x->path, x->path_bytes, y->path, y->path_bytes);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static void sum_up(struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct node *node = &group->nodes[i];
        if (node->kind == WHITEOUT_NODE)
            group->gone = node->layer;
        else if (node->kind == OPAQUE_NODE)
            group->emptied = node->layer;
        else
            group->last = node;
    }
}

static bool is_folder(const struct node *node)
{
    return node->kind == FOLDER_NODE;
}

static bool lies_in(const struct group *group, const struct group *folder)
{
    const struct node *inner = group->nodes, *outer = folder->nodes;
    return !outer->path_bytes ||
           (inner->path_bytes > outer->path_bytes && inner->path[outer->path_bytes] == '/' &&
            memcmp(inner->path, outer->path, outer->path_bytes) == 0);
}

/* What a path says to those in it. */
static void hand_down(const struct group *above, struct group *group)
{
    const struct node *last = above->last;
    group->cleared = above->cleared;
    group->blocker = above->blocker;
    if (group->blocker)
        return;
    group->cleared = SL_MAX(group->cleared, SL_MAX(above->gone, above->emptied));
    if (last && !is_folder(last) && above->gone <= last->layer)
        group->blocker = last;
}

/* `open` are those that the path before lies in, the outermost first. */
static int hand_down_all(struct sl_oci_tree *tree, struct sl_err *err)
{
    struct group *open[PATH_BYTES_MAX / 2 + 2];
    size_t depth = 0;
    for (size_t i = 0; i < tree->group_count; i++) {
        struct group *group = &tree->groups[i];
        while (depth && !lies_in(group, open[depth - 1]))
            depth--;
        if (depth)
            hand_down(open[depth - 1], group);
        open[depth++] = group;
        if (sl_cancel_check(tree->cancel, err) < 0)
            return -1;
    }
    return 0;
}

static int make_groups(struct sl_oci_tree *tree, struct sl_err *err)
{
    tree->groups = sl_alloc_array(tree->count + 1, sizeof(*tree->groups), err);
    if (!tree->groups)
        return -1;
    if (tree->count)
        qsort(tree->nodes, tree->count, sizeof(*tree->nodes), by_path);
    for (size_t i = 0; i < tree->count; i++) {
        struct group *group = tree->group_count ? &tree->groups[tree->group_count - 1] : NULL;
        if (!group || strcmp(group->nodes->path, tree->nodes[i].path) != 0) {
            group = &tree->groups[tree->group_count++];
            *group = (struct group){.nodes = &tree->nodes[i]};
        }
        group->count++;
    }
    for (size_t i = 0; i < tree->group_count; i++)
        sum_up(&tree->groups[i]);
    return hand_down_all(tree, err);
}

struct text {
    const char *data;
    size_t bytes;
};

static int compare_group(const void *key, const void *item)
{
    const struct text *text = key;
    const struct node *node = ((const struct group *)item)->nodes;
    return compare_paths(text->data, text->bytes, node->path, node->path_bytes);
}

static struct group *find_group(const struct sl_oci_tree *tree, const char *path, size_t bytes)
{
    const struct text key = {path, bytes};
    return tree->group_count ? bsearch(&key, tree->groups, tree->group_count, sizeof(*tree->groups),
                                       compare_group)
                             : NULL;
}

/* 1: there it is. 0: it is gone, or was never there. */
static int is_there(const struct group *group, struct sl_err *err)
{
    const struct node *node = group ? group->last : NULL;
    if (!node || group->gone > node->layer || group->cleared > node->layer)
        return 0;
    const struct node *blocker = group->blocker;
    if (!blocker)
        return 1;
    return blocker->layer > node->layer
               ? 0
               : bad_entry(blocker->path, blocker->path_bytes, err, "is both a file and a folder");
}

/* ---- links ----------------------------------------------------------------------------------- */

static int bad_link(const struct node *link, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.link", "its link '%.200s' to '%.200s' %s",
                        link->path, link->target, why);
}

/* Where a target leads from a folder (a prefix of a path, without '/' at its end), ".." included.
 * NULL: out of everything, or too far. */
static const char *walk(const char *from, size_t from_bytes, const char *target,
                        char path[PATH_BYTES_MAX + 1])
{
    size_t used = *target == '/' ? 0 : from_bytes;
    memcpy(path, from, used);
    while (*target) {
        size_t bytes = strcspn(target, "/");
        if (bytes == 2 && strncmp(target, "..", 2) == 0) {
            if (!used)
                return NULL;
            while (used && path[--used] != '/')
                ;
        } else if (bytes && (bytes > 1 || *target != '.')) {
            if (used + 1 + bytes > PATH_BYTES_MAX)
                return NULL;
            if (used)
                path[used++] = '/';
            memcpy(path + used, target, bytes);
            used += bytes;
        }
        target += bytes + (target[bytes] == '/');
    }
    path[used] = 0;
    return path;
}

/* Where a link leads, below the folder that is wanted. NULL: out of it. */
static const char *lead(const struct sl_oci_tree *tree, const struct node *link, char *path)
{
    char from[2 * PATH_BYTES_MAX + 2];
    const char *folder = link->blob->image ? tree->folder : "";
    snprintf(from, sizeof(from), "%s%s%s", folder, *folder ? "/" : "", link->path);
    const char *slash = strrchr(from, '/');
    size_t above = slash && link->kind == SYMLINK_NODE ? (size_t)(slash - from) : 0;
    if (above > PATH_BYTES_MAX || !walk(from, above, link->target, path) ||
        !is_below(path, folder) || strcmp(path, folder) == 0)
        return NULL;
    return path + strlen(folder) + (*folder != 0);
}

/* A hard link is another name of a file that came before it in its layer. */
static struct node *find_linked(const struct group *group, const struct node *link)
{
    size_t before = 0, beyond = group ? group->count : 0;
    while (before < beyond) {
        size_t middle = before + (beyond - before) / 2;
        if (group->nodes[middle].place < link->place)
            before = middle + 1;
        else
            beyond = middle;
    }
    struct node *node = before ? &group->nodes[before - 1] : NULL;
    bool real = node && (node->kind == FILE_NODE || node->kind == HARD_LINK_NODE);
    return real && node->layer == link->layer ? node : NULL;
}

/* One step. NULL: there is nothing, or *failed. */
static struct node *step(const struct sl_oci_tree *tree, const struct node *link, bool *failed,
                         struct sl_err *err)
{
    char path[PATH_BYTES_MAX + 1];
    const char *to = lead(tree, link, path);
    const struct group *group = to ? find_group(tree, to, strlen(to)) : NULL;
    if (link->kind == HARD_LINK_NODE)
        return find_linked(group, link);
    int there = is_there(group, err);
    *failed = there < 0;
    return there > 0 ? group->last : NULL;
}

/* The file that a node is in the end; `links` have led to it so far. Each link is followed once. */
static const struct node *follow(const struct sl_oci_tree *tree, struct node *node, unsigned links,
                                 struct sl_err *err)
{
    bool failed = false;
    if (node->kind == FILE_NODE || node->file)
        return node->kind == FILE_NODE ? node : node->file;
    struct node *next = links < LINKS_MAX ? step(tree, node, &failed, err) : NULL;
    const struct node *file = next && !is_folder(next) ? follow(tree, next, links + 1, err) : NULL;
    if (failed || (next && !is_folder(next) && !file))
        return NULL;
    node->hops = next ? next->hops + 1 : 0;
    if (!file || node->hops > LINKS_MAX) {
        bad_link(node, err,
                 "leads to no file of the model: put the file itself there, since a model "
                 "without it would look whole");
        return NULL;
    }
    return node->file = file;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int add_file(struct sl_oci_manifest *manifest, const char *name, const struct node *node,
                    struct sl_err *err)
{
    bool packed = node->blob->packing != SL_PACKING_NONE;
    struct sl_oci_file *file = &manifest->files[manifest->count];
    *file = (struct sl_oci_file){.bytes = node->bytes, .hashed = node->hashed};
    memcpy(file->sha256, node->sha256, sizeof(file->sha256));
    snprintf(file->pin, sizeof(file->pin), "%s+%" PRIu64 "/%" PRIu64 "%s%s", node->blob->digest,
             node->at, node->blob->bytes, packed ? "+" : "",
             packed ? sl_packing_name(node->blob->packing) : "");
    file->name = sl_strdup(name, err);
    if (!file->name)
        return -1;
    manifest->count++;
    return 0;
}

static int take_group(struct sl_oci_tree *tree, const struct group *group,
                      struct sl_oci_manifest *manifest, struct sl_err *err)
{
    int there = is_there(group, err);
    if (there <= 0 || is_folder(group->last))
        return there < 0 ? -1 : 0;
    const struct node *node = follow(tree, group->last, 0, err);
    if (!node || add_file(manifest, group->last->path, node, err) < 0)
        return -1;
    struct sl_oci_file *file = &manifest->files[manifest->count - 1];
    file->head_bytes = group->last->head_bytes; /* of other names of the file nobody has it */
    file->head = sl_steal(&group->last->head);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sl_oci_file *)a)->name, ((const struct sl_oci_file *)b)->name);
}

/* Files and archives of one manifest may name the same. */
static int check_names(struct sl_oci_manifest *manifest, struct sl_err *err)
{
    if (manifest->count)
        qsort(manifest->files, manifest->count, sizeof(*manifest->files), by_name);
    for (size_t i = 1; i < manifest->count; i++)
        if (by_name(&manifest->files[i - 1], &manifest->files[i]) == 0)
            return sl_fail(err, SL_E_FORMAT, "two of its layers hold a file '%.200s'",
                           manifest->files[i].name);
    return 0;
}

int sl_oci_tree_finish(struct sl_oci_tree *tree, struct sl_oci_manifest *manifest,
                       struct sl_err *err)
{
    if (make_groups(tree, err) < 0)
        return -1;
    struct sl_oci_file *files =
        sl_alloc_array(manifest->count + tree->group_count + 1, sizeof(*files), err);
    if (!files)
        return -1;
    if (manifest->count)
        memcpy(files, manifest->files, manifest->count * sizeof(*files));
    free(manifest->files);
    manifest->files = files;
    for (size_t i = 0; i < tree->group_count; i++)
        if (sl_cancel_check(tree->cancel, err) < 0 ||
            take_group(tree, &tree->groups[i], manifest, err) < 0)
            return -1;
    return check_names(manifest, err);
}
