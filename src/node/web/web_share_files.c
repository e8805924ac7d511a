/*
 * Files below one directory, by the path of the request. The kernel resolves the path beneath the
 * directory (openat2, RESOLVE_BENEATH): neither ".." nor a symlink leads out. Where openat2 is
 * missing or forbidden, each component is opened without following links, which is stricter.
 *
 * A file's bytes go from the page cache to the socket by sendfile, without passing through us. The
 * descriptor is opened for each request, so a file that is replaced meanwhile is answered whole
 * from one version, and its ETag tells which.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "http_through.h"
#include "mem.h"
#include "metrics.h"
#include "own_names.h"
#include "thread.h"
#include "web_http.h"
#include "web_parts.h"

enum {
    OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
    RACES_MAX = 8,
    TICK_MS = 20, /* two of the slowest kernel's */
};

static int open_by_component(int directory, const char *path)
{
    char name[NAME_MAX + 1];
    int at = dup(directory);
    while (at >= 0 && *path) {
        size_t bytes = strcspn(path, "/");
        if (bytes > NAME_MAX)
            bytes = NAME_MAX;
        memcpy(name, path, bytes);
        name[bytes] = 0;
        path += bytes + (path[bytes] == '/');
        int next = openat(at, name, OPEN_FLAGS | O_NOFOLLOW | (*path ? O_DIRECTORY : 0));
        int saved = errno;
        close(at);
        errno = saved;
        at = next;
    }
    return at;
}

int web_share_open_at(int directory, const char *path)
{
    struct open_how how = {.flags = OPEN_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = -1;
    errno = EAGAIN; /* what the kernel says when a rename elsewhere raced with a link's ".." */
    for (int i = 0; i < RACES_MAX && fd < 0 && errno == EAGAIN; i++)
        fd = syscall(SYS_openat2, directory, *path ? path : ".", &how, sizeof(how));
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL))
        return (int)fd;
    return *path ? open_by_component(directory, path)
                 : openat(directory, ".", OPEN_FLAGS | O_DIRECTORY);
}

static bool publishing(int share_fd, const char *directory)
{
    char path[SL_WEB_PATH_BYTES + 32];
    snprintf(path, sizeof(path), "%s.sluice", directory);
    if (faccessat(share_fd, path, F_OK, 0) < 0)
        return false;
    snprintf(path, sizeof(path), "%s.sluice/ready", directory);
    return faccessat(share_fd, path, F_OK, 0) < 0;
}

bool web_share_unready(int share_fd, const char *path)
{
    char directory[SL_WEB_PATH_BYTES];
    for (size_t i = 0;; i++) {
        /* Each directory on the way: "" and whatever ends in a slash. */
        if (i == 0 || path[i - 1] == '/') {
            memcpy(directory, path, i);
            directory[i] = 0;
            if (publishing(share_fd, directory))
                return true;
        }
        if (!path[i])
            return false;
    }
}

bool web_share_is_kept(const char *name, const struct stat *stat)
{
    return S_ISREG(stat->st_mode) &&
           sl_own_name_of_node(name, strlen(name), !(stat->st_mode & 077));
}

/* ---- answering ------------------------------------------------------------------------------ */

struct file {
    int fd;
    uint64_t bytes, begin, end;
    int64_t modified;
    bool weak; /* its ETag, while it may change without another one */
    char etag[96];
    const char *name; /* of its object; NULL: it is asked for by its path */
};

static uint64_t in_ns(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SL_NS_PER_S + (uint64_t)time->tv_nsec;
}

/* Within the kernel's tick a file can change again and keep its times. ctime: nobody can set it.
 * For how long from now; 0: it changed before. */
static uint64_t unsettled_ns(const struct stat *stat)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t tick_ns = TICK_MS * SL_NS_PER_MS, end_ns = in_ns(&stat->st_ctim) + tick_ns;
    return in_ns(&now) < end_ns ? SL_MIN(end_ns - in_ns(&now), tick_ns) : 0;
}

/* A file that has just changed is looked at after the tick, so that its readers have a version from
 * the first answer on. Once: somebody may be writing all the time. */
static int settle(int fd, struct stat *stat)
{
    uint64_t wait_ns = unsettled_ns(stat);
    if (!wait_ns)
        return 0;
    const struct timespec wait = {.tv_nsec = (long)wait_ns};
    nanosleep(&wait, NULL);
    return fstat(fd, stat);
}

static void describe(struct file *file, const struct stat *stat)
{
    file->bytes = file->end = (uint64_t)stat->st_size;
    file->modified = (int64_t)stat->st_mtim.tv_sec;
    file->weak = unsettled_ns(stat) > 0;
    char once[24] = ""; /* other bytes may settle with the same times: it is of this answer alone */
    if (file->weak)
        snprintf(once, sizeof(once), "-%" PRIx64, sl_now_ns());
    snprintf(file->etag, sizeof(file->etag),
             "%s\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "%s\"", file->weak ? "W/" : "",
             file->bytes, in_ns(&stat->st_mtim), in_ns(&stat->st_ctim), (uint64_t)stat->st_ino,
             once);
}

static void add_validators(struct MHD_Response *response, const struct file *file)
{
    char date[32];
    sl_libmicrohttpd.add_response_header(response, "ETag", file->etag);
    sl_libmicrohttpd.add_response_header(response, "Last-Modified",
                                         sl_web_date(file->modified, date));
    sl_libmicrohttpd.add_response_header(response, "Accept-Ranges", "bytes");
    sl_libmicrohttpd.add_response_header(response, "Cache-Control", "no-cache");
}

static enum MHD_Result answer_empty(const struct request *request, const struct file *file,
                                    int status)
{
    char total[48];
    struct MHD_Response *response = web_empty();
    if (!response)
        return MHD_NO;
    add_validators(response, file);
    if (status == 416) {
        snprintf(total, sizeof(total), "bytes */%" PRIu64, file->bytes);
        sl_libmicrohttpd.add_response_header(response, "Content-Range", total);
    }
    return web_queue(request, status, response);
}

/* Takes file->fd. */
static enum MHD_Result answer_bytes(const struct request *request, struct file *file, int status)
{
    char range[80];
    uint64_t bytes = file->end - file->begin;
    struct MHD_Response *response =
        bytes ? sl_libmicrohttpd.create_response_from_fd_at_offset64(bytes, file->fd, file->begin)
              : web_empty();
    if (response && bytes)
        file->fd = -1; /* the response closes it */
    if (!response)
        return MHD_NO;
    add_validators(response, file);
    sl_libmicrohttpd.add_response_header(response, "Content-Type", "application/octet-stream");
    if (file->name)
        sl_libmicrohttpd.add_response_header(response, SL_HTTP_THROUGH_NAME, file->name);
    if (status == 206) {
        snprintf(range, sizeof(range), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, file->begin,
                 file->end - 1, file->bytes);
        sl_libmicrohttpd.add_response_header(response, "Content-Range", range);
    }
    if (!request->head) {
        web_streams(request, true);
        web_bound_socket(request, true);
        sl_metric_add(SL_M_SHARED_BYTES, (int64_t)bytes);
    }
    return web_queue(request, status, response);
}

static enum MHD_Result answer_file(const struct request *request, struct file *file)
{
    const struct sl_web_conditions conditions = {
        .if_match = web_header(request, "If-Match"),
        .if_none_match = web_header(request, "If-None-Match"),
        .if_modified_since = web_header(request, "If-Modified-Since"),
        .if_unmodified_since = web_header(request, "If-Unmodified-Since"),
        .if_range = web_header(request, "If-Range"),
    };
    bool use_range = !request->head; /* RFC 9110: Range is defined for GET alone */
    int status = sl_web_conditions_check(&conditions, file->etag, file->modified, &use_range);
    if (status)
        return answer_empty(request, file, status);
    enum sl_web_range range = SL_WEB_RANGE_NONE;
    if (conditions.if_range && file->weak)
        use_range = false;
    if (use_range)
        range =
            sl_web_range_parse(web_header(request, "Range"), file->bytes, &file->begin, &file->end);
    if (range == SL_WEB_RANGE_UNSATISFIABLE)
        return answer_empty(request, file, 416);
    return answer_bytes(request, file, range == SL_WEB_RANGE_ONE ? 206 : 200);
}

enum MHD_Result web_share_send(const struct request *request, int *fd)
{
    struct stat stat;
    struct file file = {.fd = *fd};
    if (fstat(*fd, &stat) < 0 || settle(*fd, &stat) < 0)
        return MHD_NO;
    describe(&file, &stat);
    enum MHD_Result result = answer_file(request, &file);
    *fd = file.fd;
    return result;
}

enum MHD_Result web_share_send_named(const struct request *request, int *fd, const char *name,
                                     uint64_t begin, uint64_t end, uint64_t bytes)
{
    struct stat stat;
    struct file file = {.fd = *fd};
    if (fstat(*fd, &stat) < 0)
        return MHD_NO;
    describe(&file, &stat);
    file.begin = begin;
    file.end = end;
    file.bytes = bytes;
    file.name = name;
    enum MHD_Result result = answer_bytes(request, &file, 206);
    *fd = file.fd;
    return result;
}
