/*
 * One artifact of a registry: a manifest that names files, which are blobs.
 *
 * Requests, digests and errors: https://github.com/opencontainers/distribution-spec; manifests and
 * indexes: https://github.com/opencontainers/image-spec; names of files in models:
 * https://github.com/modelpack/model-spec and https://oras.land.
 */
#ifndef SL_OCI_STORE_H
#define SL_OCI_STORE_H

#include "cloud_reply.h"
#include "oci_endpoint.h"
#include "oci_options.h"
#include "packed_stream.h"
#include "source.h"
#include "store_signatures.h"

enum { SL_OCI_MANIFEST_BYTES_MAX = 4 * 1024 * 1024 };

/** oci://HOST[:PORT]/REPO[:TAG|@DIGEST][/PATH], taken apart. */
struct sl_oci_uri {
    char *host;      /* as it was meant: "ghcr.io", "localhost:5000", "docker.io" */
    char *repo;      /* "org/name" */
    char *reference; /* a tag or "sha256:…"; "latest" if none is written */
    char *path;      /* of a file, or of a folder with '/' at its end; "": all */
};
/** SL_E_USAGE. Release it after a failure, too. Fuzzed. */
int sl_oci_uri_parse(const char *uri, struct sl_oci_uri *parts, struct sl_err *err);
void sl_oci_uri_release(struct sl_oci_uri *parts);
/** "sha256:" and 64 lower-case hex digits, at the text's end. */
bool sl_oci_is_digest(const char *text);
/** "host:port", without a user; sl_url_parse() judges the rest. */
bool sl_oci_is_host(const char *text, size_t bytes);
/** Lower case, parts divided by '/', each of letters and digits with single separators inside. */
bool sl_oci_is_repo(const char *text, size_t bytes);

/** A file of an artifact: a blob, or a piece of one. */
struct sl_oci_file {
    char *name;
    uint64_t bytes;
    char pin[SL_PIN_TEXT_MAX]; /* see sl_oci_pin_parse() */
    bool hashed;               /* sha256 is known */
    uint8_t sha256[32];
    uint8_t *head; /* its first bytes, of a packed layer; NULL: none are kept */
    size_t head_bytes;
};
/** A blob that is a tar. */
struct sl_oci_layer {
    char digest[SL_OCI_DIGEST_BYTES];
    uint64_t bytes;
    bool image; /* of a container image: whiteouts count, and one folder of it is the model */
    /* As it was found when it was read: */
    enum sl_packing packing;
    uint64_t unpacked_bytes;
    struct sl_packed_point *points; /* from where it can be unpacked, in order */
    size_t point_count, point_capacity;
};
/** What a manifest says. Release it, after a failure too. */
struct sl_oci_manifest {
    struct sl_oci_file *files; /* in the order of the manifest, or sorted behind sl_oci_unpack() */
    size_t count;
    const struct sl_oci_file **sorted; /* by name; NULL before sl_oci_manifest_sort() */
    struct sl_oci_layer *layers;       /* in the order of the manifest */
    size_t layer_count;
    char digest[SL_OCI_DIGEST_BYTES]; /* its own */
    char index[SL_OCI_DIGEST_BYTES];  /* of the index that led to it; "": none did */
    char child[SL_OCI_DIGEST_BYTES];  /* it is an index: the manifest to ask for instead; else "" */
};
/**
 * Read a manifest of OCI or Docker, or an index, of which the entry for this machine's platform or
 * the only one is taken. Fuzzed.
 *
 * @text, bytes  the answer's body.
 * @what         the subject of errors: "cannot open 'oci://…'".
 * @manifest     out: nothing is to be released after a failure.
 * @return       0, or -1: SL_E_FORMAT for what is none, or has no file that can be read;
 *               SL_E_NO_SPACE.
 *
 * Any thread.
 */
int sl_oci_manifest_parse(const char *text, size_t bytes, const char *what,
                          struct sl_oci_manifest *manifest, struct sl_err *err);
void sl_oci_manifest_release(struct sl_oci_manifest *manifest);
/** When all files are there; they must not move any more. SL_E_NO_SPACE. */
int sl_oci_manifest_sort(struct sl_oci_manifest *manifest, struct sl_err *err);
/** The first file with this name, FOLDER and then NAME; NULL if there is none. It is sorted. */
const struct sl_oci_file *sl_oci_manifest_find(const struct sl_oci_manifest *manifest,
                                               const char *folder, const char *name);

/** Where a pin leads: "sha256:…", the whole blob; "sha256:…+AT/OF", a piece of one of so many
 * bytes; "sha256:…+AT/OF+gzip", a piece, from there on, of what that is unpacked to. */
struct sl_oci_piece {
    char digest[SL_OCI_DIGEST_BYTES];
    uint64_t at, of; /* of: 0 for a whole blob */
    enum sl_packing packing;
};
/** false: it is not a pin. Fuzzed. */
bool sl_oci_pin_parse(const char *pin, struct sl_oci_piece *piece);

/** store->impl */
struct sl_oci {
    struct sl_oci_endpoint registry, mirrors[SL_PLACES_MAX];
    struct sl_places places; /* these */
    struct sl_store *store;
    struct sl_oci_uri uri;
    char *folder; /* of uri.path, with its last '/'; "": all */
    struct {
        pthread_mutex_t mutex;
        bool known;     /* once it is, manifest stays as it is */
        bool no_ranges; /* the registry sends whole files instead */
        struct sl_oci_manifest manifest;
    } locked;
};

/** source->impl: where a blob is asked for. */
struct sl_oci_place {
    struct sl_oci_endpoint *at;
    struct sl_http_object *object; /* the endpoint's */
};
/** The blob of this digest there. SL_E_NO_SPACE. */
int sl_oci_place_find(struct sl_oci_endpoint *endpoint, const char *digest,
                      struct sl_oci_place *place, struct sl_err *err);
/** "host" or "[::1]" of "host:port": is it of this machine? */
bool sl_oci_host_is_near(const char *host);
/** Those of the spec that are of this registry. SL_E_USAGE, SL_E_NO_SPACE. */
int sl_oci_open_mirrors(struct sl_oci *oci, const struct sl_oci_options *options,
                        struct sl_err *err);
/** sl_store_kind.describe */
void sl_oci_describe(struct sl_store *store,
                     void (*row)(void *arg, const char *what, const char *text), void *arg);

/** The layer of this digest among the artifact's, whose files are known; NULL: there is none, or
 * nobody has asked for the files. Borrowed from the store. Any thread. */
const struct sl_oci_layer *sl_oci_find_layer(struct sl_oci *oci, const char *digest);

/** Add the files in the manifest's layers, which are read for it: their headers, or all where that
 * is no more than source.oci.checkLayersUpTo. what: "cannot open 'oci://…'". Blocks. SL_E_FORMAT,
 * SL_E_INTEGRITY, and what reading fails with. */
int sl_oci_unpack(struct sl_oci *oci, struct sl_oci_manifest *manifest, const char *what,
                  struct sl_err *err);
/** The artifact's files, asked for once; borrowed from the store. Blocks. Any thread. */
int sl_oci_files(struct sl_oci *oci, const struct sl_oci_manifest **manifest, struct sl_err *err);
/** What sl_store_advice.in_order means. Any thread. */
void sl_oci_advise_in_order(struct sl_oci *oci);
/** The registry sent all of a blob, and was asked for a part. Any thread, both. */
void sl_oci_note_no_ranges(struct sl_oci *oci);
bool sl_oci_knows_no_ranges(struct sl_oci *oci);
/** sl_store_kind.signatures */
int sl_oci_signatures(struct sl_store *store, struct sl_store_signatures *found,
                      struct sl_err *err);
/** sl_store_kind.list */
int sl_oci_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);

/**
 * Make the error of a refusal, with what to do; a challenge is noted.
 *
 * @endpoint  that refused.
 * @reply     its code is the challenge.
 * @what      the subject: "cannot read 'oci://…'".
 * @return    -1.
 */
int sl_oci_refuse(struct sl_oci *oci, struct sl_oci_endpoint *endpoint,
                  const struct sl_cloud_reply *reply, const char *what, struct sl_err *err);

#endif
