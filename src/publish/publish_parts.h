/* What the files of publish/ share. */
#ifndef SL_PUBLISH_PARTS_H
#define SL_PUBLISH_PARTS_H

#include "publish.h"
#include "tree.h"

enum { SL_MANIFEST_BYTES_MAX = 512 * 1024 * 1024 };
#define SL_STATE_DIRECTORY ".sluice"
#define SL_MANIFEST        "manifest.json"
#define SL_MANIFEST_NEW    "manifest.new"
#define SL_READY           "ready"
#define SL_COMMIT          "commit"
#define SL_STAGING         "staging"

struct sl_publish {
    char *path;
    int root_fd, state_fd, lock_fd, staging_fd;
};

/** One published file, as the manifest has it. */
struct sl_published_file {
    const char *name;
    uint64_t bytes, mtime_ns;
    uint32_t crc32c;
};
/** Files of a manifest; names point into `document` or into a plan. */
struct sl_published {
    json_t *document; /* owned; NULL if made from a plan */
    struct sl_published_file *files;
    size_t count;
    const char *identity;
    char identity_text[65];
};
void sl_published_release(struct sl_published *published);
/** Read a manifest of the state directory, judging every name in it. SL_E_NOT_FOUND if absent. */
int sl_published_read(int state_fd, const char *name, struct sl_published *published,
                      struct sl_err *err);
/** As sl_published_read, the version that is to go: false if there is none, or, logged, none that
 * can be read. */
bool sl_published_old(const struct sl_publish *publish, struct sl_published *published);
/** The manifest's text. */
int sl_manifest_write(struct sl_json *json, const struct sl_plan *plan, const struct sl_spec *spec,
                      const struct sl_published *published, struct sl_err *err);
/** SHA-256 over name, size, time and inode of every file, in their order; SL_E_INTEGRITY if one is
 * missing or no regular file. */
int sl_published_stamp(int root_fd, const char *(*name)(const void *arg, size_t i), const void *arg,
                       size_t count, char stamp[65], struct sl_err *err);

/** commit.c: carry a marked commit to its end; fine at any point. */
int sl_commit_finish(struct sl_publish *publish, struct sl_err *err);
/** Tests: called before every step of a commit. */
void sl_commit_set_hook(void (*step)(const char *what));

#endif
