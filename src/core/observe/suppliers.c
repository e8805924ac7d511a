/*
 * A name may be as long as a DNS name allows. Two that are cut alike differ in the hash behind the
 * cut: no two series of metrics have one label.
 */
#include "suppliers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "fork_guard.h"
#include "mem.h"
#include "metrics_write.h"
#include "thread.h"

#define IDLE_NS    (3600 * SL_NS_PER_S) /* its place is free for another */
#define TROUBLE_NS (600 * SL_NS_PER_S)  /* it counts as degraded */

static const struct {
    const char *name, *text;
} failures[] = {
#define SL_SUPPLIER_FAILURE(id, name, text) {name, text},
#include "supplier_failures.def"
#undef SL_SUPPLIER_FAILURE
};

static const char *kind_name(enum sl_supplier_kind kind)
{
    static const char *const names[] = {"origin", "cache", "mirror"};
    return (unsigned)kind < SL_COUNT(names) ? names[kind] : "";
}

/* ---- one ------------------------------------------------------------------------------------- */

uint64_t sl_supplier_failures(const struct sl_supplier *supplier)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < SL_SUPPLIER_FAILURE_COUNT; i++)
        sum += supplier->failures[i];
    return sum;
}

double sl_supplier_rate(const struct sl_supplier *supplier)
{
    double seconds = (double)(supplier->last_ns - supplier->first_ns) / 1e9;
    return supplier->last_ns > supplier->first_ns ? (double)supplier->bytes / seconds : 0;
}

static size_t usual_failure(const struct sl_supplier *supplier)
{
    size_t most = 0;
    for (size_t i = 1; i < SL_SUPPLIER_FAILURE_COUNT; i++)
        if (supplier->failures[i] > supplier->failures[most])
            most = i;
    return most;
}

const char *sl_supplier_trouble(const struct sl_supplier *supplier, char text[192])
{
    char times[40];
    uint64_t failed = sl_supplier_failures(supplier);
    text[0] = 0;
    if (supplier->wrong)
        snprintf(text, 192, "%.95s was left: wrong bytes", supplier->name);
    else if (failed)
        snprintf(text, 192, "%.95s failed %s (it %s)", supplier->name,
                 sl_human_count(failed, "time", times), failures[usual_failure(supplier)].text);
    return text;
}

static void json_failures(struct sl_json *json, const struct sl_supplier *supplier)
{
    sl_json_key(json, "failures");
    sl_json_object(json);
    for (size_t i = 0; i < SL_SUPPLIER_FAILURE_COUNT; i++)
        if (supplier->failures[i])
            sl_json_key_uint(json, failures[i].name, supplier->failures[i]);
    sl_json_end(json);
}

void sl_suppliers_json(struct sl_json *json, const struct sl_supplier *suppliers, size_t count)
{
    sl_json_array(json);
    for (size_t i = 0; i < count; i++) {
        sl_json_object(json);
        sl_json_key_string(json, "name", suppliers[i].name);
        sl_json_key_string(json, "kind", kind_name(suppliers[i].kind));
        sl_json_key_uint(json, "bytes", suppliers[i].bytes);
        sl_json_key_uint(json, "ranges", suppliers[i].ranges);
        sl_json_key_double(json, "bytes_per_second", sl_supplier_rate(&suppliers[i]));
        json_failures(json, &suppliers[i]);
        sl_json_key_uint(json, "wrong", suppliers[i].wrong);
        sl_json_end(json);
    }
    sl_json_end(json);
}

/* ---- a set of them --------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t hash_of(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return hash;
}

static void set_name(struct sl_supplier *supplier, const char *name)
{
    int kept = SL_SUPPLIER_NAME_BYTES - 1;
    supplier->hash = hash_of(name);
    if (snprintf(supplier->name, sizeof(supplier->name), "%s", name) > kept)
        snprintf(supplier->name, sizeof(supplier->name), "%.*s~%016" PRIx64, kept - 17, name,
                 supplier->hash);
    for (char *at = supplier->name; *at; at++)
        if (*at <= ' ' || *at > '~' || *at == '"' || *at == '\\')
            *at = '?';
}

static struct sl_supplier *find(struct sl_suppliers *suppliers, const char *name)
{
    uint64_t hash = hash_of(name);
    for (size_t i = 0; i < suppliers->count; i++)
        if (suppliers->items[i].hash == hash)
            return &suppliers->items[i];
    return NULL;
}

static void merge(struct sl_supplier *into, const struct sl_supplier *from)
{
    into->bytes += from->bytes;
    into->ranges += from->ranges;
    into->wrong += from->wrong;
    for (size_t i = 0; i < SL_SUPPLIER_FAILURE_COUNT; i++)
        into->failures[i] += from->failures[i];
    into->first_ns = SL_MIN(into->first_ns, from->first_ns);
    into->last_ns = SL_MAX(into->last_ns, from->last_ns);
    into->trouble_ns = SL_MAX(into->trouble_ns, from->trouble_ns);
}

static struct sl_supplier *append(struct sl_suppliers *suppliers, const char *name,
                                  enum sl_supplier_kind kind, uint64_t now_ns)
{
    struct sl_supplier *made = &suppliers->items[suppliers->count++];
    *made = (struct sl_supplier){.kind = kind, .first_ns = now_ns, .last_ns = now_ns};
    set_name(made, name);
    return made;
}

/* Whose last request ended first, if that is long ago; neither the origin nor the others. */
static struct sl_supplier *find_idle(struct sl_suppliers *suppliers,
                                     const struct sl_supplier *others, uint64_t now_ns)
{
    struct sl_supplier *idle = NULL;
    for (size_t i = 0; i < suppliers->count; i++) {
        struct sl_supplier *one = &suppliers->items[i];
        if (one->kind != SL_SUPPLIER_ORIGIN && one != others &&
            (!idle || one->last_ns < idle->last_ns))
            idle = one;
    }
    return idle && now_ns - SL_MIN(now_ns, idle->last_ns) >= IDLE_NS ? idle : NULL;
}

/* There is room for the others, always. */
static struct sl_supplier *enter(struct sl_suppliers *suppliers, const char *name,
                                 enum sl_supplier_kind kind, uint64_t now_ns)
{
    if (suppliers->count < SL_SUPPLIERS_MAX - 1)
        return append(suppliers, name, kind, now_ns);
    struct sl_supplier *others = find(suppliers, SL_SUPPLIER_OTHERS);
    if (!others)
        others = append(suppliers, SL_SUPPLIER_OTHERS, SL_SUPPLIER_CACHE, now_ns);
    struct sl_supplier *idle = find_idle(suppliers, others, now_ns);
    if (!idle)
        return others;
    merge(others, idle);
    *idle = (struct sl_supplier){.kind = kind, .first_ns = now_ns, .last_ns = now_ns};
    set_name(idle, name);
    return idle;
}

void sl_suppliers_add(struct sl_suppliers *suppliers, const struct sl_supplied *supplied)
{
    const char *name = supplied->name ? supplied->name : SL_SUPPLIER_ORIGIN_NAME;
    uint64_t now_ns = sl_now_ns();
    struct sl_supplier *supplier = find(suppliers, name);
    if (!supplier)
        supplier = enter(suppliers, name, supplied->kind, now_ns);
    struct sl_supplier more = {.bytes = supplied->bytes,
                               .ranges = supplied->ranges,
                               .wrong = supplied->wrong,
                               .first_ns = supplied->began_ns ? supplied->began_ns : now_ns,
                               .last_ns = now_ns};
    if (supplied->failure < SL_SUPPLIER_FAILURE_COUNT)
        more.failures[supplied->failure] = 1;
    if (supplied->failure < SL_SUPPLIER_FAILURE_COUNT || supplied->wrong)
        more.trouble_ns = now_ns;
    merge(supplier, &more);
}

static int by_interest(const void *a, const void *b)
{
    const struct sl_supplier *x = a, *y = b;
    const uint64_t keys[][2] = {{y->kind == SL_SUPPLIER_ORIGIN, x->kind == SL_SUPPLIER_ORIGIN},
                                {y->wrong, x->wrong},
                                {sl_supplier_failures(y), sl_supplier_failures(x)},
                                {y->bytes, x->bytes}};
    for (size_t i = 0; i < SL_COUNT(keys); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return strcmp(x->name, y->name);
}

size_t sl_suppliers_copy(const struct sl_suppliers *suppliers, struct sl_supplier *copies,
                         size_t limit)
{
    struct sl_supplier all[SL_SUPPLIERS_MAX];
    memcpy(all, suppliers->items, suppliers->count * sizeof(*all));
    qsort(all, suppliers->count, sizeof(*all), by_interest);
    memcpy(copies, all, SL_MIN(suppliers->count, limit) * sizeof(*copies));
    return suppliers->count;
}

/* ---- the process ----------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    struct sl_suppliers suppliers;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&process.mutex, NULL)

void sl_suppliers_count(const struct sl_supplied *supplied)
{
    SL_LOCKED(&process.mutex);
    sl_suppliers_add(&process.suppliers, supplied);
}

static size_t copy_all(struct sl_supplier items[SL_SUPPLIERS_MAX])
{
    SL_LOCKED(&process.mutex);
    return sl_suppliers_copy(&process.suppliers, items, SL_SUPPLIERS_MAX);
}

void sl_suppliers_each_degraded(void (*call)(void *arg, const char *text), void *arg)
{
    struct sl_supplier items[SL_SUPPLIERS_MAX];
    size_t count = copy_all(items);
    uint64_t now_ns = sl_now_ns();
    char text[192];
    for (size_t i = 0; i < count; i++)
        if (items[i].kind != SL_SUPPLIER_ORIGIN && items[i].trouble_ns &&
            now_ns - items[i].trouble_ns < TROUBLE_NS)
            call(arg, sl_supplier_trouble(&items[i], text));
}

static const struct {
    const char *name, *unit, *help;
    size_t member;
} families[] = {
    {"sluice_source_place_bytes_total", "bytes",
     "Of sluice_source_bytes_total: whose they were, of the origin or a cache or mirror before it",
     offsetof(struct sl_supplier, bytes)},
    {"sluice_source_place_ranges_total", "", "Requests that the place answered whole",
     offsetof(struct sl_supplier, ranges)},
    {"sluice_source_place_wrong_total", "",
     "Times that bytes of the place had another hash, and it was asked no more",
     offsetof(struct sl_supplier, wrong)},
};

static int write_family(struct sl_buf *out, int openmetrics, size_t family,
                        const struct sl_supplier *items, size_t count, struct sl_err *err)
{
    if (sl_metrics_head(out, openmetrics, families[family].name, "counter", families[family].unit,
                        families[family].help, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&items[i] + families[family].member, sizeof(value));
        if (sl_buf_printf(out, err, "%s{place=\"%s\"} %" PRIu64 "\n", families[family].name,
                          items[i].name, value) < 0)
            return -1;
    }
    return 0;
}

static int write_failures(struct sl_buf *out, int openmetrics, const struct sl_supplier *items,
                          size_t count, struct sl_err *err)
{
    const char *name = "sluice_source_place_failures_total";
    if (sl_metrics_head(out, openmetrics, name, "counter", "", "Requests to the place that failed",
                        err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        for (size_t kind = 0; kind < SL_SUPPLIER_FAILURE_COUNT; kind++)
            if (items[i].failures[kind] &&
                sl_buf_printf(out, err, "%s{place=\"%s\",kind=\"%s\"} %" PRIu64 "\n", name,
                              items[i].name, failures[kind].name, items[i].failures[kind]) < 0)
                return -1;
    return 0;
}

int sl_suppliers_write(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    struct sl_supplier items[SL_SUPPLIERS_MAX];
    size_t count = copy_all(items);
    for (size_t i = 0; count && i < SL_COUNT(families); i++)
        if (write_family(out, openmetrics, i, items, count, err) < 0)
            return -1;
    return count ? write_failures(out, openmetrics, items, count, err) : 0;
}
