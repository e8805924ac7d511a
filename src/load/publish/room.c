/*
 * Does it fit? Three kinds of limit: the file system's free space; where its pages are memory, each
 * cgroup from our own up to the root (the kernel kills when any of them is full), and the machine's
 * available memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include "cgroup.h"
#include "publish_parts.h"

enum {
    OVERHEAD_BYTES =
        64 * 1024 * 1024, /* our own buffers and the kernel's, in the cgroup beside the model */
};

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

static void look_at_group(const struct sl_cgroup *group, const char *file, uint64_t limit,
                          uint64_t available, void *arg)
{
    add_limit(arg, limit, available, "cgroup %.100s: %s", *group->path ? group->path : "/", file);
}

static void look_at_memory(struct sl_room *room)
{
    sl_cgroup_memory(look_at_group, room);
    uint64_t available = sl_cgroup_file_member("/proc/meminfo", "MemAvailable") * 1024;
    uint64_t total = sl_cgroup_file_member("/proc/meminfo", "MemTotal") * 1024;
    if (available && total)
        add_limit(room, total, available, "memory of the machine%s%s", "", "");
}

static bool is_memory(const char *path)
{
    struct statfs status;
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
    char needs[32], has[32], whole[32], least[32];
    sl_human_bytes(room->needed, needs);
    sl_human_bytes(limit->available, has);
    sl_human_bytes(limit->limit, whole);
    uint64_t used = limit->limit - SL_MIN(limit->limit, limit->available);
    uint64_t wanted = sl_add_capped(room->needed, sl_add_capped(used, OVERHEAD_BYTES));
    snprintf(least, sizeof(least), "%" PRIu64 "Mi", (wanted + (1 << 20) - 1) >> 20);
    if (strncmp(limit->what, "cgroup", 6) == 0)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' needs %s of memory and %d MiB to work with, but %s is %s with %s "
                       "free: set resources.limits.memory (or the service's MemoryMax) to at "
                       "least %s",
                       path, needs, OVERHEAD_BYTES >> 20, limit->what, whole, has, least);
    if (strncmp(limit->what, "memory", 6) == 0)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' needs %s, but of the machine's %s of memory only %s are available: "
                       "use a larger machine, or a "
                       "directory on disk",
                       path, needs, whole, has);
    return sl_fail(err, SL_E_NO_SPACE, "'%s' needs %s, but %s of %s has %s free: %s", path, needs,
                   limit->what, whole, has,
                   /* the kubelet gives a memory volume the smaller of the two as its size */
                   room->memory ? "give it a larger size (an emptyDir's sizeLimit, and "
                                  "resources.limits.memory of the pod, or mount -o "
                                  "remount,size=…), or free space"
                                : "free space, or use a larger one");
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
    if (space.f_blocks) /* a tmpfs without size= has none: no limit */
        add_limit(room, (uint64_t)space.f_blocks * space.f_frsize,
                  (uint64_t)space.f_bavail * space.f_frsize,
                  room->memory ? "tmpfs %.140s%s" : "file system of %.130s%s", place, "");
    if (room->memory)
        look_at_memory(room);
    for (unsigned i = 0; room->needed && i < room->count; i++) {
        bool group = strncmp(room->limits[i].what, "cgroup", 6) == 0;
        uint64_t wanted = sl_add_capped(room->needed, group ? OVERHEAD_BYTES : 0);
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
