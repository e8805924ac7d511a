/*
 * What stores over HTTP keep, whichever kind they are of: the origin and the credentials that
 * belong to it alone, and of each object where redirects led.
 *
 * A kind has a struct sl_http_base in its store->impl and points at a struct sl_http_object from
 * its source->impl; its hooks (http_channel.h) hand both to the functions below. Any thread, but
 * open, close and free. Only sl_http_get() and sl_http_query() wait for a network; files of
 * credentials are read where they are needed first.
 */
#ifndef SL_HTTP_BASE_H
#define SL_HTTP_BASE_H

#include "buf.h"
#include "http_channel.h"
#include "thread.h"
#include "url.h"

enum { SL_HTTP_BUCKETS = 256 };

struct sl_http_base {
    struct sl_url url; /* credentials are sent to its scheme, host and port, and nowhere else */
    char *login;       /* "Basic …" of the URL or of .netrc; NULL: none */
    /* Set by the kind, borrowed: */
    const char *section;                          /* for messages: "source.http" */
    const char *bearer_token_file, *headers_file; /* NULL or "": none */
    const char *bearer_token;                     /* where there is no file; NULL or "": none */
    const char *bearer_from;   /* for messages; NULL: "SECTION.bearerTokenFile" */
    const char *bearer_cookie; /* of this name it is sent, too; NULL: it is not */
    bool windows; /* its origin says how long it takes no requests (http_window.h), and is obeyed */
    /* Of an answer to sl_http_get() that is not a success: make the error. NULL: by status alone.
     */
    int (*refuse)(struct sl_http_base *base, const struct sl_answer *answer, const char *what,
                  struct sl_err *err);
    struct {
        pthread_mutex_t mutex;
        bool loaded;
        struct sl_buf bearer, headers; /* of the files; headers as strings one after another */
        struct sl_http_object *objects[SL_HTTP_BUCKETS]; /* by URL */
        bool redirects; /* an object led elsewhere: others may, too */
    } locked;
};
/** Parse a URL and find its user and password, in it or in .netrc. No network, no files but .netrc.
 * SL_E_USAGE, SL_E_NO_SPACE. */
int sl_http_base_open(struct sl_http_base *base, const char *url, struct sl_err *err);
/** The same for a kind with credentials of its own: none are looked for. */
int sl_http_base_init(struct sl_http_base *base, const char *url, struct sl_err *err);
/** Accepts what sl_http_base_open() left half-made. Its objects go with it. */
void sl_http_base_close(struct sl_http_base *base);

/**
 * One URL, and where redirects led from it. Signed links are asked for once and shared: while one
 * connection asks the origin anew, the others wait (request->wait_fd).
 */
struct sl_http_object;
/** That of a URL, the same for everybody who asks; it lives as long as the base. A fragment is not
 * sent: it tells those of one URL apart whose links must not be mixed. SL_E_NO_SPACE. */
struct sl_http_object *sl_http_base_object(struct sl_http_base *base, const char *url,
                                           struct sl_err *err);
/** One of its own, for requests that are no GET of a range; nobody waits for it. The
 * caller's. SL_E_NO_SPACE. */
struct sl_http_object *sl_http_object_new(const char *url, struct sl_err *err);
void sl_http_object_free(struct sl_http_object *object);
/** Its own URL, with its query; borrowed. */
const char *sl_http_object_url(const struct sl_http_object *object);
SL_AUTO_DEFINE(sl_http_object)

/** Does it send a login, a token or headers of the user's to its origin? */
static inline bool sl_http_has_login(const struct sl_http_base *base)
{
    bool file = (base->bearer_token_file && *base->bearer_token_file) ||
                (base->headers_file && *base->headers_file);
    return base->login || file || (base->bearer_token && *base->bearer_token);
}
/** Hook prepare: the URL to ask, and the credentials if that is at the origin. SL_E_AUTH,
 * SL_E_USAGE: a file of credentials that cannot be read, or used. */
int sl_http_prepare(struct sl_http_base *base, struct sl_http_object *object,
                    struct sl_range_request *request, struct sl_err *err);
/**
 * Hook redirect: keep where a URL leads, or say why it is not followed.
 *
 * @from, to  the URL that was asked, and the one that `status` names.
 * @return    0, or -1 with SL_E_NET: from https to http, or to an address where clouds keep the
 *            keys of machines.
 */
int sl_http_redirect(struct sl_http_base *base, struct sl_http_object *object, const char *from,
                     const char *to, int status, struct sl_err *err);
/**
 * Refuse a redirect that is not followed, if it leads to https at the same host, as ingresses send
 * whatever comes by http.
 *
 * @what      the subject: "cannot list 'gs://b/'".
 * @from, to  the URL that was asked, and where it leads.
 * @return    -1 with SL_E_USAGE and what to write; else 0.
 */
int sl_http_check_moved(const char *what, const char *from, const char *to, int status,
                        struct sl_err *err);
/**
 * sl_store_kind.recover: a link that expired (401, 403, 404, 410) or cannot be reached is resolved
 * again, credential files are read again after 401. False with err: they cannot be read; without:
 * there is nothing to do about it.
 */
bool sl_http_recover(struct sl_http_base *base, struct sl_http_object *object,
                     const struct sl_err *why, struct sl_err *err);

/** The three of a kind whose store->impl begins with its struct sl_http_base, and whose
 * source->impl is an object of that. */
int sl_http_plain_prepare(struct sl_source *source, struct sl_range_request *request,
                          struct sl_err *err);
/**
 * As sl_http_redirect(), by sl_http_hooks.redirect.
 *
 * @exchange  whose answer is the redirect.
 * @from, to  the URL that was asked, and the one that the answer names.
 */
int sl_http_plain_redirect(struct sl_source *source, const struct sl_exchange *exchange,
                           const char *from, const char *to, struct sl_err *err);
bool sl_http_plain_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err);

/**
 * Ask for one small answer (a listing, a document) by GET, with credentials, redirects and all
 * tries, on a connection that the store's next fetch goes on with.
 *
 * @url         the whole of it; borrowed for the call.
 * @what        the subject of errors: "cannot list 'hf://o/m'".
 * @body_limit  a larger answer is an error.
 * @answer      out: release it after a success.
 * @return      0 for a status of 200 to 299, else -1 as base->refuse says, or sl_http_fail();
 *              SL_E_CANCELED.
 *
 * Blocks; ends on the store's cancellation.
 */
int sl_http_get(struct sl_store *store, struct sl_http_base *base, const char *url,
                const char *what, size_t body_limit, struct sl_answer *answer, struct sl_err *err);

/**
 * As sl_http_get(), by POST, for a question that changes nothing.
 *
 * @json  its body, which goes wherever redirects lead.
 */
int sl_http_query(struct sl_store *store, struct sl_http_base *base, const char *url,
                  const char *json, const char *what, size_t body_limit, struct sl_answer *answer,
                  struct sl_err *err);

/* ---- for http_channel.c ------------------------------------------------------------------------
 */

/** A request that was to ask for all (request->asks) has its answer, or will have none: the others
 * go on. direct: the URL itself answered. */
void sl_http_object_settle(struct sl_http_object *object, bool direct);
/**
 * Tell that a request failed: the place that it went to is forgotten, unless there is a newer one.
 *
 * @place      its number (request->place).
 * @status     of the answer; what says that a link has expired (401, 403, 404, 410) counts.
 * @unreached  nobody answered there; that counts, too.
 */
void sl_http_object_fail(struct sl_http_object *object, unsigned place, int status, bool unreached);

#endif
