/*
 * Objects that loads of other machines ask for by their common names (source.through): a file of a
 * published model that is its object byte for byte, as the manifest says, and has not changed
 * since. What is asked for so and is not here is 421, whatever its path: that is of its store.
 *
 * Manifests are looked for in the shared directory and two folders deep, as a node keeps versions
 * of models; anew when a name is not known, but not all the time.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "entries.h"
#include "http_through.h"
#include "publish.h"
#include "web_http.h"
#include "web_parts.h"

enum { DEPTH = 2, FOLDERS_MAX = 10000, LOOK_MS = 2000 };

struct row {
    char name[SL_SOURCE_NAME_BYTES];
    char *path; /* below the shared directory */
    uint64_t bytes, mtime_ns;
};

struct named {
    pthread_mutex_t lock;
    struct {
        struct row *rows;
        size_t count, capacity;
        unsigned folders;
        uint64_t looked_ns; /* 0: never */
    } locked;
};

struct named *web_named_new(struct sl_err *err)
{
    struct named *named = sl_alloc(sizeof(*named), err);
    if (named)
        pthread_mutex_init(&named->lock, NULL);
    return named;
}

/* With the lock. */
static void forget(struct named *named)
{
    while (named->locked.count)
        free(named->locked.rows[--named->locked.count].path);
}

void web_named_free(struct named *named)
{
    if (!named)
        return;
    forget(named);
    free(named->locked.rows);
    pthread_mutex_destroy(&named->lock);
    free(named);
}

/* ---- manifests ------------------------------------------------------------------------------- */

struct looking {
    struct named *named;
    const char *folder;
};

static void add_row(const struct sl_publish_object *object, void *arg)
{
    const struct looking *looking = arg;
    struct named *named = looking->named;
    if (strlen(object->name) + 1 != SL_SOURCE_NAME_BYTES ||
        sl_grow(&named->locked.rows, &named->locked.capacity, named->locked.count + 1,
                sizeof(*named->locked.rows), NULL) < 0)
        return;
    struct row *row = &named->locked.rows[named->locked.count];
    memcpy(row->name, object->name, SL_SOURCE_NAME_BYTES);
    row->bytes = object->bytes;
    row->mtime_ns = object->mtime_ns;
    row->path = sl_asprintf(NULL, "%s%s", looking->folder, object->file);
    named->locked.count += row->path != NULL;
}

/* folder: "" or with '/' at its end. What cannot be read now is not found this time. */
static void look_in(struct named *named, int share_fd, const char *folder, unsigned depth)
{
    char below[SL_WEB_PATH_BYTES];
    const struct dirent *entry;
    int fd = web_share_open_at(share_fd, folder);
    struct looking looking = {named, folder};
    if (fd >= 0 && !web_share_unready(share_fd, folder))
        sl_publish_objects(fd, add_row, &looking);
    DIR *dir = fd >= 0 && depth ? fdopendir(fd) : NULL;
    if (fd >= 0 && !dir)
        close(fd);
    while (dir && (entry = sl_next_entry(dir)) && named->locked.folders < FOLDERS_MAX) {
        bool is_folder = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
        if (!is_folder || *entry->d_name == '.' ||
            snprintf(below, sizeof(below), "%s%s/", folder, entry->d_name) >= (int)sizeof(below))
            continue;
        named->locked.folders++;
        look_in(named, share_fd, below, depth - 1);
    }
    if (dir)
        closedir(dir);
}

/* With the lock. */
static const struct row *find(const struct named *named, const char *name)
{
    for (size_t i = 0; i < named->locked.count; i++)
        if (strcmp(named->locked.rows[i].name, name) == 0)
            return &named->locked.rows[i];
    return NULL;
}

/* ---- answering ------------------------------------------------------------------------------- */

/* A descriptor of the file, as it was published; -1: there is none. */
static int open_row(int share_fd, const struct row *row)
{
    struct stat stat;
    int fd = web_share_unready(share_fd, row->path) ? -1 : web_share_open_at(share_fd, row->path);
    if (fd < 0)
        return -1;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && (uint64_t)stat.st_size == row->bytes &&
        (uint64_t)stat.st_mtim.tv_sec * SL_NS_PER_S + (uint64_t)stat.st_mtim.tv_nsec ==
            row->mtime_ns)
        return fd;
    close(fd);
    return -1;
}

static int open_named(struct sl_web *web, const char *name, uint64_t *bytes)
{
    struct named *named = web->named;
    SL_LOCKED(&named->lock);
    const struct row *row = find(named, name);
    int fd = row ? open_row(web->share_fd, row) : -1;
    uint64_t now = sl_now_ns();
    if (fd < 0 &&
        (!named->locked.looked_ns || now - named->locked.looked_ns >= LOOK_MS * SL_NS_PER_MS)) {
        forget(named);
        named->locked.folders = 0;
        named->locked.looked_ns = now;
        look_in(named, web->share_fd, "", DEPTH);
        row = find(named, name);
        fd = row ? open_row(web->share_fd, row) : -1;
    }
    *bytes = row ? row->bytes : 0;
    return fd;
}

enum MHD_Result web_named_answer(const struct request *request, bool *found)
{
    const char *name = web_header(request, SL_HTTP_THROUGH_NAME);
    uint64_t bytes = 0, begin = 0, end = 0;
    *found = web_header(request, SL_HTTP_THROUGH_KEY) != NULL;
    if (!*found)
        return MHD_NO;
    sl_autoclose int fd = name && request->web->named ? open_named(request->web, name, &bytes) : -1;
    if (fd < 0)
        return web_send_error(request, 421, SL_E_NOT_FOUND, 0,
                              "no model here has this object as it is, in this version");
    if (request->head ||
        sl_web_range_parse(web_header(request, "Range"), bytes, &begin, &end) != SL_WEB_RANGE_ONE)
        return web_send_error(request, 416, SL_E_USAGE, 0,
                              "an object that is asked for by its name is read by single ranges");
    return web_share_send_named(request, &fd, name, begin, end, bytes);
}
