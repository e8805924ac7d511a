/*
 * Which GPUs there are and what they are called; each is opened once, by whoever needs it first.
 * The way of a model's bytes into them is gpu_loading.c.
 */
#include "gpu_holder.h"

#include <stdio.h>
#include <string.h>

#include "gpu_loading.h"
#include "log.h"
#include "metrics.h"
#include "pool_store.h"

enum { AUTO_PERCENT = 90, UUID_TEXT_BYTES = 41 };

struct one {
    struct sl_gpu_holders *holders;
    unsigned ordinal;
    struct sl_holder ops;
};
struct sl_gpu_holders {
    struct one ones[SL_GPUS_MAX + 1];     /* the last: all of them */
    pthread_mutex_t opening[SL_GPUS_MAX]; /* held while the driver opens this one; they guard
                                             nothing */
    pthread_mutex_t lock;
    struct {
        struct sl_registry *registry;
        uint64_t budget_bytes, warm_seconds;
        struct sl_gpu *gpus[SL_GPUS_MAX]; /* NULL: not opened */
    } locked;
};

/* ---- names ---------------------------------------------------------------------------------- */

bool sl_gpu_ordinal(const char *device, unsigned *ordinal)
{
    if (strncmp(device, "cuda:", 5) != 0)
        return false;
    const char *digits = device + 5;
    size_t count = strspn(digits, "0123456789");
    if (count < 1 || count > 2 || digits[count] || (count == 2 && *digits == '0'))
        return false;
    *ordinal = (unsigned)strtoul(digits, NULL, 10);
    return *ordinal < SL_GPUS_MAX;
}

bool sl_gpu_is_all(const char *device)
{
    return strcmp(device, "cuda:all") == 0;
}

static void write_uuid(const uint8_t uuid[16], char text[UUID_TEXT_BYTES])
{
    size_t used = (size_t)snprintf(text, UUID_TEXT_BYTES, "GPU");
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, UUID_TEXT_BYTES - used, "%s%02x",
                                 i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", uuid[i]);
}

static struct sl_gpu *opened(struct sl_gpu_holders *holders, unsigned ordinal)
{
    SL_LOCKED(&holders->lock);
    return holders->locked.gpus[ordinal];
}

/* nvidia-smi calls a slice of a GPU (MIG) by another word than we do. */
static bool is_uuid(const char *device)
{
    return strncasecmp(device, "GPU-", 4) == 0 || strncasecmp(device, "MIG-", 4) == 0;
}

static bool is_known_as(struct sl_gpu_holders *holders, unsigned ordinal, const char *device)
{
    char text[UUID_TEXT_BYTES];
    const struct sl_gpu *gpu = opened(holders, ordinal);
    if (!gpu || !is_uuid(device))
        return false;
    write_uuid(sl_gpu_device(gpu)->uuid, text);
    return strcasecmp(text + 4, device + 4) == 0;
}

static unsigned find_known(struct sl_gpu_holders *holders, const char *device)
{
    unsigned ordinal = 0;
    while (ordinal < SL_GPUS_MAX && !is_known_as(holders, ordinal, device))
        ordinal++;
    return ordinal;
}

bool sl_gpu_holders_opens(struct sl_gpu_holders *holders, const char *device)
{
    return is_uuid(device) && find_known(holders, device) == SL_GPUS_MAX;
}

static bool is_host(const char *device)
{
    return !*device || strcmp(device, "host") == 0;
}

bool sl_gpu_holders_has_open(struct sl_gpu_holders *holders, const char *device)
{
    unsigned ordinal;
    if (is_host(device))
        return true;
    if (sl_gpu_ordinal(device, &ordinal))
        return opened(holders, ordinal);
    return find_known(holders, device) < SL_GPUS_MAX;
}

static void open_all(struct sl_gpu_holders *holders, int count)
{
    for (int i = 0; i < count && i < SL_GPUS_MAX; i++)
        sl_gpu_holders_open(holders, (unsigned)i, NULL);
}

int sl_gpu_holders_find(struct sl_gpu_holders *holders, const char *device, unsigned *space,
                        struct sl_err *err)
{
    unsigned ordinal = 0;
    int count = 0;
    *space = SL_SPACE_HOST;
    if (is_host(device))
        return 0;
    if (sl_gpu_is_all(device))
        return sl_fail_code(err, SL_E_USAGE, "device",
                            "a client maps memory of one GPU: ask for 'cuda:0', or another one of "
                            "'cuda:all'");
    if (!sl_gpu_ordinal(device, &ordinal)) {
        ordinal = find_known(holders, device);
        if (ordinal == SL_GPUS_MAX && is_uuid(device) && sl_gpu_count(&count, NULL) == 0) {
            open_all(holders, count);
            ordinal = find_known(holders, device);
        }
    }
    *space = SL_SPACE_GPU + ordinal;
    if (ordinal < SL_GPUS_MAX)
        return 0;
    return sl_fail_code(err, SL_E_NOT_FOUND, "absent",
                        "'%.80s' is not memory that this pool sees: it takes 'host', and GPUs as "
                        "'cuda:N' or by UUID",
                        device);
}

/* ---- opening -------------------------------------------------------------------------------- */

static uint64_t budget_of(uint64_t given_bytes, const struct sl_gpu *gpu)
{
    uint64_t total = sl_gpu_device(gpu)->total_bytes;
    return given_bytes == SL_AUTO_VALUE ? total / 100 * AUTO_PERCENT : given_bytes;
}

static void set_up(const struct sl_gpu_holders *holders, unsigned ordinal)
{
    struct sl_gpu *gpu = holders->locked.gpus[ordinal];
    sl_registry_set_gpu_budget(holders->locked.registry, ordinal,
                               budget_of(holders->locked.budget_bytes, gpu));
    sl_gpu_set_warm(gpu, holders->locked.warm_seconds * SL_NS_PER_S);
}

struct sl_gpu *sl_gpu_holders_open(struct sl_gpu_holders *holders, unsigned ordinal,
                                   struct sl_err *err)
{
    struct sl_gpu *gpu = opened(holders, ordinal);
    if (gpu)
        return gpu;
    SL_LOCKED(&holders->opening[ordinal]);
    if ((gpu = opened(holders, ordinal)) || !(gpu = sl_gpu_open((int)ordinal, err)))
        return gpu;
    {
        SL_LOCKED(&holders->lock);
        holders->locked.gpus[ordinal] = gpu;
        set_up(holders, ordinal);
    }
    sl_log(SL_LOG_INFO, "cuda:%u is %s", ordinal, sl_gpu_device(gpu)->name);
    return gpu;
}

void sl_gpu_holders_each_lost(struct sl_gpu_holders *holders,
                              void (*call)(void *arg, const char *device, const char *why),
                              void *arg)
{
    for (unsigned i = 0; i < SL_GPUS_MAX; i++) {
        struct sl_gpu *gpu = opened(holders, i);
        struct sl_err why = SL_ERR_INIT;
        char device[16];
        if (gpu && sl_gpu_is_lost(gpu, &why))
            call(arg, sl_space_name(SL_SPACE_GPU + i, device), why.message);
    }
}

void sl_gpu_holders_set(struct sl_gpu_holders *holders, uint64_t budget_bytes,
                        uint64_t warm_seconds)
{
    SL_LOCKED(&holders->lock);
    holders->locked.budget_bytes = budget_bytes;
    holders->locked.warm_seconds = warm_seconds;
    for (unsigned i = 0; i < SL_GPUS_MAX; i++)
        if (holders->locked.gpus[i])
            set_up(holders, i);
}

/* ---- for the next process -------------------------------------------------------------------- */

static void keep(void *self, void *body)
{
    struct sl_err why = SL_ERR_INIT;
    (void)self;
    if (sl_pool_store_exists() && sl_pool_store_keep(body, &why) < 0)
        sl_log(SL_LOG_WARN, "'%s' will not outlive this daemon: %s", sl_pool_model_name(body),
               why.message);
}

static void leave(void *self, void *body)
{
    (void)self;
    sl_pool_model_free(body);
}

static int drop(void *self, const char *name, const char *version, void *body, struct sl_err *err)
{
    struct sl_pool_view view = {.state = SL_POOL_FAILED};
    (void)self;
    (void)name;
    (void)version;
    (void)err;
    if (body)
        sl_pool_model_view(body, &view);
    if (view.state == SL_POOL_READY)
        sl_pool_store_drop(body);
    sl_pool_model_free(body);
    return 0;
}

struct sl_gpu *sl_gpu_holders_by_uuid(struct sl_gpu_holders *holders, const uint8_t uuid[16],
                                      struct sl_err *err)
{
    char text[UUID_TEXT_BYTES];
    int count = 0;
    write_uuid(uuid, text);
    unsigned ordinal = find_known(holders, text);
    if (ordinal == SL_GPUS_MAX) {
        if (sl_gpu_count(&count, err) < 0)
            return NULL;
        open_all(holders, count);
        ordinal = find_known(holders, text);
    }
    if (ordinal < SL_GPUS_MAX)
        return sl_gpu_holders_open(holders, ordinal, err);
    sl_fail(err, SL_E_GPU, "this process does not see %s", text);
    return NULL;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* For models that go to all: GPUs that cannot be opened are not left out. */
static int open_each(struct sl_gpu_holders *holders, struct sl_gpu_targets *targets,
                     struct sl_err *err)
{
    int count;
    if (sl_gpu_count(&count, err) < 0)
        return -1;
    if (count > SL_GPUS_MAX)
        return sl_fail(err, SL_E_GPU,
                       "'cuda:all' would be %d GPUs, and a pool has %d at most: let the daemon see "
                       "fewer, by CUDA_VISIBLE_DEVICES",
                       count, SL_GPUS_MAX);
    for (unsigned i = 0; i < (unsigned)count; i++)
        if (!(targets->gpus[i] = sl_gpu_holders_open(holders, i, err)))
            return -1;
    targets->count = (unsigned)count;
    targets->placement = SL_PLACEMENT_GPUS;
    return 0;
}

static int open_targets(const struct one *one, struct sl_gpu_targets *targets, struct sl_err *err)
{
    if (sl_placement_count(one->ops.placement) > 1)
        return open_each(one->holders, targets, err);
    targets->gpus[0] = sl_gpu_holders_open(one->holders, one->ordinal, err);
    targets->count = 1;
    return targets->gpus[0] ? 0 : -1;
}

static int load(void *self, const struct sl_holder_job *job, void **body, struct sl_err *err)
{
    struct sl_gpu_targets targets = {.count = 0};
    *body = NULL;
    if (open_targets(self, &targets, err) < 0) {
        sl_progress_finish(job->progress, err);
        return -1;
    }
    if (sl_gpu_load(&targets, job, body, err) < 0)
        return -1;
    if (*body)
        keep(self, *body);
    return 0;
}

/* ---- metrics -------------------------------------------------------------------------------- */

static pthread_mutex_t shown_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_gpu_holders *shown; /* guarded by it: the node's, of which there is one */

struct numbers {
    bool opened;
    uint64_t total, held, budget, lost;
};

static void take_numbers(struct sl_gpu_holders *holders, struct numbers numbers[SL_GPUS_MAX])
{
    SL_LOCKED(&holders->lock);
    for (unsigned i = 0; i < SL_GPUS_MAX; i++) {
        struct sl_gpu *gpu = holders->locked.gpus[i];
        if (!gpu)
            continue;
        numbers[i].opened = true;
        numbers[i].lost = sl_gpu_is_lost(gpu, NULL);
        numbers[i].total = sl_gpu_device(gpu)->total_bytes;
        sl_registry_gpu_bytes(holders->locked.registry, i, &numbers[i].held, &numbers[i].budget);
    }
}

struct family {
    const char *name, *help;
    bool is_bytes;
    size_t offset;
};

static int write_family(struct sl_buf *out, const struct numbers *numbers,
                        const struct family *family, int openmetrics, struct sl_err *err)
{
    const char *name = family->name;
    if (sl_buf_printf(out, err, "# HELP %s %s\n# TYPE %s gauge\n", name, family->help, name) < 0 ||
        (openmetrics && family->is_bytes && sl_buf_printf(out, err, "# UNIT %s bytes\n", name) < 0))
        return -1;
    for (unsigned i = 0; i < SL_GPUS_MAX; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&numbers[i] + family->offset, sizeof(value));
        if (numbers[i].opened && sl_buf_printf(out, err, "%s{device=\"cuda:%u\"} %llu\n", name, i,
                                               (unsigned long long)value) < 0)
            return -1;
    }
    return 0;
}

static int write_metrics(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    static const struct family families[] = {
        {"sluice_gpu_memory_bytes", "Memory of a GPU that the node has opened", true,
         offsetof(struct numbers, total)},
        {"sluice_gpu_held_bytes", "Memory of a GPU that models of the node take, loads included",
         true, offsetof(struct numbers, held)},
        {"sluice_gpu_budget_bytes", "Limit for sluice_gpu_held_bytes", true,
         offsetof(struct numbers, budget)},
        {"sluice_gpu_lost", "1: the GPU is lost for this process, until it is restarted", false,
         offsetof(struct numbers, lost)},
    };
    struct numbers numbers[SL_GPUS_MAX] = {{0}};
    bool any = false;
    SL_LOCKED(&shown_lock);
    if (shown)
        take_numbers(shown, numbers);
    for (unsigned i = 0; i < SL_GPUS_MAX; i++)
        any |= numbers[i].opened;
    for (size_t i = 0; any && i < SL_COUNT(families); i++)
        if (write_family(out, numbers, &families[i], openmetrics, err) < 0)
            return -1;
    return 0;
}

static void add_writer(void)
{
    sl_metrics_add_writer(write_metrics);
}

static void show(struct sl_gpu_holders *holders)
{
    static pthread_once_t added = PTHREAD_ONCE_INIT;
    pthread_once(&added, add_writer);
    SL_LOCKED(&shown_lock);
    shown = holders;
}

/* ---- life ----------------------------------------------------------------------------------- */

struct sl_gpu_holders *sl_gpu_holders_new(struct sl_err *err)
{
    struct sl_gpu_holders *holders = sl_alloc(sizeof(*holders), err);
    if (!holders)
        return NULL;
    for (unsigned i = 0; i < SL_GPUS_MAX; i++)
        pthread_mutex_init(&holders->opening[i], NULL);
    pthread_mutex_init(&holders->lock, NULL);
    holders->locked.budget_bytes = SL_AUTO_VALUE;
    for (unsigned i = 0; i <= SL_GPUS_MAX; i++) {
        uint32_t placement = i < SL_GPUS_MAX ? SL_PLACEMENT(SL_SPACE_GPU + i) : SL_PLACEMENT_GPUS;
        holders->ones[i] = (struct one){.holders = holders,
                                        .ordinal = i,
                                        .ops = {.name = "pool",
                                                .placement = placement,
                                                .self = &holders->ones[i],
                                                .shares = true,
                                                .load = load,
                                                .measure = sl_load_measure,
                                                .drop = drop,
                                                .leave = leave,
                                                .keep = keep}};
    }
    return holders;
}

void sl_gpu_holders_free(struct sl_gpu_holders *holders)
{
    if (!holders)
        return;
    {
        SL_LOCKED(&shown_lock);
        if (shown == holders)
            shown = NULL;
    }
    for (unsigned i = 0; i < SL_GPUS_MAX; i++) {
        sl_gpu_free(holders->locked.gpus[i]);
        pthread_mutex_destroy(&holders->opening[i]);
    }
    pthread_mutex_destroy(&holders->lock);
    free(holders);
}

void sl_gpu_holders_bind(struct sl_gpu_holders *holders, struct sl_registry *registry)
{
    {
        SL_LOCKED(&holders->lock);
        holders->locked.registry = registry;
    }
    show(holders);
}

const struct sl_holder *sl_gpu_holders_ops(struct sl_gpu_holders *holders, unsigned ordinal)
{
    return &holders->ones[ordinal].ops;
}

const struct sl_holder *sl_gpu_holders_all(struct sl_gpu_holders *holders)
{
    return &holders->ones[SL_GPUS_MAX].ops;
}
