/* Who asks, for what changes something. Any thread of the server. */
#ifndef SL_WEB_RIGHTS_H
#define SL_WEB_RIGHTS_H

#include "node.h"
#include "web_parts.h"

/** What its token is worth; *bearer: it has one. */
enum sl_node_token web_judge_token(const struct request *request, bool *bearer);
/** May the user at the other end of the socket change something? *known: it can be told who that
 * is; release peer. */
bool web_peer_may(const struct request *request, struct sl_peer *peer, bool *known);

#endif
