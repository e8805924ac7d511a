/*
 * tar, read entry by entry: blocks of 512 bytes, a header for each entry, its data behind it. Three
 * dialects: ustar, GNU (long names, sizes in base 256), pax (names and sizes of any length).
 * POSIX.1-2024, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
 *
 * Everything is a stranger's. Sparse files, parts of several volumes and unknown kinds of entries
 * are refused, and so is an archive without its end mark: cut at a block it would look whole, with
 * files missing. Refusals are SL_E_FORMAT, code "tar" or "archive.type". One thread at a time;
 * blocks as its input does.
 *
 * Why not libarchive: it takes tars that were cut for whole, and what is appended behind a gzip's
 * end, and brings eight more libraries to every start.
 */
#ifndef SL_TAR_H
#define SL_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"

/** Where the bytes come from. */
struct sl_tar_input {
    /** The next bytes; *got is less only at the end. data NULL: pass over them. 0 or -1. */
    int (*read)(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err);
    void *arg;
};

enum sl_tar_kind {
    SL_TAR_FILE,
    SL_TAR_FOLDER,
    SL_TAR_HARD_LINK,
    SL_TAR_SYMLINK,
    SL_TAR_DEVICE,
    SL_TAR_PIPE,
};
/** Texts are borrowed until the next call, as long as they say; a NUL may be in them. */
struct sl_tar_entry {
    enum sl_tar_kind kind;
    const char *name, *link; /* link: what a link leads to */
    size_t name_bytes, link_bytes;
    uint64_t bytes; /* of a file's data, at most INT64_MAX; else 0 */
    bool executable;
    int64_t seconds; /* when it was changed, since 1970; 0: it does not say */
};

struct sl_tar;
/** The input is copied, its arg borrowed. SL_E_NO_SPACE. */
struct sl_tar *sl_tar_new(const struct sl_tar_input *input, struct sl_err *err);
void sl_tar_free(struct sl_tar *tar);
SL_AUTO_DEFINE(sl_tar)
/** The next entry, past what is left of the data of the one before: 1. The end mark: 0. Else -1.
 * Of a file the input stands at its data. */
int sl_tar_next(struct sl_tar *tar, struct sl_tar_entry *entry, struct sl_err *err);
/** The next `bytes` of a file's data, of which so many are left. */
int sl_tar_read(struct sl_tar *tar, void *data, size_t bytes, struct sl_err *err);
/** Of an entry that whoever reads has no place for. -1. */
int sl_tar_refuse(const struct sl_tar_entry *entry, struct sl_err *err);

/** A tar's packing, by its first bytes: "gzip", "bzip2", "xz", "zstd"; NULL: none. */
const char *sl_tar_packing(const uint8_t *head, size_t bytes);

/**
 * Find what the name of an archive's entry means below a folder: leading slashes, doubled ones and
 * "." components are dropped, as the usual programs do.
 *
 * @name, bytes  as it stands in the archive, with no NUL at its end.
 * @clean        out: the name, "" for the folder itself; anything after a failure.
 * @room         of clean, at least 1; the message about a name that does not fit assumes 1025.
 * @return       NULL, or a constant that says what is wrong with it: "leads out of the archive by
 *               '..'".
 */
const char *sl_tar_clean_name(const char *name, size_t bytes, char *clean, size_t room);

#endif
