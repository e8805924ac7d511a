/* S3 and compatible stores: the row, and `source.s3`. The values are
 * their spec's; the row and the ops are constants, for any thread. */
#ifndef SL_S3_OPTIONS_H
#define SL_S3_OPTIONS_H

#include "store_kind.h"

enum sl_s3_addressing { SL_S3_ADDRESSING_AUTO, SL_S3_ADDRESSING_PATH, SL_S3_ADDRESSING_VIRTUAL };
enum sl_s3_payer { SL_S3_OWNER_PAYS, SL_S3_REQUESTER_PAYS };

/** Rows in s3_options.c. */
struct sl_s3_options {
    char *region, *endpoint, *profile, *config_file, *follow_redirects;
    int addressing;    /* enum sl_s3_addressing */
    int request_payer; /* enum sl_s3_payer */
    bool anonymous, prestage, credential_process;
};
extern const struct sl_option_table sl_s3_table;
extern const struct sl_store_kind sl_s3_store;

/** Writing (upload_s3.c). */
extern const struct sl_upload_ops sl_upload_s3_ops;

#endif
