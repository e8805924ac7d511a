/* Whose the files and folders of a destination are: what belongs to somebody else, or has another
 * name elsewhere, is neither written, cut nor given other modes. Any thread; they look at files,
 * and descriptors stay the caller's. */
#ifndef SL_OWNERS_H
#define SL_OWNERS_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/**
 * May a file that is open be written, cut or given away? Only a regular file of ours with no other
 * name (a hard link would change the file of that name, too). Ours: it belongs to this user, to
 * root, to whom new files in its folder belong (a mount may give all files to one user), or it lies
 * in a folder of ours that nobody else can write (it was given away). SL_E_NO_SPACE.
 */
int sl_owners_check_file(int folder_fd, int fd, const char *name, struct sl_err *err);
/** The same of a folder that sluice works in; path is for the message. SL_E_NO_SPACE. */
int sl_owners_check_folder(int fd, const char *path, struct sl_err *err);
/**
 * The first folder on the way to `name` below root_fd that belongs to somebody else: how many bytes
 * of name it has, 0 for none (and for what is missing, or no folder). *owner is whose it is.
 */
size_t sl_owners_foreign_folder(int root_fd, const char *name, uint32_t *owner);
/**
 * Fail because a folder belongs to another user.
 *
 * @name, bytes  its name is the first `bytes` bytes, as of sl_owners_foreign_folder().
 * @owner        the uid that it belongs to.
 * @return       -1 with SL_E_NO_SPACE and what to do.
 */
int sl_owners_fail_folder(struct sl_err *err, const char *name, size_t bytes, uint32_t owner);

/**
 * Can others put something else in the place of this directory, which need not exist yet? They can
 * if it, or a folder above it, belongs to another user than this one and root, or can be written by
 * others and is not sticky: a warning says who and what to do, once for a folder and once for a
 * path. What is the root of a mount is told without a warning: it is a volume, such as an emptyDir,
 * that mostly belongs to one pod. A directory or link that somebody else made where everybody may
 * (as in /tmp) is refused, SL_E_NO_SPACE; a URI, or a path that begins with "~", SL_E_USAGE. Any
 * thread.
 */
int sl_owners_check_path(const char *path, struct sl_err *err);
/**
 * The directory of the node daemon that runs and that has `path`, which need not be there yet; the
 * caller's to free. NULL: there is none, or nobody can tell. A daemon has one lock for all of its
 * directory, and none for a model or a load.
 */
char *sl_owners_daemon_of(const char *path);

#endif
