/* A claim is a process of its own; the seed by the clock is chosen before, so all have the same. */
#include "seed.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_clock.h"
#include "mem.h"

static const uint64_t FIXED = 20;

static uint64_t number_of(const char *name, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    ck_assert_msg(*text >= '0' && *text <= '9' && !*end && !errno, "%s is '%s', no number", name,
                  text);
    return number;
}

static uint64_t seed;
__attribute__((constructor)) static void look_at_the_clock(void)
{
    seed = fake_clock_real_ns();
}

static void choose(void)
{
    const char *wanted = getenv("SLUICE_TEST_SEED");
    if (!wanted || !*wanted) {
        seed = FIXED;
    } else if (strcmp(wanted, "random") != 0) {
        seed = number_of("SLUICE_TEST_SEED", wanted);
    } else {
        printf("seed: %s: %" PRIu64 "\n", program_invocation_short_name, seed);
        fflush(stdout);
    }
}

uint64_t sl_test_seed(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return seed;
}

unsigned sl_test_rounds(unsigned gate, unsigned whole)
{
    const char *rounds = getenv("SLUICE_TEST_ROUNDS"), *wanted = getenv("SLUICE_TEST_SEED");
    if (rounds && *rounds)
        return (unsigned)number_of("SLUICE_TEST_ROUNDS", rounds);
    return wanted && *wanted ? whole : gate;
}

/* The generator is SplitMix64. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t sl_test_draw(uint64_t *state, uint64_t below)
{
    return next(state) % below;
}

static uint64_t *of_process(void)
{
    static uint64_t state;
    static bool begun;
    if (!begun)
        state = sl_test_seed();
    begun = true;
    return &state;
}

uint64_t sl_test_pick(uint64_t below)
{
    return sl_test_draw(of_process(), below);
}

void sl_test_fill(void *data, size_t bytes)
{
    uint8_t *at = data;
    for (size_t left = bytes; left;) {
        uint64_t value = next(of_process());
        size_t part = SL_MIN(left, sizeof(value));
        memcpy(at, &value, part);
        at += part;
        left -= part;
    }
}
