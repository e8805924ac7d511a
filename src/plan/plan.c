/* The plan: not written yet. */
#include "plan.h"

int sl_plan_make(const struct sl_spec *spec, const struct sl_source_config *config, struct sl_plan **plan,
                 struct sl_err *err)
{
    (void)spec, (void)config, (void)plan;
    return sl_fail(err, SL_E_INTERNAL, "planning is not built yet");
}
void sl_plan_free(struct sl_plan *plan)
{
    free(plan);
}
void sl_plan_json(struct sl_json *json, const struct sl_plan *plan)
{
    (void)json, (void)plan;
}
