/*
 * One tensor as memory of the caller's own: a private mapping of its file where the bytes lie there
 * as they are read, else memory that it is read into. That the file is still the one that was
 * opened is asked of the store once it is mapped, so that one that was exchanged before is noticed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api_mapped.h"
#include "open_parts.h"

/* -1 with "changed" if the object is another one by now. */
static int check_version(struct sluice_source *source, uint32_t object, uint64_t at,
                         struct sl_err *err)
{
    struct sl_source *opened = source->plan->sources[object].source, *again = NULL;
    uint8_t byte;
    if (sl_source_known(sl_source_store(opened), sl_source_name(opened), sl_source_bytes(opened),
                        sl_source_version(opened), &again, err) < 0)
        return -1;
    int done = sl_source_read(again, at, &byte, 1, err);
    sl_source_free(again);
    return done;
}

static struct sluice_memory *map_file(const char *path, uint64_t offset, uint64_t bytes,
                                      struct sl_err *err)
{
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot open '%s'", path);
        return NULL;
    }
    void *map = mmap(NULL, bytes + before, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd,
                     (off_t)(offset - before));
    if (map == MAP_FAILED) {
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot map '%s'", path);
        return NULL;
    }
    struct sluice_memory *memory =
        sl_api_mapped(map, bytes + before, (uint8_t *)map + before, bytes);
    if (!memory) {
        munmap(map, bytes + before);
        sl_fail(err, SL_E_NO_SPACE, "out of memory");
    }
    return memory;
}

static int map_place(struct sluice_source *source, uint64_t number, const char *path,
                     uint64_t offset, struct sluice_memory **out, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT, unmapped = SL_ERR_INIT;
    if (sl_cancel_check(source->cancel, &err) < 0)
        return sl_open_fail(error, &err);
    struct sluice_memory *memory = map_file(path, offset, sl_open_bytes(source, number), &unmapped);
    /* What became of the file says more than that it cannot be mapped. */
    if (check_version(source, sl_open_object(source, number), offset, &err) < 0) {
        sluice_unmap(memory);
        return sl_open_fail(error, &err);
    }
    if (!memory)
        return sl_open_fail(error, &unmapped);
    *out = memory;
    return 0;
}

int sluice_map(struct sluice_source *source, uint64_t number,
               const struct sluice_read_options *given, struct sluice_memory **out,
               struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_read_options options;
    uint64_t offset;
    if (sl_open_take(&options, sizeof(options), given, &err) < 0 ||
        sl_open_check_number(source, number, &err) < 0 || sl_open_check_process(source, &err) < 0)
        return sl_open_fail(error, &err);
    const char *path = sl_open_place(source, number, &offset);
    uint64_t bytes = sl_open_bytes(source, number);
    if (path && bytes)
        return map_place(source, number, path, offset, out, error);
    struct sluice_memory *memory;
    options.size = sizeof(options);
    options.done = NULL;
    if (sluice_memory_new(bytes, &memory, error) < 0)
        return -1;
    const struct sluice_read read = {
        .size = sizeof(read), .number = number, .to = memory->data, .bytes = bytes};
    if (sluice_read(source, &read, 1, &options, error) < 0) {
        sluice_unmap(memory);
        return -1;
    }
    *out = memory;
    return 0;
}
