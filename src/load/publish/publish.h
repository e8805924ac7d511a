/*
 * Staging, the lock, and making a load visible:
 * PATH/.sluice/{lock,staging/,journal,commit,manifest.json,ready}.
 *
 * Order of a commit: the marker `commit`, ready goes away, files of the old version that the new
 * one lacks are removed, files are renamed into place one by one, manifest.json, then ready, and
 * the marker goes. A load that was killed in between is completed by the next sl_publish_open().
 *
 * A publish is for one thread at a time; what takes a path, any thread. All of it works with files
 * and blocks as these do. SL_E_NO_SPACE is a place that cannot be written, or is somebody else's.
 */
#ifndef SL_PUBLISH_H
#define SL_PUBLISH_H

#include "journal.h"
#include "plan.h"

struct sl_publish;
/**
 * Make PATH and PATH/.sluice, take the lock (flock), and finish an interrupted publish. Links in
 * the way are refused.
 *
 * @path     the destination.
 * @cancel   ends the wait for another load that holds the lock; may be NULL.
 * @waiting  called once, with `arg`, before such a wait; may be NULL.
 * @return   NULL: SL_E_NO_SPACE if it is not writable, with what to do; SL_E_CANCELED; SL_E_USAGE:
 *           no such path can be.
 */
struct sl_publish *sl_publish_open(const char *path, struct sl_cancel *cancel,
                                   void (*waiting)(void *arg), void *arg, struct sl_err *err);
/**
 * As sl_publish_open(), for PATH in a folder that this process has to itself. Waits for nobody.
 * Nothing that a reader of PATH can open holds it up, by a lock or a lease: no lock is taken, and
 * what was published is known by a file beside PATH, PATH.whole, which it makes where only
 * PATH/.sluice/ready says it.
 *
 * @look  nothing is made or finished; SL_E_NOT_FOUND if there is nothing.
 */
struct sl_publish *sl_publish_open_own(const char *path, bool look, struct sl_cancel *cancel,
                                       struct sl_err *err);
#define SL_WHOLE ".whole"
/** mkdir -p, as sl_publish_open does it. SL_E_NO_SPACE. */
int sl_publish_make_path(const char *path, struct sl_err *err);
/** Gives the lock back; what is staged stays. NULL is fine. */
void sl_publish_free(struct sl_publish *publish);
SL_AUTO_DEFINE(sl_publish)
/**
 * Find out whether exactly this plan is published, complete and untouched: size, time and inode of
 * every file as when it was published.
 *
 * @current  out: the answer.
 * @return   0, or -1 with SL_E_NO_SPACE: it cannot be looked at now.
 */
int sl_publish_is_current(struct sl_publish *publish, const struct sl_plan *plan, bool *current,
                          struct sl_err *err);
/**
 * Give the published files of a plan and their folders to others than they were loaded for. Files
 * that belong to them already are not touched.
 *
 * @owner, group  UINT32_MAX leaves as it is.
 * @return        0, or -1 with SL_E_NO_SPACE.
 */
int sl_publish_give(struct sl_publish *publish, const struct sl_plan *plan, uint32_t owner,
                    uint32_t group, struct sl_err *err);
/** The staging directory for files, made on demand: a descriptor, the publish's. SL_E_NO_SPACE. */
int sl_publish_staging(struct sl_publish *publish, struct sl_err *err);
/** PATH/.sluice, where the journal of the load lies beside the staging directory: a
 * descriptor, the publish's. */
int sl_publish_state(const struct sl_publish *publish);
enum { SL_PUBLISH_PATH_MAX = 4096 };
#define SL_JOURNAL_NAME "journal"
/** Bytes that the staging directory holds in memory or on disk now. */
uint64_t sl_publish_staged_bytes(struct sl_publish *publish);
/** Bytes of the version that is published, which withdraw() would give back; 0 if there is none. */
uint64_t sl_publish_published_bytes(const struct sl_publish *publish);
/** Throw the staged files away; keep_journal: not the journal, which was just begun anew.
 * SL_E_NO_SPACE. */
int sl_publish_discard(struct sl_publish *publish, bool keep_journal, struct sl_err *err);
/** Take the published version, and what is staged, away; with the free the directories too, as far
 * as nothing of others is in them. SL_E_NO_SPACE, SL_E_FORMAT. */
int sl_publish_remove(struct sl_publish *publish, struct sl_err *err);
/** replace: free-first: take the published version away before reading. SL_E_NO_SPACE, SL_E_FORMAT.
 */
int sl_publish_withdraw(struct sl_publish *publish, struct sl_err *err);
/**
 * Is every place of the plan's files free, or taken by files of the published version alone?
 * SL_E_NO_SPACE names a link or a folder of somebody else that is in the way.
 */
int sl_publish_look_ahead(struct sl_publish *publish, const struct sl_plan *plan,
                          struct sl_err *err);
/** As far as can be told without making anything, and rights aside: would sl_publish_open() take
 * PATH, and sl_publish_look_ahead() the plan? 0, or -1 with their errors. */
int sl_publish_would_take(const char *path, const struct sl_plan *plan, struct sl_err *err);
/**
 * Make visible what lies in staging, complete and checked.
 *
 * @plan    its files.
 * @spec    for the manifest.
 * @crcs    CRC32C of each file where known[i] says so; the others are read. Both may be NULL.
 * @return  0, or -1 with SL_E_NO_SPACE or SL_E_INTEGRITY; before the commit marker the old version
 *          is untouched then.
 */
int sl_publish_commit(struct sl_publish *publish, const struct sl_plan *plan,
                      const struct sl_spec *spec, const uint32_t *crcs, const bool *known,
                      struct sl_err *err);

/** Files that a version takes over from another one (inherit.c). */
struct sl_inheritance;
/**
 * Find files of a plan that are equal to published ones of `old`, and link those that may be linked
 * into the staging directory; the journal learns of them.
 *
 * @old      whose files they are: the publish itself, or another; NULL: none. Borrowed until the
 *           free, as are publish and plan.
 * @options  whose the plan's files will be.
 * @files    of the plan, as for a sink: `inherited` is set of what is linked.
 * @linked   out: its bytes.
 * @return   NULL: SL_E_NO_SPACE, SL_E_CANCELED. An old file that is not as it was is left alone.
 */
struct sl_inheritance *sl_inherit(struct sl_publish *publish, struct sl_publish *old,
                                  const struct sl_plan *plan,
                                  const struct sl_tmpfs_options *options,
                                  struct sl_journal *journal, struct sl_sink_file *files,
                                  uint64_t *linked, struct sl_err *err);
/**
 * Copy the others into a sink of these files, and ranges of which the sidecar of the old file of
 * the same name has the same hash; the journal learns of what came right. Has threads of its own
 * meanwhile.
 *
 * @copied  out: its bytes.
 * @return  0, or -1 with SL_E_NO_SPACE or SL_E_CANCELED.
 */
int sl_inherit_copy(struct sl_inheritance *inheritance, struct sl_sink *sink,
                    struct sl_journal *journal, uint64_t *copied, struct sl_err *err);
/** Linked files stay. NULL is fine. */
void sl_inheritance_free(struct sl_inheritance *inheritance);
SL_AUTO_DEFINE(sl_inheritance)
/** The part of a published version that a load into its directory takes over. */
struct sl_inheritable {
    uint64_t bytes, fetch_bytes; /* of files and ranges; of the objects, which are not fetched */
    uint64_t link_bytes;         /* of files that take no memory, since they are linked */
};
/**
 * Find out what a load into a directory would take over from the version there, as far as its
 * manifest and what its files look like tell. No byte of a file is read.
 *
 * @path     the directory; zeros where nothing is published.
 * @options  whose the plan's files will be.
 * @there    out.
 * @return   0, or -1 with SL_E_NO_SPACE.
 */
int sl_publish_inheritable(const char *path, const struct sl_plan *plan,
                           const struct sl_tmpfs_options *options, struct sl_inheritable *there,
                           struct sl_err *err);
/** Bytes of files of the first folder's manifest that are files of the second one's, too: links. */
uint64_t sl_publish_shared_bytes(int root_fd, int other_fd);

struct sl_room_limit {
    char what[160];     /* "tmpfs /models", "cgroup /kubepods/…: memory.max" */
    uint64_t available; /* bytes; UINT64_MAX: no limit */
    uint64_t limit;     /* bytes */
};
/** The limits of a destination, for `sluice plan`. */
struct sl_room {
    struct sl_room_limit limits[16];
    unsigned count;
    uint64_t needed;
    bool memory; /* the destination's pages are memory, so cgroup limits count */
};
/**
 * Find out whether a load fits: statvfs of the destination (or its nearest parent that exists)
 * and, if it is memory, every cgroup limit (v1, v2, parents) and the machine's available memory.
 *
 * @path     the destination; it need not exist.
 * @bytes    what it will hold,
 * @already  and how much of that staging holds.
 * @room     out: what `sluice plan` prints, also on failure; may be NULL.
 * @return   0, or -1 with SL_E_NO_SPACE, with figures and what to set.
 */
int sl_room_check(const char *path, uint64_t bytes, uint64_t already, struct sl_room *room,
                  struct sl_err *err);
/** As an object. */
void sl_room_json(struct sl_json *json, const struct sl_room *room);

/** The version published in a directory. */
struct sl_publish_facts {
    char name[64], uri[512], identity[65], time[40]; /* of its manifest; "" where it lacks them */
    char asked[65];                                  /* sl_plan.asked */
    uint64_t bytes, files, tensors, objects, checks, unhashed;
    struct sl_signed_by signed_by;
};
/**
 * Is a model published here, whole and untouched, whichever it is? Size, time and inode of every
 * file are compared with what they were; no byte is read. SL_E_NOT_FOUND: nothing is published;
 * SL_E_INTEGRITY, SL_E_FORMAT: something else is there. Any other error: it cannot be looked at
 * now. Of one of our own *facts tells identity, bytes and files alone.
 */
int sl_publish_survey(struct sl_publish *publish, struct sl_publish_facts *facts,
                      struct sl_err *err);

/**
 * Is what was published here what this is about (sl_plan.asked), whole and untouched? *facts tells
 * what it is. Nothing is read but the manifest; where more would be needed, the answer is no.
 */
bool sl_publish_has_asked(struct sl_publish *publish, const uint8_t asked[32],
                          struct sl_publish_facts *facts);

/**
 * Read what PATH/.sluice/manifest.json says. No byte of a file is read.
 *
 * @facts   out.
 * @there   out: every file is there with its size; nothing else is looked at.
 * @return  0, or -1: SL_E_NOT_FOUND if nothing is published; SL_E_FORMAT, SL_E_NO_SPACE.
 */
int sl_publish_look(const char *path, struct sl_publish_facts *facts, bool *there,
                    struct sl_err *err);
/**
 * Block until PATH/.sluice/ready exists; PATH need not exist yet.
 *
 * @timeout_seconds  0 is for ever, else SL_E_TIMEOUT.
 * @return           0, or -1; SL_E_CANCELED, too.
 */
int sl_publish_wait(const char *path, unsigned timeout_seconds, struct sl_cancel *cancel,
                    struct sl_err *err);
/**
 * As sl_publish_wait(), for another version than the one that is there.
 *
 * @than      the identity of the version that does not count, or its beginning; "": any counts.
 * @identity  out: of the version that came.
 */
int sl_publish_wait_next(const char *path, const char *than, unsigned timeout_seconds,
                         struct sl_cancel *cancel, char identity[65], struct sl_err *err);
/** Of the version that is published, as ready tells it; "": none is, or it cannot be read. */
void sl_publish_now(const char *path, char identity[65]);
/**
 * Hash every published file against its manifest. Reads every byte; blocks.
 *
 * @each    sees every file, with `arg`; may be NULL.
 * @return  0, or -1: SL_E_INTEGRITY names the first wrong file; SL_E_NOT_FOUND: nothing is
 *          published; SL_E_CANCELED.
 */
int sl_publish_verify(const char *path, void (*each)(const char *name, bool good, void *arg),
                      void *arg, struct sl_cancel *cancel, struct sl_err *err);
/** A published file that is an object of a store, byte for byte, as its manifest says. */
struct sl_publish_object {
    const char *name; /* sl_source_common_name() */
    const char *file; /* below the directory */
    uint64_t bytes, mtime_ns;
};
/** Those of a directory; none where nothing is published. The texts are borrowed for the call. */
void sl_publish_objects(int directory_fd,
                        void (*each)(const struct sl_publish_object *object, void *arg), void *arg);
#endif
