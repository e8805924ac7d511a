/* Counters, gauges and histograms of the whole process, one row each in metrics.def. Any thread. */
#ifndef SL_METRICS_H
#define SL_METRICS_H

#include <stdint.h>

#include "buf.h"
#include "err.h"

enum sl_metric {
#define SL_METRIC(id, type, name, unit, help) SL_M_##id,
#include "metrics.def"
#undef SL_METRIC
    SL_METRIC_COUNT
};

/** Counters grow, gauges move by a signed amount. Any thread, no lock. */
void sl_metric_add(enum sl_metric metric, int64_t amount);
/** One observation of a histogram, in seconds. */
void sl_metric_observe(enum sl_metric metric, double seconds);
/** The value now (histograms: the count). */
uint64_t sl_metric_get(enum sl_metric metric);

/**
 * All of them, and the progress of each live load (progress.h), as Prometheus text 0.0.4 or, with
 * openmetrics, as OpenMetrics 1.0 with its # EOF
 * (prometheus.io/docs/instrumenting/exposition_formats). Appended to out. SL_E_NO_SPACE, or what a
 * writer says.
 */
int sl_metrics_write(struct sl_buf *out, int openmetrics, struct sl_err *err);

/** More families, written behind those of metrics.def: at most 4 writers, each set once. */
void sl_metrics_add_writer(int (*write)(struct sl_buf *out, int openmetrics, struct sl_err *err));

#endif
