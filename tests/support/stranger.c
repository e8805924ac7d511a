/* fork, and give away all rights: what a test forked dies with the test's own process. */
#include "stranger.h"

#include <check.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool stranger_exists(const char *test)
{
    if (geteuid() == 0)
        return true;
    printf("skipped: %s: it takes root, who can be another user for a while\n", test);
    return false;
}

int stranger_begins(int (*what)(void *arg), void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (setgroups(0, NULL) < 0 || setresgid(STRANGER_GID, STRANGER_GID, STRANGER_GID) < 0 ||
        setresuid(STRANGER_UID, STRANGER_UID, STRANGER_UID) < 0)
        _exit(99);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user takes it back */
    _exit(what(arg));
}

void stranger_ends(int pid)
{
    int status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

int stranger_runs(int (*what)(void *arg), void *arg)
{
    int status = -1;
    ck_assert_int_eq(waitpid(stranger_begins(what, arg), &status, 0) < 0, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
