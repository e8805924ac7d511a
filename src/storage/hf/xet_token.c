/*
 * The hub gives out tokens for the content store, one for a repository at a commit or for a bucket,
 * and says where the store is. Both are kept as one text, so that a token never goes to another
 * place than the one it came with.
 */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "imds.h"
#include "json.h"
#include "thread.h"
#include "xet.h"

enum {
    ANSWER_BYTES_MAX = 64 * 1024,
    MARGIN_SECONDS = 30,
    LEAST_SECONDS = 60, /* our clock may be ahead of the hub's */
    WHAT_BYTES = 420,
};

/* Above the content store there is nothing: its URL is an origin, perhaps with a path. */
static int check_url(const char *url, struct sl_err *err)
{
    sl_autourl parsed = {0};
    if (strcspn(url, "?# ") != strlen(url) || sl_url_parse(url, &parsed, err) < 0 ||
        parsed.userinfo)
        return sl_fail_code(err, SL_E_FORMAT, "xet", "the hub gives no valid URL for Xet");
    return sl_token_url_check(url, "the token for Xet", err);
}

int sl_xet_check_place(const struct sl_hf *hf, const char *url, struct sl_err *err)
{
    sl_autourl to = {0};
    int result = 0;
    if (sl_url_parse(url, &to, NULL) < 0)
        result = sl_fail_code(err, SL_E_NET, "xet", "a URL of Xet is invalid");
    else if (hf->http.url.tls && !to.tls)
        result = sl_fail_code(err, SL_E_NET, "xet",
                              "Xet leads from https to http, which is not followed");
    else if (sl_imds_redirect_refused(hf->http.url.host, to.host))
        result = sl_fail_code(err, SL_E_NET, "xet",
                              "Xet leads to '%.100s', a cloud's metadata address, which serves the "
                              "machine's keys: not followed",
                              to.host);
    if (result < 0 && err)
        err->retryable = false;
    return result;
}

int sl_xet_access_parse(const char *text, size_t bytes, char **access, int64_t *expires,
                        struct sl_err *err)
{
    json_t *document = sl_json_parse(text, bytes, "the hub's token for Xet", err);
    if (!document)
        return -1;
    const char *url = sl_json_get_string(document, "casUrl");
    const char *token = sl_json_get_string(document, "accessToken");
    uint64_t end = sl_json_get_uint(document, "exp", 0);
    int result = 0;
    if (!url || !token || !*token || strchr(token, ' ') || !end || end > INT64_MAX / 2)
        result = sl_fail_code(err, SL_E_FORMAT, "xet", "the hub's answer has no token for Xet");
    if (result == 0)
        result = check_url(url, err);
    if (result == 0)
        result = sl_token_check(token, "the hub's token for Xet", err);
    if (result == 0) {
        size_t url_bytes = strlen(url);
        while (url_bytes && url[url_bytes - 1] == '/')
            url_bytes--;
        *access = sl_asprintf(err, "%.*s %s", (int)url_bytes, url, token);
        *expires = SL_MAX((int64_t)end, sl_wall_seconds() + LEAST_SECONDS);
        result = *access ? 0 : -1;
    }
    json_decref(document);
    return result;
}

static int ask(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    struct sl_hf *hf = arg;
    char what[WHAT_BYTES], commit[SL_HF_COMMIT_BYTES] = "";
    sl_autosecretanswer answer = {0};
    snprintf(what, sizeof(what), "cannot get a token for the Xet storage of '%.300s'",
             hf->store->uri);
    if (!hf->uri.bucket && sl_hf_commit(hf, commit, err) < 0)
        return -1;
    sl_autofree char *url = sl_hf_api_url(hf, "xet-read-token", commit, err);
    if (!url || sl_http_get(hf->store, &hf->http, url, what, ANSWER_BYTES_MAX, &answer, err) < 0)
        return -1;
    if (sl_xet_access_parse(sl_buf_string(&answer.body), answer.body.used, text, expires, err) < 0)
        return sl_wrap(err, "%s", what);
    sl_autosecret char *place = sl_strndup(*text, strcspn(*text, " "), err);
    return place ? sl_xet_check_place(hf, place, err) : -1;
}

struct sl_tokens *sl_xet_tokens_new(struct sl_hf *hf, struct sl_err *err)
{
    return sl_tokens_new(ask, hf, MARGIN_SECONDS, err);
}
