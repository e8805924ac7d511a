/* A test that lacks something of the machine says so, and is counted as skipped, not as passed. */
#ifndef SL_SKIP_H
#define SL_SKIP_H

/** Print "skipped: NAME: WHY" on stdout, the line that scripts/count-tests counts. function: its
 * __func__. */
void sl_skipped(const char *function, const char *why);

/** End the test here: for the test's own function. */
#define SL_SKIP(why)                                                                               \
    do {                                                                                           \
        sl_skipped(__func__, why);                                                                 \
        return;                                                                                    \
    } while (0)

#endif
