/*
 * A load that waits for a token which another load asks for: its own end comes at once. The clock
 * is held, so that the wait can be seen.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "creds_home.h"
#include "fake_clock.h"
#include "range_server.h"
#include "thread_cancel.h"
#include "tokens.h"

/* A load, as far as it matters here: a thread with an end of its own. */
struct load {
    int (*get)(void *from, struct sl_err *err);
    void *from;
    struct sl_cancel *cancel;
    pthread_t thread;
    struct sl_err err;
    int result;
};

static struct load first, second;

static void *run(void *arg)
{
    struct load *load = arg;
    sl_thread_cancel_set(load->cancel);
    load->result = load->get(load->from, &load->err);
    return NULL;
}

static void start(struct load *load, int (*get)(void *, struct sl_err *), void *from)
{
    *load = (struct load){.get = get, .from = from, .cancel = sl_cancel_new(NULL)};
    ck_assert_ptr_nonnull(load->cancel);
    ck_assert_int_eq(pthread_create(&load->thread, NULL, run, load), 0);
}

static void end_canceled(struct load *load)
{
    sl_cancel_raise(load->cancel, 0);
    pthread_join(load->thread, NULL);
    sl_cancel_free(load->cancel);
    ck_assert_int_eq(load->result, -1);
    ck_assert_msg(load->err.kind == SL_E_CANCELED, "%s", load->err.message);
}

static void check_second_ends_alone(const struct sl_counter *answered)
{
    fake_clock_await(SL_THREAD_CANCEL_LOOK_MS * SL_NS_PER_MS);
    end_canceled(&second);
    ck_assert_uint_eq(sl_counter_get(answered), 0);
    end_canceled(&first);
}

/* ---- bearer tokens --------------------------------------------------------------------------- */

static struct sl_counter asked, answered;

static int ask_until_canceled(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    (void)arg, (void)text, (void)expires;
    sl_counter_add(&asked, 1);
    int result = sl_sleep_ms(3600 * 1000, sl_thread_cancel(NULL), err);
    sl_counter_add(&answered, 1);
    return result;
}

static int get_token(void *from, struct sl_err *err)
{
    sl_autosecret char *text = NULL;
    unsigned generation;
    return sl_tokens_get(from, &text, &generation, err);
}

SL_TEST(a_load_that_waits_for_anothers_token_is_canceled_at_once)
{
    SL_AUTO(sl_tokens) tokens = sl_tokens_new(ask_until_canceled, NULL, 60, NULL);
    fake_clock_hold();
    start(&first, get_token, tokens);
    SL_AWAIT(sl_counter_get(&asked) == 1, "the question of the first");
    start(&second, get_token, tokens);
    check_second_ends_alone(&answered);
    ck_assert_uint_eq(sl_counter_get(&asked), 1);
}

/* A refused token is replaced by one load, and the other, which was refused as well, waits. */
static int take_at_first(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    *expires = 0;
    *text = sl_counter_get(&asked) ? NULL : strdup("token");
    if (!*text)
        return ask_until_canceled(arg, text, expires, err);
    sl_counter_add(&asked, 1);
    return 0;
}

static int renew_token(void *from, struct sl_err *err)
{
    return sl_tokens_renew(from, 1) ? 0 : sl_cancel_check(sl_thread_cancel(NULL), err);
}

SL_TEST(a_load_that_waits_for_anothers_renewal_is_canceled_at_once)
{
    SL_AUTO(sl_tokens) tokens = sl_tokens_new(take_at_first, NULL, 60, NULL);
    ck_assert_int_eq(get_token(tokens, NULL), 0);
    fake_clock_hold();
    start(&first, renew_token, tokens);
    SL_AWAIT(sl_counter_get(&asked) == 2, "the question of the first");
    start(&second, renew_token, tokens);
    check_second_ends_alone(&answered);
}

/* ---- keys of S3 ------------------------------------------------------------------------------ */

static bool answer_nothing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)request, (void)arg;
    reply->status = 200;
    return true;
}

static int get_keys(void *from, struct sl_err *err)
{
    sl_autokey key = {0};
    return sl_creds_get(from, &key, err);
}

SL_TEST(a_load_that_waits_for_anothers_keys_is_canceled_at_once)
{
    sl_creds_home_setup();
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, answer_nothing, NULL);
    SL_SCRIPT(server,
              {.path = "/v1/credentials", .fault = SL_FAULT_STALL, .after = -1, .unhandled = true});
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/v1/credentials"), 1);
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    fake_clock_hold();
    start(&first, get_keys, creds);
    SL_AWAIT(sl_server_request_count(server) == 1, "the question of the first");
    start(&second, get_keys, creds);
    check_second_ends_alone(&answered);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
    sl_server_stop(server);
    sl_creds_home_teardown();
}
