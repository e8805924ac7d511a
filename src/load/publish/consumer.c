/*
 * What consumers of a published directory do: wait for it, and check it. Waiting asks inotify to
 * wake it when something happens in the deepest folder on the way that exists, and looks again
 * every second in any case: a mount in between makes no event.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "publish_parts.h"

enum { LOOK_AGAIN_MS = 1000, READY_BYTES_MAX = 4096 };

static int watch_deepest(int notify, const char *ready, struct sl_err *err)
{
    enum { EVENTS = IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ATTRIB };
    sl_autofree char *text = sl_strdup(ready, err);
    if (!text)
        return -1;
    for (char *slash; (slash = strrchr(text, '/'));) {
        slash[slash == text] = 0;
        if (inotify_add_watch(notify, text, EVENTS) >= 0 || slash == text)
            return 0;
    }
    inotify_add_watch(notify, ".", EVENTS);
    return 0;
}

static void sleep_until_event(int notify, struct sl_cancel *cancel, unsigned ms)
{
    struct pollfd fds[2] = {{sl_cancel_fd(cancel), POLLIN, 0}, {notify, POLLIN, 0}};
    poll(fds, 2, (int)ms);
    char events[4096];
    while (notify >= 0 && read(notify, events, sizeof(events)) > 0)
        ;
}

/* On a disk, after another boot, files are read before ready is believed; nothing is written, since
 * who waits may not. *doubted: the ready that was not. */
static bool is_believed(const char *path, const struct stat *ready, struct stat *doubted,
                        struct sl_cancel *cancel)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    sl_autobuf text = SL_BUF_INIT(READY_BYTES_MAX);
    struct sl_err why = SL_ERR_INIT;
    if (ready->st_ino == doubted->st_ino && ready->st_mtim.tv_sec == doubted->st_mtim.tv_sec &&
        ready->st_mtim.tv_nsec == doubted->st_mtim.tv_nsec)
        return false;
    sl_autoclose int root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_autoclose int state_fd =
        root_fd < 0 ? -1 : openat(root_fd, SL_STATE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state_fd < 0 || sl_tree_read(state_fd, SL_READY, &text, &why) < 0)
        return true; /* it is there, and nothing more may be known of it */
    json_t *document = sl_json_parse(sl_buf_string(&text), text.used, SL_READY, NULL);
    bool past = sl_boot_is_past(root_fd, document);
    json_decref(document);
    if (!past || (sl_published_read(state_fd, SL_MANIFEST, &published, &why) == 0 &&
                  sl_published_check(root_fd, -1, &published, cancel, &why) == 0))
        return true;
    *doubted = *ready;
    if (why.kind != SL_E_CANCELED)
        sl_log(SL_LOG_WARN, "what is published in '%s' does not count: %s; load it again", path,
               why.message);
    return false;
}

void sl_publish_now(const char *path, char identity[65])
{
    sl_autobuf text = SL_BUF_INIT(READY_BYTES_MAX);
    *identity = 0;
    sl_autoclose int root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_autoclose int state_fd =
        root_fd < 0 ? -1 : openat(root_fd, SL_STATE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state_fd < 0 || sl_tree_read(state_fd, SL_READY, &text, NULL) < 0)
        return;
    json_t *document = sl_json_parse(sl_buf_string(&text), text.used, SL_READY, NULL);
    const char *found = sl_json_get_string(document, "identity");
    if (found && strlen(found) == 64 && strspn(found, "0123456789abcdef") == 64)
        memcpy(identity, found, 65);
    json_decref(document);
}

/* than NULL: whatever is there counts. */
static bool counts(const char *path, const char *than, char identity[65])
{
    if (!than)
        return true;
    sl_publish_now(path, identity);
    return *identity && (!*than || strncmp(identity, than, strlen(than)) != 0);
}

static int wait_for(const char *path, const char *than, unsigned timeout_seconds,
                    struct sl_cancel *cancel, char identity[65], struct sl_err *err)
{
    uint64_t end = timeout_seconds ? sl_now_ns() + timeout_seconds * SL_NS_PER_S : UINT64_MAX;
    sl_autofree char *ready = sl_asprintf(err, "%s/" SL_STATE_DIRECTORY "/" SL_READY, path);
    if (!ready)
        return -1;
    struct stat doubted = {.st_ino = 0};
    for (;;) {
        struct stat status;
        sl_autoclose int notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (notify >= 0 && watch_deepest(notify, ready, err) < 0)
            return -1;
        if (stat(ready, &status) == 0 && S_ISREG(status.st_mode) && counts(path, than, identity) &&
            is_believed(path, &status, &doubted, cancel))
            return 0;
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        uint64_t now = sl_now_ns();
        if (now >= end)
            return sl_fail(
                err, SL_E_TIMEOUT,
                "%s'%s' was not published within %u s: look at the log of its load, or wait "
                "longer",
                than && *than ? "another version of " : "", path, timeout_seconds);
        uint64_t left_ms = (end - now) / SL_NS_PER_MS + 1;
        sleep_until_event(notify, cancel, (unsigned)SL_MIN(left_ms, (uint64_t)LOOK_AGAIN_MS));
    }
}

int sl_publish_wait(const char *path, unsigned timeout_seconds, struct sl_cancel *cancel,
                    struct sl_err *err)
{
    return wait_for(path, NULL, timeout_seconds, cancel, NULL, err);
}

int sl_publish_wait_next(const char *path, const char *than, unsigned timeout_seconds,
                         struct sl_cancel *cancel, char identity[65], struct sl_err *err)
{
    return wait_for(path, than, timeout_seconds, cancel, identity, err);
}

int sl_publish_verify(const char *path, void (*each)(const char *name, bool good, void *arg),
                      void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    sl_autoclose int root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_autoclose int state_fd =
        root_fd < 0
            ? -1
            : openat(root_fd, SL_STATE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (state_fd < 0)
        return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "'%s' holds no published model", path);
    if (sl_published_read(state_fd, SL_MANIFEST, &published, err) < 0)
        return sl_wrap(err, "'%s' holds no published model", path);
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, SL_HASH_BUFFER_BYTES, err);
    if (!buffer)
        return -1;
    int done = 0;
    for (size_t i = 0; i < published.count; i++) {
        bool good;
        struct sl_err why = SL_ERR_INIT;
        if (sl_published_hash(root_fd, &published.files[i], buffer, cancel, &good, &why) < 0) {
            if (err && (done == 0 || why.kind != SL_E_INTEGRITY))
                *err = why;
            done = -1;
            if (why.kind != SL_E_INTEGRITY)
                return -1;
        }
        if (each)
            each(published.files[i].name, good, arg);
        if (!good && done == 0)
            done = sl_fail(
                err, SL_E_INTEGRITY,
                "'%s' in '%s' does not match its CRC32C of the manifest: load the model again",
                published.files[i].name, path);
    }
    return done;
}
