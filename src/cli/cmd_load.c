/* sluice load: not written yet. */
#include "cli.h"

static int run(struct sl_cli *cli, struct sl_err *err)
{
    (void)cli;
    return sl_fail(err, SL_E_INTERNAL, "'load' is not built yet");
}

const struct sl_command sl_cmd_load = {
    .name = "load",
    .usage = "sluice load SPEC | URI --to DIR [-- COMMAND ...]",
    .summary = "load models into a directory",
    .operand_min = 1,
    .operand_max = -1,
    .run = run,
};
