/* What the fuzzers of archives share: a file in memory, a directory that is emptied each time, and
 * a look at whether anything came out beside it. */
#ifndef SL_FUZZ_UNPACK_H
#define SL_FUZZ_UNPACK_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tree.h"
#include "unpack.h"

static inline int fuzz_unpack(const uint8_t *data, size_t bytes,
                              int (*read)(int, uint64_t, struct sl_unpack *, struct sl_err *))
{
    char path[] = "/dev/shm/sluice-fuzz-XXXXXX";
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int top = mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY) : -1;
    sl_autoclose int in = memfd_create("fuzz", 0);
    if (top < 0 || mkdirat(top, "out", 0755) < 0)
        return 0;
    sl_autoclose int out = openat(top, "out", O_RDONLY | O_DIRECTORY);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(out, path, bytes, NULL, &err);
    if (tree && write(in, data, bytes) == (ssize_t)bytes && read(in, bytes, tree, &err) == 0)
        sl_unpack_finish(tree, &err);
    if (sl_tree_remove(top, "out") < 0 || rmdir(path) < 0) /* something lies beside it */
        abort();
    return 0;
}

#endif
