/* What the parts of Azure Blob storage share: one container. */
#ifndef SL_AZ_STORE_H
#define SL_AZ_STORE_H

#include "az_creds.h"
#include "cloud_reply.h"

#define SL_AZ_CODE_HEADER "x-ms-error-code"

/** store->impl */
struct sl_az {
    struct sl_store *store;
    struct sl_az_place place;
    struct sl_az_creds *creds;
};

/** The operation that was refused, for the message. */
enum sl_az_verb { SL_AZ_READ, SL_AZ_LIST, SL_AZ_WRITE };
/**
 * Make the error of a refusal, with what to do.
 *
 * @what    the subject: "cannot read 'az://c/b'".
 * @verb    what was refused.
 * @reply   its code is that of SL_AZ_CODE_HEADER; NULL: the body's counts.
 * @return  -1.
 */
int sl_az_refused(struct sl_az *az, const char *what, enum sl_az_verb verb,
                  const struct sl_cloud_reply *reply, struct sl_err *err);

/**
 * Fill a request with its URL and what lets it in.
 *
 * @blob        its whole name; NULL: of the container.
 * @query       "" or "a=b", encoded.
 * @request     out: release it, after a failure too.
 * @generation  out: of what lets it in, for sl_az_recover().
 * @return      0, or -1 as sl_az_creds_get(), or SL_E_NO_SPACE.
 *
 * May block while credentials are asked for.
 */
int sl_az_let_in(struct sl_az *az, const char *blob, const char *query,
                 struct sl_range_request *request, unsigned *generation, struct sl_err *err);
/** As sl_store_kind.recover, by the status of a refusal. */
bool sl_az_recover(struct sl_az *az, unsigned generation, const struct sl_err *why);

/** The Content-MD5 of a whole blob, as listings and answers give it; "" or NULL: there is none.
 * false: it is not the base64 of 16 bytes, of which a warning tells (what: the blob; NULL: it was
 * told of another one). */
bool sl_az_take_md5(const char *text, const char *what, struct sl_checksums *sums);

/** sl_store_kind.list */
int sl_az_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);
/**
 * Read one page of a listing. Fuzzed.
 *
 * @text, bytes  the answer's body.
 * @what         the subject of errors: "cannot list 'az://c/'".
 * @prefix       names are told without it; one that does not begin so is an error.
 * @each         told of each blob; -1 (err filled) ends the page.
 * @arg          of each().
 * @marker       out: of the next page, free() it; NULL: this is the last, or it failed.
 * @entries      out: how many blobs were told; only after a success.
 * @return       0, or -1 with SL_E_FORMAT, SL_E_NO_SPACE, or what each() fails with.
 */
int sl_az_page_parse(const char *text, size_t bytes, const char *what, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, char **marker, uint64_t *entries, struct sl_err *err);

#endif
