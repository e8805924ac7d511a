/* Health, metrics, progress and the page over HTTP; ranges of published files for `sluice share`;
 * requests that change something for `sluice serve`. Threads of its own answer; the functions here
 * are for the thread that started it. */
#ifndef SL_WEB_H
#define SL_WEB_H

#include "err.h"
#include "progress.h"

struct sl_web;
struct sl_node;
/** A unix socket. Whoever the node's rights name may change something there. */
struct sl_web_socket {
    const char *path;
    unsigned mode;
    uint32_t group; /* UINT32_MAX leaves it */
};
/** What else a process has to tell, by any of the server's threads; zeroed: nothing. */
struct sl_json;
struct sl_web_beside {
    bool (*is_ready)(void *arg, struct sl_err *why_not); /* for /readyz */
    void (*write_json)(void *arg, struct sl_json *json); /* members of the object of /v1/models */
    void *arg;
};
/** What /readyz and /startupz answer from. */
struct sl_web_config {
    const char *listen;          /* "0.0.0.0:9464", "[::]:9464", ":9464", "127.0.0.1:0" */
    unsigned expected_loads;     /* ready when so many are published */
    const char *share_directory; /* not NULL: serve files below it, read only */
    const char *share_prefix;    /* URL path below which they lie, "/" */
    struct sl_node *node; /* of `sluice serve`: its models, and requests that change something;
                             NULL: those of loads in this process, read only */
    struct sl_web_beside beside;         /* write_json: with a node; its arg outlives the server */
    const struct sl_web_socket *control; /* not NULL: listen there instead */
    int listen_fd;         /* > 0: a socket that listens already, taken, whatever comes of it */
    const char *node_name; /* shown to people; copied; NULL: the name of the machine */
    unsigned idle_seconds; /* for a client to send its next request; 0 is 30 */
};
/** Starts its threads; the node outlives them. Blocks while the name of a host is looked up.
 * SL_E_USAGE for a bad address or where libmicrohttpd is not installed, SL_E_NET if it cannot bind,
 * SL_E_NO_SPACE. */
struct sl_web *sl_web_start(const struct sl_web_config *config, struct sl_err *err);
/** Ends connections and threads; blocks until they have ended. NULL is fine. */
void sl_web_free(struct sl_web *web);
SL_AUTO_DEFINE(sl_web)
/**
 * Before the end: from now on /readyz says 503, streams of events end, and this waits until every
 * request that has begun is answered, at most drain_ms. The server goes on answering.
 */
void sl_web_drain(struct sl_web *web, unsigned drain_ms);
/** Of the unix socket; any other has none. SL_E_NET. */
int sl_web_set_mode(const struct sl_web *web, unsigned mode, struct sl_err *err);
/** The TCP port it listens on; 0 at a unix socket. */
unsigned sl_web_port(const struct sl_web *web);

#endif
