/* The control socket of `sluice serve`, asked by HTTP (docs/http.md). */
#ifndef SL_CONTROL_H
#define SL_CONTROL_H

#include "err.h"
#include "json.h"

/**
 * Ask the daemon, by one request of up to half a minute.
 *
 * @socket  path of its control socket.
 * @method  "GET", "POST", …
 * @path    with its query.
 * @body    the text of a spec; NULL: none.
 * @answer  out: the answer's document, to be given to json_decref().
 * @return  0, or -1, and there is no document. What the daemon refuses is its own error; SL_E_NET:
 *          nobody answers there; SL_E_AUTH: this user may not connect; SL_E_USAGE: libcurl has no
 *          unix sockets.
 */
int sl_control_ask(const char *socket, const char *method, const char *path, const char *body,
                   json_t **answer, struct sl_err *err);
/** The daemon's error object as ours: its words, its exit code. Always -1. */
int sl_control_fail(const json_t *error, struct sl_err *err);

#endif
