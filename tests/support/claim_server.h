/* A server that claims sizes: of an object by Content-Range, of a bucket's by its listing. */
#ifndef SL_CLAIM_SERVER_H
#define SL_CLAIM_SERVER_H

#include "range_server.h"

enum { CLAIM_SERVER_OBJECTS = 20 }; /* m/00.bin … in a listing */

/** For sl_server_handle(), with the claim as decimal text. The range that was asked for, of the
 * 8 MiB that there are, of a total as claimed; 404 beyond. */
bool claim_server_lie(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *claim);

#endif
