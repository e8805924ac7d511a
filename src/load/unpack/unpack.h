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
 * directory_fd (borrowed, empty) is at `path`, which is asked for room and named in messages;
 * packed_bytes is the size of the archive; cancel may be NULL. Not for several threads.
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
/** For readers: bytes [begin, end) of the archive's file were read for the last time. */
void sl_unpack_eaten(struct sl_unpack *unpack, int fd, uint64_t begin, uint64_t end);

/*
 * Names are as the archive has them, `name_bytes` long. Leading slashes, "." components and doubled
 * slashes are dropped, as the usual programs do; ".." is refused. SL_E_FORMAT, code "archive.name".
 */

/** A folder, with those above it. -1. */
int sl_unpack_folder(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                     struct sl_err *err);
/** A file of exactly `bytes`, to be written next; it replaces one that came before. SL_E_NO_SPACE,
 * or SL_E_FORMAT with code "archive.ratio". */
int sl_unpack_begin(struct sl_unpack *unpack, const char *name, size_t name_bytes, uint64_t bytes,
                    bool executable, struct sl_err *err);
int sl_unpack_write(struct sl_unpack *unpack, const void *data, size_t bytes, struct sl_err *err);
/** SL_E_FORMAT, code "archive.truncated", if bytes are missing. */
int sl_unpack_end(struct sl_unpack *unpack, struct sl_err *err);
/** Another name of a file that came before. -1. */
int sl_unpack_hard_link(struct sl_unpack *unpack, const char *name, size_t name_bytes,
                        const char *target, size_t target_bytes, struct sl_err *err);
/**
 * A symbolic link, made by sl_unpack_finish(), when nothing is written any more that could pass
 * through it. The target must be relative, with ".." only at its beginning and not beyond the top.
 * -1, code "archive.link".
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
