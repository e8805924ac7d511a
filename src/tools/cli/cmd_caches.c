/* sluice caches: sets of engine caches in their store, by the spec that names them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "operand.h"
#include "sets.h"

enum { JSON_BYTES_MAX = 64 * 1024 };

struct caches_options {
    bool replace;
};
static const struct sl_option rows[] = {
    SL_OPTION(caches_options, replace, BOOL, "false", "save: replace the set that the store has"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"caches", sizeof(struct caches_options), rows};

/* ---- restore and save ------------------------------------------------------------------------ */

static int print_variable(void *arg, const char *name, const char *value)
{
    (void)arg;
    return printf("%s=%s\n", name, value) < 0 ? -1 : 0;
}

static int add_variable(void *arg, const char *name, const char *value)
{
    sl_json_key_string(arg, name, value);
    return 0;
}

/* What came of it is in the log; here is what an engine is to be told. */
static int restore(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err)
{
    struct sl_sets_result result;
    const char *path = spec->sink.caches.path;
    sl_sets_restore(spec, cli->cancel, &result);
    if (sl_cancel_check(cli->cancel, err) < 0)
        return -1;
    bool known = result.outcome != SL_SETS_NO_PLACE;
    if (!cli->json)
        return known ? sl_sets_each_variable(path, print_variable, NULL, err) : 0;
    struct sl_json json;
    sl_json_init(&json, JSON_BYTES_MAX);
    sl_json_object(&json);
    sl_sets_result_json(&json, &result);
    sl_json_key(&json, "environment");
    sl_json_object(&json);
    int done = known ? sl_sets_each_variable(path, add_variable, &json, err) : 0;
    sl_json_end(&json);
    sl_json_end(&json);
    if (done == 0)
        done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int save(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err)
{
    const struct caches_options *options = cli->options;
    struct sl_sets_saved saved;
    char bytes[32], packed[32], files[40];
    if (sl_sets_save(spec, options->replace, cli->cancel, &saved, err) < 0)
        return -1;
    if (cli->json) {
        struct sl_json json;
        sl_json_init(&json, JSON_BYTES_MAX);
        sl_json_object(&json);
        sl_json_key_string(&json, "key", saved.key);
        sl_json_key_bool(&json, "saved", !saved.there && !saved.lost);
        sl_json_key_uint(&json, "files", saved.files);
        sl_json_key_uint(&json, "bytes", saved.bytes);
        sl_json_key_uint(&json, "packed_bytes", saved.packed_bytes);
        sl_json_key_uint(&json, "passed_over", saved.passed);
        sl_json_end(&json);
        int done = sl_cli_print_json(&json, err);
        sl_json_release(&json);
        return done;
    }
    if (saved.there || saved.lost)
        printf("%.16s  %s: nothing is saved\n", saved.key,
               saved.there ? "the store has this set already; --replace replaces it"
                           : "another one saved this set first");
    else
        printf("%.16s  saved %s, %s (%s packed)\n", saved.key,
               sl_human_count(saved.files, "file", files), sl_human_bytes(saved.bytes, bytes),
               sl_human_bytes(saved.packed_bytes, packed));
    if (saved.passed)
        printf("%" PRIu64 " left out: sockets, pipes, links that lead out, or names of sluice\n",
               saved.passed);
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct action {
    const char *name;
    int (*run)(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err);
};
static const struct action actions[] = {{"restore", restore}, {"save", save}};

static int run_action(struct sl_cli *cli, const struct action *action, struct sl_err *err)
{
    struct sl_specs specs = {0};
    const struct sl_spec *spec;
    int done = sl_cli_read_specs(cli, cli->operands[1], &specs, err);
    if (done == 0)
        done = sl_sets_find(&specs, &spec, err);
    if (done == 0 && !spec)
        done = sl_fail(err, SL_E_USAGE, "'%s' has no 'sink.caches': see `sluice docs spec`",
                       cli->operands[1]);
    if (done == 0)
        done = action->run(cli, spec, err);
    sl_specs_release(&specs);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(actions); i++)
        if (strcmp(actions[i].name, cli->operands[0]) == 0)
            return run_action(cli, &actions[i], err);
    return sl_fail(err, SL_E_USAGE, "unknown caches command '%.80s': use restore or save",
                   cli->operands[0]);
}

const struct sl_command sl_cmd_caches = {
    .name = "caches",
    .usage = "sluice caches restore | save SPEC",
    .summary = "restore engine caches from their store, and save them",
    .description =
        "Engines compile while they start. What they keep of it can be saved in a store and "
        "restored on other machines of the same kind, as `sink.caches` of the spec says.\n\n"
        "restore puts the set of this machine into the path and prints the environment that the "
        "engine needs, a line each; a set that is missing or refused is a warning, not a failure. "
        "`sluice load` restores by itself. save packs what is in the path, signs it, and stores it "
        "unless there is one.",
    .examples = "sluice caches save model.yaml\n"
                "env $(sluice caches restore model.yaml) vllm serve /models/llama",
    .options = &table,
    .operand_words = "restore save",
    .spec_flags = true,
    .operand_min = 2,
    .operand_max = 2,
    .run = run,
};
