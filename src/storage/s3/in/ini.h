/* INI files in two dialects: the AWS tools' config and credentials files, and s3cmd's .s3cfg. */
#ifndef SL_INI_H
#define SL_INI_H

#include <stddef.h>

#include "err.h"

enum { SL_INI_BYTES_MAX = 1024 * 1024, SL_INI_LINE_MAX = 32 * 1024 };

enum sl_ini_dialect {
    SL_INI_AWS, /* '#' and ';' comments, also after a blank; indented lines belong to the key above
                 */
    SL_INI_S3CMD, /* '#' comments at the start of a line; values may be in double quotes */
};

/** One `key = value`. Borrowed for the call. */
struct sl_ini_item {
    const char *section; /* the name in brackets, trimmed, "" before the first */
    const char *parent;  /* the key that an indented line belongs to, else "" */
    const char *key;     /* in lower case */
    const char *value;   /* trimmed; '%' is literal */
    unsigned line;       /* from 1 */
};

/**
 * Call back for every item, in order. SL_E_USAGE as "FILE:LINE: …" for a line that is none, without
 * quoting it: it may hold a secret. Stops when `each` returns -1 (err filled).
 */
int sl_ini_parse(const char *text, size_t bytes, const char *file_name, enum sl_ini_dialect dialect,
                 int (*each)(const struct sl_ini_item *item, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err);

#endif
