/*
 * TLS that the kernel opens, by a kernel that pretends (fake_kernel_tls.h). With
 * SLUICE_TEST_KERNEL_TLS=real the machine's own does what the tests that need no fault ask for.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "exchange.h"
#include "fake_kernel_tls.h"
#include "link_kernel.h"
#include "range_blob.h"
#include "skip.h"

static struct sl_server *server;
static struct sl_tls_options tls;
static struct sl_connect config;
static struct sl_exchange *exchange;

int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    return sl_fake_kernel_setsockopt(fd, level, name, value, bytes);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return sl_fake_kernel_recvmsg(fd, message, flags);
}

#define NEEDS_IT                                                                                   \
    do {                                                                                           \
        if (!sl_kernel_tls_built_in())                                                             \
            SL_SKIP("built without SLUICE_KERNEL_TLS");                                            \
    } while (0)

static bool is_real(void)
{
    const char *kind = getenv("SLUICE_TEST_KERNEL_TLS");
    return kind && strcmp(kind, "real") == 0;
}

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    sl_test_environment();
    sl_fake_kernel_reset();
    sl_fake_kernel.absent = is_real();
    server = sl_server_start_tls();
    sl_server_put(server, "/blob", sl_blob(), SL_BLOB_BYTES, "\"1\"");
    tls = (struct sl_tls_options){
        .ca_file = (char *)sl_server_ca(server), .verify = true, .kernel = SL_TLS_KERNEL_ON};
    config = (struct sl_connect){.tls = &tls, .stall_seconds = 20};
    exchange = sl_exchange_new(&config, &err);
    ck_assert_msg(exchange, "%s", err.message);
}

static void teardown(void)
{
    sl_exchange_free(exchange);
    sl_server_stop(server);
}

/* GET the blob: 0 if it is right, -1 with err. */
static int get(struct sl_err *err)
{
    struct sl_answer answer = {0};
    const struct sl_request request = {.method = "GET", .url = sl_server_url(server, "/blob")};
    err->kind = SL_OK;
    if (sl_exchange_simple(exchange, &request, SL_BLOB_BYTES, &answer, err) < 0)
        return -1;
    ck_assert_int_eq(answer.status, 200);
    ck_assert_uint_eq(answer.body.used, SL_BLOB_BYTES);
    ck_assert_mem_eq(answer.body.data, sl_blob(), SL_BLOB_BYTES);
    sl_answer_release(&answer);
    return 0;
}

static void get_well(unsigned times)
{
    struct sl_err err = SL_ERR_INIT;
    while (times--)
        ck_assert_msg(get(&err) == 0, "%s", err.message);
}

/* ---- what it is for -------------------------------------------------------------------------- */

static void assert_read_by_kernel(int version, const char *suite)
{
    sl_server_tls_suite(server, version, suite);
    get_well(4);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    ck_assert(sl_kernel_tls_used());
    ck_assert(sl_fake_kernel.absent || sl_fake_kernel.records > 3 * SL_BLOB_BYTES / 16384);
}

#define READ_BY_KERNEL(name, version, suite)                                                       \
    SL_TEST(answers_after_the_first_are_read_by_the_kernel_with_##name)                            \
    {                                                                                              \
        NEEDS_IT;                                                                                  \
        assert_read_by_kernel(version, suite);                                                     \
    }

READ_BY_KERNEL(aes_128, TLS1_3_VERSION, "TLS_AES_128_GCM_SHA256")
READ_BY_KERNEL(aes_256, TLS1_3_VERSION, "TLS_AES_256_GCM_SHA384")
READ_BY_KERNEL(chacha20, TLS1_3_VERSION, "TLS_CHACHA20_POLY1305_SHA256")
READ_BY_KERNEL(tls_1_2_aes_128, TLS1_2_VERSION,
               "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
READ_BY_KERNEL(tls_1_2_aes_256, TLS1_2_VERSION,
               "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384")
READ_BY_KERNEL(tls_1_2_chacha20, TLS1_2_VERSION,
               "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-CHACHA20-POLY1305")

SL_TEST(a_range_source_reads_through_it)
{
    NEEDS_IT;
    struct sl_err err = SL_ERR_INIT;
    const struct sl_source_config source = {.tls = &tls};
    const char *url = sl_server_url(server, "/blob");
    ck_assert_msg(sl_read_blob(url, &source, 0, 100000, &err) == 0, "%s", err.message);
    ck_assert(sl_kernel_tls_used());
}

SL_TEST(a_ticket_that_comes_late_is_passed_over)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    get_well(2);
    sl_fake_kernel.next = SL_FAKE_RECORD_TICKET;
    get_well(1);
    sl_fake_kernel.next = SL_FAKE_RECORD_EMPTY;
    get_well(1);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
}

/* ---- where it is not done -------------------------------------------------------------------- */

static void assert_by_process(unsigned asked)
{
    get_well(3);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    ck_assert_uint_eq(sl_fake_kernel.asked, asked);
    ck_assert_uint_eq(sl_fake_kernel.records, 0);
    ck_assert(!sl_kernel_tls_used());
}

SL_TEST(a_kernel_without_tls_is_asked_once)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    struct sl_err err = SL_ERR_INIT;
    sl_fake_kernel.ulp_errno = ENOENT;
    assert_by_process(1);
    sl_exchange_free(exchange);
    exchange = sl_exchange_new(&config, &err);
    get_well(2);
    ck_assert_uint_eq(sl_fake_kernel.asked, 1);
}

SL_TEST(keys_that_the_kernel_refuses_leave_the_connection_as_it_was)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    sl_fake_kernel.keys_errno = EINVAL;
    assert_by_process(1);
}

SL_TEST(other_ciphers_stay_in_the_process)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    sl_server_tls_suite(server, TLS1_2_VERSION,
                        "ECDHE-RSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA256");
    assert_by_process(0);
}

SL_TEST(off_is_off)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    tls.kernel = SL_TLS_KERNEL_OFF;
    assert_by_process(0);
}

/* ---- what can go wrong ----------------------------------------------------------------------- */

/* Drive the exchange until the answer's head is there. */
static void until_head(struct sl_err *err)
{
    enum sl_io_state state;
    while ((state = sl_exchange_head(exchange, err)) == SL_IO_WAIT)
        sl_exchange_wait(exchange, err);
    ck_assert_msg(state == SL_IO_DATA, "%s", err->message);
}

static void assert_fails(enum sl_fake_record next, const char *says)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_answer answer = {0};
    get_well(2);
    sl_fake_kernel.next = next; /* before an answer's first byte: asked again at once */
    get_well(2);
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
    const struct sl_request request = {.method = "GET", .url = sl_server_url(server, "/blob")};
    ck_assert_int_eq(sl_exchange_start(exchange, &request, &err), 0);
    until_head(&err);
    sl_fake_kernel.next = next;
    ck_assert_int_eq(sl_exchange_answer(exchange, SL_BLOB_BYTES, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(err.retryable, "%s", err.message);
    ck_assert_msg(strstr(err.message, says), "%s", err.message);
    get_well(1);
}

SL_TEST(a_damaged_record_fails_the_answer_and_may_be_tried_again)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    assert_fails(SL_FAKE_RECORD_DAMAGED, "a TLS record is damaged");
}

SL_TEST(new_keys_of_the_server_end_the_connection)
{
    if (is_real())
        SL_SKIP("the kernel is a real one and does not do as it is told");
    NEEDS_IT;
    assert_fails(SL_FAKE_RECORD_KEY_UPDATE, "changes or ends TLS");
}

SL_TEST(an_answer_that_breaks_off_is_not_taken_for_whole)
{
    NEEDS_IT;
    struct sl_err err = SL_ERR_INIT;
    get_well(1);
    SL_SCRIPT(server, {.first = 2, .fault = SL_FAULT_SHORT, .after = 300000});
    ck_assert_int_eq(get(&err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(err.retryable);
    get_well(1);
}

/* ---- whether it pays ------------------------------------------------------------------------- */

SL_TEST(it_is_used_while_it_needs_no_more_than_the_process)
{
    NEEDS_IT;
    const uint64_t none[2] = {0}, much[2] = {100 << 20, 100 << 20};
    for (unsigned asked = 0; asked < 8; asked++) /* some find out */
        ck_assert_int_eq(sl_kernel_tls_pays(none, none, asked), asked % 4 == 0);
    ck_assert(sl_kernel_tls_pays((uint64_t[]){200, 200}, much, 5));
    ck_assert(sl_kernel_tls_pays((uint64_t[]){200, 150}, much, 5));
    ck_assert(!sl_kernel_tls_pays((uint64_t[]){150, 200}, much, 0));
    /* By the byte, not in all. */
    ck_assert(sl_kernel_tls_pays((uint64_t[]){100, 800}, (uint64_t[]){10 << 20, 100 << 20}, 5));
}

/* ---- a sluice that is built without it ------------------------------------------------------- */

SL_TEST(without_it_on_is_one_warning_and_nothing_else)
{
    if (sl_kernel_tls_built_in())
        SL_SKIP("built with SLUICE_KERNEL_TLS");
    struct sl_err err = SL_ERR_INIT;
    char said[4096] = "";
    static const char warning[] = "'source.tls.kernel: on' needs a sluice that is built with";
    int to = memfd_create("stderr", MFD_CLOEXEC);
    ck_assert_int_ge(dup2(to, STDERR_FILENO), 0);
    assert_by_process(0);
    sl_exchange_free(exchange);
    exchange = sl_exchange_new(&config, &err);
    get_well(2);
    ck_assert_int_ge(pread(to, said, sizeof(said) - 1, 0), 0);
    const char *first = strstr(said, warning);
    ck_assert_msg(first && !strstr(first + 1, warning), "%s", said);
    close(to);
}

SL_TEST(without_it_auto_is_silent)
{
    if (sl_kernel_tls_built_in())
        SL_SKIP("built with SLUICE_KERNEL_TLS");
    char said[16] = "";
    tls.kernel = SL_TLS_KERNEL_AUTO;
    int to = memfd_create("stderr", MFD_CLOEXEC);
    ck_assert_int_ge(dup2(to, STDERR_FILENO), 0);
    assert_by_process(0);
    ck_assert_int_eq(pread(to, said, sizeof(said), 0), 0);
    close(to);
}

SL_CASE(.setup = setup, .teardown = teardown)
