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

/** store->impl */
struct sl_http_store {
    struct sl_http_base base; /* first; target is the folder, with its last '/' */
    char *base_url;           /* without userinfo and query */
    char *key,
        *key_target; /* the object that the URI named: name; last segment and query as written */
};
/** Take the object off the base's URL, which is its folder then. *key, malloc'ed: its name.
 * SL_E_NO_SPACE. */
int sl_http_store_name(struct sl_http_store *http, char **key, struct sl_err *err);
/**
 * Name an object's URL.
 *
 * @name    relative to the store's folder.
 * @url     out: that is asked for, with its query.
 * @uri     out: for people, without it.
 * @return  0, or -1 with SL_E_NO_SPACE. NULL both before; free() them, after a failure too.
 */
int sl_http_store_url(struct sl_store *store, const char *name, char **url, char **uri,
                      struct sl_err *err);

/** sl_store_kind.list (http_list.c): of servers that list folders as JSON; else SL_E_USAGE. */
int sl_http_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);

/** Writing by one PUT (upload_http.c). */
extern const struct sl_upload_ops sl_upload_http_ops;

#endif
