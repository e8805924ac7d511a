/* A program is heard to the end of its output, in memory that is wiped, and ends with its group. */
#include "ask_program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn.h"

enum { LIMIT_SECONDS = 60, ENDING_MS = 2 };

struct asked {
    struct sl_cancel *cancel;
    pid_t pid; /* 0: it runs no more */
    int out;   /* its stdout */
    uint64_t end_ns;
    const char *why; /* it failed */
};

char *sl_program_find(const char *name)
{
    if (*name == '/')
        return sl_strdup(name, NULL);
    const char *path = getenv("PATH");
    for (const char *at = path ? path : ""; *at && !strchr(name, '/');) {
        size_t bytes = strcspn(at, ":");
        sl_autofree char *file =
            *at == '/' ? sl_asprintf(NULL, "%.*s/%s", (int)bytes, at, name) : NULL;
        if (file && access(file, X_OK) == 0)
            return sl_steal(&file);
        at += bytes + (at[bytes] == ':');
    }
    return NULL;
}

static int failed(struct asked *asked, const char *why)
{
    asked->why = why;
    return SL_ASKED_FAILED;
}

/* What it is asked for lies in memory, so that one that reads nothing blocks nobody. */
static int start(struct asked *asked, const char *path, char *const *argv, const char *input)
{
    int ends[2];
    sl_autoclose int in = memfd_create("input", MFD_CLOEXEC);
    if (in < 0 || dprintf(in, "%s", input) < 0 || lseek(in, 0, SEEK_SET) < 0 ||
        pipe2(ends, O_CLOEXEC) < 0)
        return failed(asked, "cannot be asked: there is no memory or no descriptor left");
    fcntl(ends[0], F_SETFL, O_NONBLOCK); /* its end of the pipe stays as programs expect it */
    const int fds[] = {in, ends[1], -1};
    int missing = sl_spawn(path, argv, fds, &asked->pid);
    close(ends[1]);
    asked->out = ends[0];
    return missing ? failed(asked, "cannot be started") : SL_ASKED_ANSWERED;
}

/* Answered: there is something to see at fd (-1: none), or a moment has passed. */
static int wait_for(struct asked *asked, int fd, int ms, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (sl_cancel_check(asked->cancel, err) < 0)
        return -1;
    if (now >= asked->end_ns)
        return failed(asked, "takes too long");
    struct pollfd fds[] = {{fd, POLLIN, 0}, {sl_cancel_fd(asked->cancel), POLLIN, 0}};
    uint64_t left_ms = (asked->end_ns - now) / SL_NS_PER_MS + 1;
    poll(fds, SL_COUNT(fds), ms >= 0 ? ms : (int)left_ms);
    return SL_ASKED_ANSWERED;
}

static int read_output(struct asked *asked, struct sl_buf *output, struct sl_err *err)
{
    for (;;) {
        char text[4096];
        int result = wait_for(asked, asked->out, -1, err);
        if (result != SL_ASKED_ANSWERED)
            return result;
        ssize_t got = read(asked->out, text, sizeof(text));
        if (got == 0)
            return SL_ASKED_ANSWERED;
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        int kept = got < 0 ? -1 : sl_buf_append(output, text, (size_t)got, NULL);
        explicit_bzero(text, sizeof(text));
        if (kept < 0)
            return failed(asked, "says more than 64 KiB");
    }
}

/* Its output has ended, and so does it, as a rule. */
static int await_end(struct asked *asked, struct sl_err *err)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(asked->pid, &status, WNOHANG)) != asked->pid) {
        if (ended < 0 && errno != EINTR) { /* a process that ignores SIGCHLD is told of no end */
            asked->pid = 0;
            return SL_ASKED_ANSWERED;
        }
        int result = wait_for(asked, -1, ENDING_MS, err);
        if (result != SL_ASKED_ANSWERED)
            return result;
    }
    kill(-asked->pid, SIGKILL); /* whatever it has left behind */
    asked->pid = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? SL_ASKED_ANSWERED : SL_ASKED_REFUSED;
}

static void end(struct asked *asked)
{
    if (asked->pid > 0) {
        kill(-asked->pid, SIGKILL);
        while (waitpid(asked->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (asked->out >= 0)
        close(asked->out);
}

int sl_program_ask(const char *path, char *const *argv, const char *input, struct sl_cancel *cancel,
                   struct sl_buf *output, const char **why, struct sl_err *err)
{
    struct asked asked = {
        .cancel = cancel, .out = -1, .end_ns = sl_now_ns() + LIMIT_SECONDS * SL_NS_PER_S};
    int result = start(&asked, path, argv, input);
    if (result == SL_ASKED_ANSWERED)
        result = read_output(&asked, output, err);
    if (result == SL_ASKED_ANSWERED)
        result = await_end(&asked, err);
    end(&asked);
    *why = asked.why;
    return result;
}
