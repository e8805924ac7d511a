/* Where certificates are looked for: the order of what names them is in test_http's TLS cases. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "ca.h"
#include "claims.h"
#include "mem.h"

SL_TEST(first_readable_file_wins)
{
    const char *const files[] = {"/nowhere/a.pem", "/proc/self/status", "/proc/self/stat"};
    ck_assert_str_eq(sl_ca_first(files, SL_COUNT(files)), files[1]);
    ck_assert_ptr_null(sl_ca_first(files, 1));
    ck_assert_ptr_null(sl_ca_first(files, 0));
}

SL_TEST(every_way_of_naming_them_is_taken)
{
    ck_assert_int_eq(sl_libcurl_open(NULL), 0);
    CURL *easy = sl_libcurl.easy_init();
    ck_assert_ptr_nonnull(easy);
    unsetenv("SSL_CERT_FILE");
    unsetenv("CURL_CA_BUNDLE");
    unsetenv("REQUESTS_CA_BUNDLE");
    struct sl_ca_choice choice = sl_ca_choose("/nowhere/a.pem");
    ck_assert_str_eq(choice.from, "source.tls.caFile");
    ck_assert_int_eq(sl_ca_use(easy, &choice), CURLE_OK);
    choice = sl_ca_choose("");
    ck_assert_str_eq(choice.from, "the system");
    ck_assert_int_eq(sl_ca_use(easy, &choice), CURLE_OK);
    setenv("SSL_CERT_DIR", "/nowhere", 1);
    choice = sl_ca_choose(NULL);
    ck_assert_str_eq(choice.directory, "/nowhere");
    ck_assert_int_eq(sl_ca_use(easy, &choice), CURLE_OK);
    setenv("SSL_CERT_FILE", "/nowhere/b.pem", 1);
    choice = sl_ca_choose(NULL);
    ck_assert_str_eq(choice.from, "SSL_CERT_FILE");
    ck_assert_str_eq(choice.file, "/nowhere/b.pem");
    ck_assert_int_eq(sl_ca_use(easy, &choice), CURLE_OK);
    unsetenv("SSL_CERT_DIR");
    unsetenv("SSL_CERT_FILE");
    setenv("REQUESTS_CA_BUNDLE", "/nowhere/c.pem", 1);
    choice = sl_ca_choose(NULL);
    ck_assert_str_eq(choice.from, "REQUESTS_CA_BUNDLE");
    ck_assert_str_eq(choice.file, "/nowhere/c.pem");
    setenv("CURL_CA_BUNDLE", "/nowhere/d.pem", 1);
    ck_assert_str_eq(sl_ca_choose(NULL).from, "CURL_CA_BUNDLE");
    unsetenv("CURL_CA_BUNDLE");
    unsetenv("REQUESTS_CA_BUNDLE");
    sl_libcurl.easy_cleanup(easy);
}
