/* Web servers as stores, and what uploads to them share with them. Any thread; no network. The
 * values of options are their spec's. */
#ifndef SL_HTTP_STORE_H
#define SL_HTTP_STORE_H

#include "http_base.h"

/** `source.http`; rows in http.c. Files are read anew when a connection answers 401. */
struct sl_http_options {
    char *bearer_token_file, *headers_file;
};
extern const struct sl_option_table sl_http_table;
extern const struct sl_store_kind sl_http_store;

/** Of a store of this kind; the store's. */
struct sl_http_base *sl_http_store_base(struct sl_store *store);
/** Of an object: the URL that is asked for, with its query, and the URI for people. free() both,
 * after a failure too. SL_E_NO_SPACE. */
int sl_http_store_url(struct sl_store *store, const char *name, char **url, char **uri,
                      struct sl_err *err);

/** sl_store_kind.list (http_list.c): of servers that list folders as JSON; else SL_E_USAGE. */
int sl_http_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);

/** Writing by one PUT (upload_http.c). */
extern const struct sl_upload_ops sl_upload_http_ops;

#endif
