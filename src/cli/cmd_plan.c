/* sluice plan: not written yet. */
#include "cli.h"

static int run(struct sl_cli *cli, struct sl_err *err)
{
    (void)cli;
    return sl_fail(err, SL_E_INTERNAL, "'plan' is not built yet");
}

const struct sl_command sl_cmd_plan = {
    .name = "plan",
    .usage = "sluice plan SPEC | URI [--to DIR]",
    .summary = "show what a load would fetch",
    .operand_min = 1,
    .operand_max = -1,
    .run = run,
};
