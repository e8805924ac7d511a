/* sluice docs: the reference, written by the tables that the program itself works from. */
#include <stdio.h>
#include <string.h>

#include "cli_flags.h"

struct docs_options {
    char *write;
};

static const struct sl_option rows[] = {
    SL_OPTION(docs_options, write, STRING, "",
              "write every page below this directory instead: reference/ and man/", .value = "DIR"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"docs", sizeof(struct docs_options), rows};

static int write_page(const struct sl_cli *cli, struct sl_buf *text, struct sl_err *err)
{
    const char *topic = cli->operands[0];
    if (cli->operand_count == 1)
        return sl_cli_write_topic(topic, text, err);
    const struct sl_command *command = sl_command_find(cli->operands[1]);
    if (!command)
        return sl_fail(err, SL_E_USAGE, "no command is called '%.80s': see `sluice help`",
                       cli->operands[1]);
    if (strcmp(topic, "man") == 0)
        return sl_cli_write_man(command, text, err);
    if (strcmp(topic, "commands") == 0)
        return sl_cli_write_command_page(command, text, err);
    return sl_fail(err, SL_E_USAGE,
                   "a command's page is `sluice docs commands %s` or `sluice docs man %s`",
                   command->name, command->name);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct docs_options *options = cli->options;
    if (options->write && cli->operand_count)
        return sl_fail(err, SL_E_USAGE, "--write takes all pages, not '%.80s' alone",
                       cli->operands[0]);
    if (options->write)
        return sl_cli_write_pages(options->write, err);
    if (!cli->operand_count)
        return sl_fail(err, SL_E_USAGE, "which page? One of %s, or --write DIR for all",
                       sl_cli_topics());
    sl_autobuf text = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    if (write_page(cli, &text, err) < 0)
        return -1;
    fwrite(sl_buf_string(&text), 1, text.used, stdout);
    return 0;
}

const struct sl_command sl_cmd_docs = {
    .name = "docs",
    .usage = "sluice docs TOPIC [COMMAND] | --write DIR",
    .summary = "print a page of the reference",
    .description =
        "The topics are spec (the YAML file), schema (its JSON schema), commands, "
        "errors (and exit codes), metrics, "
        "sources, formats, options (flags and environment), http (paths), man (roff) and all. "
        "`commands` and `man` take the name of "
        "a command for its page alone.\n\n"
        "The pages are written by the tables that parse the spec and the flags, so they "
        "cannot say anything else than "
        "the program does.",
    .examples = "sluice docs spec                            # every key of the spec\n"
                "sluice docs schema > sluice.schema.json     # for an editor\n"
                "sluice docs man load | man -l -             # the man page of load",
    .options = &table,
    .operand_min = 0,
    .operand_max = 2,
    .run = run,
};
