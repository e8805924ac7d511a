/* Methods that do what a test wants. */
#include "grpc_case.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"

struct grpc_case grpc_case;

static enum sl_grpc_code echo(void *arg, const struct sl_grpc_method *method,
                              struct sl_grpc_call *call)
{
    (void)arg, (void)method;
    struct sl_err err = SL_ERR_INIT;
    if (sl_buf_append(&call->response, call->request, call->request_bytes, &err) == 0)
        return SL_GRPC_OK;
    snprintf(call->text, sizeof(call->text), "%s", err.message);
    return SL_GRPC_RESOURCE_EXHAUSTED;
}

static enum sl_grpc_code size(void *arg, const struct sl_grpc_method *method,
                              struct sl_grpc_call *call)
{
    (void)arg, (void)method;
    return sl_buf_printf(&call->response, NULL, "%zu", call->request_bytes) == 0 ? SL_GRPC_OK
                                                                                 : SL_GRPC_INTERNAL;
}

static enum sl_grpc_code refuse(void *arg, const struct sl_grpc_method *method,
                                struct sl_grpc_call *call)
{
    (void)arg, (void)method;
    snprintf(call->text, sizeof(call->text), "%.*s", (int)call->request_bytes - 1,
             (const char *)call->request + 1);
    return (enum sl_grpc_code)call->request[0];
}

static enum sl_grpc_code hold(void *arg, const struct sl_grpc_method *method,
                              struct sl_grpc_call *call)
{
    struct pollfd fds[] = {{.fd = sl_cancel_fd(call->cancel), .events = POLLIN},
                           {.fd = sl_cancel_fd(grpc_case.released), .events = POLLIN}};
    sl_counter_add(&grpc_case.holding, 1);
    if (strcmp(method->path, GRPC_PAIR) == 0)
        sl_counter_add(&grpc_case.pairs, 1);
    fake_clock_poll(fds, 2, -1);
    if (sl_cancel_raised(call->cancel)) {
        sl_counter_add(&grpc_case.left, 1);
        return SL_GRPC_CANCELLED;
    }
    return echo(arg, method, call);
}

static const struct sl_grpc_method methods[] = {
    {.path = GRPC_FAST, .fast = true, .answer = echo},
    {.path = GRPC_ECHO, .answer = echo},
    {.path = GRPC_SIZE, .answer = size},
    {.path = GRPC_FAIL, .fast = true, .answer = refuse},
    {.path = GRPC_HOLD, .answer = hold},
    {.path = GRPC_PAIR, .answer = hold, .at_once = 2},
};

struct sl_grpc *grpc_case_serve(const char *socket, struct sl_err *err)
{
    const struct sl_grpc_config config = {.socket = socket,
                                          .methods = methods,
                                          .method_count = SL_COUNT(methods),
                                          .workers = 4,
                                          .name = "play"};
    return sl_grpc_open(&config, err);
}

void grpc_case_open(void)
{
    struct sl_err err = SL_ERR_INIT;
    grpc_case.released = sl_cancel_new(&err);
    ck_assert_ptr_nonnull(grpc_case.released);
    grpc_case.directory = sl_scratch_open(grpc_case.path);
    snprintf(grpc_case.socket, sizeof(grpc_case.socket), "%s/play.sock", grpc_case.path);
    grpc_case.grpc = grpc_case_serve(grpc_case.socket, &err);
    ck_assert_msg(grpc_case.grpc != NULL, "%s", err.message);
}

void grpc_case_close(void)
{
    grpc_case_release();
    sl_grpc_close(grpc_case.grpc, 1000);
    sl_cancel_free(grpc_case.released);
    sl_scratch_close(grpc_case.directory, grpc_case.path);
}

void grpc_case_release(void)
{
    sl_cancel_raise(grpc_case.released, 0);
}
