/*
 * A load into memory that is there: all that a load does with its bytes (ranges, connections by
 * feedback, hashes) but neither new pages nor publishing, which is what remains beside the bare
 * network once a destination is prepared beforehand. The memory is anonymous and every page of it
 * is touched before the clock starts.
 */
#include <unistd.h>

#include "bench_parts.h"
#include "reader.h"

struct sl_bench_memory {
    struct sl_sink_file *files;
    struct sl_sink *sink;
};

static void touch(const struct sl_bench_memory *memory, size_t count)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < count; i++) {
        volatile uint8_t *data = (uint8_t *)sl_heap_data(memory->sink, i);
        for (uint64_t at = 0; at < memory->files[i].bytes; at += page)
            data[at] = 0;
    }
}

struct sl_bench_memory *sl_bench_memory_new(const struct sl_plan *plan, struct sl_err *err)
{
    SL_AUTO(sl_bench_memory) memory = sl_alloc(sizeof(*memory), err);
    if (!memory)
        return NULL;
    memory->files = sl_alloc_array(plan->file_count, sizeof(*memory->files), err);
    if (!memory->files)
        return NULL;
    for (size_t i = 0; i < plan->file_count; i++)
        memory->files[i] = (struct sl_sink_file){plan->files[i].name, plan->files[i].bytes};
    memory->sink = sl_heap_open(memory->files, plan->file_count, err);
    if (!memory->sink)
        return NULL;
    touch(memory, plan->file_count);
    return sl_steal(&memory);
}

int sl_bench_memory_load(struct sl_bench_memory *memory, const struct sl_spec *spec,
                         const struct sl_plan *plan, struct sl_cancel *cancel, struct sl_err *err)
{
    const struct sl_spec_readers *readers = &spec->readers;
    struct sl_reader_config config = {
        .connections = readers->connections == SL_AUTO_VALUE ? 0 : (unsigned)readers->connections,
        .memory_bytes = readers->memory_bytes == SL_AUTO_VALUE ? 0 : readers->memory_bytes,
        .hedge = (enum sl_hedge)readers->hedge,
        .hashes = spec->verify.hashes,
        .cancel = cancel,
    };
    if (sl_plan_begin_keys(plan, err) < 0 || sl_plan_await_keys(plan, err) < 0)
        return -1;
    return sl_reader_run(plan, memory->sink, NULL, &config, err);
}

void sl_bench_memory_free(struct sl_bench_memory *memory)
{
    if (!memory)
        return;
    sl_sink_free(memory->sink);
    free(memory->files);
    free(memory);
}
