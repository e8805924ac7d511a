/* Waiting for what another thread or process does: with an end that says what did not come. */
#ifndef SL_AWAIT_H
#define SL_AWAIT_H

#include <stdint.h>

struct sl_waiting {
    uint64_t since;
};

/** Sleep a little; fails the test with `what` when three quarters of Check's time limit are over.
 */
void sl_waiting_step(struct sl_waiting *waiting, const char *what, const char *file, int line);

/** Until the condition, asked for again and again, holds. what: as in "'the second load' did not
 * come". */
#define SL_AWAIT(condition, what)                                                                  \
    do {                                                                                           \
        struct sl_waiting sl_waiting_ = {0};                                                       \
        while (!(condition))                                                                       \
            sl_waiting_step(&sl_waiting_, what, __FILE__, __LINE__);                               \
    } while (0)

#endif
