/* sluice verify: not written yet. */
#include "cli.h"

static int run(struct sl_cli *cli, struct sl_err *err)
{
    (void)cli;
    return sl_fail(err, SL_E_INTERNAL, "'verify' is not built yet");
}

const struct sl_command sl_cmd_verify = {
    .name = "verify",
    .usage = "sluice verify DIR | URI",
    .summary = "check a published directory or an object against its hashes",
    .operand_min = 1,
    .operand_max = -1,
    .run = run,
};
