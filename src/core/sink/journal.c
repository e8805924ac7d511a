/*
 * A header of 64 bytes, then records of 40 bytes, each with a CRC32C of its own. A record is
 * appended only after the bytes it vouches for were written, and what it claims is read back and
 * compared with its CRC before it is believed, so a kill at any instruction costs at most the
 * records in flight. Writers take a slot under the lock and write it outside: a kill may leave
 * holes, and a hole is just a record whose CRC is wrong. Journals that make no sense are begun
 * anew; nothing is ever refused because of one. One that can no longer tell the truth, since it is
 * full or a strike cannot be written, is given up: emptied, and the load goes on without.
 *
 * header: magic[8] identity[32] zero[20] crc32c[4]
 * record: kind[4] file[4] begin[8] end[8] crc32c of the bytes[4] zero[8] crc32c of the record[4]
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_io.h"
#include "hash.h"
#include "log.h"
#include "owners.h"
#include "thread.h"
#include "tree.h"

enum {
    HEADER_BYTES = 64,
    RECORD_BYTES = 40,
    RECORD_ADD = 1,
    RECORD_STRIKE = 2,
    RECORDS_MAX = 4 * 1024 * 1024,
    STRIKES_MAX = 1024,
    REPLAY_BUFFER_BYTES = 256 * 1024,
};
#define NO_SLOT UINT64_MAX
static const char magic[8] = "sluicej1";

struct sl_journal {
    int fd;
    const struct sl_cancel *cancel; /* of replays */
    uint64_t earlier;               /* slots that were taken before it was opened */
    pthread_mutex_t lock;
    struct {
        uint64_t slots; /* taken so far */
        bool given_up;  /* nothing counts, nor is anything added */
    } locked;
};

struct record {
    uint32_t kind, file, crc;
    uint64_t begin, end;
    bool fresh; /* noted since the journal was opened */
};

static void put_le32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

static void make_header(uint8_t header[HEADER_BYTES], const uint8_t identity[32])
{
    memset(header, 0, HEADER_BYTES);
    memcpy(header, magic, sizeof(magic));
    memcpy(header + sizeof(magic), identity, 32);
    put_le32(header + HEADER_BYTES - 4, sl_crc32c(0, header, HEADER_BYTES - 4));
}

static int write_all(int fd, const void *data, size_t bytes, uint64_t offset, struct sl_err *err)
{
    if (sl_write_at(fd, data, bytes, offset) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot write the journal of the load: give the destination space");
    return 0;
}

/* There is no other thread yet. */
static int adopt_or_begin(struct sl_journal *journal, const uint8_t identity[32], bool *resumed,
                          struct sl_err *err)
{
    uint8_t wanted[HEADER_BYTES], found[HEADER_BYTES];
    struct stat status;
    make_header(wanted, identity);
    *resumed = sl_read_at(journal->fd, found, HEADER_BYTES, 0) == 0 &&
               memcmp(found, wanted, HEADER_BYTES) == 0 && fstat(journal->fd, &status) == 0 &&
               (status.st_size - HEADER_BYTES) / RECORD_BYTES <= RECORDS_MAX;
    if (*resumed) {
        journal->earlier = (uint64_t)(status.st_size - HEADER_BYTES) / RECORD_BYTES;
        journal->locked.slots = journal->earlier;
        return 0;
    }
    if (ftruncate(journal->fd, 0) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot begin the journal of the load");
    return write_all(journal->fd, wanted, HEADER_BYTES, 0, err);
}

struct sl_journal *sl_journal_open(int directory_fd, const char *name, const uint8_t identity[32],
                                   bool *resumed, struct sl_err *err)
{
    SL_AUTO(sl_journal) journal = sl_alloc(sizeof(*journal), err);
    if (!journal)
        return NULL;
    pthread_mutex_init(&journal->lock, NULL);
    journal->fd =
        openat(directory_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (journal->fd < 0) {
        sl_tree_fail(err, errno, "open the journal of the load", name);
        return NULL;
    }
    if (sl_owners_check_file(directory_fd, journal->fd, name, err) < 0 ||
        adopt_or_begin(journal, identity, resumed, err) < 0)
        return NULL;
    return sl_steal(&journal);
}

void sl_journal_free(struct sl_journal *journal)
{
    if (!journal)
        return;
    if (journal->fd >= 0)
        close(journal->fd);
    pthread_mutex_destroy(&journal->lock);
    free(journal);
}

void sl_journal_set_cancel(struct sl_journal *journal, const struct sl_cancel *cancel)
{
    journal->cancel = cancel;
}

void sl_journal_give_up(struct sl_journal *journal, const char *why)
{
    SL_LOCKED(&journal->lock);
    if (journal->locked.given_up)
        return;
    journal->locked.given_up = true;
    bool emptied = ftruncate(journal->fd, 0) == 0;
    sl_log(SL_LOG_WARN, "the journal of the load is given up, %s%s: a load that is interrupted %s",
           why, emptied ? "" : ", and cannot be emptied",
           emptied ? "begins again" : "must not go on from it: remove what is staged");
}

/* Which slot is the caller's; NO_SLOT: the journal is given up. */
static uint64_t take_slot(struct sl_journal *journal)
{
    {
        SL_LOCKED(&journal->lock);
        if (journal->locked.given_up)
            return NO_SLOT;
        if (journal->locked.slots < RECORDS_MAX)
            return journal->locked.slots++;
    }
    sl_journal_give_up(journal, "it has four million records");
    return NO_SLOT;
}

static int append(struct sl_journal *journal, const struct record *record, struct sl_err *err)
{
    uint8_t bytes[RECORD_BYTES] = {0};
    put_le32(bytes, record->kind);
    put_le32(bytes + 4, record->file);
    sl_put_le64(bytes + 8, record->begin);
    sl_put_le64(bytes + 16, record->end);
    put_le32(bytes + 24, record->crc);
    put_le32(bytes + RECORD_BYTES - 4, sl_crc32c(0, bytes, RECORD_BYTES - 4));
    uint64_t slot = take_slot(journal);
    if (slot == NO_SLOT)
        return 0;
    return write_all(journal->fd, bytes, RECORD_BYTES, HEADER_BYTES + slot * RECORD_BYTES, err);
}

int sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                   uint32_t crc32c, struct sl_err *err)
{
    return append(journal, &(struct record){RECORD_ADD, file, crc32c, begin, end}, err);
}

void sl_journal_strike(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end)
{
    if (append(journal, &(struct record){RECORD_STRIKE, file, 0, begin, end}, NULL) < 0)
        sl_journal_give_up(journal, "since it cannot be written");
}

/* ---- replay --------------------------------------------------------------------------------- */

static bool parse_record(const uint8_t bytes[RECORD_BYTES], const struct sl_sink *sink,
                         struct record *record)
{
    if (sl_get_le32(bytes + RECORD_BYTES - 4) != sl_crc32c(0, bytes, RECORD_BYTES - 4))
        return false;
    *record = (struct record){.kind = sl_get_le32(bytes),
                              .file = sl_get_le32(bytes + 4),
                              .crc = sl_get_le32(bytes + 24),
                              .begin = sl_get_le64(bytes + 8),
                              .end = sl_get_le64(bytes + 16)};
    return record->file < sink->file_count && record->begin < record->end &&
           record->end <= sink->files[record->file].bytes;
}

/* Drop every earlier piece that shares a byte with the strike. */
static size_t strike(struct record *records, size_t count, const struct record *by)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (records[i].file != by->file || records[i].end <= by->begin ||
            records[i].begin >= by->end)
            records[kept++] = records[i];
    return kept;
}

/* The records that count, in the order of writing; none of a journal that is given up. Before and
 * after a load: no other thread adds any. */
static struct record *load_records(struct sl_journal *journal, const struct sl_sink *sink,
                                   size_t *count, struct sl_err *err)
{
    size_t slots = journal->locked.given_up ? 0 : (size_t)journal->locked.slots;
    struct record *records = sl_alloc_array(slots, sizeof(*records), err);
    unsigned strikes = 0;
    *count = 0;
    for (size_t i = 0; records && i < slots; i++) {
        uint8_t bytes[RECORD_BYTES];
        struct record record;
        uint64_t offset = HEADER_BYTES + i * RECORD_BYTES;
        if (sl_read_at(journal->fd, bytes, RECORD_BYTES, offset) < 0 ||
            !parse_record(bytes, sink, &record))
            continue;
        record.fresh = i >= journal->earlier;
        if (record.kind == RECORD_ADD)
            records[(*count)++] = record;
        else if (record.kind == RECORD_STRIKE)
            *count = ++strikes > STRIKES_MAX ? 0 : strike(records, *count, &record);
    }
    return records;
}

static int by_place(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? 1 : x->end > y->end ? -1 : 0;
}

/* 1 if the bytes are what the record says, 0 if not. */
static int is_right(const struct sl_journal *journal, struct sl_sink *sink,
                    const struct record *record, uint8_t *buffer, struct sl_err *err)
{
    uint32_t crc = 0;
    for (uint64_t at = record->begin; !record->fresh && at < record->end;) {
        size_t bytes = (size_t)SL_MIN(record->end - at, (uint64_t)REPLAY_BUFFER_BYTES);
        if (sl_cancel_check(journal->cancel, err) < 0 ||
            sl_sink_read(sink, record->file, at, buffer, bytes, err) < 0)
            return -1;
        crc = sl_crc32c(crc, buffer, bytes);
        at += bytes;
    }
    return record->fresh || crc == record->crc;
}

/* The stretch that is being merged, and whom to tell when it ends. */
struct stretch {
    uint32_t file, crc;
    uint64_t begin, end;
    bool fresh; /* one such record, of which crc is */
    int (*keep)(uint32_t file, uint64_t begin, uint64_t end, const uint32_t *crc32c, void *arg,
                struct sl_err *err);
    void *arg;
};

static int report(struct stretch *stretch, struct sl_err *err)
{
    if (stretch->begin == stretch->end)
        return 0;
    return stretch->keep(stretch->file, stretch->begin, stretch->end,
                         stretch->fresh ? &stretch->crc : NULL, stretch->arg, err);
}

/* No byte is reported twice, so what overlaps is merged in any case. */
static int extend(struct stretch *stretch, const struct record *record, struct sl_err *err)
{
    bool apart = record->fresh || stretch->fresh;
    if (record->file == stretch->file && stretch->begin < stretch->end &&
        (record->begin < stretch->end || (record->begin == stretch->end && !apart))) {
        stretch->end = SL_MAX(stretch->end, record->end);
        stretch->fresh = false;
        return 0;
    }
    if (report(stretch, err) < 0)
        return -1;
    stretch->file = record->file;
    stretch->crc = record->crc;
    stretch->fresh = record->fresh;
    stretch->begin = record->begin;
    stretch->end = record->end;
    return 0;
}

int sl_journal_replay(struct sl_journal *journal, struct sl_sink *sink,
                      int (*keep)(uint32_t file, uint64_t begin, uint64_t end,
                                  const uint32_t *crc32c, void *arg, struct sl_err *err),
                      void *arg, struct sl_err *err)
{
    size_t count;
    sl_autofree struct record *records = load_records(journal, sink, &count, err);
    sl_autofree uint8_t *buffer = records ? sl_alloc_aligned(4096, REPLAY_BUFFER_BYTES, err) : NULL;
    if (!buffer)
        return -1;
    qsort(records, count, sizeof(*records), by_place);
    struct stretch stretch = {.keep = keep, .arg = arg};
    for (size_t i = 0; i < count; i++) {
        const struct record *record = &records[i];
        if (sink->files[record->file].inherited ||
            (record->file == stretch.file && record->end <= stretch.end))
            continue; /* proven already, or within what is */
        int right = is_right(journal, sink, record, buffer, err);
        if (right < 0 || (right && extend(&stretch, record, err) < 0))
            return -1;
    }
    return report(&stretch, err);
}

/* ---- digests of whole files ----------------------------------------------------------------- */

/* By place; of records for the same place the last one written counts. load_records() keeps their
 * order, which `kind` takes here. */
static int by_place_and_age(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    int place = by_place(a, b);
    return place ? place : x->kind < y->kind ? -1 : x->kind > y->kind;
}

static bool is_superseded(const struct record *records, size_t count, size_t i)
{
    return i + 1 < count && by_place(&records[i], &records[i + 1]) == 0;
}

/* What no record covers (a new header, zeros) is little, and read back. */
static int add_gap(struct sl_sink *sink, uint32_t file, uint64_t begin, uint64_t end,
                   uint8_t *buffer, uint32_t *crc, struct sl_err *err)
{
    for (uint64_t at = begin; at < end;) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)REPLAY_BUFFER_BYTES);
        if (sl_sink_read(sink, file, at, buffer, bytes, err) < 0)
            return -1;
        *crc = sl_crc32c(*crc, buffer, bytes);
        at += bytes;
    }
    return 0;
}

/* One file, of records [*next, count). */
static int file_crc(struct sl_sink *sink, uint32_t file, const struct record *records, size_t count,
                    size_t *next, uint8_t *buffer, uint32_t *crc, bool *known, struct sl_err *err)
{
    uint64_t at = 0;
    *crc = 0;
    *known = true;
    for (; *next < count && records[*next].file == file; ++*next) {
        const struct record *record = &records[*next];
        if (is_superseded(records, count, *next))
            continue;
        *known = *known && record->begin >= at;
        if (!*known)
            continue;
        if (add_gap(sink, file, at, record->begin, buffer, crc, err) < 0)
            return -1;
        *crc = sl_crc32c_combine(*crc, record->crc, record->end - record->begin);
        at = record->end;
    }
    *known = *known && at <= sink->files[file].bytes;
    return *known ? add_gap(sink, file, at, sink->files[file].bytes, buffer, crc, err) : 0;
}

/* The load has ended: no other thread notes anything. */
int sl_journal_file_crcs(struct sl_journal *journal, struct sl_sink *sink, uint32_t *crcs,
                         bool *known, struct sl_err *err)
{
    size_t count, next = 0;
    sl_autofree struct record *records = load_records(journal, sink, &count, err);
    sl_autofree uint8_t *buffer = records ? sl_alloc_aligned(4096, REPLAY_BUFFER_BYTES, err) : NULL;
    if (!buffer)
        return -1;
    memset(known, 0, sink->file_count * sizeof(*known));
    if (journal->locked.given_up)
        return 0;
    for (size_t i = 0; i < count; i++)
        records[i].kind = (uint32_t)i;
    qsort(records, count, sizeof(*records), by_place_and_age);
    for (uint32_t file = 0; file < sink->file_count; file++)
        if (file_crc(sink, file, records, count, &next, buffer, &crcs[file], &known[file], err) < 0)
            return -1;
    return 0;
}
