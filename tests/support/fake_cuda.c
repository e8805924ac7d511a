/*
 * The fake driver's begin: knobs, faults, every call, what a test controls. Devices and contexts
 * are in fake_cuda_device.c, memory in fake_cuda_memory.c and fake_cuda_host.c, what happens later
 * in fake_cuda_stream.c.
 */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

enum { NAMES_MAX = 96, FAULTS_MAX = 16 };

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
                    .unheld = PTHREAD_COND_INITIALIZER,
                    .moved = PTHREAD_COND_INITIALIZER};

static struct {
    const char *name;
    uint64_t calls;
} names[NAMES_MAX];
static struct {
    char name[64];
    uint64_t left; /* 0: none */
    int result;
} faults[FAULTS_MAX];
static _Thread_local struct sl_cuda_context *current;
static pthread_once_t began = PTHREAD_ONCE_INIT;

/* ---- knobs ---------------------------------------------------------------------------------- */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static bool is_set_to(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && strcmp(text, value) == 0;
}

static void add_fault(const char *name, size_t bytes, uint64_t nth, int result)
{
    for (int i = 0; i < FAULTS_MAX; i++) {
        if (faults[i].left)
            continue;
        snprintf(faults[i].name, sizeof(faults[i].name), "%.*s", (int)bytes, name);
        faults[i].left = nth;
        faults[i].result = result;
        return;
    }
}

static void take_faults(const char *text)
{
    while (text && *text) {
        size_t bytes = strcspn(text, ":");
        char *rest;
        if (!text[bytes])
            return;
        uint64_t nth = strtoull(text + bytes + 1, &rest, 10);
        int result = *rest == ':' ? (int)strtol(rest + 1, &rest, 10) : SL_CUDA_UNKNOWN;
        add_fault(text, bytes, nth, result);
        text = *rest == ',' ? rest + 1 : NULL;
    }
}

static void take_visible(const char *text)
{
    fake.visible_count = 0;
    if (!text)
        for (int i = 0; i < fake.device_count; i++)
            fake.visible[fake.visible_count++] = i;
    while (text && *text && fake.visible_count < FAKE_DEVICES_MAX) {
        char *rest;
        int device = (int)strtol(text, &rest, 10);
        if (rest == text || device < 0 || device >= fake.device_count)
            return;
        fake.visible[fake.visible_count++] = device;
        text = *rest == ',' ? rest + 1 : NULL;
    }
}

static void take_devices(int count)
{
    fake.device_count = count < FAKE_DEVICES_MAX ? count : FAKE_DEVICES_MAX;
    take_visible(getenv("FAKE_CUDA_VISIBLE"));
}

static void take_knobs(void)
{
    memset(faults, 0, sizeof(faults));
    take_devices((int)number_of("FAKE_CUDA_DEVICES", 1));
    fake.version = (int)number_of("FAKE_CUDA_VERSION", 12080);
    fake.bytes_each = number_of("FAKE_CUDA_BYTES", 1024ull * 1024 * 1024);
    fake.delay_us = (unsigned)number_of("FAKE_CUDA_DELAY_US", 20);
    fake.link_mbps = number_of("FAKE_CUDA_LINK_MBPS", 0);
    fake.copies_nothing = is_set_to("FAKE_CUDA_COPIES", "none");
    fake.context_us = (unsigned)number_of("FAKE_CUDA_CONTEXT_US", 0);
    fake.import_ordinal = (int)number_of("FAKE_CUDA_IMPORTED", UINT64_MAX);
    fake.registers = !is_set_to("FAKE_CUDA_REGISTER", "none");
    fake.registers_read_only = fake.registers && !is_set_to("FAKE_CUDA_REGISTER", "writable");
    fake.map_rule = is_set_to("FAKE_CUDA_MAP", "smaller")  ? FAKE_MAP_SMALLER
                    : is_set_to("FAKE_CUDA_MAP", "larger") ? FAKE_MAP_LARGER
                                                           : FAKE_MAP_EXACT;
    fake.has_rdma = number_of("FAKE_CUDA_RDMA", 1);
    fake.host_node = (int)number_of("FAKE_CUDA_HOST_NODE", UINT64_MAX);
    fake.spoil_times = 0;
    take_faults(getenv("FAKE_CUDA_FAIL"));
    fake.sticky = 0;
    memset(fake.lost, 0, sizeof(fake.lost));
    fake.held = fake.kernels_held = fake.contexts_held = false;
    fake.held_call = getenv("FAKE_CUDA_HANG");
    fake.meant_thread = NULL;
    fake.held_device = -1;
}

static void begin(void)
{
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        fake.contexts[i].device = i;
    take_knobs();
}

/* ---- every call ----------------------------------------------------------------------------- */

static uint64_t *calls_of(const char *name)
{
    for (int i = 0; i < NAMES_MAX; i++) {
        if (!names[i].name)
            names[i].name = name;
        if (strcmp(names[i].name, name) == 0)
            return &names[i].calls;
    }
    abort();
}

static int due_fault(const char *name)
{
    int result = 0;
    for (int i = 0; i < FAULTS_MAX; i++) {
        bool fits = strcmp(faults[i].name, "*") == 0 || strcmp(faults[i].name, name) == 0;
        if (faults[i].left && fits && --faults[i].left == 0)
            result = faults[i].result;
    }
    return result;
}

static bool is_sticky(int result)
{
    return result == SL_CUDA_ILLEGAL_ADDRESS || result == SL_CUDA_DEINITIALIZED ||
           (result >= 714 && result <= 719);
}

int fake_lost(int device)
{
    return fake.sticky ? fake.sticky : fake.lost[device];
}

/* Of a thread that works with one device no other device is lost. */
static void lose(int result)
{
    *(current ? &fake.lost[current->device] : &fake.sticky) = result;
}

/* Faults and what is held may be for one kind of thread. */
static bool is_meant(void)
{
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return !fake.meant_thread || strcmp(fake.meant_thread, name) == 0;
}

int fake_enter(const char *name, int needs)
{
    int result = 0;
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.counts.calls++;
    ++*calls_of(name);
    if (is_set_to("FAKE_CUDA_HANG", name))
        fprintf(stderr, "the driver hangs in %s\n", name);
    fake.holding++;
    while (fake.held_call && strcmp(fake.held_call, name) == 0 && is_meant())
        pthread_cond_wait(&fake.unheld, &fake.lock);
    fake.holding--;
    while (current && current->device == fake.held_device)
        pthread_cond_wait(&fake.unheld, &fake.lock);
    if (!(needs & FAKE_EARLY) && is_meant())
        result = due_fault(name);
    if (result && is_sticky(result))
        lose(result);
    int lost = current ? fake_lost(current->device) : fake.sticky;
    if (lost && !(needs & FAKE_EARLY))
        result = lost;
    if (!result && !(needs & FAKE_EARLY) && !fake.initialised)
        result = SL_CUDA_NOT_INITIALIZED;
    if (!result && (needs & FAKE_CONTEXT) && !current)
        result = SL_CUDA_INVALID_CONTEXT;
    if (!result && (needs & FAKE_CONTEXT) && !current->refs)
        result = SL_CUDA_CONTEXT_IS_DESTROYED;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

struct sl_cuda_context *fake_current(void)
{
    return current;
}

void fake_set_current(struct sl_cuda_context *context)
{
    current = context;
}

int fake_device(int ordinal)
{
    return ordinal >= 0 && ordinal < fake.visible_count ? fake.visible[ordinal] : -1;
}

/* ---- begin ---------------------------------------------------------------------------------- */

int cuInit(unsigned flags)
{
    FAKE_ENTER("cuInit", FAKE_EARLY);
    pthread_mutex_lock(&fake.lock);
    int result = due_fault("cuInit");
    if (!result && flags)
        result = SL_CUDA_INVALID_VALUE;
    if (!result && !fake.visible_count)
        result = SL_CUDA_NO_DEVICE;
    if (!result)
        fake_open_node();
    fake.initialised = fake.initialised || !result;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuDriverGetVersion(int *version)
{
    FAKE_ENTER("cuDriverGetVersion", FAKE_EARLY);
    *version = fake.version;
    return 0;
}

static bool is_listed(const char *list, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, bytes) == 0 && (at[bytes] == ',' || !at[bytes]))
            return true;
    return false;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    enum { FOUND, UNKNOWN, TOO_OLD };
    static const struct {
        const char *name, *symbol;
        int since;
    } rows[] = {
#define SL_CUDA(member, base, symbol, since, need, arguments) {base, symbol, since},
#include "cuda.def"
#undef SL_CUDA
    };
    FAKE_ENTER("cuGetProcAddress", FAKE_EARLY);
    Dl_info self = {0};
    *function = NULL;
    *status = UNKNOWN;
    void *library =
        dladdr((const void *)&fake, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    for (size_t i = 0; library && i < sizeof(rows) / sizeof(*rows); i++) {
        if (flags || strcmp(rows[i].name, name) != 0 || is_listed(getenv("FAKE_CUDA_LACKS"), name))
            continue;
        *status = rows[i].since > fake.version ? TOO_OLD
                  : version < rows[i].since    ? UNKNOWN
                                               : FOUND;
        *function = *status == FOUND ? dlsym(library, rows[i].symbol) : NULL;
    }
    if (library)
        dlclose(library);
    return *function ? 0 : SL_CUDA_NOT_FOUND;
}

/* ---- control -------------------------------------------------------------------------------- */

static void control_reset(void)
{
    pthread_once(&began, begin);
    fake_drain(NULL);
    pthread_mutex_lock(&fake.lock);
    take_knobs();
    memset(names, 0, sizeof(names));
    fake.counts.left = fake.counts.unpinned = fake.counts.calls = 0;
    fake.counts.contexts_made = 0;
    fake.counts.copies = fake.counts.copied_bytes = fake.counts.launches = 0;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_counts(struct fake_cuda_counts *counts)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    *counts = fake.counts;
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        counts->contexts += fake.contexts[i].refs;
    fake_memory_counts(counts);
    pthread_mutex_unlock(&fake.lock);
}

static void control_fail(const char *name, uint64_t nth, int result)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    add_fault(name, strlen(name), nth, result);
    pthread_mutex_unlock(&fake.lock);
}

static uint64_t control_calls(const char *name)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t calls = strcmp(name, "*") == 0 ? fake.counts.calls : *calls_of(name);
    pthread_mutex_unlock(&fake.lock);
    return calls;
}

static void control_devices(int count)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    take_devices(count);
    pthread_mutex_unlock(&fake.lock);
}

static void control_version(int version)
{
    pthread_once(&began, begin);
    fake.version = version;
}

static void control_bytes(uint64_t bytes)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.bytes_each = bytes;
    pthread_mutex_unlock(&fake.lock);
}

static void control_delay(unsigned us)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.delay_us = us;
    pthread_mutex_unlock(&fake.lock);
}

static void control_lose(int device, int result)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.lost[device] = result;
    pthread_mutex_unlock(&fake.lock);
}

static void control_hold(bool hold)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.held = hold;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_hold_kernels(bool hold)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.kernels_held = hold;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_spoil(unsigned times, size_t bytes)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.spoil_times = times;
    fake.spoil_bytes = bytes;
    pthread_mutex_unlock(&fake.lock);
}

static void control_context(unsigned us)
{
    pthread_once(&began, begin);
    fake.context_us = us;
}

static void control_hold_contexts(bool hold)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.contexts_held = hold;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_hold_call(const char *name)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.held_call = name;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_set_thread(const char *name)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.meant_thread = name;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static unsigned control_holding(void)
{
    pthread_mutex_lock(&fake.lock);
    unsigned count = fake.holding;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

static void control_hold_device(int device)
{
    pthread_once(&began, begin);
    pthread_mutex_lock(&fake.lock);
    fake.held_device = device;
    pthread_cond_broadcast(&fake.unheld);
    pthread_mutex_unlock(&fake.lock);
}

static void control_registers(bool any, bool read_only)
{
    pthread_once(&began, begin);
    fake.registers = any;
    fake.registers_read_only = any && read_only;
}

static void control_rdma(bool has)
{
    pthread_once(&began, begin);
    fake.has_rdma = has;
}

static void control_host_node(int node)
{
    pthread_once(&began, begin);
    fake.host_node = node;
}

static void control_map_rule(enum fake_map_rule rule)
{
    pthread_once(&began, begin);
    fake.map_rule = rule;
}

static void control_imported(int ordinal)
{
    pthread_once(&began, begin);
    fake.import_ordinal = ordinal;
}

static int control_file(int fd)
{
    int device;
    size_t bytes;
    return fake_carried(fd, &device, &bytes);
}

__attribute__((visibility("default"))) const struct fake_cuda_control fake_cuda_control = {
    .reset = control_reset,
    .counts = control_counts,
    .fail_call = control_fail,
    .calls = control_calls,
    .lose = control_lose,
    .set_devices = control_devices,
    .set_version = control_version,
    .set_bytes = control_bytes,
    .set_delay_us = control_delay,
    .hold = control_hold,
    .hold_kernels = control_hold_kernels,
    .spoil = control_spoil,
    .set_context_us = control_context,
    .hold_contexts = control_hold_contexts,
    .hold_call = control_hold_call,
    .set_thread = control_set_thread,
    .holding = control_holding,
    .hold_device = control_hold_device,
    .set_registers = control_registers,
    .set_rdma = control_rdma,
    .set_host_node = control_host_node,
    .set_map_rule = control_map_rule,
    .set_imported = control_imported,
    .file = control_file,
};

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("FAKE_CUDA_REPORT");
    FILE *file = path ? fopen(path, "a") : NULL;
    struct fake_cuda_counts counts;
    if (!file)
        return;
    control_counts(&counts);
    fprintf(file,
            "{\"pid\": %d, \"handles\": %llu, \"mappings\": %llu, \"reservations\": %llu, "
            "\"contexts\": %llu, \"streams\": %llu, \"events\": %llu, \"modules\": %llu, "
            "\"host_buffers\": %llu, \"left\": %llu, \"unpinned\": %llu, \"copied_bytes\": %llu, "
            "\"launches\": %llu}\n",
            getpid(), (unsigned long long)counts.handles, (unsigned long long)counts.mappings,
            (unsigned long long)counts.reservations, (unsigned long long)counts.contexts,
            (unsigned long long)counts.streams, (unsigned long long)counts.events,
            (unsigned long long)counts.modules, (unsigned long long)counts.host_buffers,
            (unsigned long long)counts.left, (unsigned long long)counts.unpinned,
            (unsigned long long)counts.copied_bytes, (unsigned long long)counts.launches);
    fclose(file);
}
