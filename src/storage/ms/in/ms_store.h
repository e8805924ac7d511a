/*
 * A repository of a ModelScope hub at one revision: what its files share.
 *
 * Addresses, answers, tokens and environment as ModelScope's own client has them
 * (https://github.com/modelscope/modelscope, modelscope/hub). URIs, endpoints and the care for
 * tokens are those of hf_repository.h.
 */
#ifndef SL_MS_STORE_H
#define SL_MS_STORE_H

#include "hf_repository.h"
#include "ms_options.h"
#include "source.h"

enum {
    SL_MS_LISTING_BYTES_MAX = 16 * 1024 * 1024, /* of one answer */
    SL_MS_LISTING_ENTRIES_MAX = 3000,           /* the hub leaves out the rest without a word */
};

/** Files of a revision, by path. */
struct sl_ms_file {
    char *path; /* in the repository */
    uint64_t bytes;
    char sha256[65]; /* "": the hub does not know it */
};
struct sl_ms_tree {
    struct sl_ms_file *files;
    size_t count, capacity;
};
void sl_ms_tree_release(struct sl_ms_tree *tree);

/** store->impl */
struct sl_ms {
    struct sl_http_base http; /* first; its URL is the endpoint */
    struct sl_store *store;
    struct sl_hf_uri uri;
    char *endpoint; /* without '/' at its end */
    char *folder;   /* of uri.path, with its last '/'; "": the repository */
    char *token;
    const char *token_from; /* for people; NULL: there is no token */
    bool withheld;          /* there is one, which may not go over plain http */
    struct {
        pthread_mutex_t mutex;
        bool listed;
        struct sl_ms_tree tree; /* of the last listing */
    } locked;
};

/** ms_list.c: sl_store_kind.list, of the revision's tree. */
int sl_ms_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);
/** Size and SHA-256 of the file of this name below the folder, by the last listing; the hub is
 * asked if there was none. file->path stays NULL. SL_E_NOT_FOUND. Blocks. Any thread. */
int sl_ms_find(struct sl_ms *ms, const char *name, struct sl_ms_file *file, struct sl_err *err);

/** One answer of a listing. what: "cannot list 'ms://…'". */
struct sl_ms_page {
    const struct sl_ms *ms;
    const char *what;
    const char *root;        /* a folder without '/' at its end; "": the repository */
    uint64_t entries;        /* out: how many it had */
    struct sl_ms_tree *tree; /* its files are added; NULL: not */
    /** Called for each folder right below root; NULL: not. */
    int (*folder)(void *arg, const char *path, struct sl_err *err);
    void *arg;
};
/** SL_E_FORMAT for what is none; the error of a refusal that came with status 200. Fuzzed. */
int sl_ms_page_parse(struct sl_ms_page *page, const char *text, size_t bytes, struct sl_err *err);

/** What a refusal says. */
struct sl_ms_refusal {
    int status;
    const char *body; /* NUL-terminated; "": none */
    size_t body_bytes;
    const char *retry_after; /* NULL: absent */
};
/** ms_refuse.c: its error, with what to do; -1. what: "cannot read 'ms://…'". */
int sl_ms_refuse(const struct sl_ms *ms, const struct sl_ms_refusal *refusal, const char *what,
                 struct sl_err *err);
/** sl_http_base.refuse */
int sl_ms_refuse_answer(struct sl_http_base *base, const struct sl_answer *answer, const char *what,
                        struct sl_err *err);

#endif
