/* One load: not written yet. */
#include "load.h"

int sl_load_run(const struct sl_spec *spec, struct sl_cancel *cancel, struct sl_progress *progress,
                struct sl_load_result *result, struct sl_err *err)
{
    (void)spec, (void)cancel, (void)progress, (void)result;
    return sl_fail(err, SL_E_INTERNAL, "loading is not built yet");
}
void sl_load_result_json(struct sl_json *json, const struct sl_load_result *result, const char *name)
{
    (void)json, (void)result, (void)name;
}
const char *sl_load_summary(const struct sl_load_result *result, char text[512])
{
    (void)result;
    text[0] = 0;
    return text;
}
void sl_load_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_progress *progress, struct sl_source_config *config)
{
    *config = (struct sl_source_config){.s3 = &spec->source.s3,
                                        .http = &spec->source.http,
                                        .tls = &spec->source.tls,
                                        .stall_seconds = (unsigned)spec->readers.stall_seconds,
                                        .attempts = (unsigned)spec->readers.attempts,
                                        .cancel = cancel,
                                        .progress = progress};
}
