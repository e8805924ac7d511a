/* sluice wait: not written yet. */
#include "cli.h"

static int run(struct sl_cli *cli, struct sl_err *err)
{
    (void)cli;
    return sl_fail(err, SL_E_INTERNAL, "'wait' is not built yet");
}

const struct sl_command sl_cmd_wait = {
    .name = "wait",
    .usage = "sluice wait PATH",
    .summary = "wait until a model is published",
    .operand_min = 1,
    .operand_max = -1,
    .run = run,
};
