/*
 * What a kind of store is: one value of struct sl_store_kind, its row (stores/stores.def), which
 * carries everything that others ask of it by loops over the rows. Its functions are called only by
 * source.c, fetch.c and upload.c. A row is a constant; its functions may be called by several
 * threads for one store, by one for each channel. int functions return 0, or -1 with the error;
 * they do not block unless it is said.
 */
#ifndef SL_STORE_KIND_H
#define SL_STORE_KIND_H

#include <poll.h>
#include <pthread.h>

#include "exchange.h"
#include "fetch.h"
#include "host.h"
#include "retry.h"
#include "source.h"
#include "store_signatures.h"
#include "through.h"

enum { SL_IDLE_CHANNELS_MAX = 64, SL_SCHEMES_MAX = 4 };

/** version.c: neither weak nor empty (RFC 9110 section 8.8.3). */
bool sl_etag_is_strong(const char *etag);
/** Is a Last-Modified older than the resolution of dates, by the answer's Date ("": by our clock)?
 */
bool sl_version_date_settled(const char *last_modified, const char *date);

/* repository.c: for kinds whose URIs end in the path of a file in a repository. */

enum { SL_REPOSITORY_PATH_BYTES_MAX = 4096 };
/** Not longer than that, and no part of it empty, "." or ".."? "" is fine, and '/' at its end. */
bool sl_repository_path_is_plain(const char *path);
/**
 * Part the path of a repository: the store is its folder. Fills store->uri.
 *
 * @uri     what was given, for messages.
 * @path    below the repository.
 * @folder  out: "" or with '/' at its end; free() it, after a failure, too.
 * @key     out: the last part; free() it, after a failure, too.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_repository_split(struct sl_store *store, const char *uri, const char *path, char **folder,
                        char **key, struct sl_err *err);

/** What is not locked is set by its opening. */
struct sl_store {
    const struct sl_store_kind *kind;
    const struct sl_transport *transport; /* the kind's */
    char *uri;                            /* of the base, without secrets */
    struct sl_source_config config;
    struct sl_store_advice advice; /* but for what is locked */
    struct sl_places *places;      /* the kind's; NULL: there is the origin alone */
    struct sl_through *through;    /* caches; NULL: none */
    void *impl;                    /* the kind's */
    bool notes_reads;              /* sl_store_note_reads() */
    struct {
        pthread_mutex_t mutex;
        /* connected and without a request, for the next fetch */
        struct sl_channel *channels[SL_IDLE_CHANNELS_MAX];
        unsigned channel_count;
        bool in_order, unsized; /* sl_store_note_in_order() */
        unsigned range_factor;
        bool preconnected;
        uint64_t held_bytes;    /* of config.hold_bytes */
        uint64_t first_byte_ns; /* the shortest so far, 0: none */
    } locked;
    struct sl_store *next; /* of all that are open */
};
/** How connections of a store are made; borrowed from it. */
struct sl_connect sl_store_connect(struct sl_store *store);

/** Objects of it come only whole; sized: and say how long they are. A warning, once. Any thread. */
void sl_store_note_in_order(struct sl_store *store, bool sized);

/** A channel for other requests than ranges: one that is idle, with its connection, or a new one.
 * The caller's until it is given back. SL_E_NO_SPACE. Any thread. */
struct sl_channel;
struct sl_channel *sl_store_take_channel(struct sl_store *store, struct sl_err *err);
/** Back, between two requests: it is kept for the next, or freed. */
void sl_store_give_channel(struct sl_store *store, struct sl_channel *channel);

struct sl_source {
    struct sl_store *store;
    char *name, *uri;
    uint64_t bytes;
    struct sl_version version;
    struct sl_checksums *checksums; /* NULL: none */
    uint8_t *head;                  /* the first bytes, kept */
    size_t head_bytes;
    struct sl_source_verifier *verifier; /* NULL: none; borrowed */
    struct sl_source_note *notes;        /* of what was read; see sl_store_note_reads() */
    size_t note_count, note_capacity;
    bool notes_reads;
    bool queried;        /* its URL has more than its URI: a query */
    bool opened;         /* bytes and version are known: by the first answer, or by
                            resolve */
    bool in_order;       /* its server gives it only whole; set with `opened` */
    enum sl_vouch vouch; /* the least of all that is read of it: of a kind's own sources */
    char *blob;          /* its content's own name, whatever its URI; NULL: it has none. Where
                            the store has places: what they have or lack of it */
    bool unchecked;      /* and it is a piece of that which nobody has checked: no place is
                            believed, even where the origin cannot be reached */
    uint64_t piece_at, piece_of; /* it is a piece of what the transport reads, from this byte on, of
                                    so many; piece_of 0: it is all of it. Set with `opened` */
    struct sl_counter requests, received;
    const char *past_caches;      /* no cache has ranges of it, and why: for people; NULL: they may.
                                     Set with `opened` */
    struct sl_caches_map *caches; /* of its blocks; set once, under the store's mutex, and guarded
                                      by the through's own; NULL: none yet */
    void *impl;                   /* the kind's: where the object is */
};

/** One connection's worth of a transport, of one thread; what is in it is the transport's. */
struct sl_channel;

/** One try of a range, [begin, end). */
struct sl_try {
    uint64_t begin, end;
    bool first; /* source->version is not known yet, and begin is 0: the range may be cut short by
                   the object's end, and the answer fills source->bytes and source->version before
                   the first byte is delivered. Otherwise the answer must match them exactly */
    bool again; /* these bytes came wrong before, and are asked for in another way, if there is one:
                   sl_fetch_new_apart() */
    enum sl_vouch vouch; /* sl_fetch_vouch() */
    unsigned hedge;      /* sl_request.hedge */
    unsigned place;      /* of store->places */
    const char *via;     /* sl_request.via; borrowed until the answer has ended. NULL: the origin */
};

/**
 * How the bytes of a kind's objects come: HTTP is one transport, which several kinds share
 * (http_store.h); file and redis have their own. Called for every range, in the order that they
 * stand here.
 */
struct sl_transport {
    struct sl_channel *(*channel_new)(struct sl_store *store, struct sl_err *err);
    void (*channel_free)(struct sl_channel *channel);
    /** Begin one request; `try` is borrowed for the call. */
    int (*channel_start)(struct sl_channel *channel, struct sl_source *source,
                         const struct sl_try *try, struct sl_err *err);
    /** As sl_fetch_read(), without retry. After END or FAILED the channel can start again. */
    enum sl_io_state (*channel_read)(struct sl_channel *channel, void *data, size_t bytes,
                                     size_t *got, struct sl_err *err);
    int (*channel_poll)(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                        uint64_t *deadline_ns);
    /** Drop the request and its connection. */
    void (*channel_abort)(struct sl_channel *channel);

    /* The members below may be NULL: the kind has no such thing. */

    /** sl_exchange_answered() of its last request. */
    struct sl_answered (*channel_answered)(const struct sl_channel *channel);
    /** By which its last request went, which may be none although the try has one: what it carries
     * is not for caches. NULL: by none. */
    const char *(*channel_via)(const struct sl_channel *channel);
    /** May a request for ranges of an opened source go by this cache? It is made for that, and not
     * sent; what it needs (a token) may be asked for. Blocks. With channel_via. */
    bool (*may_see)(struct sl_source *source, const char *via);
    /** Connect a new one to where this leads, as sl_exchange_connect(). */
    int (*channel_connect)(struct sl_channel *channel, const struct sl_exchange *like,
                           struct sl_err *err);
    /** Whether it has a connection to this host. */
    bool (*channel_leads_to)(const struct sl_channel *channel, const struct sl_host *host);
    /** HTTP alone: for requests of another kind while it has none of its own; borrowed. */
    struct sl_exchange *(*channel_exchange)(struct sl_channel *channel);
};

/** The functions of a transport that has all of them under the names of the members. */
#define SL_CHANNEL_FUNCTIONS                                                                       \
    .channel_new = channel_new, .channel_free = channel_free, .channel_start = channel_start,      \
    .channel_read = channel_read, .channel_poll = channel_poll, .channel_abort = channel_abort,    \
    .channel_answered = channel_answered, .channel_connect = channel_connect,                      \
    .channel_leads_to = channel_leads_to

struct sl_upload_ops; /* upload_backend.h */

struct sl_store_kind {
    const char *name;
    const char *schemes[SL_SCHEMES_MAX + 1]; /* lower case; ended by NULL; "http", "https" */
    bool bare;                               /* "scheme:path" is a URI of it, too, without "//" */
    const char *example, *help;              /* of the reference page */
    const struct sl_option_table *options; /* its name is the section's: source.NAME; NULL: none */
    const char *options_help;              /* of the section */
    const char *login; /* a URI must hold no key: "set …", what to do instead; NULL: it may */
    struct sl_store_traits traits;

    /* What every kind has. */

    /** Split the URI: fill store->uri, store->impl and store->advice, set *key (malloc'ed).
     * No network. */
    int (*open)(struct sl_store *store, const char *uri, char **key, struct sl_err *err);
    void (*close)(struct sl_store *store);
    /** Fill source->uri and source->impl for source->name. No network. */
    int (*locate)(struct sl_source *source, struct sl_err *err);
    const struct sl_transport *transport;
    const void *hooks; /* what the transport asks of the kind: struct sl_http_hooks for HTTP */

    /* Calls that only some kinds have; NULL: none. */

    /** Is the URI one, as far as its text tells? SL_E_USAGE. NULL: only open() knows. */
    int (*check)(const char *uri, struct sl_err *err);
    /** As sl_store_list_begin(): blocks. Other names than those that begin so are passed over. */
    int (*list)(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);
    /** As sl_store_signatures(). With traits.signatures. */
    int (*signatures)(struct sl_store *store, struct sl_store_signatures *found,
                      struct sl_err *err);
    /**
     * After locate, of a source whose version is not known: what must be asked of the store before
     * its objects, such as which commit a revision is; may fill source->version.pin, and with it
     * source->bytes, source->opened, and then source->head with as much as the kind has of it. May
     * block; any thread.
     */
    int (*resolve)(struct sl_source *source, struct sl_err *err);
    void (*forget)(struct sl_source *source);
    /**
     * Before a retry of a failure that is not retryable by its kind: true if something was done
     * about it (credentials refreshed, redirect resolved again, region learned) and the request is
     * worth one more try. May block.
     */
    bool (*recover)(struct sl_source *source, const struct sl_err *why, struct sl_err *err);
    /** As sl_source_is_folder(), sl_store_describe(). */
    bool (*is_folder)(struct sl_source *source);
    void (*describe)(struct sl_store *store,
                     void (*row)(void *arg, const char *what, const char *text), void *arg);
    const struct sl_upload_ops *upload; /* NULL: nothing can be written there */
};

/** The tries of one request, or of one range, as a config has them. */
struct sl_retry sl_store_retry(const struct sl_source_config *config);
/**
 * As sl_store_open(), of a kind that is known already.
 *
 * @kind    a constant.
 * @uri     that the kind knows.
 * @config  copied, with what it points to borrowed; NULL: defaults.
 * @store   out: the caller's; NULL after a failure.
 * @key     out: free() it; NULL after a failure.
 * @return  as there.
 */
int sl_store_open_kind(const struct sl_store_kind *kind, const char *uri,
                       const struct sl_source_config *config, struct sl_store **store, char **key,
                       struct sl_err *err);
/** The values of a kind's options, borrowed from the config's owner; NULL for defaults. */
const void *sl_source_options(const struct sl_source_config *config,
                              const struct sl_option_table *table);

#endif
