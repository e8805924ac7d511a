/* Small answers of stores over HTTP, read whole: what listings are made of. */
#include <string.h>

#include "http_base.h"
#include "progress.h"
#include "retry.h"

enum { ATTEMPTS_DEFAULT = 8, HURRIES_MAX = 3, REDIRECTS_MAX = 10, LOCATION_BYTES_MAX = 4096 };

struct get {
    struct sl_http_base *base;
    struct sl_http_object *object;
    struct sl_exchange *exchange;
    const char *what;
    size_t body_limit;
    unsigned redirects;
};

/* Its own object makes nobody wait; the origin may. */
static int prepare(struct get *get, struct sl_range_request *made, struct sl_err *err)
{
    int result = sl_http_prepare(get->base, get->object, made, err);
    while (result == 0 && made->waits) {
        uint64_t now = sl_now_ns(), until = made->wait_until_ns;
        sl_range_request_release(made);
        *made = (struct sl_range_request){0};
        if (until > now &&
            sl_exchange_pause(get->exchange, (unsigned)((until - now) / SL_NS_PER_MS + 1), err) < 0)
            return -1;
        result = sl_http_prepare(get->base, get->object, made, err);
    }
    return result;
}

/* hedge: as of a request. *url: where it was sent; free() it. */
static int ask(struct get *get, unsigned hedge, char **url, struct sl_answer *answer,
               struct sl_err *err)
{
    struct sl_range_request made = {0};
    int result = prepare(get, &made, err);
    const struct sl_request request = {.method = "GET",
                                       .url = made.url,
                                       .headers = (const char *const *)made.headers,
                                       .hedge = hedge};
    if (result == 0)
        result = sl_exchange_simple(get->exchange, &request, get->body_limit, answer, err);
    *url = sl_steal(&made.url);
    sl_range_request_release(&made);
    return result < 0 ? sl_wrap(err, "%s", get->what) : 0;
}

/* 1: it is none. */
static int follow(struct get *get, const char *from, const struct sl_answer *answer,
                  struct sl_err *err)
{
    char location[LOCATION_BYTES_MAX];
    if (answer->status < 301 || answer->status > 308 ||
        !sl_answer_header(answer, "Location", location, sizeof(location)))
        return 1;
    if (++get->redirects > REDIRECTS_MAX)
        return sl_fail(err, SL_E_NET, "%s: the redirects go in a circle", get->what);
    sl_autofree char *to = sl_url_resolve(from, location, err);
    int done = to ? sl_http_redirect(get->base, get->object, from, to, answer->status, err) : -1;
    return done < 0 ? sl_wrap(err, "%s", get->what) : 0;
}

static int refuse(struct get *get, const struct sl_answer *answer, struct sl_err *err)
{
    char later[64];
    if (get->base->refuse)
        return get->base->refuse(get->base, answer, get->what, err);
    bool has_later = sl_answer_header(answer, "Retry-After", later, sizeof(later));
    return sl_http_fail(err, answer->status, has_later ? later : NULL, get->what, "");
}

/* One try, redirects included. */
static int try_once(struct get *get, unsigned hedge, struct sl_answer *answer, struct sl_err *err)
{
    for (;;) {
        sl_autofree char *url = NULL;
        if (ask(get, hedge, &url, answer, err) < 0)
            return -1;
        if (answer->status >= 200 && answer->status < 300)
            return 0;
        int followed = follow(get, url, answer, err);
        if (followed == 1)
            refuse(get, answer, err);
        sl_answer_release(answer);
        if (followed)
            return -1;
    }
}

static int try_all(struct get *get, const struct sl_source_config *config, struct sl_answer *answer,
                   struct sl_err *err)
{
    struct sl_retry retry = {.limit = config->attempts ? config->attempts : ATTEMPTS_DEFAULT,
                             .unreachable_ns = config->unreachable_seconds * SL_NS_PER_S};
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t wait_ms = 0;
        unsigned failed = sl_retry_tries(&retry);
        bool last = failed + 1 >= retry.limit || failed >= HURRIES_MAX;
        if (try_once(get, last ? 0 : 1u << failed, answer, &why) == 0)
            return 0;
        bool again = false;
        if (why.retryable)
            again = sl_retry_again(&retry, &why, 0, &wait_ms);
        else if (why.http_status && sl_retry_may_recover(&retry, &why))
            again = sl_http_recover(get->base, get->object, &why, NULL);
        if (again && !why.retryable)
            sl_retry_note_recovered(&retry, &why);
        if (!again) {
            sl_cancel_check(config->cancel, &why); /* so was what would have recovered it */
            if (err)
                *err = why;
            return -1;
        }
        sl_progress_note_retry(config->progress, sl_retry_tries(&retry) + 1, sl_retry_most(&retry),
                               &why);
        if (sl_exchange_pause(get->exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
}

int sl_http_get(struct sl_store *store, struct sl_http_base *base, const char *url,
                const char *what, size_t body_limit, struct sl_answer *answer, struct sl_err *err)
{
    SL_AUTO(sl_http_object) object = sl_http_object_new(url, err);
    struct sl_channel *channel = object ? sl_store_take_channel(store, err) : NULL;
    if (!channel)
        return -1;
    struct get get = {.base = base,
                      .object = object,
                      .exchange = store->transport->channel_exchange(channel),
                      .what = what,
                      .body_limit = body_limit};
    int result = try_all(&get, &store->config, answer, err);
    sl_store_give_channel(store, channel);
    return result;
}
