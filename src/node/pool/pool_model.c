/*
 * A model's state is what its progress page says: others read it there, so it is kept nowhere else.
 * The page is a memfd of which this process has the only writable mapping; it is sealed against any
 * other. Its text of an error is written before its state, and the state is set once.
 */
#include "pool_model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "metrics.h"
#include "pool_index.h"
#include "pool_parts.h"
#include "pool_words.h"

/* ---- life ------------------------------------------------------------------------------------ */

struct sl_pool_model *sl_pool_model_new(const char *name, const char *key, struct sl_err *err)
{
    struct sl_pool_model *model = sl_alloc(sizeof(*model), err);
    if (!model)
        return NULL;
    model->made_seconds = sl_wall_seconds();
    pthread_mutex_init(&model->lock, NULL);
    model->name = sl_strdup(name, err);
    model->key = model->name ? sl_strdup(key, err) : NULL;
    if (model->key)
        return model;
    sl_pool_model_free(model);
    return NULL;
}

static int add_copy(struct sl_pool_model *model, struct sl_pool_copy *copy, struct sl_err *err)
{
    if (model->copy_count == SL_POOL_COPIES_MAX)
        return sl_fail(err, SL_E_NO_SPACE, "a model has no more than %d copies",
                       SL_POOL_COPIES_MAX);
    copy->model = model;
    model->copies[model->copy_count++] = copy;
    model->placement |= SL_PLACEMENT(sl_pool_copy_space(copy));
    return 0;
}

struct sl_pool_copy *sl_pool_copy_new(struct sl_pool_model *model, struct sl_gpu *gpu,
                                      struct sl_err *err)
{
    struct sl_pool_copy *copy = sl_alloc(sizeof(*copy), err);
    if (!copy)
        return NULL;
    copy->gpu = gpu;
    copy->index_fd = copy->page_fd = -1;
    if (add_copy(model, copy, err) == 0)
        return copy;
    free(copy);
    return NULL;
}

/* In the metrics. A model is there as soon as its first copy is. */
static void count_model(struct sl_pool_model *model, bool counts)
{
    if (model->counted != counts)
        sl_metric_add(SL_M_POOL_MODELS, counts ? 1 : -1);
    model->counted = counts;
}

static void count_copy(struct sl_pool_copy *copy, bool counts)
{
    int sign = counts - copy->counted;
    sl_metric_add(SL_M_POOL_SLABS, sign * (int64_t)copy->slab_count);
    sl_metric_add(SL_M_POOL_BYTES, sign * (int64_t)copy->bytes);
    copy->counted = counts;
}

static void free_copy(struct sl_pool_copy *copy)
{
    count_copy(copy, false);
    for (size_t i = 0; copy->slabs && i < copy->slab_count; i++)
        sl_slab_release(&copy->slabs[i]);
    if (copy->page)
        munmap(copy->page, copy->page_bytes);
    if (copy->page_fd >= 0)
        close(copy->page_fd);
    if (copy->index_fd >= 0)
        close(copy->index_fd);
    free(copy->slabs);
    free(copy->slab_of_file);
    free(copy);
}

void sl_pool_model_free(struct sl_pool_model *model)
{
    if (!model)
        return;
    count_model(model, false);
    for (size_t i = 0; i < model->copy_count; i++)
        free_copy(model->copies[i]);
    pthread_mutex_destroy(&model->lock);
    free(model->name);
    free(model->key);
    free(model);
}

int sl_pool_copy_set_index(struct sl_pool_copy *copy, const void *index, size_t bytes,
                           struct sl_err *err)
{
    copy->index_fd = sl_memfd_of("sluice-index", index, bytes, err);
    copy->index_bytes = bytes;
    return copy->index_fd < 0 ? -1 : 0;
}

static void fill_page(struct sl_pool_copy *copy, uint32_t word, enum sl_pool_state state)
{
    struct sl_wire_page *page = copy->page;
    page->magic = SL_WIRE_PAGE_MAGIC;
    page->version = SL_WIRE_INDEX_VERSION;
    page->header_bytes = SL_WIRE_PAGE_HEADER_BYTES;
    page->count = (uint32_t)copy->tensor_count;
    page->state = state;
    page->ready_count = word == SL_WORD_READY ? page->count : 0;
    for (size_t i = 0; i < copy->tensor_count; i++)
        page->words[i] = word;
}

int sl_pool_copy_make_page(struct sl_pool_copy *copy, uint32_t word, enum sl_pool_state state,
                           struct sl_err *err)
{
    size_t bytes = sizeof(struct sl_wire_page) + copy->tensor_count * sizeof(uint32_t);
    sl_autoclose int fd = sl_memfd_make("sluice-progress", bytes, err);
    if (fd < 0)
        return -1;
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot map a progress page");
    copy->page = page;
    copy->page_bytes = bytes;
    fill_page(copy, word, state);
    if (sl_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, "a progress page",
                      err) < 0)
        return -1;
    copy->page_fd = sl_memfd_reader(fd, err);
    if (copy->page_fd < 0)
        return -1;
    count_copy(copy, true); /* its slabs are there: the page comes last */
    count_model(copy->model, true);
    return 0;
}

/* ---- what it is ------------------------------------------------------------------------------ */

const char *sl_pool_model_name(const struct sl_pool_model *model)
{
    return model->name;
}
const char *sl_pool_model_key(const struct sl_pool_model *model)
{
    return model->key;
}
const uint8_t *sl_pool_model_identity(const struct sl_pool_model *model)
{
    return model->identity;
}
uint32_t sl_pool_model_placement(const struct sl_pool_model *model)
{
    return model->placement;
}
void sl_pool_model_set_placement(struct sl_pool_model *model, uint32_t placement)
{
    model->placement = placement;
}
enum sl_slab_kind sl_pool_model_kind(const struct sl_pool_model *model)
{
    const struct sl_pool_copy *first = model->copies[0];
    return first->slab_count ? first->slabs[0].kind : SL_SLAB_MEMFD;
}
const char *sl_pool_model_memory(const struct sl_pool_model *model)
{
    return model->copies[0]->memory;
}

void sl_pool_model_set_made(struct sl_pool_model *model, int64_t made_seconds)
{
    model->made_seconds = made_seconds;
}

bool sl_pool_model_owner(const struct sl_pool_model *model, uint32_t *uid)
{
    *uid = model->owner;
    return model->has_owner;
}

uint32_t sl_pool_model_giver(const struct sl_pool_model *model)
{
    return model->giver;
}

void sl_pool_model_set_owner(struct sl_pool_model *model, uint32_t owner, uint32_t uid)
{
    model->owner = owner;
    model->giver = uid;
    model->has_owner = true;
}

/* ---- its copies ------------------------------------------------------------------------------ */

size_t sl_pool_model_copies(const struct sl_pool_model *model)
{
    return model->copy_count;
}

struct sl_pool_copy *sl_pool_model_copy(const struct sl_pool_model *model, size_t number)
{
    return number < model->copy_count ? model->copies[number] : NULL;
}

struct sl_pool_copy *sl_pool_model_copy_in(const struct sl_pool_model *model, unsigned space)
{
    for (size_t i = 0; i < model->copy_count; i++)
        if (sl_pool_copy_space(model->copies[i]) == space)
            return model->copies[i];
    return NULL;
}

uint64_t sl_pool_model_bytes(const struct sl_pool_model *model)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < model->copy_count; i++)
        bytes = SL_MAX(bytes, sl_pool_copy_bytes(model->copies[i]));
    return bytes;
}

int sl_pool_model_join(struct sl_pool_model *model, struct sl_pool_model *from, struct sl_err *err)
{
    if (add_copy(model, from->copies[0], err) < 0)
        return -1;
    from->copy_count = 0;
    sl_pool_model_free(from);
    return 0;
}

struct sl_pool_model *sl_pool_copy_model(const struct sl_pool_copy *copy)
{
    return copy->model;
}
unsigned sl_pool_copy_space(const struct sl_pool_copy *copy)
{
    return copy->gpu ? SL_SPACE_GPU + (unsigned)sl_gpu_device(copy->gpu)->ordinal : SL_SPACE_HOST;
}
const struct sl_cuda_device *sl_pool_copy_device(const struct sl_pool_copy *copy)
{
    for (size_t i = 0; i < copy->slab_count; i++)
        if (copy->slabs[i].gpu)
            return sl_gpu_device(copy->slabs[i].gpu);
    return NULL;
}
uint64_t sl_pool_copy_bytes(const struct sl_pool_copy *copy)
{
    return copy->bytes + copy->index_bytes + copy->page_bytes;
}
size_t sl_pool_copy_index_bytes(const struct sl_pool_copy *copy)
{
    return copy->index_bytes;
}
size_t sl_pool_copy_page_bytes(const struct sl_pool_copy *copy)
{
    return copy->page_bytes;
}
size_t sl_pool_copy_slab_count(const struct sl_pool_copy *copy)
{
    return copy->slab_count;
}
size_t sl_pool_copy_tensor_count(const struct sl_pool_copy *copy)
{
    return copy->tensor_count;
}
const char *sl_pool_copy_memory(const struct sl_pool_copy *copy)
{
    return copy->memory;
}

size_t sl_pool_copy_fds(const struct sl_pool_copy *copy, size_t first, int *fds, size_t most)
{
    size_t count = 2 + copy->slab_count;
    for (size_t i = first; i < count && i - first < most; i++)
        fds[i - first] = i == 0   ? copy->index_fd
                         : i == 1 ? copy->page_fd
                                  : copy->slabs[i - 2].reader_fd;
    return count;
}

/* ---- how far it is --------------------------------------------------------------------------- */

void sl_pool_copy_view(const struct sl_pool_copy *copy, struct sl_pool_view *view)
{
    struct sl_wire_page *page = copy->page;
    *view = (struct sl_pool_view){
        .state = (enum sl_pool_state)sl_word_get(&page->state),
        .ready_count = sl_word_get(&page->ready_count),
        .bytes_done = sl_number_get(&page->bytes_done),
        .made_seconds = copy->model->made_seconds,
    };
    if (view->state == SL_POOL_FAILED)
        view->err = copy->model->locked.err; /* set before the state: no other thread changes it */
}

void sl_pool_model_view(const struct sl_pool_model *model, struct sl_pool_view *view)
{
    sl_pool_copy_view(model->copies[0], view);
}

void sl_pool_copy_set_ready(struct sl_pool_copy *copy, size_t number)
{
    struct sl_wire_page *page = copy->page;
    SL_LOCKED(&copy->model->lock);
    if (page->state != SL_WIRE_LOADING)
        return;
    sl_word_set(&page->words[number], SL_WORD_READY);
    sl_word_set(&page->ready_count, page->ready_count + 1);
}

void sl_pool_model_landed(struct sl_pool_model *model, uint64_t bytes)
{
    SL_LOCKED(&model->lock);
    for (size_t i = 0; i < model->copy_count; i++) {
        struct sl_pool_copy *copy = model->copies[i];
        uint64_t done = copy->page->bytes_done + bytes; /* bytes that came wrong land twice */
        sl_number_set(&copy->page->bytes_done, SL_MIN(done, copy->bytes));
    }
}

int sl_pool_copy_give_out(struct sl_pool_copy *copy, struct sl_err *err)
{
    SL_LOCKED(&copy->model->lock);
    for (size_t i = 0; i < copy->slab_count; i++)
        if (sl_slab_give_out(&copy->slabs[i], err) < 0)
            return sl_wrap(err, "slab %zu of '%s'", i, copy->model->name);
    return 0;
}

uint8_t *sl_pool_copy_map(struct sl_pool_copy *copy, const struct sl_slab *slab)
{
    SL_LOCKED(&copy->model->lock);
    return slab->map;
}

static int seal(struct sl_pool_model *model, struct sl_pool_copy *copy, struct sl_err *err)
{
    SL_LOCKED(&model->lock);
    for (size_t i = 0; i < copy->slab_count; i++)
        if (sl_slab_seal(&copy->slabs[i], err) < 0)
            return -1;
    return 0;
}

/* Without the lock: a driver may hang, and who gives copies out takes it. */
static void unmap_gpus(const struct sl_pool_model *model)
{
    for (size_t i = 0; i < model->copy_count; i++)
        for (size_t n = 0; n < model->copies[i]->slab_count; n++)
            sl_slab_unmap_gpu(&model->copies[i]->slabs[n]);
}

int sl_pool_model_finish(struct sl_pool_model *model, struct sl_err *err)
{
    unmap_gpus(model);
    for (size_t i = 0; i < model->copy_count; i++)
        if (seal(model, model->copies[i], err) < 0)
            return -1;
    SL_LOCKED(&model->lock);
    for (size_t i = 0; i < model->copy_count; i++)
        if (model->copies[i]->page->state == SL_WIRE_LOADING)
            sl_word_set(&model->copies[i]->page->state, SL_WIRE_READY);
    return 0;
}

static void write_error(struct sl_wire_page *page, const struct sl_err *why)
{
    page->error_kind = (uint32_t)sl_err_exit(why);
    snprintf(page->error_code, sizeof(page->error_code), "%s", why->code);
    snprintf(page->error_text, sizeof(page->error_text), "%.*s", (int)sizeof(page->error_text) - 1,
             why->message);
}

static void fail_copy(struct sl_pool_copy *copy, const struct sl_err *why)
{
    struct sl_wire_page *page = copy->page;
    write_error(page, why);
    sl_word_set(&page->state, SL_WIRE_FAILED);
    for (size_t i = 0; i < copy->tensor_count; i++)
        if (page->words[i] == SL_WORD_LOADING)
            sl_word_set(&page->words[i], SL_WORD_FAILED);
    sl_word_set(&page->ready_count, page->ready_count); /* whoever waits for any of them */
}

void sl_pool_model_fail(struct sl_pool_model *model, const struct sl_err *why)
{
    SL_LOCKED(&model->lock);
    if (model->copies[0]->page->state != SL_WIRE_LOADING)
        return;
    model->locked.err = *why;
    for (size_t i = 0; i < model->copy_count; i++)
        fail_copy(model->copies[i], why);
}

void sl_pool_model_give_up(struct sl_pool_model *model)
{
    unmap_gpus(model);
    SL_LOCKED(&model->lock);
    for (size_t i = 0; i < model->copy_count; i++)
        for (size_t n = 0; n < model->copies[i]->slab_count; n++)
            sl_slab_give_up(&model->copies[i]->slabs[n]);
}

/* ---- from another process -------------------------------------------------------------------- */

static int check_index_fd(int fd, uint64_t *bytes, struct sl_err *err)
{
    enum { WANTED = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & WANTED) != WANTED)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the index is not a memfd that is sealed against writing and resizing");
    if (fstat(fd, &status) < 0 || status.st_size < 0 || status.st_size > SL_WIRE_INDEX_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "the index is larger than %d bytes",
                       SL_WIRE_INDEX_BYTES_MAX);
    *bytes = (uint64_t)status.st_size;
    return 0;
}

static int adopt_slab(const struct sl_wire_index_slab *entry, struct sl_gpu *gpu, int *fd,
                      struct sl_slab *slab, struct sl_err *err)
{
    if (entry->kind == SL_SLAB_MEMFD)
        return sl_slab_adopt(fd, entry->bytes, slab, err);
    if (entry->kind != SL_SLAB_GPU || !gpu)
        return sl_fail(err, SL_E_FORMAT, "it is of kind %u, not a memfd%s", entry->kind,
                       gpu ? " or memory of a GPU" : "");
    if (memcmp(entry->device, sl_gpu_device(gpu)->uuid, sizeof(entry->device)) != 0)
        return sl_fail(err, SL_E_INTEGRITY, "it is of another GPU than the model");
    return sl_slab_adopt_gpu(gpu, fd, entry->bytes, slab, err);
}

static int adopt_slabs(struct sl_pool_copy *copy, const struct sl_pool_index *index, int *slab_fds,
                       struct sl_err *err)
{
    for (uint32_t i = 0; i < index->head->slab_count; i++) {
        if (adopt_slab(&index->slabs[i], copy->gpu, &slab_fds[i], &copy->slabs[i], err) < 0)
            return sl_wrap(err, "slab %u", i);
        slab_fds[i] = -1;
        copy->slab_count = i + 1;
        copy->bytes += index->slabs[i].bytes;
    }
    return 0;
}

/* One context for all slabs: each takes as long to make as a small model takes to load. */
static int adopt_all_slabs(struct sl_pool_copy *copy, const struct sl_pool_index *index,
                           int *slab_fds, struct sl_err *err)
{
    if (copy->gpu && sl_gpu_hold(copy->gpu, err) < 0)
        return -1;
    int done = adopt_slabs(copy, index, slab_fds, err);
    if (copy->gpu)
        sl_gpu_unhold(copy->gpu);
    return done;
}

/* What the checked index says of the whole model. */
static int take_over(struct sl_pool_model *model, const struct sl_pool_index *index,
                     struct sl_gpu *gpu, int *slab_fds, size_t slab_count, struct sl_err *err)
{
    if (index->head->slab_count != slab_count)
        return sl_fail(err, SL_E_FORMAT, "the index has %u slabs, and %zu were received",
                       index->head->slab_count, slab_count);
    struct sl_pool_copy *copy = sl_pool_copy_new(model, gpu, err);
    if (!copy)
        return -1;
    memcpy(model->identity, index->head->identity, sizeof(model->identity));
    copy->tensor_count = index->head->tensor_count;
    copy->slabs = sl_alloc_array(slab_count, sizeof(*copy->slabs), err);
    if (!copy->slabs || adopt_all_slabs(copy, index, slab_fds, err) < 0)
        return -1;
    struct sl_slab_place place = {.why = "sealed memfds"};
    if (gpu)
        sl_slab_place_gpu(gpu, &place);
    snprintf(copy->memory, sizeof(copy->memory), "%s", place.why);
    return sl_pool_copy_make_page(copy, SL_WORD_READY, SL_POOL_READY, err);
}

/* Where a model that is handed over may lie. */
struct where {
    struct sl_gpu *gpu;              /* there, or on the host; NULL: */
    const struct sl_pool_gpus *gpus; /* wherever this finds it; NULL: on the host */
    uint64_t most_bytes;             /* of all slabs; 0: no matter */
};

static int find_gpu(const struct where *where, const struct sl_pool_index *index,
                    struct sl_gpu **gpu, struct sl_err *err)
{
    *gpu = where->gpu;
    for (uint32_t i = 0; !*gpu && where->gpus && i < index->head->slab_count; i++) {
        const struct sl_wire_index_slab *slab = &index->slabs[i];
        if (slab->kind != SL_SLAB_GPU)
            continue;
        *gpu = where->gpus->find(where->gpus->arg, slab->device, err);
        if (!*gpu)
            return -1;
    }
    return 0;
}

static struct sl_pool_model *adopt_mapped(const struct where *where, const char *name,
                                          const void *map, size_t bytes, int *slab_fds,
                                          size_t slab_count, struct sl_err *err)
{
    struct sl_gpu *gpu;
    struct sl_pool_index index;
    char why[SL_POOL_WHY_BYTES];
    if (sl_pool_index_check(map, bytes, &index, why) < 0) {
        sl_fail(err, SL_E_FORMAT, "the index cannot be used: %s", why);
        return NULL;
    }
    const char *own = sl_pool_index_text(&index, index.head->name_at);
    if (name && strcmp(name, own) != 0) {
        sl_fail(err, SL_E_FORMAT, "the index is of the model '%.200s', not '%.200s'", own, name);
        return NULL;
    }
    if (where->most_bytes && index.slab_bytes > where->most_bytes) {
        sl_fail(err, SL_E_NO_SPACE, "the slabs have %llu bytes, and %llu were announced",
                (unsigned long long)index.slab_bytes, (unsigned long long)where->most_bytes);
        return NULL;
    }
    SL_AUTO(sl_pool_model)
    model = sl_pool_model_new(own, sl_pool_index_text(&index, index.head->key_at), err);
    if (!model || find_gpu(where, &index, &gpu, err) < 0 ||
        take_over(model, &index, gpu, slab_fds, slab_count, err) < 0)
        return NULL;
    return sl_steal(&model);
}

static struct sl_pool_model *adopt(const struct where *where, const char *name, int *index_fd,
                                   int *slab_fds, size_t slab_count, struct sl_err *err)
{
    uint64_t bytes = 0;
    if (check_index_fd(*index_fd, &bytes, err) < 0 || sl_memfd_make_reader(index_fd, err) < 0)
        return NULL;
    void *map = bytes ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, *index_fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED) {
        sl_fail(err, bytes && errno == ENOMEM ? SL_E_NO_SPACE : SL_E_FORMAT,
                "the index cannot be read");
        return NULL;
    }
    struct sl_pool_model *model = adopt_mapped(where, name, map, bytes, slab_fds, slab_count, err);
    munmap(map, bytes);
    if (model)
        model->copies[0]->index_bytes = bytes;
    return model;
}

static struct sl_pool_model *adopt_from(const struct where *where, const char *name, int index_fd,
                                        const int *slab_fds, size_t slab_count, struct sl_err *err)
{
    struct sl_pool_model *model = NULL;
    sl_autofree int *fds = sl_alloc_array(slab_count, sizeof(*fds), err);
    if (fds) {
        if (slab_count)
            memcpy(fds, slab_fds, slab_count * sizeof(*fds));
        model = adopt(where, name, &index_fd, fds, slab_count, err);
    }
    if (model)
        model->copies[0]->index_fd = index_fd;
    else
        close(index_fd);
    const int *left = fds ? fds : slab_fds;
    for (size_t i = 0; i < slab_count; i++)
        if (left[i] >= 0)
            close(left[i]);
    return model;
}

struct sl_pool_model *sl_pool_model_adopt_offer(struct sl_gpu *gpu, const char *name,
                                                uint64_t most_bytes, int index_fd,
                                                const int *slab_fds, size_t slab_count,
                                                struct sl_err *err)
{
    const struct where where = {.gpu = gpu, .most_bytes = SL_MAX(most_bytes, 1u)};
    return adopt_from(&where, name, index_fd, slab_fds, slab_count, err);
}

struct sl_pool_model *sl_pool_model_adopt_where(const struct sl_pool_gpus *gpus, const char *name,
                                                int index_fd, const int *slab_fds,
                                                size_t slab_count, struct sl_err *err)
{
    const struct where where = {.gpus = gpus};
    return adopt_from(&where, name, index_fd, slab_fds, slab_count, err);
}
