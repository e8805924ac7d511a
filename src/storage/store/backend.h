/*
 * What a backend implements: one file and one row of sources.def each. Called only by source.c and
 * fetch.c.
 */
#ifndef SL_BACKEND_H
#define SL_BACKEND_H

#include <poll.h>
#include <pthread.h>

#include "exchange.h"
#include "fetch.h"
#include "host.h"
#include "source.h"

enum { SL_IDLE_LANES_MAX = 64, SL_SCHEME_BYTES = 16 };

/** The row that a URI's scheme means: "file" for a path, "http" for https too; any word that looks
 * like a scheme. false: it is longer than any row's. */
bool sl_source_scheme(const char *uri, char name[SL_SCHEME_BYTES]);

/** The path of a file:// URI: file:///a%20b is /a b; a path is itself. free() it. */
char *sl_file_path(const char *uri, struct sl_err *err);

/** version.c: neither weak nor empty. */
bool sl_etag_is_strong(const char *etag);
/** Is it of one version, and not S3's "null"? */
bool sl_version_id_counts(const char *version_id);
/** Is a Last-Modified older than the resolution of dates, by the answer's Date ("": by our clock)?
 */
bool sl_version_date_settled(const char *last_modified, const char *date);

struct sl_store {
    const struct sl_backend *backend;
    char *uri; /* of the base, without secrets */
    struct sl_source_config config;
    void *impl; /* the backend's */
    struct {
        pthread_mutex_t mutex;
        /* connected and without a request, for the next fetch */
        struct sl_lane *lanes[SL_IDLE_LANES_MAX];
        unsigned lane_count;
        bool connected_ahead;
        uint64_t first_byte_ns; /* the shortest so far, 0: none */
    } locked;
    struct sl_store *next; /* of all that are open */
};
/** How connections of a store are made; borrowed from it. */
struct sl_connect sl_store_connect(struct sl_store *store);
/** A request was answered after so long. */
void sl_store_note_first_byte(struct sl_store *store, uint64_t ns);

/** A lane for other requests than ranges: one that is idle, with its connection, or a new one. */
struct sl_lane;
struct sl_lane *sl_store_take_lane(struct sl_store *store, struct sl_err *err);
/** Back, between two requests: it is kept for the next, or freed. */
void sl_store_give_lane(struct sl_store *store, struct sl_lane *lane);

struct sl_source {
    struct sl_store *store;
    char *name, *uri;
    uint64_t bytes;
    struct sl_version version;
    uint8_t *head; /* the first bytes, kept */
    size_t head_bytes;
    struct sl_source_guard *guard; /* NULL: none; borrowed */
    bool opened;                   /* the first answer came: bytes and version are known */
    struct sl_counter requests, received;
    void *impl; /* the backend's: a resolved URL, an open descriptor */
};

struct sl_range_request; /* range_lane.h */

/** One connection's worth of a backend; thread-confined; `impl` semantics are the backend's. */
struct sl_lane;

struct sl_backend {
    const char *name; /* of the row */

    /** Is the URI one, as far as its text tells? SL_E_USAGE. NULL: only open() knows. */
    int (*check)(const char *uri, struct sl_err *err);
    /** Split the URI: fill store->uri and store->impl, set *key (malloc'ed). No network. */
    int (*open)(struct sl_store *store, const char *uri, char **key, struct sl_err *err);
    void (*close)(struct sl_store *store);
    int (*list)(struct sl_store *store,
                int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err), void *arg,
                struct sl_err *err);
    /** As list, of names that begin so; NULL: all are listed and the others passed over. */
    int (*list_begin)(struct sl_store *store, const char *begin,
                      int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                      void *arg, struct sl_err *err);
    /** Fill source->uri and source->impl for source->name. No network. */
    int (*locate)(struct sl_source *source, struct sl_err *err);
    void (*forget)(struct sl_source *source);

    struct sl_lane *(*lane_new)(struct sl_store *store, struct sl_err *err);
    void (*lane_free)(struct sl_lane *lane);
    /**
     * Begin one request for [begin, end). While source->version is not known yet (first request,
     * begin is 0) the range may be cut short by the object's end, and the answer fills
     * source->bytes and source->version before the first byte is delivered; afterwards the answer
     * must match them exactly.
     */
    int (*lane_start)(struct sl_lane *lane, struct sl_source *source, uint64_t begin, uint64_t end,
                      bool first, struct sl_err *err);
    /** As sl_fetch_read(), without retry. After END or FAILED the lane can start again. */
    enum sl_io_state (*lane_read)(struct sl_lane *lane, void *data, size_t bytes, size_t *got,
                                  struct sl_err *err);
    int (*lane_poll)(struct sl_lane *lane, struct pollfd fds[SL_IO_POLL_MAX],
                     uint64_t *deadline_ns);
    /** Drop the request and its connection. */
    void (*lane_abort)(struct sl_lane *lane);
    /** How its next requests are sent: sl_request.hurry. NULL: there is no such thing. */
    void (*lane_hurry)(struct sl_lane *lane, unsigned hurry);
    /** Whether its request was sent twice. NULL: none ever is. */
    bool (*lane_sent_twice)(const struct sl_lane *lane);
    /** Connect a new one to where this leads, as sl_exchange_connect(). NULL: there is no such
     * thing. */
    int (*lane_connect)(struct sl_lane *lane, const struct sl_exchange *like, struct sl_err *err);
    /** Whether it has a connection to this host. NULL: it has none to any. */
    bool (*lane_leads_to)(const struct sl_lane *lane, const struct sl_host *host);
    /**
     * Before a retry of a failure that is not retryable by its kind: true if something was done
     * about it (credentials refreshed, redirect resolved again, region learned) and the request is
     * worth one more try. May block. NULL: never.
     */
    bool (*mend)(struct sl_source *source, const struct sl_err *why, struct sl_err *err);
    /** As sl_source_checksums(); NULL: it keeps none. */
    int (*checksums)(struct sl_source *source, struct sl_checksums *sums, struct sl_err *err);
    /** As sl_range_ops.prepare; NULL where ranges are not asked for by HTTP. */
    int (*prepare)(struct sl_source *source, struct sl_range_request *request, struct sl_err *err);
};

#define SL_SOURCE(name, example, help) extern const struct sl_backend sl_##name##_backend;
#include "sources.def"
#undef SL_SOURCE

#endif
