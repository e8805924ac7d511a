/* A web server with a blob, and reading it as a load does. */
#ifndef SL_HTTP_CASE_H
#define SL_HTTP_CASE_H

#include "range_blob.h"

extern struct sl_server *server;            /* each test's own to start */
extern const struct sl_source_config plain; /* what it is read with, as a rule */

/** Bytes of the blob at this path; config NULL: plain. 0, or -1 with err. */
int load(const char *path, const struct sl_source_config *config, struct sl_err *err);
/** A header of the nth request that came there, into 256 bytes; false: it has none. */
bool header_of(struct sl_server *from, unsigned nth, const char *name, char *text);
/** A file of this test with that text; its path, good until four more were made. */
const char *file_with(const char *text);

#endif
