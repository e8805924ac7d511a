/* Tokens that are refused and replaced while somebody wants the end of it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "gs_store.h"
#include "gs_user.h"
#include "range_server.h"
#include "scratch.h"
#include "source.h"
#include "stores.h"

static struct sl_gs_options gs;
static struct sl_source_config config;
static struct sl_err err;
static struct sl_server *server;
static char folder[SL_SCRATCH_PATH_BYTES];
static int folder_fd;

/* Tokens, none of which lets anybody in. */
static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    bool gives = strncmp(request->target, "/token", 6) == 0;
    reply->status = gives ? 200 : 401;
    reply->body = strdup(gives ? "{\"access_token\": \"t\", \"expires_in\": 3600}" : "{}");
    reply->body_bytes = strlen(reply->body);
    return true;
}

static void setup(void)
{
    clearenv();
    gs = (struct sl_gs_options){0};
    config = (struct sl_source_config){.options = {{&sl_gs_table, &gs}}, .attempts = 3};
    config.cancel = sl_cancel_new(&err);
    server = sl_server_start();
    sl_server_handle(server, answer, NULL);
    folder_fd = sl_scratch_open(folder);
    sl_gs_user_of(server, folder);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_cancel_free(config.cancel);
    sl_scratch_close(folder_fd, folder);
}

static int take_none(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    (void)entry;
    (void)arg;
    (void)why;
    return 0;
}

static void *use_until_canceled(void *lists)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    const char *uri = lists ? "gs://models/" : "gs://models/m.bin";
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &name, &err), 0);
    int done = lists ? sl_store_list(store, take_none, NULL, &err)
                     : sl_source_open(store, name, 10, &source, &err);
    ck_assert_int_eq(done, -1);
    return NULL;
}

/* A refusal came before, but that is not why it ends. */
SL_TEST_LOOP(what_is_canceled_while_a_token_is_replaced_says_so, 0, 2)
{
    pthread_t thread;
    err = (struct sl_err)SL_ERR_INIT;
    SL_SCRIPT(
        server,
        {.path = "/token", .first = 2, .fault = SL_FAULT_STALL, .after = -1, .unhandled = true});
    pthread_create(&thread, NULL, use_until_canceled, _i ? &config : NULL);
    SL_AWAIT(sl_server_request_count(server) == 3, "the question for another token");
    sl_cancel_raise(config.cancel, 0);
    pthread_join(thread, NULL);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
}

SL_CASE(.setup = setup, .teardown = teardown)
