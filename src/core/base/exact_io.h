/*
 * All bytes or an error: reads and writes of files that go on after a signal and after a part. Any
 * thread; they block as the descriptor does.
 */
#ifndef SL_EXACT_IO_H
#define SL_EXACT_IO_H

#include <stddef.h>
#include <stdint.h>

/**
 * Read bytes [offset, offset + bytes) of a file.
 *
 * @data    out: anything, after a failure.
 * @return  0, or -1 with errno: ENODATA if the file ends before, EOVERFLOW if no file is that
 *          long, or what pread() says.
 */
int sl_read_at(int fd, void *data, size_t bytes, uint64_t offset);
/**
 * Write bytes [offset, offset + bytes) of a file.
 *
 * @return  0, or -1 with errno: ENOSPC if nothing more is taken, EOVERFLOW as above, or what
 *          pwrite() says; then a part of them may be written.
 */
int sl_write_at(int fd, const void *data, size_t bytes, uint64_t offset);
/** Write to a file, pipe or socket where it stands. 0, or -1 with errno, as sl_write_at(). */
int sl_write_all(int fd, const void *data, size_t bytes);

#endif
