/* Archives: every field of the end records and the directory that decides something, one off. */
#include <check.h>
#include <string.h>

#include "golden.h"
#include "zip.h"

static const char *code_of(const uint8_t *data, size_t bytes)
{
    static struct sl_err err;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    struct sl_zip zip = {0};
    char *key = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_memory_put("x.zip", data, bytes, &err), 0);
    ck_assert_int_eq(sl_store_open("memory:x.zip", NULL, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &source, &err), 0);
    sl_zip_open(&zip, source, &err);
    sl_zip_release(&zip);
    free(key);
    return err.code;
}

/* A field `back` bytes before the end of the archive gets another value. */
static void check_field(size_t back, uint8_t value, const char *code)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/records_2_7.pt", &bytes);
    data[bytes - back] = value;
    ck_assert_msg(strcmp(code_of(data, bytes), code) == 0, "%zu: %s instead of %s", back,
                  code_of(data, bytes), code);
    free(data);
}

START_TEST(end_records_must_agree)
{
    check_field(1, 0, "");
    check_field(1, 1, "zip.trailing");           /* a comment that is not there */
    check_field(22, 0, "zip.no-eocd");           /* the signature */
    check_field(18, 1, "zip.multidisk");         /* number of this disk */
    check_field(16, 1, "zip.multidisk");         /* of the directory's */
    check_field(14, 0xee, "zip.eocd");           /* entries on this disk */
    check_field(6, 0xee, "zip.eocd");            /* place of the directory */
    check_field(22 + 4, 2, "zip.multidisk");     /* disks of the locator */
    check_field(22 + 12, 0xee, "zip.eocd");      /* place of the ZIP64 record */
    check_field(22 + 20 + 52, 0xee, "zip.eocd"); /* its size */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zip");
    TCase *tcase = tcase_create("zip");
    tcase_add_test(tcase, end_records_must_agree);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}
