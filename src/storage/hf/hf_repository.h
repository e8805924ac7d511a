/* What hubs of other makers share with those of Hugging Face: how repositories are named, where a
 * hub is, and who is given a token. Any thread; nothing blocks. */
#ifndef SL_HF_REPOSITORY_H
#define SL_HF_REPOSITORY_H

#include "http_base.h"

/** hf://[models/|datasets/|spaces/]ORG/NAME[@REVISION][/PATH] or hf://buckets/ORG/NAME[/PATH],
 * taken apart. */
struct sl_hf_uri {
    const char *kind; /* "" or "datasets/", "spaces/", "buckets/" */
    bool bucket;      /* its files are replaced where they are: it has no revisions */
    char *repo;       /* ORG/NAME */
    char *revision;   /* decoded; "main" if none is written; of a bucket "" */
    char *path;       /* of a file, or of a folder with '/' at its end; "": all */
};
/** SL_E_USAGE. Release it after a failure, too. */
int sl_hf_uri_parse(const char *uri, struct sl_hf_uri *parts, struct sl_err *err);
/**
 * Take apart what stands behind the scheme and the kind: ORG/NAME[@REVISION][/PATH].
 *
 * @uri     the whole of it, which messages name.
 * @rest    where in `uri` that begins.
 * @usual   the revision if none is written.
 * @parts   out: repo, revision and path; kind and bucket are set before, the rest is zeroed.
 *          Release it, after a failure too.
 * @return  0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_hf_repository_parse(const char *uri, const char *rest, const char *usual,
                           struct sl_hf_uri *parts, struct sl_err *err);
void sl_hf_uri_release(struct sl_hf_uri *parts);

/** hf_token.c: is the variable one of 1, on, yes, true? */
bool sl_hf_variable_is_true(const char *name);
/** hf_token.c: a variable's text without blanks around it, malloc'ed; NULL, without an error: it is
 * not set, or holds nothing. SL_E_NO_SPACE. */
char *sl_hf_variable_text(const char *name, struct sl_err *err);
/** hf_token.c: may a token go to this hub: by https, or within this machine? 1. 0: no, and it was
 * only found, so a warning says so. SL_E_AUTH: no, and it was given for this hub. */
int sl_hf_may_send(const struct sl_http_base *base, const char *from, bool given,
                   struct sl_err *err);
/**
 * Take in the URL of a hub (hf.c).
 *
 * @base      zeroed; released by its owner, after a failure too.
 * @url       with '/' at its end or not; without a query.
 * @from      who said it, for messages.
 * @endpoint  out: malloc'ed, without '/' at its end and without a login.
 * @return    0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_hf_open_endpoint(struct sl_http_base *base, const char *url, const char *from,
                        char **endpoint, struct sl_err *err);

/**
 * Say what sl_store_kind.describe says of a hub (hf.c).
 *
 * @endpoint    its URL.
 * @token_from  where its token is from; NULL: there is none.
 * @row         called for each line; texts are borrowed for the call.
 * @arg         of row().
 */
void sl_hf_describe_hub(const char *endpoint, const char *token_from,
                        void (*row)(void *arg, const char *what, const char *text), void *arg);

#endif
