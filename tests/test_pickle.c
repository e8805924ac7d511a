/* The pickle machine: stacks, marks, memo, lengths, numbers. */
#include <check.h>
#include <string.h>

#include "pytorch.h"

/* The code that a pickle is refused with, "" if it is read. */
static const char *code_of(const char *data, size_t bytes)
{
    static struct sl_err err;
    struct sl_pytorch torch = {0};
    struct sl_pickle_rules rules = sl_pytorch_rules;
    size_t used = 0;
    rules.arg = &torch;
    err = (struct sl_err)SL_ERR_INIT;
    torch.pickle = sl_pickle_new(&rules, &err);
    ck_assert_ptr_nonnull(torch.pickle);
    if (sl_pickle_read(torch.pickle, data, bytes, &used, &err))
        ck_assert_uint_eq(used, bytes);
    sl_pytorch_release(&torch);
    return err.code;
}
#define CODE(text) code_of(text, sizeof(text) - 1)

START_TEST(values_are_taken_from_where_they_are)
{
    ck_assert_str_eq(CODE("N."), "");
    ck_assert_str_eq(CODE("}(X\1\0\0\0aK\1u."), "");
    ck_assert_str_eq(CODE("."), "pkl.stack");
    ck_assert_str_eq(CODE("NN."), "pkl.stack");
    ck_assert_str_eq(CODE("N(0."), "pkl.stack");
    ck_assert_str_eq(CODE("t."), "pkl.stack");
    ck_assert_str_eq(CODE("N\x86."), "pkl.stack");
    ck_assert_str_eq(CODE("}(Nu."), "pkl.stack");
    ck_assert_str_eq(CODE("(Ne."), "pkl.stack");
    ck_assert_str_eq(CODE("}Na."), "pkl.type");
    ck_assert_str_eq(CODE("}]Ns."), "pkl.type");
}
END_TEST

START_TEST(every_length_is_checked)
{
    ck_assert_str_eq(CODE("X\1\0\0\0a."), "");
    ck_assert_str_eq(CODE("X\2\0\0\0a."), "pkl.truncated");
    ck_assert_str_eq(CODE("X\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x95\3\0\0\0\0\0\0\0N."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x8b\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("X\1\0\0\0\xff."), "pkl.utf8");
    ck_assert_str_eq(CODE("\x80\5N."), "");
    ck_assert_str_eq(CODE("\x80\6N."), "pkl.proto");
    ck_assert_str_eq(CODE("Nq\0h\0\x86."), "");
    ck_assert_str_eq(CODE("h\0."), "pkl.memo");
    ck_assert_str_eq(CODE("Nr\xff\xff\xff\xff."), "pkl.limit");
}
END_TEST

START_TEST(nothing_is_called)
{
    ck_assert_str_eq(CODE("cos\nsystem\n."), "pkl.global");
    ck_assert_str_eq(CODE("cbuiltins\neval\n."), "pkl.global");
    ck_assert_str_eq(CODE("c__builtin__\nset\n)R."), "");
    ck_assert_str_eq(CODE("ctorch\nFloatStorage\n)R."), "pkl.call");
    ck_assert_str_eq(CODE("X\1\0\0\0a)R."), "pkl.call");
    ck_assert_str_eq(CODE("N)\x81."), "pkl.call");
    ck_assert_str_eq(CODE("(ios\nsystem\n."), "pkl.opcode");
    ck_assert_str_eq(CODE("}}b."), "pkl.build");
    ck_assert_str_eq(CODE("NQ."), "pkl.persid");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pickle");
    TCase *tcase = tcase_create("pickle");
    tcase_add_test(tcase, values_are_taken_from_where_they_are);
    tcase_add_test(tcase, every_length_is_checked);
    tcase_add_test(tcase, nothing_is_called);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}
