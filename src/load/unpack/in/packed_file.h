/* The bytes of an archive's file in order, unpacked if they are gzip or zstd. */
#ifndef SL_PACKED_FILE_H
#define SL_PACKED_FILE_H

#include <stdint.h>

#include "err.h"
#include "mem.h"

struct sl_packed_file;
/** fd (borrowed) holds `bytes` bytes; what packed it is seen by its first ones. */
struct sl_packed_file *sl_packed_file_open(int fd, uint64_t bytes, struct sl_err *err);
void sl_packed_file_free(struct sl_packed_file *file);
SL_AUTO_DEFINE(sl_packed_file)
/** How far the file itself has been read. */
uint64_t sl_packed_file_offset(const struct sl_packed_file *file);
/**
 * Read the next bytes.
 *
 * @data    room for `bytes`.
 * @got     out: how many came; less than `bytes` only at the end.
 * @return  0, or -1: SL_E_FORMAT, code "gzip" or "zstd", for what is broken or cut off.
 */
int sl_packed_file_read(struct sl_packed_file *file, void *data, size_t bytes, size_t *got,
                        struct sl_err *err);

#endif
