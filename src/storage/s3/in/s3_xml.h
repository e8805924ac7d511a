/* The XML that S3 and STS answer with: small, flat, and from a stranger. */
#ifndef SL_S3_XML_H
#define SL_S3_XML_H

#include <stddef.h>

#include "err.h"

enum {
    SL_S3_XML_BYTES_MAX = 16 * 1024 * 1024,
    SL_S3_XML_TEXT_MAX = 64 * 1024,
    SL_S3_XML_DEPTH_MAX = 16
};

/**
 * Call back at the end of every element with its path from the root ("Error/Code", without
 * namespaces) and the text directly inside it. SL_E_FORMAT, code "xml", for what is no well-formed
 * UTF-8 document, has a document type (so no entities), or exceeds a limit; `what` is the subject.
 */
int sl_s3_xml_parse(const char *text, size_t bytes, const char *what,
                    int (*each)(const char *path, const char *value, void *arg, struct sl_err *err),
                    void *arg, struct sl_err *err);

#endif
