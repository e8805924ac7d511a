/* One suite with one case: more structure than names have, none of the tests needs. */
#include "case_main.h"

int sl_case_main(const char *name, SFun setup, SFun teardown, const TTest *const *tests,
                 size_t count)
{
    Suite *suite = suite_create(name);
    TCase *cases = tcase_create("all");
    tcase_add_checked_fixture(cases, setup, teardown);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(cases, tests[i]);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}
