/*
 * Does it fit? Three kinds of limit: the file system's free space; where its pages are memory, each
 * cgroup from our own up to the root (the kernel kills when any of them is full), and the machine's
 * available memory. Both cgroup versions may be mounted at once. In a container without a cgroup
 * namespace /proc/self/cgroup names a path of the host that is not below our mount: then the
 * mount's root is our own group. Page cache that can be dropped (inactive_file) counts as free.
 * Sources: kernel documents cgroup-v2.rst, cgroup-v1/memory.rst.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include "publish_parts.h"

enum {
    FILE_BYTES_MAX = 64 * 1024,
    PATH_MAX_BYTES = 4200,
    OVERHEAD_BYTES =
        64 * 1024 * 1024, /* our own buffers and the kernel's, in the cgroup beside the model */
};
static const uint64_t UNLIMITED = (uint64_t)1 << 60; /* v1 writes a huge number for "none" */
static const char *room_root = "";

void sl_room_set_root(const char *root)
{
    room_root = root;
}

static int read_text(const char *path, struct sl_buf *text)
{
    sl_autofree char *whole = sl_asprintf(NULL, "%s%s", room_root, path);
    text->used = 0;
    return whole ? sl_buf_read_file(text, whole, NULL) : -1;
}

/* A file that holds one number; "max" and absence are UINT64_MAX. */
static uint64_t read_number(const char *folder, const char *name)
{
    char path[PATH_MAX_BYTES];
    sl_autobuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    uint64_t value;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (read_text(path, &text) < 0 || sscanf(sl_buf_string(&text), "%" SCNu64, &value) != 1)
        return UINT64_MAX;
    return value;
}

/* "key value" in a file of such lines; 0 if absent. */
static uint64_t read_member(const char *path, const char *key)
{
    sl_autobuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    uint64_t value = 0;
    if (read_text(path, &text) < 0)
        return 0;
    size_t bytes = strlen(key);
    for (const char *line = sl_buf_string(&text); line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, bytes) == 0 && (line[bytes] == ' ' || line[bytes] == ':'))
            return sscanf(line + bytes + 1, "%" SCNu64, &value) == 1 ? value : 0;
    }
    return 0;
}

static void add_limit(struct sl_room *room, uint64_t limit, uint64_t available, const char *format,
                      const char *name, const char *file)
{
    if (room->count == SL_COUNT(room->limits))
        return;
    struct sl_room_limit *item = &room->limits[room->count++];
    item->limit = limit;
    item->available = available;
    snprintf(item->what, sizeof(item->what), format, name, file);
}

struct group_files {
    const char *mount, *current, *stat, *inactive;
    const char *limits[3];
};
static const struct group_files version_2 = {"/sys/fs/cgroup",
                                             "memory.current",
                                             "memory.stat",
                                             "inactive_file",
                                             {"memory.max", "memory.high", NULL}};
static const struct group_files version_1 = {"/sys/fs/cgroup/memory",
                                             "memory.usage_in_bytes",
                                             "memory.stat",
                                             "total_inactive_file",
                                             {"memory.limit_in_bytes", NULL}};

static void look_at_group(struct sl_room *room, const struct group_files *files, const char *group)
{
    char folder[PATH_MAX_BYTES], stat_path[PATH_MAX_BYTES + 32];
    snprintf(folder, sizeof(folder), "%s%s", files->mount, group);
    uint64_t current = read_number(folder, files->current);
    if (current == UINT64_MAX)
        return;
    snprintf(stat_path, sizeof(stat_path), "%s/%s", folder, files->stat);
    uint64_t inactive = read_member(stat_path, files->inactive);
    uint64_t used = current - SL_MIN(current, inactive);
    for (size_t i = 0; files->limits[i]; i++) {
        uint64_t limit = read_number(folder, files->limits[i]);
        if (limit < UNLIMITED)
            add_limit(room, limit, limit - SL_MIN(limit, used), "cgroup %.100s: %s",
                      *group ? group : "/", files->limits[i]);
    }
}

static bool is_there(const struct group_files *files, const char *group)
{
    struct stat status;
    sl_autofree char *path =
        sl_asprintf(NULL, "%s%s%s/%s", room_root, files->mount, group, files->current);
    return path && stat(path, &status) == 0;
}

/* From our own group up to the mount's root. */
static void look_at_groups(struct sl_room *room, const struct group_files *files, const char *own)
{
    char group[PATH_MAX_BYTES / 2];
    snprintf(group, sizeof(group), "%s", own);
    if (!is_there(files, group))
        group[0] = 0;
    for (;;) {
        size_t bytes = strlen(group);
        while (bytes && group[bytes - 1] == '/')
            group[--bytes] = 0;
        look_at_group(room, files, group);
        if (bytes == 0)
            return;
        char *slash = strrchr(group, '/');
        *(slash ? slash : group) = 0;
    }
}

/* Lines "0::/path" (v2) and "9:memory:/path" (v1, possibly several controllers). */
static void look_at_memory(struct sl_room *room)
{
    sl_autobuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    if (read_text("/proc/self/cgroup", &text) == 0 && text.data) {
        char *rest = text.data;
        for (char *line; (line = strsep(&rest, "\n"));) {
            char *controllers = strchr(line, ':'),
                 *path = controllers ? strchr(controllers + 1, ':') : NULL;
            if (!path)
                continue;
            *path++ = 0;
            controllers++;
            if (!*controllers)
                look_at_groups(room, &version_2, path);
            else if (strstr(controllers, "memory"))
                look_at_groups(room, &version_1, path);
        }
    }
    uint64_t available = read_member("/proc/meminfo", "MemAvailable") * 1024;
    uint64_t total = read_member("/proc/meminfo", "MemTotal") * 1024;
    if (available && total)
        add_limit(room, total, available, "memory of the machine%s%s", "", "");
}

static bool is_memory(const char *path)
{
    struct statfs status;
    if (*room_root)
        return true;
    return statfs(path, &status) == 0 &&
           (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC ||
            status.f_type == HUGETLBFS_MAGIC);
}

/* The destination, or the nearest folder above it that exists. */
static char *existing(const char *path, struct sl_err *err)
{
    struct stat status;
    char *text = sl_strdup(path, err);
    while (text && stat(text, &status) < 0) {
        char *slash = strrchr(text, '/');
        if (!slash) {
            free(text);
            return sl_strdup(".", err);
        }
        slash[slash == text] = 0;
        if (slash == text)
            break;
    }
    return text;
}

static int refuse(const struct sl_room *room, const struct sl_room_limit *limit, const char *path,
                  struct sl_err *err)
{
    char needs[32], has[32], whole[32];
    sl_human_bytes(room->needed, needs);
    sl_human_bytes(limit->available, has);
    sl_human_bytes(limit->limit, whole);
    if (strncmp(limit->what, "cgroup", 6) == 0)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' needs %s of memory, but %s is %s with %s free: set "
                       "resources.limits.memory (or the "
                       "service's MemoryMax) higher",
                       path, needs, limit->what, whole, has);
    if (strncmp(limit->what, "memory", 6) == 0)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' needs %s, but of the machine's %s of memory only %s are available: "
                       "use a larger machine, or a "
                       "directory on disk",
                       path, needs, whole, has);
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' needs %s, but %s of %s has %s free: give it a larger size (an emptyDir's "
                   "sizeLimit, or mount "
                   "-o remount,size=…), or free space",
                   path, needs, limit->what, whole, has);
}

int sl_room_check(const char *path, uint64_t bytes, uint64_t already, struct sl_room *out,
                  struct sl_err *err)
{
    struct sl_room own, *room = out ? out : &own;
    *room = (struct sl_room){.needed = bytes - SL_MIN(bytes, already)};
    sl_autofree char *place = existing(path, err);
    struct statvfs space;
    if (!place)
        return -1;
    if (statvfs(place, &space) < 0)
        return sl_tree_fail(err, errno, "look at the space of", path);
    if (space.f_flag & ST_RDONLY)
        return sl_tree_fail(err, EROFS, "write to", path);
    room->memory = is_memory(place);
    if (space.f_blocks && !*room_root) /* a tmpfs without size= has none: no limit */
        add_limit(room, (uint64_t)space.f_blocks * space.f_frsize,
                  (uint64_t)space.f_bavail * space.f_frsize,
                  room->memory ? "tmpfs %.140s%s" : "file system of %.130s%s", place, "");
    if (room->memory)
        look_at_memory(room);
    for (unsigned i = 0; room->needed && i < room->count; i++) {
        bool group = strncmp(room->limits[i].what, "cgroup", 6) == 0;
        uint64_t wanted = room->needed + (group ? OVERHEAD_BYTES : 0);
        if (room->limits[i].available < wanted)
            return refuse(room, &room->limits[i], path, err);
    }
    return 0;
}

void sl_room_json(struct sl_json *json, const struct sl_room *room)
{
    sl_json_object(json);
    sl_json_key_uint(json, "needed_bytes", room->needed);
    sl_json_key_bool(json, "memory", room->memory);
    sl_json_key(json, "limits");
    sl_json_array(json);
    for (unsigned i = 0; i < room->count; i++) {
        sl_json_object(json);
        sl_json_key_string(json, "what", room->limits[i].what);
        sl_json_key_uint(json, "limit_bytes", room->limits[i].limit);
        sl_json_key_uint(json, "available_bytes", room->limits[i].available);
        sl_json_end(json);
    }
    sl_json_end(json);
    sl_json_end(json);
}
