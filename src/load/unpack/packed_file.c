/* What it is packed with is seen by its first bytes; packed_stream.h unpacks it. */
#include "packed_file.h"

#include <errno.h>
#include <unistd.h>

#include "packed_stream.h"
#include "tar.h"

enum { INPUT_BYTES = 256 * 1024 };

struct sl_packed_file {
    int fd;
    uint64_t offset, bytes;
    struct sl_packed_stream *stream; /* NULL: it is not packed */
    size_t used, have;               /* of the input */
    uint8_t input[INPUT_BYTES];
};

/* Straight from the file; less than asked for only at its end. */
static int read_raw(struct sl_packed_file *file, void *data, size_t bytes, size_t *got,
                    struct sl_err *err)
{
    *got = 0;
    bytes = (size_t)SL_MIN((uint64_t)bytes, file->bytes - file->offset);
    while (*got < bytes) {
        ssize_t came = pread(file->fd, (uint8_t *)data + *got, bytes - *got, (off_t)file->offset);
        if (came < 0 && errno == EINTR)
            continue;
        if (came <= 0)
            return sl_fail_errno(err, SL_E_NO_SPACE, came < 0 ? errno : EIO,
                                 "cannot read the archive back");
        *got += (size_t)came;
        file->offset += (uint64_t)came;
    }
    return 0;
}

static struct sl_packed_stream *open_stream(const char *packing, struct sl_err *err)
{
    enum sl_packing kind;
    if (sl_packing_find(packing, &kind))
        return sl_packed_stream_new(kind, err);
    sl_fail_code(err, SL_E_FORMAT, "archive.packing",
                 "the archive is packed with %s: pack it with gzip or zstd, or store the files by "
                 "themselves",
                 packing);
    return NULL;
}

struct sl_packed_file *sl_packed_file_open(int fd, uint64_t bytes, struct sl_err *err)
{
    SL_AUTO(sl_packed_file) file = sl_alloc(sizeof(*file), err);
    uint8_t head[6];
    size_t got;
    if (!file)
        return NULL;
    file->fd = fd;
    file->bytes = bytes;
    if (read_raw(file, head, sizeof(head), &got, err) < 0)
        return NULL;
    file->offset = 0;
    const char *packing = sl_tar_packing(head, got);
    file->stream = packing ? open_stream(packing, err) : NULL;
    return packing && !file->stream ? NULL : sl_steal(&file);
}

void sl_packed_file_free(struct sl_packed_file *file)
{
    if (file)
        sl_packed_stream_free(file->stream);
    free(file);
}

uint64_t sl_packed_file_offset(const struct sl_packed_file *file)
{
    return file->offset;
}

/* More packed bytes, where the ones before are used up; none at the end. */
static int feed(struct sl_packed_file *file, struct sl_err *err)
{
    file->used = 0;
    return read_raw(file, file->input, sizeof(file->input), &file->have, err);
}

int sl_packed_file_read(struct sl_packed_file *file, void *data, size_t bytes, size_t *got,
                        struct sl_err *err)
{
    if (!file->stream)
        return read_raw(file, data, bytes, got, err);
    *got = 0;
    while (*got < bytes) {
        size_t taken, came;
        if (sl_packed_stream_run(file->stream, file->input + file->used, file->have - file->used,
                                 &taken, (uint8_t *)data + *got, bytes - *got, &came, err) < 0)
            return sl_wrap(err, "the archive");
        file->used += taken;
        *got += came;
        if (taken || came)
            continue;
        if (feed(file, err) < 0)
            return -1;
        if (file->have == 0)
            return sl_packed_stream_end(file->stream, err) < 0 ? sl_wrap(err, "the archive") : 0;
    }
    return 0;
}
