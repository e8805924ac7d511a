/* sluice caches: sets of engine caches in their store, by the spec that names them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "sets.h"

enum { JSON_BYTES_MAX = 64 * 1024 * 1024, AGE_BYTES = 32 };

struct caches_options {
    bool replace, remove;
    uint64_t older_days;
};
static const struct sl_option rows[] = {
    SL_OPTION(caches_options, replace, BOOL, "false", "save: replace the set that the store has"),
    SL_OPTION(caches_options, older_days, UINT, "0",
              "prune: sets that were saved longer ago, too; 0: none", .maximum = 36500,
              .value = "DAYS"),
    SL_OPTION(caches_options, remove, BOOL, "false",
              "prune: remove; without it what would go is only printed"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"caches", sizeof(struct caches_options), rows};

/* ---- ls -------------------------------------------------------------------------------------- */

struct listing {
    struct sl_cli *cli;
    struct sl_json json;
    uint64_t count;
};

static const char *age_of(int64_t created_seconds, char text[AGE_BYTES])
{
    int64_t seconds = sl_wall_seconds() - created_seconds;
    if (created_seconds <= 0 || seconds < 0)
        return "-";
    if (seconds >= 2 * 86400)
        snprintf(text, AGE_BYTES, "%" PRId64 " d", seconds / 86400);
    else if (seconds >= 2 * 3600)
        snprintf(text, AGE_BYTES, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(text, AGE_BYTES, "%" PRId64 " min", seconds / 60);
    return text;
}

/* Texts of strangers: lines of their own they do not get. */
static int show_line(struct listing *listing, const struct sl_sets_entry *entry, struct sl_err *err)
{
    char size[32], age[AGE_BYTES];
    sl_autofree char *facts = sl_strdup(entry->facts, err),
                     *bad = sl_strdup(entry->bad ? entry->bad : "", err);
    if (!facts || !bad)
        return -1;
    sl_sanitize(facts);
    sl_sanitize(bad);
    if (!listing->count)
        printf("%-16s  %10s  %7s  %-8s %s\n", "KEY", "SIZE", "AGE", "STATE", "FACTS");
    printf("%.16s  %10s  %7s  %-8s %s%s%s\n", entry->key, sl_human_bytes(entry->bytes, size),
           age_of(entry->created_seconds, age),
           entry->bad   ? "refused"
           : entry->own ? "own"
                        : "good",
           facts, *bad ? "  " : "", bad);
    return 0;
}

static int show(const struct sl_sets_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    int done = 0;
    if (listing->cli->json) {
        struct sl_json *json = &listing->json;
        sl_json_object(json);
        sl_json_key_string(json, "key", entry->key);
        sl_json_key_string(json, "sha256", entry->sha256);
        sl_json_key_uint(json, "packed_bytes", entry->bytes);
        sl_json_key_uint(json, "files", entry->files);
        sl_json_key_uint(json, "created_seconds", (uint64_t)SL_MAX(entry->created_seconds, 0));
        sl_json_key_bool(json, "own", entry->own);
        sl_json_key_string(json, "facts", entry->facts);
        if (entry->bad)
            sl_json_key_string(json, "refused", entry->bad);
        sl_json_end(json);
    } else {
        done = show_line(listing, entry, err);
    }
    listing->count++;
    return done;
}

static int list(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err)
{
    struct listing listing = {.cli = cli};
    sl_json_init(&listing.json, JSON_BYTES_MAX);
    sl_json_array(&listing.json);
    int done = sl_sets_list(spec, cli->cancel, show, &listing, err);
    sl_json_end(&listing.json);
    if (done == 0 && cli->json)
        done = sl_cli_print_json(&listing.json, err);
    else if (done == 0)
        printf("%" PRIu64 " %s\n", listing.count, listing.count == 1 ? "set" : "sets");
    sl_json_release(&listing.json);
    return done;
}

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

/* ---- prune ----------------------------------------------------------------------------------- */

struct pruned {
    struct sl_cli *cli;
    struct sl_json json;
    uint64_t count, bytes;
};

static int show_pruned(void *arg, const char *name, uint64_t bytes, const char *why,
                       struct sl_err *err)
{
    struct pruned *pruned = arg;
    char size[32];
    (void)err;
    pruned->count++;
    pruned->bytes = sl_add_capped(pruned->bytes, bytes);
    if (!pruned->cli->json) {
        printf("%10s  %s  (%s)\n", bytes ? sl_human_bytes(bytes, size) : "", name, why);
        return 0;
    }
    sl_json_object(&pruned->json);
    sl_json_key_string(&pruned->json, "name", name);
    sl_json_key_uint(&pruned->json, "bytes", bytes);
    sl_json_key_string(&pruned->json, "why", why);
    sl_json_end(&pruned->json);
    return 0;
}

static int prune(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err)
{
    const struct caches_options *options = cli->options;
    struct pruned pruned = {.cli = cli};
    char bytes[32], objects[40];
    const struct sl_sets_prune how = {.older_days = options->older_days,
                                      .remove = options->remove,
                                      .each = show_pruned,
                                      .arg = &pruned};
    sl_json_init(&pruned.json, JSON_BYTES_MAX);
    sl_json_array(&pruned.json);
    int done = sl_sets_prune(spec, &how, cli->cancel, err);
    sl_json_end(&pruned.json);
    if (done == 0 && cli->json)
        done = sl_cli_print_json(&pruned.json, err);
    else if (done == 0)
        printf("%s, %s%s\n", sl_human_count(pruned.count, "object", objects),
               sl_human_bytes(pruned.bytes, bytes),
               options->remove || !pruned.count ? "" : ": nothing was removed, add --remove");
    sl_json_release(&pruned.json);
    return done;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct action {
    const char *name;
    int (*run)(struct sl_cli *cli, const struct sl_spec *spec, struct sl_err *err);
};
static const struct action actions[] = {
    {"ls", list}, {"restore", restore}, {"save", save}, {"prune", prune}};

static int run_action(struct sl_cli *cli, const struct action *action, struct sl_err *err)
{
    struct sl_specs specs = {0};
    int done = sl_cli_read_specs(cli, cli->operands[1], &specs, err);
    const struct sl_spec *spec = done == 0 ? sl_sets_find(&specs) : NULL;
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
    return sl_fail(err, SL_E_USAGE,
                   "unknown caches command '%.80s': use ls, restore, save or prune",
                   cli->operands[0]);
}

const struct sl_command sl_cmd_caches = {
    .name = "caches",
    .usage = "sluice caches ls | restore | save | prune SPEC",
    .summary = "engine caches in their store: list, restore, save and prune them",
    .description =
        "Engines compile while they start. What they keep of it can be saved in a store and "
        "restored on other machines of the same kind, as `sink.caches` of the spec says.\n\n"
        "ls lists what the store has, and why a set would be refused. restore puts the set of this "
        "machine into the path and prints the environment that the engine needs, a line each; a "
        "set that is missing or refused is a warning, not a failure. save packs what is in the "
        "path, signs it, and stores it unless there is one. prune finds blobs that no set names, "
        "and old sets: not while others save. `sluice load` restores by itself, and saves with "
        "--stay.",
    .examples = "sluice caches save model.yaml\n"
                "env $(sluice caches restore model.yaml) vllm serve /models/llama\n"
                "sluice caches prune model.yaml --older-days 30 --remove",
    .options = &table,
    .operand_words = "ls restore save prune",
    .spec_flags = true,
    .operand_min = 2,
    .operand_max = 2,
    .run = run,
};
