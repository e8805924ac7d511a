/* A storage URI of KServe: what kind it is, and what is said of kinds that are not read. Any
 * thread; only local paths are looked at. */
#ifndef SL_STORAGE_URI_H
#define SL_STORAGE_URI_H

#include <stdbool.h>

#include "err.h"
#include "stores.h"

enum sl_storage_kind {
    SL_STORAGE_REMOTE,  /* of the store beside it */
    SL_STORAGE_LOCAL,   /* a path or file:// */
    SL_STORAGE_MOUNTED, /* below /mnt/models, where a model agent will put it: nothing to do */
};
struct sl_storage_uri {
    const char *text; /* without "sluice+" in front */
    char *held;       /* what owns it */
    enum sl_storage_kind kind;
    const struct sl_store_kind *store; /* NULL unless SL_STORAGE_REMOTE */
};
/**
 * Judge a source argument. "sluice+s3://…" and "sluice-WORD+s3://…" are s3://…, so that a
 * ClusterStorageContainer can have schemes of its own. "sluice+https:HOST/PATH" is a URL, since
 * KServe's own pattern https?://(.+)/(.+) finds its slashes anywhere in a text. Release it by
 * sl_storage_uri_release(), unless it failed. SL_E_USAGE says what to use instead of a kind that is
 * not read; SL_E_NOT_FOUND of a local path that is not there.
 */
int sl_storage_uri_parse(const char *argument, struct sl_storage_uri *uri, struct sl_err *err);
void sl_storage_uri_release(struct sl_storage_uri *uri);
/** An argument fit for logs: without its "sluice+", user, password and query. free() it.
 * NULL: SL_E_NO_SPACE. */
char *sl_storage_uri_sanitize(const char *argument, struct sl_err *err);
/** The path of a local one; borrowed. */
const char *sl_storage_local_path(const char *text);

enum sl_archive { SL_ARCHIVE_NONE, SL_ARCHIVE_TAR, SL_ARCHIVE_ZIP };
/** By the name, as Python's mimetypes sees it: .tar, .tar.gz, .tgz and so on; .zip. */
enum sl_archive sl_archive_kind(const char *name);
/** Of a URL: by its path, else by its query. */
enum sl_archive sl_archive_kind_of_url(const char *url);

#endif
