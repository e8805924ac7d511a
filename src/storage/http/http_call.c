/* See http_call.h. Each try is prepared anew, since credentials, region, clock and the place where
 * a redirect led may have changed between. */
#include "http_call.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "http_base.h"
#include "progress.h"
#include "retry.h"
#include "url.h"

enum { REDIRECTS_MAX = 10, EMPTY_PAGES_MAX = 1000, EMPTY_ANSWER_BYTES_MAX = 4096 };

struct run {
    const struct sl_http_call *call;
    struct sl_exchange *exchange;
    struct sl_retry retry;
    unsigned redirects, tries;
};

/* The origin may say that it takes no requests for a while. */
static int prepare(struct run *run, struct sl_range_request *made, struct sl_err *err)
{
    for (;;) {
        int result = run->call->prepare(run->call->arg, made, err);
        if (result < 0 || !made->waits)
            return result;
        uint64_t now = sl_now_ns(), until = made->wait_until_ns;
        sl_range_request_release(made);
        *made = (struct sl_range_request){0};
        if (until > now &&
            sl_exchange_pause(run->exchange, (unsigned)((until - now) / SL_NS_PER_MS + 1), err) < 0)
            return -1;
    }
}

/* Send the head, and wait for the server to want the body: status 0. */
static int offer(struct run *run, const struct sl_request *request, struct sl_answer *answer,
                 struct sl_err *err)
{
    *answer = (struct sl_answer){.body = SL_BUF_INIT(run->call->answer_limit)};
    if (sl_exchange_start(run->exchange, request, err) < 0)
        return -1;
    for (;;) {
        enum sl_io_state state = sl_exchange_ready(run->exchange, err);
        if (state == SL_IO_END)
            return sl_exchange_answer(run->exchange, run->call->answer_limit, answer, err);
        if (state == SL_IO_DATA || state == SL_IO_FAILED)
            return state == SL_IO_DATA ? 0 : -1;
        if (sl_exchange_wait(run->exchange, err) < 0)
            return -1;
    }
}

/* *url: where it was sent; free() it. */
static int send_once(struct run *run, char **url, struct sl_answer *answer, struct sl_err *err)
{
    const struct sl_http_call *call = run->call;
    struct sl_range_request made = {0};
    int result = prepare(run, &made, err);
    const struct sl_request request = {.method = call->method,
                                       .url = made.url,
                                       .headers = (const char *const *)made.headers,
                                       .body = call->body,
                                       .body_bytes = call->body_bytes,
                                       .lent = call->body_bytes > 0,
                                       .hedge = sl_retry_hedge(&run->retry),
                                       .stream_bytes = call->stream_bytes};
    if (result == 0)
        result = call->stream_bytes
                     ? offer(run, &request, answer, err)
                     : sl_exchange_simple(run->exchange, &request, call->answer_limit, answer, err);
    *url = sl_steal(&made.url);
    sl_range_request_release(&made);
    return result < 0 ? sl_wrap(err, "%s", call->what) : 0;
}

static bool is_success(const struct sl_http_call *call, const struct sl_answer *answer)
{
    if (call->is_success)
        return call->is_success(call->arg, answer);
    return answer->status >= 200 && answer->status <= 299;
}

static bool is_redirect(int status)
{
    return (status >= 301 && status <= 303) || status == 307 || status == 308;
}

int sl_http_follow(const struct sl_http_call *call, const char *from,
                   const struct sl_answer *answer, unsigned *count, struct sl_err *err)
{
    if (!is_redirect(answer->status))
        return 1;
    size_t most = answer->head ? strlen(answer->head) + 1 : 1;
    sl_autofree char *location = sl_alloc(most, err);
    if (!location)
        return -1;
    if (!sl_answer_header(answer, "Location", location, most))
        return 1;
    sl_autofree char *to = sl_url_resolve(from, location, call->redirect ? err : NULL);
    int result = to ? 1 : -1;
    if (to && call->redirect)
        result = call->redirect(call->arg, from, to, answer->status, err);
    if (!to && !call->redirect)
        return 1;
    if (result == 1)
        return sl_http_check_moved(call->what, from, to, answer->status, err) < 0 ? -1 : 1;
    if (result == 0 && ++*count > REDIRECTS_MAX) {
        result = sl_fail(err, SL_E_NET, "the redirects go in a circle");
        if (err)
            err->retryable = false;
    }
    return result < 0 ? sl_wrap(err, "%s", call->what) : result;
}

/* One try, redirects included. */
static int try_once(struct run *run, struct sl_answer *answer, struct sl_err *err)
{
    for (;;) {
        sl_autofree char *url = NULL;
        if (send_once(run, &url, answer, err) < 0)
            return -1;
        if (!answer->status)
            return 0; /* the stream may begin */
        int followed = sl_http_follow(run->call, url, answer, &run->redirects, err);
        if (followed == 1 && is_success(run->call, answer))
            return 0;
        if (followed == 1)
            run->call->refuse(run->call->arg, answer, err);
        sl_answer_release(answer);
        if (followed)
            return -1;
    }
}

/* Is it worth one more try, and after how long? */
static bool may_try_again(struct run *run, const struct sl_err *why, uint64_t *wait_ms)
{
    if (why->retryable)
        return sl_retry_again(&run->retry, why, 0, wait_ms);
    if (!why->http_status || !run->call->recover || !sl_retry_may_recover(&run->retry, why) ||
        !run->call->recover(run->call->arg, why))
        return false;
    sl_retry_note_recovered(&run->retry, why);
    return true;
}

int sl_http_call(const struct sl_source_config *config, struct sl_exchange *exchange,
                 const struct sl_http_call *call, struct sl_answer *answer, unsigned *tried,
                 struct sl_err *err)
{
    struct run run = {.call = call, .exchange = exchange, .retry = sl_store_retry(config)};
    if (call->attempts)
        run.retry = (struct sl_retry){.limit = call->attempts};
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t wait_ms = 0;
        int result = try_once(&run, answer, &why);
        run.tries++;
        if (tried)
            *tried = run.tries;
        if (result == 0)
            return 0;
        if (!may_try_again(&run, &why, &wait_ms)) {
            sl_cancel_check(config->cancel, &why); /* so was what would have recovered it */
            if (err)
                *err = why;
            return -1;
        }
        sl_progress_note_retry(config->progress, sl_retry_tries(&run.retry) + 1,
                               sl_retry_most(&run.retry), &why, sl_retry_logged(&why));
        if (sl_exchange_pause(exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
}

int sl_http_ask(struct sl_store *store, const struct sl_http_call *call, struct sl_answer *answer,
                struct sl_err *err)
{
    struct sl_channel *channel = sl_store_take_channel(store, err);
    if (!channel)
        return -1;
    int result = sl_http_call(&store->config, store->transport->channel_exchange(channel), call,
                              answer, NULL, err);
    sl_store_give_channel(store, channel);
    return result;
}

/* ---- what is empty --------------------------------------------------------------------------- */

static int prepare_empty(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct sl_source *source = arg;
    const struct sl_http_hooks *hooks = source->store->kind->hooks;
    return hooks->prepare(source, request, err);
}

static int refuse_empty(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    (void)arg;
    return sl_http_fail(err, answer->status, NULL, "cannot ask for an empty object", "");
}

int sl_http_ask_empty(struct sl_source *source, struct sl_answer *answer, struct sl_err *err)
{
    const struct sl_http_call call = {.what = "cannot ask for an empty object",
                                      .method = "GET",
                                      .answer_limit = EMPTY_ANSWER_BYTES_MAX,
                                      .attempts = 2,
                                      .arg = source,
                                      .prepare = prepare_empty,
                                      .refuse = refuse_empty};
    return sl_http_ask(source->store, &call, answer, err);
}

bool sl_http_says(const struct sl_answer *answer, const char *header, const char *word)
{
    char text[256];
    if (!sl_answer_header(answer, header, text, sizeof(text)))
        return false;
    size_t bytes = strcspn(text, "; \t");
    return strlen(word) == bytes && strncasecmp(text, word, bytes) == 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

const char *sl_http_next_link(const char *link, size_t *bytes)
{
    while ((link = strchr(link, '<'))) {
        const char *end = strchr(++link, '>');
        if (!end)
            return NULL;
        size_t parameters = strcspn(end + 1, "<");
        const char *rel = strstr(end + 1, "rel=\"next\"");
        rel = rel ? rel : strstr(end + 1, "rel=next");
        *bytes = (size_t)(end - link);
        if (rel && rel < end + 1 + parameters)
            return link;
        link = end + 1 + parameters;
    }
    return NULL;
}

/* Brent's method, in constant memory: where a page leads is compared with where the last one led
 * whose number is a power of two. */
struct circle {
    char *kept;
    uint64_t pages, next;
    unsigned empty; /* in a row, each saying that there is more */
};

static int watch(struct circle *circle, const char *what, const char *at, uint64_t entries,
                 struct sl_err *err)
{
    circle->pages++;
    circle->empty = entries ? 0 : circle->empty + 1;
    if ((circle->kept && strcmp(circle->kept, at) == 0) || circle->empty > EMPTY_PAGES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "listing",
                            "%s: its pages go in a circle (after %" PRIu64 " of them)", what,
                            circle->pages);
    if (circle->pages < circle->next)
        return 0;
    circle->next = circle->pages * 2;
    free(circle->kept);
    circle->kept = sl_strdup(at, err);
    return circle->kept ? 0 : -1;
}

static int walk_pages(const struct sl_store *store, const struct sl_http_walk *walk,
                      struct circle *circle, uint64_t *total, struct sl_err *err)
{
    sl_autofree char *at = NULL;
    do {
        sl_autofree char *next = NULL;
        uint64_t entries = 0;
        if (walk->page(walk->arg, at, &next, &entries, err) < 0 ||
            sl_cancel_check(store->config.cancel, err) < 0)
            return -1;
        *total += entries;
        if (next && watch(circle, walk->what, next, entries, err) < 0)
            return -1;
        free(at);
        at = sl_steal(&next);
    } while (at);
    return 0;
}

int sl_http_walk(struct sl_store *store, const struct sl_http_walk *walk, uint64_t *entries,
                 struct sl_err *err)
{
    struct circle circle = {.next = 1};
    *entries = 0;
    int result = walk_pages(store, walk, &circle, entries, err);
    free(circle.kept);
    return result;
}
