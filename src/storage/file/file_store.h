/* Local files and directories as stores. */
#ifndef SL_FILE_STORE_H
#define SL_FILE_STORE_H

#include "store_kind.h"

extern const struct sl_store_kind sl_file_store;

/** The path of a file: URI: file:///a%20b is /a b; a path is itself. free() it. */
char *sl_file_path(const char *uri, struct sl_err *err);

/** Writing (upload_file.c). */
extern const struct sl_upload_ops sl_upload_file_ops;

#endif
