/* posix_spawn() does not copy our memory, and closes what is marked so. */
#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

static int prepare_group(posix_spawnattr_t *attributes)
{
    enum { FLAGS = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP };
    sigset_t defaults, none;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    int failed = posix_spawnattr_setsigdefault(attributes, &defaults);
    failed = failed ? failed : posix_spawnattr_setsigmask(attributes, &none);
    failed = failed ? failed : posix_spawnattr_setpgroup(attributes, 0);
    return failed ? failed : posix_spawnattr_setflags(attributes, FLAGS);
}

static int prepare_fds(posix_spawn_file_actions_t *actions, const int fds[3])
{
    int failed = 0;
    for (int to = STDIN_FILENO; to <= STDERR_FILENO && !failed; to++)
        failed = fds[to] >= 0 ? posix_spawn_file_actions_adddup2(actions, fds[to], to)
                              : posix_spawn_file_actions_addopen(actions, to, "/dev/null",
                                                                 to ? O_WRONLY : O_RDONLY, 0);
    return failed;
}

int sl_spawn(const char *file, char *const *argv, const int fds[3], pid_t *pid)
{
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    int failed = prepare_group(&attributes);
    failed = failed ? failed : prepare_fds(&actions, fds);
    if (!failed)
        failed = posix_spawnp(pid, file, &actions, &attributes, argv, environ);
    if (!failed)
        (void)setpgid(*pid, *pid); /* where it is emulated, the child may not have begun */
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}
