/* The XML that S3, STS and Azure answer with: small, flat, and from a stranger. Any
 * thread. */
#ifndef SL_XML_H
#define SL_XML_H

#include <stddef.h>

#include "err.h"

enum { SL_XML_BYTES_MAX = 16 * 1024 * 1024, SL_XML_TEXT_MAX = 64 * 1024, SL_XML_DEPTH_MAX = 16 };

/**
 * Tell of every element at its end, and of its attributes at its beginning.
 *
 * @text, bytes  the document.
 * @what         the subject of errors.
 * @each         called with a path from the root and a text, both borrowed for the call. Of an
 *               element: "Error/Code", without namespaces, and the text directly inside it; of an
 *               attribute: "Blob/Name@Encoded". -1 (err filled) ends the parse.
 * @arg          of each().
 * @return       0, or -1: SL_E_FORMAT, code "xml", for what is not a well-formed UTF-8 document,
 *               has a document type (so no entities), or exceeds a limit; SL_E_NO_SPACE; what
 *               each() fails with.
 */
int sl_xml_parse(const char *text, size_t bytes, const char *what,
                 int (*each)(const char *path, const char *value, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err);

#endif
