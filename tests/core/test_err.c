/* The error table: exit codes are promises to scripts and Kubernetes, and the page says the same.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "err.h"
#include "mem.h"
#include "run_sluice.h"

static const struct {
    enum sl_err_kind kind;
    int exit_code;
    const char *name;
} promised[] = {
    {SL_OK, 0, "OK"},
    {SL_E_INTERNAL, 1, "INTERNAL"},
    {SL_E_USAGE, 2, "USAGE"},
    {SL_E_AUTH, 3, "AUTH"},
    {SL_E_NOT_FOUND, 4, "NOT_FOUND"},
    {SL_E_INTEGRITY, 5, "INTEGRITY"},
    {SL_E_NO_SPACE, 6, "NO_SPACE"},
    {SL_E_NET, 7, "NET"},
    {SL_E_TIMEOUT, 8, "TIMEOUT"},
    {SL_E_GPU, 9, "GPU"},
    {SL_E_FORMAT, 10, "FORMAT"},
    {SL_E_CANCELED, 11, "CANCELED"},
};

SL_TEST(exit_codes_are_the_promised_ones)
{
    ck_assert_uint_eq(SL_COUNT(promised), SL_ERR_KIND_COUNT);
    for (size_t i = 0; i < SL_COUNT(promised); i++) {
        const struct sl_err err = {.kind = promised[i].kind};
        ck_assert_int_eq(sl_err_exit(&err), promised[i].exit_code);
        ck_assert_str_eq(sl_err_row(promised[i].kind)->name, promised[i].name);
    }
}

SL_TEST(only_the_network_is_tried_again)
{
    for (int kind = 0; kind < SL_ERR_KIND_COUNT; kind++)
        ck_assert_int_eq(sl_err_row((enum sl_err_kind)kind)->retry, kind == SL_E_NET);
}

SL_TEST(every_row_has_a_meaning_and_statuses)
{
    for (int kind = 1; kind < SL_ERR_KIND_COUNT; kind++) {
        const struct sl_err_row *row = sl_err_row((enum sl_err_kind)kind);
        ck_assert_uint_gt(strlen(row->meaning), 20);
        ck_assert(row->http_status >= 400 && row->http_status < 600);
        ck_assert(row->grpc_status >= 1 && row->grpc_status <= 16);
        ck_assert_ptr_null(strchr(row->meaning, '|'));
    }
    ck_assert_str_eq(sl_err_row((enum sl_err_kind)1000)->name, "INTERNAL");
}

SL_TEST(a_message_cannot_forge_a_line)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(
        sl_fail_code(&err, SL_E_FORMAT, "E\n", "bad name '%s'", "a\nsluice: all is well\x1b[0m"),
        -1);
    ck_assert_str_eq(err.message, "bad name 'a?sluice: all is well?[0m'");
    ck_assert_str_eq(err.code, "E?");
    ck_assert_int_eq(sl_wrap(&err, "object\r'%s'", "x"), -1);
    ck_assert_str_eq(err.message, "object?'x': bad name 'a?sluice: all is well?[0m'");
}

SL_TEST(what_terminals_obey_is_replaced)
{
    static const char *const rows[][2] = {
        {"a\tb\x7f", "a?b?"},
        {"\xc2\x9b"
         "31m",
         "??31m"},                                     /* U+009B, as good as ESC [ */
        {"evil\xe2\x80\xaetxt.exe", "evil???txt.exe"}, /* U+202E turns the rest around */
        {"\xe2\x81\xa6x", "???x"},
        {"\xc3\xa4 \xe2\x80\xa6 \xe2\x82\xac \xc2\xa0",
         "\xc3\xa4 \xe2\x80\xa6 \xe2\x82\xac \xc2\xa0"},
        {"a\xe2\x80\x8b\xe2\x80\x8f\xef\xbb\xbf"
         "b",
         "a?????????b"}, /* U+200B, U+200F, U+FEFF */
        {"a\xe2\x80\xa8\xe2\x80\xa9"
         "b",
         "a??????b"}, /* U+2028, U+2029 */
        {"\xc2\xad\xd8\x9c\xe2\x81\xa0\xf3\xa0\x80\xa0", "???????????"},
        /* U+034F, U+115F, U+1160, U+3164, U+FFA0, U+E0100, U+E01EF: nobody sees them */
        {"a\xcd\x8f\xe1\x85\x9f\xe1\x85\xa0", "a????????"},
        {"\xe3\x85\xa4\xef\xbe\xa0"
         "b",
         "??????b"},
        {"\xf3\xa0\x84\x80\xf3\xa0\x87\xaf", "????????"},
        /* U+200C between letters of Persian, U+200D between emoji; elsewhere nothing is seen */
        {"\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae", "\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae"},
        {"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9",
         "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9"},
        {"\xe2\x80\x8d\xd8\xae\xe2\x80\x8c", "???\xd8\xae???"},
        {"a\xe2\x80\x8c\xd8\xae\xe2\x80\x8d"
         "b",
         "a???\xd8\xae???b"},
        {"mod\xe2\x80\x8d"
         "el",
         "mod???el"},
        {"\xd8\xae\xe2\x80\x8c\xe2\x80\x8c\xd8\xae", "\xd8\xae??????\xd8\xae"},
        {"\xf0\x9f\x98\x80 \xef\xbf\xbd", "\xf0\x9f\x98\x80 \xef\xbf\xbd"},
        {"cut \xe2\x80", "cut \xe2\x80"},
        {"cut \xc2", "cut \xc2"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", rows[i][0]);
        sl_sanitize(text);
        ck_assert_str_eq(text, rows[i][1]);
    }
}

SL_TEST(a_long_message_is_cut_not_overrun)
{
    char text[4096];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    struct sl_err err = SL_ERR_INIT;
    sl_fail_errno(&err, SL_E_NET, 2, "%s", text);
    ck_assert_uint_eq(strlen(err.message), sizeof(err.message) - 1);
    sl_wrap(&err, "%s", text);
    ck_assert_uint_lt(strlen(err.message), sizeof(err.message));
    ck_assert_int_eq(sl_fail(NULL, SL_E_NET, "nobody listens"), -1);
}

SL_TEST(the_page_has_every_row)
{
    struct ran ran = {0};
    RUN(&ran, "docs", "errors");
    ck_assert_int_eq(ran.exit_code, 0);
    for (int kind = 1; kind < SL_ERR_KIND_COUNT; kind++) {
        const struct sl_err_row *row = sl_err_row((enum sl_err_kind)kind);
        char line[512];
        snprintf(line, sizeof(line), "| %d | %s | %d | %d | %s | %s |\n", row->exit_code, row->name,
                 row->http_status, row->grpc_status, row->retry ? "yes" : "", row->meaning);
        ck_assert_msg(strstr(ran.out, line), "%s", line);
    }
    ran_release(&ran);
}
