/* Files and folders below a directory descriptor, following no links: names come from strangers,
 * and others may write there. Any thread; descriptors that are given stay the caller's, and so do
 * those that are returned (closed on exec). */
#ifndef SL_TREE_H
#define SL_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"

/**
 * Open the folder that holds a name, following no link.
 *
 * @root_fd  where the name begins; borrowed.
 * @name     relative, with slashes.
 * @make     make missing folders (0755), and open read-only ones of ours for change.
 * @leaf     out: the last component, within `name`.
 * @return   the caller's descriptor, or -1 with errno.
 */
int sl_tree_parent(int root_fd, const char *name, bool make, const char **leaf);
/**
 * A walk over many names below a folder: the one that was entered last stays open, since neighbours
 * share it; one that was missing stays so until another is entered. Zero but root_fd (borrowed),
 * make (as above) and fd, which is -1. One thread at a time.
 */
struct sl_tree_walk {
    int root_fd;
    bool make;
    int fd;            /* of the folder; -1: none */
    bool missing;      /* there is none of this name */
    size_t bytes;      /* of its name */
    char folder[1025]; /* with its last slash, not terminated */
};
#define SL_AUTO_WALK __attribute__((cleanup(sl_tree_walk_end))) struct sl_tree_walk

/** As sl_tree_parent(), but the descriptor is the walk's: it is good until the next call. */
int sl_tree_enter(struct sl_tree_walk *walk, const char *name, const char **leaf);
/** Close what is open. The walk may begin anew. */
void sl_tree_walk_end(struct sl_tree_walk *walk);
/** Whether two names are in the same folder. */
bool sl_tree_siblings(const char *a, const char *b);
/** Remove a file or a folder with all in it; a missing one is fine. -1 with errno. */
int sl_tree_remove(int directory_fd, const char *name);
/**
 * Remove one file and the folders above it that become empty. Fine if it is missing, or if a folder
 * or a link is in its place. -1 with errno.
 */
int sl_tree_unlink(int root_fd, const char *name);
/** Make the folders above the file `name` read-only and give them to the owner of the file. Failing
 * is harmless. */
void sl_tree_seal(int root_fd, const char *name);
/** Bytes allocated below a folder; what cannot be looked at counts as none. */
uint64_t sl_tree_bytes(int directory_fd);
/** Does this errno say that the file is not there, or that something else is in its place? Any
 * other only that it cannot be looked at now. */
bool sl_tree_is_gone(int number);
/**
 * Write a small file whole, for everybody to read (0444): a temporary one, renamed.
 *
 * @directory_fd  where it lies; borrowed.
 * @name          one component; what is there is replaced.
 * @return        0, or -1 with SL_E_NO_SPACE.
 */
int sl_tree_write(int directory_fd, const char *name, const void *data, size_t bytes,
                  struct sl_err *err);
/** As sl_tree_write(), for this user alone (0600). */
int sl_tree_write_own(int directory_fd, const char *name, const void *data, size_t bytes,
                      struct sl_err *err);
/**
 * Read a small file whole.
 *
 * @directory_fd  where it lies; borrowed.
 * @buf           out: appended to. A file larger than its limit is not begun.
 * @return        0, or -1 with SL_E_NOT_FOUND or SL_E_NO_SPACE.
 */
int sl_tree_read(int directory_fd, const char *name, struct sl_buf *buf, struct sl_err *err);
/**
 * Fail with SL_E_NO_SPACE and what to do about it.
 *
 * @number  of errno.
 * @doing   "write", for the message; `name` is what to.
 * @return  -1.
 */
int sl_tree_fail(struct sl_err *err, int number, const char *doing, const char *name);

#endif
