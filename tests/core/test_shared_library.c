/* Libraries that are opened at run time: what is said where one is missing, or too old. */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "mem.h"
#include "shared_library.h"

static void *found[2];

static int open_with(const char *file, const char *function, bool optional, struct sl_err *err)
{
    const struct sl_shared_function functions[] = {
        {"strlen", &found[0], NULL, false},
        {function, &found[1], NULL, optional},
    };
    return sl_shared_library_open(file, "tests", functions, SL_COUNT(functions), err);
}

SL_TEST(a_missing_library_is_named_with_what_needs_it)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(open_with("libnot-there.so.1", "strlen", false, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "cannot open 'libnot-there.so.1', which tests need: install"),
                  "%s", err.message);
}

SL_TEST(a_library_that_is_too_old_is_named_with_what_it_lacks)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(open_with("libc.so.6", "sl_no_such_function", false, &err), -1);
    ck_assert_msg(strstr(err.message, "has no sl_no_such_function()"), "%s", err.message);
    ck_assert_int_eq(open_with("libc.so.6", "sl_no_such_function", true, &err), 0);
    ck_assert_ptr_null(found[1]);
}

/* libm needs libc. */
SL_TEST(functions_of_what_a_library_needs_are_found)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(open_with("libm.so.6", "fmod", false, &err), 0);
    ck_assert_ptr_nonnull(found[0]);
    ck_assert_ptr_nonnull(found[1]);
}

SL_CASE()
