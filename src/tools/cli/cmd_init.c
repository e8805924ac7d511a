/* sluice init: a spec to begin with, from a URI; an editor completes its keys by the schema. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "operand.h"

enum { TEXT_BYTES_MAX = 64 * 1024 };

struct init_options {
    char *to, *name;
};
static const struct sl_option rows[] = {
    SL_OPTION(init_options, to, STRING, "/dev/shm/NAME",
              "where the model is to be published; NAME is the model's", .value = "DIR"),
    SL_OPTION(init_options, name, STRING, "", "name of the model; else the URI's last part",
              .value = "NAME"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"init", sizeof(struct init_options), rows};

static int write_key(struct sl_buf *out, const char *before, const char *value, struct sl_err *err)
{
    sl_autofree char *quoted = sl_operand_quote(value, err);
    return quoted ? sl_buf_printf(out, err, "%s%s\n", before, quoted) : -1;
}

static int write_spec(const struct sl_spec *spec, const char *to, struct sl_buf *out,
                      struct sl_err *err)
{
    sl_autofree char *usual = sl_asprintf(err, "/dev/shm/%s", spec->metadata.name);
    if (!usual ||
        sl_buf_text(out,
                    "# yaml-language-server: $schema=./spec.schema.json\n"
                    "# The line above lets editors check and complete keys, after\n"
                    "# `sluice docs schema > spec.schema.json`. All keys: `sluice docs spec`.\n"
                    "apiVersion: sluice/v1alpha1\n"
                    "kind: Model\n",
                    err) < 0 ||
        write_key(out, "metadata:\n  name: ", spec->metadata.name, err) < 0 ||
        write_key(out, "source:\n  uri: ", spec->source.uri, err) < 0 ||
        sl_buf_text(out,
                    "  # include: [\"*.safetensors\", \"*.json\"]   # below a prefix: these alone\n"
                    "verify:\n"
                    "  hashes: auto   # require: refuse bytes that come without a hash\n",
                    err) < 0)
        return -1;
    bool given = strcmp(to, "/dev/shm/NAME") != 0;
    return write_key(out, "sink:\n  tmpfs:\n    path: ", given ? to : usual, err);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct init_options *options = cli->options;
    const char *uri = cli->operands[0];
    struct sl_specs specs = {0};
    sl_autobuf text = SL_BUF_INIT(TEXT_BYTES_MAX);
    struct sl_spec_setting name = {"metadata.name", options->name, "--name"};
    if (options->name && *options->name) {
        cli->settings = &name; /* this command takes no others */
        cli->setting_count = 1;
    }
    int done = strstr(uri, "${") || strstr(options->to, "${")
                   ? sl_fail(err, SL_E_USAGE,
                             "'${' stands for a variable in a spec: write the "
                             "text itself")
                   : sl_cli_uri_specs(cli, uri, options->to, &specs, err);
    cli->settings = NULL;
    cli->setting_count = 0;
    if (done == 0)
        done = write_spec(&specs.items[0], options->to, &text, err);
    if (done == 0)
        fputs(sl_buf_string(&text), stdout);
    sl_specs_release(&specs);
    return done;
}

const struct sl_command sl_cmd_init = {
    .name = "init",
    .usage = "sluice init URI",
    .summary = "print a spec for a URI, to be completed in an editor",
    .description =
        "Prints a model spec with the URI, a name, a directory in shared memory and the line by "
        "which editors find the schema. Nothing is asked of the store; `sluice plan` then shows "
        "what a load would do.",
    .examples = "sluice init s3://bucket/model/ > model.yaml\n"
                "sluice plan model.yaml",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
