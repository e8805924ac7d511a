/* Local files and directories as stores. The row and the ops are constants, for any thread. */
#ifndef SL_FILE_STORE_H
#define SL_FILE_STORE_H

#include "store_kind.h"

extern const struct sl_store_kind sl_file_store;

/** The path of a file: URI: file:///a%20b is /a b; a path is itself. free() it. NULL with
 * SL_E_USAGE (it names a host, or a broken escape), SL_E_NO_SPACE. */
char *sl_file_path(const char *uri, struct sl_err *err);

/** Writing (upload_file.c). */
extern const struct sl_upload_ops sl_upload_file_ops;

#endif
