/*
 * One cell per row of metrics.def, each on its own cache line, changed with relaxed atomics:
 * readers on many threads count without waiting for each other. A scrape reads them one by one; it
 * is not a snapshot, which Prometheus does not ask for.
 */
#include "metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "fork_guard.h"
#include "metrics_write.h"
#include "suppliers.h"
#include "thread.h"

/* Upper bounds in seconds; both texts of a bound are needed, since OpenMetrics wants "1.0" for 1.
 */
static const struct {
    double seconds;
    const char *text, *open_text;
} bounds[] = {
    {0.001, "0.001", "0.001"}, {0.0025, "0.0025", "0.0025"}, {0.005, "0.005", "0.005"},
    {0.01, "0.01", "0.01"},    {0.025, "0.025", "0.025"},    {0.05, "0.05", "0.05"},
    {0.1, "0.1", "0.1"},       {0.25, "0.25", "0.25"},       {0.5, "0.5", "0.5"},
    {1, "1", "1.0"},           {2.5, "2.5", "2.5"},          {5, "5", "5.0"},
    {10, "10", "10.0"},        {30, "30", "30.0"},           {60, "60", "60.0"},
};
enum { BOUND_COUNT = SL_COUNT(bounds) };

enum metric_type { COUNTER, GAUGE, HISTOGRAM };
static const struct {
    enum metric_type type;
    const char *name, *unit, *help;
} rows[] = {
#define SL_METRIC(id, type, name, unit, help) {type, name, unit, help},
#include "metrics.def"
#undef SL_METRIC
};

static struct {
    _Alignas(64) _Atomic int64_t value;   /* histograms: observations */
    _Atomic uint64_t sum_ns;              /* histograms only */
    _Atomic uint64_t bucket[BOUND_COUNT]; /* observations in this bucket alone, not cumulative */
} cells[SL_METRIC_COUNT];

void sl_metric_add(enum sl_metric metric, int64_t amount)
{
    atomic_fetch_add_explicit(&cells[metric].value, amount, memory_order_relaxed);
}

void sl_metric_observe(enum sl_metric metric, double seconds)
{
    if (!(seconds >= 0))
        seconds = 0;
    if (seconds > 1e6)
        seconds = 1e6;
    for (unsigned i = 0; i < BOUND_COUNT; i++)
        if (seconds <= bounds[i].seconds) {
            atomic_fetch_add_explicit(&cells[metric].bucket[i], 1, memory_order_relaxed);
            break;
        }
    atomic_fetch_add_explicit(&cells[metric].sum_ns, (uint64_t)(seconds * 1e9),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&cells[metric].value, 1, memory_order_relaxed);
}

uint64_t sl_metric_get(enum sl_metric metric)
{
    int64_t value = atomic_load_explicit(&cells[metric].value, memory_order_relaxed);
    return value < 0 ? 0 : (uint64_t)value;
}

/* The count is the cumulative sum of what was read here, so that le="+Inf" always equals _count. */
static int write_histogram(struct sl_buf *out, int openmetrics, unsigned row, struct sl_err *err)
{
    uint64_t cumulative = 0, total = sl_metric_get((enum sl_metric)row);
    for (unsigned i = 0; i < BOUND_COUNT; i++) {
        cumulative += atomic_load_explicit(&cells[row].bucket[i], memory_order_relaxed);
        if (sl_buf_printf(out, err, "%s_bucket{le=\"%s\"} %" PRIu64 "\n", rows[row].name,
                          openmetrics ? bounds[i].open_text : bounds[i].text, cumulative) < 0)
            return -1;
    }
    total = SL_MAX(total, cumulative);
    double sum = (double)atomic_load_explicit(&cells[row].sum_ns, memory_order_relaxed) / 1e9;
    return sl_buf_printf(out, err,
                         "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9g\n%s_count %" PRIu64 "\n",
                         rows[row].name, total, rows[row].name, sum, rows[row].name, total);
}

static int write_row(struct sl_buf *out, int openmetrics, unsigned row, struct sl_err *err)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    if (sl_metrics_head(out, openmetrics, rows[row].name, types[rows[row].type], rows[row].unit,
                        rows[row].help, err) < 0)
        return -1;
    if (rows[row].type == HISTOGRAM)
        return write_histogram(out, openmetrics, row, err);
    int64_t value = atomic_load_explicit(&cells[row].value, memory_order_relaxed);
    return sl_buf_printf(out, err, "%s %" PRId64 "\n", rows[row].name, value);
}

enum { WRITERS_MAX = 4 };
static struct {
    pthread_mutex_t mutex;
    int (*items[WRITERS_MAX])(struct sl_buf *out, int openmetrics, struct sl_err *err);
    unsigned count;
} writers = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&writers.mutex, NULL)

void sl_metrics_add_writer(int (*write)(struct sl_buf *out, int openmetrics, struct sl_err *err))
{
    SL_LOCKED(&writers.mutex);
    assert(writers.count < WRITERS_MAX);
    writers.items[writers.count++] = write;
}

static int write_more(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    SL_LOCKED(&writers.mutex);
    for (unsigned i = 0; i < writers.count; i++)
        if (writers.items[i](out, openmetrics, err) < 0)
            return -1;
    return 0;
}

int sl_metrics_write(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    for (unsigned row = 0; row < SL_METRIC_COUNT; row++)
        if (write_row(out, openmetrics, row, err) < 0)
            return sl_wrap(err, "metrics");
    if (sl_metrics_write_process(out, openmetrics, err) < 0 ||
        sl_metrics_write_loads(out, openmetrics, err) < 0 ||
        sl_suppliers_write(out, openmetrics, err) < 0 || write_more(out, openmetrics, err) < 0)
        return sl_wrap(err, "metrics");
    return openmetrics ? sl_buf_text(out, "# EOF\n", err) : 0;
}
