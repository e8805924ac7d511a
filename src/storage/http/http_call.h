/*
 * One small request to a store over HTTP, read whole, with all its tries: pages of listings,
 * manifests, and what uploads are made of. Each store prepares and judges it; when it is sent
 * again, and how long a store is waited for that is not up, is decided here alone. Any thread, an
 * exchange for each.
 */
#ifndef SL_HTTP_CALL_H
#define SL_HTTP_CALL_H

#include "http_channel.h"

/** Everything is borrowed. */
struct sl_http_call {
    const char *what; /* "cannot list 'gs://b/'" */
    const char *method;
    const void *body; /* lent */
    size_t body_bytes, answer_limit;
    uint64_t stream_bytes; /* instead of body: so many bytes follow by sl_exchange_send(), when the
                              server wants them: status 0 */
    unsigned attempts;     /* tries, those that reach nothing included; 0: as the config says */
    void *arg;             /* of the calls below */
    /** URL, credentials and other headers, anew for each try. */
    int (*prepare)(void *arg, struct sl_range_request *request, struct sl_err *err);
    /** NULL: a status of 200 to 299. */
    bool (*is_success)(void *arg, const struct sl_answer *answer);
    /** As the hook of http_channel.h: 0 if prepare() will now give the place, 1 if it is not
     * followed, -1. At most 10 in all tries. NULL: none is followed. */
    int (*redirect)(void *arg, const char *from, const char *to, int status, struct sl_err *err);
    /** Always -1: the error of an answer that is not a success. */
    int (*refuse)(void *arg, const struct sl_answer *answer, struct sl_err *err);
    /** Before one more try of what waiting does not cure: true if something was done about it. It
     * may be called once for a status, and twice in all. */
    bool (*recover)(void *arg, const struct sl_err *why);
};

/**
 * Send a request and read its answer: again after what may pass, and after what can be recovered.
 * Blocks.
 *
 * @config    tries and time-outs.
 * @exchange  its connection; its cancellation ends the call.
 * @call      what to ask, and what is a success.
 * @answer    out: release it after a success.
 * @tried     out: how many tries it took; may be NULL.
 * @return    0, or -1 with the error of the last try, or SL_E_CANCELED.
 */
int sl_http_call(const struct sl_source_config *config, struct sl_exchange *exchange,
                 const struct sl_http_call *call, struct sl_answer *answer, unsigned *tried,
                 struct sl_err *err);
/** The same on a connection of the store's, with which its next fetch goes on. */
int sl_http_ask(struct sl_store *store, const struct sl_http_call *call, struct sl_answer *answer,
                struct sl_err *err);
/**
 * Follow an answer that is a redirect, as a call does.
 *
 * @from    the URL that was asked.
 * @count   in, out: of redirects so far.
 * @return  0, 1 if it is not followed, -1.
 */
int sl_http_follow(const struct sl_http_call *call, const char *from,
                   const struct sl_answer *answer, unsigned *count, struct sl_err *err);

/** Ask for an object without a range, by its kind's prepare(), for what the headers say: of one
 * that is known to be empty, since the refusal of a range says little. 0 (release the answer), or
 * -1 as sl_http_call(). Blocks. */
int sl_http_ask_empty(struct sl_source *source, struct sl_answer *answer, struct sl_err *err);
/** Does the header say this word, in any case, whatever follows a ';'? */
bool sl_http_says(const struct sl_answer *answer, const char *header, const char *word);

/** The URL of `<URL>; rel="next"` (RFC 8288) within the value of Link headers, of so many bytes;
 * borrowed from it. NULL: there is no next page. */
const char *sl_http_next_link(const char *link, size_t *bytes);

/** A listing, page by page. */
struct sl_http_walk {
    const char *what;
    /** Ask for a page and pass on its entries. at: where it is, as the page before said; NULL: the
     * first. *next, malloc'ed: where the next one is, NULL: there is none. */
    int (*page)(void *arg, const char *at, char **next, uint64_t *entries, struct sl_err *err);
    void *arg;
};
/**
 * Walk through the pages of a listing. Blocks.
 *
 * @walk     how to ask for a page, and what to do with it.
 * @entries  out: how many there were.
 * @return   0, or -1: SL_E_FORMAT, code "listing", for pages that go in a circle; SL_E_CANCELED
 *           between pages.
 */
int sl_http_walk(struct sl_store *store, const struct sl_http_walk *walk, uint64_t *entries,
                 struct sl_err *err);

#endif
