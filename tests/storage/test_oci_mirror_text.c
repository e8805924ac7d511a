/* How mirrors are written in a spec, rightly and wrongly. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "mem.h"
#include "oci_endpoint.h"

static const struct {
    const char *text, *registry, *host, *prefix;
    bool plain, given;
} good[] = {
    {"cache.internal", NULL, "cache.internal", "", false, false},
    {"cache:5000", NULL, "cache:5000", "", false, false},
    {"cache:5000/", NULL, "cache:5000", "", false, false},
    {"http://cache:5000/ghcr", NULL, "cache:5000", "ghcr", true, true},
    {"https://10.0.0.1/a/b-c_d//", NULL, "10.0.0.1", "a/b-c_d", false, true},
    {"ghcr.io=harbor.x/ghcr", "ghcr.io", "harbor.x", "ghcr", false, false},
    {"docker.io=http://c:1", "docker.io", "c:1", "", true, true},
    {"[::1]:5000", NULL, "[::1]:5000", "", false, false},
};

SL_TEST_LOOP(a_mirror_is_taken_apart, 0, SL_COUNT(good))
{
    struct sl_oci_mirror mirror;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_oci_mirror_parse(good[_i].text, &mirror, &err) == 0, "%s", err.message);
    ck_assert_pstr_eq(mirror.registry, good[_i].registry);
    ck_assert_str_eq(mirror.host, good[_i].host);
    ck_assert_str_eq(mirror.prefix, good[_i].prefix);
    ck_assert(mirror.plain == good[_i].plain && mirror.given == good[_i].given);
    sl_oci_mirror_release(&mirror);
}

static const char *const bad[] = {
    "",
    " ",
    "/",
    "/prefix",
    "a b",
    "cache :5000",
    "cache:5000 ",
    "cache:port",
    "cache:99999",
    "cache:",
    "oci://cache:5000",
    "ftp://cache",
    "http://",
    "https:///x",
    "HTTP://cache",
    "user:s3cret@cache",
    "https://user:s3cret@cache/x",
    "ghcr.io=user:s3cret@cache",
    "cache?token=s3cret",
    "cache/x?token=s3cret",
    "cache/x#s3cret",
    "cache/%73",
    "cache/..",
    "cache/../x",
    "cache//x",
    "cache/X",
    "cache/x:v1",
    "=cache",
    "a b=cache",
    "ghcr.io=",
    "ghcr.io=a=b",
    "cache\tx",
    "cache\nx",
    "caché",
    "[::1",
    "[cache]",
    "-",
};

SL_TEST_LOOP(a_wrong_mirror_is_refused_without_its_secret, 0, SL_COUNT(bad))
{
    struct sl_oci_mirror mirror;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_oci_mirror_parse(bad[_i], &mirror, &err) < 0, "'%s'", bad[_i]);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(!strstr(err.message, "s3cret"), "%s", err.message);
    sl_oci_mirror_release(&mirror);
}

SL_TEST(a_mirror_that_is_too_long_is_refused)
{
    struct sl_oci_mirror mirror;
    for (size_t bytes = 250; bytes < 3000; bytes += 13) {
        struct sl_err err = SL_ERR_INIT;
        sl_autofree char *text = malloc(bytes + 1);
        memset(text, 'a', bytes);
        text[bytes] = 0;
        bool fits = bytes <= 255;
        ck_assert_int_eq(sl_oci_mirror_parse(text, &mirror, &err), fits ? 0 : -1);
        sl_oci_mirror_release(&mirror);
    }
}

SL_TEST(no_prefix_of_a_mirror_is_read_beyond)
{
    static const char whole[] = "ghcr.io=https://[::1]:5000/a/b_c-d.e/";
    for (size_t bytes = 0; bytes < sizeof(whole); bytes++) {
        struct sl_oci_mirror mirror;
        struct sl_err err = SL_ERR_INIT;
        sl_autofree char *text = strndup(whole, bytes); /* so that a sanitizer sees its end */
        sl_oci_mirror_parse(text, &mirror, &err);
        sl_oci_mirror_release(&mirror);
    }
}
