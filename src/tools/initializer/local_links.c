/*
 * KServe mounts a claim into both containers at one path, so a link that is made here leads to the
 * model there, too, and nothing is copied.
 */
#include "local_links.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "entries.h"

enum { ENTRIES_MAX = 10000 };

void sl_local_links_release(struct sl_local_links *links)
{
    for (size_t i = 0; i < links->paths.count; i++)
        free(links->paths.items[i]);
    free(links->paths.items);
    *links = (struct sl_local_links){0};
}

static int add(struct sl_local_links *links, const char *path, const char *name,
               const struct sl_patterns *patterns, struct sl_err *err)
{
    const char *leaf = name ? name : strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t bytes = strlen(path);
    if (!*leaf || *leaf == '.' || !sl_patterns_want(patterns, leaf))
        return 0;
    if (links->paths.count == ENTRIES_MAX)
        return sl_fail(err, SL_E_USAGE, "'%.300s' has more than %d entries", path, ENTRIES_MAX);
    while (name && bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    sl_autofree char *whole =
        name ? sl_asprintf(err, "%.*s/%s", (int)bytes, path, name) : sl_strdup(path, err);
    return whole ? sl_list_add(&links->paths, whole, strlen(whole), err) : -1;
}

int sl_local_links_find(struct sl_local_links *links, const char *path,
                        const struct sl_patterns *patterns, struct sl_err *err)
{
    struct stat status;
    int done = 0;
    if (stat(path, &status) < 0)
        return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "cannot look at '%.300s'", path);
    if (!S_ISDIR(status.st_mode)) {
        done = add(links, path, NULL, patterns, err);
    } else {
        DIR *folder = opendir(path);
        if (!folder)
            return sl_fail_errno(err, SL_E_AUTH, errno, "cannot list '%.300s'", path);
        for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));)
            done = add(links, path, entry->d_name, patterns, err);
        if (done == 0 && errno)
            done = sl_fail_errno(err, SL_E_AUTH, errno, "cannot list '%.300s'", path);
        closedir(folder);
    }
    if (done == 0 && links->paths.count == 0)
        return sl_fail(err, SL_E_NOT_FOUND, "no model found in '%.300s'", path);
    return done;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int sl_local_links_list(const struct sl_local_links *links, struct sl_destination *destination,
                        struct sl_err *err)
{
    for (size_t i = 0; i < links->paths.count; i++)
        if (sl_destination_list_link(destination, name_of(links->paths.items[i]), err) < 0)
            return -1;
    return 0;
}

int sl_local_links_make(const struct sl_local_links *links, struct sl_destination *destination,
                        struct sl_err *err)
{
    for (size_t i = 0; i < links->paths.count; i++) {
        const char *path = links->paths.items[i];
        if (sl_destination_link(destination, name_of(path), path, err) < 0)
            return -1;
    }
    return 0;
}
