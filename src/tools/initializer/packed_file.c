/*
 * zlib checks each member's CRC32 and length; members may follow one another, as `cat a.gz b.gz`
 * and parallel packers make them. Zero bytes behind the last one are padding of tapes and blocks,
 * anything else is something that was appended.
 */
#include "packed_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "buf.h"
#include "tar.h"

enum { INPUT_BYTES = 256 * 1024 };

struct sl_packed_file {
    int fd;
    uint64_t offset, bytes;
    z_stream gzip;
    bool is_gzip, started, between; /* between: a member has ended */
    uint8_t input[INPUT_BYTES];
};

static int broken(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "gzip", "the archive cannot be unpacked: %s", why);
}

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
    file->is_gzip = packing && strcmp(packing, "gzip") == 0;
    if (packing && !file->is_gzip) {
        sl_fail_code(err, SL_E_FORMAT, "archive.packing",
                     "the archive is packed with %s: pack it with gzip, or store the files by "
                     "themselves",
                     packing);
        return NULL;
    }
    if (file->is_gzip && inflateInit2(&file->gzip, 16 + MAX_WBITS) != Z_OK) {
        sl_fail(err, SL_E_NO_SPACE, "out of memory for unpacking");
        return NULL;
    }
    file->started = file->is_gzip;
    return sl_steal(&file);
}

void sl_packed_file_free(struct sl_packed_file *file)
{
    if (file && file->started)
        inflateEnd(&file->gzip);
    free(file);
}

uint64_t sl_packed_file_offset(const struct sl_packed_file *file)
{
    return file->offset;
}

/* More packed bytes, if there are none left; *end: the file is at its end. */
static int feed(struct sl_packed_file *file, bool *end, struct sl_err *err)
{
    size_t got = file->gzip.avail_in;
    if (got == 0) {
        if (read_raw(file, file->input, sizeof(file->input), &got, err) < 0)
            return -1;
        file->gzip.next_in = file->input;
        file->gzip.avail_in = (unsigned)got;
    }
    *end = got == 0;
    return 0;
}

/* Behind a member: the next one begins, or padding goes on to the end. */
static int pass_member(struct sl_packed_file *file, bool *end, struct sl_err *err)
{
    while (feed(file, end, err) == 0) {
        if (*end)
            return 0;
        if (*file->gzip.next_in == 0x1f) {
            file->between = false;
            return inflateReset(&file->gzip) == Z_OK ? 0 : broken(err, "out of memory");
        }
        if (*file->gzip.next_in)
            return broken(err, "something follows its end");
        file->gzip.next_in++;
        file->gzip.avail_in--;
    }
    return -1;
}

int sl_packed_file_read(struct sl_packed_file *file, void *data, size_t bytes, size_t *got,
                        struct sl_err *err)
{
    if (!file->is_gzip)
        return read_raw(file, data, bytes, got, err);
    *got = 0;
    while (*got < bytes) {
        bool end = false;
        if (file->between && pass_member(file, &end, err) < 0)
            return -1;
        if (end)
            return 0;
        if (feed(file, &end, err) < 0)
            return -1;
        if (end)
            return broken(err, "it is cut off: store it again");
        file->gzip.next_out = (uint8_t *)data + *got;
        file->gzip.avail_out = (unsigned)SL_MIN(bytes - *got, (size_t)1 << 30);
        unsigned room = file->gzip.avail_out;
        int state = inflate(&file->gzip, Z_NO_FLUSH);
        *got += room - file->gzip.avail_out;
        if (state == Z_MEM_ERROR)
            return sl_fail(err, SL_E_NO_SPACE, "out of memory for unpacking");
        if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
            return broken(err, file->gzip.msg ? file->gzip.msg : "its gzip data are wrong");
        file->between = state == Z_STREAM_END;
    }
    return 0;
}
