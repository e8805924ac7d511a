/* What the parts of Google Cloud Storage share: one bucket. */
#ifndef SL_GS_STORE_H
#define SL_GS_STORE_H

#include "cloud_reply.h"
#include "gs_creds.h"

enum { SL_GS_KEY_BYTES_MAX = 1024, SL_GS_PAGE_BYTES_MAX = 16 * 1024 * 1024 };

/** store->impl */
struct sl_gs {
    struct sl_store *store;
    char *origin; /* "https://storage.googleapis.com", without '/' at its end */
    char *bucket;
    char *prefix;     /* keys of the store's objects begin so: "" or with '/' at its end */
    char *key;        /* the object that the URI named, and … */
    char *generation; /* … its generation in the URI (#123); NULL: none */
    char *user_project;
    struct sl_gs_creds *creds;
};

/** The operation that was refused, for the message. */
enum sl_gs_verb { SL_GS_READ, SL_GS_LIST, SL_GS_WRITE };
/**
 * Make the error of a refusal, XML or JSON, with what to do.
 *
 * @what    the subject: "cannot read 'gs://b/k'".
 * @verb    what was refused.
 * @reply   borrowed for the call.
 * @return  -1.
 */
int sl_gs_refused(struct sl_gs *gs, const char *what, enum sl_gs_verb verb,
                  const struct sl_cloud_reply *reply, struct sl_err *err);

/** The credentials' headers of a request; *generation: of the token. */
int sl_gs_let_in(struct sl_gs *gs, struct sl_range_request *request, unsigned *generation,
                 struct sl_err *err);

/** sl_store_kind.list */
int sl_gs_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);
/**
 * Read one page of a listing. Fuzzed.
 *
 * @text, bytes  the answer's body.
 * @what         the subject of errors: "cannot list 'gs://b/'".
 * @prefix       names are told without it; one that does not begin so is an error.
 * @each         told of each object; -1 (err filled) ends the page.
 * @arg          of each().
 * @token        out: of the next page, free() it; NULL: this is the last, or it failed.
 * @entries      out: how many objects were told; only after a success.
 * @return       0, or -1 with SL_E_FORMAT, SL_E_NO_SPACE, or what each() fails with.
 */
int sl_gs_page_parse(const char *text, size_t bytes, const char *what, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, char **token, uint64_t *entries, struct sl_err *err);

/** "generation=123" of digits, as of a version's pin; false if they are none. */
bool sl_gs_pin(char pin[SL_PIN_TEXT_MAX], const char *generation);

#endif
