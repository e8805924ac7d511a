/*
 * What the hub's refusals mean. It says so in headers; without a token it answers 401 for what is
 * missing, private or gated alike, so the message tells all three ways out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "http_window.h"
#include "retry.h"
#include "thread.h"

enum { HEADER_BYTES = 512 };

/* The seconds of `"resolvers";r=0;t=123`, where r is 0; -1: it does not say. */
static int64_t window_seconds(const char *rate_limit)
{
    const char *left = rate_limit ? strstr(rate_limit, "r=") : NULL;
    const char *time = rate_limit ? strstr(rate_limit, "t=") : NULL;
    uint64_t remaining, seconds;
    if (!left || !time)
        return -1;
    left += 2;
    time += 2;
    if (!sl_take_digits(&left, &remaining) || remaining || !sl_take_digits(&time, &seconds))
        return -1;
    return (int64_t)SL_MIN(seconds, UINT64_C(86400));
}

/* Milliseconds until it takes requests again; 0: it does not say. */
static uint64_t wait_ms(const struct sl_hf_refusal *refusal)
{
    int64_t seconds = window_seconds(refusal->rate_limit);
    if (seconds >= 0)
        return ((uint64_t)seconds + 1) * 1000;
    return refusal->retry_after ? sl_retry_after_ms(refusal->retry_after, sl_wall_seconds()) : 0;
}

static int refuse_more(const struct sl_hf *hf, const struct sl_hf_refusal *refusal,
                       const char *what, struct sl_err *err)
{
    uint64_t ms = wait_ms(refusal);
    bool obeyed = ms <= (SL_HF_WINDOW_SECONDS_MAX + 1) * UINT64_C(1000);
    if (ms && obeyed)
        sl_http_window_close(&hf->http.url, ms);
    char later[64] = "";
    if (ms)
        snprintf(later, sizeof(later), " for %" PRIu64 " s", ms / 1000);
    sl_fail(err, SL_E_NET, "%s: the hub accepts no more requests%s%s%s", what, later,
            hf->token_from || hf->withheld ? ""
                                           : "; set HF_TOKEN: with a token the limit is higher",
            obeyed ? "" : "; try again then");
    if (err) {
        err->retryable = obeyed;
        err->retry_after_ms = obeyed ? 0 : (uint32_t)ms; /* the window holds the next try back */
    }
    return -1;
}

/* A token is there: "give one" would send people the wrong way. */
static int refuse_withheld(const struct sl_hf *hf, enum sl_err_kind kind, const char *code,
                           const char *what, struct sl_err *err)
{
    return sl_fail_code(err, kind, code,
                        "%s: it is private or gated, or not there, and the token from %s was not "
                        "sent, since '%s' is plain http: use https",
                        what, hf->withheld, hf->endpoint);
}

static int refuse_gated(const struct sl_hf *hf, const char *what, struct sl_err *err)
{
    const char *page = hf->endpoint, *kind = hf->uri.kind, *repo = hf->uri.repo;
    if (hf->withheld)
        return refuse_withheld(hf, SL_E_AUTH, "GatedRepo", what, err);
    if (hf->token_from)
        return sl_fail_code(err, SL_E_AUTH, "GatedRepo",
                            "%s: it is gated, and the account of the token (from %s) has not "
                            "accepted its terms: accept them at %s/%s%s with that account",
                            what, hf->token_from, page, kind, repo);
    return sl_fail_code(err, SL_E_AUTH, "GatedRepo",
                        "%s: it is gated: accept the terms at %s/%s%s, and give a token of that "
                        "account by source.hf.tokenFile or HF_TOKEN",
                        what, page, kind, repo);
}

static const char *noun(const struct sl_hf *hf)
{
    return hf->uri.bucket ? "bucket" : "repository";
}

static int refuse_missing(const struct sl_hf *hf, const char *what, struct sl_err *err)
{
    if (hf->withheld)
        return refuse_withheld(hf, SL_E_NOT_FOUND, "RepoNotFound", what, err);
    if (hf->token_from)
        return sl_fail_code(err, SL_E_NOT_FOUND, "RepoNotFound",
                            "%s: there is no such %s, or the account of the token (from %s) may "
                            "not see it: check the name, and the token's rights",
                            what, noun(hf), hf->token_from);
    return sl_fail_code(err, SL_E_NOT_FOUND, "RepoNotFound",
                        "%s: there is no such %s, or it is private%s: check the name; if it is "
                        "right, give a token by source.hf.tokenFile or HF_TOKEN",
                        what, noun(hf), hf->uri.bucket ? "" : " or gated");
}

int sl_hf_refuse_file(const struct sl_hf *hf, const char *what, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_NOT_FOUND, "EntryNotFound",
                        "%s: the %s has no such file; a folder is written with '/' at its end",
                        what, noun(hf));
}

static int refuse_token(const struct sl_hf *hf, const struct sl_hf_refusal *refusal,
                        const char *what, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_AUTH, "",
                        "%s: the hub refuses the token (from %s)%s%.200s%s: make one that may read "
                        "this at %s/settings/tokens",
                        what, hf->token_from, refusal->message ? ", '" : "",
                        refusal->message ? refusal->message : "", refusal->message ? "'" : "",
                        hf->endpoint);
}

static bool is(const char *text, const char *wanted)
{
    return text && strcmp(text, wanted) == 0;
}

static int refuse(const struct sl_hf *hf, const struct sl_hf_refusal *refusal, const char *what,
                  struct sl_err *err)
{
    if (refusal->status == 429)
        return refuse_more(hf, refusal, what, err);
    if (is(refusal->code, "GatedRepo"))
        return refuse_gated(hf, what, err);
    if (is(refusal->message, "Access to this resource is disabled."))
        return sl_fail(err, SL_E_NOT_FOUND, "%s: the hub has taken it down", what);
    if (is(refusal->code, "RepoNotFound") || (refusal->status == 401 && !hf->token_from))
        return refuse_missing(hf, what, err);
    if (is(refusal->code, "RevisionNotFound"))
        return sl_fail_code(err, SL_E_NOT_FOUND, refusal->code,
                            "%s: it has no revision '%.100s': give a branch, a tag or a commit "
                            "behind '@'",
                            what, hf->uri.revision);
    if (is(refusal->code, "EntryNotFound"))
        return sl_hf_refuse_file(hf, what, err);
    if (hf->token_from && (refusal->status == 401 || (refusal->status == 403 && refusal->message)))
        return refuse_token(hf, refusal, what, err);
    return sl_http_fail(err, refusal->status, refusal->retry_after, what, "");
}

int sl_hf_refuse(const struct sl_hf *hf, const struct sl_hf_refusal *refusal, const char *what,
                 struct sl_err *err)
{
    refuse(hf, refusal, what, err);
    if (err)
        err->http_status = refusal->status;
    return -1;
}

int sl_hf_refuse_answer(struct sl_http_base *base, const struct sl_answer *answer, const char *what,
                        struct sl_err *err)
{
    const struct sl_hf *hf = (const struct sl_hf *)base; /* its first member */
    static const char *const names[] = {"X-Error-Code", "X-Error-Message", "RateLimit",
                                        "Retry-After"};
    char texts[SL_COUNT(names)][HEADER_BYTES];
    const char *found[SL_COUNT(names)];
    for (size_t i = 0; i < SL_COUNT(names); i++)
        found[i] = sl_answer_header(answer, names[i], texts[i], HEADER_BYTES) ? texts[i] : NULL;
    const struct sl_hf_refusal refusal = {answer->status, found[0], found[1], found[2], found[3]};
    return sl_hf_refuse(hf, &refusal, what, err);
}
