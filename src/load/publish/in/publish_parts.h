/* What the files of publish/ share. */
#ifndef SL_PUBLISH_PARTS_H
#define SL_PUBLISH_PARTS_H

#include <sys/stat.h>

#include "publish.h"
#include "tree.h"

enum {
    SL_MANIFEST_BYTES_MAX = 512 * 1024 * 1024,
    SL_MANIFEST_RANGES_END = 32 * 1024 * 1024, /* no hashes of ranges from there on */
};
#define SL_STATE_DIRECTORY ".sluice"
#define SL_MANIFEST        "manifest.json"
#define SL_MANIFEST_NEW    "manifest.new"
#define SL_READY           "ready"
#define SL_COMMIT          "commit"
#define SL_STAGING         "staging"
enum { SL_BESIDE_BYTES = 128 };

struct sl_publish {
    char *path;
    struct sl_cancel *cancel; /* may be NULL; borrowed */
    int root_fd, state_fd, lock_fd, staging_fd;
    size_t made_from; /* where in path the first directory ends that was made for it; 0: none was */
    bool made_state;  /* .sluice was not there before */
    bool locked;      /* lock_fd holds the lock */
    /* Of one that this process has to itself: the folder that holds PATH, and a file there that
     * only this process opens. It says what ready says, and names the files. */
    int beside_fd;
    char beside[SL_BESIDE_BYTES];
};

/** One published file, as the manifest has it. */
struct sl_published_file {
    const char *name;
    uint64_t bytes, mtime_ns;
    uint32_t crc32c;
    const char *object; /* the common name of the object that it is; NULL: it is none, or unknown */
    const char *identity; /* sl_plan_file.identity in hex digits; NULL: unknown */
    /* Of its ranges, by the sidecar that it was checked with: size, and hashes one behind the other
     * in hex digits; NULL: none of this kind. */
    uint64_t range_bytes;
    const char *range_sha256, *range_blake2b;
};
/** Files of a manifest; names point into `text` or into a plan. */
struct sl_published {
    struct sl_buf text; /* as decoded; none if made from a plan */
    json_t *document;   /* owned: its short members, and how many tensors and objects there are;
                           NULL if made from a plan */
    struct sl_published_file *files;
    size_t count;
    const char *identity;
    char identity_text[65];
};
void sl_published_release(struct sl_published *published);
/** Read a manifest of the state directory, judging every name in it. SL_E_NOT_FOUND if absent. */
int sl_published_read(int state_fd, const char *name, struct sl_published *published,
                      struct sl_err *err);
/** The names and the identity of what lies beside (commit.c), whose document is there. */
int sl_published_take_names(struct sl_published *published, struct sl_err *err);
/** As sl_published_read, the version that is to go: false if there is none, or, logged, none that
 * can be read. */
bool sl_published_old(const struct sl_publish *publish, struct sl_published *published);
/** The sidecar of a file that is its object, byte for byte; NULL: there is none. */
const struct sl_sidecar *sl_publish_sidecar(const struct sl_plan *plan, uint32_t file);
/**
 * Write the text of a manifest.
 *
 * @json       gets one object; empty before.
 * @plan       what was loaded.
 * @spec       names the model.
 * @published  made of the plan: its files, with their CRCs, and the identity.
 * @return     0; -1 if the text is too long or memory runs out.
 */
int sl_manifest_write(struct sl_json *json, const struct sl_plan *plan, const struct sl_spec *spec,
                      const struct sl_published *published, struct sl_err *err);
/**
 * Hash name, size, time and inode of every file, in their order, by SHA-256.
 *
 * @root_fd  the directory that they are below.
 * @name     gives the name of file i, with `arg`.
 * @count    how many there are.
 * @stamp    out: 64 hex digits.
 * @return   0, or -1: SL_E_INTEGRITY if one is missing or no regular file; SL_E_NO_SPACE: it cannot
 *           be looked at.
 */
int sl_published_stamp(int root_fd, const char *(*name)(const void *arg, size_t i), const void *arg,
                       size_t count, char stamp[65], struct sl_err *err);

enum { SL_BOOT_BYTES = 64, SL_HASH_BUFFER_BYTES = 256 * 1024 };
/** boot_id.c: this boot of the machine; "": it cannot be told. */
void sl_boot_id(char id[SL_BOOT_BYTES]);
/** Does the document (a manifest, ready) tell of files on a disk that this boot has not written? */
bool sl_boot_is_past(int directory_fd, const json_t *document);
/**
 * Hash one file below a directory and compare it with the manifest.
 *
 * @root_fd  the directory.
 * @buffer   SL_HASH_BUFFER_BYTES, to be written over.
 * @cancel   may be NULL.
 * @good     out: it is there, as long as it should be, and matches.
 * @return   0, or -1: SL_E_INTEGRITY: it cannot be read; SL_E_NO_SPACE: it cannot be opened;
 *           SL_E_CANCELED.
 */
int sl_published_hash(int root_fd, const struct sl_published_file *file, uint8_t *buffer,
                      struct sl_cancel *cancel, bool *good, struct sl_err *err);
/**
 * Hash all files of a manifest that another boot wrote.
 *
 * @root_fd     where they lie, if not in staging.
 * @staging_fd  looked into first; -1: none.
 * @cancel      may be NULL.
 * @return      0, or -1: SL_E_INTEGRITY names the first one that is right in neither; as
 *              sl_published_hash().
 *
 * Reads every byte.
 */
int sl_published_check(int root_fd, int staging_fd, const struct sl_published *published,
                       struct sl_cancel *cancel, struct sl_err *err);
/**
 * If ready is of another boot, hash what the manifest names and write ready anew.
 *
 * @ready     as it was read.
 * @identity  that the manifest must have.
 * @cancel    may be NULL.
 * @return    0: it can be believed; -1: SL_E_INTEGRITY, or what reading the manifest and the files
 *            says.
 *
 * Where ready cannot be written, the next load hashes again.
 */
int sl_publish_outlived(struct sl_publish *publish, const json_t *ready, const char *identity,
                        struct sl_cancel *cancel, struct sl_err *err);
/** The time of a file as manifests have it. */
static inline uint64_t sl_publish_mtime_ns(const struct stat *status)
{
    return (uint64_t)status->st_mtim.tv_sec * 1000000000ull + (uint64_t)status->st_mtim.tv_nsec;
}
/** commit.c: ready, of files that are in their places. */
int sl_commit_write_ready(struct sl_publish *publish, const struct sl_published *published,
                          struct sl_err *err);
/** commit.c: what lies beside one of our own; failing is harmless. */
void sl_commit_write_beside(struct sl_publish *publish, const struct sl_published *published);
/** staging.c: is a folder of the state ours? below: begins with a slash, or "" for the state. */
int sl_publish_check_own(const struct sl_publish *publish, int fd, const char *below,
                         struct sl_err *err);
/** commit.c: carry a marked commit to its end; fine at any point. */
int sl_commit_finish(struct sl_publish *publish, struct sl_err *err);

#endif
