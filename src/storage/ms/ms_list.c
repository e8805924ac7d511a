/*
 * A revision's files. The hub answers with all of them at once, but leaves out what is beyond 3000
 * entries without a word, so a folder that has that many is asked for again by its folders.
 *
 * Everything in it is a stranger's: names must lie below the folder that was asked for (the plan
 * judges them further), sizes must be numbers, hashes hex. As the hub's client does, git's own
 * files are left out.
 */
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "ms_store.h"
#include "thread.h"

enum { WHAT_BYTES = 400, DEPTH_MAX = 64, REQUESTS_MAX = 5000, FILES_MAX = 1000 * 1000 };

/* ---- one answer ------------------------------------------------------------------------------ */

static int hostile(const struct sl_ms_page *page, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: %s", page->what, why);
}

void sl_ms_tree_release(struct sl_ms_tree *tree)
{
    for (size_t i = 0; i < tree->count; i++)
        free(tree->files[i].path);
    free(tree->files);
    *tree = (struct sl_ms_tree){0};
}

static bool is_of_git(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, ".gitignore") == 0 || strcmp(name, ".gitattributes") == 0;
}

static int take_file(const struct sl_ms_page *page, const json_t *item, const char *path,
                     struct sl_err *err)
{
    const char *hex = sl_json_get_string(item, "Sha256");
    const json_t *size = json_object_get(item, "Size");
    struct sl_ms_tree *tree = page->tree;
    uint8_t value[32];
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return hostile(page, err, "the size of a file is not a number");
    if (hex && *hex && (strlen(hex) != 64 || sl_unhex(hex, value, 32) < 0))
        return hostile(page, err, "the SHA-256 of a file is not 64 hex digits");
    if (!tree || is_of_git(path))
        return 0;
    if (tree->count == FILES_MAX)
        return hostile(page, err, "there are more than a million files");
    if (sl_grow(&tree->files, &tree->capacity, tree->count + 1, sizeof(*tree->files), err) < 0)
        return -1;
    struct sl_ms_file *file = &tree->files[tree->count];
    *file = (struct sl_ms_file){.bytes = (uint64_t)json_integer_value(size)};
    if (hex && *hex)
        sl_hex(value, 32, file->sha256);
    file->path = sl_strdup(path, err);
    tree->count += file->path != NULL;
    return file->path ? 0 : -1;
}

static int take_item(const struct sl_ms_page *page, const json_t *item, struct sl_err *err)
{
    const char *type = sl_json_get_string(item, "Type"), *path = sl_json_get_string(item, "Path");
    size_t root = strlen(page->root);
    if (!type || !path || !*path)
        return hostile(page, err, "a file has no type or no path");
    if (strncmp(path, page->root, root) != 0 || (root && path[root] != '/') || !path[root + !!root])
        return hostile(page, err, "a file does not lie below the folder");
    if (strcmp(type, "tree") == 0)
        return page->folder ? page->folder(page->arg, path, err) : 0;
    return take_file(page, item, path, err);
}

/* Refusals come with status 200, too; what they mean stands in the body. */
static int check_code(const struct sl_ms_page *page, const json_t *document, const char *text,
                      size_t bytes, struct sl_err *err)
{
    uint64_t code = sl_json_get_uint(document, "Code", 0);
    if (code == 200)
        return 0;
    if (!code)
        return hostile(page, err, "the answer is not a list of files: is this a ModelScope hub?");
    const struct sl_ms_refusal refusal = {code < 600 ? (int)code : 404, text, bytes, NULL};
    return sl_ms_refuse(page->ms, &refusal, page->what, err);
}

int sl_ms_page_parse(struct sl_ms_page *page, const char *text, size_t bytes, struct sl_err *err)
{
    json_t *document = sl_json_parse(text, bytes, page->what, err);
    page->entries = 0;
    if (!document)
        return -1;
    int result = check_code(page, document, text, bytes, err);
    const json_t *files = json_object_get(json_object_get(document, "Data"), "Files");
    if (result == 0 && !json_is_array(files) && !json_is_null(files))
        result = hostile(page, err, "the answer is not a list of files");
    for (size_t i = 0; result == 0 && i < json_array_size(files); i++, page->entries++)
        result = take_item(page, json_array_get(files, i), err);
    json_decref(document);
    return result;
}

/* ---- the tree -------------------------------------------------------------------------------- */

struct walk {
    struct sl_ms *ms;
    const char *what;
    struct sl_ms_tree *tree;
    unsigned requests, depth;
};

static int ask(struct walk *walk, bool recursive, struct sl_ms_page *page, struct sl_err *err)
{
    struct sl_ms *ms = walk->ms;
    struct sl_answer answer;
    if (++walk->requests > REQUESTS_MAX)
        return hostile(page, err, "it has too many folders: load one of them");
    sl_autofree char *revision = sl_url_encode(ms->uri.revision, false, err);
    sl_autofree char *root = revision ? sl_url_encode(page->root, false, err) : NULL;
    sl_autofree char *url =
        root ? sl_asprintf(err, "%s/api/v1/models/%s/repo/files?Revision=%s&Recursive=%s%s%s",
                           ms->endpoint, ms->uri.repo, revision, recursive ? "True" : "False",
                           *root ? "&Root=" : "", root)
             : NULL;
    if (!url || sl_http_get(ms->store, &ms->http, url, page->what, SL_MS_LISTING_BYTES_MAX, &answer,
                            err) < 0)
        return -1;
    int result = sl_ms_page_parse(page, sl_buf_string(&answer.body), answer.body.used, err);
    sl_answer_release(&answer);
    return result;
}

static int walk_folder(void *arg, const char *root, struct sl_err *err);

/* What lies right in the folder, and then its folders one by one. */
static int walk_parts(struct walk *walk, const char *root, struct sl_err *err)
{
    struct sl_ms_page page = {.ms = walk->ms,
                              .what = walk->what,
                              .root = root,
                              .tree = walk->tree,
                              .folder = walk_folder,
                              .arg = walk};
    if (++walk->depth > DEPTH_MAX)
        return hostile(&page, err, "its folders are too deep");
    if (ask(walk, false, &page, err) < 0)
        return -1;
    walk->depth--;
    if (page.entries >= SL_MS_LISTING_ENTRIES_MAX)
        return sl_fail(
            err, SL_E_FORMAT,
            "%s: a folder has 3000 entries or more, of which the hub lists no more: name "
            "single files, or an index such as model.safetensors.index.json",
            walk->what);
    return 0;
}

static int walk_folder(void *arg, const char *root, struct sl_err *err)
{
    struct walk *walk = arg;
    size_t had = walk->tree->count;
    struct sl_ms_page page = {.ms = walk->ms, .what = walk->what, .root = root, .tree = walk->tree};
    if (sl_cancel_check(walk->ms->store->config.cancel, err) < 0 || ask(walk, true, &page, err) < 0)
        return -1;
    if (page.entries < SL_MS_LISTING_ENTRIES_MAX)
        return 0;
    while (walk->tree->count > had)
        free(walk->tree->files[--walk->tree->count].path);
    return walk_parts(walk, root, err);
}

static int by_path(const void *a, const void *b)
{
    const struct sl_ms_file *one = a, *other = b;
    return strcmp(one->path, other->path);
}

static int take_tree(struct sl_ms *ms, const char *what, struct sl_ms_tree *tree,
                     struct sl_err *err)
{
    size_t bytes = strlen(ms->folder);
    struct walk walk = {.ms = ms, .what = what, .tree = tree};
    sl_autofree char *root = sl_strndup(ms->folder, bytes ? bytes - 1 : 0, err);
    if (!root || walk_folder(&walk, root, err) < 0)
        return -1;
    if (tree->count)
        qsort(tree->files, tree->count, sizeof(*tree->files), by_path);
    return 0;
}

/* The tree is what is known from now on. */
static void keep(struct sl_ms *ms, struct sl_ms_tree *tree)
{
    struct sl_ms_tree old;
    {
        SL_LOCKED(&ms->locked.mutex);
        old = ms->locked.tree;
        ms->locked.tree = *tree;
        ms->locked.listed = true;
    }
    *tree = old;
}

static int list_tree(const struct sl_ms *ms, const struct sl_ms_tree *tree,
                     const struct sl_listing *listing, struct sl_err *err)
{
    for (size_t i = 0; i < tree->count; i++) {
        const struct sl_ms_file *file = &tree->files[i];
        struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_SHA256};
        bool hashed = file->sha256[0] && sl_unhex(file->sha256, sums.items[0].value, 32) == 0;
        const struct sl_entry entry = {.name = file->path + strlen(ms->folder),
                                       .bytes = file->bytes,
                                       .etag = "",
                                       .pin = hashed ? file->sha256 : NULL,
                                       .sums = hashed ? &sums : NULL};
        if (listing->each(&entry, listing->arg, err) < 0)
            return -1;
    }
    return 0;
}

int sl_ms_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    struct sl_ms *ms = store->impl;
    char what[WHAT_BYTES];
    struct sl_ms_tree tree = {0};
    snprintf(what, sizeof(what), "cannot list '%.380s'", store->uri);
    int result = take_tree(ms, what, &tree, err);
    if (result == 0 && !tree.count)
        result = sl_fail(err, SL_E_NOT_FOUND, "there is no file below '%s': check the folder",
                         store->uri);
    if (result == 0)
        result = list_tree(ms, &tree, listing, err);
    if (result == 0)
        keep(ms, &tree);
    sl_ms_tree_release(&tree);
    return result;
}

/* -1: nothing was listed yet; 0: it is not there; 1: *file. */
static int look_up(struct sl_ms *ms, const char *path, struct sl_ms_file *file)
{
    const struct sl_ms_file wanted = {.path = (char *)(uintptr_t)path};
    SL_LOCKED(&ms->locked.mutex);
    if (!ms->locked.listed)
        return -1;
    const struct sl_ms_file *found = ms->locked.tree.count
                                         ? bsearch(&wanted, ms->locked.tree.files,
                                                   ms->locked.tree.count, sizeof(wanted), by_path)
                                         : NULL;
    if (!found)
        return 0;
    *file = *found;
    file->path = NULL;
    return 1;
}

int sl_ms_find(struct sl_ms *ms, const char *name, struct sl_ms_file *file, struct sl_err *err)
{
    char what[WHAT_BYTES];
    sl_autofree char *path = sl_asprintf(err, "%s%s", ms->folder, name);
    if (!path)
        return -1;
    int found = look_up(ms, path, file);
    if (found < 0) {
        struct sl_ms_tree tree = {0};
        snprintf(what, sizeof(what), "cannot open '%.300s%.80s'", ms->store->uri, name);
        int result = take_tree(ms, what, &tree, err);
        if (result == 0)
            keep(ms, &tree);
        sl_ms_tree_release(&tree);
        if (result < 0)
            return -1;
        found = look_up(ms, path, file);
    }
    if (found == 1)
        return 0;
    return sl_fail(
        err, SL_E_NOT_FOUND,
        "cannot open '%.300s%.100s': the repository has no such file at this revision; a "
        "folder is written with '/' at its end",
        ms->store->uri, name);
}
