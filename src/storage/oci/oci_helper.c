/*
 * Logins that programs keep, as ECR, Google and Azure have them: docker-credential-NAME, asked over
 * its stdin and stdout (https://github.com/docker/docker-credential-helpers). Only where the option
 * allows it, only from absolute directories of PATH, without a shell, for a limited time; its
 * output is a stranger's, and never quoted.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json.h"
#include "log.h"
#include "oci_auth.h"
#include "spawn.h"
#include "thread_cancel.h"

enum { NAME_BYTES_MAX = 64, OUTPUT_BYTES_MAX = 64 * 1024, LIMIT_SECONDS = 60, ENDING_MS = 2 };

struct helper {
    const char *name, *host;
    struct sl_cancel *cancel;
    char path[PATH_MAX];
    pid_t pid;
    int out; /* its stdout */
    uint64_t end_ns;
};

static int fail(const struct helper *helper, struct sl_err *err, const char *why)
{
    return sl_fail(
        err, SL_E_AUTH,
        "docker-credential-%.*s, which keeps the login of '%.100s', %s: run `echo %.100s "
        "| docker-credential-%.*s get` to see why",
        NAME_BYTES_MAX, helper->name, helper->host, why, helper->host, NAME_BYTES_MAX,
        helper->name);
}

/* No path can be made of it. */
static bool is_name(const char *name)
{
    size_t bytes = strlen(name);
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_", name[i]))
            return false;
    return bytes >= 1 && bytes <= NAME_BYTES_MAX;
}

/* The first of PATH; directories that depend on where sluice was started do not count. */
static int find(struct helper *helper, struct sl_err *err)
{
    const char *path = getenv("PATH");
    if (!is_name(helper->name))
        return sl_fail(err, SL_E_USAGE, "'%.80s' is not the name of a credential helper",
                       helper->name);
    for (const char *at = path ? path : ""; *at;) {
        size_t bytes = strcspn(at, ":");
        int used = snprintf(helper->path, sizeof(helper->path), "%.*s/docker-credential-%s",
                            (int)SL_MIN(bytes, (size_t)PATH_MAX), at, helper->name);
        if (*at == '/' && used > 0 && (size_t)used < sizeof(helper->path) &&
            access(helper->path, X_OK) == 0)
            return 0;
        at += bytes + (at[bytes] == ':');
    }
    return fail(helper, err, "is in no absolute directory of PATH");
}

/* What it is asked for lies in memory, so that one that reads nothing blocks nobody. */
static int start(struct helper *helper, struct sl_err *err)
{
    static const char hub[] = "https://index.docker.io/v1/";
    const char *place = strcmp(helper->host, "docker.io") == 0 ? hub : helper->host;
    char verb[] = "get";
    char *argv[] = {helper->path, verb, NULL};
    int ends[2];
    sl_autoclose int in = memfd_create("login", MFD_CLOEXEC);
    if (in < 0 || dprintf(in, "%s\n", place) < 0 || lseek(in, 0, SEEK_SET) < 0 ||
        pipe2(ends, O_CLOEXEC) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot ask a credential helper");
    fcntl(ends[0], F_SETFL, O_NONBLOCK); /* its end of the pipe stays as programs expect it */
    const int fds[] = {in, ends[1], -1};
    int failed = sl_spawn(helper->path, argv, fds, &helper->pid);
    close(ends[1]);
    helper->out = ends[0];
    return failed ? fail(helper, err, "cannot be started") : 0;
}

/* 0: there is something to see at fd (-1: none), or a moment has passed. */
static int wait_for(const struct helper *helper, int fd, int ms, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (sl_cancel_check(helper->cancel, err) < 0)
        return -1;
    if (now >= helper->end_ns)
        return fail(helper, err, "takes too long");
    struct pollfd fds[] = {{fd, POLLIN, 0}, {sl_cancel_fd(helper->cancel), POLLIN, 0}};
    uint64_t left_ms = (helper->end_ns - now) / SL_NS_PER_MS + 1;
    poll(fds, SL_COUNT(fds), ms >= 0 ? ms : (int)left_ms);
    return 0;
}

static int read_output(const struct helper *helper, struct sl_buf *output, struct sl_err *err)
{
    for (;;) {
        char text[4096];
        if (wait_for(helper, helper->out, -1, err) < 0)
            return -1;
        ssize_t got = read(helper->out, text, sizeof(text));
        if (got == 0)
            return 0;
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        int kept = got < 0 ? -1 : sl_buf_append(output, text, (size_t)got, NULL);
        explicit_bzero(text, sizeof(text));
        if (kept < 0)
            return fail(helper, err, "says more than 64 KiB");
    }
}

/* Its output has ended, and so does it, as a rule. */
static int await_end(struct helper *helper, int *status, struct sl_err *err)
{
    pid_t ended;
    while ((ended = waitpid(helper->pid, status, WNOHANG)) != helper->pid)
        if ((ended < 0 && errno != EINTR) || wait_for(helper, -1, ENDING_MS, err) < 0)
            return -1;
    kill(-helper->pid, SIGKILL); /* whatever it has left behind */
    helper->pid = 0;
    return 0;
}

static void end(struct helper *helper)
{
    if (helper->pid > 0) {
        kill(-helper->pid, SIGKILL);
        while (waitpid(helper->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (helper->out >= 0)
        close(helper->out);
}

/* {"Username", "Secret"}; "<token>" for a user means an identity token. */
static int take_login(const struct helper *helper, const struct sl_buf *output,
                      struct sl_oci_login *login, struct sl_err *err)
{
    json_t *document = sl_json_parse(sl_buf_string(output), output->used, "login", NULL);
    const char *user = sl_json_get_string(document, "Username");
    const char *secret = sl_json_get_string(document, "Secret");
    int result = 0;
    if (!user || !*user || !secret || !*secret)
        result = fail(helper, err, "did not answer with a login");
    else if (strcmp(user, "<token>") == 0)
        result = (login->identity = sl_strdup(secret, err)) ? 0 : -1;
    else
        result = (login->user = sl_strdup(user, err)) && (login->password = sl_strdup(secret, err))
                     ? 0
                     : -1;
    json_decref(document);
    return result;
}

int sl_oci_helper_ask(const char *name, const char *host, struct sl_cancel *cancel,
                      struct sl_oci_login *login, struct sl_err *err)
{
    struct helper helper = {.name = name,
                            .host = host,
                            .cancel = sl_thread_cancel(cancel),
                            .out = -1,
                            .end_ns = sl_now_ns() + LIMIT_SECONDS * SL_NS_PER_S};
    sl_autosecretbuf output = SL_BUF_INIT(OUTPUT_BYTES_MAX);
    int status = 0, result = find(&helper, err);
    if (result == 0)
        result = start(&helper, err);
    if (result == 0)
        result = read_output(&helper, &output, err);
    if (result == 0)
        result = await_end(&helper, &status, err);
    end(&helper);
    if (result < 0)
        return -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return take_login(&helper, &output, login, err);
    struct sl_err why = SL_ERR_INIT; /* it has none, or could not look: they do not say which */
    fail(&helper, &why, "has no login");
    sl_log(SL_LOG_WARN, "%s", why.message);
    return 0;
}
