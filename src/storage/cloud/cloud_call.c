/* Tries of one small request; each is prepared anew, since a token may have been renewed between.
 */
#include "cloud_call.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "progress.h"
#include "retry.h"

enum { ATTEMPTS_DEFAULT = 8, HURRIES_MAX = 3, EMPTY_PAGES_MAX = 1000 };

static bool is_success(const struct sl_cloud_call *call, int status)
{
    return (status >= 200 && status <= 299) || (call->also_good && status == call->also_good);
}

static int refuse(const struct sl_cloud_call *call, const struct sl_answer *answer,
                  struct sl_err *err)
{
    char later[64], code[1024];
    const struct sl_cloud_reply reply = {
        .status = answer->status,
        .retry_after = sl_answer_header(answer, "Retry-After", later, sizeof(later)) ? later : NULL,
        .code = call->code_header && sl_answer_header(answer, call->code_header, code, sizeof(code))
                    ? code
                    : NULL,
        .body = sl_buf_string(&answer->body),
        .body_bytes = answer->body.used,
    };
    return call->refuse(call->arg, &reply, err);
}

/* hedge: as of a request. */
static int try_once(struct sl_exchange *exchange, const struct sl_cloud_call *call, unsigned hedge,
                    struct sl_answer *answer, struct sl_err *err)
{
    struct sl_range_request made = {0};
    int result = call->prepare(call->arg, &made, err);
    for (unsigned i = 0; result == 0 && call->headers && call->headers[i]; i++)
        result = sl_range_add_header(&made, err, "%s", call->headers[i]);
    const struct sl_request request = {.method = call->method,
                                       .url = made.url,
                                       .headers = (const char *const *)made.headers,
                                       .body = call->body,
                                       .body_bytes = call->body_bytes,
                                       .lent = call->body_bytes > 0,
                                       .hedge = hedge};
    if (result == 0)
        result = sl_exchange_simple(exchange, &request, call->answer_limit, answer, err);
    sl_range_request_release(&made);
    if (result < 0)
        return sl_wrap(err, "%s", call->what);
    if (is_success(call, answer->status))
        return 0;
    refuse(call, answer, err);
    sl_answer_release(answer);
    return -1;
}

int sl_cloud_call(const struct sl_source_config *config, struct sl_exchange *exchange,
                  const struct sl_cloud_call *call, struct sl_answer *answer, struct sl_err *err)
{
    unsigned limit = call->attempts ? call->attempts : config->attempts;
    struct sl_retry retry = {.limit = limit ? limit : ATTEMPTS_DEFAULT};
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t wait_ms = 0;
        bool last = retry.failed + 1 >= retry.limit || retry.failed >= HURRIES_MAX;
        if (try_once(exchange, call, last ? 0 : 1u << retry.failed, answer, &why) == 0)
            return 0;
        bool again = false;
        if (why.retryable)
            again = sl_retry_again(&retry, &why, 0, &wait_ms);
        else if (why.http_status && sl_retry_may_recover(&retry, &why))
            again = call->recover(call->arg, &why);
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
        if (sl_exchange_pause(exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
}

/* The token is compared with one kept from the last page whose number is a power of two. */
int sl_page_watch(struct sl_page_watch *watch, const char *what, const char *token,
                  uint64_t entries, struct sl_err *err)
{
    watch->pages++;
    watch->empty = entries ? 0 : watch->empty + 1;
    if ((watch->kept && strcmp(watch->kept, token) == 0) || watch->empty > EMPTY_PAGES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "listing",
                            "%s: its pages go in a circle (after %" PRIu64 " of them)", what,
                            watch->pages);
    if (watch->pages < watch->next)
        return 0;
    watch->next = watch->pages * 2;
    free(watch->kept);
    watch->kept = sl_strdup(token, err);
    return watch->kept ? 0 : -1;
}

bool sl_cloud_base64(const char *text, uint8_t *value, size_t bytes)
{
    uint8_t data[72];
    size_t length = strlen(text);
    if (bytes > 64 || length != (bytes + 2) / 3 * 4 || strcspn(text, "=") != (bytes * 4 + 2) / 3 ||
        EVP_DecodeBlock(data, (const unsigned char *)text, (int)length) < (int)bytes)
        return false;
    memcpy(value, data, bytes);
    return true;
}

int sl_cloud_split(const char *path, char **container, char **prefix, char **key,
                   struct sl_err *err)
{
    size_t first = strcspn(path, "/");
    const char *rest = path + first + (path[first] == '/'), *slash = strrchr(rest, '/');
    size_t prefix_bytes = slash ? (size_t)(slash - rest) + 1 : 0;
    *container = sl_strndup(path, first, err);
    *prefix = *container ? sl_strndup(rest, prefix_bytes, err) : NULL;
    *key = *prefix ? sl_strdup(rest + prefix_bytes, err) : NULL;
    return *key ? 0 : -1;
}

static int walk_page(struct sl_store *store, const struct sl_cloud_walk *walk,
                     struct sl_exchange *exchange, char **next, uint64_t *entries,
                     struct sl_err *err)
{
    struct sl_answer answer = {0};
    if (sl_cloud_call(&store->config, exchange, walk->call, &answer, err) < 0)
        return -1;
    int result = walk->parse(walk->call->arg, &answer, walk, next, entries, err);
    sl_answer_release(&answer);
    return result < 0 ? -1 : sl_cancel_check(store->config.cancel, err);
}

static int walk_pages(struct sl_store *store, const struct sl_cloud_walk *walk,
                      struct sl_exchange *exchange, struct sl_page_watch *watch, uint64_t *total,
                      struct sl_err *err)
{
    sl_autofree char *page = NULL;
    do {
        sl_autofree char *next = NULL;
        uint64_t entries = 0;
        *walk->page = page;
        if (walk_page(store, walk, exchange, &next, &entries, err) < 0)
            return -1;
        *total += entries;
        if (next && sl_page_watch(watch, walk->call->what, next, entries, err) < 0)
            return -1;
        free(page);
        page = sl_steal(&next);
    } while (page);
    return 0;
}

int sl_cloud_walk(struct sl_store *store, const struct sl_cloud_walk *walk, uint64_t *entries,
                  struct sl_err *err)
{
    struct sl_page_watch watch = {.next = 1};
    struct sl_channel *channel = sl_store_take_channel(store, err);
    if (!channel)
        return -1;
    *entries = 0;
    int result = walk_pages(store, walk, sl_http_channel_exchange(channel), &watch, entries, err);
    sl_store_give_channel(store, channel);
    free(watch.kept);
    return result;
}
