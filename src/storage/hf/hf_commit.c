/* The commit of a revision, asked for once. */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "json_pull.h"
#include "log.h"

enum {
    COMMIT_ANSWER_BYTES_MAX = 32 * 1024 * 1024, /* it lists all files, too */
    WHAT_BYTES = 400,
};

/* Is it 40 lower-case hex digits? */
static bool is_commit(const char *text)
{
    return strlen(text) == SL_HF_COMMIT_BYTES - 1 &&
           strspn(text, "0123456789abcdef") == SL_HF_COMMIT_BYTES - 1;
}

char *sl_hf_api_url(const struct sl_hf *hf, const char *what, const char *name, struct sl_err *err)
{
    const char *kind = *hf->uri.kind ? hf->uri.kind : "models/";
    return sl_asprintf(err, "%s/api/%s%s/%s%s%s", hf->endpoint, kind, hf->uri.repo, what,
                       *name ? "/" : "", name);
}

/* The answer lists all files, too: only its own "sha" is looked for. false: it has none. */
static bool find_commit(char *text, size_t bytes, char commit[SL_HF_COMMIT_BYTES])
{
    struct sl_pull pull;
    enum sl_pull_token token;
    bool own = false, found = false;
    sl_pull_init(&pull, text, bytes);
    while ((token = sl_pull_next(&pull)) != SL_PULL_ERROR && token != SL_PULL_DONE) {
        if (own && token == SL_PULL_STRING && is_commit(pull.string)) {
            memcpy(commit, pull.string, SL_HF_COMMIT_BYTES);
            found = true;
        }
        own = pull.depth == 1 && token == SL_PULL_KEY && strcmp(pull.string, "sha") == 0;
    }
    return found && token == SL_PULL_DONE;
}

static int take_commit(struct sl_answer *answer, const char *what, char commit[SL_HF_COMMIT_BYTES],
                       struct sl_err *err)
{
    return find_commit(answer->body.data, answer->body.used, commit)
               ? 0
               : sl_fail(err, SL_E_FORMAT, "%s: the answer names no commit: is this a hub?", what);
}

static int ask_commit(struct sl_hf *hf, char commit[SL_HF_COMMIT_BYTES], struct sl_err *err)
{
    char what[WHAT_BYTES];
    struct sl_answer answer;
    sl_autofree char *revision = sl_url_encode(hf->uri.revision, false, err);
    sl_autofree char *url = revision ? sl_hf_api_url(hf, "revision", revision, err) : NULL;
    snprintf(what, sizeof(what), "cannot open '%.380s'", hf->store->uri);
    if (!url ||
        sl_http_get(hf->store, &hf->http, url, what, COMMIT_ANSWER_BYTES_MAX, &answer, err) < 0)
        return -1;
    int result = take_commit(&answer, what, commit, err);
    sl_answer_release(&answer);
    return result;
}

int sl_hf_commit(struct sl_hf *hf, char commit[SL_HF_COMMIT_BYTES], struct sl_err *err)
{
    {
        SL_LOCKED(&hf->locked.mutex);
        memcpy(commit, hf->locked.commit, SL_HF_COMMIT_BYTES);
    }
    if (*commit)
        return 0;
    if (is_commit(hf->uri.revision))
        memcpy(commit, hf->uri.revision, SL_HF_COMMIT_BYTES);
    else if (ask_commit(hf, commit, err) < 0)
        return -1;
    SL_LOCKED(&hf->locked.mutex);
    if (!hf->locked.commit[0]) {
        memcpy(hf->locked.commit, commit, SL_HF_COMMIT_BYTES);
        sl_log(SL_LOG_DEBUG, "'%s' is commit %s", hf->store->uri, commit);
    }
    memcpy(commit, hf->locked.commit, SL_HF_COMMIT_BYTES); /* the first one who asked decides */
    return 0;
}
