/* libcurl speaks HTTP over a unix socket by itself; nothing here is a model's byte. */
#include "control.h"

#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "libcurl.h"

enum { ANSWER_BYTES_MAX = 64 * 1024 * 1024, SECONDS_MAX = 30 };

struct call {
    struct sl_buf body;
    struct sl_err err;
};

static size_t take_body(char *data, size_t size, size_t count, void *arg)
{
    struct call *call = arg;
    return sl_buf_append(&call->body, data, size * count, &call->err) < 0 ? 0 : size * count;
}

static int fail_reaching(const char *socket, CURLcode code, struct sl_err *err)
{
    if (code == CURLE_NOT_BUILT_IN)
        return sl_fail(err, SL_E_USAGE,
                       "the libcurl that is installed has no unix sockets, so the daemon at '%s' "
                       "cannot be asked: install one that has them",
                       socket);
    if (access(socket, F_OK) < 0)
        return sl_fail(err, SL_E_NET,
                       "there is no socket '%s': start `sluice serve` with `control: {socket: …}`, "
                       "or name its socket with --socket",
                       socket);
    if (access(socket, W_OK) < 0)
        return sl_fail(err, SL_E_AUTH,
                       "this user may not use the socket '%s': add it to control.uids of the "
                       "daemon's config",
                       socket);
    return sl_fail(err, SL_E_NET, "the daemon does not answer at '%s': %s", socket,
                   sl_libcurl.easy_strerror(code));
}

int sl_control_fail(const json_t *error, struct sl_err *err)
{
    const char *name = sl_json_get_string(error, "kind");
    const char *code = sl_json_get_string(error, "code");
    const char *message = sl_json_get_string(error, "message");
    enum sl_err_kind kind = SL_E_INTERNAL;
    for (int i = 1; name && i < SL_ERR_KIND_COUNT; i++)
        if (strcmp(sl_err_row((enum sl_err_kind)i)->name, name) == 0)
            kind = (enum sl_err_kind)i;
    return sl_fail_code(err, kind, code ? code : "", "%s",
                        message ? message : "the daemon gives no reason");
}

static CURLcode perform(CURL *easy, const char *socket, const char *method, const char *url,
                        const char *body, struct call *call)
{
    /* Without it the host of the URL would be asked, whoever answers there. */
    if (sl_libcurl.easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, socket) != CURLE_OK)
        return CURLE_NOT_BUILT_IN;
    sl_libcurl.easy_setopt(easy, CURLOPT_URL, url);
    sl_libcurl.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    sl_libcurl.easy_setopt(easy, CURLOPT_PROXY, "");
    sl_libcurl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    sl_libcurl.easy_setopt(easy, CURLOPT_TIMEOUT, (long)SECONDS_MAX);
    sl_libcurl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    sl_libcurl.easy_setopt(easy, CURLOPT_WRITEDATA, call);
    if (body || strcmp(method, "POST") == 0) {
        sl_libcurl.easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                               (curl_off_t)(body ? strlen(body) : 0));
        sl_libcurl.easy_setopt(easy, CURLOPT_POSTFIELDS, body ? body : "");
    }
    return sl_libcurl.easy_perform(easy);
}

int sl_control_ask(const char *socket, const char *method, const char *path, const char *body,
                   json_t **answer, struct sl_err *err)
{
    struct call call = {.body = SL_BUF_INIT(ANSWER_BYTES_MAX)};
    long status = 0;
    sl_autofree char *url = sl_asprintf(err, "http://localhost%s", path);
    if (!url || sl_libcurl_open(err) < 0)
        return -1;
    CURL *easy = sl_libcurl.easy_init();
    CURLcode code = easy ? perform(easy, socket, method, url, body, &call) : CURLE_OUT_OF_MEMORY;
    if (easy)
        sl_libcurl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    sl_libcurl.easy_cleanup(easy);
    int done = code == CURLE_OK ? 0 : fail_reaching(socket, code, err);
    if (done == 0) {
        *answer =
            sl_json_parse(sl_buf_string(&call.body), call.body.used, "the daemon's answer", err);
        done = *answer ? 0 : -1;
    }
    if (done == 0 && status / 100 != 2) {
        done = sl_control_fail(json_object_get(*answer, "error"), err);
        json_decref(*answer);
        *answer = NULL;
    }
    sl_buf_release(&call.body);
    return done;
}
