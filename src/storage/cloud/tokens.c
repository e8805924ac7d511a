/*
 * Kept as keys of S3 are (s3/creds.c): a token is replaced when its margin begins, by one thread,
 * and failing to do so does no harm before its end.
 */
#include "tokens.h"

#include <openssl/crypto.h>
#include <string.h>

#include "thread_cancel.h"

enum {
    FAILURE_SECONDS = 5,     /* a failure is told to those who waited for it */
    PAUSE_SECONDS = 15,      /* between tries to replace a token that is still good */
    RENEW_PAUSE_SECONDS = 10 /* one that is so young is not replaced because of a refusal */
};

struct sl_tokens {
    sl_tokens_ask *ask;
    void *arg;
    unsigned margin_seconds;
    pthread_cond_t changed;
    struct {
        pthread_mutex_t mutex;
        char *text;
        int64_t expires, renewed, next_try, failed;
        unsigned generation; /* 0: never asked */
        bool busy, stale;
        struct sl_err failure;
    } locked;
};

void sl_secret_free(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}

void sl_secret_answer_release(struct sl_answer *answer)
{
    if (answer->body.data)
        OPENSSL_cleanse(answer->body.data, answer->body.used);
    sl_answer_release(answer);
}

struct sl_tokens *sl_tokens_new(sl_tokens_ask *ask, void *arg, unsigned margin_seconds,
                                struct sl_err *err)
{
    struct sl_tokens *tokens = sl_alloc(sizeof(*tokens), err);
    if (!tokens)
        return NULL;
    tokens->ask = ask;
    tokens->arg = arg;
    tokens->margin_seconds = margin_seconds;
    pthread_mutex_init(&tokens->locked.mutex, NULL);
    sl_thread_cancel_cond_init(&tokens->changed);
    return tokens;
}

void sl_tokens_free(struct sl_tokens *tokens)
{
    if (!tokens)
        return;
    sl_secret_free(tokens->locked.text);
    pthread_cond_destroy(&tokens->changed);
    pthread_mutex_destroy(&tokens->locked.mutex);
    free(tokens);
}

/* ---- with the mutex held --------------------------------------------------------------------- */

static bool good(const struct sl_tokens *tokens, int64_t now)
{
    return tokens->locked.generation && !tokens->locked.stale &&
           (!tokens->locked.expires || now < tokens->locked.expires);
}

static bool fresh(const struct sl_tokens *tokens, int64_t now)
{
    if (!good(tokens, now))
        return false;
    return !tokens->locked.expires ||
           now < tokens->locked.expires - (int64_t)tokens->margin_seconds ||
           now < tokens->locked.next_try;
}

/* The mutex is let go meanwhile. */
static int refresh(struct sl_tokens *tokens, struct sl_err *err)
{
    char *text = NULL;
    int64_t expires = 0;
    tokens->locked.busy = true;
    pthread_mutex_unlock(&tokens->locked.mutex);
    int result = tokens->ask(tokens->arg, &text, &expires, err);
    pthread_mutex_lock(&tokens->locked.mutex);
    tokens->locked.busy = false;
    pthread_cond_broadcast(&tokens->changed);
    int64_t now = sl_wall_seconds();
    if (result < 0) {
        sl_secret_free(text);
        tokens->locked.failure = *err;
        tokens->locked.failed = now;
        tokens->locked.next_try = now + PAUSE_SECONDS;
        return good(tokens, now) && err->kind != SL_E_CANCELED ? 0 : -1;
    }
    sl_secret_free(tokens->locked.text);
    tokens->locked.text = text;
    tokens->locked.expires = expires;
    tokens->locked.generation++;
    tokens->locked.stale = false;
    tokens->locked.renewed = now;
    tokens->locked.next_try = now + PAUSE_SECONDS;
    return 0;
}

static int ensure(struct sl_tokens *tokens, struct sl_err *err)
{
    bool waited = false;
    for (;;) {
        int64_t now = sl_wall_seconds();
        if (fresh(tokens, now) || (tokens->locked.busy && good(tokens, now)))
            return 0;
        if (sl_cancel_check(sl_thread_cancel(NULL), err) < 0)
            return -1;
        if (!tokens->locked.busy) {
            if (!waited || tokens->locked.failed + FAILURE_SECONDS <= now ||
                tokens->locked.failure.kind == SL_E_CANCELED) /* another's end is not ours */
                return refresh(tokens, err);
            *err = tokens->locked.failure;
            return -1;
        }
        waited = true;
        if (sl_thread_cancel_wait(&tokens->changed, &tokens->locked.mutex, NULL, err) < 0)
            return -1;
    }
}

int sl_tokens_get(struct sl_tokens *tokens, char **text, unsigned *generation, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    err = err ? err : &local;
    *text = NULL;
    SL_LOCKED(&tokens->locked.mutex);
    if (ensure(tokens, err) < 0)
        return -1;
    *generation = tokens->locked.generation;
    if (!tokens->locked.text)
        return 0;
    *text = sl_strdup(tokens->locked.text, err);
    return *text ? 0 : -1;
}

bool sl_tokens_renew(struct sl_tokens *tokens, unsigned generation)
{
    struct sl_err err = SL_ERR_INIT;
    SL_LOCKED(&tokens->locked.mutex);
    int64_t now = sl_wall_seconds();
    if (tokens->locked.generation != generation ||
        (generation > 1 && tokens->locked.renewed + RENEW_PAUSE_SECONDS > now))
        return true;
    if (!tokens->locked.text)
        return false;
    tokens->locked.stale = true;
    return ensure(tokens, &err) == 0;
}
