/* The XML that S3, STS and Azure answer with: small, flat, and from a stranger. Any
 * thread. */
#ifndef SL_XML_H
#define SL_XML_H

#include <stddef.h>

#include "err.h"

enum { SL_XML_BYTES_MAX = 16 * 1024 * 1024, SL_XML_TEXT_MAX = 64 * 1024, SL_XML_DEPTH_MAX = 16 };

/**
 * Call back at the end of every element with its path from the root ("Error/Code", without
 * namespaces) and the text directly inside it; at its beginning with each of its attributes, as
 * "Blob/Name@Encoded". Texts are borrowed for the call; -1 of it ends the parse. SL_E_FORMAT, code
 * "xml", for what is not a well-formed UTF-8 document, has a document type (so no entities), or
 * exceeds a limit; `what` is the subject.
 */
int sl_xml_parse(const char *text, size_t bytes, const char *what,
                 int (*each)(const char *path, const char *value, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err);

#endif
