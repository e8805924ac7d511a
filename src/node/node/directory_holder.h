/*
 * Models as published files on a tmpfs: DIR/NAME/VERSION holds one version, as `sluice load` would
 * publish it, DIR/NAME/VERSION.whole what says so to the daemon, whatever those do who see the
 * version, DIR/NAME/current is a link to the one that is asked for by name, and
 * DIR/NAME/model.yaml the spec of a model that a caller brought, so that a new daemon knows it.
 *
 * Any thread, but open and free; functions with an error work with files and block as these do.
 */
#ifndef SL_DIRECTORY_HOLDER_H
#define SL_DIRECTORY_HOLDER_H

#include "registry.h"

struct sl_directory_holder;
/**
 * Make the directory, and lock it as long as this process lives; where others may write to it, a
 * folder of our own in it (node_folder.h). SL_E_NO_SPACE if it cannot be written, if it is somebody
 * else's, or if another node daemon has it.
 */
struct sl_directory_holder *sl_directory_holder_open(const char *path, struct sl_err *err);
/** The directory stays; the lock ends. NULL is fine. */
void sl_directory_holder_free(struct sl_directory_holder *holder);
SL_AUTO_DEFINE(sl_directory_holder)
/** Where models are found: DIR above; borrowed. */
const char *sl_directory_holder_path(const struct sl_directory_holder *holder);
/** Of the file system that they lie on; 0 and 0 if it cannot be asked. */
void sl_directory_holder_room(const struct sl_directory_holder *holder, uint64_t *bytes,
                              uint64_t *free_bytes);
/** For the registry; lives as long as the holder. Its functions are called by many threads. */
const struct sl_holder *sl_directory_holder_ops(struct sl_directory_holder *holder);
/**
 * Tell the registry of every version that is there: whole ones are looked at file by file (size,
 * time, inode; no byte is read), the rest is what interrupted loads left. Links, names that are
 * none of ours, and what another user made or could write are left alone. Once, at the node's
 * start. SL_E_NO_SPACE: the directory cannot be read, or there is no memory.
 */
int sl_directory_holder_scan(struct sl_directory_holder *holder, struct sl_registry *registry,
                             struct sl_err *err);
/** The folder of a version, as a descriptor (O_RDONLY), the caller's. SL_E_NOT_FOUND; SL_E_NO_SPACE
 * if somebody else could have made it. */
int sl_directory_holder_version(struct sl_directory_holder *holder, const char *name,
                                const char *version, struct sl_err *err);
enum sl_wholeness {
    SL_WHOLENESS_WHOLE,
    SL_WHOLENESS_NOT,     /* proven: it is not there, or something else is */
    SL_WHOLENESS_UNKNOWN, /* it cannot be looked at just now */
};
/**
 * Find out whether a version is whole, as sl_directory_holder_scan() does. Changes nothing; while a
 * load works with the version, the load knows better.
 *
 * @name     of the model.
 * @version  the text of its version.
 * @bytes    out: what it takes, where it is there; else 0.
 * @return   what was found, logged if it is not as it should be.
 */
enum sl_wholeness sl_directory_holder_look(struct sl_directory_holder *holder, const char *name,
                                           const char *version, uint64_t *bytes);
/** A folder of a layer above for what it keeps beside the models; name begins with a dot. Makes it.
 * Returns a descriptor, the caller's. SL_E_NO_SPACE. */
int sl_directory_holder_beside(struct sl_directory_holder *holder, const char *name,
                               struct sl_err *err);
/** Keep, or remove (text NULL), the spec of a model that a caller brought. Where others may
 * exchange the directory none is kept: 0. SL_E_NO_SPACE. */
int sl_directory_holder_remember(struct sl_directory_holder *holder, const char *name,
                                 const char *text, struct sl_err *err);
/** Read the spec that is kept of a model. SL_E_NOT_FOUND: none; SL_E_NO_SPACE. */
int sl_directory_holder_recall(struct sl_directory_holder *holder, const char *name,
                               struct sl_buf *text, struct sl_err *err);
/** Every kept spec; texts are borrowed for the call. What cannot be read is logged and left out. */
void sl_directory_holder_each_spec(struct sl_directory_holder *holder,
                                   void (*call)(void *arg, const char *name, const char *text,
                                                size_t bytes),
                                   void *arg);

#endif
