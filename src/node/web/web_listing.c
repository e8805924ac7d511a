/* A directory as a list: HTML for people, JSON when it is asked for. Sorted, limited, without
 * names of ours. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "entries.h"
#include "mem.h"
#include "own_names.h"
#include "web_http.h"
#include "web_parts.h"

enum {
    ENTRIES_MAX = 10000,
    LOOKS_MAX = 10000, /* at what lies in folders, for one listing */
    DEPTH_MAX = 32,
    FOLDER_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
};

struct entry {
    char *name;
    bool directory;
    bool sized; /* of a directory: `bytes` are those of the files below it */
    uint64_t bytes;
    int64_t modified;
};
struct listing {
    int share_fd;
    const char *path; /* of the folder below it, "" or with a slash at its end */
    struct entry *entries;
    size_t count, capacity;
    bool truncated;
};

static void release(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->entries[i].name);
    free(listing->entries);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* What a link leads to, if that is a file that is served: a folder could be its own parent. */
static bool look_behind(const struct listing *listing, const char *name, struct stat *stat)
{
    char path[SL_WEB_PATH_BYTES + NAME_MAX + 1];
    snprintf(path, sizeof(path), "%s%s", listing->path, name);
    sl_autoclose int fd = web_share_open_at(listing->share_fd, path);
    return fd >= 0 && fstat(fd, stat) == 0 && S_ISREG(stat->st_mode);
}

static int add_entry(struct listing *listing, int directory, const char *name, struct sl_err *err)
{
    struct stat stat;
    if (fstatat(directory, name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
        (S_ISLNK(stat.st_mode) && !look_behind(listing, name, &stat)) ||
        (!S_ISREG(stat.st_mode) && !S_ISDIR(stat.st_mode)) || web_share_is_kept(name, &stat))
        return 0;
    if (listing->count == ENTRIES_MAX) {
        listing->truncated = true;
        return 0;
    }
    if (sl_grow(&listing->entries, &listing->capacity, listing->count + 1,
                sizeof(*listing->entries), err) < 0)
        return -1;
    struct entry *entry = &listing->entries[listing->count];
    if (!(entry->name = sl_strdup(name, err)))
        return -1;
    listing->count++;
    entry->directory = S_ISDIR(stat.st_mode);
    entry->bytes = (uint64_t)stat.st_size;
    entry->modified = (int64_t)stat.st_mtim.tv_sec;
    return 0;
}

static bool is_hidden(const char *name)
{
    return sl_own_name(name, strlen(name)) || sl_own_name_of_node(name, strlen(name), false);
}

/* Adds the files below a folder; false: there are too many, or it cannot be read. */
static bool add_tree(int parent, const char *name, unsigned depth, unsigned *looks, uint64_t *bytes)
{
    int fd = openat(parent, name, FOLDER_FLAGS);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *found;
    bool whole = folder && depth < DEPTH_MAX;
    if (!folder && fd >= 0)
        close(fd);
    while (whole && (found = sl_next_entry(folder))) {
        struct stat stat;
        if (is_hidden(found->d_name))
            continue;
        whole = *looks && fstatat(fd, found->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0;
        *looks -= *looks > 0;
        if (whole && S_ISDIR(stat.st_mode))
            whole = add_tree(fd, found->d_name, depth + 1, looks, bytes);
        else if (whole && S_ISREG(stat.st_mode) && !web_share_is_kept(found->d_name, &stat))
            *bytes = sl_add_capped(*bytes, (uint64_t)stat.st_size);
    }
    whole = whole && !errno;
    if (folder)
        closedir(folder);
    return whole;
}

static void size_folders(struct listing *listing, int directory)
{
    unsigned looks = LOOKS_MAX;
    for (size_t i = 0; i < listing->count; i++) {
        struct entry *entry = &listing->entries[i];
        uint64_t bytes = 0;
        if (!entry->directory)
            continue;
        entry->sized = add_tree(directory, entry->name, 0, &looks, &bytes);
        entry->bytes = bytes;
    }
}

static int read_directory(struct listing *listing, int fd, struct sl_err *err)
{
    DIR *directory = fdopendir(fd);
    struct dirent *found;
    int result = 0;
    if (!directory) {
        close(fd);
        return sl_fail(err, SL_E_NO_SPACE, "cannot list the directory");
    }
    while (result == 0 && !listing->truncated && (found = sl_next_entry(directory)))
        if (!is_hidden(found->d_name))
            result = add_entry(listing, dirfd(directory), found->d_name, err);
    if (result == 0 && !listing->truncated && errno)
        result = sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list the directory");
    if (listing->count)
        qsort(listing->entries, listing->count, sizeof(*listing->entries), by_name);
    size_folders(listing, dirfd(directory));
    closedir(directory);
    return result;
}

static int put_html(struct sl_buf *out, const char *text, struct sl_err *err)
{
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if ((entity ? sl_buf_text(out, entity, err) : sl_buf_append(out, text, 1, err)) < 0)
            return -1;
    }
    return 0;
}

static int put_escaped(struct sl_buf *out, const char *text, struct sl_err *err)
{
    static const char kept[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    for (; *text; text++)
        if ((strchr(kept, *text) ? sl_buf_append(out, text, 1, err)
                                 : sl_buf_printf(out, err, "%%%02X", (unsigned char)*text)) < 0)
            return -1;
    return 0;
}

static int put_row(struct sl_buf *out, const struct entry *entry, struct sl_err *err)
{
    const char *slash = entry->directory ? "/" : "";
    char size[32] = "", date[32] = "";
    const time_t modified = (time_t)entry->modified;
    struct tm tm;
    if (gmtime_r(&modified, &tm))
        strftime(date, sizeof(date), "%Y-%m-%d %H:%M", &tm);
    if (!entry->directory || entry->sized)
        sl_human_bytes(entry->bytes, size);
    if (sl_buf_text(out, "<tr><td><a href=\"", err) < 0 || put_escaped(out, entry->name, err) < 0 ||
        sl_buf_printf(out, err, "%s\">", slash) < 0 || put_html(out, entry->name, err) < 0)
        return -1;
    return sl_buf_printf(out, err,
                         "%s</a></td><td class=\"number\">%s</td><td class=\"number\">%s</td></tr>"
                         "\n",
                         slash, size, date);
}

/* The path is shown as it was sent: escaped for URLs, then for HTML. */
static int put_head(struct sl_buf *out, const struct request *request, struct sl_err *err)
{
    struct web_text style = web_page_style();
    if (sl_buf_printf(out, err,
                      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                      "<meta name=\"color-scheme\" content=\"light dark\">"
                      "<link rel=\"icon\" href=\"data:,\"><title>Files of ") < 0 ||
        put_html(out, request->web->node_name, err) < 0 ||
        sl_buf_printf(out, err,
                      " · sluice</title><style>%.*s</style></head><body class=\"listing\"><header>"
                      "<h1>sluice</h1><span class=\"facts\">version %s</span></header><main><h2>",
                      style.bytes, style.text, SLUICE_VERSION) < 0 ||
        put_html(out, request->url, err) < 0)
        return -1;
    return sl_buf_text(out,
                       "</h2>\n<table><thead><tr><th scope=\"col\">Name</th>"
                       "<th scope=\"col\" class=\"number\">Size</th>"
                       "<th scope=\"col\">Changed (UTC)</th></tr></thead><tbody>\n",
                       err);
}

static enum MHD_Result answer_html(const struct request *request, const struct listing *listing)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out = SL_BUF_INIT(WEB_ANSWER_BYTES_MAX);
    int result = put_head(&out, request, &err);
    if (result == 0 && strcmp(request->url, request->web->share_prefix) != 0)
        result = sl_buf_text(&out, "<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n",
                             &err);
    for (size_t i = 0; i < listing->count && result == 0; i++)
        result = put_row(&out, &listing->entries[i], &err);
    if (result == 0)
        result = sl_buf_printf(&out, &err, "</tbody></table>%s</main></body></html>\n",
                               listing->truncated ? "<p class=\"none\">and more</p>" : "");
    if (result < 0)
        return web_send_error(request, 507, err.kind, 0, "%s", err.message);
    return web_send_html(request, request->web->listing_policy, &out);
}

static enum MHD_Result answer_json(const struct request *request, const struct listing *listing)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key(&json, "entries");
    sl_json_array(&json);
    for (size_t i = 0; i < listing->count; i++) {
        const struct entry *entry = &listing->entries[i];
        sl_json_object(&json);
        sl_json_key_string(&json, "name", entry->name);
        sl_json_key_string(&json, "type", entry->directory ? "directory" : "file");
        sl_json_key_uint(&json, "bytes", entry->directory ? 0 : entry->bytes);
        sl_json_key(&json, "modified");
        sl_json_int(&json, entry->modified);
        sl_json_end(&json);
    }
    sl_json_end(&json);
    sl_json_key_bool(&json, "truncated", listing->truncated);
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

enum MHD_Result web_listing_answer(const struct request *request, const char *path, int fd)
{
    struct sl_err err = SL_ERR_INIT;
    struct listing listing = {.share_fd = request->web->share_fd, .path = path};
    enum MHD_Result result;
    const char *accept = web_header(request, "Accept");
    if (read_directory(&listing, fd, &err) < 0)
        result = web_send_error(request, 503, err.kind, 1, "%s", err.message);
    else if (accept && strcasestr(accept, "application/json"))
        result = answer_json(request, &listing);
    else
        result = answer_html(request, &listing);
    release(&listing);
    return result;
}
