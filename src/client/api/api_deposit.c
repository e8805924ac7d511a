/*
 * A deposit is written into memfds of our own. To seal one against writing, nobody may have it
 * mapped writable: at the commit each mapping is replaced, in its place, by a read-only one of a
 * descriptor that was opened read-only. So pointers stay good, and a stray write crashes here
 * instead of changing what others use.
 *
 * On a GPU there are no seals: the depositor maps its memory read-only and so does everybody who
 * attaches. All of it is one slab, taken when the first tensor is added, since it cannot be cut
 * down at the end as a memfd can.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api_device.h"
#include "api_memory.h"
#include "api_parts.h"
#include "pool_index_write.h"
#include "pool_words.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SLAB_BYTES (512ull * 1024 * 1024)

struct slab {
    uint8_t *map;
    uint64_t bytes, used; /* mapped; taken by tensors */
    int fd;               /* on a GPU -1 until the commit */
    uint64_t handle;      /* on a GPU */
};
struct sluice_deposit {
    uint32_t owners; /* sl_refcount_add() */
    struct sl_pool_link link;
    uint64_t id;
    char *model, *key;
    uint8_t identity[32];
    struct sl_api_device device; /* closed: the host */
    uint64_t left;               /* of what was announced */
    struct slab *slabs;
    uint32_t slab_count;
    struct sl_pool_item *items; /* name, dtype, shape and strides are one allocation each: name's */
    uint32_t item_count, item_capacity;
    bool committed, broken;
};

static int no_memory(struct sluice_error *error)
{
    return sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
}

/* ---- begin ----------------------------------------------------------------------------------- */

static int announce(struct sluice_deposit *deposit, const struct sluice_deposit_options *options,
                    struct sluice_error *error)
{
    union {
        struct sl_wire_deposit deposit;
        char bytes[sizeof(struct sl_wire_deposit) + SL_WIRE_MODEL_BYTES + SL_WIRE_KEY_BYTES +
                   SL_WIRE_DEVICE_BYTES];
    } packet = {0};
    struct sl_pool_reply reply;
    packet.deposit.bytes = deposit->left;
    memcpy(packet.deposit.identity, options->identity, sizeof(options->identity));
    packet.deposit.model_bytes = (uint16_t)strlen(options->model);
    packet.deposit.key_bytes = (uint16_t)strlen(options->key);
    packet.deposit.device_bytes = (uint16_t)strlen(options->device);
    size_t bytes = sl_pool_put_text(&packet, sizeof(packet.deposit), options->model);
    bytes = sl_pool_put_text(&packet, bytes, options->key);
    bytes = sl_pool_put_text(&packet, bytes, options->device);
    if (sl_pool_link_ask(&deposit->link, SL_WIRE_DEPOSIT, &packet, bytes, NULL, 0,
                         sizeof(struct sl_wire_id), &reply, error) < 0)
        return -1;
    deposit->id = ((const struct sl_wire_id *)sl_pool_reply_data(&reply))->id;
    sl_pool_reply_release(&reply);
    return 0;
}

static int open_device(struct sluice_deposit *deposit, struct sluice_deposit_options *options,
                       char text[SL_API_DEVICE_TEXT_BYTES], struct sluice_error *error)
{
    deposit->left = options->bytes;
    if (!sl_api_device_named(options->device))
        return 0;
    if (sl_api_device_open_named(&deposit->device, options->device, error) < 0)
        return -1;
    deposit->left = sl_api_device_round(&deposit->device, options->bytes);
    if (options->bytes && !deposit->left)
        return sl_api_fail(error, SLUICE_USAGE, "a GPU has no %llu bytes",
                           (unsigned long long)options->bytes);
    sl_api_device_text(&deposit->device, text);
    options->device = text;
    return 0;
}

static int begin(struct sluice_deposit *deposit, struct sluice_deposit_options *options,
                 struct sluice_error *error)
{
    char device[SL_API_DEVICE_TEXT_BYTES];
    struct sl_limit limit = sl_limit_make(options->timeout_ms > 0 ? options->timeout_ms : -1,
                                          options->cancel_fd > 0 ? options->cancel_fd : -1);
    deposit->model = sl_api_copy(options->model);
    deposit->key = sl_api_copy(options->key);
    if (!deposit->model || !deposit->key)
        return no_memory(error);
    memcpy(deposit->identity, options->identity, sizeof(deposit->identity));
    if (open_device(deposit, options, device, error) < 0 ||
        sl_pool_link_open(&deposit->link, options->socket, options->client, limit, error) < 0)
        return -1;
    return announce(deposit, options, error);
}

int sluice_deposit_begin(const struct sluice_deposit_options *given, struct sluice_deposit **out,
                         struct sluice_error *error)
{
    struct sluice_deposit_options options;
    if (sl_api_check_size(given->size, error) < 0)
        return -1;
    sl_api_take(&options, sizeof(options), given);
    options.key = options.key ? options.key : "";
    options.device = options.device ? options.device : "host";
    if (sl_pool_check_texts(options.model, options.key, options.device, error) < 0)
        return -1;
    if (!*options.key)
        return sl_api_fail(error, SLUICE_USAGE, "a derived model needs a key");
    struct sluice_deposit *deposit = sl_api_alloc(sizeof(*deposit));
    if (!deposit)
        return no_memory(error);
    deposit->owners = 1;
    deposit->link.fd = -1;
    if (begin(deposit, &options, error) < 0) {
        sluice_deposit_end(deposit);
        return -1;
    }
    *out = deposit;
    return 0;
}

static void release_slab(const struct sluice_deposit *deposit, struct slab *slab)
{
    if (deposit->device.cuda) {
        sl_api_device_unmap(&deposit->device, slab->map, slab->bytes);
        sl_api_device_drop(&deposit->device, slab->handle);
    } else {
        munmap(slab->map, slab->bytes);
    }
    if (slab->fd >= 0)
        close(slab->fd);
}

void sluice_deposit_abort(struct sluice_deposit *deposit)
{
    if (!deposit->committed)
        deposit->broken = true;
    sl_pool_link_close(&deposit->link);
}

int sluice_deposit_device(const struct sluice_deposit *deposit)
{
    return deposit->device.cuda ? deposit->device.info.ordinal : -1;
}

void sl_api_deposit_hold(struct sluice_deposit *deposit)
{
    sl_refcount_add(&deposit->owners);
}

void sluice_deposit_end(struct sluice_deposit *deposit)
{
    if (!deposit || !sl_refcount_drop(&deposit->owners))
        return;
    sl_pool_link_close(&deposit->link); /* what is not committed goes with it */
    sl_api_device_settle(&deposit->device, false);
    for (uint32_t i = 0; i < deposit->slab_count; i++)
        release_slab(deposit, &deposit->slabs[i]);
    sl_api_device_close(&deposit->device);
    for (uint32_t i = 0; i < deposit->item_count; i++)
        free((void *)(uintptr_t)deposit->items[i].shape);
    free(deposit->slabs);
    free(deposit->items);
    free(deposit->model);
    free(deposit->key);
    free(deposit);
}

/* The slabs are also those of a process that was forked, in which nothing may be done to them. */
static int check_open(const struct sluice_deposit *deposit, struct sluice_error *error)
{
    if (deposit->committed || deposit->broken)
        return sl_api_fail(error, SLUICE_USAGE, "the deposit was already committed or aborted");
    return sl_pool_link_check_process(&deposit->link, error);
}

/* ---- add ------------------------------------------------------------------------------------- */

static uint64_t pad(uint64_t bytes)
{
    return (bytes + SL_WIRE_ALIGN - 1) & ~(uint64_t)(SL_WIRE_ALIGN - 1);
}

static int make_on_host(struct slab *slab, struct sluice_error *error)
{
    uint64_t bytes = slab->bytes;
    int fd = memfd_create("sluice-deposit", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("sluice-deposit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *map = fd < 0 || ftruncate(fd, (off_t)bytes) < 0
                    ? MAP_FAILED
                    : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        sl_api_fail_errno(error, SLUICE_NO_SPACE, "cannot make a slab of %llu bytes",
                          (unsigned long long)bytes);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    slab->map = map;
    slab->fd = fd;
    return 0;
}

static int make_slab(struct sluice_deposit *deposit, uint64_t least, struct sluice_error *error)
{
    bool host = !deposit->device.cuda;
    uint64_t bytes = host && deposit->left > SLAB_BYTES ? SLAB_BYTES : deposit->left;
    if (deposit->slab_count == SL_WIRE_SLABS_MAX)
        return sl_api_fail(error, SLUICE_NO_SPACE, "a deposit has at most %d slabs",
                           SL_WIRE_SLABS_MAX);
    struct slab *slabs = sl_api_grow(deposit->slabs, (deposit->slab_count + 1) * sizeof(*slabs));
    if (!slabs)
        return no_memory(error);
    deposit->slabs = slabs;
    struct slab *slab = &slabs[deposit->slab_count];
    *slab = (struct slab){.bytes = bytes < least ? least : bytes, .fd = -1};
    void *map = NULL;
    int done = host ? make_on_host(slab, error)
                    : sl_api_device_make(&deposit->device, slab->bytes, &slab->handle, &map, error);
    if (done < 0)
        return -1;
    slab->map = host ? slab->map : map;
    deposit->slab_count++;
    return 0;
}

/* Where the next tensor goes. */
static int take_room(struct sluice_deposit *deposit, uint64_t bytes, struct sl_pool_item *item,
                     void **data, struct sluice_error *error)
{
    uint64_t taken = pad(bytes);
    if (taken < bytes || taken > deposit->left)
        return sl_api_fail(error, SLUICE_NO_SPACE,
                           "the deposit would be larger than announced: announce more bytes");
    struct slab *last = deposit->slab_count ? &deposit->slabs[deposit->slab_count - 1] : NULL;
    if (!last || taken > last->bytes - last->used) {
        if (make_slab(deposit, taken, error) < 0)
            return -1;
        last = &deposit->slabs[deposit->slab_count - 1];
    }
    item->slab = deposit->slab_count - 1;
    item->offset = last->used;
    item->bytes = bytes;
    *data = last->map + last->used;
    last->used += taken;
    deposit->left -= taken;
    return 0;
}

/* Shape, strides, name and type behind one another. */
static int copy_texts(struct sl_pool_item *item, const char *name, const char *dtype,
                      const uint64_t *shape, const uint64_t *strides, struct sluice_error *error)
{
    size_t numbers = item->rank * sizeof(uint64_t), length = strlen(name);
    char *memory = sl_api_alloc(2 * numbers + length + strlen(dtype) + 2);
    if (!memory)
        return no_memory(error);
    if (numbers)
        memcpy(memory, shape, numbers);
    if (numbers && strides)
        memcpy(memory + numbers, strides, numbers);
    memcpy(memory + 2 * numbers, name, length + 1);
    memcpy(memory + 2 * numbers + length + 1, dtype, strlen(dtype) + 1);
    item->shape = (const uint64_t *)(void *)memory;
    item->strides = strides && item->rank ? item->shape + item->rank : NULL;
    item->name = memory + 2 * numbers;
    item->name_bytes = (uint32_t)length;
    item->dtype = item->name + length + 1;
    return 0;
}

/* What the server will check, told earlier. */
static int check_shape(const struct sl_pool_item *item, const uint64_t *shape,
                       const uint64_t *strides, uint64_t bytes, struct sluice_error *error)
{
    uint64_t count = item->block_bytes, reach = 0;
    bool empty = false, over = false;
    for (uint32_t i = 0; i < item->rank; i++) {
        uint64_t step = 0;
        empty = empty || shape[i] == 0;
        over = over || __builtin_mul_overflow(count, shape[i], &count);
        if (strides && shape[i])
            over = over || __builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
                   __builtin_add_overflow(reach, step, &reach);
    }
    over = over || (strides && (__builtin_add_overflow(reach, 1u, &reach) ||
                                __builtin_mul_overflow(reach, item->block_bytes, &reach)));
    if (empty ? bytes == 0 : !over && (strides ? reach <= bytes : count == bytes))
        return 0;
    return sl_api_fail(error, SLUICE_USAGE, "the tensor's shape and type do not give %llu bytes",
                       (unsigned long long)bytes);
}

static int grow_items(struct sluice_deposit *deposit, struct sluice_error *error)
{
    if (deposit->item_count < deposit->item_capacity)
        return 0;
    uint32_t capacity = deposit->item_capacity ? 2 * deposit->item_capacity : 64;
    struct sl_pool_item *items = sl_api_grow(deposit->items, capacity * sizeof(*items));
    if (!items)
        return no_memory(error);
    deposit->items = items;
    deposit->item_capacity = capacity;
    return 0;
}

int sluice_deposit_add(struct sluice_deposit *deposit, const char *name, const char *dtype,
                       uint32_t rank, const uint64_t *shape, const uint64_t *strides,
                       uint64_t bytes, void **data, struct sluice_error *error)
{
    const struct sl_pool_dtype *known = sl_pool_dtype_find(dtype);
    struct sl_pool_item item = {.kind = SL_WIRE_TENSOR, .rank = rank, .block_elements = 1};
    *data = NULL;
    if (check_open(deposit, error) < 0)
        return -1;
    if (!known || known->dlpack_bits % 8 || rank > SL_WIRE_RANK_MAX)
        return sl_api_fail(error, SLUICE_USAGE,
                           "a tensor of type '%.32s' and rank %u cannot be "
                           "deposited",
                           dtype, rank);
    item.block_bytes = known->dlpack_bits / 8;
    if (check_shape(&item, shape, strides, bytes, error) < 0 || grow_items(deposit, error) < 0 ||
        copy_texts(&item, name, dtype, shape, strides, error) < 0)
        return -1;
    if (bytes && take_room(deposit, bytes, &item, data, error) < 0) {
        free((void *)(uintptr_t)item.shape);
        return -1;
    }
    deposit->items[deposit->item_count++] = item;
    return 0;
}

/* ---- commit ---------------------------------------------------------------------------------- */

static int open_reader(int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* From now on nobody can write it; slab->fd becomes a read-only one. */
static int seal_on_host(struct slab *slab, struct sluice_error *error)
{
    enum { SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    int reader = open_reader(slab->fd);
    if (reader >= 0 && ftruncate(slab->fd, (off_t)slab->used) == 0 &&
        mmap(slab->map, slab->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, reader, 0) != MAP_FAILED &&
        fcntl(slab->fd, F_ADD_SEALS, SEALS) == 0) {
        close(slab->fd);
        slab->fd = reader;
        return 0;
    }
    sl_api_fail_errno(error, SLUICE_INTERNAL, "cannot seal a slab");
    if (reader >= 0)
        close(reader);
    return -1;
}

static int seal(const struct sluice_deposit *deposit, struct slab *slab, struct sluice_error *error)
{
    if (!deposit->device.cuda)
        return seal_on_host(slab, error);
    return sl_api_device_share(&deposit->device, slab->handle, slab->map, slab->bytes, &slab->fd,
                               error);
}

static struct sl_wire_index_slab row_of(const struct sluice_deposit *deposit,
                                        const struct slab *slab)
{
    struct sl_wire_index_slab row = {.bytes = slab->used, .kind = SL_WIRE_SLAB_MEMFD};
    if (deposit->device.cuda) {
        row.bytes = slab->bytes;
        row.kind = SL_WIRE_SLAB_DEVICE;
        memcpy(row.device, deposit->device.info.uuid, sizeof(row.device));
    }
    return row;
}

/* A sealed memfd with the index; read-only. */
static int write_index(const struct sluice_deposit *deposit, const struct sl_wire_index_slab *slabs,
                       uint64_t *bytes, struct sluice_error *error)
{
    enum { SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    struct sl_pool_contents contents = {.name = deposit->model,
                                        .key = deposit->key,
                                        .slabs = slabs,
                                        .slab_count = deposit->slab_count,
                                        .items = deposit->items,
                                        .item_count = deposit->item_count};
    memcpy(contents.identity, deposit->identity, sizeof(contents.identity));
    size_t size = sl_pool_index_size(&contents);
    if (!size)
        return sl_api_fail(error, SLUICE_NO_SPACE, "the deposit has too many tensors");
    int fd = memfd_create("sluice-index", MFD_CLOEXEC | MFD_ALLOW_SEALING), reader = -1;
    void *map = fd < 0 || ftruncate(fd, (off_t)size) < 0
                    ? MAP_FAILED
                    : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
        sl_pool_index_write(&contents, map);
        munmap(map, size);
        reader = fcntl(fd, F_ADD_SEALS, SEALS) == 0 ? open_reader(fd) : -1;
    }
    if (reader < 0)
        sl_api_fail_errno(error, SLUICE_NO_SPACE, "cannot write the deposit's index");
    if (fd >= 0)
        close(fd);
    *bytes = size;
    return reader;
}

static int send_slabs(struct sluice_deposit *deposit, struct sluice_error *error)
{
    for (uint32_t first = 0; first < deposit->slab_count;) {
        int fds[SL_WIRE_FDS_MAX];
        struct sl_pool_reply reply;
        struct sl_wire_slabs slabs = {.id = deposit->id, .first = first};
        while (slabs.count < SL_WIRE_FDS_MAX && first < deposit->slab_count)
            fds[slabs.count++] = deposit->slabs[first++].fd;
        if (sl_pool_link_ask(&deposit->link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), fds,
                             slabs.count, sizeof(struct sl_wire_id), &reply, error) < 0)
            return -1;
        sl_pool_reply_release(&reply);
    }
    return 0;
}

static int send_index(struct sluice_deposit *deposit, struct sluice_error *error)
{
    struct sl_wire_commit commit = {.id = deposit->id};
    struct sl_pool_reply reply;
    struct sl_wire_index_slab *slabs = sl_api_alloc((deposit->slab_count + 1) * sizeof(*slabs));
    if (!slabs)
        return no_memory(error);
    for (uint32_t i = 0; i < deposit->slab_count; i++)
        slabs[i] = row_of(deposit, &deposit->slabs[i]);
    int fd = write_index(deposit, slabs, &commit.index_bytes, error), done = -1;
    free(slabs);
    if (fd < 0)
        return -1;
    if (sl_pool_link_ask(&deposit->link, SL_WIRE_COMMIT, &commit, sizeof(commit), &fd, 1,
                         sizeof(struct sl_wire_id), &reply, error) == 0) {
        sl_pool_reply_release(&reply);
        done = 0;
    }
    close(fd);
    return done;
}

int sluice_deposit_commit(struct sluice_deposit *deposit, struct sluice_error *error)
{
    if (check_open(deposit, error) < 0)
        return -1;
    deposit->broken = true; /* until all of it has gone well */
    for (uint32_t i = 0; i < deposit->slab_count; i++)
        if (seal(deposit, &deposit->slabs[i], error) < 0)
            return -1;
    if (send_slabs(deposit, error) < 0 || send_index(deposit, error) < 0)
        return -1;
    deposit->broken = false;
    deposit->committed = true;
    return 0;
}
