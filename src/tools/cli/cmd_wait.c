/* sluice wait: block until a directory holds a published model. For entry points and probes that
 * are not sluice themselves. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "publish.h"

struct wait_options {
    uint64_t timeout_seconds;
    bool next;
    char *than;
};

static int check_version(const char *text, struct sl_err *err)
{
    size_t digits = strspn(text, "0123456789abcdef");
    if (digits && digits <= 64 && !text[digits])
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' is not a version; give hex digits, as 'sluice wait --next' and 'sluice "
                   "status' print them",
                   text);
}

static const struct sl_option rows[] = {
    SL_OPTION(wait_options, timeout_seconds, UINT, "0",
              "give up after this time with exit code 8; 0 waits for ever", .maximum = 31536000,
              .value = "SECONDS"),
    SL_OPTION(wait_options, next, BOOL, "false",
              "wait for another version than the one that is published now, and print which"),
    SL_OPTION(wait_options, than, STRING, "",
              "the same, for another than this, which an earlier wait printed: none is missed that "
              "came in between",
              .check = check_version, .value = "VERSION"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"wait", sizeof(struct wait_options), rows};

/* What can never hold a model is not waited for, maybe for ever. */
static int check_path(const char *path, struct sl_err *err)
{
    struct stat status;
    bool other = stat(path, &status) == 0 && !S_ISDIR(status.st_mode);
    if (*path && !strstr(path, "://") && !other)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' is not a path of a directory: name the one that a load publishes into",
                   path);
}

static int wait_next(struct sl_cli *cli, const char *path, struct sl_err *err)
{
    const struct wait_options *options = cli->options;
    char now[65], than[65], identity[65];
    sl_publish_now(path, now);
    snprintf(than, sizeof(than), "%s", options->than ? options->than : now);
    if (sl_publish_wait_next(path, than, (unsigned)options->timeout_seconds, cli->cancel, identity,
                             err) < 0)
        return -1;
    if (!cli->json)
        printf("%s\n", identity);
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct wait_options *options = cli->options;
    const char *path = cli->operands[0];
    if (check_path(path, err) < 0)
        return -1;
    int done = options->next || options->than
                   ? wait_next(cli, path, err)
                   : sl_publish_wait(path, (unsigned)options->timeout_seconds, cli->cancel, err);
    if (done < 0 || !cli->json)
        return done;
    struct sl_publish_facts facts;
    bool there;
    if (sl_publish_look(path, &facts, &there, err) < 0)
        return -1;
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "path", path);
    sl_json_key_string(&json, "name", facts.name);
    sl_json_key_uri(&json, "uri", facts.uri);
    sl_json_key_string(&json, "identity", facts.identity);
    sl_json_end(&json);
    done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

const struct sl_command sl_cmd_wait = {
    .name = "wait",
    .usage = "sluice wait PATH [--next | --than VERSION]",
    .summary = "wait until a model is published in a directory",
    .description =
        "Returns as soon as PATH/.sluice/ready exists. PATH itself may appear later. "
        "While a new version takes the place of "
        "an old one, ready is absent. A version is known by its identity, hex digits that "
        "status and the manifest have, too.",
    .examples = "sluice wait /models && exec python serve.py   # in an entry point\n"
                "sluice wait /models --timeout-seconds 600     # exit code 8 after ten minutes\n"
                "sluice wait /models --next                    # until a new version is there",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
