/* Whether published files are still as their manifest says. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"
#include "publish_parts.h"

int sl_published_hash(int root_fd, const struct sl_published_file *file, uint8_t *buffer,
                      struct sl_cancel *cancel, bool *good, struct sl_err *err)
{
    const char *leaf;
    sl_autoclose int folder = sl_tree_parent(root_fd, file->name, false, &leaf);
    sl_autoclose int fd =
        folder < 0 ? -1 : openat(folder, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    uint32_t crc = 0;
    *good = false;
    if (fd < 0 && !sl_tree_is_gone(errno))
        return sl_tree_fail(err, errno, "open", file->name);
    if (fd < 0 || fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size != file->bytes)
        return 0;
    for (uint64_t at = 0; at < file->bytes;) {
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        ssize_t got = pread(fd, buffer, SL_HASH_BUFFER_BYTES, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_fail_errno(err, SL_E_INTEGRITY, errno, "cannot read '%s'", file->name);
        if (got == 0)
            return 0;
        crc = sl_crc32c(crc, buffer, (size_t)got);
        at += (uint64_t)got;
    }
    *good = crc == file->crc32c;
    return 0;
}

int sl_published_check(int root_fd, int staging_fd, const struct sl_published *published,
                       struct sl_cancel *cancel, struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, SL_HASH_BUFFER_BYTES, err);
    if (!buffer)
        return -1;
    for (size_t i = 0; i < published->count; i++) {
        bool good = false;
        if (staging_fd >= 0 &&
            sl_published_hash(staging_fd, &published->files[i], buffer, cancel, &good, err) < 0)
            return -1;
        if (!good &&
            sl_published_hash(root_fd, &published->files[i], buffer, cancel, &good, err) < 0)
            return -1;
        if (!good)
            return sl_fail(err, SL_E_INTEGRITY,
                           "the machine was restarted since it was written, and '%s' does not "
                           "match its CRC32C of the manifest",
                           published->files[i].name);
    }
    return 0;
}
