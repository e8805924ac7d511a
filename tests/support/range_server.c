/*
 * One thread accepts, one serves each connection. All state is under one mutex; the script and the
 * blobs are copied out of it for each answer. Stopping shuts every socket down, so a stalled answer
 * ends too.
 */
#include "range_server.h"
#include "await.h"

#undef NDEBUG
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_clock.h"
#include "listen_at.h"
#include "range_answer.h"
#include "range_certificate.h"
#include "range_give.h"
#include "range_script.h"
#include "thread.h"

enum { REQUESTS_MAX = 16384, CONNECTIONS_MAX = 4096, STEPS_MAX = 64 };

struct sl_server {
    int fd, held; /* what listens, and what keeps its port */
    unsigned port;
    SSL_CTX *tls;
    _Atomic unsigned tls_delay_ms;
    const char *_Atomic last_suite;
    char ca[64];
    pthread_t thread;
    char urls[16][512];
    unsigned url_turn;
    struct {
        pthread_mutex_t mutex;
        bool stopping;
        struct blob *blobs;
        struct script *script; /* the newest; NULL: none */
        sl_server_handler *handler;
        void *handler_arg;
        enum sl_server_expect expect;
        unsigned expect_times;
        struct sl_server_request *requests[REQUESTS_MAX];
        unsigned request_count;
        struct connection *connections[CONNECTIONS_MAX];
        unsigned connection_count;
        unsigned stalled_count;
        uint64_t pace, paced_ns; /* bytes/s, 0: any; when the next of them may go */
    } locked;
};

static void die(const char *what)
{
    perror(what);
    abort();
}

/* false: the body is not wanted. */
static bool meet_expectation(struct connection *c, const struct sl_server_request *request)
{
    char text[32];
    if (!sl_server_header(request, "Expect", text, sizeof(text)))
        return true;
    pthread_mutex_lock(&c->server->locked.mutex);
    enum sl_server_expect expect = c->server->locked.expect;
    if (c->server->locked.expect_times && !--c->server->locked.expect_times)
        c->server->locked.expect = SL_EXPECT_CONTINUE;
    pthread_mutex_unlock(&c->server->locked.mutex);
    if (expect == SL_EXPECT_CONTINUE || expect == SL_EXPECT_EARLY)
        SL_GIVE_TEXT(c, "HTTP/1.1 100 Continue\r\n\r\n");
    return expect == SL_EXPECT_CONTINUE || expect == SL_EXPECT_SILENT;
}

/* The next request of the connection, NULL at its end. */
static struct sl_server_request *read_request(struct connection *c)
{
    char *end = NULL;
    while (!(end = memmem(c->in, c->in_bytes, "\r\n\r\n", 4))) {
        ssize_t came = c->in_bytes < sizeof(c->in)
                           ? sl_take(c, c->in + c->in_bytes, sizeof(c->in) - c->in_bytes)
                           : 0;
        if (came <= 0)
            return NULL;
        c->in_bytes += (size_t)came;
    }
    struct sl_server_request *request = calloc(1, sizeof(*request));
    size_t head = (size_t)(end - c->in) + 4;
    *end = 0;
    if (!sl_request_parse_head(c->in, request)) {
        free(request);
        return NULL;
    }
    if (!meet_expectation(c, request)) {
        request->body_bytes = 0;
        request->unread = true;
    }
    request->body = calloc(1, request->body_bytes + 1);
    size_t kept = c->in_bytes - head,
           body = kept < request->body_bytes ? kept : request->body_bytes;
    memcpy(request->body, c->in + head, body);
    memmove(c->in, c->in + head + body, kept - body);
    c->in_bytes = kept - body;
    while (body < request->body_bytes) {
        ssize_t came = sl_take(c, request->body + body, request->body_bytes - body);
        if (came <= 0) { /* cut off: no request */
            free(request->body);
            free(request);
            return NULL;
        }
        body += (size_t)came;
    }
    request->connection = c->number;
    return request;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Under the lock: which blob, which step. */
static void choose(struct sl_server *server, const struct sl_server_request *request,
                   struct answer *answer)
{
    size_t path = strcspn(request->target, "?");
    struct blob *blob = server->locked.blobs;
    while (blob && (strlen(blob->path) != path || strncmp(blob->path, request->target, path) != 0))
        blob = blob->next;
    if (blob) {
        answer->data = blob->copies->data;
        answer->bytes = blob->bytes;
        snprintf(answer->etag, sizeof(answer->etag), "%s", blob->etag ? blob->etag : "");
    }
    unsigned hit = 0;
    for (unsigned i = 0; i < server->locked.request_count; i++) {
        const struct sl_server_request *old = server->locked.requests[i];
        hit +=
            strcspn(old->target, "?") == path && strncmp(old->target, request->target, path) == 0;
    }
    struct answer range = {.bytes = SIZE_MAX};
    sl_answer_parse_range(request, &range);
    const struct script *script = server->locked.script;
    for (size_t i = 0; script && i < script->count; i++) {
        const struct sl_step *step = &script->steps[i].step;
        if (step->path &&
            (strlen(step->path) != path || strncmp(step->path, request->target, path) != 0))
            continue;
        unsigned number = step->path ? hit : server->locked.request_count,
                 last = step->last ? step->last : step->first;
        if (step->begin && step->begin != range.begin)
            continue;
        if (!step->first || (number >= step->first && number <= last)) {
            answer->step = *step;
            return;
        }
    }
}

unsigned sl_server_over_since(struct sl_server *server, const struct sl_server_request *request)
{
    unsigned over = 0;
    pthread_mutex_lock(&server->locked.mutex);
    for (unsigned i = server->locked.request_count; server->locked.requests[i - 1] != request; i--)
        over += server->locked.requests[i - 1]->over;
    pthread_mutex_unlock(&server->locked.mutex);
    return over;
}

static void set_over(struct sl_server *server, struct sl_server_request *request)
{
    pthread_mutex_lock(&server->locked.mutex);
    request->over = true;
    pthread_mutex_unlock(&server->locked.mutex);
}

static bool serve(struct connection *c, struct sl_server_request *request)
{
    struct sl_server *server = c->server;
    struct answer answer = {0};
    struct sl_server_reply reply = {.status = 200};
    pthread_mutex_lock(&server->locked.mutex);
    assert(server->locked.request_count < REQUESTS_MAX);
    server->locked.requests[server->locked.request_count++] = request;
    choose(server, request, &answer);
    bool handled = !answer.step.unhandled && server->locked.handler &&
                   server->locked.handler(request, &reply, server->locked.handler_arg);
    pthread_mutex_unlock(&server->locked.mutex);
    if (handled) {
        bool good = sl_give_status(c, reply.status, reply.headers, reply.body, reply.body_bytes,
                                   strcmp(request->method, "HEAD") == 0);
        free(reply.body);
        if (good && request->unread)
            sl_wait_gone(c); /* a reset would overtake the answer */
        return good && !request->unread && !strcasestr(reply.headers, "Connection: close");
    }
    sl_answer_parse_range(request, &answer);
    return sl_give_answer(c, request, &answer);
}

static void *run_connection(void *arg)
{
    struct connection *c = arg;
    struct sl_server_request *request = NULL;
    sigset_t pipe; /* OpenSSL writes without MSG_NOSIGNAL */
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    if (c->server->tls) {
        c->tls = SSL_new(c->server->tls);
        SSL_set_fd(c->tls, c->fd);
        if (c->server->tls_delay_ms)
            fake_clock_turn(c->server->tls_delay_ms * SL_NS_PER_MS);
        if (SSL_accept(c->tls) != 1)
            goto end;
        c->server->last_suite = SSL_get_cipher_name(c->tls);
    }
    while ((request = read_request(c)) && serve(c, request))
        set_over(c->server, request);
end:
    if (c->tls) {
        SSL_shutdown(c->tls);
        SSL_free(c->tls);
        ERR_clear_error();
    }
    pthread_mutex_lock(&c->server->locked.mutex);
    close(c->fd);
    c->fd = -1;
    if (request)
        request->over = true;
    pthread_mutex_unlock(&c->server->locked.mutex);
    return NULL;
}

static void *run_accept(void *arg)
{
    struct sl_server *server = arg;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        pthread_mutex_lock(&server->locked.mutex);
        bool stop = server->locked.stopping || server->locked.connection_count == CONNECTIONS_MAX;
        if (stop || fd < 0) {
            pthread_mutex_unlock(&server->locked.mutex);
            if (fd >= 0)
                close(fd);
            if (stop)
                return NULL;
            continue;
        }
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        struct connection *c = calloc(1, sizeof(*c));
        c->server = server;
        c->fd = fd;
        server->locked.connections[server->locked.connection_count++] = c;
        c->number = server->locked.connection_count;
        if (pthread_create(&c->thread, NULL, run_connection, c) != 0)
            die("thread of the range server");
        pthread_mutex_unlock(&server->locked.mutex);
    }
}

/* ---- setting up ------------------------------------------------------------------------------ */

struct sl_server *sl_server_listen_at(const char *address, unsigned port)
{
    int held = sl_port_hold(address, &port), fd = held < 0 ? -1 : sl_listen_at(address, &port);
    if (fd < 0) {
        if (held >= 0)
            close(held);
        return NULL;
    }
    struct sl_server *server = calloc(1, sizeof(*server));
    pthread_mutex_init(&server->locked.mutex, NULL);
    server->fd = fd;
    server->held = held;
    server->port = port;
    return server;
}

void sl_server_accept(struct sl_server *server)
{
    if (pthread_create(&server->thread, NULL, run_accept, server) != 0)
        die("thread of the range server");
}

struct sl_server *sl_server_start_at(const char *address, unsigned port)
{
    struct sl_server *server = sl_server_listen_at(address, port);
    if (server)
        sl_server_accept(server);
    return server;
}

struct sl_server *sl_server_start(void)
{
    struct sl_server *server = sl_server_start_at("127.0.0.1", 0);
    if (!server)
        die("range server");
    return server;
}

struct sl_server *sl_server_start_tls(void)
{
    struct sl_server *server = sl_server_start();
    pthread_mutex_lock(&server->locked.mutex);
    server->tls = SSL_CTX_new(TLS_server_method());
    snprintf(server->ca, sizeof(server->ca), "/tmp/sluice-test-ca-XXXXXX");
    sl_server_certificate(server->tls, server->ca);
    pthread_mutex_unlock(&server->locked.mutex);
    return server;
}

const char *sl_server_last_suite(struct sl_server *server)
{
    const char *suite = server->last_suite;
    return suite ? suite : "";
}

void sl_server_tls_delay(struct sl_server *server, unsigned ms)
{
    server->tls_delay_ms = ms;
}

static void free_scripts(struct script *script)
{
    while (script) {
        struct script *older = script->older;
        for (size_t i = 0; i < script->count; i++) {
            free(script->steps[i].path);
            free(script->steps[i].headers);
            free(script->steps[i].text);
        }
        free(script);
        script = older;
    }
}

/* With a thread for each that has ended: it needs no lock any more. */
static bool join_ended(struct sl_server *server)
{
    bool all = true;
    pthread_mutex_lock(&server->locked.mutex);
    for (unsigned i = 0; i < server->locked.connection_count; i++) {
        struct connection *c = server->locked.connections[i];
        if (c->fd < 0 && !c->joined)
            pthread_join(c->thread, NULL);
        c->joined = c->fd < 0;
        all = all && c->joined;
    }
    pthread_mutex_unlock(&server->locked.mutex);
    return all;
}

void sl_server_quiet(struct sl_server *server)
{
    SL_AWAIT(join_ended(server), "the end of all connections");
}

void sl_server_stop(struct sl_server *server)
{
    if (server)
        close(sl_server_leave(server));
}

int sl_server_leave(struct sl_server *server)
{
    int held = server->held;
    pthread_mutex_lock(&server->locked.mutex);
    server->locked.stopping = true;
    pthread_mutex_unlock(&server->locked.mutex);
    shutdown(server->fd, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->fd);
    for (unsigned i = 0; i < server->locked.connection_count; i++) {
        struct connection *c = server->locked.connections[i];
        pthread_mutex_lock(&server->locked.mutex);
        if (c->fd >= 0)
            shutdown(c->fd, SHUT_RDWR);
        pthread_mutex_unlock(&server->locked.mutex);
        if (!c->joined)
            pthread_join(c->thread, NULL);
        free(c);
    }
    for (unsigned i = 0; i < server->locked.request_count; i++) {
        free(server->locked.requests[i]->body);
        free(server->locked.requests[i]);
    }
    while (server->locked.blobs) {
        struct blob *blob = server->locked.blobs;
        server->locked.blobs = blob->next;
        for (struct copy *copy = blob->copies; copy;) {
            struct copy *older = copy->older;
            free(copy);
            copy = older;
        }
        free(blob->path);
        free(blob->etag);
        free(blob);
    }
    free_scripts(server->locked.script);
    SSL_CTX_free(server->tls);
    unlink(server->ca);
    free(server);
    return held;
}

unsigned sl_server_port(const struct sl_server *server)
{
    return server->port;
}

const char *sl_server_ca(const struct sl_server *server)
{
    return server->ca;
}

const char *sl_server_url(struct sl_server *server, const char *path)
{
    char *url = server->urls[server->url_turn++ % 16];
    snprintf(url, sizeof(server->urls[0]), "http%s://127.0.0.1:%u%s", server->tls ? "s" : "",
             server->port, path);
    return url;
}

void sl_server_put(struct sl_server *server, const char *path, const void *data, size_t bytes,
                   const char *etag)
{
    struct copy *copy = malloc(sizeof(*copy) + bytes);
    if (!copy)
        die("memory of the range server");
    if (bytes)
        memcpy(copy->data, data, bytes);
    pthread_mutex_lock(&server->locked.mutex);
    struct blob *blob = server->locked.blobs;
    while (blob && strcmp(blob->path, path) != 0)
        blob = blob->next;
    if (!blob) {
        blob = calloc(1, sizeof(*blob));
        blob->path = strdup(path);
        blob->next = server->locked.blobs;
        server->locked.blobs = blob;
    }
    free(blob->etag);
    blob->etag = etag ? strdup(etag) : NULL;
    copy->older = blob->copies;
    blob->copies = copy;
    blob->bytes = bytes;
    pthread_mutex_unlock(&server->locked.mutex);
}

void sl_server_script(struct sl_server *server, const struct sl_step *steps, size_t count)
{
    struct script *script = calloc(1, sizeof(*script) + count * sizeof(script->steps[0]));
    assert(script && count <= STEPS_MAX);
    for (size_t i = 0; i < count; i++) {
        struct step *step = &script->steps[i];
        step->step = steps[i];
        step->step.path = step->path = steps[i].path ? strdup(steps[i].path) : NULL;
        step->step.headers = step->headers = steps[i].headers ? strdup(steps[i].headers) : NULL;
        step->step.text = step->text = steps[i].text ? strdup(steps[i].text) : NULL;
    }
    script->count = count;
    pthread_mutex_lock(&server->locked.mutex);
    script->older = server->locked.script;
    server->locked.script = script;
    pthread_mutex_unlock(&server->locked.mutex);
}

void sl_server_handle(struct sl_server *server, sl_server_handler *handler, void *arg)
{
    pthread_mutex_lock(&server->locked.mutex);
    server->locked.handler = handler;
    server->locked.handler_arg = arg;
    pthread_mutex_unlock(&server->locked.mutex);
}

void sl_server_expect(struct sl_server *server, enum sl_server_expect what, unsigned times)
{
    pthread_mutex_lock(&server->locked.mutex);
    server->locked.expect = what;
    server->locked.expect_times = times;
    pthread_mutex_unlock(&server->locked.mutex);
}

static unsigned read_locked(struct sl_server *server, const unsigned *number)
{
    pthread_mutex_lock(&server->locked.mutex);
    unsigned value = *number;
    pthread_mutex_unlock(&server->locked.mutex);
    return value;
}

unsigned sl_server_request_count(struct sl_server *server)
{
    return read_locked(server, &server->locked.request_count);
}

unsigned sl_server_stalled_count(struct sl_server *server)
{
    return read_locked(server, &server->locked.stalled_count);
}

void sl_server_pace(struct sl_server *server, uint64_t bytes_per_second)
{
    pthread_mutex_lock(&server->locked.mutex);
    server->locked.pace = bytes_per_second;
    pthread_mutex_unlock(&server->locked.mutex);
}

int sl_server_paced_ms(struct sl_server *server, size_t bytes)
{
    uint64_t now = sl_now_ns(), begin = now;
    pthread_mutex_lock(&server->locked.mutex);
    if (server->locked.pace) {
        begin = server->locked.paced_ns > now ? server->locked.paced_ns : now;
        server->locked.paced_ns = begin + bytes * SL_NS_PER_S / server->locked.pace;
    }
    pthread_mutex_unlock(&server->locked.mutex);
    return (int)((begin - now) / SL_NS_PER_MS);
}

void sl_server_stalled(struct sl_server *server)
{
    pthread_mutex_lock(&server->locked.mutex);
    server->locked.stalled_count++;
    pthread_mutex_unlock(&server->locked.mutex);
}

unsigned sl_server_connection_count(struct sl_server *server)
{
    return read_locked(server, &server->locked.connection_count);
}

const struct sl_server_request *sl_server_request_at(struct sl_server *server, unsigned nth)
{
    pthread_mutex_lock(&server->locked.mutex);
    const struct sl_server_request *request =
        nth < server->locked.request_count ? server->locked.requests[nth] : NULL;
    pthread_mutex_unlock(&server->locked.mutex);
    return request;
}
