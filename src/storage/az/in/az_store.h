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
/** Always -1: the error of a refusal. what: "cannot read 'az://c/b'". reply->code: of
 * SL_AZ_CODE_HEADER, else the body's. */
int sl_az_refused(struct sl_az *az, const char *what, enum sl_az_verb verb,
                  const struct sl_cloud_reply *reply, struct sl_err *err);

/** URL of a blob (NULL: of the container) with query ("" or "a=b") and what lets the request in;
 * *generation: of that. */
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
/** One page of a listing (fuzzed). *marker: of the next page, NULL: the last; free() it. */
int sl_az_page_parse(const char *text, size_t bytes, const char *what, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, char **marker, uint64_t *entries, struct sl_err *err);

#endif
