/* Which proxy, which login: the environment and .netrc as curl reads them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "netrc.h"
#include "proxy.h"
#include "range_blob.h"

static void assert_proxy(const char *text, const char *expected)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autourl url = {0};
    sl_autofree char *proxy = NULL;
    ck_assert_int_eq(sl_url_parse(text, &url, &err), 0);
    ck_assert_msg(sl_proxy_find(&url, &proxy, &err) == 0, "%s", err.message);
    if (expected)
        ck_assert_str_eq(proxy, expected);
    else
        ck_assert_ptr_null(proxy);
}

SL_TEST(each_scheme_has_its_variables)
{
    assert_proxy("http://h/", NULL);
    setenv("HTTP_PROXY", "http://forged:1", 1);
    assert_proxy("http://h/", NULL);
    setenv("ALL_PROXY", "http://all:1", 1);
    assert_proxy("http://h/", "http://all:1");
    setenv("all_proxy", "socks5h://all:2", 1);
    assert_proxy("https://h/", "socks5h://all:2");
    setenv("http_proxy", "plain", 1);
    assert_proxy("http://h/", "http://plain:1080");
    setenv("HTTPS_PROXY", "https://up", 1);
    assert_proxy("https://h/", "https://up:443");
    setenv("https_proxy", "http://u:p%40@[::1]:3128/ignored", 1);
    assert_proxy("https://h/", "http://u:p%40@[::1]:3128");
    setenv("https_proxy", "", 1);
    assert_proxy("https://h/", "https://up:443");
    unsetenv("HTTP_PROXY");
}

SL_TEST_LOOP(a_bad_proxy_is_named, 0, 4)
{
    static const char *const bad[] = {"ftp://h:1", "http://", "http://a b:1", "http://h:x"};
    struct sl_err err = SL_ERR_INIT;
    sl_autourl url = {0};
    char *proxy = NULL;
    setenv("http_proxy", bad[_i], 1);
    ck_assert_int_eq(sl_url_parse("http://h/", &url, &err), 0);
    ck_assert_int_eq(sl_proxy_find(&url, &proxy, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "$http_proxy"));
}

SL_TEST(no_proxy_names_hosts)
{
    static const struct {
        const char *url, *list;
        bool excluded;
    } cases[] = {
        {"http://h.example.com/", "example.com", true},
        {"http://h.example.com/", ".example.com", true},
        {"http://example.com/", ".example.com.", true},
        {"http://h.Example.com/", "EXAMPLE.com", true},
        {"http://badexample.com/", "example.com", false},
        {"http://h/", "", false},
        {"http://h/", ",, ,", false},
        {"http://h/", "a,h b", true},
        {"http://h/", "a h", true},
        {"http://h/", "*", true},
        {"http://h/", "*.h", false},
        {"http://h:8080/", "h:8080", true},
        {"http://h/", "h:8080", false},
        {"http://10.1.2.3/", "10.0.0.0/8", true},
        {"http://11.1.2.3/", "10.0.0.0/8", false},
        {"http://10.1.2.3/", "10.1.2.2/31", true},
        {"http://10.1.2.4/", "10.1.2.2/31", false},
        {"http://10.1.2.3/", "10.1.2.3", true},
        {"http://10.1.2.3/", "0.0.0.0/0", true},
        {"http://10.1.2.3/", "10.1.2.3/33", false},
        {"http://10.1.2.3/", "10.1.2.3/x", false},
        {"http://10.1.2.3/", "2.3", false},
        {"http://[::1]/", "::1", true},
        {"http://[::1]:81/", "[::1]:81", true},
        {"http://[2001:db8::5]/", "2001:db8::/32", true},
        {"http://[2001:db9::5]/", "2001:db8::/32", false},
        {"http://169.254.169.254/", "169.254.169.254", true},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_err err = SL_ERR_INIT;
        sl_autourl url = {0};
        ck_assert_int_eq(sl_url_parse(cases[i].url, &url, &err), 0);
        ck_assert_msg(sl_proxy_excluded(&url, cases[i].list) == cases[i].excluded, "%s in '%s'",
                      cases[i].url, cases[i].list);
    }
}

static const char netrc[] = "# a comment\n"
                            "machine one login me password #not-a-comment\n"
                            "machine two\n\tlogin \"my self\"\n\tpassword \"a\\\"b\\\\c\"\n"
                            "macdef init\nmachine three login bad password bad\n\n"
                            "machine four account x login only\n"
                            "default login anonymous password guest\n"
                            "machine five login late password late\n";

SL_TEST(netrc_finds_the_first_entry)
{
    static const struct {
        const char *host, *login, *password;
    } cases[] = {
        {"one", "me", "#not-a-comment"},
        {"ONE", "me", "#not-a-comment"},
        {"two", "my self", "a\"b\\c"},
        {"three", "anonymous", "guest"},
        {"four", "only", ""},
        {"five", "anonymous", "guest"},
    };
    struct sl_netrc_login login;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        ck_assert(sl_netrc_parse(netrc, sizeof(netrc) - 1, cases[i].host, &login));
        ck_assert_str_eq(login.login, cases[i].login);
        ck_assert_str_eq(login.password, cases[i].password);
    }
    ck_assert(!sl_netrc_parse("machine x login y", 17, "z", &login));
    ck_assert(!sl_netrc_parse("", 0, "z", &login));
}

SL_TEST(every_prefix_of_a_netrc_is_harmless)
{
    struct sl_netrc_login login;
    for (size_t bytes = 0; bytes < sizeof(netrc); bytes++) {
        sl_autofree char *exact = malloc(bytes + 1);
        memcpy(exact, netrc, bytes);
        sl_netrc_parse(exact, bytes, "five", &login);
    }
    char huge[SL_NETRC_WORD_MAX + 100];
    memset(huge, 'a', sizeof(huge));
    memcpy(huge, "machine x login ", 16);
    ck_assert(!sl_netrc_parse(huge, sizeof(huge), "x", &login));
}

SL_TEST(a_missing_netrc_is_as_good_as_none)
{
    struct sl_netrc_login login;
    char log[512] = "";
    int to = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(dup2(to, STDERR_FILENO), 0);
    ck_assert(!sl_netrc_find("h", &login));
    ck_assert_int_eq(pread(to, log, sizeof(log) - 1, 0), 0);
    setenv("NETRC", "/nonexistent/netrc", 1);
    ck_assert(!sl_netrc_find("h", &login));
    ck_assert_int_gt(pread(to, log, sizeof(log) - 1, 0), 0);
    ck_assert_msg(strstr(log, "NETRC names") && strstr(log, "/nonexistent/netrc"), "%s", log);
    unsetenv("HOME");
    unsetenv("NETRC");
    ck_assert(!sl_netrc_find("h", &login));
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.prepare = prepare)
