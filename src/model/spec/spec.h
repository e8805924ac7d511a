/*
 * The YAML document `kind: Model`, checked and defaulted. Rows in spec_rows.c, spec_source.c
 * (and in storage/ and sink/ for their own sections). Strings live as long as the spec. Every key
 * remembers its line for later complaints. Any thread; a spec may be read by several at once.
 */
#ifndef SL_SPEC_H
#define SL_SPEC_H

#include <stddef.h>

#include "fixed.h"
#include "option.h"
#include "sink.h"
#include "source.h"

enum sl_verify_sidecar { SL_SIDECAR_AUTO, SL_SIDECAR_REQUIRE, SL_SIDECAR_OFF };
enum sl_source_incomplete { SL_INCOMPLETE_REFUSE, SL_INCOMPLETE_WARN };
enum sl_verify_hashes { SL_HASHES_AUTO, SL_HASHES_ALL, SL_HASHES_REQUIRE, SL_HASHES_OFF };

/** Objects that a caller has listed and chosen already; names are relative to a URI that ends in
 * '/'.
 */
struct sl_chosen {
    struct sl_chosen_object {
        char *name;
        uint64_t bytes;
        char *etag; /* as the listing gave it, or "" */
        char *pin;  /* the same, or NULL */
        struct sl_checksums *sums;
    } * items;
    size_t count, capacity;
    char **passed; /* names of others that are there and were left out */
    size_t passed_count, passed_capacity;
};
enum { SL_SPEC_STORES_BYTES = 1024 };
struct sl_spec_through {
    struct sl_list caches;
    uint64_t block_bytes;
    int unverified; /* enum sl_unverified */
    char *origin_share;
    /* Not of the document: what it names. It may name caches, and none of them: []. */
    struct {
        bool caches, block_bytes, unverified, origin_share;
    } named;
};
extern const struct sl_option_table sl_spec_through_table;
/** Of a folder with files of ranks, whose are read. */
struct sl_spec_rank {
    uint64_t index, of; /* of 0: everybody's */
};
struct sl_spec_source {
    char *uri;
    const struct sl_chosen *chosen; /* not of the document: instead of a listing; borrowed */
    size_t beneath_bytes;           /* not of the document: sl_source_config has it */
    char credentials[64];           /* not of the document: sl_source_config has it */
    /* Not of the document, NULL: include names, of what was listed in this folder ("" or with a
     * '/'), what these choose. Borrowed. */
    const struct sl_spec_source *listed;
    const char *listed_folder;
    struct sl_list include, exclude; /* objects below a prefix, fnmatch */
    struct sl_list as_is;            /* the same, of objects that nothing looks into */
    int incomplete;                  /* enum sl_source_incomplete */
    struct sl_spec_rank rank;
    struct sl_list mirrors;
    struct sl_spec_through through;
    struct sl_tls_options tls;
    /* values of the stores' own options, a struct behind the other: sl_spec_store_options() */
    _Alignas(max_align_t) unsigned char stores[SL_SPEC_STORES_BYTES];
};
/** The first part of a name that the expression matches is replaced; the first rule that matches
 * counts. */
struct sl_spec_rename_rule {
    char *match; /* POSIX extended regular expression */
    char *to;    /* \1 to \9 are its groups, \\ is a backslash */
};
struct sl_spec_shard_rule {
    char *match;
    uint64_t dim;
    bool whole; /* not cut, whatever dim says */
};
/** The fate of tensors that no rule names. */
enum sl_shard_others { SL_OTHERS_WHOLE, SL_OTHERS_REFUSE };
struct sl_spec_shard {
    uint64_t rank, of;
    struct sl_items rules; /* struct sl_spec_shard_rule */
    int others;            /* enum sl_shard_others */
};
enum sl_tensor_prefix { SL_PREFIX_NONE, SL_PREFIX_OBJECT };
struct sl_spec_tensors {
    int prefix;                      /* enum sl_tensor_prefix */
    struct sl_list include, exclude; /* fnmatch on tensor names */
    struct sl_items rename;          /* struct sl_spec_rename_rule */
    struct sl_map cast;              /* names of element types */
    int cast_overflow;               /* enum sl_cast_overflow */
    struct sl_spec_shard shard;
};
struct sl_spec_minisign {
    char *public_key, *public_key_file; /* one of them */
};
enum sl_signing_strangers { SL_STRANGERS_REFUSE, SL_STRANGERS_ALLOW };
struct sl_spec_signing_certificates {
    char *ca_file, *subject;
    int expired; /* 1: allowed */
};
struct sl_spec_signing_keyless {
    char *identity, *issuer, *trusted_root_file;
};
/** A bundle of OpenSSF Model Signing, and one way to say who may sign. */
struct sl_spec_model_signing {
    char *file; /* relative to the source, a path, or a URI */
    char *public_key_file;
    struct sl_spec_signing_certificates certificates;
    struct sl_spec_signing_keyless keyless;
    int strangers; /* enum sl_signing_strangers: files that it does not name; `unsigned` in YAML */
};
extern const struct sl_option_table sl_spec_signing_table;
struct sl_spec_verify {
    int hashes;           /* enum sl_verify_hashes */
    int sidecar;          /* enum sl_verify_sidecar */
    struct sl_map sha256; /* object name: 64 hex digits */
    struct sl_spec_minisign minisign;
    struct sl_spec_model_signing model_signing;
    /* Not of the document: what a node wants of models below this URI, whatever the spec says; its
     * strings are the spec's (sl_spec_release()). */
    struct sl_spec_model_signing rule;
};
struct sl_spec_decrypt {
    char *key_file, *passphrase_file;
    const struct sl_spec_secret *secret; /* not of the document: instead of a file; borrowed */
};
/** A key in memory: SL_KEY_BYTES, or (key NULL) a passphrase. */
struct sl_spec_secret {
    const void *key, *passphrase;
    size_t passphrase_bytes;
};
enum { SL_SPEC_GPUS_MAX = 16 };
/** Where what goes to a GPU is decrypted, cast, and hashed by CRCs. */
enum sl_pool_decrypt { SL_DECRYPT_AUTO, SL_DECRYPT_HOST, SL_DECRYPT_GPU };
struct sl_spec_pool {
    char *device;  /* "host", "cuda:N", "cuda:all" */
    int decrypt;   /* enum sl_pool_decrypt */
    int cast, crc; /* the same */
};
/** Which sets of engine caches are used: signed ones, or all in the store. */
enum sl_sets_trust { SL_SETS_SIGNED, SL_SETS_STORE };
/** Compile and kernel caches of an engine, beside the model; path is NULL where there are none. */
struct sl_spec_sets {
    char *path, *url; /* url ends in '/' */
    struct sl_map labels;
    char *variant;
    int trust;                          /* enum sl_sets_trust */
    char *public_key, *public_key_file; /* one of them, if signed ones are used */
    uint64_t restore_seconds;
    bool save;
    char *secret_key_file;
    char *ready; /* URL */
    uint64_t save_seconds;
};
struct sl_spec_sink {
#define SL_DESTINATION(name, key, options, table, text, refusal) options key; /* tmpfs, pool */
#define SL_DESTINATION_OF_CALLER(name)
#include "destinations.def"
#undef SL_DESTINATION
#undef SL_DESTINATION_OF_CALLER
    struct sl_spec_sets caches;
};
/** How slices along inner dimensions are fetched. */
enum sl_slices { SL_SLICES_AUTO, SL_SLICES_LEAST_BYTES };
struct sl_spec_readers {
    uint64_t connections;  /* SL_AUTO_VALUE or 1..1024 */
    uint64_t range_bytes;  /* SL_AUTO_VALUE or 64 KiB..5 GiB */
    uint64_t memory_bytes; /* SL_AUTO_VALUE: bound on staging buffers of one load */
    uint64_t stall_seconds, attempts;
    uint64_t unreachable_seconds;  /* SL_AUTO_VALUE, or 0..86400 */
    int hedge;                     /* enum sl_hedge */
    int slices;                    /* enum sl_slices */
    uint64_t request_price;        /* bytes */
    uint64_t bandwidth;            /* bytes/s, 0 none: of the process */
    uint64_t connections_per_host; /* SL_AUTO_VALUE or 1..4096: of the process */
    uint64_t idle_seconds;         /* of its connections, in the process; 0: closed at once */
    uint64_t timeout_seconds;      /* of the whole load; 0 none. SL_E_TIMEOUT */
    char *fixed;                   /* as it was written; struct sl_spec.fixed is what it says */
};
struct sl_spec_metadata {
    char *name;
};
struct sl_spec {
    char *api_version, *kind;
    struct sl_spec_metadata metadata;
    struct sl_spec_source source;
    struct sl_spec_tensors tensors;
    struct sl_spec_verify verify;
    struct sl_spec_decrypt decrypt;
    struct sl_spec_sink sink;
    struct sl_spec_readers readers;
    char *listen;
    bool has_pool;         /* sink.pool was named */
    struct sl_fixed fixed; /* readers.fixed, else $SLUICE_FIXED */
};
/** The rows: all stores' sections are in it (stores.h). Borrowed, for good. */
const struct sl_option_table *sl_spec_table(void);

/** The values of one kind of store's options, as its table describes them; borrowed. */
const void *sl_spec_store_options(const struct sl_spec *spec, const struct sl_option_table *table);
/** The caches of a spec that names none: URLs with commas between, NULL or "" for none. SL_E_USAGE,
 * SL_E_NO_SPACE. */
int sl_spec_take_through(struct sl_spec *spec, const char *text, struct sl_err *err);
/** A spec that names no caches gets what a default names: those, and of the rest what the spec
 * leaves open. SL_E_NO_SPACE, SL_E_USAGE. */
int sl_spec_inherit_through(struct sl_spec *spec, const struct sl_spec_through *from,
                            struct sl_err *err);
/**
 * Fill what a store of the spec's source is opened with.
 *
 * @cancel, progress  borrowed; may be NULL.
 * @config            out: borrows the spec's options.
 */
void sl_spec_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_progress *progress, struct sl_source_config *config);

/** Every mistake of a file: `spec.yaml:12:5: unknown key 'includes' in 'tensors', did you mean
 * 'include'?`, a line each. */
enum { SL_SPEC_COMPLAINTS_MAX = 50, SL_SPEC_BYTES_MAX = 1024 * 1024, SL_SPEC_DOCUMENTS_MAX = 4096 };

/** Does it name signers? */
bool sl_spec_signing_is_set(const struct sl_spec_model_signing *signing);
/** Does the spec, or the node, ask for a signed model? */
bool sl_spec_is_signed(const struct sl_spec *spec);
/** SL_E_NO_SPACE. */
int sl_spec_signing_copy(const struct sl_spec_model_signing *from, struct sl_spec_model_signing *to,
                         struct sl_err *err);
/** Free all members, also those that a node added; zeroes it. */
void sl_spec_release(struct sl_spec *spec);

/** The models of one file. */
struct sl_specs {
    struct sl_spec *items;
    size_t count;
};
/** Zeroed and half-made ones are fine. */
void sl_specs_release(struct sl_specs *specs);

/** One --set or flag: path "readers.rangeBytes" and its text, applied over the document before
 * checking. */
struct sl_spec_setting {
    const char *path, *value, *origin; /* origin: "--range-bytes", for messages */
};

/**
 * Parse specs: replace ${VAR}, check, fill defaults. Nothing of the arguments is kept.
 *
 * @text        `bytes` bytes of YAML.
 * @file_name   for messages.
 * @settings    `setting_count` values from flags, which go before those of the text.
 * @specs       zeroed; out: release it in either case.
 * @complaints  out: every mistake, a line each, appended; err->message has the first. May be NULL.
 * @return      0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_spec_parse(const char *text, size_t bytes, const char *file_name,
                  const struct sl_spec_setting *settings, size_t setting_count,
                  struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err);
/** Read the text of a regular file. SL_E_NOT_FOUND: it is not there; SL_E_USAGE: it is a pipe, a
 * device, a folder, or may not be read. `what` names it in messages. */
int sl_spec_file_text(const char *path, const char *what, struct sl_buf *text, struct sl_err *err);
/** The same of a model spec; "-" is stdin, for which it blocks. */
int sl_spec_text(const char *path, struct sl_buf *text, struct sl_err *err);
/**
 * Read a file and parse it, as sl_spec_parse(). Blocks.
 *
 * @path    "-" is stdin.
 * @return  SL_E_NOT_FOUND, too.
 */
int sl_spec_read(const char *path, const struct sl_spec_setting *settings, size_t setting_count,
                 struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err);
/**
 * As sl_spec_read(), where a node's models will do, too: with `sink.pool`.
 *
 * @path               "-" is stdin.
 * @settings           `setting_count` of them, as of sl_spec_parse().
 * @specs, complaints  the same.
 * @return             as sl_spec_read().
 */
int sl_spec_read_pooled(const char *path, const struct sl_spec_setting *settings,
                        size_t setting_count, struct sl_specs *specs, struct sl_buf *complaints,
                        struct sl_err *err);
/**
 * Judge settings by themselves, where a mistake elsewhere on the command line keeps their spec
 * from being read: paths and values, not how they fit together.
 *
 * @complaints  out: every mistake, a line each.
 * @return      0, or -1 as sl_spec_parse().
 */
int sl_spec_check_settings(const struct sl_spec_setting *settings, size_t setting_count,
                           struct sl_buf *complaints, struct sl_err *err);
/**
 * Make a spec without a file: `sluice load URI --to DIR`. Its name is made from the URI.
 *
 * @to      the destination.
 * @return  as sl_spec_parse(), whose other arguments these are.
 */
int sl_spec_from_uri(const char *uri, const char *to, const struct sl_spec_setting *settings,
                     size_t setting_count, struct sl_specs *specs, struct sl_buf *complaints,
                     struct sl_err *err);

/** The reference page (Markdown) and the JSON schema (draft 2020-12), from the rows, appended.
 * SL_E_NO_SPACE. */
int sl_spec_write_reference(struct sl_buf *out, struct sl_err *err);
int sl_spec_write_schema(struct sl_buf *out, struct sl_err *err);

#endif
