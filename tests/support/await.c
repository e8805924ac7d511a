/* It sleeps instead of yielding: on two processors a loop that yields starves what it waits for. */
#include "await.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

#include "fake_clock.h"
#include "quiet.h"

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t number = text ? strtoull(text, NULL, 10) : 0;
    return number ? number : otherwise;
}

static uint64_t limit_seconds(void)
{
    return number_of("CK_DEFAULT_TIMEOUT", 60) * number_of("CK_TIMEOUT_MULTIPLIER", 1) * 3 / 4;
}

void sl_waiting_step(struct sl_waiting *waiting, const char *what, const char *file, int line)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000};
    uint64_t now = fake_clock_real_ns();
    if (!waiting->since)
        waiting->since = now;
    uint64_t seconds = (now - waiting->since) / 1000000000u;
    if (seconds >= limit_seconds())
        ck_abort_msg("%s:%d: %s did not come within %u s", file, line, what, (unsigned)seconds);
    quiet_busy_begin();
    nanosleep(&pause, NULL);
    quiet_busy_end();
}
