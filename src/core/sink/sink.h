/*
 * Where bytes land. A sink is opened for a list of files; readers ask it for a place for part of a
 * file, fill it, hand it back.
 *
 * A place is either memory (write the bytes there) or a file range (pwrite from a buffer that is
 * hot in cache: on tmpfs whole-page writes from a small buffer are the cheapest way, see
 * docs/architecture.md). The reader handles both.
 *
 * reserve, commit, abandon and read: any reader thread, a place by the thread that reserved it;
 * finish and free: one thread, when no reader is left. 0, or -1 with SL_E_NO_SPACE (tmpfs),
 * SL_E_GPU, SL_E_CANCELED; SL_E_INTERNAL for a range beyond its file.
 */
#ifndef SL_SINK_H
#define SL_SINK_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"
#include "mem.h"

struct sl_sink;

/** One file to be made. */
struct sl_sink_file {
    const char *name; /* relative, already judged safe by sl_name_check() */
    uint64_t bytes;
    bool inherited; /* it lies there already, whole, right and final: nobody reads or writes it */
};

struct sl_place {
    uint8_t *memory; /* not NULL: bytes writable bytes lent until commit or abandon */
    int fd;          /* the sink's; memory NULL: pwrite here … */
    uint64_t offset; /* … at this offset */
    uint64_t bytes;
    uint32_t file;
};

struct sl_sink_ops {
    const char *name;
    /**
     * Make a place for file[file] bytes [offset, offset + bytes). Any reader thread. May block for
     * staging memory.
     */
    int (*reserve)(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                   struct sl_place *place, struct sl_err *err);
    /** The same for bytes that come as fast as their source likes, so that they can be received
     * there: never blocks, and where there is no memory to spare place->memory is NULL, and there
     * is no place. NULL: places are file ranges, or soon to be filled. */
    int (*lend)(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                struct sl_place *place, struct sl_err *err);
    /** The place is filled; it is the sink's again, and so it is after abandon(), where it is not.
     */
    int (*commit)(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err);
    void (*abandon)(struct sl_sink *sink, const struct sl_place *place);
    /** Read committed bytes back, for hashes that follow the commits and for resume. */
    int (*read)(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                struct sl_err *err);
    /**
     * Have the system find the files' memory, in their order, a piece at a time and as long as
     * more(arg) says so: time that writing need not take later. Where it cannot, nothing happens:
     * writing will tell. Any one thread beside the readers. NULL: there is nothing to find.
     */
    void (*allocate)(struct sl_sink *sink, bool (*more)(const void *arg), const void *arg);
    /** Everything is committed: make it final (modes, times), still under its staging name. NULL:
     * there is nothing to do. */
    int (*finish)(struct sl_sink *sink, struct sl_err *err);
    void (*close)(struct sl_sink *sink);
};
struct sl_sink {
    const struct sl_sink_ops *ops;
    const struct sl_sink_file *files; /* borrowed until it is freed */
    size_t file_count;
};

/* The same as the ops, with arguments checked. */

/**
 * Make a place for bytes [offset, offset + bytes) of a file.
 *
 * @file    its number among sink->files.
 * @offset  where the bytes go; all of them lie within the file.
 * @bytes   at least 1.
 * @place   out: the caller's until sl_sink_commit() or sl_sink_abandon().
 * @return  0, or -1.
 *
 * May block for staging memory.
 */
int sl_sink_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                    struct sl_place *place, struct sl_err *err);
/**
 * As sl_sink_reserve(), but it never blocks: bytes that come as fast as their source likes can be
 * received there.
 *
 * @place   out: if its memory is NULL, nothing was lent: do not commit or abandon it.
 */
int sl_sink_lend(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                 struct sl_place *place, struct sl_err *err);
/** Whether it has memory to lend at all. */
bool sl_sink_lends(const struct sl_sink *sink);
int sl_sink_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err);
void sl_sink_abandon(struct sl_sink *sink, const struct sl_place *place);
/**
 * Read committed bytes back.
 *
 * @file         its number among sink->files.
 * @offset       of the first of them.
 * @data, bytes  out: as many; 0 is fine.
 * @return       0, or -1.
 */
int sl_sink_read(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                 struct sl_err *err);
void sl_sink_allocate(struct sl_sink *sink, bool (*more)(const void *arg), const void *arg);
int sl_sink_finish(struct sl_sink *sink, struct sl_err *err);
void sl_sink_free(struct sl_sink *sink);
SL_AUTO_DEFINE(sl_sink)

/** `sink.tmpfs`; rows in tmpfs.c. */
struct sl_tmpfs_options {
    char *path;
    int layout; /* enum sl_sink_layout */
    uint64_t shard_bytes;
    uint64_t align_bytes;
    int replace;         /* 0 keep-old (default), 1 free-first */
    char *owner, *group; /* numeric ids; NULL: leave */
};
/** How a plan's files are made. SL_LAYOUT_SLABS is not a choice of a spec: the pool asks for it. */
enum sl_sink_layout {
    SL_LAYOUT_VERBATIM,
    SL_LAYOUT_SAFETENSORS,
    SL_LAYOUT_TENSORIZER,
    SL_LAYOUT_HF_CACHE, /* verbatim, in other folders: a plan's output says so by itself */
    SL_LAYOUT_SLABS,
};
/** Are its files the objects as they are? */
static inline bool sl_sink_layout_is_whole(int layout)
{
    return layout == SL_LAYOUT_VERBATIM || layout == SL_LAYOUT_HF_CACHE;
}
extern const struct sl_option_table sl_tmpfs_table;

/**
 * Open files below a staging directory: made, or opened as a killed load left them, without
 * following links, and set to their full size; the first of many now, the others when they are used
 * or finished.
 *
 * @directory_fd  the staging directory; borrowed until the free.
 * @files         `count` of them; borrowed until the free.
 * @options       owner and group that finish() gives the files to; NULL: as they are.
 * @return        NULL: SL_E_NO_SPACE with what to do; SL_E_USAGE for an id that is not a number.
 */
struct sl_sink *sl_tmpfs_open(int directory_fd, const struct sl_sink_file *files, size_t count,
                              const struct sl_tmpfs_options *options, struct sl_err *err);
/**
 * Read owner and group of the options as numbers.
 *
 * @owner, group  out: UINT32_MAX leaves as it is.
 * @return        0, or -1 with SL_E_USAGE if one is not a number.
 */
int sl_tmpfs_owner(const struct sl_tmpfs_options *options, uint32_t *owner, uint32_t *group,
                   struct sl_err *err);
/** Files as memory of this process: the sink's suite of tests and digests. Place is memory.
 * SL_E_NO_SPACE. */
struct sl_sink *sl_heap_open(const struct sl_sink_file *files, size_t count, struct sl_err *err);
/** A file's bytes; the sink's. */
const uint8_t *sl_heap_data(const struct sl_sink *sink, uint32_t file);

/**
 * Judge a name from a listing or an index as a path below the destination: no empty, "." or ".."
 * component, not absolute, no NUL (bytes counted), no backslash, no control characters, components
 * <= 255 bytes, whole <= 1024, none of ours (own_names.h). SL_E_FORMAT, code "E_NAME", quoting it.
 */
int sl_name_check(const char *name, size_t bytes, struct sl_err *err);

#endif
