/*
 * First as if there were room: then a run that is killed finds the archive whole. Only if there is
 * none, once more sparingly; a run that is killed then loads the archive again, since its mark of
 * being complete is taken away before.
 *
 * What is spared is gone: files of an earlier run, and the archive as it is read. So the archive is
 * read to its end before, its names, links, sizes and checksums judged, and its tree without
 * content held against what the destination has. What cannot be put there costs nothing.
 */
#include "archive_work.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "owners.h"
#include "unpack.h"

struct attempt {
    bool spare, hollow, full; /* full: it failed for lack of room */
    uint64_t files, bytes;
};

static int read_archive(const struct sl_archive_file *file, uint64_t bytes, struct sl_unpack *tree,
                        struct sl_err *err)
{
    int done = file->kind == SL_ARCHIVE_ZIP ? sl_unzip(file->fd, bytes, tree, err)
                                            : sl_untar(file->fd, bytes, tree, err);
    return done < 0 ? -1 : sl_unpack_finish(tree, err);
}

static int attempt(const struct sl_archive_work *work, const struct sl_archive_file *file,
                   struct attempt *what, struct sl_err *err)
{
    struct stat status;
    if (sl_destination_discard(work->destination, work->number, SL_WORK_FILES, err) < 0)
        return -1;
    sl_autoclose int into =
        sl_destination_open_work(work->destination, work->number, SL_WORK_FILES, err);
    if (into < 0)
        return -1;
    if (fstat(file->fd, &status) < 0 || !S_ISREG(status.st_mode))
        return sl_fail(err, SL_E_NOT_FOUND, "the archive is not a regular file");
    uint64_t bytes = (uint64_t)status.st_size;
    SL_AUTO(sl_unpack) tree = sl_unpack_new(into, work->to, bytes, work->cancel, err);
    if (!tree)
        return -1;
    if (what->hollow)
        sl_unpack_hollow(tree);
    if (what->spare)
        sl_unpack_over(tree, sl_destination_fd(work->destination));
    if (what->spare && file->own)
        sl_unpack_eat(tree);
    int done = read_archive(file, bytes, tree, err);
    what->full = sl_unpack_is_full(tree);
    what->files = sl_unpack_files(tree);
    what->bytes = sl_unpack_bytes(tree);
    return done;
}

static int judge(const struct sl_archive_work *work, const struct sl_archive_file *file,
                 struct sl_err *err)
{
    static const struct sl_ready ready = {.kind = SL_WORK_FILES};
    struct attempt hollow = {.hollow = true};
    return attempt(work, file, &hollow, err) < 0
               ? -1
               : sl_destination_judge_alone(work->destination, work->number, &ready, work->cancel,
                                            err);
}

static int attempt_sparing(const struct sl_archive_work *work, const struct sl_archive_file *file,
                           struct attempt *what, struct sl_err *err)
{
    struct sl_archive_file writable = *file;
    char path[64];
    if (judge(work, file, err) < 0)
        return -1;
    what->spare = true;
    if (!file->own)
        return attempt(work, file, what, err);
    sl_autoclose int into =
        sl_destination_open_work(work->destination, work->number, SL_WORK_LOAD, err);
    if (into < 0 || sl_owners_check_file(into, file->fd, file->name, err) < 0 ||
        sl_destination_spoil(work->destination, work->number, err) < 0)
        return -1;
    (void)fchmod(file->fd, 0600);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
    sl_autoclose int fd = open(path, O_RDWR | O_CLOEXEC);
    writable.own = fd >= 0;
    writable.fd = fd >= 0 ? fd : file->fd;
    return attempt(work, &writable, what, err);
}

int sl_archive_work_unpack(const struct sl_archive_work *work, const struct sl_archive_file *file,
                           uint64_t *files, uint64_t *bytes, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    struct attempt what = {0};
    int done = attempt(work, file, &what, &why);
    if (done < 0 && what.full) {
        why = (struct sl_err)SL_ERR_INIT;
        done = attempt_sparing(work, file, &what, &why);
    }
    *files = what.files;
    *bytes = what.bytes;
    if (done == 0)
        return 0;
    sl_destination_discard(work->destination, work->number, SL_WORK_FILES, NULL);
    *err = why;
    return sl_wrap(err, "'%.300s'", file->name);
}
