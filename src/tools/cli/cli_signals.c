/* Signals of the process, and who may look into it. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli.h"
#include "descriptors.h"
#include "log.h"

static struct sl_cancel *signal_cancel;

/* The first signal ends the work in order; a second Ctrl-C does not wait for that. */
static void on_signal(int number)
{
    if (number == SIGINT && sl_cancel_raised(signal_cancel))
        _exit(128 + number);
    sl_cancel_raise(signal_cancel, number);
}

/* What was ignored when we were started stays so: nohup, jobs in the background. */
void sl_cli_catch_signals(struct sl_cancel *cancel)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    signal_cancel = cancel;
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        struct sigaction old, action = {.sa_handler = on_signal};
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond a limit is told as any that cannot be written */
}

void sl_cli_restore_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == on_signal)
            signal(numbers[i], SIG_DFL);
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sl_descriptors_restore();
}

void sl_cli_shut_others_out(void)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        sl_log(SL_LOG_WARN,
               "processes of this user may look into this one's memory: PR_SET_DUMPABLE: %s",
               strerror(errno));
}
