/* A whole load, as `sluice load` does it: planned, checked, published, into the place of the bench;
 * the spec is as it was given but for the destination and what the sweep sets. */
#include "bench_parts.h"
#include "load.h"

int sl_bench_load(const struct sl_spec *spec, const char *to, uint64_t range_bytes,
                  unsigned connections, struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_spec run = *spec; /* shallow: what it points to stays the caller's */
    sl_autofree char *path = sl_strdup(to, err);
    if (!path)
        return -1;
    run.sink.tmpfs.path = path;
    if (range_bytes)
        run.readers.range_bytes = range_bytes;
    if (connections)
        run.readers.connections = connections;
    return sl_load_run(&run, cancel, NULL, NULL, err);
}
