/*
 * Folders of web servers that list them as JSON: `sluice share`, and nginx with autoindex_format
 * json. Folder by folder, since neither tells what lies deeper. Everything in a list is a
 * stranger's: names are one part of a path, sizes are numbers, and how deep and how long it goes is
 * bounded.
 *
 *     sluice share  {"entries": [{"name": …, "type": "file", "bytes": …}], "truncated": false}
 *     nginx         [{"name": …, "type": "file", "size": …}]
 *                   https://nginx.org/en/docs/http/ngx_http_autoindex_module.html
 */
#include <stdio.h>
#include <string.h>

#include "http_call.h"
#include "http_store.h"
#include "json.h"

enum {
    DEPTH_MAX = 32,
    FOLDERS_MAX = 10 * 1000,
    ENTRIES_MAX = 1000 * 1000,
    NAME_BYTES_MAX = 255,
    PATH_BYTES_MAX = 4096,
    LIST_BYTES_MAX = 16 * 1024 * 1024,
};

struct walk {
    struct sl_store *store;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    unsigned folders;
    uint64_t entries, files;
    struct sl_http_object *object; /* of the request in hand */
    char what[400];
};

/* ---- one list -------------------------------------------------------------------------------- */

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct walk *walk = arg;
    if (sl_http_prepare(walk->store->impl, walk->object, request, err) < 0)
        return -1;
    return sl_range_add_header(request, err, "Accept: application/json");
}

static int redirect(void *arg, const char *from, const char *to, int status, struct sl_err *err)
{
    struct walk *walk = arg;
    return sl_http_redirect(walk->store->impl, walk->object, from, to, status, err);
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    const struct walk *walk = arg;
    char later[64];
    bool has_later = sl_answer_header(answer, "Retry-After", later, sizeof(later));
    return sl_http_fail(err, answer->status, has_later ? later : NULL, walk->what, "");
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct walk *walk = arg;
    return sl_http_recover(walk->store->impl, walk->object, why, NULL);
}

static int fail_no_list(const struct walk *walk, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "'%s' has no listing that can be read: share the folder with `sluice share`, "
                   "set autoindex_format json in nginx, or name an object, or an index such as "
                   "model.safetensors.index.json",
                   walk->store->uri);
}

/* folder: below the store's, "" or with '/' at its end. */
static int ask(struct walk *walk, const char *folder, json_t **list, struct sl_err *err)
{
    struct sl_answer answer = {0};
    sl_autofree char *encoded = sl_url_encode(folder, true, err);
    sl_autofree char *url = encoded ? sl_asprintf(err, "%s%s", walk->store->uri, encoded) : NULL;
    SL_AUTO(sl_http_object) object = url ? sl_http_object_new(url, err) : NULL;
    const struct sl_http_call call = {.what = walk->what,
                                      .method = "GET",
                                      .answer_limit = LIST_BYTES_MAX,
                                      .arg = walk,
                                      .prepare = prepare,
                                      .redirect = redirect,
                                      .refuse = refuse,
                                      .recover = recover};
    walk->object = object;
    if (!object || sl_http_ask(walk->store, &call, &answer, err) < 0)
        return -1;
    const char *body = sl_buf_string(&answer.body);
    size_t blank = strspn(body, " \t\r\n");
    bool is_json = body[blank] == '{' || body[blank] == '[';
    *list = is_json ? sl_json_parse(body, answer.body.used, walk->what, err) : NULL;
    sl_answer_release(&answer);
    if (!is_json)
        return fail_no_list(walk, err);
    return *list ? 0 : -1;
}

/* ---- from folder to folder ------------------------------------------------------------------- */

static int hostile(const struct walk *walk, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: %s", walk->what, why);
}

static bool is_name(const char *name)
{
    return name && *name && strlen(name) <= NAME_BYTES_MAX && !strchr(name, '/') &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int list_folder(struct walk *walk, const char *folder, unsigned depth, struct sl_err *err);

static int take_item(struct walk *walk, const char *folder, unsigned depth, const json_t *item,
                     struct sl_err *err)
{
    const char *name = sl_json_get_string(item, "name"), *type = sl_json_get_string(item, "type");
    if (!is_name(name) || !type)
        return hostile(walk, "an entry has no name, no type, or a name that is not one of a file",
                       err);
    if (++walk->entries > ENTRIES_MAX)
        return hostile(walk, "it has more than 1,000,000 entries: name a folder of it", err);
    bool is_folder = strcmp(type, "directory") == 0;
    sl_autofree char *path = sl_asprintf(err, "%s%s%s", folder, name, is_folder ? "/" : "");
    if (!path)
        return -1;
    if (strlen(path) > PATH_BYTES_MAX)
        return hostile(walk, "a path in it has more than 4096 bytes", err);
    if (is_folder)
        return list_folder(walk, path, depth + 1, err);
    if (strcmp(type, "file") != 0)
        return 0;
    uint64_t bytes = sl_json_get_uint(item, "bytes", sl_json_get_uint(item, "size", UINT64_MAX));
    if (bytes > SL_OBJECT_BYTES_MAX)
        return hostile(walk, "the size of a file is not a number", err);
    walk->files++;
    return walk->each(&(struct sl_entry){.name = path, .bytes = bytes, .etag = ""}, walk->arg, err);
}

static int take_list(struct walk *walk, const char *folder, unsigned depth, const json_t *list,
                     struct sl_err *err)
{
    const json_t *items = json_is_array(list) ? list : json_object_get(list, "entries");
    if (!json_is_array(items))
        return fail_no_list(walk, err);
    if (json_is_true(json_object_get(list, "truncated")))
        return hostile(walk, "a folder has more entries than the server lists: name one below it",
                       err);
    for (size_t i = 0; i < json_array_size(items); i++)
        if (take_item(walk, folder, depth, json_array_get(items, i), err) < 0)
            return -1;
    return 0;
}

static int list_folder(struct walk *walk, const char *folder, unsigned depth, struct sl_err *err)
{
    json_t *list = NULL;
    if (depth > DEPTH_MAX || ++walk->folders > FOLDERS_MAX)
        return hostile(walk, "its folders are too deep, or too many: name one of them", err);
    if (sl_cancel_check(walk->store->config.cancel, err) < 0 || ask(walk, folder, &list, err) < 0)
        return -1;
    int result = take_list(walk, folder, depth, list, err);
    json_decref(list);
    return result;
}

int sl_http_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    struct walk walk = {.store = store, .each = listing->each, .arg = listing->arg};
    snprintf(walk.what, sizeof(walk.what), "cannot list '%.380s'", store->uri);
    if (list_folder(&walk, "", 0, err) < 0)
        return -1;
    if (!walk.files)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no file below '%s': check the folder",
                       store->uri);
    return 0;
}
