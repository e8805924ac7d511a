/*
 * Which keys a model in Redis is made of. A `.tensors` file under the prefix P is the key
 * P:header:0 (the file up to its first tensor) and two keys a tensor, P:NAME:OFFSET, one for its
 * header and one for its data, where OFFSET is the place in the file. The names and places come
 * from the metadata block inside the first key, so no server is ever asked to list its keys.
 */
#ifndef SL_REDIS_TABLE_H
#define SL_REDIS_TABLE_H

#include "buf.h"
#include "err.h"

enum {
    SL_REDIS_HEAD_BYTES_MAX = 64 << 20,  /* of P:header:0: about a million tensors */
    SL_REDIS_KEPT_BYTES_MAX = 256 << 20, /* of all tensor headers together */
    SL_REDIS_TERMINATOR_BYTES = 8,       /* zeros at a file's end, which have no key */
    SL_REDIS_KEY_BYTES_MAX = 16 * 1024 + 65535 + 32,
};

/** One key: bytes [begin, end) of the file. */
struct sl_redis_part {
    uint64_t begin, end;
    const char *name; /* as it stands in the key, any bytes; borrowed from the header */
    uint16_t name_bytes;
    bool data;        /* else a tensor's header, whose bytes are kept … */
    uint64_t kept_at; /* … here in what is kept of all of them */
};

/** The whole file: parts[0] is P:header:0, then header and data of each tensor, without gaps. */
struct sl_redis_table {
    struct sl_redis_part *parts;
    size_t count;
    uint64_t bytes;      /* of the file, its terminator included */
    uint64_t kept_bytes; /* of all tensor headers */
};

/**
 * Read the table from the value of P:header:0, which must outlive it. Hostile input. SL_E_FORMAT
 * with the code of the format's own checks: E_MAGIC, E_VERSION, E_FLAGS, E_EMPTY, E_METADATA,
 * E_TRUNCATED, E_OFFSET (tensors overlap, or bytes lie between them that no key holds).
 */
int sl_redis_table_parse(const uint8_t *head, size_t bytes, struct sl_redis_table *table,
                         struct sl_err *err);
void sl_redis_table_release(struct sl_redis_table *table);
/** The part that holds byte `at`, or count for the terminator. Parts without bytes hold none. */
size_t sl_redis_table_find(const struct sl_redis_table *table, uint64_t at);
/**
 * Name the key of a part.
 *
 * @key               out: emptied first; takes SL_REDIS_KEY_BYTES_MAX.
 * @prefix            of the model.
 * @name, name_bytes  as in the table, any bytes; "header" for the first part.
 * @begin             place of the part in the file.
 * @return            0, or -1 with SL_E_NO_SPACE.
 */
int sl_redis_key(struct sl_buf *key, const char *prefix, const char *name, size_t name_bytes,
                 uint64_t begin, struct sl_err *err);

#endif
