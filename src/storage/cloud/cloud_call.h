/*
 * One request to a store in a cloud whose answer is small: pages of listings, and all that uploads
 * are made of. The counterpart of s3/s3_call.c for stores that are let in by tokens. Any thread, an
 * exchange for each.
 */
#ifndef SL_CLOUD_CALL_H
#define SL_CLOUD_CALL_H

#include "http_channel.h"

/** A refusal: status, headers that matter (NULL: absent) and body. Borrowed. */
struct sl_cloud_reply {
    int status;
    const char *retry_after, *code; /* code: of a header of the kind's (code_header) */
    const char *body;               /* NUL-terminated */
    size_t body_bytes;
};

struct sl_cloud_call {
    const char *what; /* "cannot list 'gs://b/'" */
    const char *method;
    const char *const *headers; /* more than `prepare` adds; NULL: none */
    const void *body;           /* lent */
    size_t body_bytes, answer_limit;
    unsigned attempts; /* 0: as the config says */
    int also_good;     /* a status beside 200 to 299 that is a success, as 308 is; 0: none */
    const char *code_header;
    void *arg; /* of the calls below */
    /** URL and credentials, anew for each try. */
    int (*prepare)(void *arg, struct sl_range_request *request, struct sl_err *err);
    /** Always -1: the error of a refusal. */
    int (*refuse)(void *arg, const struct sl_cloud_reply *reply, struct sl_err *err);
    /** Before one more try of what may not pass: true if something was done about it. */
    bool (*recover)(void *arg, const struct sl_err *why);
};

/**
 * Send, read the answer: again after what may pass, and once more after what can be recovered. 0
 * for a success (release the answer), else -1 with the error of the last try. Redirects are not
 * followed: they are refusals. Blocks; ends on the cancellation of the exchange: SL_E_CANCELED.
 */
int sl_cloud_call(const struct sl_source_config *config, struct sl_exchange *exchange,
                  const struct sl_cloud_call *call, struct sl_answer *answer, struct sl_err *err);

/** A listing, page by page; everything is borrowed. */
struct sl_cloud_walk {
    const struct sl_cloud_call *call; /* of every page */
    /** Give each entry of a page (of call->arg) to walk->each. *next, malloc'ed: where the next
     * page is, NULL: there is none. */
    int (*parse)(void *arg, const struct sl_answer *answer, const struct sl_cloud_walk *walk,
                 char **next, uint64_t *entries, struct sl_err *err);
    const char **page; /* which one is asked for, for call->prepare; NULL: the first */
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg; /* of each */
};
/** *entries: how many there were. As sl_store_list(). Blocks. */
int sl_cloud_walk(struct sl_store *store, const struct sl_cloud_walk *walk, uint64_t *entries,
                  struct sl_err *err);

/** A listing whose pages go in a circle: Brent's method, in constant memory. Zero-initialise. */
struct sl_page_watch {
    char *kept;
    uint64_t pages, next;
    unsigned empty;
};
/** The page had so many entries and leads to this one. SL_E_FORMAT, code "listing". */
int sl_page_watch(struct sl_page_watch *watch, const char *what, const char *token,
                  uint64_t entries, struct sl_err *err);

/** Base64 (RFC 4648 section 4) of exactly `bytes` bytes (at most 64)? Then value is filled in. */
bool sl_cloud_base64(const char *text, uint8_t *value, size_t bytes);

/** What a path names: "container/folders/key". key: the last segment; prefix: what is before it,
 * "" or with '/' at its end. All malloc'ed,
 * the caller's. SL_E_NO_SPACE. */
int sl_cloud_split(const char *path, char **container, char **prefix, char **key,
                   struct sl_err *err);

#endif
