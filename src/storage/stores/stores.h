/*
 * Every kind of store, found by a URI's scheme. Whoever asks "which are there?" or "what is this
 * URI?" asks here; what a kind is stands in its row (store_kind.h). Any thread, and nothing blocks
 * but sl_upload_open(); rows live for good.
 */
#ifndef SL_STORES_H
#define SL_STORES_H

#include "store_kind.h"
#include "upload.h"

/** The rows, in the order of stores.def; NULL past the last. */
const struct sl_store_kind *sl_stores_at(size_t index);
/** The row that reads a URI: /path, file:///path, s3://bucket/…; NULL if none does. A path, and
 * "a:b", are a local file's. */
const struct sl_store_kind *sl_stores_find(const char *uri);
/** Has its store whole models by name, and no folders? A slash at the end counts for nothing then.
 */
bool sl_uri_is_of_models(const char *uri);
/** Without that slash, the caller's. SL_E_NO_SPACE. */
char *sl_uri_of_model(const char *uri, struct sl_err *err);
/** The rows' schemes, as long as they fit: their count. Borrowed. */
enum { SL_STORES_SCHEMES_MAX = SL_STORE_KINDS_MAX * SL_SCHEMES_MAX };
size_t sl_stores_schemes(const char *schemes[SL_STORES_SCHEMES_MAX]);
/** "file://, s3://, …" of the rows into text. */
void sl_stores_name_schemes(char *text, size_t bytes);
/** Is it of a store on this machine (traits.local)? false if none reads it. */
bool sl_uri_is_local(const char *uri);
/** Is it a path to the parser of specs? What has a colon before any slash is a URI, or a mistaken
 * one, but for a name that begins with the colon. */
bool sl_uri_is_path(const char *uri);
/** Are names in it percent-encoded: in URLs, and in file: URIs? */
bool sl_uri_is_encoded(const char *uri);
/** Must what is written there come in order (its sl_upload_ops)? */
bool sl_uri_takes_in_order(const char *uri);
/** Add a row, for good; borrowed. Before other threads are started, and before a spec is parsed;
 * again is fine. SL_E_USAGE if its name or a scheme is taken, SL_E_NO_SPACE beyond
 * SL_STORE_KINDS_MAX. */
int sl_stores_register(const struct sl_store_kind *kind, struct sl_err *err);

/**
 * Open the store that a URI points into. Touches no network.
 *
 * @uri     with a trailing slash (or of an existing local directory) it is a prefix: *key is then
 *          "" and names are relative to it. Else its last path segment is *key and its folder the
 *          store's base, so that siblings (the shards of an index) can be opened.
 * @config  as struct sl_source_config says.
 * @store   out: the caller's.
 * @key     out: free() it; percent-decoded for http only as far as the path segment needs.
 * @return  0, or -1: SL_E_USAGE for a scheme that no row has, SL_E_AUTH, SL_E_NO_SPACE.
 */
int sl_store_open(const char *uri, const struct sl_source_config *config, struct sl_store **store,
                  char **key, struct sl_err *err);
/** Does the URI name a place, as far as its text tells: a bucket, a host? SL_E_USAGE if not, or if
 * no store has such. */
int sl_source_check_uri(const char *uri, struct sl_err *err);

/**
 * Begin a new object. What can be refused is refused here.
 *
 * @uri     of the object. file: a file without a name beside it (folders are made), checked for
 *          space. s3: a multipart upload; objects of one part are one PUT at the end. http: one
 *          PUT. redis: a .tensors file, whose head, written first and whole, names its keys.
 * @bytes   exactly so many will be written.
 * @config  copied; what it points to is borrowed until the free.
 * @upload  out: the caller's.
 * @return  0, or -1: SL_E_USAGE for a scheme that cannot be written, a URI that ends in '/', and
 *          (code "exists") an object that is there; SL_E_NO_SPACE, SL_E_AUTH, SL_E_CANCELED,
 *          SL_E_NET.
 *
 * Blocks.
 */
int sl_upload_open(const char *uri, uint64_t bytes, const struct sl_upload_config *config,
                   struct sl_upload **upload, struct sl_err *err);

#endif
