/* What a ModelScope hub's refusals mean. What is private is answered as if it were not there. */
#include <stdio.h>

#include "json.h"
#include "ms_store.h"

enum { SAID_BYTES = 200, HEADER_BYTES = 64 };

/* " ('MESSAGE')" of the answer's JSON; "" if it holds none. */
static void quote(const struct sl_ms_refusal *refusal, char said[SAID_BYTES])
{
    json_t *document = refusal->body_bytes
                           ? sl_json_parse(refusal->body, refusal->body_bytes, "refusal", NULL)
                           : NULL;
    const char *message = document ? sl_json_get_string(document, "Message") : NULL;
    said[0] = 0;
    if (message && *message)
        snprintf(said, SAID_BYTES, " ('%.120s')", message);
    json_decref(document);
}

static int refuse(const struct sl_ms *ms, const struct sl_ms_refusal *refusal, const char *what,
                  struct sl_err *err)
{
    char said[SAID_BYTES];
    int status = refusal->status;
    quote(refusal, said);
    if (ms->token_from && (status == 401 || status == 403))
        return sl_fail(err, SL_E_AUTH,
                       "%s: the hub refuses the token (from %s)%s: make one that may read this at "
                       "%s/my/myaccesstoken",
                       what, ms->token_from, said, ms->endpoint);
    if (ms->token_from && status == 404)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "%s: the repository, revision or file does not exist, or the account of the "
                       "token (from %s) may not see it%s: check the name, and the token's rights",
                       what, ms->token_from, said);
    if (ms->withheld && (status == 401 || status == 403 || status == 404))
        return sl_fail(
            err, SL_E_NOT_FOUND,
            "%s: the repository, revision or file does not exist, or it is private%s, and "
            "the token from MODELSCOPE_API_TOKEN was not sent, since '%s' is plain "
            "http: use https",
            what, said, ms->endpoint);
    if (status == 401 || status == 403 || status == 404)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "%s: the repository, revision or file does not exist, or it is private%s: "
                       "check the name; if it is right, give a token by source.ms.tokenFile or "
                       "MODELSCOPE_API_TOKEN",
                       what, said);
    return sl_http_fail(err, status, refusal->retry_after, what, said);
}

int sl_ms_refuse(const struct sl_ms *ms, const struct sl_ms_refusal *refusal, const char *what,
                 struct sl_err *err)
{
    refuse(ms, refusal, what, err);
    if (err)
        err->http_status = refusal->status;
    return -1;
}

int sl_ms_refuse_answer(struct sl_http_base *base, const struct sl_answer *answer, const char *what,
                        struct sl_err *err)
{
    const struct sl_ms *ms = (const struct sl_ms *)base; /* its first member */
    char later[HEADER_BYTES];
    const struct sl_ms_refusal refusal = {
        .status = answer->status,
        .body = sl_buf_string(&answer->body),
        .body_bytes = answer->body.used,
        .retry_after = sl_answer_header(answer, "Retry-After", later, sizeof(later)) ? later : NULL,
    };
    return sl_ms_refuse(ms, &refusal, what, err);
}
