/*
 * What a depositor makes the server do: announce, hand over slabs, commit an index. The input is a
 * script: sizes, seals and order from its first bytes, the rest patches of an index that fits, or
 * is the index. A deposit that is taken must be what was announced, by what its files say, and
 * every tensor must lie where it can be read; whatever is not taken leaves nothing behind.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool_index.h"
#include "pool_index_write.h"
#include "pool_link.h"
#include "pool_parts.h"
#include "pool_start.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SLABS_MAX = 6, INDEX_MAX = 16384, TENSORS = 3 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_pool_model *taken;      /* by the commit */
static int64_t begun_now;                /* deposits that neither ended nor were aborted */
static const uint8_t identity[32] = {7}; /* of every deposit */

/* ---- the owner ------------------------------------------------------------------------------- */

static int begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err)
{
    (void)arg, (void)offer, (void)err;
    SL_LOCKED(&lock);
    begun_now++;
    return 0;
}

static int commit(void *arg, const struct sl_pool_offer *offer, struct sl_pool_model *model,
                  struct sl_err *err)
{
    (void)arg, (void)err;
    if (model->copies[0]->bytes > offer->bytes || memcmp(model->identity, identity, 32) != 0)
        abort(); /* more than was announced, or something else */
    SL_LOCKED(&lock);
    begun_now--;
    taken = model;
    return 0;
}

static void aborted(void *arg, const struct sl_pool_offer *offer)
{
    (void)arg, (void)offer;
    SL_LOCKED(&lock);
    begun_now--;
}

static void start(void)
{
    static const struct sl_pool_handler handler = {
        .deposit_begin = begin, .deposit_commit = commit, .deposit_abort = aborted};
    start_pool(&handler, (struct sl_pool_server_config){.deposit = {.all = true}});
}

/* ---- the depositor --------------------------------------------------------------------------- */

struct script {
    const uint8_t *data;
    size_t left;
};

static uint8_t next(struct script *script)
{
    if (!script->left)
        return 0;
    script->left--;
    return *script->data++;
}

/* Near the limits as often as not. */
static uint64_t next_size(struct script *script)
{
    static const uint64_t corners[] = {0,
                                       1,
                                       4095,
                                       4096,
                                       8192,
                                       1 << 20,
                                       1ull << 32,
                                       (1ull << 62),
                                       (1ull << 63) - 4096,
                                       INT64_MAX,
                                       1ull << 63,
                                       UINT64_MAX - 4095,
                                       UINT64_MAX};
    uint8_t what = next(script);
    if (what < 128)
        return 4096ull * (1 + what % 8);
    return corners[what % SL_COUNT(corners)] + (what >= 224 ? next(script) : 0);
}

static int make_file(uint64_t bytes, uint8_t how)
{
    int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    int fd = how % 16 == 15 ? open("/dev/null", O_RDONLY | O_CLOEXEC)
                            : memfd_create("f", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || (bytes <= INT64_MAX && how % 16 != 15 && ftruncate(fd, (off_t)bytes) < 0))
        return fd;
    if (how % 16 == 14)
        fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4 << 20);
    if (how % 16 < 13)
        fcntl(fd, F_ADD_SEALS, seals);
    else if (how % 16 == 13)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    return fd;
}

/* An index that fits these slabs, then patched by what is left of the script. */
static size_t make_index(struct script *script, const uint64_t *sizes, uint32_t count,
                         uint64_t index[INDEX_MAX / 8])
{
    static const uint64_t shape[2] = {10, 10}, strides[2] = {10, 1};
    struct sl_wire_index_slab slabs[SLABS_MAX] = {{0}};
    struct sl_pool_item items[TENSORS] = {{0}};
    struct sl_pool_contents contents = {.name = "m",
                                        .key = "k",
                                        .slabs = slabs,
                                        .slab_count = count,
                                        .items = items,
                                        .item_count = count ? TENSORS : 0};
    for (uint32_t i = 0; i < count; i++)
        slabs[i] = (struct sl_wire_index_slab){.bytes = sizes[i], .kind = 1};
    for (uint32_t i = 0; i < TENSORS; i++)
        items[i] = (struct sl_pool_item){.name = "abc" + i,
                                         .name_bytes = 1,
                                         .dtype = "F32",
                                         .kind = SL_WIRE_TENSOR,
                                         .rank = 2,
                                         .shape = shape,
                                         .strides = i == 2 ? strides : NULL,
                                         .slab = count ? i % count : 0,
                                         .block_elements = 1,
                                         .block_bytes = 4,
                                         .offset = 1024 * i,
                                         .bytes = 400};
    memcpy(contents.identity, identity, sizeof(identity));
    size_t bytes = sl_pool_index_size(&contents);
    sl_pool_index_write(&contents, index);
    while (script->left >= 4) {
        size_t at = (size_t)next(script) | (size_t)next(script) << 8;
        uint8_t value = next(script), width = next(script) % 8 + 1;
        for (size_t i = 0; i < width && at + i < bytes; i++)
            ((uint8_t *)index)[at + i] = value;
    }
    return bytes;
}

static int ask(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes, const int *fds,
               size_t count, uint64_t *id)
{
    struct sl_pool_reply reply;
    struct sluice_error error = {0};
    if (sl_pool_link_ask(link, type, packet, bytes, fds, count, sizeof(struct sl_wire_id), &reply,
                         &error) < 0)
        return -1;
    *id = ((const struct sl_wire_id *)sl_pool_reply_data(&reply))->id;
    sl_pool_reply_release(&reply);
    return 0;
}

static int commit_index(struct sl_pool_link *link, struct script *script, uint64_t id,
                        const uint64_t *sizes, uint32_t count)
{
    static uint64_t index[INDEX_MAX / 8];
    uint8_t how = next(script);
    bool raw = next(script) % 8 == 7;
    int64_t lie = (int8_t)next(script);
    size_t bytes;
    if (raw) {
        bytes = script->left < INDEX_MAX ? script->left : INDEX_MAX;
        memcpy(index, script->data, bytes);
    } else {
        bytes = make_index(script, sizes, count, index);
    }
    int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    int fd = memfd_create("i", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || write(fd, index, bytes) != (ssize_t)bytes)
        abort();
    if (how % 8)
        fcntl(fd, F_ADD_SEALS, seals);
    struct sl_wire_commit packet = {.id = id, .index_bytes = bytes};
    if (lie < -64)
        packet.index_bytes += (uint64_t)lie;
    int done = ask(link, SL_WIRE_COMMIT, &packet, sizeof(packet), &fd, 1, &id);
    close(fd);
    return done;
}

static void deposit(struct sl_pool_link *link, struct script *script)
{
    struct {
        struct sl_wire_deposit deposit;
        char texts[2];
    } packet = {.deposit = {.model_bytes = 1, .key_bytes = 1}, .texts = "mk"};
    uint64_t id, sizes[SLABS_MAX];
    int fds[SLABS_MAX];
    uint32_t count = next(script) % (SLABS_MAX + 1);
    packet.deposit.bytes = next_size(script);
    memcpy(packet.deposit.identity, identity, sizeof(identity));
    if (ask(link, SL_WIRE_DEPOSIT, &packet, sizeof(packet.deposit) + 2, NULL, 0, &id) < 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = next_size(script);
        fds[i] = make_file(sizes[i], next(script));
        if (fds[i] < 0)
            abort();
    }
    struct sl_wire_slabs slabs = {.id = id, .count = count};
    uint64_t same;
    if (count && ask(link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), fds, count, &same) < 0)
        abort();
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    if (next(script) % 8 != 7)
        commit_index(link, script, id, sizes, count);
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* All of it is where its index says, and what its files say is what it counts with. */
static void check(const struct sl_pool_copy *copy)
{
    char why[SL_POOL_WHY_BYTES];
    struct sl_pool_index index;
    uint64_t sum = 0;
    void *map = mmap(NULL, copy->index_bytes, PROT_READ, MAP_SHARED, copy->index_fd, 0);
    if (map == MAP_FAILED || sl_pool_index_check(map, copy->index_bytes, &index, why) < 0)
        abort();
    for (size_t i = 0; i < copy->slab_count; i++) {
        struct stat status;
        if (fstat(copy->slabs[i].reader_fd, &status) < 0 ||
            __builtin_add_overflow(sum, (uint64_t)status.st_size, &sum) ||
            (uint64_t)status.st_size != index.slabs[i].bytes)
            abort();
    }
    if (sum != copy->bytes)
        abort();
    for (uint32_t i = 0; i < index.head->tensor_count; i++) {
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&index, i);
        uint8_t byte;
        if (tensor->bytes && pread(copy->slabs[tensor->slab].reader_fd, &byte, 1,
                                   (off_t)(tensor->offset + tensor->bytes - 1)) != 1)
            abort();
    }
    munmap(map, copy->index_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_pool_link link;
    struct script script = {data, bytes};
    if (!server)
        start();
    if (sl_pool_link_open(&link, path, "fuzz", sl_limit_make(60000, -1), NULL) < 0)
        abort();
    deposit(&link, &script);
    sl_pool_link_close(&link);
    if (sl_pool_link_open(&link, path, "probe", sl_limit_make(60000, -1), NULL) < 0)
        abort();
    sl_pool_link_close(&link);
    struct sl_pool_model *model;
    {
        SL_LOCKED(&lock);
        model = sl_steal(&taken);
        if (begun_now != 0)
            abort(); /* its connection ended before the probe's began to be served */
    }
    if (model)
        check(model->copies[0]);
    sl_pool_model_free(model);
    return 0;
}
