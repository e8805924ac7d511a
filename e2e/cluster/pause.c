/*
 * The process that holds a pod's namespaces: it reaps orphans and ends when it is told to.
 *
 * As pid 1 of its namespace it gets only the signals that it asks for, so it waits for exactly
 * those three.
 */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    for (;;) {
        int number = 0;
        if (sigwait(&wanted, &number) == 0 && number != SIGCHLD)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
    }
}
