/*
 * Claims by name: `build/tests/test_http a_claim another`, or SL_TEST="a_claim another", runs these
 * alone, and `--list` prints what a program has. No program does anything for it: the linker puts
 * this in front of Check.
 */
#ifndef SL_ONE_CLAIM_H
#define SL_ONE_CLAIM_H

#include <check.h>

/** Instead of Check's own, by -Wl,--wrap (tests/CMakeLists.txt). */
void __wrap__tcase_add_test(TCase *cases, const TTest *test, int signal, int exit_code, int start,
                            int end);
/** Fails the program, with the nearest names, where a name was given that none of its tests has. */
void __wrap_srunner_run_all(SRunner *runner, enum print_output mode);

#endif
