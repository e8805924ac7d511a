/* The shared directory: what a path below it is answered with. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "web_http.h"
#include "web_parts.h"

int web_share_open(struct sl_web *web, const struct sl_web_config *config, struct sl_err *err)
{
    const char *prefix = config->share_prefix ? config->share_prefix : "/";
    size_t bytes = strlen(prefix);
    if (bytes == 0 || bytes >= sizeof(web->share_prefix) || prefix[0] != '/' ||
        prefix[bytes - 1] != '/')
        return sl_fail(err, SL_E_USAGE,
                       "cannot share below '%s': the prefix must begin and end with a slash",
                       prefix);
    memcpy(web->share_prefix, prefix, bytes + 1);
    web->share_fd = open(config->share_directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (web->share_fd < 0)
        return sl_fail_errno(err,
                             errno == ENOENT            ? SL_E_NOT_FOUND
                             : sl_errno_is_short(errno) ? SL_E_NO_SPACE
                                                        : SL_E_USAGE,
                             errno, "cannot share '%s', name a directory that you may read",
                             config->share_directory);
    web->named = web_named_new(err);
    return web->named ? 0 : -1;
}

/* "/models" to "/models/", so that the names of the listing are relative to it. To a browser a
 * backslash is a slash, and two of them begin the name of another host. */
static enum MHD_Result answer_redirect(const struct request *request)
{
    char place[SL_WEB_PATH_BYTES * 3 + 2];
    size_t used = 0;
    for (const char *at = request->url; *at && used + 4 < sizeof(place); at++) {
        size_t bytes = *at == '\\' ? 3 : 1;
        memcpy(place + used, bytes > 1 ? "%5C" : at, bytes);
        used += bytes;
    }
    memcpy(place + used, "/", 2);
    struct MHD_Response *response = web_empty();
    if (response)
        sl_libmicrohttpd.add_response_header(response, "Location", place);
    return web_queue(request, 301, response);
}

static enum MHD_Result answer_open(const struct request *request, const char *path, int *fd,
                                   bool *found)
{
    struct stat stat;
    size_t bytes = strlen(path);
    bool slash = bytes == 0 || path[bytes - 1] == '/';
    const char *before = strrchr(path, '/');
    *found = fstat(*fd, &stat) == 0 &&
             (S_ISDIR(stat.st_mode) || (S_ISREG(stat.st_mode) && !slash)) &&
             !web_share_is_kept(before ? before + 1 : path, &stat);
    if (!*found)
        return MHD_NO;
    if (S_ISDIR(stat.st_mode) && !slash)
        return answer_redirect(request);
    if (S_ISDIR(stat.st_mode)) {
        int listed = *fd;
        *fd = -1;
        return web_listing_answer(request, path, listed);
    }
    return web_share_send(request, fd);
}

enum MHD_Result web_share_answer(const struct request *request, bool must, bool *found)
{
    char path[SL_WEB_PATH_BYTES];
    size_t prefix_bytes = strlen(request->web->share_prefix);
    *found = false;
    if (strncmp(request->url, request->web->share_prefix, prefix_bytes) != 0)
        return MHD_NO;
    int status = sl_web_path_decode(request->url + prefix_bytes - 1, path);
    if (status && status != 404 && must) {
        *found = true;
        return web_send_error(request, status, SL_E_USAGE, 0, "the path of the request is %s",
                              status == 414 ? "too long" : "not a valid path");
    }
    if (status)
        return MHD_NO;
    if (web_share_unready(request->web->share_fd, path)) {
        *found = must; /* /readyz and its like answer meanwhile */
        return must ? web_send_error(request, 503, SL_E_NOT_FOUND, 1,
                                     "'%.200s' is being published: try again in a second", path)
                    : MHD_NO;
    }
    sl_autoclose int fd = web_share_open_at(request->web->share_fd, path);
    if (fd < 0 && errno == EACCES && must) {
        *found = true;
        return web_send_error(request, 403, SL_E_AUTH, 0, "this user may not read '%.200s'", path);
    }
    if (fd < 0 && sl_errno_is_short(errno)) {
        *found = true;
        return web_send_error(request, 503, SL_E_NO_SPACE, 1, "too many files are open");
    }
    return fd < 0 ? MHD_NO : answer_open(request, path, &fd, found);
}
