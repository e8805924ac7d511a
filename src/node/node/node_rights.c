/*
 * The token is compared by its SHA-256, with a comparison that does not stop at the first
 * difference, so time tells neither its length nor how much of a guess was right. Its file is read
 * at every question: a token that was exchanged is good at once, and the old one bad.
 */
#include "node_rights.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <string.h>

#include "buf.h"
#include "hash.h"
#include "log.h"
#include "thread.h"

void sl_node_rights_init(struct sl_node_rights *rights)
{
    memset(&rights->locked, 0, sizeof(rights->locked));
    pthread_mutex_init(&rights->lock, NULL);
}

void sl_node_rights_release(struct sl_node_rights *rights)
{
    free(rights->locked.token_file);
    pthread_mutex_destroy(&rights->lock);
}

static size_t take_ids(const struct sl_list *list, uint32_t ids[SL_NODE_IDS_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += sl_node_spec_id(list->items[i], &ids[count], NULL) == 0; /* checked before */
    return count;
}

int sl_node_rights_set(struct sl_node_rights *rights, const struct sl_node_spec_control *control,
                       struct sl_err *err)
{
    if (control->uids.count > SL_NODE_IDS_MAX || control->gids.count > SL_NODE_IDS_MAX)
        return sl_fail(err, SL_E_USAGE, "'control' takes at most %d users and as many groups",
                       SL_NODE_IDS_MAX);
    char *file = control->token_file ? sl_strdup(control->token_file, err) : NULL;
    if (control->token_file && !file)
        return -1;
    SL_LOCKED(&rights->lock);
    rights->locked.uid_count = take_ids(&control->uids, rights->locked.uids);
    rights->locked.gid_count = take_ids(&control->gids, rights->locked.gids);
    free(rights->locked.token_file);
    rights->locked.token_file = file;
    return 0;
}

static bool is_listed(const uint32_t *ids, size_t count, uint32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

bool sl_node_rights_user(struct sl_node_rights *rights, const struct sl_peer *peer)
{
    if (sl_peer_is_privileged(peer))
        return true;
    SL_LOCKED(&rights->lock);
    if (is_listed(rights->locked.uids, rights->locked.uid_count, peer->uid))
        return true;
    for (size_t i = 0; i < rights->locked.gid_count; i++)
        if (sl_peer_is_in(peer, rights->locked.gids[i]))
            return true;
    return false;
}

static int digest_of(const char *text, size_t bytes, uint8_t digest[32], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, text, bytes);
    sl_sha256_finish(sha, digest);
    return 0;
}

/* The digest of the token in the file, without the space around it. */
static int read_token(const char *path, uint8_t digest[32], struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_NODE_TOKEN_MAX);
    if (sl_spec_file_text(path, "token file", &text, err) < 0)
        return -1;
    const char *begin = sl_buf_string(&text);
    size_t bytes = text.used;
    while (bytes && isspace((unsigned char)*begin)) {
        begin++;
        bytes--;
    }
    while (bytes && isspace((unsigned char)begin[bytes - 1]))
        bytes--;
    if (bytes < SL_NODE_TOKEN_MIN)
        return sl_fail(err, SL_E_USAGE,
                       "the token in '%s' has %zu characters, at least %d are needed", path, bytes,
                       SL_NODE_TOKEN_MIN);
    return digest_of(begin, bytes, digest, err);
}

void sl_node_rights_warn(const struct sl_node_spec_control *control)
{
    uint8_t digest[32];
    struct sl_err why = SL_ERR_INIT;
    if (control->token_file && read_token(control->token_file, digest, &why) < 0)
        sl_log(SL_LOG_WARN,
               "control.tokenFile: %s; until it is right, nothing can be changed through "
               "'listen'",
               why.message);
}

enum sl_node_token sl_node_rights_token(struct sl_node_rights *rights, const char *token)
{
    uint8_t wanted[32], given[32];
    struct sl_err why = SL_ERR_INIT;
    sl_autofree char *path = NULL;
    {
        SL_LOCKED(&rights->lock);
        if (!rights->locked.token_file)
            return SL_NODE_TOKEN_NONE;
        path = sl_strdup(rights->locked.token_file, &why);
    }
    if (!path || read_token(path, wanted, &why) < 0 ||
        digest_of(token, strlen(token), given, &why) < 0) {
        sl_log(SL_LOG_ERROR, "no token can be checked: %s", why.message);
        return SL_NODE_TOKEN_BROKEN;
    }
    return CRYPTO_memcmp(wanted, given, sizeof(given)) == 0 ? SL_NODE_TOKEN_GOOD
                                                            : SL_NODE_TOKEN_WRONG;
}
