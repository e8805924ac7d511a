/* A test that lacks something of the machine says so, and is counted as skipped, not as passed. */
#ifndef SL_SKIP_H
#define SL_SKIP_H

#include <stdbool.h>

/** Print "skipped: NAME: WHY" on stdout, the line that scripts/count-tests counts. function: its
 * __func__. */
void sl_skipped(const char *function, const char *why);

/** False: the process is emulated, and what it starts is said to run though it is missing. */
bool sl_missing_program_is_told(void);

/** End the test here: for the test's own function. */
#define SL_SKIP(why)                                                                               \
    do {                                                                                           \
        sl_skipped(__func__, why);                                                                 \
        return;                                                                                    \
    } while (0)

#endif
