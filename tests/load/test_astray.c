/* Where the http source is led astray: redirects to metadata services, and logins for whichever
 * host comes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "http_case.h"

static void setup(void)
{
    server = sl_server_start();
    sl_server_put(server, "/d/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void teardown(void)
{
    sl_server_stop(server);
}

SL_TEST(redirects_to_metadata_services_are_refused_in_every_spelling)
{
    static const char *const hosts[] = {"169.254.169.254",      "169.254.169.254.",
                                        "2852039166",           "0xa9fea9fe",
                                        "0251.0376.0251.0376",  "169.16689662",
                                        "169.254.43518",        "0xa9.254.0251.0xfe",
                                        "100.100.100.200",      "0x646464c8",
                                        "1684301000",           "192.0.0.192",
                                        "0300.0.0.0300",        "168.63.129.16",
                                        "2822734096",           "[::ffff:169.254.169.254]",
                                        "[::ffff:6464:64c8]",   "[::169.254.169.254]",
                                        "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a83f:8110]",
                                        "[2002:a9fe:a9fe::]",   "[fe80::1]",
                                        "[fd00:ec2::254]",      "[0:0:0:0:0:ffff:100.100.100.200]"};
    const struct sl_source_config once = {
        .attempts = 2, .stall_seconds = 20, .hedge = SL_HEDGE_OFF}; /* requests are counted */
    struct sl_err err;
    char header[100];
    for (size_t i = 0; i < SL_COUNT(hosts); i++) {
        snprintf(header, sizeof(header), "Location: http://%s/latest/\r\n", hosts[i]);
        SL_SCRIPT(server,
                  {.path = "/d/m", .fault = SL_FAULT_STATUS, .status = 302, .headers = header});
        ck_assert_int_eq(load("/d/m", &once, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_NET);
        ck_assert(!err.retryable);
        ck_assert_msg(strstr(err.message, "a cloud's metadata address") != NULL, "%s: %s", hosts[i],
                      err.message);
        ck_assert_uint_eq(sl_server_request_count(server), i + 1);
    }
}

/* What is said on standard error while the object is loaded; owned by the caller. */
static char *said_while_loading(const char *address)
{
    struct sl_err err = SL_ERR_INIT;
    char path[] = "/tmp/sluice-said-XXXXXX";
    int fd = mkstemp(path), before = dup(2);
    ck_assert_int_ge(dup2(fd, 2), 0);
    struct sl_tls_options tls = {.verify = true,
                                 .ca_file = (char *)(uintptr_t)sl_server_ca(server)};
    const struct sl_source_config config = {.attempts = 2, .tls = &tls};
    int result = sl_read_blob(address, &config, 1000, 400000, &err);
    dup2(before, 2);
    ck_assert_msg(result == 0, "%s", err.message);
    sl_autobuf text = SL_BUF_INIT(65536);
    ck_assert_int_eq(sl_buf_read_file(&text, path, &err), 0);
    close(fd);
    close(before);
    unlink(path);
    return sl_strdup(sl_buf_string(&text), NULL);
}

SL_TEST(the_default_entry_of_netrc_is_not_sent_without_tls)
{
    char text[256];
    const char *path =
        file_with("machine elsewhere login x password y\ndefault login me password p\n");
    setenv("NETRC", path, 1);
    sl_autofree char *said = said_while_loading(sl_server_url(server, "/d/m"));
    ck_assert_msg(strstr(said, "'machine 127.0.0.1'") != NULL, "%s", said);
    for (unsigned i = 0; i < sl_server_request_count(server); i++)
        ck_assert(!header_of(server, i, "Authorization", text));
    unlink(path);
}

SL_TEST(the_default_entry_of_netrc_is_sent_with_tls)
{
    char text[256];
    const char *path = file_with("default login me password \"p w\"\n");
    setenv("NETRC", path, 1);
    sl_server_stop(server);
    server = sl_server_start_tls();
    sl_server_put(server, "/d/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    sl_autofree char *said = said_while_loading(sl_server_url(server, "/d/m"));
    ck_assert_str_eq(said, "");
    ck_assert(header_of(server, 0, "Authorization", text));
    ck_assert_str_eq(text, "Basic bWU6cCB3");
    unlink(path);
}

SL_CASE(.setup = setup, .teardown = teardown)
