/* A list, since there are as many as volumes with rights of their own that wait for a load. */
#include "caller_credentials.h"

#include <openssl/crypto.h>
#include <string.h>

#include "fork_guard.h"
#include "mem.h"
#include "thread.h"

struct kept {
    struct kept *next;
    char *name;
    struct sl_caller_credentials credentials;
};
static struct {
    pthread_mutex_t mutex;
    struct kept *first;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&all.mutex, NULL)

enum { TEXTS = 5 };

static void texts_of(struct sl_caller_credentials *credentials, char **texts[TEXTS])
{
    texts[0] = &credentials->access_key;
    texts[1] = &credentials->secret_key;
    texts[2] = &credentials->session_token;
    texts[3] = &credentials->role_arn;
    texts[4] = &credentials->identity_token;
}

void sl_caller_credentials_release(struct sl_caller_credentials *credentials)
{
    char **texts[TEXTS];
    texts_of(credentials, texts);
    for (size_t i = 0; i < TEXTS; i++) {
        if (*texts[i])
            OPENSSL_cleanse(*texts[i], strlen(*texts[i]));
        free(*texts[i]);
    }
    memset(credentials, 0, sizeof(*credentials));
}

static int copy(struct sl_caller_credentials *to, const struct sl_caller_credentials *from,
                struct sl_err *err)
{
    struct sl_caller_credentials source = *from; /* its texts are only read */
    char **texts[TEXTS], **sources[TEXTS];
    *to = (struct sl_caller_credentials){NULL};
    texts_of(to, texts);
    texts_of(&source, sources);
    for (size_t i = 0; i < TEXTS; i++) {
        if (!*sources[i] || (*texts[i] = sl_strdup(*sources[i], err)))
            continue;
        sl_caller_credentials_release(to);
        return -1;
    }
    return 0;
}

static void kept_free(struct kept *kept)
{
    sl_caller_credentials_release(&kept->credentials);
    free(kept->name);
    free(kept);
}

/* With the mutex held. */
static struct kept **find(const char *name)
{
    struct kept **at = &all.first;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

int sl_caller_credentials_keep(const char *name, const struct sl_caller_credentials *credentials,
                               struct sl_err *err)
{
    struct kept *kept = sl_alloc(sizeof(*kept), err);
    if (!kept || !(kept->name = sl_strdup(name, err)) ||
        copy(&kept->credentials, credentials, err) < 0) {
        if (kept)
            kept_free(kept);
        return -1;
    }
    struct kept *old;
    {
        SL_LOCKED(&all.mutex);
        struct kept **at = find(name);
        old = *at;
        kept->next = old ? old->next : NULL;
        *at = kept;
    }
    if (old)
        kept_free(old);
    return 0;
}

int sl_caller_credentials_get(const char *name, struct sl_caller_credentials *credentials,
                              struct sl_err *err)
{
    SL_LOCKED(&all.mutex);
    const struct kept *kept = *find(name);
    if (kept)
        return copy(credentials, &kept->credentials, err);
    *credentials = (struct sl_caller_credentials){NULL};
    return sl_fail(
        err, SL_E_AUTH,
        "the credentials that '%.64s' was asked for with are not kept any more: ask for it "
        "again",
        name);
}

void sl_caller_credentials_drop(const char *name)
{
    struct kept *kept;
    {
        SL_LOCKED(&all.mutex);
        struct kept **at = find(name);
        kept = *at;
        if (kept)
            *at = kept->next;
    }
    if (kept)
        kept_free(kept);
}
