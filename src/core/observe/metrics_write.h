/* What /metrics says beyond the rows of metrics.def: the process, and each load. Used by metrics.c
 * and who says what is told. Any thread; appended to out, SL_E_NO_SPACE. */
#ifndef SL_METRICS_WRITE_H
#define SL_METRICS_WRITE_H

#include <stdbool.h>

#include "buf.h"
#include "err.h"

/**
 * Write HELP, TYPE and (OpenMetrics) UNIT of one family.
 *
 * @openmetrics  0: the text format of Prometheus, where an info is a gauge.
 * @name         of its samples; OpenMetrics families of counters and infos are named without their
 *               _total and _info, which must be there.
 * @type         "counter", "gauge", "info" and the like.
 * @unit         written where the family's name ends with it; "": none.
 * @help         one line.
 * @return       0, or -1 with SL_E_NO_SPACE.
 */
int sl_metrics_head(struct sl_buf *out, int openmetrics, const char *name, const char *type,
                    const char *unit, const char *help, struct sl_err *err);
/** Version, start time, CPU seconds, resident memory, descriptors. */
int sl_metrics_write_process(struct sl_buf *out, int openmetrics, struct sl_err *err);
/** A gauge per load, labelled by model: one load per name, the latest, and at most 256 of them. */
int sl_metrics_write_loads(struct sl_buf *out, int openmetrics, struct sl_err *err);
/** Are loads among them that not everybody may know of (sl_progress_view.hidden)? Not until then.
 */
void sl_metrics_show_hidden(bool shows);
bool sl_metrics_shows_hidden(void);

#endif
