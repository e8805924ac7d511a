/* sluice help: the commands, one of them, or a page of the reference. */
#include <stdio.h>

#include "cli_flags.h"

static int run(struct sl_cli *cli, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    const char *topic = cli->operand_count ? cli->operands[0] : NULL;
    const struct sl_command *command = topic ? sl_command_find(topic) : NULL;
    int done;
    if (!topic)
        done = sl_cli_write_help(&text, err);
    else if (command)
        done = sl_cli_write_command_help(command, true, &text, err);
    else
        done = sl_cli_write_topic(topic, &text, err);
    if (done == 0)
        fwrite(sl_buf_string(&text), 1, text.used, stdout);
    return done;
}

const struct sl_command sl_cmd_help = {
    .name = "help",
    .usage = "sluice help [COMMAND | TOPIC]",
    .summary = "explain a command or a topic",
    .description = "Without an operand, lists the commands. With the name of a command, prints "
                   "what `sluice COMMAND --help` prints, and all flags for keys of the spec. With "
                   "a topic, prints the page that `sluice docs TOPIC` prints.",
    .examples = "sluice help load      # the flags of load\n"
                "sluice help sources   # where models can be loaded from",
    .operand_min = 0,
    .operand_max = 1,
    .run = run,
};
