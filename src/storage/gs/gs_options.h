/* Google Cloud Storage: the row, and `source.gs`. The values are
 * their spec's; the row and the ops are constants, for any thread. */
#ifndef SL_GS_OPTIONS_H
#define SL_GS_OPTIONS_H

#include "store_kind.h"

/** Rows in gs_options.c. */
struct sl_gs_options {
    char *endpoint, *credentials_file, *user_project;
    bool anonymous;
};
extern const struct sl_option_table sl_gs_table;
extern const struct sl_store_kind sl_gs_store;

/** Writing (upload_gs.c). */
extern const struct sl_upload_ops sl_upload_gs_ops;

#endif
