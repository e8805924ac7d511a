/* What the files of web/ share: the server, one request, and how to answer it. Not for other
 * layers. */
#ifndef SL_WEB_PARTS_H
#define SL_WEB_PARTS_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "buf.h"
#include "history.h"
#include "json.h"
#include "libmicrohttpd.h"
#include "node_socket.h"
#include "thread.h"
#include "web.h"

/* Limits of the server. A connection costs its memory pool and a descriptor, two while a file is
 * sent. */
enum {
    WEB_CONNECTIONS_MAX = 256,        /* health, metrics, API */
    WEB_SHARE_CONNECTIONS_MAX = 1024, /* readers of files come with many connections each */
    WEB_SPARE_CONNECTIONS = 16,   /* kept free by dropping the connection that is idle longest */
    WEB_CONNECTION_BYTES = 16384, /* request line and headers, and our headers */
    WEB_IDLE_SECONDS =
        30, /* from accept or the last answer to the end of the next request's headers */
    WEB_ANSWER_SECONDS = 30,        /* to take a short answer; files and events may last */
    WEB_TAKEN_BYTES_MIN = 64 << 10, /* of a file in WEB_IDLE_SECONDS */
    WEB_EVENT_CLIENTS_MAX = 32,
    WEB_ANSWER_BYTES_MAX = 4 << 20,
    WEB_UNREAD_BYTES_MAX =
        32 << 20,                 /* of all answers that are not yet taken; files take no memory */
    WEB_LOADS_MAX = 256,          /* loads shown, the latest */
    WEB_BODY_BYTES_MAX = 1 << 20, /* of a request that changes something */
};

enum connection_state { CONNECTION_READING, CONNECTION_ANSWERING, CONNECTION_STREAMING };
struct connection; /* web_connections.h */
struct events;     /* web_events.c */
struct named;      /* web_named.c */

struct sl_web {
    struct MHD_Daemon *daemon;
    unsigned port, connections_max, idle_seconds;
    unsigned expected_loads;
    struct sl_node *node; /* borrowed; NULL: nothing can be changed */
    struct sl_web_beside beside;
    bool is_control;              /* the unix socket */
    struct sl_node_socket socket; /* at a path, to be taken away at the end */
    int share_fd;                 /* the shared directory, -1 if none */
    char share_prefix[256];       /* begins and ends with a slash */
    struct named *named;          /* its objects by their common names; NULL: none is shared */
    char page_policy[320];        /* Content-Security-Policy of the page */
    char listing_policy[320];     /* and of listings, which have its style */
    char node_name[256];
    uint64_t began_ns;
    struct events *events;
    struct sl_cancel *stop;
    pthread_t ticker;
    bool ticking;
    pthread_mutex_t lock;
    struct {
        struct connection *newest, *oldest;
        unsigned connection_count;
        size_t unread_bytes;
        bool was_ready; /* for /startupz */
        bool draining;  /* about to end: not ready any more */
        struct sl_history history;
    } locked;
};

struct web_text {
    const char *text;
    int bytes;
};
/* How a request was answered, for who logs it. */
struct web_outcome {
    int status;
    char message[1024]; /* of a failure; "": there was none */
};

struct request {
    struct sl_web *web;
    struct MHD_Connection *connection;
    const char *url; /* path as sent, without the query */
    const char *method;
    const char *allow; /* of an answer 405; NULL: GET, HEAD */
    bool head;
    struct web_outcome *outcome; /* NULL: nobody asks */
};

/** A header of the request, or NULL. */
const char *web_header(const struct request *request, const char *name);
/** The connection will take longer than WEB_ANSWER_SECONDS: a file, or a stream of events, which
 * may have nothing to say for a while. */
void web_streams(const struct request *request, bool file);
/** How much of the answer the kernel may hold: a file's pages as it likes, bytes made for the
 * answer less. */
void web_bound_socket(const struct request *request, bool file);

/* Each answers the request wholly. MHD_NO closes the connection. web_answer.c */

/** Add the headers that every answer carries, then queue. Takes the response; NULL is MHD_NO. */
enum MHD_Result web_queue(const struct request *request, int status, struct MHD_Response *response);
/** A response without a body; NULL if there is no memory. */
struct MHD_Response *web_empty(void);
/**
 * Answer with bytes. 503 while others leave too many answers unread.
 *
 * @status  of HTTP.
 * @type    a Content-Type; copied.
 * @buf     its bytes are taken.
 */
enum MHD_Result web_send_buf(const struct request *request, int status, const char *type,
                             struct sl_buf *buf);
/** The same of a page of HTML, with its Content-Security-Policy. */
enum MHD_Result web_send_html(const struct request *request, const char *policy,
                              struct sl_buf *buf);
/** Takes what json has written. */
enum MHD_Result web_send_json(const struct request *request, int status, struct sl_json *json);
/**
 * Answer with an error: {"error":{"kind","code","message"}}.
 *
 * @status         of HTTP.
 * @kind           of the error; there is no code.
 * @retry_seconds  when to come back; 0: it is not said.
 * @format         of the message, which is cut off at 511 bytes.
 */
enum MHD_Result web_send_error(const struct request *request, int status, enum sl_err_kind kind,
                               unsigned retry_seconds, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/** The same for an error that says more: its status, code and the time to come back. */
enum MHD_Result web_send_failure(const struct request *request, int status,
                                 const struct sl_err *err);

/** web_listen.c: a socket that listens, as the config says; for one at a path port is 0, and socket
 * is what to release at the end. */
int web_listen(const struct sl_web_config *config, struct sl_node_socket *socket, unsigned *port,
               struct sl_err *err);

/**
 * web_control.c: a request that is to change something. begin() sees the headers: it answers (the
 * body is not wanted) or lets the body come; then answer() gets it.
 */
enum MHD_Result web_control_begin(const struct request *request);
enum MHD_Result web_control_answer(const struct request *request, const struct sl_buf *body);
/** The methods of a path that something can be changed at; NULL: there is none. */
const char *web_control_allow(const struct request *request);

/** What may a request with these headers, from this user, change: "off" (there is nothing, or not
 * at this address), "token" (not without the right one), "allowed". */
const char *web_control_changes(const struct request *request);

/** May who asks know what volumes asked for: whose pods, which URIs? Where csi.hideVolumes says so,
 * only who may change something. */
bool web_sees_all(const struct request *request);

/** web_status.c: what this server is; what has come from sources, until now. */
enum MHD_Result web_status_answer(const struct request *request);
enum MHD_Result web_history_answer(const struct request *request);

/** web_node.c: the models of the node. */
enum MHD_Result web_node_models(const struct request *request);
enum MHD_Result web_node_model(const struct request *request, int status, const char *name);
bool web_node_readiness(struct sl_web *web, struct sl_json *json);

/** web_api.c. Is the path ours; answer it. `found` false: nothing was answered. */
enum MHD_Result web_api_answer(const struct request *request, bool *found);
/** Does it answer this path, whatever the name in it? */
bool web_api_has(const char *url);
/** A member "lost_gpus": of a node's GPUs, each with its device and the reason. */
void web_node_lost_gpus(const struct sl_web *web, struct sl_json *json);

/** web_page.c */
enum MHD_Result web_page_answer(const struct request *request);
void web_page_policies(struct sl_web *web);
/** Its style, without the tags around it: a constant, which web->listing_policy allows. */
struct web_text web_page_style(void);

/** web_share.c. `found` false: no such file, nothing was answered; with `must` a 404 is. */
enum MHD_Result web_share_answer(const struct request *request, bool must, bool *found);
int web_share_open(struct sl_web *web, const struct sl_web_config *config, struct sl_err *err);
/** web_share_files.c: O_RDONLY, beneath the shared directory, whatever links there are; -1. */
int web_share_open_at(int share_fd, const char *path);
/** Answer with a regular file, or the range of it that is asked for. *fd is -1 once the answer has
 * it. */
enum MHD_Result web_share_send(const struct request *request, int *fd);
/**
 * Answer with a range of a file that is asked for by the common name of an object.
 *
 * @fd          of the file; -1 when the answer has it.
 * @name        of the object; copied.
 * @begin, end  the range: [begin, end), not empty.
 * @bytes       of the whole file.
 */
enum MHD_Result web_share_send_named(const struct request *request, int *fd, const char *name,
                                     uint64_t begin, uint64_t end, uint64_t bytes);
/** Is a directory (below the shared one) in the middle of being published? */
bool web_share_unready(int share_fd, const char *path);
/** Is the file of this name, a component, a node's own, such as a spec with a password? */
bool web_share_is_kept(const char *name, const struct stat *stat);
/** web_named.c: who reads through caches asks for an object: whatever its path, it is one of ours
 * or 421. `found` false: it is another request. */
enum MHD_Result web_named_answer(const struct request *request, bool *found);
struct named *web_named_new(struct sl_err *err);
void web_named_free(struct named *named);
/** web_status.c: where the handbook says what to do: below $SLUICE_DOCS_URL if it is a URL, else
 * `usual`, which may be NULL. */
#define WEB_RUNBOOKS "troubleshooting.md#by-exit-code"
void web_write_runbooks(struct sl_json *json, const char *key, const char *usual);
/** web_listing.c: a directory, as HTML or JSON; path: "", or its own below the shared one with a
 * slash at its end. Takes fd. */
enum MHD_Result web_listing_answer(const struct request *request, const char *path, int fd);

/** web_events.c. New clients are refused after events_stop, and those there end. */
struct events *events_new(const struct sl_web *web, struct sl_err *err);
void events_stop(struct events *events);
void events_free(struct events *events);
enum MHD_Result events_answer(const struct request *request);
/** Build and send what is new; true while there are clients. */
bool events_tick(struct events *events);
/** "degraded": caches and mirrors that do badly, into an open object; loads go on without them. */
void web_degraded(struct sl_json *json);
/** The JSON of loads, the latest WEB_LOADS_MAX: "loads":[…] into an open object. all: hidden ones,
 * too. */
void web_loads_json(struct sl_json *json, bool all);

#endif
