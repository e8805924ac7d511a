/*
 * Server-sent events (WHATWG HTML section 9.2). The ticker builds one event for all clients; a
 * client sends the event it holds and then takes the newest, so a slow one misses events instead of
 * making a queue. A client that has nothing to send is suspended and costs no thread.
 *
 * One lock guards the list, the newest event and each client's `suspended`, so that a wake-up
 * cannot fall between looking for an event and going to sleep. The library is called with it held;
 * it does not call back from suspend and resume.
 */
#include <string.h>

#include "mem.h"
#include "node.h"
#include "web_parts.h"

enum { EVENT_BYTES_MAX = 2 << 20, BLOCK_BYTES = 8192 };
#define PROGRESS_NS  (1 * SL_NS_PER_S)
#define KEEPALIVE_NS (15 * SL_NS_PER_S)

struct event {
    unsigned references;
    size_t bytes;
    char data[];
};

struct client {
    struct events *events;
    struct MHD_Connection *connection;
    struct event *event; /* what is being sent, NULL between events */
    size_t sent;
    uint64_t last_sequence;
    bool suspended;
    struct client *next;
};

struct events {
    const struct sl_web *web;
    pthread_mutex_t lock;
    struct {
        struct client *first;
        unsigned client_count;
        struct event *newest;
        uint64_t sequence;
        bool stopping;
    } locked;
    /* The ticker's own. */
    uint64_t last_generation, last_sent_ns;
};

struct events *events_new(const struct sl_web *web, struct sl_err *err)
{
    struct events *events = sl_alloc(sizeof(*events), err);
    if (!events)
        return NULL;
    events->web = web;
    pthread_mutex_init(&events->lock, NULL);
    return events;
}

static void release(struct event *event)
{
    if (event && --event->references == 0)
        free(event);
}

void events_free(struct events *events)
{
    if (!events)
        return;
    release(events->locked.newest);
    pthread_mutex_destroy(&events->lock);
    free(events);
}

static void wake_all(struct events *events)
{
    for (struct client *client = events->locked.first; client; client = client->next)
        if (client->suspended) {
            client->suspended = false;
            sl_libmicrohttpd.resume_connection(client->connection);
        }
}

void events_stop(struct events *events)
{
    if (!events)
        return;
    SL_LOCKED(&events->lock);
    events->locked.stopping = true;
    wake_all(events);
}

/* ---- what is sent --------------------------------------------------------------------------- */

static struct event *event_new(const char *text, size_t bytes)
{
    struct event *event = sl_alloc(sizeof(*event) + bytes, NULL);
    if (!event)
        return NULL;
    event->references = 1;
    event->bytes = bytes;
    memcpy(event->data, text, bytes);
    return event;
}

/* All clients get the same: as much as those may see who may change nothing. */
static struct event *build(const struct sl_web *web, const char *name)
{
    struct sl_json json;
    char time_text[SL_TIME_TEXT];
    sl_json_init(&json, EVENT_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "time", sl_json_time(time_text));
    web_loads_json(&json, !web->node || !sl_node_hides_volumes(web->node));
    sl_json_end(&json);
    const char *text = sl_json_text(&json, NULL);
    sl_autobuf out = SL_BUF_INIT(EVENT_BYTES_MAX + 64);
    struct event *event = NULL;
    if (text && sl_buf_printf(&out, NULL, "event: %s\ndata: %s\n\n", name, text) == 0)
        event = event_new(sl_buf_string(&out), out.used);
    sl_json_release(&json);
    return event;
}

static void publish(struct events *events, struct event *event)
{
    if (!event)
        return;
    SL_LOCKED(&events->lock);
    release(events->locked.newest);
    events->locked.newest = event;
    events->locked.sequence++;
    wake_all(events);
}

static void find_active(const struct sl_progress_view *view, void *arg)
{
    if (view->state < SL_LOAD_PUBLISHED)
        *(bool *)arg = true;
}

bool events_tick(struct events *events)
{
    {
        SL_LOCKED(&events->lock);
        if (!events->locked.client_count)
            return false;
    }
    uint64_t now = sl_now_ns(), generation = sl_progress_generation();
    bool active = false;
    sl_progress_each(find_active, &active);
    if (generation != events->last_generation)
        publish(events, build(events->web, "state"));
    else if (active && now - events->last_sent_ns >= PROGRESS_NS)
        publish(events, build(events->web, "progress"));
    else if (now - events->last_sent_ns >= KEEPALIVE_NS)
        publish(events, event_new(": still here\n\n", 14));
    else
        return true;
    events->last_generation = generation;
    events->last_sent_ns = now;
    return true;
}

/* ---- one client ----------------------------------------------------------------------------- */

/* Runs on the server's thread whenever the socket takes more. */
static ssize_t more(void *arg, uint64_t position, char *data, size_t bytes)
{
    struct client *client = arg;
    struct events *events = client->events;
    (void)position;
    SL_LOCKED(&events->lock);
    if (events->locked.stopping)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (!client->event && client->last_sequence != events->locked.sequence) {
        client->event = events->locked.newest;
        client->event->references++;
        client->last_sequence = events->locked.sequence;
        client->sent = 0;
    }
    if (!client->event) {
        client->suspended = true;
        sl_libmicrohttpd.suspend_connection(client->connection);
        return 0;
    }
    size_t part = SL_MIN(bytes, client->event->bytes - client->sent);
    memcpy(data, client->event->data + client->sent, part);
    client->sent += part;
    if (client->sent == client->event->bytes) {
        release(client->event);
        client->event = NULL;
    }
    return (ssize_t)part;
}

static void leave(void *arg)
{
    struct client *client = arg;
    struct events *events = client->events;
    {
        SL_LOCKED(&events->lock);
        struct client **place = &events->locked.first;
        while (*place && *place != client)
            place = &(*place)->next;
        if (*place) {
            *place = client->next;
            events->locked.client_count--;
        }
        release(client->event);
    }
    free(client);
}

/* The first event is the state as it is, so that a page need not ask for it elsewhere. */
static bool join(struct events *events, struct client *client)
{
    SL_LOCKED(&events->lock);
    if (events->locked.stopping || events->locked.client_count >= WEB_EVENT_CLIENTS_MAX)
        return false;
    client->last_sequence = events->locked.sequence;
    client->next = events->locked.first;
    events->locked.first = client;
    events->locked.client_count++;
    return true;
}

static enum MHD_Result answer_head(const struct request *request)
{
    struct MHD_Response *response = web_empty();
    if (response)
        sl_libmicrohttpd.add_response_header(response, "Content-Type", "text/event-stream");
    return web_queue(request, 200, response);
}

static struct client *client_new(const struct request *request)
{
    struct client *client = sl_alloc(sizeof(*client), NULL);
    if (!client)
        return NULL;
    client->events = request->web->events;
    client->connection = request->connection;
    client->event = build(request->web, "state");
    if (client->event && join(client->events, client))
        return client;
    release(client->event);
    free(client);
    return NULL;
}

enum MHD_Result events_answer(const struct request *request)
{
    if (request->head)
        return answer_head(request);
    struct client *client = client_new(request);
    if (!client)
        return web_send_error(request, 503, SL_E_NO_SPACE, 5,
                              "there are %d readers of events already: try again later",
                              WEB_EVENT_CLIENTS_MAX);
    struct MHD_Response *response = sl_libmicrohttpd.create_response_from_callback(
        MHD_SIZE_UNKNOWN, BLOCK_BYTES, more, client, leave);
    if (!response) {
        leave(client);
        return MHD_NO;
    }
    web_streams(request, false);
    web_bound_socket(request, false);
    sl_libmicrohttpd.add_response_header(response, "Content-Type", "text/event-stream");
    sl_libmicrohttpd.add_response_header(response, "X-Accel-Buffering", "no");
    return web_queue(request, 200, response);
}
