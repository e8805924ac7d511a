/* What every writer of metrics asks: how a family begins, and whether hidden loads are shown. */
#include "metrics_write.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic bool shows_hidden;

void sl_metrics_show_hidden(bool shows)
{
    atomic_store(&shows_hidden, shows);
}

bool sl_metrics_shows_hidden(void)
{
    return atomic_load(&shows_hidden);
}

int sl_metrics_head(struct sl_buf *out, int openmetrics, const char *name, const char *type,
                    const char *unit, const char *help, struct sl_err *err)
{
    int length = (int)strlen(name);
    if (openmetrics && strcmp(type, "counter") == 0)
        length -= (int)strlen("_total");
    if (strcmp(type, "info") == 0) {
        if (openmetrics)
            length -= (int)strlen("_info");
        else
            type = "gauge";
    }
    if (sl_buf_printf(out, err, "# HELP %.*s %s\n# TYPE %.*s %s\n", length, name, help, length,
                      name, type) < 0)
        return -1;
    /* OpenMetrics wants the unit to be the family's last word. */
    size_t unit_bytes = strlen(unit);
    if (!openmetrics || !*unit || (size_t)length < unit_bytes ||
        memcmp(name + length - unit_bytes, unit, unit_bytes) != 0)
        return 0;
    return sl_buf_printf(out, err, "# UNIT %.*s %s\n", length, name, unit);
}
