/* Every entry of a tar, made where it belongs. */
#include "packed_file.h"
#include "tar.h"
#include "unpack.h"

enum {
    COPY_BYTES = 256 * 1024,
    EAT_BYTES = 4 * 1024 * 1024, /* at a time */
    HEADERS_BYTES_MAX = 1024 * 1024 * 1024
};

struct untar {
    struct sl_packed_file *file;
    struct sl_unpack *unpack;
    struct sl_tar *tar;
    uint8_t *buffer;                     /* COPY_BYTES */
    uint64_t read_bytes, read_bytes_max; /* headers, data and what lies between */
    int fd;
    uint64_t eaten; /* of its file */
};

static void eat(struct untar *untar)
{
    uint64_t offset = sl_packed_file_offset(untar->file) / EAT_BYTES * EAT_BYTES;
    if (offset <= untar->eaten)
        return;
    sl_unpack_eaten(untar->unpack, untar->fd, untar->eaten, offset);
    untar->eaten = offset;
}

/* sl_tar_input.read: what is passed over is read, since gzip has no other way. */
static int read_some(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err)
{
    struct untar *untar = arg;
    *got = 0;
    while (*got < bytes) {
        size_t came, part = (size_t)SL_MIN(bytes - *got, (uint64_t)COPY_BYTES);
        untar->read_bytes += part;
        if (untar->read_bytes > untar->read_bytes_max)
            return sl_fail_code(err, SL_E_FORMAT, "archive.ratio",
                                "the archive unpacks to far more than its own size");
        eat(untar);
        if (sl_packed_file_read(untar->file, data ? (uint8_t *)data + *got : untar->buffer, part,
                                &came, err) < 0)
            return -1;
        *got += came;
        if (came < part)
            return 0;
    }
    return 0;
}

static int take_file(struct untar *untar, const struct sl_tar_entry *entry, struct sl_err *err)
{
    uint64_t left = entry->bytes;
    if (sl_unpack_begin(untar->unpack, entry->name, entry->name_bytes, left, entry->executable,
                        err) < 0)
        return -1;
    sl_unpack_date(untar->unpack, entry->seconds);
    while (left) {
        size_t part = (size_t)SL_MIN(left, (uint64_t)COPY_BYTES);
        if (sl_tar_read(untar->tar, untar->buffer, part, err) < 0 ||
            sl_unpack_write(untar->unpack, untar->buffer, part, err) < 0)
            return -1;
        left -= part;
    }
    return sl_unpack_end(untar->unpack, err);
}

static int take_entry(struct untar *untar, const struct sl_tar_entry *entry, struct sl_err *err)
{
    struct sl_unpack *unpack = untar->unpack;
    switch (entry->kind) {
    case SL_TAR_FILE:
        return take_file(untar, entry, err);
    case SL_TAR_FOLDER:
        return sl_unpack_folder(unpack, entry->name, entry->name_bytes, err);
    case SL_TAR_HARD_LINK:
        return sl_unpack_hard_link(unpack, entry->name, entry->name_bytes, entry->link,
                                   entry->link_bytes, err);
    case SL_TAR_SYMLINK:
        return sl_unpack_symlink(unpack, entry->name, entry->name_bytes, entry->link,
                                 entry->link_bytes, err);
    default:
        return sl_tar_refuse(entry, err);
    }
}

/* To the end of the file, so that what gzip says of all of it is checked. */
static int drain(struct untar *untar, struct sl_err *err)
{
    uint64_t got;
    do {
        if (read_some(untar, NULL, COPY_BYTES, &got, err) < 0)
            return -1;
    } while (got);
    return 0;
}

static int read_entries(struct untar *untar, struct sl_err *err)
{
    struct sl_tar_entry entry;
    int more;
    bool any = false;
    while ((more = sl_tar_next(untar->tar, &entry, err)) > 0) {
        any = true;
        if (take_entry(untar, &entry, err) < 0)
            return -1;
    }
    if (more == 0 && !any)
        return sl_fail_code(err, SL_E_FORMAT, "tar", "the archive holds nothing");
    return more < 0 ? -1 : drain(untar, err);
}

int sl_untar(int fd, uint64_t bytes, struct sl_unpack *unpack, struct sl_err *err)
{
    struct untar untar = {
        .unpack = unpack, .fd = fd, .read_bytes_max = sl_unpack_limit(unpack) + HEADERS_BYTES_MAX};
    SL_AUTO(sl_packed_file) file = sl_packed_file_open(fd, bytes, err);
    sl_autofree uint8_t *buffer = file ? sl_alloc(COPY_BYTES, err) : NULL;
    SL_AUTO(sl_tar)
    tar = buffer ? sl_tar_new(&(struct sl_tar_input){read_some, &untar}, err) : NULL;
    untar.file = file;
    untar.buffer = buffer;
    untar.tar = tar;
    return tar ? read_entries(&untar, err) : -1;
}
