#include "older_libc.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>

void arc4random_buf(void *to, size_t bytes)
{
    char *next = to;
    while (bytes) {
        ssize_t got = getrandom(next, bytes, 0);
        if (got < 0 && errno != EINTR)
            abort();
        if (got > 0) {
            next += got;
            bytes -= (size_t)got;
        }
    }
}

const char *sigabbrev_np(int number)
{
    switch (number) {
    case SIGHUP:
        return "HUP";
    case SIGINT:
        return "INT";
    case SIGQUIT:
        return "QUIT";
    case SIGTERM:
        return "TERM";
    case SIGUSR1:
        return "USR1";
    case SIGUSR2:
        return "USR2";
    default:
        return NULL;
    }
}
