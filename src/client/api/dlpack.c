/*
 * Tensors for whoever takes DLPack. What a consumer gets owns the model, the deposit or the
 * memory that it is of, and gives it back from whatever thread and at whatever time it likes, also
 * when the Python that made it has ended: so all of it is C and nothing of it belongs to an
 * interpreter.
 *
 * The structs are DLPack's (dmlc/dlpack on GitHub, dlpack.h of version 1.0).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api_memory.h"
#include "api_parts.h"

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 0, RANK_MAX = 64 };

struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed { /* before version 1.0 */
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_managed_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* One allocation; the consumer has a pointer to one of the two. */
struct lent {
    union {
        struct dl_managed plain;
        struct dl_managed_versioned versioned;
    };
    struct sluice_model *model;
    struct sluice_deposit *deposit;
    struct sluice_memory *memory;
    int64_t numbers[]; /* sizes, then strides */
};

static void give_back(struct lent *lent)
{
    sluice_detach(lent->model);
    sluice_deposit_end(lent->deposit);
    sluice_unmap(lent->memory);
    free(lent);
}

static void delete_plain(struct dl_managed *self)
{
    give_back(self->context);
}

static void delete_versioned(struct dl_managed_versioned *self)
{
    give_back(self->context);
}

static void describe(const struct sluice_dlpack *from, struct lent *lent, struct dl_tensor *tensor)
{
    size_t bytes = from->rank * sizeof(*lent->numbers);
    *tensor = (struct dl_tensor){.data = from->data,
                                 .device = {from->device_type, from->device_id},
                                 .rank = (int32_t)from->rank,
                                 .dtype = {from->code, from->bits, from->lanes},
                                 .shape = lent->numbers,
                                 .strides = lent->numbers + from->rank};
    if (bytes) {
        memcpy(tensor->shape, from->shape, bytes);
        memcpy(tensor->strides, from->strides, bytes);
    }
}

static void take_hold(const struct sluice_dlpack *from, struct lent *lent)
{
    lent->model = from->model;
    lent->deposit = from->deposit;
    lent->memory = from->memory;
    if (from->model)
        sluice_hold(from->model);
    if (from->deposit)
        sl_api_deposit_hold(from->deposit);
    if (from->memory)
        sluice_memory_hold(from->memory);
}

void *sluice_dlpack(const struct sluice_dlpack *given, struct sluice_error *error)
{
    struct sluice_dlpack from;
    if (sl_api_check_size(given->size, error) < 0)
        return NULL;
    sl_api_take(&from, sizeof(from), given);
    if (sl_api_check_flags(from.flags, SLUICE_DLPACK_READ_ONLY | SLUICE_DLPACK_VERSIONED, error) <
        0)
        return NULL;
    if (from.rank > RANK_MAX || (from.rank && (!from.shape || !from.strides))) {
        sl_api_fail(error, SLUICE_USAGE, "a tensor has at most %d dimensions, each with a stride",
                    RANK_MAX);
        return NULL;
    }
    struct lent *lent = sl_api_alloc(sizeof(*lent) + 2 * from.rank * sizeof(*lent->numbers));
    if (!lent) {
        sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
        return NULL;
    }
    take_hold(&from, lent);
    if (from.flags & SLUICE_DLPACK_VERSIONED) {
        lent->versioned = (struct dl_managed_versioned){
            .version = {DLPACK_MAJOR, DLPACK_MINOR},
            .context = lent,
            .deleter = delete_versioned,
            .flags = from.flags & SLUICE_DLPACK_READ_ONLY ? 1 : 0,
        };
        describe(&from, lent, &lent->versioned.tensor);
    } else {
        lent->plain = (struct dl_managed){.context = lent, .deleter = delete_plain};
        describe(&from, lent, &lent->plain.tensor);
    }
    return lent;
}

/* ---- capsules of Python ---------------------------------------------------------------------- */

static const char *const CAPSULE_NAMES[] = {"dltensor", "dltensor_versioned"};

/* CPython's own functions, which are the same for all interpreters of a process. */
static pthread_mutex_t python_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sluice_python python;
static pthread_once_t python_once = PTHREAD_ONCE_INIT;

static void hold_lock(void)
{
    pthread_mutex_lock(&python_lock);
}

static void let_lock_go(void)
{
    pthread_mutex_unlock(&python_lock);
}

/* A Python without a global lock may fork while another thread is here. */
static void keep_from_forks(void)
{
    pthread_atfork(hold_lock, let_lock_go, let_lock_go);
}

static void remember(const struct sluice_python *functions)
{
    pthread_once(&python_once, keep_from_forks);
    pthread_mutex_lock(&python_lock);
    python = *functions;
    pthread_mutex_unlock(&python_lock);
}

static struct sluice_python remembered(void)
{
    pthread_mutex_lock(&python_lock);
    struct sluice_python functions = python;
    pthread_mutex_unlock(&python_lock);
    return functions;
}

/* A capsule that somebody took has another name, and whoever took it calls the deleter. An error
 * may be pending here: neither of the two functions looks at it, nor sets one where it is valid. */
static void drop_capsule(void *capsule)
{
    struct sluice_python functions = remembered();
    for (size_t i = 0; i < sizeof(CAPSULE_NAMES) / sizeof(*CAPSULE_NAMES); i++)
        if (functions.capsule_is_valid(capsule, CAPSULE_NAMES[i])) {
            give_back(functions.capsule_get_pointer(capsule, CAPSULE_NAMES[i]));
            return;
        }
}

void *sluice_python_capsule(const struct sluice_python *functions,
                            const struct sluice_dlpack *tensor, struct sluice_error *error)
{
    struct lent *lent = sluice_dlpack(tensor, error);
    if (!lent)
        return NULL;
    remember(functions);
    const char *name = CAPSULE_NAMES[tensor->flags & SLUICE_DLPACK_VERSIONED ? 1 : 0];
    void *capsule = functions->capsule_new(lent, name, drop_capsule);
    if (!capsule)
        give_back(lent);
    return capsule;
}
