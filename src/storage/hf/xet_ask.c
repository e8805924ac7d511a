/*
 * A GET with the file's range and the token, and its answer read whole. A refused token is replaced
 * and the question asked once more; redirects are not followed, since they would take the token
 * along.
 */
#include "xet_ask.h"

#include <inttypes.h>
#include <stdio.h>

enum { ANSWER_BYTES_MAX = 4 * 1024 * 1024, PIECE_BYTES = 16 * 1024, HEADER_BYTES = 64 };

struct sl_xet_ask {
    struct sl_xet *xet;
    struct sl_exchange *exchange;
    const struct sl_xet_file *file;
    const char *what;
    uint64_t begin, end;
    unsigned hedge;
    unsigned generation; /* of the token */
    bool renewed, has_head;
    struct sl_buf body;
};

struct sl_xet_ask *sl_xet_ask_new(struct sl_xet *xet, struct sl_err *err)
{
    struct sl_connect connect = sl_store_connect(sl_xet_xorbs(xet));
    struct sl_xet_ask *ask = sl_alloc(sizeof(*ask), err);
    if (!ask)
        return NULL;
    ask->xet = xet;
    ask->body.limit = ANSWER_BYTES_MAX;
    ask->exchange = sl_exchange_new(&connect, err);
    if (!ask->exchange)
        free(sl_steal(&ask));
    return ask;
}

void sl_xet_ask_free(struct sl_xet_ask *ask)
{
    if (!ask)
        return;
    sl_exchange_free(ask->exchange);
    sl_secret_buf_release(&ask->body);
    free(ask);
}

struct sl_exchange *sl_xet_ask_exchange(struct sl_xet_ask *ask)
{
    return ask->exchange;
}

static void forget_body(struct sl_xet_ask *ask)
{
    size_t limit = ask->body.limit;
    sl_secret_buf_release(&ask->body);
    ask->body.limit = limit;
}

void sl_xet_ask_abort(struct sl_xet_ask *ask)
{
    sl_exchange_abort(ask->exchange);
    forget_body(ask);
}

static int send_question(struct sl_xet_ask *ask, struct sl_err *err)
{
    struct sl_xet_access access;
    char range[HEADER_BYTES];
    char *url = NULL, *authorization = NULL;
    ask->has_head = false;
    forget_body(ask);
    snprintf(range, sizeof(range), "Range: bytes=%" PRIu64 "-%" PRIu64, ask->begin, ask->end - 1);
    int result = sl_xet_access(ask->xet, &access, err);
    if (result == 0) {
        ask->generation = access.generation;
        url = sl_asprintf(err, "%s/v1/reconstructions/%s", access.url,
                          sl_xet_file_hash_text(ask->file));
        authorization = sl_asprintf(err, "Authorization: Bearer %s", access.token);
        result = url && authorization ? 0 : -1;
    }
    const char *const headers[] = {range, authorization, NULL};
    if (result == 0)
        result = sl_exchange_start(
            ask->exchange,
            &(struct sl_request){
                .method = "GET", .url = url, .headers = headers, .hedge = ask->hedge},
            err);
    sl_xet_access_release(&access);
    sl_secret_free(authorization);
    free(url);
    return result;
}

int sl_xet_ask_start(struct sl_xet_ask *ask, const struct sl_xet_file *file, uint64_t begin,
                     uint64_t end, unsigned hedge, const char *what, struct sl_err *err)
{
    ask->file = file;
    ask->begin = begin;
    ask->end = end;
    ask->hedge = hedge;
    ask->what = what;
    ask->renewed = false;
    return send_question(ask, err);
}

/* WAIT: it is asked once more. */
static enum sl_io_state refuse(struct sl_xet_ask *ask, struct sl_err *err)
{
    int status = sl_exchange_status(ask->exchange);
    char later[HEADER_BYTES] = "", what[320];
    const char *value = sl_exchange_header(ask->exchange, "Retry-After");
    snprintf(later, sizeof(later), "%s", value ? value : "");
    sl_xet_ask_abort(ask);
    if (status == 401 && !ask->renewed && sl_xet_access_renew(ask->xet, ask->generation)) {
        ask->renewed = true;
        return send_question(ask, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
    }
    if (sl_cancel_check(sl_xet_xorbs(ask->xet)->config.cancel, err) < 0)
        return SL_IO_FAILED; /* and so was what would have brought another token */
    snprintf(what, sizeof(what), "%.280s: Xet refuses it", ask->what);
    sl_http_fail(err, status, *later ? later : NULL, what, "");
    if (err)
        err->http_status = status;
    return SL_IO_FAILED;
}

static enum sl_io_state read_head(struct sl_xet_ask *ask, struct sl_err *err)
{
    enum sl_io_state state = sl_exchange_head(ask->exchange, err);
    if (state == SL_IO_FAILED)
        sl_wrap(err, "%s", ask->what);
    if (state != SL_IO_DATA)
        return state;
    int status = sl_exchange_status(ask->exchange);
    if (status != 200 && status != 206)
        return refuse(ask, err);
    ask->has_head = true;
    return SL_IO_DATA;
}

enum sl_io_state sl_xet_ask_step(struct sl_xet_ask *ask, struct sl_xet_plan *plan,
                                 struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    if (!ask->has_head)
        state = read_head(ask, err);
    while (state == SL_IO_DATA) {
        char piece[PIECE_BYTES];
        size_t got;
        state = sl_exchange_body(ask->exchange, piece, sizeof(piece), &got, err);
        if (state == SL_IO_FAILED)
            sl_wrap(err, "%s", ask->what);
        if (state == SL_IO_DATA && sl_buf_append(&ask->body, piece, got, err) < 0)
            state = SL_IO_FAILED;
    }
    if (state == SL_IO_END) {
        state = SL_IO_DATA;
        if (sl_xet_plan_parse(sl_buf_string(&ask->body), ask->body.used, ask->end - ask->begin,
                              plan, err) < 0) {
            sl_xet_plan_release(plan);
            sl_wrap(err, "%s", ask->what);
            state = SL_IO_FAILED;
        }
        forget_body(ask);
    }
    return state;
}
