/*
 * The journal: a head, a range for each change, their bytes, and the SHA-256 of all that. It is
 * renamed to its name when it is complete and on the disk, so one that does not agree with its hash
 * is a damaged disk or a stranger's.
 *
 * The mark that stands in the file while it is changed is made of that hash. So a journal that was
 * left beside another file, or a later one, finds no mark there and does nothing.
 */
#include "file_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "exact_io.h"
#include "hash.h"

enum { COPY_BYTES = 1 << 20, RANGES_MAX = 1 << 22, DIGEST_BYTES = 32 };
static const char magic[16] = "sluice-edit 1\n";

struct range {
    uint64_t at, bytes;
    const uint8_t *data; /* while it is made; NULL when it was read */
};
struct head {
    char magic[16];
    uint8_t journal_bytes[8], file_bytes[8], seal[8], before[8], final[8], count[8];
};
struct journal {
    uint64_t file_bytes, seal; /* of the new content; where the eight bytes are */
    uint8_t before[SL_FILE_SEAL_BYTES], final[SL_FILE_SEAL_BYTES]; /* what stands there */
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

/* No model begins, and no archive ends, like this. */
static void mark_of(const struct journal *journal, uint8_t mark[SL_FILE_SEAL_BYTES])
{
    memcpy(mark, journal->digest, SL_FILE_SEAL_BYTES);
    mark[0] = mark[SL_FILE_SEAL_BYTES - 1] = 0xff;
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
    journal->seal = content->seal;
    if (sl_read_at(place->fd, journal->before, SL_FILE_SEAL_BYTES, content->seal) < 0)
        return sl_file_edit_fail(place, errno, err);
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

static int write_out(struct journal *journal, struct sl_sha256 *sha)
{
    struct head head;
    uint64_t bytes = data_begin(journal) + DIGEST_BYTES;
    for (size_t i = 0; i < journal->count; i++)
        bytes += journal->ranges[i].bytes;
    memcpy(head.magic, magic, sizeof(magic));
    memcpy(head.before, journal->before, sizeof(head.before));
    memcpy(head.final, journal->final, sizeof(head.final));
    sl_put_le64(head.journal_bytes, bytes);
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

static int write_journal(struct journal *journal, const struct sl_file_place *place,
                         struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha || (journal->fd = sl_file_edit_create(place, 0600, err)) < 0)
        return -1;
    if (write_out(journal, sha) < 0) {
        sl_file_edit_fail(place, errno, err);
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
    return ftruncate(place->fd, (off_t)journal->file_bytes) < 0 ? -1 : sync_file(place);
}

static int remove_journal(const struct sl_file_place *place, struct sl_err *err)
{
    if (unlinkat(place->folder, place->journal, 0) < 0)
        return sl_file_edit_fail(place, errno, err);
    return 0;
}

/* Again and again the same, however far it came before. */
static int apply(const struct sl_file_place *place, const struct journal *journal,
                 struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc(COPY_BYTES, err);
    if (!buffer)
        return -1;
    if (apply_ranges(place, journal, buffer) < 0 ||
        sl_write_at(place->fd, journal->final, SL_FILE_SEAL_BYTES, journal->seal) < 0 ||
        sync_file(place) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "the change of '%s' is kept, but not complete: make room and open it "
                             "again",
                             place->path);
    return remove_journal(place, err);
}

static int mark(const struct sl_file_place *place, const struct journal *journal,
                struct sl_err *err)
{
    struct stat info;
    uint8_t bytes[SL_FILE_SEAL_BYTES];
    mark_of(journal, bytes);
    /* So that there is room for it. Not all file systems can, and the length must not change. */
    if (fstat(place->fd, &info) == 0 && (uint64_t)info.st_size < journal->file_bytes &&
        fallocate(place->fd, FALLOC_FL_KEEP_SIZE, info.st_size,
                  (off_t)journal->file_bytes - info.st_size) < 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return sl_file_edit_fail(place, errno, err);
    if (sl_write_at(place->fd, bytes, sizeof(bytes), journal->seal) < 0 || sync_file(place) < 0)
        return sl_file_edit_fail(place, errno, err);
    return 0;
}

/* The mark could not be written: what stood there, and nothing has happened. */
static void unmark(const struct sl_file_place *place, const struct journal *journal)
{
    struct sl_err ignored = SL_ERR_INIT;
    if (sl_write_at(place->fd, journal->before, SL_FILE_SEAL_BYTES, journal->seal) == 0)
        remove_journal(place, &ignored);
}

int sl_file_journal_run(const struct sl_file_place *place, const struct sl_file_content *content,
                        struct sl_err *err)
{
    struct journal journal = {.fd = -1};
    int done = collect(&journal, place, content, err);
    if (done == 0)
        done = write_journal(&journal, place, err);
    if (done == 0 && (done = mark(place, &journal, err)) < 0)
        unmark(place, &journal);
    else if (done == 0)
        done = apply(place, &journal, err);
    journal_release(&journal);
    return done;
}

/* ---- found ----------------------------------------------------------------------------------- */

static int damaged(const struct sl_file_place *place, struct sl_err *err)
{
    return sl_fail(err, SL_E_INTEGRITY,
                   "the journal '%s' beside '%s' is damaged: store the file again, and remove the "
                   "journal",
                   place->journal, place->path);
}

/* Whoever can put a journal there could write to the file. */
static int check_owner(const struct sl_file_place *place, int fd, uint64_t *bytes,
                       struct sl_err *err)
{
    struct stat journal, file;
    if (fstat(fd, &journal) < 0 || fstat(place->fd, &file) < 0)
        return sl_file_edit_fail(place, errno, err);
    if (!S_ISREG(journal.st_mode) || journal.st_uid != file.st_uid || journal.st_mode & 0022)
        return sl_fail(err, SL_E_AUTH,
                       "the journal '%s' beside '%s' is not of the file's owner alone: remove it, "
                       "or give it to them",
                       place->journal, place->path);
    *bytes = (uint64_t)journal.st_size;
    return 0;
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

static int read_journal(struct journal *journal, uint64_t bytes, bool *agrees, struct sl_err *err)
{
    struct head head;
    *agrees = bytes > sizeof(head) + DIGEST_BYTES &&
              sl_read_at(journal->fd, &head, sizeof(head), 0) == 0 &&
              memcmp(head.magic, magic, sizeof(magic)) == 0 &&
              sl_get_le64(head.journal_bytes) == bytes;
    if (!*agrees || hash_journal(journal, bytes, agrees, err) < 0 || !*agrees)
        return *agrees ? -1 : 0;
    journal->file_bytes = sl_get_le64(head.file_bytes);
    journal->seal = sl_get_le64(head.seal);
    memcpy(journal->before, head.before, sizeof(head.before));
    memcpy(journal->final, head.final, sizeof(head.final));
    uint64_t count = sl_get_le64(head.count);
    *agrees = journal->file_bytes <= INT64_MAX && count <= RANGES_MAX &&
              count * 16 <= bytes - sizeof(head) - DIGEST_BYTES;
    journal->count = *agrees ? count : 0;
    return *agrees ? read_ranges(journal, bytes, agrees, err) : 0;
}

/* A part of one and the rest of the other. */
static bool is_torn(const uint8_t *found, const uint8_t *next, const uint8_t *last)
{
    unsigned i = 0;
    while (i < SL_FILE_SEAL_BYTES && found[i] == next[i])
        i++;
    return memcmp(found + i, last + i, SL_FILE_SEAL_BYTES - i) == 0;
}

/* The mark, or as much of it as a crash let through; nothing else of any file looks so. */
static bool is_marked(const struct sl_file_place *place, const struct journal *journal)
{
    uint8_t wanted[SL_FILE_SEAL_BYTES], found[SL_FILE_SEAL_BYTES];
    mark_of(journal, wanted);
    if (sl_read_at(place->fd, found, sizeof(found), journal->seal) < 0 ||
        memcmp(found, journal->before, sizeof(found)) == 0 ||
        memcmp(found, journal->final, sizeof(found)) == 0)
        return false;
    return is_torn(found, wanted, journal->before) || is_torn(found, journal->final, wanted);
}

int sl_file_journal_complete(const struct sl_file_place *place, struct sl_err *err)
{
    struct journal journal = {.fd = -1};
    uint64_t bytes = 0;
    bool agrees = false;
    journal.fd =
        openat(place->folder, place->journal, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (journal.fd < 0)
        return errno == ENOENT ? 0 : sl_file_edit_fail(place, errno, err);
    int done = check_owner(place, journal.fd, &bytes, err);
    if (done == 0)
        done = read_journal(&journal, bytes, &agrees, err);
    if (done == 0 && !agrees)
        done = damaged(place, err);
    else if (done == 0)
        done =
            is_marked(place, &journal) ? apply(place, &journal, err) : remove_journal(place, err);
    journal_release(&journal);
    return done;
}
