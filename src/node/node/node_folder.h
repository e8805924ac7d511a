/*
 * Folders and files that only this daemon's user and root can have made, and nobody else can change
 * or exchange. Any thread; they block as files do. Descriptors that are returned are the caller's,
 * and closed on exec.
 */
#ifndef SL_NODE_FOLDER_H
#define SL_NODE_FOLDER_H

#include <stdbool.h>
#include <sys/stat.h>

#include "buf.h"

/** Where a daemon works. Zero but fd, which is -1, before it is opened. */
struct sl_node_folder {
    int fd;
    bool exposed; /* others may put another folder in its place, so its path leads anywhere */
    char *path;   /* where others find it; both are its own, until its release */
    char *work;   /* the same for calls of this process that take a path: always this folder */
};
/**
 * Make and open the folder of a config. A folder that others may write, too, has one of the
 * daemon's own in it: PATH/.sluice-UID. SL_E_NO_SPACE: it belongs to somebody else, or a link of
 * somebody else leads there (code "owner"); or it cannot be made.
 */
int sl_node_folder_open(const char *path, struct sl_node_folder *folder, struct sl_err *err);
/** Closes it; nothing is removed. */
void sl_node_folder_release(struct sl_node_folder *folder);
/** In the message of an error, where others find what the daemon works on. */
void sl_node_folder_explain(const struct sl_node_folder *folder, struct sl_err *err);

/**
 * Open the folder of a path (O_PATH), making what is missing; it must be root's or the daemon's.
 * *exposed: others may write to it and rename what is in it, or exchange it. Errors as above.
 */
int sl_node_folder_reach(const char *path, bool *exposed, struct sl_err *err);
/**
 * Open a folder below one that is trusted: a folder of the daemon or of root, which nobody else may
 * write.
 *
 * @parent_fd  the trusted one.
 * @name       a name in it; a link there is not followed.
 * @make       make it if it is not there.
 * @where      what it is called, for messages.
 * @return     a descriptor, the caller's; or -1 with SL_E_NOT_FOUND, or SL_E_NO_SPACE, with code
 *             "owner" if it is somebody else's.
 */
int sl_node_open_own(int parent_fd, const char *name, bool make, const char *where,
                     struct sl_err *err);
/** Is it of the daemon's user or of root, closed to others' writing, and, if a file, of one name?
 */
bool sl_node_is_own(const struct stat *status);
/** Does a folder hold only such entries? SL_E_NO_SPACE, code "owner": no; without a code: it cannot
 * be looked at now. `where`: for messages. */
int sl_node_check_entries(int folder_fd, const char *where, struct sl_err *err);
/** As sl_tree_read(), of such a file alone, which only the daemon reads (sl_tree_write_own): from
 * now on nobody else can. SL_E_NOT_FOUND; SL_E_NO_SPACE, code "owner". */
int sl_node_read_own(int folder_fd, const char *name, struct sl_buf *buf, struct sl_err *err);

#endif
