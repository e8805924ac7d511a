/*
 * The journal: a head, a range for each change, their bytes, and the SHA-256 of all that. It is
 * renamed to its name when it is complete and on the disk.
 *
 * Whose it is. Anybody may have put a file of this name there: the author of a model that was
 * copied, another user of the folder. A journal counts if it can only have been written here, for
 * this file, by who may write to it:
 *
 *   it names its own inode and birth time, and those of the file. A copy has others, and a birth
 *   time cannot be set, nor told beforehand: it is that of the kernel's clock, in nanoseconds;
 *   it is a regular file of the file's owner or of who asks, and nobody else may write to it;
 *   neither has another name, so neither was linked here from elsewhere;
 *   both lie on one device. Its number is not written down: after a start of the machine a file
 *   system may have another. The change time is not either: the edit itself changes it, and who
 *   may do no more than chmod() shall not spoil what is to be completed.
 *
 * All else is passed over with a warning. Where births are not told (old kernels, some networks),
 * where inodes are numbered anew by each mount, or where the file has another name, files are not
 * changed where they lie at all.
 *
 * How far it is. The last of the eight bytes is first to be written, alone, as 0xff, and synced;
 * then the other seven become the random rest of the mark, the changes follow, then the seven as
 * they shall be; when all that is synced the last byte follows, alone. So one byte that cannot be
 * torn says whether the file is between its contents: with 0xff there no reader takes it for a
 * model, and what any reader takes for one is never changed. The other seven are compared each with
 * what stood there, the mark and what shall stand there: no others are left by a write that was cut
 * off. If they agree the change is carried out again from its begin, which is right from every
 * point of it; if they do not, another program has written to the file, and the journal is dropped.
 */
#include "file_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "buf.h"
#include "exact_io.h"
#include "hash.h"
#include "log.h"

enum {
    COPY_BYTES = 1 << 20,
    RANGES_MAX = 1 << 22,
    DIGEST_BYTES = 32,
    LAST = SL_FILE_SEAL_BYTES - 1,
    OPEN = 0xff, /* the last byte of a file that is between its contents */
    EXFAT_MAGIC = 0x2011bab0,
};
static const char magic[16] = "sluice-edit 2\n", earlier_magic[16] = "sluice-edit 1\n";

struct range {
    uint64_t at, bytes;
    const uint8_t *data; /* while it is made; NULL when it was read */
};
struct identity {
    uint8_t inode[8], birth_seconds[8], birth_ns[8];
};
struct head {
    char magic[16];
    uint8_t journal_bytes[8], old_bytes[8], file_bytes[8], seal[8], count[8];
    uint8_t before[SL_FILE_SEAL_BYTES], mark[SL_FILE_SEAL_BYTES], final[SL_FILE_SEAL_BYTES];
    struct identity file, journal;
};
struct journal {
    uint64_t old_bytes, file_bytes, seal; /* of the contents; where the eight bytes are */
    uint8_t before[SL_FILE_SEAL_BYTES], mark[SL_FILE_SEAL_BYTES], final[SL_FILE_SEAL_BYTES];
    struct identity file; /* what is changed */
    struct range *ranges;
    size_t count, capacity;
    uint8_t digest[DIGEST_BYTES];
    int fd;
};

static void journal_release(struct journal *journal)
{
    free(journal->ranges);
    sl_autoclose_(&journal->fd);
}

/* false: nothing here tells this file from a copy for good. */
static bool identify(int fd, struct identity *identity)
{
    struct statx info;
    struct statfs system;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &info) < 0 ||
        !(info.stx_mask & STATX_BTIME) || info.stx_btime.tv_sec == 0 || fstatfs(fd, &system) < 0 ||
        system.f_type == MSDOS_SUPER_MAGIC || (uint32_t)system.f_type == EXFAT_MAGIC)
        return false;
    sl_put_le64(identity->inode, info.stx_ino);
    sl_put_le64(identity->birth_seconds, (uint64_t)info.stx_btime.tv_sec);
    sl_put_le64(identity->birth_ns, info.stx_btime.tv_nsec);
    return true;
}

static uint64_t data_begin(const struct journal *journal)
{
    return sizeof(struct head) + journal->count * 16;
}

/* ---- written --------------------------------------------------------------------------------- */

static int add_range(struct journal *journal, uint64_t at, const uint8_t *data, uint64_t bytes,
                     struct sl_err *err)
{
    if (!bytes)
        return 0;
    if (sl_grow(&journal->ranges, &journal->capacity, journal->count + 1, sizeof(struct range),
                err) < 0)
        return -1;
    journal->ranges[journal->count++] = (struct range){at, bytes, data};
    return 0;
}

/* Data but for the eight bytes, which are the last to be written. */
static int add_piece(struct journal *journal, uint64_t at, const struct sl_file_piece *piece,
                     struct sl_err *err)
{
    uint64_t end = at + piece->bytes, seal = journal->seal, seal_end = seal + SL_FILE_SEAL_BYTES;
    if (end <= seal || at >= seal_end)
        return add_range(journal, at, piece->data, piece->bytes, err);
    uint64_t from = SL_MAX(at, seal), to = SL_MIN(end, seal_end);
    memcpy(journal->final + (from - seal), piece->data + (from - at), to - from);
    if (add_range(journal, at, piece->data, from - at, err) < 0)
        return -1;
    return add_range(journal, to, piece->data + (to - at), end - to, err);
}

static int collect(struct journal *journal, const struct sl_file_place *place,
                   const struct sl_file_content *content, struct sl_err *err)
{
    struct stat info;
    journal->seal = content->seal;
    if (fstat(place->fd, &info) < 0 ||
        sl_read_at(place->fd, journal->before, SL_FILE_SEAL_BYTES, content->seal) < 0 ||
        getrandom(journal->mark, LAST, 0) != LAST)
        return sl_file_edit_fail(place, errno, err);
    journal->mark[LAST] = OPEN;
    journal->old_bytes = (uint64_t)info.st_size;
    memcpy(journal->final, journal->before, SL_FILE_SEAL_BYTES);
    for (size_t i = 0; i < content->count; i++) {
        const struct sl_file_piece *piece = &content->pieces[i];
        if (piece->data && add_piece(journal, journal->file_bytes, piece, err) < 0)
            return -1;
        journal->file_bytes += piece->bytes;
    }
    return 0;
}

static int put(struct journal *journal, struct sl_sha256 *sha, const void *data, uint64_t bytes)
{
    sl_sha256_update(sha, data, bytes);
    return sl_write_all(journal->fd, data, bytes);
}

static int write_out(struct journal *journal, const struct identity *self, struct sl_sha256 *sha)
{
    struct head head = {.file = journal->file, .journal = *self};
    uint64_t bytes = data_begin(journal) + DIGEST_BYTES;
    for (size_t i = 0; i < journal->count; i++)
        bytes += journal->ranges[i].bytes;
    memcpy(head.magic, magic, sizeof(magic));
    memcpy(head.before, journal->before, sizeof(head.before));
    memcpy(head.mark, journal->mark, sizeof(head.mark));
    memcpy(head.final, journal->final, sizeof(head.final));
    sl_put_le64(head.journal_bytes, bytes);
    sl_put_le64(head.old_bytes, journal->old_bytes);
    sl_put_le64(head.file_bytes, journal->file_bytes);
    sl_put_le64(head.seal, journal->seal);
    sl_put_le64(head.count, journal->count);
    int done = put(journal, sha, &head, sizeof(head));
    for (size_t i = 0; i < journal->count && done == 0; i++) {
        uint8_t row[16];
        sl_put_le64(row, journal->ranges[i].at);
        sl_put_le64(row + 8, journal->ranges[i].bytes);
        done = put(journal, sha, row, sizeof(row));
    }
    for (size_t i = 0; i < journal->count && done == 0; i++)
        done = put(journal, sha, journal->ranges[i].data, journal->ranges[i].bytes);
    sl_sha256_finish(sha, journal->digest);
    return done < 0 ? -1 : sl_write_all(journal->fd, journal->digest, DIGEST_BYTES);
}

/* Who may read the file sees what is become of it. */
static int let_readers(const struct sl_file_place *place, int fd)
{
    struct stat file, own;
    if (fstat(place->fd, &file) < 0 || fstat(fd, &own) < 0)
        return -1;
    mode_t readers = file.st_mode & (own.st_gid == file.st_gid ? 0044 : 0004);
    return fchmod(fd, 0600 | readers);
}

static int write_journal(struct journal *journal, struct sl_file_place *place, struct sl_err *err)
{
    struct identity self;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha || (journal->fd = sl_file_edit_create(place, err)) < 0)
        return -1;
    bool known = identify(journal->fd, &self);
    if (!known || let_readers(place, journal->fd) < 0 || write_out(journal, &self, sha) < 0) {
        sl_file_edit_fail(place, known ? errno : EOPNOTSUPP, err);
        unlinkat(place->folder, place->fresh, 0);
        return -1;
    }
    return sl_file_edit_name(place, journal->fd, place->journal, err);
}

/* ---- done ------------------------------------------------------------------------------------ */

static int sync_file(const struct sl_file_place *place)
{
    return fsync(place->fd) < 0 && errno != EINVAL && errno != EROFS ? -1 : 0;
}

static int copy_range(const struct sl_file_place *place, const struct journal *journal,
                      uint64_t from, const struct range *range, uint8_t *buffer)
{
    for (uint64_t done = 0; done < range->bytes;) {
        size_t bytes = SL_MIN(range->bytes - done, (uint64_t)COPY_BYTES);
        if (sl_read_at(journal->fd, buffer, bytes, from + done) < 0 ||
            sl_write_at(place->fd, buffer, bytes, range->at + done) < 0)
            return -1;
        done += bytes;
    }
    return 0;
}

/* The last range waits for the others: it may be what makes an archive of them. */
static int apply_ranges(const struct sl_file_place *place, const struct journal *journal,
                        uint8_t *buffer)
{
    uint64_t from = data_begin(journal);
    for (size_t i = 0; i < journal->count; i++) {
        if (i > 0 && i + 1 == journal->count && sync_file(place) < 0)
            return -1;
        if (copy_range(place, journal, from, &journal->ranges[i], buffer) < 0)
            return -1;
        from += journal->ranges[i].bytes;
    }
    return ftruncate(place->fd, (off_t)journal->file_bytes);
}

static int remove_journal(const struct sl_file_place *place, struct sl_err *err)
{
    if (unlinkat(place->folder, place->journal, 0) < 0)
        return sl_file_edit_fail(place, errno, err);
    return 0;
}

/* The last of the eight bytes, alone. */
static int write_last(const struct sl_file_place *place, const struct journal *journal,
                      uint8_t byte)
{
    if (sl_write_at(place->fd, &byte, 1, journal->seal + LAST) < 0)
        return -1;
    return sync_file(place);
}

/* Again and again the same, however far it came before. */
static int apply(const struct sl_file_place *place, const struct journal *journal,
                 struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc(COPY_BYTES, err);
    if (!buffer)
        return -1;
    if (sl_write_at(place->fd, journal->mark, LAST, journal->seal) < 0 ||
        apply_ranges(place, journal, buffer) < 0 ||
        sl_write_at(place->fd, journal->final, LAST, journal->seal) < 0 || sync_file(place) < 0 ||
        write_last(place, journal, journal->final[LAST]) < 0)
        return sl_fail_errno(
            err, SL_E_NO_SPACE, errno,
            "the change of '%s' is kept, but not complete: make room, and complete "
            "it with 'sluice inspect --complete-edit'",
            place->path);
    return remove_journal(place, err);
}

/* From here on the new content counts. */
static int begin(const struct sl_file_place *place, const struct journal *journal,
                 struct sl_err *err)
{
    struct sl_err ignored = SL_ERR_INIT;
    /* So that there is room for it. Not all file systems can, and the length must not change. */
    if (journal->old_bytes < journal->file_bytes &&
        fallocate(place->fd, FALLOC_FL_KEEP_SIZE, (off_t)journal->old_bytes,
                  (off_t)(journal->file_bytes - journal->old_bytes)) < 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        sl_file_edit_fail(place, errno, err);
    else if (write_last(place, journal, OPEN) == 0)
        return 0;
    else
        sl_file_edit_fail(place, errno, err);
    /* What stood there, and nothing has happened. */
    if (sl_write_at(place->fd, &journal->before[LAST], 1, journal->seal + LAST) == 0)
        remove_journal(place, &ignored);
    return -1;
}

/* Could a journal beside this file be believed, and have the place? */
static bool may_run(struct sl_file_place *place, struct journal *journal)
{
    struct stat info;
    return fstat(place->fd, &info) == 0 && info.st_nlink == 1 &&
           identify(place->fd, &journal->file) && journal->before[LAST] != OPEN &&
           journal->final[LAST] != OPEN && sl_file_place_clear(place, place->journal);
}

int sl_file_journal_run(struct sl_file_place *place, const struct sl_file_content *content,
                        struct sl_err *err)
{
    struct journal journal = {.fd = -1};
    int done = collect(&journal, place, content, err);
    if (done == 0 && !may_run(place, &journal))
        done = 1;
    if (done == 0)
        done = write_journal(&journal, place, err);
    if (done == 0)
        done = begin(place, &journal, err);
    if (done == 0)
        done = apply(place, &journal, err);
    journal_release(&journal);
    return done;
}

/* ---- found ----------------------------------------------------------------------------------- */

/* NULL if nobody but who may write to the file can have written the journal; else what is wrong. */
static const char *doubt(const struct sl_file_place *place, int fd)
{
    struct stat journal, file;
    if (fstat(fd, &journal) < 0 || fstat(place->fd, &file) < 0 || !S_ISREG(journal.st_mode))
        return "it is not a regular file";
    if (journal.st_uid != file.st_uid && journal.st_uid != geteuid())
        return "it belongs to another user";
    if (journal.st_mode & 0022)
        return "others can write to it";
    if (journal.st_nlink != 1 || file.st_nlink != 1)
        return "it, or the file, is a hard link";
    return journal.st_dev == file.st_dev ? NULL : "it is on another device";
}

static bool is_same(const struct identity *a, const struct identity *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Into the journal, what its head says; NULL, or what is wrong with it. */
static const char *take_head(const struct sl_file_place *place, struct journal *journal)
{
    struct head head;
    struct identity self, file;
    const char *why = doubt(place, journal->fd);
    if (why)
        return why;
    if (sl_read_at(journal->fd, &head, sizeof(head), 0) < 0)
        return "it is not a journal";
    if (memcmp(head.magic, earlier_magic, sizeof(magic)) == 0)
        return "an earlier version of sluice wrote it: if the file cannot be read, open it with "
               "that version, else remove the journal";
    if (memcmp(head.magic, magic, sizeof(magic)) != 0)
        return "it is not a journal";
    if (!identify(journal->fd, &self) || !identify(place->fd, &file) ||
        !is_same(&self, &head.journal) || !is_same(&file, &head.file))
        return "it is a copy, or of another file";
    journal->old_bytes = sl_get_le64(head.old_bytes);
    journal->file_bytes = sl_get_le64(head.file_bytes);
    journal->seal = sl_get_le64(head.seal);
    journal->count = sl_get_le64(head.count);
    memcpy(journal->before, head.before, sizeof(head.before));
    memcpy(journal->mark, head.mark, sizeof(head.mark));
    memcpy(journal->final, head.final, sizeof(head.final));
    return NULL;
}

/* Open a journal that counts, and take its head: false if there is none. */
static bool find(const struct sl_file_place *place, struct journal *journal)
{
    struct stat there;
    const char *why = "it is not a regular file";
    if (fstatat(place->folder, place->journal, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    if (S_ISREG(there.st_mode)) {
        journal->fd = openat(place->folder, place->journal,
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        why = journal->fd < 0 ? "it cannot be opened" : take_head(place, journal);
    }
    if (why)
        sl_log(SL_LOG_WARN, "'%s' beside '%s' is passed over: %s", place->journal, place->path,
               why);
    return !why;
}

static bool is_half(const struct sl_file_place *place, const struct journal *journal)
{
    struct stat info;
    uint8_t found[SL_FILE_SEAL_BYTES];
    uint64_t least = SL_MIN(journal->old_bytes, journal->file_bytes),
             most = SL_MAX(journal->old_bytes, journal->file_bytes);
    if (fstat(place->fd, &info) < 0 || (uint64_t)info.st_size < least ||
        (uint64_t)info.st_size > most ||
        sl_read_at(place->fd, found, sizeof(found), journal->seal) < 0 || found[LAST] != OPEN)
        return false;
    for (unsigned i = 0; i < LAST; i++)
        if (found[i] != journal->before[i] && found[i] != journal->mark[i] &&
            found[i] != journal->final[i])
            return false;
    return true;
}

bool sl_file_journal_is_half(const struct sl_file_place *place)
{
    struct journal journal = {.fd = -1};
    bool half = find(place, &journal) && is_half(place, &journal);
    journal_release(&journal);
    return half;
}

static int hash_journal(struct journal *journal, uint64_t bytes, bool *agrees, struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    sl_autofree uint8_t *buffer = sl_alloc(COPY_BYTES, err);
    uint8_t stored[DIGEST_BYTES];
    if (!sha || !buffer)
        return -1;
    uint64_t end = bytes - DIGEST_BYTES;
    int done = sl_read_at(journal->fd, stored, sizeof(stored), end);
    for (uint64_t at = 0; at < end && done == 0;) {
        size_t some = SL_MIN(end - at, (uint64_t)COPY_BYTES);
        done = sl_read_at(journal->fd, buffer, some, at);
        sl_sha256_update(sha, buffer, some);
        at += some;
    }
    sl_sha256_finish(sha, journal->digest);
    *agrees = done == 0 && memcmp(stored, journal->digest, DIGEST_BYTES) == 0;
    return 0;
}

/* Its hash agrees, so it is what was written; limits are checked all the same. */
static int read_ranges(struct journal *journal, uint64_t bytes, bool *agrees, struct sl_err *err)
{
    uint64_t left = bytes - data_begin(journal) - DIGEST_BYTES, at = sizeof(struct head);
    size_t count = journal->count;
    for (journal->count = 0; journal->count < count && *agrees; at += 16) {
        uint8_t row[16];
        *agrees = sl_read_at(journal->fd, row, sizeof(row), at) == 0;
        uint64_t place = sl_get_le64(row), length = sl_get_le64(row + 8), end;
        *agrees = *agrees && length && length <= left &&
                  !__builtin_add_overflow(place, length, &end) && end <= journal->file_bytes;
        left -= *agrees ? length : 0;
        if (*agrees && add_range(journal, place, NULL, length, err) < 0)
            return -1;
    }
    *agrees = *agrees && left == 0;
    return 0;
}

/* The rest of it, behind its head. */
static int read_rest(struct journal *journal, bool *agrees, struct sl_err *err)
{
    struct stat info;
    uint8_t said[8];
    *agrees =
        fstat(journal->fd, &info) == 0 &&
        info.st_size > (off_t)(sizeof(struct head) + DIGEST_BYTES) &&
        sl_read_at(journal->fd, said, sizeof(said), offsetof(struct head, journal_bytes)) == 0 &&
        sl_get_le64(said) == (uint64_t)info.st_size;
    uint64_t bytes = *agrees ? (uint64_t)info.st_size : 0;
    *agrees = *agrees && journal->file_bytes <= INT64_MAX && journal->count <= RANGES_MAX &&
              journal->count * 16 <= bytes - sizeof(struct head) - DIGEST_BYTES;
    if (*agrees && hash_journal(journal, bytes, agrees, err) < 0)
        return -1;
    return *agrees ? read_ranges(journal, bytes, agrees, err) : 0;
}

static int complete(const struct sl_file_place *place, struct journal *journal, struct sl_err *err)
{
    bool agrees;
    if (!is_half(place, journal))
        return remove_journal(place, err);
    if (read_rest(journal, &agrees, err) < 0)
        return -1;
    if (agrees)
        return apply(place, journal, err);
    return sl_fail(err, SL_E_INTEGRITY,
                   "the journal '%s' beside '%s' is damaged: store the file again, and remove the "
                   "journal",
                   place->journal, place->path);
}

int sl_file_journal_complete(const struct sl_file_place *place, struct sl_err *err)
{
    struct journal journal = {.fd = -1};
    int done = find(place, &journal) ? complete(place, &journal, err) : 0;
    journal_release(&journal);
    return done;
}
