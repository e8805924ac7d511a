/* posix_spawn with stdout and stderr in files: a pipe could fill up while nobody reads the other
 * one. */
#include "run_sluice.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

extern char **environ;

enum { OUTPUT_BYTES_MAX = 4 << 20, ARGUMENTS_MAX = 64 };

void ran_release(struct ran *ran)
{
    free(ran->out);
    free(ran->err);
    memset(ran, 0, sizeof(*ran));
}

static pid_t spawn(const char *program, const char *const *arguments, int out, int err)
{
    const char *argv[ARGUMENTS_MAX + 2] = {program};
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, ARGUMENTS_MAX);
        argv[i + 1] = arguments[i];
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_adddup2(&actions, err, 2);
    /* A test that runs in the background has SIGINT ignored; what it starts shall not inherit that.
     */
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigfillset(&defaults);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    pid_t pid;
    int failed = posix_spawnp(&pid, program, &actions, &attributes, (char *const *)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed ? -1 : pid;
}

static int scratch_file(void)
{
    int fd = memfd_create("output", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static char *read_back(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    ck_assert_int_le(bytes, OUTPUT_BYTES_MAX);
    char *text = calloc(1, (size_t)bytes + 1);
    ck_assert_int_eq(pread(fd, text, (size_t)bytes, 0), bytes);
    close(fd);
    return text;
}

int wait_sluice(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void collect(struct ran *ran, pid_t pid, int out, int err)
{
    ran->exit_code = pid < 0 ? 127 : wait_sluice(pid);
    ran->out = read_back(out);
    ran->err = read_back(err);
}

void run_program(struct ran *ran, const char *program, const char *const *arguments)
{
    ran_release(ran);
    int out = scratch_file(), err = scratch_file();
    collect(ran, spawn(program, arguments, out, err), out, err);
}

void run_copy(struct ran *ran, const char *const *arguments)
{
    char name[] = "sluice", *argv[ARGUMENTS_MAX + 2] = {name};
    int count = 1;
    for (; arguments[count - 1]; count++) {
        ck_assert_int_lt(count, ARGUMENTS_MAX);
        argv[count] = (char *)(uintptr_t)arguments[count - 1];
    }
    ran_release(ran);
    int out = scratch_file(), err = scratch_file();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (dup2(none, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
            _exit(126);
        int code = sl_cli_main(count, argv);
        fflush(NULL);
        _exit(
            code); /* exit() would have a sanitizer look for leaks in all that the test has, too */
    }
    collect(ran, pid, out, err);
}

static const char *sluice_path(void)
{
    const char *path = getenv("SLUICE");
    ck_assert_msg(path != NULL, "SLUICE is not set to the program under test");
    return path;
}

void run_sluice(struct ran *ran, const char *const *arguments)
{
    run_program(ran, sluice_path(), arguments);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* such a library cannot be opened by a program that is not */
#else
enum { SANITIZED = 0 };
#endif

int run_python_with(struct ran *ran, const char *script, const char *argument, const char *more)
{
    char library[600], path[600];
    const char *sluice = getenv("SLUICE"), *slash = sluice ? strrchr(sluice, '/') : NULL;
    const char *const words[] = {path, argument, more, NULL};
    if (!slash || SANITIZED)
        return -1;
    snprintf(path, sizeof(path), "%s/tests/support/%s", SL_SOURCE_ROOT, script);
    snprintf(library, sizeof(library), "%.*s/lib/libsluice.so.0", (int)(slash - sluice), sluice);
    if (access(library, R_OK) < 0)
        return -1;
    setenv("SLUICE_LIBRARY", library, 1);
    setenv("PYTHONPATH", SL_SOURCE_ROOT "/python", 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    run_program(ran, "python3", words);
    return ran->exit_code == 127 ? -1 : 0;
}

int run_python(struct ran *ran, const char *script, const char *argument)
{
    return run_python_with(ran, script, argument, NULL);
}

pid_t start_sluice(const char *const *arguments, const char *out_path, const char *err_path)
{
    int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert(out >= 0 && err >= 0);
    pid_t pid = spawn(sluice_path(), arguments, out, err);
    close(out);
    close(err);
    ck_assert_int_gt(pid, 0);
    return pid;
}

pid_t start_program(const char *program, const char *const *arguments)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pid_t pid = spawn(program, arguments, null, null);
    close(null);
    ck_assert_int_gt(pid, 0);
    return pid;
}
