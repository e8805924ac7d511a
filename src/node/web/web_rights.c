/* Who may change something, and see everything. */
#include <string.h>
#include <strings.h>

#include "web_rights.h"

enum sl_node_token web_judge_token(const struct request *request, bool *bearer)
{
    const char *header = web_header(request, "Authorization");
    *bearer = header && strncasecmp(header, "Bearer ", 7) == 0;
    return sl_node_rights_token(&request->web->node->rights, *bearer ? header + 7 : "");
}

bool web_peer_may(const struct request *request, struct sl_peer *peer, bool *known)
{
    const union MHD_ConnectionInfo *info = sl_libmicrohttpd.get_connection_info(
        request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *known = info && sl_peer_find(info->connect_fd, peer, NULL) == 0;
    return *known && sl_node_rights_user(&request->web->node->rights, peer);
}

const char *web_control_changes(const struct request *request)
{
    bool sent;
    struct sl_peer peer = {0};
    if (!request->web->node)
        return "off";
    if (request->web->is_control) {
        bool may = web_peer_may(request, &peer, &sent);
        sl_peer_release(&peer);
        return may ? "allowed" : "off";
    }
    enum sl_node_token token = web_judge_token(request, &sent);
    return token == SL_NODE_TOKEN_GOOD ? "allowed" : token == SL_NODE_TOKEN_NONE ? "off" : "token";
}

bool web_sees_all(const struct request *request)
{
    return !request->web->node || !sl_node_hides_volumes(request->web->node) ||
           strcmp(web_control_changes(request), "allowed") == 0;
}
