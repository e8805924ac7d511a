/*
 * One file of a bucket: what the last listing said of it, so that a plan opens what it listed, and
 * asks nothing for it. Of a file that was named alone, the hub is asked.
 */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "json.h"
#include "thread.h"

enum {
    FILES_MAX = 128 * 1024, /* more than any plan has */
    FILES_LEAST = 64,
    QUESTION_BYTES_MAX = 64 * 1024,
    ANSWER_BYTES_MAX = 64 * 1024,
    WHAT_BYTES = 400,
};

/* ---- what was listed ------------------------------------------------------------------------- */

void sl_hf_files_release(struct sl_hf_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->items[i].name);
    free(files->items);
    *files = (struct sl_hf_files){.items = NULL};
}

static int make_room(struct sl_hf_files *files, struct sl_err *err)
{
    if (files->count < files->capacity)
        return 0;
    size_t capacity = SL_MAX(2 * files->capacity, (size_t)FILES_LEAST);
    struct sl_hf_file *items = sl_alloc_array(capacity, sizeof(*items), err);
    if (!items)
        return -1;
    if (files->count)
        memcpy(items, files->items, files->count * sizeof(*items));
    free(files->items);
    files->items = items;
    files->capacity = capacity;
    return 0;
}

int sl_hf_files_add(struct sl_hf_files *files, const struct sl_entry *entry, struct sl_err *err)
{
    if (files->count == FILES_MAX) {
        sl_hf_files_release(files);
        files->too_many = true;
    }
    if (files->too_many)
        return 0;
    if (make_room(files, err) < 0)
        return -1;
    struct sl_hf_file *file = &files->items[files->count];
    file->name = sl_strdup(entry->name, err);
    if (!file->name)
        return -1;
    file->bytes = entry->bytes;
    snprintf(file->pin, sizeof(file->pin), "%s", entry->pin);
    files->count++;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct sl_hf_file *one = a, *other = b;
    return strcmp(one->name, other->name);
}

void sl_hf_files_keep(struct sl_hf *hf, struct sl_hf_files *files)
{
    if (files->count)
        qsort(files->items, files->count, sizeof(*files->items), by_name);
    SL_LOCKED(&hf->locked.mutex);
    struct sl_hf_files old = hf->locked.files;
    hf->locked.files = *files;
    *files = old;
}

static void take(struct sl_source *source, const char *pin, uint64_t bytes)
{
    memcpy(source->version.pin, pin, SL_XET_HASH_TEXT);
    source->bytes = bytes;
    source->opened = true;
}

static void take_listed(struct sl_hf *hf, struct sl_source *source)
{
    const struct sl_hf_file wanted = {.name = source->name};
    SL_LOCKED(&hf->locked.mutex);
    const struct sl_hf_files *files = &hf->locked.files;
    const struct sl_hf_file *file =
        files->count ? bsearch(&wanted, files->items, files->count, sizeof(wanted), by_name) : NULL;
    if (file)
        take(source, file->pin, file->bytes);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* The entry of this name is the source's. */
static int take_found(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct sl_source *source = arg;
    (void)err;
    if (strcmp(entry->name, source->name) == 0)
        take(source, entry->pin, entry->bytes);
    return 0;
}

static int ask(struct sl_hf *hf, const char *path, const char *what, struct sl_answer *answer,
               struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, QUESTION_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key(&json, "paths");
    sl_json_array(&json);
    sl_json_string(&json, path);
    sl_json_end(&json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    sl_autofree char *url = text ? sl_hf_api_url(hf, "paths-info", "", err) : NULL;
    int result =
        url ? sl_http_query(hf->store, &hf->http, url, text, what, ANSWER_BYTES_MAX, answer, err)
            : -1;
    sl_json_release(&json);
    return result;
}

int sl_hf_find_in_bucket(struct sl_source *source, struct sl_err *err)
{
    struct sl_hf *hf = source->store->impl;
    char what[WHAT_BYTES];
    struct sl_answer answer;
    uint64_t entries;
    take_listed(hf, source);
    if (source->opened)
        return 0;
    sl_autofree char *path = sl_asprintf(err, "%s%s", hf->folder, source->name);
    snprintf(what, sizeof(what), "cannot open '%.380s'", source->uri);
    if (!path || ask(hf, path, what, &answer, err) < 0)
        return -1;
    const struct sl_hf_page page = {
        .what = what, .folder = hf->folder, .each = take_found, .arg = source, .xet = hf->xet};
    int result = sl_hf_page_parse(&page, answer.body.data, answer.body.used, &entries, err);
    sl_answer_release(&answer);
    return result == 0 && !source->opened ? sl_hf_refuse_file(hf, what, err) : result;
}
