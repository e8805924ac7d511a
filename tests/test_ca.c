/* Where certificates are looked for: the order of what names them is in test_http's TLS cases. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "ca.h"
#include "mem.h"

START_TEST(first_readable_file_wins)
{
    const char *const files[] = {"/nowhere/a.pem", "/proc/self/status", "/proc/self/stat"};
    ck_assert_str_eq(sl_ca_first(files, SL_COUNT(files)), files[1]);
    ck_assert_ptr_null(sl_ca_first(files, 1));
    ck_assert_ptr_null(sl_ca_first(files, 0));
}
END_TEST

START_TEST(every_way_of_naming_them_is_taken)
{
    CURL *easy = curl_easy_init();
    ck_assert_ptr_nonnull(easy);
    ck_assert_int_eq(sl_ca_use(easy, "/nowhere/a.pem"), CURLE_OK);
    ck_assert_int_eq(sl_ca_use(easy, ""), CURLE_OK);
    setenv("SSL_CERT_DIR", "/nowhere", 1);
    ck_assert_int_eq(sl_ca_use(easy, NULL), CURLE_OK);
    setenv("SSL_CERT_FILE", "/nowhere/b.pem", 1);
    ck_assert_int_eq(sl_ca_use(easy, NULL), CURLE_OK);
    unsetenv("SSL_CERT_DIR");
    unsetenv("SSL_CERT_FILE");
    curl_easy_cleanup(easy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ca");
    TCase *ca = tcase_create("ca");
    tcase_add_test(ca, first_readable_file_wins);
    tcase_add_test(ca, every_way_of_naming_them_is_taken);
    suite_add_tcase(suite, ca);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}
