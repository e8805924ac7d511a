/* Who may change something on the node: users and groups at the control socket, a token
 * elsewhere. Any thread, but init and release. */
#ifndef SL_NODE_RIGHTS_H
#define SL_NODE_RIGHTS_H

#include <pthread.h>

#include "node_spec.h"
#include "peer.h"

enum { SL_NODE_TOKEN_MIN = 16, SL_NODE_TOKEN_MAX = 4096, SL_NODE_IDS_MAX = 256 };

struct sl_node_rights {
    pthread_mutex_t lock;
    struct {
        uint32_t uids[SL_NODE_IDS_MAX], gids[SL_NODE_IDS_MAX];
        size_t uid_count, gid_count;
        char *token_file; /* NULL: no token is good */
    } locked;
};
void sl_node_rights_init(struct sl_node_rights *rights);
void sl_node_rights_release(struct sl_node_rights *rights);
/** Take the rules of a config, copied, in place of those before. SL_E_USAGE: more ids than fit;
 * SL_E_NO_SPACE; then they stay as they were. */
int sl_node_rights_set(struct sl_node_rights *rights, const struct sl_node_spec_control *control,
                       struct sl_err *err);
/** Log a warning if no token would be good now, since the file of a config is not there or not
 * right. It may come later: it is read at each question. */
void sl_node_rights_warn(const struct sl_node_spec_control *control);
/** Root and the daemon's own user always may. */
bool sl_node_rights_user(struct sl_node_rights *rights, const struct sl_peer *peer);

enum sl_node_token {
    SL_NODE_TOKEN_GOOD,
    SL_NODE_TOKEN_WRONG,
    SL_NODE_TOKEN_NONE,  /* the config names no file */
    SL_NODE_TOKEN_BROKEN /* the file cannot be read or holds no token; logged */
};
/** Is it the token of the file, as the file is now, which is read? Takes as long for every wrong
 * one. */
enum sl_node_token sl_node_rights_token(struct sl_node_rights *rights, const char *token);

#endif
