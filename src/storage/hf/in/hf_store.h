/*
 * A repository of a Hugging Face hub at one commit, or a bucket: what its files share.
 *
 * Addresses, tree, error headers and limits: https://huggingface.co/docs/hub/api and
 * https://huggingface.co/docs/hub/rate-limits; URIs, revisions, buckets and tokens as the hub's own
 * client has them (https://huggingface.co/docs/huggingface_hub).
 *
 * What pins an object: of a repository the commit, which is in every URL. A bucket has no versions,
 * but all its files are on Xet: the Xet hash, which the listing has and each answer tells. It is
 * the hash of the bytes, so what is read through Xet is asked for by it.
 */
#ifndef SL_HF_STORE_H
#define SL_HF_STORE_H

#include "hf_options.h"
#include "hf_repository.h"
#include "http_base.h"
#include "source.h"
#include "xet.h"

enum {
    SL_HF_COMMIT_BYTES = 41,
    SL_HF_PAGE_BYTES_MAX = 16 * 1024 * 1024,
    SL_HF_REVISION_BYTES_MAX = 255,
    SL_HF_WINDOW_SECONDS_MAX = 300, /* of a refusal (429) that is waited for */
};

/** Files of a bucket by name. Too many are not kept: each is asked for, then. */
struct sl_hf_files {
    struct sl_hf_file {
        char *name; /* relative to the folder */
        uint64_t bytes;
        char pin[SL_XET_HASH_TEXT];
    } * items;
    size_t count, capacity;
    bool too_many;
};

/** store->impl */
struct sl_hf {
    struct sl_http_base http; /* first; its URL is the endpoint */
    struct sl_store *store;
    struct sl_hf_uri uri;
    char *endpoint; /* without '/' at its end */
    char *folder;   /* of uri.path, with its last '/'; "": the repository */
    char *token, *token_file;
    const char *token_from; /* for people; NULL: there is no token */
    const char *withheld;   /* whence one came that may not go over plain http; NULL: none */
    struct sl_xet *xet;     /* NULL: it is off */
    struct sl_cache_place cache;
    struct {
        pthread_mutex_t mutex;
        char commit[SL_HF_COMMIT_BYTES]; /* "": not asked for yet */
        struct sl_hf_files files;        /* of a bucket, as it was listed last */
    } locked;
};
/** hf_token.c: hf->token or token_file, as the hub's client finds them, into hf->http. Reads no
 * file. */
int sl_hf_find_token(struct sl_hf *hf, const struct sl_hf_options *options, struct sl_err *err);
/** It is wiped. */
void sl_hf_forget_token(struct sl_hf *hf);
/** The commit that the revision is now; asked for once. Not of buckets. Blocks. Any thread. */
int sl_hf_commit(struct sl_hf *hf, char commit[SL_HF_COMMIT_BYTES], struct sl_err *err);

/** {endpoint}/api/{kind}/{repo}/{what}[/{name}]; free() it. SL_E_NO_SPACE. */
char *sl_hf_api_url(const struct sl_hf *hf, const char *what, const char *name, struct sl_err *err);

/** hf_bucket.c: add one of a listing; SL_E_NO_SPACE. Release it after a failure, too. */
int sl_hf_files_add(struct sl_hf_files *files, const struct sl_entry *entry, struct sl_err *err);
void sl_hf_files_release(struct sl_hf_files *files);
/** They are what is known from now on; what was known before is in files. */
void sl_hf_files_keep(struct sl_hf *hf, struct sl_hf_files *files);
/** hf_bucket.c: one file of a bucket, as it was listed, else as it is now: the Xet hash becomes the
 * pin of the source, which is opened with that. May block. SL_E_NOT_FOUND, and as listings. */
int sl_hf_find_in_bucket(struct sl_source *source, struct sl_err *err);

/** sl_store_kind.list, of the commit's tree, or of what is in a bucket now. */
int sl_hf_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);
/** Pages of a tree, and who is told of its files: each() of those below folder, names relative to
 * it; xet, unless it is NULL, of those that are on it. commit NULL: it is a bucket, whose listing
 * has what lies beside the folder under names that begin as it does. */
struct sl_hf_page {
    const char *what, *folder, *commit;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    struct sl_xet *xet;
};
/**
 * Read one page of a tree. Fuzzed.
 *
 * @page         whom to tell of its files.
 * @text, bytes  the answer's body, which is decoded in place.
 * @entries      out: how many entries there are, folders too; those before a failure.
 * @return       0, or -1: SL_E_FORMAT for what is no tree, or what page->each() fails with.
 */
int sl_hf_page_parse(const struct sl_hf_page *page, char *text, size_t bytes, uint64_t *entries,
                     struct sl_err *err);
/**
 * Find where a Link header's rel="next" leads, as a URL of the endpoint, wherever it points: a
 * mirror may hand on what the hub itself said. Fuzzed.
 *
 * @link      the header's value, whole; "": there is none.
 * @endpoint  without '/' at its end.
 * @what      the subject of errors.
 * @next      out: free() it; NULL: there is none.
 * @return    0, or -1 with SL_E_FORMAT, code "listing", or SL_E_NO_SPACE.
 */
int sl_hf_next_page(const char *link, const char *endpoint, const char *what, char **next,
                    struct sl_err *err);

/** What a refusal says; NULL: that header is absent. */
struct sl_hf_refusal {
    int status;
    const char *code, *message, *rate_limit, *retry_after;
};
/** Its error, with what to do; -1. A 429 closes the origin's window. what: "cannot read 'hf://…'".
 */
int sl_hf_refuse(const struct sl_hf *hf, const struct sl_hf_refusal *refusal, const char *what,
                 struct sl_err *err);
/** There is no such file: SL_E_NOT_FOUND, -1. */
int sl_hf_refuse_file(const struct sl_hf *hf, const char *what, struct sl_err *err);
/** sl_http_base.refuse */
int sl_hf_refuse_answer(struct sl_http_base *base, const struct sl_answer *answer, const char *what,
                        struct sl_err *err);

#endif
