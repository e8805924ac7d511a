/* What the files of sets share. Not for others. */
#ifndef SL_SETS_PARTS_H
#define SL_SETS_PARTS_H

#include "minisign.h"
#include "sets.h"
#include "source.h"

/* ---- sets_folder.c: the path ---- */

/** The folder of a spec's path, and the one that holds it. */
struct sl_sets_folder {
    int parent, fd;   /* -1: none */
    const char *path; /* borrowed */
    const char *name; /* its last part */
    int staging;      /* -1: none; locked */
    char staging_name[300];
};
#define SL_AUTO_FOLDER __attribute__((cleanup(sl_sets_folder_close))) struct sl_sets_folder
/**
 * Make it (0700) or take it, if it belongs to this user, nobody else can write it, and nobody else
 * can put something in its place. SL_E_NO_SPACE says what to do. Close it in any case.
 */
int sl_sets_folder_open(struct sl_sets_folder *folder, const char *path, struct sl_err *err);
void sl_sets_folder_close(struct sl_sets_folder *folder);
/** Is there anything in it? Unknown counts as yes. */
bool sl_sets_folder_is_used(const struct sl_sets_folder *folder);
/** An empty folder beside it, held against others; what an earlier run left in it goes.
 * SL_E_NO_SPACE. */
int sl_sets_folder_stage(struct sl_sets_folder *folder, struct sl_err *err);
/** The staging folder takes the place of the empty one. 0; 1: something is there meanwhile; -1. */
int sl_sets_folder_publish(struct sl_sets_folder *folder, struct sl_err *err);
/** Remove what is staged. */
void sl_sets_folder_clear(struct sl_sets_folder *folder);
/** A file without a name, on the same file system. Caller closes it. -1: SL_E_NO_SPACE. */
int sl_sets_folder_file(const struct sl_sets_folder *folder, struct sl_err *err);

/* ---- sets_name.c: latest.json ---- */

enum { SL_SETS_NAME_BYTES_MAX = 64 * 1024 };
/** 16 GiB: what an engine compiles is far less. */
static const uint64_t SL_SETS_BLOB_BYTES_MAX = UINT64_C(16) << 30;

/** The content of latest.json. Release it. */
struct sl_sets_name {
    char key[SL_SETS_KEY_BYTES], sha256[65];
    uint64_t bytes, files, created_seconds;
    char *facts, *signature; /* signature may be NULL */
};
void sl_sets_name_release(struct sl_sets_name *name);
#define SL_AUTO_NAME __attribute__((cleanup(sl_sets_name_release))) struct sl_sets_name
/** Everything is a stranger's. SL_E_FORMAT. */
int sl_sets_name_parse(const char *text, size_t bytes, struct sl_sets_name *name,
                       struct sl_err *err);
/** SL_E_NO_SPACE. */
int sl_sets_name_write(const struct sl_sets_name *name, struct sl_buf *text, struct sl_err *err);
/** Is it of this key, and signed as the spec wants it? SL_E_INTEGRITY, code "E_SIGNATURE"; what
 * reading a key says. */
int sl_sets_name_judge(const struct sl_sets_name *name, const struct sl_spec_sets *sets,
                       const char *key, struct sl_err *err);
/** Sign it, if the spec names a secret key. What reading that says. */
int sl_sets_name_sign(struct sl_sets_name *name, const struct sl_spec_sets *sets,
                      struct sl_err *err);

/* ---- sets_store.c: the prefix ---- */

/** With the options and credentials of the spec's source, past caches and mirrors. */
void sl_sets_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_source_config *config);
/** Free it. As sl_store_open(). */
int sl_sets_store_open(const struct sl_spec *spec, const struct sl_source_config *config,
                       struct sl_store **store, struct sl_err *err);
/** latest.json of a key. SL_E_NOT_FOUND; SL_E_FORMAT. */
int sl_sets_store_name(struct sl_store *store, const char *key, struct sl_sets_name *name,
                       struct sl_err *err);
/** The blob, into a file, or to nowhere (-1); held against size and hash. SL_E_INTEGRITY. */
int sl_sets_store_fetch(struct sl_store *store, const struct sl_sets_name *name, int fd,
                        struct sl_err *err);
/**
 * Store a file as the blob of this name.
 *
 * @config   as of sl_sets_source_config().
 * @name     its sha256 and bytes are those of the file.
 * @fd       borrowed; read from its begin.
 * @replace  also where the store has such a blob; else one that has this size and hash stays.
 * @return   0, or -1 with errors of uploads; SL_E_NO_SPACE: the file cannot be read.
 */
int sl_sets_store_put_blob(const struct sl_spec *spec, const struct sl_source_config *config,
                           const struct sl_sets_name *name, int fd, bool replace,
                           struct sl_err *err);
/**
 * Store a name as the latest.json of its key.
 *
 * @config   as of sl_sets_source_config().
 * @replace  also where the store has one.
 * @return   0, or -1 with errors of uploads, code "exists" where there is one that stays;
 *           SL_E_USAGE: the labels are too long.
 */
int sl_sets_store_put_name(const struct sl_spec *spec, const struct sl_source_config *config,
                           const struct sl_sets_name *name, bool replace, struct sl_err *err);

/* ---- sets_pack.c: the files ---- */

/** Figures of a folder's content. */
struct sl_sets_count {
    uint64_t files, bytes, passed;
    int64_t newest_ns, newest_file_ns; /* folders are made, and files keep their times */
    uint64_t later_files, later_bytes; /* of files that were written after a time */
};
/**
 * Count what lies in a folder.
 *
 * @folder_fd  borrowed.
 * @after_ns   the time after which files are later ones.
 * @cancel     may be NULL.
 * @count      out: after a failure as far as it came.
 * @return     0, or -1: SL_E_NO_SPACE, SL_E_USAGE (more than a set may hold), SL_E_CANCELED.
 */
int sl_sets_count(int folder_fd, int64_t after_ns, struct sl_cancel *cancel,
                  struct sl_sets_count *count, struct sl_err *err);
#define SL_SETS_CHANGED "changed"
/**
 * Pack all of a folder as tar and zstd, in the order of names, into a file.
 *
 * @folder_fd  borrowed, as is out_fd.
 * @out_fd     an empty file.
 * @cancel     may be NULL.
 * @saved      out: files, bytes, packed_bytes, passed and sha256 (of the packed file).
 * @return     0, or -1: SL_E_NOT_FOUND if there is nothing; SL_E_INTEGRITY, code SL_SETS_CHANGED,
 *             if a file changes meanwhile; as sl_sets_count().
 */
int sl_sets_pack(int folder_fd, int out_fd, struct sl_cancel *cancel, struct sl_sets_saved *saved,
                 struct sl_err *err);

/* ---- sets_wait.c: standing still ---- */

enum { SL_SETS_STILL_SECONDS = 5, SL_SETS_LOOK_MS = 1000 };
/** Zeroed before the first look. */
struct sl_sets_still {
    struct sl_sets_count last;
    uint64_t since_ns;
    bool looked;
};
/** Has nothing changed for SL_SETS_STILL_SECONDS, and is there something? */
bool sl_sets_stands_still(struct sl_sets_still *still, const struct sl_sets_count *count,
                          uint64_t now_ns);
/** Did the engine write about as much again as was restored? Then that was of little use. */
bool sl_sets_were_unused(const struct sl_sets_result *restored, const struct sl_sets_count *count);

#endif
