/* Asking a daemon: never anybody else than at its socket. */
#include <check.h>
#include <stdarg.h>
#include <string.h>

#include "claims.h"
#include "control.h"
#include "libcurl.h"

static unsigned performed;

/* As of a libcurl that was built without unix sockets. */
static CURLcode setopt_without(CURL *easy, CURLoption option, ...)
{
    (void)easy;
    return option == CURLOPT_UNIX_SOCKET_PATH ? CURLE_UNKNOWN_OPTION : CURLE_OK;
}

static CURLcode count_performing(CURL *easy)
{
    (void)easy;
    performed++;
    return CURLE_OK;
}

SL_TEST(a_libcurl_without_unix_sockets_asks_nobody)
{
    struct sl_err err = SL_ERR_INIT;
    json_t *answer = NULL;
    ck_assert_int_eq(sl_libcurl_open(&err), 0);
    const struct sl_libcurl real = sl_libcurl;
    sl_libcurl.easy_setopt = setopt_without;
    sl_libcurl.easy_perform = count_performing;
    ck_assert_int_eq(sl_control_ask("/dev/null", "GET", "/v1/models", NULL, &answer, &err), -1);
    sl_libcurl = real;
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "has no unix sockets"));
    ck_assert_uint_eq(performed, 0);
    ck_assert_ptr_null(answer);
}
