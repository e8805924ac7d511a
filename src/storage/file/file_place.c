/* Names beside a file that is changed where it lies: fresh files, and the names that they get. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_journal.h"

int sl_file_edit_fail(const struct sl_file_place *place, int number, struct sl_err *err)
{
    bool refused = number == EACCES || number == EPERM || number == EROFS;
    return sl_fail_errno(err, refused ? SL_E_AUTH : SL_E_NO_SPACE, number, "cannot change '%s'",
                         place->path);
}

int sl_file_fresh_name(const struct sl_file_place *place, char name[NAME_MAX + 1])
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return -1;
    snprintf(name, NAME_MAX + 1, ".%.200s.%016" PRIx64 SL_FILE_FRESH_SUFFIX, place->name, random);
    return 0;
}

/* A folder with something in it gets another name of ours. */
bool sl_file_place_clear(const struct sl_file_place *place, const char *name)
{
    char other[NAME_MAX + 1];
    if (unlinkat(place->folder, name, 0) == 0 || errno == ENOENT)
        return true;
    return errno == EISDIR && (unlinkat(place->folder, name, AT_REMOVEDIR) == 0 ||
                               (sl_file_fresh_name(place, other) == 0 &&
                                renameat(place->folder, name, place->folder, other) == 0));
}

/* Another name for the new file, where the usual one cannot be had. */
static int rename_fresh(struct sl_file_place *place, struct sl_err *err)
{
    char name[NAME_MAX + 1];
    if (sl_file_fresh_name(place, name) < 0)
        return sl_file_edit_fail(place, errno, err);
    char *other = sl_strdup(name, err);
    if (!other)
        return -1;
    free(place->fresh);
    place->fresh = other;
    return 0;
}

int sl_file_edit_create(struct sl_file_place *place, struct sl_err *err)
{
    struct stat file;
    if (!sl_file_place_clear(place, place->fresh) && rename_fresh(place, err) < 0)
        return -1;
    int fd = openat(place->folder, place->fresh, O_RDWR | O_CREAT | O_EXCL | SL_FILE_QUIET, 0600);
    if (fd >= 0 && fstat(place->fd, &file) == 0 &&
        (fchown(fd, file.st_uid, file.st_gid) == 0 || errno == EPERM))
        return fd;
    sl_file_edit_fail(place, errno, err);
    if (fd >= 0)
        unlinkat(place->folder, place->fresh, 0);
    sl_autoclose_(&fd);
    return -1;
}

int sl_file_edit_name(const struct sl_file_place *place, int fd, const char *name,
                      struct sl_err *err)
{
    if ((fsync(fd) < 0 && errno != EINVAL) ||
        renameat(place->folder, place->fresh, place->folder, name) < 0) {
        sl_file_edit_fail(place, errno, err);
        unlinkat(place->folder, place->fresh, 0);
        return -1;
    }
    fsync(place->folder); /* where it can be */
    return 0;
}
