/* The function of SL_TEST(claim) is called claim_fn. */
#include "skip.h"

#include <stdio.h>
#include <string.h>

void sl_skipped(const char *function, const char *why)
{
    size_t length = strlen(function);
    if (length > 3 && strcmp(function + length - 3, "_fn") == 0)
        length -= 3;
    printf("skipped: %.*s: %s\n", (int)length, function, why);
    fflush(stdout);
}
