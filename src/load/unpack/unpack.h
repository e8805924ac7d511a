/*
 * A tree of files that comes out of an archive, below a directory. Everything in an archive comes
 * from a stranger: names stay below the directory, links inside it, sizes within bounds that the
 * archive's own size sets.
 */
#ifndef SL_UNPACK_H
#define SL_UNPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"
#include "thread.h"

enum {
    SL_UNPACK_ENTRIES_MAX = 200000,
    SL_UNPACK_NAME_BYTES_MAX = 1024,
};

struct sl_unpack;
/**
 * Begin a tree of files.
 *
 * @directory_fd  an empty directory; borrowed until the free, as are path and cancel.
 * @path          where that is: asked for room, and named in messages.
 * @packed_bytes  size of the archive, by which its content is limited.
 * @cancel        may be NULL.
 * @return        free it. NULL: SL_E_NO_SPACE.
 *
 * Not for several threads.
 */
struct sl_unpack *sl_unpack_new(int directory_fd, const char *path, uint64_t packed_bytes,
                                struct sl_cancel *cancel, struct sl_err *err);
void sl_unpack_free(struct sl_unpack *unpack);
SL_AUTO_DEFINE(sl_unpack)

/**
 * Before a file is unpacked, one of its name below old_fd (borrowed) goes, so that a volume need
 * not hold a model twice.
 */
void sl_unpack_over(struct sl_unpack *unpack, int old_fd);
/** Files stay empty: everything is judged, and takes no room but for names. */
void sl_unpack_hollow(struct sl_unpack *unpack);
/**
 * What has been read of the archive is given back to the file system, so that there is never much
 * more than the larger of archive and content. Its file must be open for writing, and is worth
 * nothing afterwards, whatever comes of it.
 */
void sl_unpack_eat(struct sl_unpack *unpack);
/** Files get the times that the archive has of them. */
void sl_unpack_keep_times(struct sl_unpack *unpack);
/** For readers: the file in hand was changed so many seconds after 1970; 0: it is not known. */
void sl_unpack_date(struct sl_unpack *unpack, int64_t seconds);
/**
 * Tell (readers do) that bytes of the archive's file were read for the last time.
 *
 * @fd          the archive's, open for writing where sl_unpack_eat() was called.
 * @begin, end  in the file.
 */
void sl_unpack_eaten(struct sl_unpack *unpack, int fd, uint64_t begin, uint64_t end);

/*
 * Names are as the archive has them, `name_bytes` long. Leading slashes, "." components and doubled
 * slashes are dropped, as the usual programs do; ".." is refused. SL_E_FORMAT, code "archive.name".
 */

/** A folder, with those above it. -1. */
int sl_unpack_folder(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                     struct sl_err *err);
/**
 * Make a file, which is written next, by sl_unpack_write() and sl_unpack_end(). It replaces one
 * that came before.
 *
 * @name        `name_bytes` bytes, as the archive has them.
 * @bytes       that it will have, exactly.
 * @executable  else nobody may execute it.
 * @return      0, or -1: SL_E_NO_SPACE; SL_E_FORMAT, codes archive.name, archive.limit,
 *              archive.ratio; SL_E_CANCELED.
 */
int sl_unpack_begin(struct sl_unpack *unpack, const char *name, size_t name_bytes, uint64_t bytes,
                    bool executable, struct sl_err *err);
int sl_unpack_write(struct sl_unpack *unpack, const void *data, size_t bytes, struct sl_err *err);
/** SL_E_FORMAT, code "archive.truncated", if bytes are missing. */
int sl_unpack_end(struct sl_unpack *unpack, struct sl_err *err);
/**
 * Make another name of a file that came before.
 *
 * @name    `name_bytes` bytes: the new name.
 * @target  `target_bytes` bytes: the file's name, from the top of the archive.
 * @return  0, or -1: SL_E_FORMAT, codes archive.name, archive.limit, archive.link; SL_E_NO_SPACE;
 *          SL_E_CANCELED.
 */
int sl_unpack_hard_link(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                        const char *target, size_t target_bytes, struct sl_err *err);
/**
 * Take a symbolic link, which sl_unpack_finish() makes, when nothing is written any more that could
 * pass through it.
 *
 * @name    `name_bytes` bytes.
 * @target  `target_bytes` bytes: relative, with ".." only at its beginning and not beyond the top.
 * @return  0, or -1: SL_E_FORMAT, codes archive.name, archive.limit, archive.link; SL_E_NO_SPACE;
 *          SL_E_CANCELED.
 */
int sl_unpack_symlink(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                      const char *target, size_t target_bytes, struct sl_err *err);
/** Why a link may not have this target, a constant; NULL: it may. */
const char *sl_unpack_target_fault(const char *name, const char *target, size_t bytes);
/** All entries came. SL_E_NOT_FOUND if no file was among them. */
int sl_unpack_finish(struct sl_unpack *unpack, struct sl_err *err);

/** How much may come, by the archive's size; at most INT64_MAX. */
uint64_t sl_unpack_limit(const struct sl_unpack *unpack);
/** Did it fail for lack of room at the destination? */
bool sl_unpack_is_full(const struct sl_unpack *unpack);
/** The totals so far. */
uint64_t sl_unpack_files(const struct sl_unpack *unpack);
uint64_t sl_unpack_bytes(const struct sl_unpack *unpack);

/** Unpack the file `fd` of `bytes` bytes: a tar, plain or packed by gzip or zstd. Blocks. -1. */
int sl_untar(int fd, uint64_t bytes, struct sl_unpack *unpack, struct sl_err *err);
/** The same of a ZIP archive, stored and deflated entries. */
int sl_unzip(int fd, uint64_t bytes, struct sl_unpack *unpack, struct sl_err *err);

#endif
