/* The main() of a program of tests that share their setup. */
#ifndef SL_CASE_MAIN_H
#define SL_CASE_MAIN_H

#include <check.h>
#include <stddef.h>

/** Runs them all, each in a process of its own; what main() returns. setup, teardown: NULL for
 * none. */
int sl_case_main(const char *name, SFun setup, SFun teardown, const TTest *const *tests,
                 size_t count);

#endif
