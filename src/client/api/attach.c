/*
 * Attaching maps index, progress page and every slab whole, once; nothing is mapped later, so what
 * a tensor points to never moves. Everything that the daemon sends is checked as if it came from a
 * stranger: seals and sizes of files against what is said of them, the index by
 * sl_pool_index_check(). A slab on a GPU has no size that can be asked for: its driver refuses to
 * map more than there is.
 *
 * A model on a GPU may have slabs on the host, too: of data files.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api_memory.h"
#include "api_parts.h"
#include "pool_words.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { WAIT_SLICE_MS = 100, ANY_WRITE = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE };

const char *sluice_version(void)
{
    return SLUICE_VERSION;
}

/* ---- options --------------------------------------------------------------------------------- */

enum { KNOWN_FLAGS = SLUICE_PRESENT_ONLY | SLUICE_PRIVATE | SLUICE_KEEP_FDS | SLUICE_REGISTER };

/* Members that an older caller's struct lacks are as if they were zero. */
static int take_options(const struct sluice_attach_options *given,
                        struct sluice_attach_options *options, struct sluice_error *error)
{
    if (sl_api_check_size(given->size, error) < 0)
        return -1;
    sl_api_take(options, sizeof(*options), given);
    options->key = options->key ? options->key : "";
    options->device = options->device ? options->device : "host";
    return sl_api_check_flags(options->flags, KNOWN_FLAGS, error);
}

/* ---- mapping --------------------------------------------------------------------------------- */

static int size_is(int fd, uint64_t bytes, const char *what, struct sluice_error *error)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return sl_api_fail_errno(error, SLUICE_INTERNAL, "cannot look at %s of the pool", what);
    if (bytes == 0 || (uint64_t)status.st_size < bytes)
        return sl_api_fail(error, SLUICE_INTEGRITY, "%s of the pool is shorter than it should be",
                           what);
    return 0;
}

/* What is mapped must not change, nor shrink, which would be SIGBUS. F_SEAL_FUTURE_WRITE leaves the
 * daemon the mapping that it fills the memory through. */
static int check_seals(int fd, int against_writing, const char *what, struct sluice_error *error)
{
    enum { SHAPE = F_SEAL_SHRINK | F_SEAL_GROW };
    int seals = fcntl(fd, F_GET_SEALS);
    bool has_shape = seals >= 0 && (seals & SHAPE) == SHAPE;
    if (has_shape && seals & against_writing)
        return 0;
    return sl_api_fail(error, SLUICE_INTEGRITY,
                       "%s of the pool is not sealed against %s, so it could change while it is "
                       "read: is the daemon of another version?",
                       what, has_shape ? "writing" : "resizing");
}

static void *map_fd(int fd, uint64_t bytes, bool private, const char *what,
                    struct sluice_error *error)
{
    if (size_is(fd, bytes, what, error) < 0)
        return NULL;
    int protection = private ? PROT_READ | PROT_WRITE : PROT_READ;
    void *map =
        mmap(NULL, bytes, protection, private ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        return map;
    sl_api_fail_errno(error, SLUICE_NO_SPACE, "cannot map %s of the pool", what);
    return NULL;
}

static int map_index(struct sluice_model *model, const struct sl_wire_attached *attached, int fd,
                     struct sluice_error *error)
{
    char why[SL_POOL_WHY_BYTES];
    if (attached->index_bytes > SL_WIRE_INDEX_BYTES_MAX)
        return sl_api_fail(error, SLUICE_FORMAT, "the index of the pool is too large");
    if (check_seals(fd, F_SEAL_WRITE, "the index", error) < 0)
        return -1;
    model->index_map = map_fd(fd, attached->index_bytes, false, "the index", error);
    if (!model->index_map)
        return -1;
    model->index_bytes = attached->index_bytes;
    if (sl_pool_index_check(model->index_map, model->index_bytes, &model->index, why) < 0)
        return sl_api_fail(error, SLUICE_FORMAT, "the index of the pool cannot be used: %s", why);
    const struct sl_wire_index *head = model->index.head;
    if (head->tensor_count != attached->tensor_count || head->slab_count != attached->slab_count)
        return sl_api_fail(error, SLUICE_FORMAT, "the index of the pool is of another model");
    return 0;
}

static int map_page(struct sluice_model *model, const struct sl_wire_attached *attached, int fd,
                    struct sluice_error *error)
{
    uint64_t least =
        sizeof(struct sl_wire_page) + (uint64_t)attached->tensor_count * sizeof(uint32_t);
    if (attached->page_bytes < least)
        return sl_api_fail(error, SLUICE_FORMAT, "the progress page of the pool is too short");
    if (check_seals(fd, ANY_WRITE, "the progress page", error) < 0)
        return -1;
    model->page = map_fd(fd, attached->page_bytes, false, "the progress page", error);
    if (!model->page)
        return -1;
    model->page_bytes = attached->page_bytes;
    if (model->page->magic != SL_WIRE_PAGE_MAGIC ||
        model->page->header_bytes != sizeof(struct sl_wire_page) ||
        model->page->count != attached->tensor_count)
        return sl_api_fail(error, SLUICE_FORMAT, "the progress page of the pool cannot be read");
    return 0;
}

/* For all slabs of a GPU, when the first of them comes. */
static int reserve_range(struct sluice_model *model, struct sluice_error *error)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < model->index.head->slab_count; i++) {
        const struct sl_wire_index_slab *entry = &model->index.slabs[i];
        uint64_t bytes = sl_api_device_round(&model->device, entry->bytes);
        if (entry->kind != SL_WIRE_SLAB_DEVICE)
            continue;
        if (!bytes || bytes > INT64_MAX - all)
            return sl_api_fail(error, SLUICE_FORMAT,
                               "the index of the pool cannot be used: its slabs on the GPU have "
                               "more bytes than can be counted");
        all += bytes;
    }
    return sl_api_range_reserve(&model->device, &model->range, all, error);
}

static int map_on_device(struct sluice_model *model, const struct sl_wire_index_slab *entry, int fd,
                         struct sl_api_slab *slab, struct sluice_error *error)
{
    const struct sl_api_device *device = &model->device;
    if (!device->cuda || model->flags & SLUICE_REGISTER)
        return sl_api_fail(error, SLUICE_USAGE,
                           "the model is in memory of a GPU: name it as the device");
    if (memcmp(entry->device, device->info.uuid, sizeof(entry->device)) != 0)
        return sl_api_fail(error, SLUICE_GPU, "the model is on another GPU than cuda:%d",
                           device->info.ordinal);
    if (!model->range.bytes && reserve_range(model, error) < 0)
        return -1;
    slab->bytes = sl_api_device_round(device, entry->bytes);
    slab->on_device = true;
    return sl_api_range_map(device, &model->range, fd, slab->bytes, &slab->map, error);
}

/* Takes the descriptor. */
static int map_slab(struct sluice_model *model, int fd, struct sluice_error *error)
{
    const struct sl_wire_index_slab *entry = &model->index.slabs[model->slab_count];
    struct sl_api_slab *slab = &model->slabs[model->slab_count];
    int done = 0;
    *slab = (struct sl_api_slab){.bytes = entry->bytes, .fd = fd};
    if (entry->kind == SL_WIRE_SLAB_DEVICE)
        done = map_on_device(model, entry, fd, slab, error);
    else if (entry->kind != SL_WIRE_SLAB_MEMFD && entry->kind != SL_WIRE_SLAB_TMPFS)
        done = sl_api_fail(error, SLUICE_FORMAT, "the pool has memory of the unknown kind %u",
                           entry->kind);
    else if (entry->kind == SL_WIRE_SLAB_TMPFS || check_seals(fd, ANY_WRITE, "a slab", error) == 0)
        slab->map = map_fd(fd, entry->bytes, model->flags & SLUICE_PRIVATE, "a slab", error);
    if (done < 0 || !slab->map) {
        close(fd);
        return -1;
    }
    if (!(model->flags & SLUICE_KEEP_FDS)) {
        close(fd);
        slab->fd = -1;
    }
    model->slab_count++;
    return 0;
}

static int map_slabs(struct sluice_model *model, struct sl_pool_reply *reply, size_t first,
                     struct sluice_error *error)
{
    for (size_t i = first; i < reply->fd_count; i++) {
        int fd = reply->fds[i];
        reply->fds[i] = -1;
        if (map_slab(model, fd, error) < 0)
            return -1;
    }
    return 0;
}

/* The packets that bring the rest. */
static int receive_slabs(struct sluice_model *model, uint32_t slab_count,
                         struct sluice_error *error)
{
    struct sl_pool_reply reply;
    while (model->slab_count < slab_count) {
        if (sl_pool_link_receive(&model->link, SL_WIRE_ANSWER | SL_WIRE_SLABS,
                                 sizeof(struct sl_wire_slabs), &reply, error) < 0)
            return -1;
        const struct sl_wire_slabs *slabs = sl_pool_reply_data(&reply);
        bool fits = slabs->id == model->lease && slabs->first == model->slab_count &&
                    slabs->count == reply.fd_count && reply.fd_count &&
                    reply.fd_count <= slab_count - model->slab_count;
        int done = fits ? map_slabs(model, &reply, 0, error)
                        : sl_api_fail(error, SLUICE_INTERNAL,
                                      "the pool sends other slabs than "
                                      "it said");
        sl_pool_reply_release(&reply);
        if (done < 0)
            return -1;
    }
    return 0;
}

static int take_answer(struct sluice_model *model, struct sl_pool_reply *reply,
                       struct sluice_error *error)
{
    const struct sl_wire_attached *attached = sl_pool_reply_data(reply);
    if (reply->fd_count < 2 || reply->fd_count - 2 != attached->slabs_here ||
        attached->slabs_here > attached->slab_count || attached->slab_count > SL_WIRE_SLABS_MAX)
        return sl_api_fail(error, SLUICE_INTERNAL, "the pool sends other files than it says");
    model->lease = attached->lease;
    memcpy(model->identity, attached->identity, sizeof(model->identity));
    if (map_index(model, attached, reply->fds[0], error) < 0 ||
        map_page(model, attached, reply->fds[1], error) < 0)
        return -1;
    model->slabs = sl_api_alloc((attached->slab_count + 1) * sizeof(*model->slabs));
    if (!model->slabs)
        return sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
    if (map_slabs(model, reply, 2, error) < 0)
        return -1;
    if (receive_slabs(model, attached->slab_count, error) < 0)
        return -1;
    return model->range.bytes ? sl_api_range_allow(&model->device, &model->range, error) : 0;
}

/* ---- attach, detach -------------------------------------------------------------------------- */

static int ask(struct sluice_model *model, const struct sluice_attach_options *options,
               struct sluice_error *error)
{
    union {
        struct sl_wire_attach attach;
        char bytes[sizeof(struct sl_wire_attach) + SL_WIRE_MODEL_BYTES + SL_WIRE_KEY_BYTES +
                   SL_WIRE_DEVICE_BYTES];
    } packet = {0};
    struct sl_pool_reply reply;
    packet.attach.flags = options->flags & SLUICE_PRESENT_ONLY ? SL_WIRE_PRESENT_ONLY : 0;
    packet.attach.model_bytes = (uint16_t)strlen(options->model);
    packet.attach.key_bytes = (uint16_t)strlen(options->key);
    packet.attach.device_bytes = (uint16_t)strlen(options->device);
    size_t bytes = sl_pool_put_text(&packet, sizeof(packet.attach), options->model);
    bytes = sl_pool_put_text(&packet, bytes, options->key);
    bytes = sl_pool_put_text(&packet, bytes, options->device);
    if (sl_pool_link_ask(&model->link, SL_WIRE_ATTACH, &packet, bytes, NULL, 0,
                         sizeof(struct sl_wire_attached), &reply, error) < 0)
        return -1;
    int done = take_answer(model, &reply, error);
    sl_pool_reply_release(&reply);
    return done;
}

/* The GPU that is asked for, by the name that every process knows it by. */
static int open_device(struct sluice_model *model, struct sluice_attach_options *options,
                       char text[SL_API_DEVICE_TEXT_BYTES], struct sluice_error *error)
{
    bool registers = options->flags & SLUICE_REGISTER, private = options->flags & SLUICE_PRIVATE;
    bool named = sl_api_device_named(options->device);
    if (registers && (named || private))
        return sl_api_fail(error, SLUICE_USAGE,
                           "only memory of the host that is attached to read-only can be "
                           "registered with a GPU's driver");
    if (registers)
        return sl_api_device_open_current(&model->device, error);
    if (!named)
        return 0;
    if (private)
        return sl_api_fail(error, SLUICE_USAGE, "memory of a GPU has no private views");
    if (sl_api_device_open_named(&model->device, options->device, error) < 0)
        return -1;
    sl_api_device_text(&model->device, text);
    options->device = text;
    return 0;
}

/* All of them or none: many drivers pin no memory that is mapped to be read. Copies are slower
 * then, and nothing else is. */
static void register_slabs(struct sluice_model *model)
{
    struct sluice_error why = {0};
    if (!(model->flags & SLUICE_REGISTER))
        return;
    for (; model->registered < model->slab_count; model->registered++)
        if (sl_api_device_register(&model->device, model->slabs[model->registered].map,
                                   model->slabs[model->registered].bytes, &why) < 0)
            break;
    if (model->registered == model->slab_count)
        return;
    snprintf(model->unpinned, sizeof(model->unpinned), "%.500s", why.message);
    while (model->registered)
        sl_api_device_unregister(&model->device, model->slabs[--model->registered].map);
}

int sluice_attach(const struct sluice_attach_options *given, struct sluice_model **out,
                  struct sluice_error *error)
{
    struct sluice_attach_options options;
    char device[SL_API_DEVICE_TEXT_BYTES];
    if (take_options(given, &options, error) < 0 ||
        sl_pool_check_texts(options.model, options.key, options.device, error) < 0)
        return -1;
    struct sluice_model *model = sl_api_alloc(sizeof(*model));
    if (!model)
        return sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
    model->owners = 1;
    model->flags = options.flags;
    model->link.fd = -1;
    pthread_mutex_init(&model->lock, NULL);
    struct sl_limit limit =
        sl_limit_make(options.timeout_ms > 0 ? options.timeout_ms : -1, options.cancel_fd);
    limit.awaits_socket = options.timeout_ms > 0;
    if (open_device(model, &options, device, error) < 0 ||
        sl_pool_link_open(&model->link, options.socket, options.client, limit, error) < 0 ||
        ask(model, &options, error) < 0) {
        sluice_detach(model);
        return -1;
    }
    register_slabs(model);
    *out = model;
    return 0;
}

static void release_slab(struct sluice_model *model, size_t number)
{
    struct sl_api_slab *slab = &model->slabs[number];
    if (number < model->registered)
        sl_api_device_unregister(&model->device, slab->map);
    if (!slab->on_device)
        munmap(slab->map, slab->bytes);
    if (slab->fd >= 0)
        close(slab->fd);
}

void sluice_hold(struct sluice_model *model)
{
    sl_refcount_add(&model->owners);
}

void sluice_detach(struct sluice_model *model)
{
    if (!model || !sl_refcount_drop(&model->owners))
        return;
    sl_api_device_settle(&model->device, model->registered);
    for (size_t i = 0; i < model->slab_count; i++)
        release_slab(model, i);
    sl_api_range_release(&model->device, &model->range);
    sl_api_stages_free(model);
    sl_api_device_close(&model->device);
    if (model->page)
        munmap((void *)(uintptr_t)model->page, model->page_bytes);
    if (model->index_map)
        munmap(model->index_map, model->index_bytes);
    sl_pool_link_close(&model->link); /* last: the lease covers what is mapped */
    pthread_mutex_destroy(&model->lock);
    free(model->slabs);
    free(model->by_name);
    free(model->places);
    free(model);
}

/* ---- waiting --------------------------------------------------------------------------------- */

int sluice_ready(const struct sluice_model *model, uint64_t number)
{
    if (number >= model->index.head->tensor_count)
        return -1;
    uint32_t word = sl_word_get(&model->page->words[number]);
    return word == SL_WORD_READY ? 1 : word == SL_WORD_LOADING ? 0 : -1;
}

/* The load's own error, from the page. */
static int fail_as_load(const struct sluice_model *model, struct sluice_error *error)
{
    const struct sl_wire_page *page = model->page;
    int kind = page->error_kind ? (int)page->error_kind : SLUICE_INTERNAL;
    sl_api_fail(error, kind, "the load failed: %.*s", (int)sizeof(page->error_text) - 1,
                page->error_text);
    if (error)
        memcpy(error->code, page->error_code, sizeof(error->code) - 1);
    return -1;
}

/* Sleep until the word is no longer `value`, in slices between which everything else that may end
 * the waiting is looked at. */
static int wait_word(const struct sluice_model *model, const uint32_t *word, uint32_t value,
                     const struct sl_limit *limit, struct sluice_error *error)
{
    while (sl_word_get(word) == value) {
        int left = sl_limit_left(limit, WAIT_SLICE_MS, error);
        if (left < 0)
            return -1;
        sl_word_wait(word, value, (unsigned)left);
        bool lost = sl_pool_link_lost(&model->link); /* first: it may have set the word and gone */
        if (lost && sl_word_get(word) == value)
            return sl_api_fail(error, SLUICE_NETWORK,
                               "the pool's daemon has gone before the load ended: what is ready "
                               "stays, attach again for the rest");
    }
    return 0;
}

static int wait_tensor(const struct sluice_model *model, uint64_t number,
                       const struct sl_limit *limit, struct sluice_error *error)
{
    if (number >= model->index.head->tensor_count)
        return sl_api_fail(error, SLUICE_USAGE, "there is no tensor %llu",
                           (unsigned long long)number);
    if (wait_word(model, &model->page->words[number], SL_WORD_LOADING, limit, error) < 0)
        return -1;
    return sluice_ready(model, number) == 1 ? 0 : fail_as_load(model, error);
}

struct waiting {
    const struct sluice_model *model;
    struct sl_limit limit;
    struct sluice_error *error;
};

static int wait_neighbour(void *arg, uint32_t number)
{
    const struct waiting *waiting = arg;
    return wait_tensor(waiting->model, number, &waiting->limit, waiting->error);
}

int sluice_wait(const struct sluice_model *model, uint64_t number, int timeout_ms, int cancel_fd,
                struct sluice_error *error)
{
    struct waiting waiting = {model, sl_limit_make(timeout_ms, cancel_fd), error};
    if (wait_tensor(model, number, &waiting.limit, error) < 0)
        return -1;
    if (!(model->flags & SLUICE_PRIVATE))
        return 0;
    /* What is made there once, under the lock, changes nothing that a caller sees. */
    return sl_api_each_neighbour((struct sluice_model *)(uintptr_t)model, (uint32_t)number,
                                 wait_neighbour, &waiting, error);
}

int sluice_wait_read(const struct sluice_model *model, uint64_t number, int timeout_ms,
                     int cancel_fd, struct sluice_error *error)
{
    struct sl_limit limit = sl_limit_make(timeout_ms, cancel_fd);
    return wait_tensor(model, number, &limit, error);
}

int sluice_wait_all(const struct sluice_model *model, int timeout_ms, int cancel_fd,
                    struct sluice_error *error)
{
    struct sl_limit limit = sl_limit_make(timeout_ms, cancel_fd);
    if (wait_word(model, &model->page->state, SL_WIRE_LOADING, &limit, error) < 0)
        return -1;
    return sl_word_get(&model->page->state) == SL_WIRE_READY ? 0 : fail_as_load(model, error);
}
