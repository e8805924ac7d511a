/*
 * What the parts of the server share. One thread, the loop, has all connections, streams and the
 * socket to itself; a job is what a stream becomes when its request is whole, and goes to a worker
 * and back. Only the loop makes and frees any of them.
 */
#ifndef SL_GRPC_PARTS_H
#define SL_GRPC_PARTS_H

#include <nghttp2/nghttp2.h>

#include "grpc.h"
#include "node_socket.h"

enum {
    SL_GRPC_WORKERS = 32,
    SL_GRPC_WORKERS_MAX = 128,
    SL_GRPC_HEADER_BYTES = 32 * 1024, /* of one request, names and values as HPACK unpacks them */
};
#define SL_GRPC_GREETING_NS (10 * SL_NS_PER_S) /* preface and SETTINGS */
#define SL_GRPC_REQUEST_NS  (30 * SL_NS_PER_S) /* from the headers to the end of a request */
#define SL_GRPC_ANSWER_NS   (30 * SL_NS_PER_S) /* for the client to take an answer */
#define SL_GRPC_LOOK_NS     (5 * SL_NS_PER_S)  /* between two looks at the socket's file */
#define SL_GRPC_FLUSH_NS    (SL_NS_PER_S / 4)  /* for last answers, when the server ends */

struct sl_grpc_stream;

/** A call in the hands of the workers. */
struct sl_grpc_job {
    struct sl_grpc_job *next;
    struct sl_grpc_stream *stream; /* the loop's: NULL when nobody waits for it any more */
    const struct sl_grpc_method *method;
    size_t row; /* of the method */
    struct sl_grpc_call call;
    uint8_t *message; /* memory of call.request */
    size_t held_bytes;
    enum sl_grpc_code code;
};

/** One request and its answer; the loop's. */
struct sl_grpc_stream {
    struct sl_grpc_stream *next, *previous;
    struct sl_grpc_connection *connection;
    int32_t id;
    /* headers */
    size_t header_bytes;
    size_t row; /* of the method; method_count: unknown */
    bool has_method, has_path, has_plain, has_content_type, is_grpc, is_post;
    bool is_timed, is_timeout_bad;
    uint64_t timeout_ns;
    /* body */
    uint8_t *body; /* the prefix of five bytes and the message */
    size_t body_bytes, body_capacity;
    bool is_refused; /* its bytes are thrown away */
    enum sl_grpc_code refused_code;
    const char *refused_text;
    /* answer */
    struct sl_grpc_job *job;
    struct sl_buf answer;
    size_t answer_at;
    bool is_answered;
    uint64_t deadline_ns; /* the caller's */
    uint64_t by_ns;       /* when the client must have done its part */
};

struct sl_grpc_connection {
    struct sl_grpc_connection *next;
    struct sl_grpc *grpc;
    int fd;
    nghttp2_session *session;
    struct sl_grpc_stream *streams;
    size_t stream_count;
    const uint8_t *out; /* the session's, until it is asked for more */
    size_t out_bytes;
    bool is_greeted, is_ending, is_dead;
    uint64_t since_ns;   /* it came, or its last stream ended */
    uint64_t blocked_ns; /* since when nothing can be written; 0: it can */
};

struct sl_grpc {
    struct sl_grpc_config config;
    char *socket, *name;
    struct sl_node_socket at;
    uint64_t look_ns;   /* the next look at the socket's file */
    uint64_t accept_ns; /* no connection is taken before */
    int wake_fd;
    pthread_t loop;
    struct sl_grpc_connection *connections; /* the loop's, as the next ones */
    size_t connection_count, held_bytes, job_count;
    uint64_t close_ns; /* when it was told to end; 0: it was not */
    uint64_t drain_ns, cut_ns;
    struct sl_err listen_err; /* said last */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct {
        struct sl_grpc_job *first, **last; /* wait for a worker */
        struct sl_grpc_job *done;
        unsigned queued, workers, idle;
        unsigned running[SL_GRPC_METHODS_MAX];
        bool is_closing, is_over;
        unsigned drain_ms;
        pthread_t threads[SL_GRPC_WORKERS_MAX];
    } locked;
};

/* grpc_connection.c; the loop's */

/** Takes fd, which it closes on failure, too. */
int sl_grpc_connection_add(struct sl_grpc *grpc, int fd, struct sl_err *err);
void sl_grpc_connection_read(struct sl_grpc_connection *connection);
/** As much as goes; whether it lives on is in is_dead. */
void sl_grpc_connection_write(struct sl_grpc_connection *connection);
/** No new streams; it closes when the last has ended. */
void sl_grpc_connection_end(struct sl_grpc_connection *connection);
void sl_grpc_connection_free(struct sl_grpc_connection *connection);
/** End calls that are late, or the connection if it is. */
void sl_grpc_connection_turn(struct sl_grpc_connection *connection, uint64_t now_ns);
/** When something of it is late; UINT64_MAX: never. */
uint64_t sl_grpc_connection_next(const struct sl_grpc_connection *connection);

/* grpc_stream.c; the loop's */

int sl_grpc_stream_new(struct sl_grpc_connection *connection, int32_t id);
/**
 * Take one header of a request.
 *
 * @name, name_bytes    as HPACK unpacked it; not trusted.
 * @value, value_bytes  the same.
 * @return              false: the stream has to go, since the header breaks RFC 9113 or all of them
 *                      exceed SL_GRPC_HEADER_BYTES.
 */
bool sl_grpc_stream_header(struct sl_grpc_stream *stream, const char *name, size_t name_bytes,
                           const char *value, size_t value_bytes);
void sl_grpc_stream_body(struct sl_grpc_stream *stream, const uint8_t *data, size_t bytes);
/** The request is whole. */
void sl_grpc_stream_run(struct sl_grpc_stream *stream);
/**
 * Answer a request, once. The job, if there is one, is nobody's from then on.
 *
 * @code      SL_GRPC_OK, or what was wrong.
 * @text      why, for people; borrowed for the call. Of no use with SL_GRPC_OK.
 * @response  the message; copied, and released by the caller. Of no use with another code: may be
 *            NULL.
 *
 * Without memory for the message the answer is SL_GRPC_RESOURCE_EXHAUSTED; without any the stream
 * is reset.
 */
void sl_grpc_stream_answer(struct sl_grpc_stream *stream, enum sl_grpc_code code, const char *text,
                           struct sl_buf *response);
void sl_grpc_stream_free(struct sl_grpc_stream *stream);

/* grpc_work.c */

/** Hand a job over; false: there is no room. The loop's. */
bool sl_grpc_work_add(struct sl_grpc *grpc, struct sl_grpc_job *job);
/** Nobody waits for it: it is dropped, or told to end. The loop's. */
void sl_grpc_work_leave(struct sl_grpc *grpc, struct sl_grpc_job *job);
/** Calls that came back, to be answered and freed by the loop. */
struct sl_grpc_job *sl_grpc_work_done(struct sl_grpc *grpc);
void sl_grpc_job_free(struct sl_grpc *grpc, struct sl_grpc_job *job);
/** End the threads; no job is there any more. */
void sl_grpc_work_end(struct sl_grpc *grpc);

#endif
