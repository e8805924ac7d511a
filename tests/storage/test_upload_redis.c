/* Writing models into Redis: what is visible when, what is refused, what is left behind. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "buf.h"
#include "claims.h"
#include "fake_clock.h"
#include "golden.h"
#include "redis_model_maker.h"
#include "redis_server.h"
#include "stores.h"
#include "thread_cancel.h"
#include "upload.h"

enum { BLOCK_BYTES = 300000, TENSOR_BYTES = 1000000 };

static struct sl_redis_server *server;
static const struct sl_source_config source = {.attempts = 2, .stall_seconds = 20};
static const struct made_tensor tensors[] = {
    {"w 0\n", 4, TENSOR_BYTES}, {"empty", 5, 0}, {"w1", 2, TENSOR_BYTES + 1}, {"last", 4, 0}};
static uint8_t *model;
static size_t model_bytes;

static void setup(void)
{
    server = sl_redis_server_start();
    model = make_tensors(tensors, SL_COUNT(tensors), &model_bytes);
}

static void teardown(void)
{
    sl_redis_server_stop(server);
    free(model);
}

static int open_upload(bool replace, struct sl_upload **upload, struct sl_err *err)
{
    struct sl_upload_config config = {.source = &source, .replace = replace};
    return sl_upload_open(sl_redis_server_url(server, "m"), model_bytes, &config, upload, err);
}

static size_t head_bytes(void)
{
    return 73 + (size_t)sl_get_le64(model + 65);
}

/* The head, then blocks from the last to the first. */
static int write_all(struct sl_upload *upload, struct sl_err *err)
{
    size_t head = head_bytes(), end = model_bytes;
    if (sl_upload_write(upload, 0, model, head, err) < 0)
        return -1;
    while (end > head) {
        size_t begin = end - SL_MIN(end - head, BLOCK_BYTES);
        if (sl_upload_write(upload, begin, model + begin, end - begin, err) < 0)
            return -1;
        end = begin;
    }
    return 0;
}

static int upload_once(void *arg, struct sl_err *err)
{
    SL_AUTO(sl_upload) upload = NULL;
    bool *replace = arg;
    if (open_upload(!replace || *replace, &upload, err) < 0 || write_all(upload, err) < 0)
        return -1;
    return sl_upload_finish(upload, err);
}

static void expect_written(void)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) object = NULL;
    sl_autofree char *key = NULL;
    sl_autofree uint8_t *data = malloc(model_bytes);
    ck_assert_int_eq(sl_store_open(sl_redis_server_url(server, "m"), &source, &store, &key, &err),
                     0);
    ck_assert_msg(sl_source_open(store, key, 1, &object, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(object), model_bytes);
    ck_assert_msg(sl_source_read(object, 0, data, model_bytes, &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, model, model_bytes);
    ck_assert_uint_eq(sl_redis_server_key_count(server), 1 + 2 * SL_COUNT(tensors));
}

static void expect_failure(bool replace, enum sl_err_kind kind, const char *words)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(upload_once(&replace, &err), -1);
    ck_assert_msg(err.kind == kind && strstr(err.message, words), "%d %s", err.kind, err.message);
}

SL_TEST(what_is_written_is_read_back)
{
    struct sl_err err = SL_ERR_INIT;
    bool replace = false;
    ck_assert_msg(upload_once(&replace, &err) == 0, "%s", err.message);
    expect_written();
}

SL_TEST(a_model_that_is_there_stays_unless_it_is_replaced)
{
    struct sl_err err = SL_ERR_INIT;
    static const struct made_tensor older[] = {{"w 0\n", 4, 10}, {"gone", 4, 20}};
    size_t bytes;
    uint8_t *data = make_tensors(older, 2, &bytes);
    sl_redis_server_put_model(server, "m", data, bytes);
    free(data);
    expect_failure(false, SL_E_USAGE, "already");
    ck_assert_uint_eq(sl_redis_server_key_count(server), 5);
    ck_assert_msg(upload_once(NULL, &err) == 0, "%s", err.message);
    expect_written(); /* and nothing of the older one */
}

SL_TEST(nothing_is_visible_before_the_end_or_left_after_an_abort)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_upload) upload = NULL;
    size_t bytes;
    ck_assert_int_eq(open_upload(false, &upload, &err), 0);
    ck_assert_int_eq(write_all(upload, &err), 0);
    ck_assert_ptr_null(sl_redis_server_get(server, "m:header:0", 10, &bytes));
    ck_assert_uint_ge(sl_redis_server_key_count(server), 5);
    sl_upload_free(sl_steal(&upload));
    ck_assert_uint_eq(sl_redis_server_key_count(server), 0);
}

SL_TEST_LOOP(whoever_writes_meanwhile_is_not_overwritten, 0, 2)
{
    sl_redis_server_meddle(server, "EXEC", 1, "m:header:0", "other");
    expect_failure(_i == 1, SL_E_USAGE, "by another client");
    ck_assert_uint_eq(sl_redis_server_key_count(server), 1);
}

SL_TEST_LOOP(broken_connections_are_made_again, 0, 9)
{
    static const char *const verbs[] = {"SETRANGE", "SETEX", "STRLEN", "RENAME", "EXEC",
                                        "MULTI",    "WATCH", "SET",    "EXPIRE"};
    struct sl_err err = SL_ERR_INIT;
    bool replace = false;
    sl_redis_server_fault(server, verbs[_i], 1, 1, NULL, 0);
    ck_assert_msg(upload_once(&replace, &err) == 0, "%s", err.message);
    expect_written();
}

SL_TEST_LOOP(values_that_the_server_loses_fail_the_upload, 0, 5)
{
    static const struct {
        const char *verb, *reply;
        unsigned nth;
    } cases[] = {
        {"STRLEN", ":0\r\n", 1},
        {"STRLEN", ":0\r\n", 9},
        {"SETRANGE", ":7\r\n", 3},
        {"SETRANGE", "-OOM command not allowed when used memory\r\n", 1},
        {"SETEX", "-OOM command not allowed when used memory\r\n", 1},
    };
    sl_redis_server_fault(server, cases[_i].verb, cases[_i].nth, cases[_i].nth, cases[_i].reply,
                          -1);
    expect_failure(false, SL_E_NO_SPACE, "");
    ck_assert_uint_eq(sl_redis_server_key_count(server), 0);
}

SL_TEST(a_transaction_that_fails_takes_the_model_away)
{
    sl_redis_server_fault(server, "EXEC", 1, 1, "*2\r\n+OK\r\n-ERR no such key\r\n", -1);
    expect_failure(false, SL_E_NO_SPACE, "taken away");
}

SL_TEST_LOOP(refusals_come_before_the_first_byte, 0, 4)
{
    static const struct {
        const char *verb, *reply;
        enum sl_err_kind kind;
    } cases[] = {
        {"EXISTS", "-NOAUTH Authentication required.\r\n", SL_E_AUTH},
        {"EXISTS", "-MOVED 1 h:1\r\n", SL_E_USAGE},
        {"SETRANGE", "-READONLY You can't write against a read only replica.\r\n", SL_E_USAGE},
        {"SETEX", "-NOPERM this user has no permissions\r\n", SL_E_AUTH},
    };
    sl_redis_server_fault(server, cases[_i].verb, 1, 1, cases[_i].reply, -1);
    expect_failure(false, cases[_i].kind, "");
    ck_assert_uint_eq(sl_redis_server_key_count(server), 0);
}

/* The server of the tests takes values of 20,000,000 bytes. */
SL_TEST(values_beyond_the_servers_limit_are_refused)
{
    static const struct made_tensor large[] = {{"large", 5, 20000001}};
    free(model);
    model = make_tensors(large, 1, &model_bytes);
    expect_failure(false, SL_E_USAGE, "proto-max-bulk-len");
    ck_assert_uint_eq(sl_redis_server_count(server, "SETRANGE"), 0);
    ck_assert_uint_eq(sl_redis_server_count(server, "SETEX"), 0);
    sl_redis_server_fault(server, "CONFIG", 1, 1, "-NOPERM no\r\n", -1);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(upload_once(NULL, &err) == 0, "%s", err.message);
}

/* The server is slow with a block, the program is told to end, and another connection's commands
 * are faster. */
static void cancel_and_dawdle(void *cancel)
{
    sl_cancel_raise(cancel, 15);
    for (int i = 0; i < 60 && !sl_redis_server_count(server, "UNLINK"); i++)
        sl_sleep_ms(10, NULL, NULL);
}

SL_TEST(what_comes_late_of_a_canceled_upload_is_not_left)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    const struct sl_source_config own = {.attempts = 2, .stall_seconds = 20, .cancel = cancel};
    const struct sl_upload_config config = {.source = &own};
    SL_AUTO(sl_upload) upload = NULL;
    ck_assert_int_eq(
        sl_upload_open(sl_redis_server_url(server, "m"), model_bytes, &config, &upload, &err), 0);
    sl_redis_server_pause(server, "SETRANGE", 3, cancel_and_dawdle, cancel);
    ck_assert_int_eq(write_all(upload, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_upload_free(sl_steal(&upload));
    ck_assert_uint_gt(sl_redis_server_count(server, "UNLINK"), 0);
    for (int i = 0; i < 10; i++) { /* not a moment later either */
        ck_assert_uint_eq(sl_redis_server_key_count(server), 0);
        sl_sleep_ms(10, NULL, NULL);
    }
    sl_cancel_free(cancel);
}

SL_TEST(only_tensors_files_are_taken)
{
    memcpy(model, "{\"a\":", 5);
    expect_failure(false, SL_E_USAGE, "tensorizer");
}

SL_TEST(every_failing_allocation_is_told)
{
    ck_assert_uint_ge(golden_each_allocation(upload_once, NULL), 10);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct share {
    struct sl_upload *upload;
    unsigned number;
    int result;
    struct sl_cancel *cancel; /* of its own; NULL: none */
    enum sl_err_kind kind;
};

enum { THREADS = 4, SMALL_BYTES = 10000 };

static void *write_share(void *arg)
{
    struct share *share = arg;
    struct sl_err err = SL_ERR_INIT;
    size_t head = head_bytes();
    for (size_t at = head, i = 0; at < model_bytes && share->result == 0; at += SMALL_BYTES, i++) {
        if (i % THREADS == share->number)
            share->result = sl_upload_write(share->upload, at, model + at,
                                            SL_MIN(model_bytes - at, SMALL_BYTES), &err);
    }
    return NULL;
}

SL_TEST(several_threads_write_one_model)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_upload) upload = NULL;
    struct share shares[THREADS];
    pthread_t threads[THREADS];
    ck_assert_int_eq(open_upload(false, &upload, &err), 0);
    ck_assert_int_eq(sl_upload_write(upload, 0, model, head_bytes(), &err), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        shares[i] = (struct share){.upload = upload, .number = i};
        pthread_create(&threads[i], NULL, write_share, &shares[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(shares[i].result, 0);
    }
    ck_assert_msg(sl_upload_finish(upload, &err) == 0, "%s", err.message);
    expect_written();
}

/* Room for a value is made by the writer of its first block. The server takes its time. */
static struct sl_counter let_go;

static void pause_until_let_go(void *arg)
{
    sl_counter_add(arg, 1);
    SL_AWAIT(sl_counter_get(&let_go), "the end of the pause");
}

static void *write_late_block(void *arg)
{
    struct share *share = arg;
    struct sl_err err = SL_ERR_INIT;
    size_t at = head_bytes() + share->number * SMALL_BYTES;
    sl_thread_cancel_set(share->cancel);
    share->result = sl_upload_write(share->upload, at, model + at, SMALL_BYTES, &err);
    share->kind = err.kind;
    return NULL;
}

SL_TEST(cancellation_ends_a_wait_for_anothers_block)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_counter paused = {0};
    struct sl_cancel *cancel = sl_cancel_new(&err);
    SL_AUTO(sl_upload) upload = NULL;
    pthread_t threads[2];
    ck_assert_int_eq(open_upload(false, &upload, &err), 0);
    ck_assert_int_eq(sl_upload_write(upload, 0, model, head_bytes(), &err), 0);
    struct share first = {.upload = upload, .number = 1},
                 second = {.upload = upload, .number = 2, .cancel = cancel};
    sl_redis_server_pause(server, "SETRANGE", 1, pause_until_let_go, &paused);
    pthread_create(&threads[0], NULL, write_late_block, &first);
    SL_AWAIT(sl_counter_get(&paused), "the first block's command");
    fake_clock_hold();
    pthread_create(&threads[1], NULL, write_late_block, &second);
    fake_clock_await(SL_THREAD_CANCEL_LOOK_MS * SL_NS_PER_MS);
    sl_cancel_raise(cancel, 15);
    pthread_join(threads[1], NULL);
    ck_assert_int_eq(second.result, -1);
    ck_assert_int_eq(second.kind, SL_E_CANCELED);
    sl_counter_add(&let_go, 1);
    pthread_join(threads[0], NULL);
    ck_assert_int_eq(first.result, 0);
    sl_cancel_free(cancel);
}

SL_CASE(.setup = setup, .teardown = teardown)
