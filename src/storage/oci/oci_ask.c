/* One request for a manifest, at the places that may have it, and what a registry's refusals mean.
 */
#include "oci_ask.h"

#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "json.h"
#include "log.h"

/* ---- refusals -------------------------------------------------------------------------------- */

/* {"errors": [{"code": …, "message": …}]} */
static void take_detail(const char *body, size_t bytes, char code[64], char message[200])
{
    struct sl_err ignored = SL_ERR_INIT;
    json_t *document = sl_json_parse(body, bytes, "", &ignored);
    const json_t *first = json_array_get(json_object_get(document, "errors"), 0);
    const char *said = sl_json_get_string(first, "message");
    snprintf(code, 64, "%.63s",
             first && sl_json_get_string(first, "code") ? sl_json_get_string(first, "code") : "");
    snprintf(message, 200, "%.199s", said ? said : "");
    json_decref(document);
}

static int refuse_login(const struct sl_oci_endpoint *endpoint, const char *what,
                        struct sl_err *err)
{
    const struct sl_oci_login *login = sl_oci_auth_login(endpoint->auth);
    if (login->user || login->identity)
        return sl_fail_code(err, SL_E_AUTH, "DENIED",
                            "%s: the login of %.200s may not read it: check the name, the "
                            "account's rights, and that the login is not out of date",
                            what, login->from);
    if (login->helper)
        return sl_fail_code(
            err, SL_E_AUTH, "DENIED",
            "%s: the registry wants a login, and %.200s leaves it to docker-credential-%.60s: set "
            "source.oci.credentialHelpers so that sluice runs it, and check that its login can "
            "read this. Or give a login by source.oci.dockerConfig",
            what, login->from, login->helper);
    return sl_fail_code(err, SL_E_AUTH, "DENIED",
                        "%s: there is no such repository, or it wants a login: check the name; if "
                        "it is right, give a login by source.oci.dockerConfig (`docker login "
                        "%.100s` writes one)",
                        what, endpoint->host);
}

int sl_oci_refuse(struct sl_oci *oci, struct sl_oci_endpoint *endpoint,
                  const struct sl_cloud_reply *reply, const char *what, struct sl_err *err)
{
    char code[64], message[200];
    int status = reply->status;
    take_detail(reply->body, reply->body_bytes, code, message);
    if (status == 401)
        sl_oci_note_challenge(endpoint->auth, reply->code);
    if (status == 401 || status == 403)
        refuse_login(endpoint, what, err);
    else if (status == 404 && strcmp(code, "BLOB_UNKNOWN") == 0)
        sl_fail_code(err, SL_E_NOT_FOUND, code,
                     "%s: the registry has lost a file that its manifest names: push it again",
                     what);
    else if (status == 404)
        sl_fail_code(err, SL_E_NOT_FOUND, code,
                     "%s: the registry has no '%s' with the tag or digest '%.80s'", what,
                     endpoint->repo, oci->uri.reference);
    else
        sl_http_fail(err, status, reply->retry_after, what, message);
    if (err)
        err->http_status = status;
    return -1;
}

/* ---- one manifest ---------------------------------------------------------------------------- */

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct sl_oci_asking *asking = arg;
    sl_autofree char *reference =
        sl_asprintf(err, "%s%s", asking->reference, asking->page ? asking->page : "");
    if (!reference)
        return -1;
    request->url = sl_oci_endpoint_url(asking->at, asking->referrers ? "referrers" : "manifests",
                                       reference, err);
    if (!request->url || sl_oci_endpoint_let_in(asking->at, request, err) < 0)
        return -1;
    return sl_range_add_header(request, err,
                               "Accept: application/vnd.oci.image.manifest.v1+json, "
                               "application/vnd.oci.image.index.v1+json, "
                               "application/vnd.docker.distribution.manifest.v2+json, "
                               "application/vnd.docker.distribution.manifest.list.v2+json");
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct sl_oci_asking *asking = arg;
    struct sl_cloud_headers headers;
    struct sl_cloud_reply reply = sl_cloud_reply_of(answer, NULL, &headers);
    sl_autofree char *challenge = sl_answer_header_whole(answer, "WWW-Authenticate", err);
    if (!challenge)
        return -1;
    reply.code = *challenge ? challenge : NULL;
    return sl_oci_refuse(asking->oci, asking->at, &reply, asking->what, err);
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct sl_oci_asking *asking = arg;
    return sl_oci_endpoint_recover(asking->at, NULL, why, NULL);
}

/* A manifest that is asked for by its digest must be that; one behind a tag must be what the
 * registry says that it is. */
static int check_digest(struct sl_oci_asking *asking, const struct sl_answer *answer,
                        struct sl_err *err)
{
    char said[SL_OCI_DIGEST_BYTES + 1], *own = asking->digest;
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, sl_buf_string(&answer->body), answer->body.used);
    sl_sha256_finish(sha, digest);
    memcpy(own, "sha256:", 7);
    sl_hex(digest, sizeof(digest), own + 7);
    const char *wanted = sl_oci_is_digest(asking->reference) ? asking->reference : NULL;
    if (!wanted && sl_answer_header(answer, "Docker-Content-Digest", said, sizeof(said)) &&
        sl_oci_is_digest(said))
        wanted = said;
    if (wanted && strcmp(wanted, own) != 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "%s: its manifest is %s, not %s: something between here and the registry "
                       "changes what it sends",
                       asking->what, own, wanted);
    sl_log(SL_LOG_DEBUG, "'%s' is manifest %s", asking->oci->store->uri, own);
    return 0;
}

/* A registry that knows no referrers says so by one of these; so does one that has no such tag. */
static bool is_lack(int status)
{
    return status == 400 || (status >= 404 && status <= 406) || status == 501;
}

static bool is_success(void *arg, const struct sl_answer *answer)
{
    const struct sl_oci_asking *asking = arg;
    return (answer->status >= 200 && answer->status <= 299) ||
           (asking->may_lack && is_lack(answer->status));
}

/* Of one endpoint: an answer that is what its digest says. Release it, after a failure, too. */
static int ask_one(struct sl_oci_asking *asking, struct sl_answer *answer, struct sl_err *err)
{
    const struct sl_http_call call = {.what = asking->what,
                                      .method = "GET",
                                      .answer_limit = SL_OCI_MANIFEST_BYTES_MAX,
                                      .attempts = asking->attempts,
                                      .arg = asking,
                                      .prepare = prepare,
                                      .is_success = is_success,
                                      .refuse = refuse,
                                      .recover = recover};
    int result = sl_http_ask(asking->oci->store, &call, answer, err);
    return result < 0 || asking->referrers || answer->status > 299
               ? result
               : check_digest(asking, answer, err);
}

/* 0: one of them has it. 1: none has, and the next place may be asked. */
static int ask_mirrors(struct sl_oci_asking *asking, struct sl_answer *answer, struct sl_err *err)
{
    struct sl_oci *oci = asking->oci;
    unsigned at = sl_places_next(&oci->places, 0, asking->reference);
    for (; at < oci->places.count; at = sl_places_next(&oci->places, at + 1, asking->reference)) {
        struct sl_err why = SL_ERR_INIT;
        asking->at = &oci->mirrors[at];
        asking->attempts = 1;
        if (ask_one(asking, answer, &why) == 0)
            return 0;
        sl_answer_release(answer);
        *answer = (struct sl_answer){0};
        if (!sl_places_failed(&oci->places, at, asking->reference, &why)) {
            *err = why;
            return -1;
        }
    }
    return 1;
}

int sl_oci_ask(struct sl_oci_asking *asking, struct sl_answer *answer, struct sl_err *err)
{
    struct sl_oci *oci = asking->oci;
    bool digest = sl_oci_is_digest(asking->reference) && !asking->referrers;
    struct sl_err why = SL_ERR_INIT;
    int tried = digest ? ask_mirrors(asking, answer, err) : 1;
    if (tried <= 0)
        return tried;
    asking->at = &oci->registry;
    /* where mirrors stand in for it, it is not waited for */
    asking->attempts = !digest && oci->places.count && oci->places.believed
                           ? sl_store_retry(&oci->store->config).limit
                           : 0;
    if (ask_one(asking, answer, &why) == 0)
        return 0;
    *err = why;
    if (digest || asking->page || !sl_places_believe(&oci->places, &why))
        return oci->places.count && !digest && why.retryable
                   ? sl_wrap(err, "mirrors are not asked what a tag means: name a digest, or set "
                                  "source.oci.trustMirrors")
                   : -1;
    return ask_mirrors(asking, answer, err) ? -1 : 0;
}
