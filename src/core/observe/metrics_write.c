/*
 * The families that are read at scrape time instead of counted: /proc/self, and the progress list.
 *
 * Loads are labelled by model name alone. An id or a URI in the label would make a new series for
 * each run, and a daemon that lives for months would fill its Prometheus; so of several loads of
 * one name the latest is shown.
 */
#include "metrics_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"

enum { MODELS_MAX = 256, LABEL_BYTES_MAX = 160 };

/* ---- the process ---------------------------------------------------------------------------- */

struct process {
    double start_seconds, cpu_seconds;
    uint64_t resident_bytes;
};

static uint64_t boot_seconds(void)
{
    FILE *file = fopen("/proc/stat", "re");
    uint64_t seconds = 0;
    char line[256];
    while (file && !seconds && fgets(line, sizeof(line), file))
        if (sscanf(line, "btime %" SCNu64, &seconds) != 1)
            seconds = 0;
    if (file)
        fclose(file);
    return seconds;
}

/* /proc/self/stat, proc(5): utime 14, stime 15, starttime 22, rss 24, counted after "(comm) ". */
static int read_process(struct process *process)
{
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return -1;
    char text[1024] = "";
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = 0;
    const char *fields = strrchr(text, ')');
    uint64_t user, system_ticks, start;
    int64_t pages;
    if (!fields || sscanf(fields + 1,
                          " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64
                          " %*s %*s %*s %*s %*s %*s %" SCNu64 " %*s %" SCNd64,
                          &user, &system_ticks, &start, &pages) != 4)
        return -1;
    double ticks = (double)sysconf(_SC_CLK_TCK);
    process->cpu_seconds = (double)(user + system_ticks) / ticks;
    process->start_seconds = (double)boot_seconds() + (double)start / ticks;
    process->resident_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

int sl_metrics_write_process(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    if (sl_metrics_head(out, openmetrics, "sluice_build_info", "info", "",
                        "The version of sluice that runs", err) < 0 ||
        sl_buf_printf(out, err, "sluice_build_info{version=\"%s\"} 1\n", SLUICE_VERSION) < 0)
        return -1;
    struct process process;
    if (read_process(&process) < 0)
        return 0; /* no /proc: the rest still counts */
    if (sl_metrics_head(out, openmetrics, "process_start_time_seconds", "gauge", "seconds",
                        "Start of the process since 1970", err) < 0 ||
        sl_buf_printf(out, err, "process_start_time_seconds %.2f\n", process.start_seconds) < 0 ||
        sl_metrics_head(out, openmetrics, "process_cpu_seconds_total", "counter", "seconds",
                        "Processor time, user and system", err) < 0 ||
        sl_buf_printf(out, err, "process_cpu_seconds_total %.2f\n", process.cpu_seconds) < 0 ||
        sl_metrics_head(out, openmetrics, "process_resident_memory_bytes", "gauge", "bytes",
                        "Resident memory, shared pages included", err) < 0)
        return -1;
    return sl_buf_printf(out, err, "process_resident_memory_bytes %" PRIu64 "\n",
                         process.resident_bytes);
}

/* ---- loads ---------------------------------------------------------------------------------- */

struct model {
    char label[LABEL_BYTES_MAX]; /* escaped */
    enum sl_load_state state;
    double value[9]; /* in the order of `families` */
};
static const struct {
    const char *name, *unit, *help;
} families[] = {
    {"sluice_load_size_bytes", "bytes", "Bytes that the load will place"},
    {"sluice_load_done_bytes", "bytes", "Bytes that are in their place"},
    {"sluice_load_verified_bytes", "bytes", "Bytes whose hash was checked and right"},
    {"sluice_load_fetched_bytes", "bytes", "Bytes that came from the source, retries included"},
    {"sluice_load_resumed_bytes", "bytes", "Bytes kept from an interrupted load"},
    {"sluice_load_inherited_bytes", "bytes", "Bytes taken over from another version"},
    {"sluice_load_duration_seconds", "seconds", "Time since the load began, until it ended"},
    {"sluice_load_retries", "", "Requests that the load repeated"},
    {"sluice_load_connections", "", "Connections that fetch for the load now"},
};
_Static_assert(SL_COUNT(families) == 9, "one value for each family");

struct models {
    struct model *items;
    size_t count, capacity;
    struct sl_err err;
};

/* Both text formats escape backslash, quote and newline in label values. */
static void escape_label(const char *text, char label[LABEL_BYTES_MAX])
{
    size_t used = 0;
    for (; *text && used + 3 < LABEL_BYTES_MAX; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\\' || c == '"' || c == '\n')
            label[used++] = '\\';
        label[used++] = c == '\n' ? 'n' : *text;
    }
    label[used] = 0;
    if (!sl_is_utf8(label, used))
        for (char *p = label; *p; p++)
            if ((unsigned char)*p >= 0x80)
                *p = '?';
}

static void collect(const struct sl_progress_view *view, void *arg)
{
    struct models *models = arg;
    char label[LABEL_BYTES_MAX];
    if (view->hidden && !sl_metrics_shows_hidden())
        return;
    escape_label(view->name, label);
    struct model *model = NULL;
    for (size_t i = 0; i < models->count && !model; i++)
        if (strcmp(models->items[i].label, label) == 0)
            model = &models->items[i];
    if (!model) {
        if (models->count >= MODELS_MAX ||
            sl_grow(&models->items, &models->capacity, models->count + 1, sizeof(*model),
                    &models->err) < 0)
            return;
        model = &models->items[models->count++];
        snprintf(model->label, sizeof(model->label), "%s", label);
    }
    model->state = view->state;
    const double value[] = {
        (double)view->bytes_total,
        (double)view->bytes_done,
        (double)view->bytes_verified,
        (double)view->bytes_fetched,
        (double)view->bytes_resumed,
        (double)view->bytes_inherited,
        view->seconds,
        (double)view->retries,
        (double)view->connections,
    };
    _Static_assert(sizeof(value) == sizeof(model->value), "one value for each family");
    memcpy(model->value, value, sizeof(value));
}

static int write_states(struct sl_buf *out, const struct models *models, struct sl_err *err)
{
    for (size_t i = 0; i < models->count; i++)
        for (int state = SL_LOAD_QUEUED; state <= SL_LOAD_FAILED; state++)
            if (sl_buf_printf(out, err, "sluice_load_state{model=\"%s\",state=\"%s\"} %d\n",
                              models->items[i].label, sl_load_state_name((enum sl_load_state)state),
                              models->items[i].state == (enum sl_load_state)state) < 0)
                return -1;
    return 0;
}

static int write_families(struct sl_buf *out, int openmetrics, const struct models *models,
                          struct sl_err *err)
{
    for (size_t f = 0; f < SL_COUNT(families); f++) {
        if (sl_metrics_head(out, openmetrics, families[f].name, "gauge", families[f].unit,
                            families[f].help, err) < 0)
            return -1;
        for (size_t i = 0; i < models->count; i++)
            if (sl_buf_printf(out, err, "%s{model=\"%s\"} %.17g\n", families[f].name,
                              models->items[i].label, models->items[i].value[f]) < 0)
                return -1;
    }
    if (sl_metrics_head(out, openmetrics, "sluice_load_state", "gauge", "",
                        "1 for the state that the load is in", err) < 0)
        return -1;
    return write_states(out, models, err);
}

int sl_metrics_write_loads(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    struct models models = {0};
    sl_progress_each(collect, &models);
    int result =
        models.err.kind || !models.count ? 0 : write_families(out, openmetrics, &models, err);
    if (models.err.kind) {
        if (err)
            *err = models.err;
        result = -1;
    }
    free(models.items);
    return result;
}
