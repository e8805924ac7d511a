/* Pickles that are written anew: what is not changed means the same, whatever stands in them, and
 * what is broken is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "edit_pickle.h"

static const char before[] =
    "\x80\2}q\0(X\1\0\0\0aq\1K\1X\1\0\0\0bq\2]q\3(h\1h\2h\3eX\1\0\0\0c}q\4X\1\0"
    "\0\0dh\3su.";
static const size_t before_bytes = sizeof(before) - 1;
static const struct sl_path_part a = {.text = "a", .text_bytes = 1},
                                 c_d[] = {{.text = "c", .text_bytes = 1},
                                          {.text = "d", .text_bytes = 1}},
                                 e = {.text = "e", .text_bytes = 1};

static int edit(const void *data, size_t bytes, const struct sl_edit_pickle_change *change,
                struct sl_buf *out, struct sl_err *err)
{
    *out = (struct sl_buf)SL_BUF_INIT(1 << 20);
    return sl_edit_pickle(data, bytes, change, change != NULL, out, err);
}

static void expect(const struct sl_edit_pickle_change *change, const void *expected, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out;
    ck_assert_msg(edit(before, before_bytes, change, &out, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(out.used, bytes);
    ck_assert_int_eq(memcmp(out.data, expected, bytes), 0);
}

#define EXPECT(change, text) expect(change, text, sizeof(text) - 1)

/* What is used once leaves the memo; a list that holds itself does not. */
SL_TEST(without_changes_it_means_the_same)
{
    EXPECT(NULL, "\x80\2}(X\1\0\0\0aq\0K\1X\1\0\0\0bq\1]q\2(h\0h\1h\2eX\1\0\0\0c}X\1\0\0\0dh\2su.");
}

SL_TEST(a_value_is_replaced_added_or_taken_out)
{
    const struct sl_edit_pickle_change replaced = {
        .path = c_d, .path_count = 2, .value = (const uint8_t *)"N", .value_bytes = 1};
    EXPECT(&replaced,
           "\x80\2}(X\1\0\0\0aq\0K\1X\1\0\0\0bq\1]q\2(h\0h\1h\2eX\1\0\0\0c}X\1\0\0\0dNsu.");
    const struct sl_edit_pickle_change gone = {.path = &a, .path_count = 1};
    EXPECT(&gone, "\x80\2}(X\1\0\0\0bq\0]q\1(X\1\0\0\0ah\0h\1eX\1\0\0\0c}X\1\0\0\0dh\1su.");
    const struct sl_edit_pickle_change added = {.path = &e,
                                                .path_count = 1,
                                                .fresh = true,
                                                .value = (const uint8_t *)"N",
                                                .value_bytes = 1};
    EXPECT(&added,
           "\x80\2}(X\1\0\0\0aq\0K\1X\1\0\0\0bq\1]q\2(h\0h\1h\2eX\1\0\0\0c}X\1\0\0\0dh\2suX\1\0\0"
           "\0eNs.");
}

SL_TEST(an_object_beside_the_change_stays_as_it_is)
{
    static const char text[] =
        "\x80\2}(X\1\0\0\0acargparse\nNamespace\n)\x81}X\1\0\0\0xK\1sbX\1\0\0\0eK\2u.";
    static const char wanted[] =
        "\x80\2}(X\1\0\0\0acargparse\nNamespace\n)\x81}X\1\0\0\0xK\1sbX\1\0\0\0eNu.";
    const struct sl_edit_pickle_change replaced = {
        .path = &e, .path_count = 1, .value = (const uint8_t *)"N", .value_bytes = 1};
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out;
    ck_assert_msg(edit(text, sizeof(text) - 1, &replaced, &out, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(out.used, sizeof(wanted) - 1);
    ck_assert_int_eq(memcmp(out.data, wanted, out.used), 0);
}

SL_TEST(a_key_that_is_nowhere_is_told)
{
    const struct sl_edit_pickle_change gone = {.path = &e, .path_count = 1};
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out;
    ck_assert_int_eq(edit(before, before_bytes, &gone, &out, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

/* In memory that ends where it does. */
static int edit_copy(const void *data, size_t bytes, struct sl_err *err)
{
    sl_autobuf out;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, data, bytes);
    const struct sl_edit_pickle_change gone = {.path = &a, .path_count = 1};
    int done = edit(copy, bytes, &gone, &out, err);
    free(copy);
    return done;
}

SL_TEST(every_prefix_is_refused)
{
    for (size_t bytes = 0; bytes < before_bytes; bytes++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(edit_copy(before, bytes, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
    }
}

/* Each byte as each other one: refused or not, nothing else happens. */
SL_TEST(no_byte_does_harm)
{
    char changed[sizeof(before)];
    for (size_t at = 0; at < before_bytes; at++)
        for (unsigned byte = 0; byte < 256; byte++) {
            struct sl_err err = SL_ERR_INIT;
            memcpy(changed, before, before_bytes);
            changed[at] = (char)byte;
            ck_assert(edit_copy(changed, before_bytes, &err) == 0 || err.message[0]);
        }
}

SL_TEST(what_is_nested_too_deep_is_refused)
{
    enum { DEPTH = 100000 };
    sl_autobuf out;
    struct sl_err err = SL_ERR_INIT;
    char *deep = malloc(DEPTH + 2);
    deep[0] = ')';
    memset(deep + 1, 0x85, DEPTH); /* a tuple in a tuple in … */
    deep[DEPTH + 1] = '.';
    ck_assert_int_eq(edit(deep, DEPTH + 2, NULL, &out, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    free(deep);
}
