/*
 * Another program, once: started from an argument vector (no shell), in a process group of its own
 * so that all of it can be ended, its stdout thrown away, the end of its stderr kept for people.
 * The kernel counts its processor time; its memory is sampled while it runs, grandchildren not
 * included.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_parts.h"
#include "spawn.h"

enum { SAMPLE_MS = 10, ENDING_MS = 2, TAIL_BYTES = 512 };

struct running {
    pid_t pid;
    int stderr_fd; /* -1 when it ended */
    char tail[TAIL_BYTES + 1];
    size_t tail_bytes;
    uint64_t peak;
};

bool sl_bench_program_found(const char *name)
{
    const char *path = getenv("PATH");
    for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; *at;) {
        char whole[4096];
        size_t bytes = strcspn(at, ":");
        int used = snprintf(whole, sizeof(whole), "%.*s/%s", (int)bytes, at, name);
        if (bytes && used > 0 && (size_t)used < sizeof(whole) && access(whole, X_OK) == 0)
            return true;
        at += bytes + (at[bytes] == ':');
    }
    return false;
}

static int start(char *const *argv, struct running *running, struct sl_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make a pipe for '%s'", argv[0]);
    const int fds[] = {-1, -1, ends[1]};
    int failed = sl_spawn(argv[0], argv, fds, &running->pid);
    close(ends[1]);
    running->stderr_fd = ends[0];
    if (!failed)
        return 0;
    close(ends[0]);
    return sl_fail_errno(err, failed == ENOENT ? SL_E_NOT_FOUND : SL_E_USAGE, failed,
                         "'%s' cannot be started", argv[0]);
}

/* Keep the last bytes that it wrote. */
static void take_stderr(struct running *running)
{
    char text[TAIL_BYTES];
    ssize_t got = read(running->stderr_fd, text, sizeof(text));
    if (got <= 0) {
        close(running->stderr_fd);
        running->stderr_fd = -1;
        return;
    }
    size_t keep = SL_MIN(running->tail_bytes, TAIL_BYTES - (size_t)got);
    memmove(running->tail, running->tail + running->tail_bytes - keep, keep);
    memcpy(running->tail + keep, text, (size_t)got);
    running->tail_bytes = keep + (size_t)got;
    running->tail[running->tail_bytes] = 0;
}

static const char *last_line(struct running *running)
{
    char *text = running->tail;
    size_t end = running->tail_bytes;
    while (end && strchr("\r\n ", text[end - 1]))
        text[--end] = 0;
    char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

/* Until it ended (true; it is not reaped), or time or the caller's patience is over (false). */
static bool await(struct running *running, const struct sl_bench_child *child, uint64_t end_ns)
{
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        uint64_t memory = sl_bench_memory(running->pid);
        running->peak = SL_MAX(running->peak, memory);
        if (waitid(P_PID, (id_t)running->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == running->pid)
            return true;
        if (sl_cancel_raised(child->cancel) || sl_now_ns() >= end_ns)
            return false;
        struct pollfd fds[] = {{running->stderr_fd, POLLIN, 0},
                               {sl_cancel_fd(child->cancel), POLLIN, 0}};
        if (poll(fds, SL_COUNT(fds), running->stderr_fd < 0 ? ENDING_MS : SAMPLE_MS) > 0 &&
            fds[0].revents)
            take_stderr(running);
    }
}

/* What it has left in its group goes with it; then nothing writes to the pipe any more. */
static void reap(struct running *running, int *status, struct rusage *usage)
{
    kill(-running->pid, SIGKILL);
    while (wait4(running->pid, status, 0, usage) < 0 && errno == EINTR)
        continue;
    if (running->stderr_fd >= 0)
        fcntl(running->stderr_fd, F_SETFL, O_NONBLOCK);
    while (running->stderr_fd >= 0)
        take_stderr(running);
}

static int judge(const struct sl_bench_child *child, struct running *running, int status,
                 struct sl_err *err)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status))
        return sl_fail(err, SL_E_NET, "'%s' was ended by signal %d", child->argv[0],
                       WTERMSIG(status));
    return sl_fail(err, SL_E_NET, "'%s' ended with %d: %s", child->argv[0], WEXITSTATUS(status),
                   last_line(running));
}

int sl_bench_child_run(const struct sl_bench_child *child, struct sl_bench_sample *sample,
                       struct sl_err *err)
{
    struct running running = {.stderr_fd = -1};
    struct rusage usage = {0};
    uint64_t began = sl_now_ns(), end = began + child->limit_seconds * SL_NS_PER_S;
    int status = 0;
    if (start(child->argv, &running, err) < 0)
        return -1;
    bool ended = await(&running, child, end);
    sample->seconds = (double)(sl_now_ns() - began) / (double)SL_NS_PER_S;
    reap(&running, &status, &usage);
    sample->cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                          (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    sample->peak_memory_bytes = running.peak;
    if (!ended && sl_cancel_check(child->cancel, err) < 0)
        return -1;
    if (!ended)
        return sl_fail(err, SL_E_TIMEOUT, "'%s' took longer than %llu s (--peer-seconds)",
                       child->argv[0], (unsigned long long)child->limit_seconds);
    return judge(child, &running, status, err);
}
