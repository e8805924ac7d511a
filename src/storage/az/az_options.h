/* Azure Blob storage: the row, and `source.az`. The values are
 * their spec's; the row and the ops are constants, for any thread. */
#ifndef SL_AZ_OPTIONS_H
#define SL_AZ_OPTIONS_H

#include "store_kind.h"

/** Rows in az_options.c. */
struct sl_az_options {
    char *endpoint, *account, *account_key_file, *sas_file, *connection_string_file;
    bool anonymous;
};
extern const struct sl_option_table sl_az_table;
extern const struct sl_store_kind sl_az_store;
/** Is it the URL of a blob at Azure: https://ACCOUNT.blob.core.windows.net/…? Such are its own. */
bool sl_az_is_blob_url(const char *uri);

/** Writing (upload_az.c). */
extern const struct sl_upload_ops sl_upload_az_ops;

#endif
