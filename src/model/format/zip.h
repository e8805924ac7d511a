/* ZIP archives as torch.save writes them: stored entries below one folder, found by name. One
 * thread at a time for an archive, which owns all that it returns unless it is said otherwise.
 * What fails does so with SL_E_FORMAT, code zip.*, or as sl_source_read(). */
#ifndef SL_ZIP_H
#define SL_ZIP_H

#include "source.h"
#include "zip_records.h"

enum {
    SL_ZIP_DIRECTORY_BYTES_MAX = 128 * 1024 * 1024,
    SL_ZIP_ENTRIES_MAX = 1 << 20,
};

struct sl_zip_entry {
    const char *name; /* whole, with the root; not NUL-terminated */
    size_t name_bytes;
    uint64_t header, bytes; /* of the local header; of the payload */
    uint64_t next;          /* where the next header or the directory begins */
    uint64_t begin;         /* of the payload, once it was located */
    uint32_t crc;           /* CRC32 of the payload, by the directory */
    bool wanted;            /* for sl_zip_locate() */
};

/** An archive within an object, and what of it is in memory already. */
struct sl_zip_window {
    uint64_t begin, bytes;
    const uint8_t *head, *tail; /* its first and its last bytes */
    size_t head_bytes, tail_bytes;
};

struct sl_zip {
    struct sl_source *source;     /* borrowed */
    uint64_t base;                /* where it begins in the object; all below counts from there */
    struct sl_zip_entry *entries; /* in the order of their headers */
    size_t count;
    uint32_t *by_name;
    const char *root; /* without the slash; lies in the directory */
    size_t root_bytes;
    const char *directory;
    char *head, *tail; /* the object's first bytes, if asked for; its last, from tail_begin on */
    uint64_t tail_begin, directory_begin;
    size_t head_bytes, tail_bytes;
    unsigned alignment; /* of payloads: 64, torch's default */
};

/**
 * Read and check end records and directory: at most two requests beside the head that the source
 * holds. SL_E_FORMAT with a code zip.*, naming the entry. The source is borrowed until
 * sl_zip_release(), which takes half-opened archives too.
 */
int sl_zip_open(struct sl_zip *zip, struct sl_source *source, struct sl_err *err);
/** The same of an archive within an object. What is in memory is copied, and not asked for again.
 */
int sl_zip_open_window(struct sl_zip *zip, struct sl_source *source,
                       const struct sl_zip_window *window, struct sl_err *err);
void sl_zip_release(struct sl_zip *zip);

/** The entry root/NAME, NULL if there is none. */
struct sl_zip_entry *sl_zip_find(struct sl_zip *zip, const char *name, size_t name_bytes);

/** Fetch all bytes up to `end` in one request, so that entries there cost none. */
int sl_zip_keep_head(struct sl_zip *zip, uint64_t end, struct sl_err *err);

/**
 * Find the payloads of all entries that are `wanted`, and check their local headers, which are read
 * side by side. torch finds a payload by its local header alone, so what is read must be found so
 * too. quick: for who only shows or copies; where torch put the payloads is computed from the
 * directory, and only local headers of others are read.
 */
int sl_zip_locate(struct sl_zip *zip, bool quick, struct sl_err *err);
/**
 * Is the checksum of the entry known? The directory says 0 where torch.save was told not to compute
 * it (torch.serialization.set_crc32_options, skip_data); that other payloads have this one happens
 * once in 2^32.
 */
bool sl_zip_has_crc(const struct sl_zip_entry *entry);

/**
 * An entry's payload, its local header and checksum checked; one byte more, 0, follows. NULL on
 * failure: SL_E_INTEGRITY, code E_HASH_CRC32, if it is damaged.
 */
char *sl_zip_read(struct sl_zip *zip, struct sl_zip_entry *entry, uint64_t bytes_max,
                  struct sl_err *err);

#endif
