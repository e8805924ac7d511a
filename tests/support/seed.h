/*
 * Where tests that try many cases take them from. The same cases come in every run, so that what
 * fails once fails again, unless the environment asks for others:
 *
 *     SLUICE_TEST_SEED=random    of one by the clock, printed as "seed: test_spec: N"
 *     SLUICE_TEST_SEED=N         of that seed: what was found is found again
 *     SLUICE_TEST_ROUNDS=N       so many rounds of each search
 *
 * Any thread may call these, but for the sequence of the process.
 */
#ifndef SL_SEED_H
#define SL_SEED_H

#include <stddef.h>
#include <stdint.h>

/** The seed of this program's cases: fixed, or what SLUICE_TEST_SEED says. */
uint64_t sl_test_seed(void);
/** How many rounds a random search takes: `gate`, or `whole` if SLUICE_TEST_SEED is set. */
unsigned sl_test_rounds(unsigned gate, unsigned whole);

/**
 * How far apart like cases are tried that differ by a number: failing allocations, seeds, the _i of
 * a claim that has many.
 * The thread sanitizer makes each ten times as slow, and any seventh shows what it looks for. A
 * prime: what else goes by the number is tried in all its ways.
 */
enum {
#ifdef __SANITIZE_THREAD__
    SL_TEST_STEP = 7,
#else
    SL_TEST_STEP = 1,
#endif
#ifdef __SANITIZE_ADDRESS__
    SL_TEST_STARTS_STEP = 3,
#else
    SL_TEST_STARTS_STEP = SL_TEST_STEP,
#endif
};

/** The next number of a sequence, below `below`; *state is its seed before the first. */
uint64_t sl_test_draw(uint64_t *state, uint64_t below);
/** The same of one sequence for the process, of its seed; for one thread. */
uint64_t sl_test_pick(uint64_t below);
void sl_test_fill(void *data, size_t bytes);

#endif
