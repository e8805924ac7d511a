/*
 * Where bytes come from.
 *
 * A *store* is a place that holds objects: a directory, a web server, a bucket, with its
 * configuration, credentials and what was learned about it. A *source* is one object of a store at
 * one version: its length, its version, its bytes [begin, end). Every range read afterwards carries
 * that version and fails with SL_E_INTEGRITY, code "changed", if the object is not the same any
 * more.
 *
 * Kinds of stores (store_kind.h) are silent: this layer checks arguments, counts bytes, time,
 * retries and errors, and traces, once, for all of them.
 *
 * What is set when a store or a source is opened may be asked for by any thread. What speaks with
 * the store blocks, is tried again as a fetch is, ends on the config's cancel (SL_E_CANCELED), and
 * fails with SL_E_NET, SL_E_AUTH, SL_E_NOT_FOUND, SL_E_INTEGRITY (code "changed"), SL_E_FORMAT or
 * SL_E_NO_SPACE.
 */
#ifndef SL_SOURCE_H
#define SL_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "hash_kind.h"
#include "mem.h"
#include "option.h"
#include "thread.h"
#include "through.h"
#include "tls.h"

struct sl_progress;

/* ---- configuration -------------------------------------------------------------------------- */

/** `readers.hedge`: whether a request that is slow is sent again while its answer may yet come. */
enum sl_hedge { SL_HEDGE_AUTO, SL_HEDGE_OFF };

enum { SL_STORE_KINDS_MAX = 16 };
/** Small requests that a caller sends side by side while it opens objects, at most. */
enum { SL_OPENINGS_MAX = 32 };

/** The values of one kind's options: a struct that the table describes. */
struct sl_store_options {
    const struct sl_option_table *table;
    const void *values;
};

/** What a store is opened with. Borrowed until the store is freed. */
struct sl_source_config {
    struct sl_store_options options[SL_STORE_KINDS_MAX]; /* of kinds that are not here: defaults */
    const struct sl_tls_options *tls;                    /* NULL: defaults */
    unsigned stall_seconds;       /* 0: 30. Less than 64 KiB in that time is a stall */
    unsigned attempts;            /* 0: 8. Per range, first try included */
    unsigned unreachable_seconds; /* tries that reach nothing go on for this time */
    unsigned unresolved_seconds;  /* if it is shorter, while the host's name does not exist; 0: the
                                     same */
    unsigned host_connections;    /* of this process to one host; 0: any number */
    unsigned idle_seconds;  /* connections outlive the store for so long, for others of the process
                               that say so, too; 0: they do not */
    unsigned preconnect;    /* connections made at once to a server that turns out to be far away,
                          while the store's first request is out; 0: none */
    bool preconnect_always; /* they are made whether it is far away or not */
    unsigned openings;      /* small requests side by side while objects are opened; 0:
                          SL_OPENINGS_MAX */
    uint64_t hold_bytes; /* all objects will be read whole, and of those with many places to read in
                            their opening so many bytes may be kept from then on; 0: none */
    uint64_t bandwidth;  /* bytes/s that loads of this process read together; 0: no limit */
    enum sl_hedge hedge; /* of what comes before the ranges; theirs is sl_reader_config's */
    struct sl_cancel *cancel;     /* may be NULL */
    struct sl_progress *progress; /* may be NULL; fetched bytes and retries are counted there */
    size_t beneath_bytes; /* local files: nothing outside of what the first bytes of the URI name is
                             opened, whatever links there are; 0: anything may be */
    bool no_mirrors;      /* nothing is taken from a kind's own mirrors, nor from caches: see
                             sl_store_blame_mirrors() */
    struct sl_through_options through; /* caches between here and the origin */
    const char *credentials; /* kept under this name (caller_credentials.h), and no others; NULL:
                                what options and environment say */
};

/* ---- stores --------------------------------------------------------------------------------- */

struct sl_store;
struct sl_source;

/** Its sources and fetches are freed before. NULL is fine. */
void sl_store_free(struct sl_store *store);
SL_AUTO_DEFINE(sl_store)
/** The URI without user, password and query, for people, manifests and logs; borrowed. */
const char *sl_store_uri(const struct sl_store *store);
/** Its kind's name: "file", "http", "s3", "redis". For people: what is decided is decided by
 * traits.
 */
const char *sl_store_kind(const struct sl_store *store);
/** What callers may decide by, of a kind. */
struct sl_store_traits {
    bool local;      /* its bytes come without a network */
    bool listing;    /* it tells what lies below a prefix */
    bool folders;    /* a prefix is what comes before a '/', not any beginning of a name */
    bool urls;       /* its URIs are URLs of a web: names are percent-encoded, a query may follow */
    bool tensors;    /* an object is a .tensors file, and nothing else */
    bool repository; /* as its maker published it: the same weights may lie there several times */
    bool signatures; /* it keeps signatures of what it has open, beside it: store_signatures.h */
    bool caller_credentials; /* it can be opened with those of a caller (caller_credentials.h) */
};
/** Borrowed, for good. */
const struct sl_store_traits *sl_store_traits(const struct sl_store *store);

struct sl_checksums;
/** Where a repository lies in the cache of its own client. */
struct sl_cache_place {
    char folder[256];     /* "models--ORG--NAME" */
    const char *revision; /* that was asked for: "main", a tag, a commit */
    const char *below;    /* the store's base in the repository, with its last '/'; "": the whole */
};
/** How an opened store is best used; zeros are what most are. What it points to is the store's. */
struct sl_store_advice {
    unsigned range_factor;    /* requests cost so much that ranges are to be longer, so many times;
                                 0: as usual */
    uint64_t range_bytes_min; /* ranges are to be as long, unless the user says otherwise */
    bool in_order; /* its objects are best read from their beginnings on and by one connection, one
                      after another, since it has them so. Asked when they have been opened */
    bool reads_to_list;                 /* it may have to read objects whole before it can list */
    const char *hash_advice;            /* what gives objects hashes where they have none; NULL */
    const struct sl_cache_place *cache; /* NULL: there is no such cache */
    /** As sl_source_checksums(), by one request; NULL: it keeps none. */
    int (*checksums)(struct sl_source *source, struct sl_checksums *sums, struct sl_err *err);
    /** As sl_source_delivery(); NULL: nothing is checked as it comes. */
    enum sl_delivery (*delivery)(const struct sl_source *source);
    /** It is to be told of the objects of a load before they are read: ask it to have these at
     * hand, one after another. Nothing is read. Blocks; ends on `stop` and at the first refusal.
     * Any thread. NULL: it is not. */
    int (*prestage)(struct sl_store *store, const char *const *names, size_t count,
                    struct sl_cancel *stop, struct sl_err *err);
};
/** As of now. Any thread. */
struct sl_store_advice sl_store_advice(struct sl_store *store);
/** For people who ask why it does not answer: "endpoint" (a URL first), "region", "credentials" and
 * where each comes from, never a secret. No network. */
void sl_store_describe(struct sl_store *store,
                       void (*row)(void *arg, const char *what, const char *text), void *arg);
/** The shortest time from a request to the first byte of its answer so far, connecting included
 * where it had to; 0: no answer yet. Any thread. */
uint64_t sl_store_first_byte_ns(struct sl_store *store);
/** How many connections to one host this process may have; 0: any number. */
unsigned sl_store_host_connections(const struct sl_store *store);
/**
 * A hash did not agree. true: some of what was read came from caches or from mirrors of the store's
 * own, which are left now, with a warning; read anew by a store with config.no_mirrors it may be
 * right. Any thread.
 */
bool sl_store_blame_mirrors(struct sl_store *store, const struct sl_err *why);
/** The caches that it reads through; NULL: it has none. Borrowed. */
struct sl_through *sl_store_through(const struct sl_store *store);
/** The number of the cache that all machines ask first for the block at this byte;
 * SL_THROUGH_ORIGIN: none. Any thread. */
int sl_source_owner(struct sl_source *source, uint64_t at);
/** How many of `count` small requests to send side by side, by its configuration. */
unsigned sl_store_openings(const struct sl_store *store, size_t count);
/** Count the connections that were made before there was a request for them. */
unsigned sl_store_preconnected(struct sl_store *store);
/** What ends its waits, for callers that drive fetches themselves; may be NULL. */
struct sl_cancel *sl_store_cancel(const struct sl_store *store);

/** What a store keeps of the bytes of a whole object. */
enum { SL_CHECKSUMS_MAX = 4 };
struct sl_checksum {
    enum sl_hash_kind kind;
    uint8_t value[SL_HASH_BYTES_MAX];
    bool git; /* of a blob as git keeps it: "blob BYTES" and a NUL come before its bytes */
};
struct sl_checksums {
    struct sl_checksum items[SL_CHECKSUMS_MAX];
    unsigned count;
    bool composite; /* there are some that are hashes of hashes of parts, which are left out */
};
/** One object of a listing; name is relative to the store's base and not yet trusted. */
struct sl_entry {
    const char *name;
    uint64_t bytes;
    const char *etag;                /* as the listing gives it, or "" */
    const char *pin;                 /* as of a version; NULL: the listing gives none */
    const struct sl_checksums *sums; /* of its bytes, as the listing gives them; NULL: none */
};
struct sl_listing {
    const char *begin; /* of names that begin so, as far as the store can tell; "": of all */
    /** 0: go on; -1 (err filled): stop. An entry is borrowed for its call. */
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
};
/**
 * Tell every object below the base, in the order of the store, page by page in bounded memory.
 *
 * @each    gets one entry after another, borrowed for its call; -1 (err filled) stops. Markers of
 *          folders are left out.
 * @arg     for each().
 * @return  0, or -1: SL_E_NOT_FOUND if there is none, SL_E_USAGE without traits.listing ("has no
 *          listing"), what each() says, errors of the store.
 */
int sl_store_list(struct sl_store *store,
                  int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                  void *arg, struct sl_err *err);

/**
 * As sl_store_list(), of some names alone.
 *
 * @begin  what the names begin with; the store is asked for no others where it can tell, as S3
 *         can.
 */
int sl_store_list_begin(struct sl_store *store, const char *begin,
                        int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                        void *arg, struct sl_err *err);

/* ---- sources -------------------------------------------------------------------------------- */

enum { SL_VERSION_TEXT_MAX = 512, SL_PIN_TEXT_MAX = 160 };

/** What a store said of an object. Texts that differ mean another version. */
struct sl_version {
    char etag[SL_VERSION_TEXT_MAX];       /* with quotes and W/, or "" */
    char version_id[SL_VERSION_TEXT_MAX]; /* S3, or "" */
    /* What names these bytes for good, whatever an answer's headers say: a commit, a generation, a
     * digest; or "". The kind puts it into its requests. */
    char pin[SL_PIN_TEXT_MAX];
    char last_modified[96]; /* as sent (file: mtime, ctime and inode), or "" */
    bool dated; /* last_modified was old when it was told: a change since has another one */
};
/**
 * Do equal texts mean equal bytes? By a pin, a version id, a strong ETag, or else a date that was
 * old when it was told. Without that nothing that was read before can be kept: another version may
 * look the same.
 */
bool sl_version_is_known(const struct sl_version *version);

/** Bytes of one object, 1 EiB: whoever claims more is believed nothing. Every sum of a few such
 * numbers fits in 64 bits. */
static const uint64_t SL_OBJECT_BYTES_MAX = 1152921504606846976;

/**
 * Open one object: one request, which also tells length and version.
 *
 * @name        relative to the store's base. Empty objects are fine.
 * @head_bytes  how many of its first bytes to fetch, at least 1; fewer come if it is shorter. They
 *              are kept and served by sl_source_read() without another request.
 * @source      out: the caller's, freed before the store.
 * @return      0, or -1 with errors of the store.
 *
 * Retries as sl_fetch does. Blocks. Several threads may open sources of one store.
 */
int sl_source_open(struct sl_store *store, const char *name, uint64_t head_bytes,
                   struct sl_source **source, struct sl_err *err);
/**
 * Make a source whose length and version are known, from a listing with strong ETags or from an
 * earlier opening of the same object. No request is made, and its head is empty.
 *
 * @name     relative to the store's base; copied, as is
 * @version  which ranges are then held to.
 * @bytes    the object's length.
 * @source   out: the caller's, freed before the store.
 * @return   0, or -1 with SL_E_USAGE or SL_E_NO_SPACE. Any thread.
 */
int sl_source_known(struct sl_store *store, const char *name, uint64_t bytes,
                    const struct sl_version *version, struct sl_source **source,
                    struct sl_err *err);
/** The store must outlive its sources. */
void sl_source_free(struct sl_source *source);
SL_AUTO_DEFINE(sl_source)

const char *sl_source_name(const struct sl_source *source); /* relative to the base; borrowed */
const char *sl_source_uri(const struct sl_source *source);  /* for people; borrowed */
/** The three are set by the opening; the version and the store are borrowed. */
uint64_t sl_source_bytes(const struct sl_source *source);
const struct sl_version *sl_source_version(const struct sl_source *source);
enum { SL_SOURCE_NAME_BYTES = 65 };
/** The name that every machine has for an object of this version, by whatever link, key or address
 * it comes: hex digits. false: it has none, since the store does not tell versions apart, its URL
 * has a query, or it is a piece of something. */
bool sl_source_common_name(const struct sl_source *source, char name[SL_SOURCE_NAME_BYTES]);
/** Has its store caches, and is all of it read past them, by its kind? */
bool sl_source_is_past_caches(const struct sl_source *source);
struct sl_store *sl_source_store(const struct sl_source *source);
/** Requests made and bytes received for this source so far, opening included. */
void sl_source_counts(const struct sl_source *source, uint64_t *requests, uint64_t *bytes);
/** How many of its first bytes it keeps, which cost no request. */
uint64_t sl_source_held(const struct sl_source *source);
/** So many bytes will be read of all its objects: none is held where there is not four times as
 * much memory. Before they are opened. */
void sl_store_hold_for(struct sl_store *store, uint64_t bytes);
/** May all of it be kept, by its store's configuration and by the memory that there is? Then that
 * much less is left for others; for sl_source_hold(). Never of local files, and of what its server
 * gives only whole. */
bool sl_source_may_hold(struct sl_source *source);
/** Its bytes, all of them, owned from now on: no range costs a request any more, but for those of
 * sl_fetch_new_apart(). Before other threads have the source. */
void sl_source_hold(struct sl_source *source, uint8_t *data);
/** Free what it keeps; while nobody reads. */
void sl_source_forget(struct sl_source *source);

/** What was read of a source, and was not held: its bytes, by their hash. */
struct sl_source_note {
    uint64_t begin, end;
    uint8_t sha256[32];
};
/** Of the sources that it opens from now on every read is noted, so that a verifier can prove later
 * what was believed before. */
void sl_store_note_reads(struct sl_store *store);
/** No more is noted; keep: what was noted stays, for sl_source_take_notes(). */
void sl_source_end_notes(struct sl_source *source, bool keep);
/**
 * Note bytes that were read in another way than by sl_source_read(), if reads are noted at all. The
 * thread of its reads.
 *
 * @begin        of them, in the source.
 * @data, bytes  hashed, and not kept.
 * @return       0, or -1 with SL_E_NO_SPACE.
 */
int sl_source_note(struct sl_source *source, uint64_t begin, const void *data, size_t bytes,
                   struct sl_err *err);
/** All notes, the caller's to free(); the source has none from now on. */
struct sl_source_note *sl_source_take_notes(struct sl_source *source, size_t *count);

/**
 * Read bytes [offset, offset + bytes), all of them or none.
 *
 * @data    out: `bytes` bytes.
 * @return  0, or -1 with errors of the store; beyond the end is SL_E_FORMAT, code "truncated" (the
 *          caller took the numbers from the object).
 *
 * Blocks, retries, ends on cancel. One thread per source.
 */
int sl_source_read(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                   struct sl_err *err);
/**
 * Somebody who answers reads of a source instead, and checks them: what sl_source_read() has not
 * held since the opening. Fetches pass it by.
 */
struct sl_source_verifier {
    int (*read)(struct sl_source_verifier *verifier, struct sl_source *source, uint64_t offset,
                void *data, size_t bytes, struct sl_err *err);
};
/** Borrowed; NULL: none. Before other threads read. */
void sl_source_set_verifier(struct sl_source *source, struct sl_source_verifier *verifier);
/** Borrowed; NULL: none. */
struct sl_source_verifier *sl_source_verifier(const struct sl_source *source);
/**
 * Read as sl_source_read(), past verifier and head.
 *
 * @offset       of the first byte; all of them lie within the object.
 * @data, bytes  out: all of them, or anything after a failure.
 * @return       0, or -1 with errors of the store.
 *
 * Blocks, retries, ends on cancel.
 */
int sl_source_read_past(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                        struct sl_err *err);
/**
 * As sl_source_read_past(), for the verifier, which finds what is wrong by the hashes of ranges
 * (SL_VOUCH_RANGES).
 *
 * @again  these bytes were read, and were wrong: they come apart (sl_fetch_new_apart()).
 */
int sl_source_read_checked(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                           bool again, struct sl_err *err);

/**
 * Those that it was told of, else ask for them: one request where the store keeps any, none
 * elsewhere. None at all (count 0) is not an error. Any thread; blocks.
 */
int sl_source_checksums(struct sl_source *source, struct sl_checksums *sums, struct sl_err *err);
/** Does the store say that this object, which is empty, only stands for a folder? One small request
 * at most. Where nobody knows, or the request fails: no. Any thread; blocks. */
bool sl_source_is_folder(struct sl_source *source);
/** What a listing, or the first answer, said of the bytes of this version; copied. Before other
 * threads have the source. */
int sl_source_set_checksums(struct sl_source *source, const struct sl_checksums *sums,
                            struct sl_err *err);
/** Borrowed; NULL: it was told of none. */
const struct sl_checksums *sl_source_known_checksums(const struct sl_source *source);
/** Whether what has been read of it was checked, as it came, by a hash of the whole object that the
 * store lists beside its checksums. CHECKING: only of a part yet. A check in order waits for that,
 * and hashes nothing, or everything, when all has landed: so a transport may fall back in the
 * middle of a file. Any thread. */
enum sl_delivery sl_source_delivery(const struct sl_source *source);
/** On the heap, to be freed by free(); NULL of NULL, and (SL_E_NO_SPACE) without memory. */
struct sl_checksums *sl_checksums_copy(const struct sl_checksums *sums, struct sl_err *err);

#endif
