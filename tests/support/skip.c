/* The function of SL_TEST(claim) is called claim_fn. */
#include "skip.h"

#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

void sl_skipped(const char *function, const char *why)
{
    size_t length = strlen(function);
    if (length > 3 && strcmp(function + length - 3, "_fn") == 0)
        length -= 3;
    printf("skipped: %.*s: %s\n", (int)length, function, why);
    fflush(stdout);
}

bool sl_missing_program_is_told(void)
{
    char name[] = "/nonexistent/program";
    char *const argv[] = {name, NULL};
    pid_t nobody;
    if (posix_spawn(&nobody, name, NULL, NULL, argv, NULL) != 0)
        return true;
    waitpid(nobody, NULL, 0);
    return false;
}
