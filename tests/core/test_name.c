/* Names from strangers. */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "sink.h"

static int judge(const char *name, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    int failed = sl_name_check(name, bytes, &err);
    if (failed) {
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_str_eq(err.code, "E_NAME");
    }
    return failed;
}

SL_TEST(ordinary_names_pass)
{
    static const char *const names[] = {
        "model.safetensors", "a/b/c.json",      "...",           "a..b",         ".hidden",
        ".sluice2",          "a/.sluice2",      "a b+c%20",      "ü/日",         "-",
        "a/..b/c",           ".sluice.json",    "m.sluice-edit", ".sluice-edit", ".sluice-new",
        ".m.sluice-edits",   "a/m.sluice-lock",
    };
    for (size_t i = 0; i < SL_COUNT(names); i++)
        ck_assert_msg(judge(names[i], strlen(names[i])) == 0, "%s", names[i]);
}

SL_TEST(names_that_leave_or_confuse_are_refused)
{
    static const char *const names[] = {
        "",
        "/",
        "/etc/passwd",
        ".",
        "..",
        "../x",
        "a/../b",
        "a/..",
        "a//b",
        "a/",
        "./a",
        "a/./b",
        "a\\b",
        "a\nb",
        "a\x7f",
        "\x01",
        ".sluice",
        ".sluice/ready",
        "a/.sluice",
        "a/.sluice/initializer/0.mark",
        ".m.sluice-edit",
        "a/.m.sluice-new",
        ".m.sluice-lock/x",
        "a/.x.sluice-edit/b",
    };
    for (size_t i = 0; i < SL_COUNT(names); i++)
        ck_assert_msg(judge(names[i], strlen(names[i])) == -1, "%s", names[i]);
    ck_assert_int_eq(judge("a\xff", 2), -1);
    ck_assert_int_eq(judge("\xc3/b", 3), -1);
    ck_assert_int_eq(judge("a\0b", 3), -1);
    ck_assert_int_eq(judge("a\0", 2), -1);
}

SL_TEST(lengths_are_limited)
{
    char name[1100];
    memset(name, 'a', sizeof(name));
    ck_assert_int_eq(judge(name, 255), 0);
    ck_assert_int_eq(judge(name, 256), -1);
    for (size_t i = 200; i < sizeof(name); i += 200)
        name[i] = '/';
    ck_assert_int_eq(judge(name, 1024), 0);
    ck_assert_int_eq(judge(name, 1025), -1);
}
