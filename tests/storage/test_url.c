/* URLs: what is taken apart, refused, resolved and encoded. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "url.h"

SL_TEST(a_url_is_taken_apart)
{
    struct sl_err err = SL_ERR_INIT;
    char text[SL_URL_AUTHORITY_MAX];
    sl_autourl url = {0};
    ck_assert_int_eq(
        sl_url_parse("HTTPS://u%40x:p@Host.Example:8443/a b/%2F?q=1 2#frag", &url, &err), 0);
    ck_assert(url.tls);
    ck_assert_str_eq(url.userinfo, "u%40x:p");
    ck_assert_str_eq(url.host, "host.example");
    ck_assert_uint_eq(url.port, 8443);
    ck_assert_str_eq(url.target, "/a%20b/%2F?q=1%202");
    ck_assert_str_eq(sl_url_authority(&url, text), "host.example:8443");
    sl_autofree char *shown = sl_url_format(&url, false, &err);
    ck_assert_str_eq(shown, "https://host.example:8443/a%20b/%2F");
}

SL_TEST(a_url_names_a_host_alone_or_more)
{
    static const struct {
        const char *url;
        bool alone;
    } rows[] = {
        {"http://h", true},    {"https://h:8443/", true}, {"http://[::1]/", true},
        {"http://h/x", false}, {"http://h?x", false},     {"http://h/#", false},
        {"http://h#x", false}, {"http://u@h", false},     {"http://@h", false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_autourl url = {0};
        ck_assert_int_eq(sl_url_parse(rows[i].url, &url, NULL), 0);
        ck_assert_msg(sl_url_is_host(&url) == rows[i].alone, "%s", rows[i].url);
    }
}

SL_TEST(ports_paths_and_addresses_have_defaults)
{
    struct sl_err err = SL_ERR_INIT;
    char text[SL_URL_AUTHORITY_MAX];
    static const struct {
        const char *url, *authority, *target;
    } cases[] = {
        {"http://h", "h", "/"},
        {"http://h:80?x", "h", "/?x"},
        {"https://h:443/", "h", "/"},
        {"https://h:80/", "h:80", "/"},
        {"http://[::1]:8080/x", "[::1]:8080", "/x"},
        {"http://[2001:DB8::1]/", "[2001:db8::1]", "/"},
        {"http://a@b@h/", "h", "/"},
        {"http://h:/x", "h", "/x"},
        {"http://h/\xc3\xbc", "h", "/%C3%BC"},
        {"http://h#f", "h", "/"},
        {"http://h/../a//b/./c", "h", "/../a//b/./c"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_autourl url = {0};
        ck_assert_msg(sl_url_parse(cases[i].url, &url, &err) == 0, "%s", err.message);
        ck_assert_str_eq(sl_url_authority(&url, text), cases[i].authority);
        ck_assert_str_eq(url.target, cases[i].target);
    }
}

SL_TEST(bad_urls_are_refused_without_their_secrets)
{
    static const char *const bad[] = {"",
                                      "h/x",
                                      "ftp://h/",
                                      "http:/h",
                                      "http://",
                                      "http:///x",
                                      "http://h:0",
                                      "http://h:7x/",
                                      "http://h:65536",
                                      "http://[::1/x",
                                      "http://[::1]x/",
                                      "http://[g]/",
                                      "http://h h/",
                                      "http://h\\x/",
                                      "http://h/\r\nX: y",
                                      "http://me:secret@h:x/?sig=hidden",
                                      "http://h/\x7f"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_url url;
        ck_assert_msg(sl_url_parse(bad[i], &url, &err) == -1, "'%s' was taken", bad[i]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_ptr_null(strstr(err.message, "secret"));
        ck_assert_ptr_null(strstr(err.message, "hidden"));
    }
    struct sl_err err = SL_ERR_INIT;
    struct sl_url url;
    sl_autofree char *huge = calloc(1, SL_URL_BYTES_MAX + 20);
    memset(huge, 'a', SL_URL_BYTES_MAX + 10);
    memcpy(huge, "http://h/", 9);
    ck_assert_int_eq(sl_url_parse(huge, &url, &err), -1);
}

SL_TEST(references_are_resolved_as_rfc_3986_says)
{
    static const char base[] = "http://a/b/c/d;p?q";
    static const struct {
        const char *reference, *result;
    } cases[] = {
        {"g", "http://a/b/c/g"},
        {"./g", "http://a/b/c/g"},
        {"g/", "http://a/b/c/g/"},
        {"/g", "http://a/g"},
        {"//g", "http://g/"},
        {"?y", "http://a/b/c/d;p?y"},
        {"g?y", "http://a/b/c/g?y"},
        {"#s", "http://a/b/c/d;p?q"},
        {"g#s", "http://a/b/c/g"},
        {";x", "http://a/b/c/;x"},
        {"", "http://a/b/c/d;p?q"},
        {".", "http://a/b/c/"},
        {"..", "http://a/b/"},
        {"../g", "http://a/b/g"},
        {"../..", "http://a/"},
        {"../../../g", "http://a/g"},
        {"/./g", "http://a/g"},
        {"/../g", "http://a/g"},
        {"g.", "http://a/b/c/g."},
        {"..g", "http://a/b/c/..g"},
        {"./../g", "http://a/b/g"},
        {"g/./h", "http://a/b/c/g/h"},
        {"g/../h", "http://a/b/c/h"},
        {"g?y/../x", "http://a/b/c/g?y/../x"},
        {"https://h:8/x", "https://h:8/x"},
        {"HTTP://u:p@h/x", "http://h/x"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_err err = SL_ERR_INIT;
        sl_autofree char *result = sl_url_resolve(base, cases[i].reference, &err);
        ck_assert_msg(result != NULL, "'%s': %s", cases[i].reference, err.message);
        ck_assert_str_eq(result, cases[i].result);
    }
    static const char *const bad[] = {"ftp://h/", "javascript:x", "http://",
                                      "//",       "\r\nX",        "file:///etc/passwd"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_ptr_null(sl_url_resolve(base, bad[i], &err));
        ck_assert_int_eq(err.kind, SL_E_NET);
    }
}

SL_TEST(encoding_and_decoding_are_inverse)
{
    struct sl_err err = SL_ERR_INIT;
    char all[256];
    for (int i = 1; i < 256; i++)
        all[i - 1] = (char)i;
    all[255] = 0;
    for (int keep = 0; keep < 2; keep++) {
        sl_autofree char *encoded = sl_url_encode(all, keep, &err);
        sl_autofree char *decoded = sl_url_decode(encoded, strlen(encoded), &err);
        ck_assert_str_eq(decoded, all);
        ck_assert_int_eq(strchr(encoded, '/') != NULL, keep);
    }
    sl_autofree char *text = sl_url_encode("a b+c%d~\xc3\xbc/", true, &err);
    ck_assert_str_eq(text, "a%20b%2Bc%25d~%C3%BC/");
    static const char *const bad[] = {"%", "%1", "a%zz", "%00", "%g1"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_ptr_null(sl_url_decode(bad[i], strlen(bad[i]), &err));
}

SL_TEST(origins_are_scheme_host_and_port)
{
    struct sl_err err = SL_ERR_INIT;
    static const char *const others[] = {"https://h/", "http://h:81/", "http://g/", "http://h.x/"};
    sl_autourl a = {0};
    ck_assert_int_eq(sl_url_parse("http://h/a", &a, &err), 0);
    sl_autourl same = {0};
    ck_assert_int_eq(sl_url_parse("http://x@H:80/b", &same, &err), 0);
    ck_assert(sl_url_same_origin(&a, &same));
    for (size_t i = 0; i < SL_COUNT(others); i++) {
        sl_autourl b = {0};
        ck_assert_int_eq(sl_url_parse(others[i], &b, &err), 0);
        ck_assert(!sl_url_same_origin(&a, &b));
    }
}

SL_TEST(a_sanitized_uri_has_no_secret)
{
    static const char *const pairs[][2] = {
        {"http://me:secret@h:1/a@b?sig=x", "http://h:1/a@b"},
        {"https://h/a#x", "https://h/a"},
        {"http://me:se@cret@h?x", "http://h"},
        {"redis://:secret@h/a?b", "redis://h/a?b"},
        {"s3://bucket/a@b?c", "s3://bucket/a@b?c"},
        {"a/b@c?d", "a/b@c?d"},
        {"x/http://a@b/", "x/http://a@b/"},
        {"", ""},
    };
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        char *tame = sl_uri_sanitize(pairs[i][0], NULL);
        ck_assert_str_eq(tame, pairs[i][1]);
        free(tame);
    }
}

SL_TEST(every_failing_allocation_is_an_error)
{
    for (unsigned nth = 1; nth < 40; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        sl_autofree char *result = sl_url_resolve("http://u@h/a/b?c", "../x?y", &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        ck_assert(result || err.kind == SL_E_NO_SPACE);
        if (!reached)
            return;
    }
    ck_abort_msg("too many allocations");
}

SL_TEST(secrets_of_uris_are_shown_to_nobody)
{
    static const struct {
        const char *uri, *shown;
    } rows[] = {
        {"az://c/b?sv=1&sig=hush", "az://c/b"},
        {"abfss://c@a.dfs.core.windows.net/b?sig=hush", "abfss://c@a.dfs.core.windows.net/b"},
        {"https://a.blob.core.windows.net/c/b?sig=hush", "https://a.blob.core.windows.net/c/b"},
        {"s3://b/k?x", "s3://b/k?x"},
        {"abfs://u:hush@h/b", "abfs://h/b"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_autofree char *shown = sl_uri_sanitize(rows[i].uri, NULL);
        ck_assert_str_eq(shown, rows[i].shown);
    }
}
