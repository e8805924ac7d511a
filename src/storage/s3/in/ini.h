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
 * Tell of every item, in order.
 *
 * @text, bytes  of the file.
 * @file_name    for messages: "FILE:LINE: …".
 * @dialect      whose file it is.
 * @each         called with an item; -1 (err filled) ends the parse.
 * @arg          of each().
 * @return       0, or -1: SL_E_USAGE for a line that is none, which is not quoted (it may hold a
 *               secret), or a file beyond the limits; what each() fails with.
 */
int sl_ini_parse(const char *text, size_t bytes, const char *file_name, enum sl_ini_dialect dialect,
                 int (*each)(const struct sl_ini_item *item, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err);

#endif
