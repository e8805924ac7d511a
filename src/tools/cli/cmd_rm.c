/*
 * sluice rm: take a published model, or what an interrupted load left, out of its directory. What
 * goes is what the manifest names and our own state; files of others stay, and so does a directory
 * in which a load is at work or whose files are not those that were published.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "json.h"
#include "owners.h"
#include "publish.h"

struct rm_options {
    bool force;
};
static const struct sl_option rows[] = {
    SL_OPTION(rm_options, force, BOOL, "false",
              "remove the files even if they are not those that were published"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"rm", sizeof(struct rm_options), rows};

static bool has_state(const char *path)
{
    struct stat status;
    sl_autofree char *state = sl_asprintf(NULL, "%s/.sluice", path);
    return state && lstat(state, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The daemon's book of what it holds would be wrong. */
static int refuse_daemon(const char *path, struct sl_err *err)
{
    sl_autofree char *daemon = sl_owners_daemon_of(path);
    if (!daemon)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' belongs to the node daemon of '%s': use `sluice node evict NAME`", path,
                   daemon);
}

static int remove_held(struct sl_publish *publish, bool force, struct sl_publish_facts *facts,
                       struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_publish_survey(publish, facts, &why) < 0 && why.kind != SL_E_NOT_FOUND && !force)
        return sl_fail(err, why.kind, "%s: nothing was removed; --force removes it all the same",
                       why.message);
    return sl_publish_remove(publish, err);
}

static int remove_model(const char *path, bool force, struct sl_publish_facts *facts,
                        struct sl_err *err)
{
    /* A cancel that is raised already: a lock that is held is not waited for. */
    struct sl_cancel *at_once = sl_cancel_new(err);
    if (!at_once)
        return -1;
    sl_cancel_raise(at_once, 0);
    struct sl_publish *publish = sl_publish_open(path, at_once, NULL, NULL, err);
    int done = -1;
    if (publish)
        done = remove_held(publish, force, facts, err);
    else if (err->kind == SL_E_CANCELED)
        sl_fail(err, SL_E_USAGE, "a load is at work in '%s': stop it first", path);
    sl_publish_free(publish);
    sl_cancel_free(at_once);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct rm_options *options = cli->options;
    const char *path = cli->operands[0];
    struct sl_publish_facts facts = {0};
    char size[32];
    if (!has_state(path))
        return sl_fail(err, SL_E_NOT_FOUND,
                       "there is no model of sluice in '%s': nothing was removed", path);
    if (refuse_daemon(path, err) < 0 || remove_model(path, options->force, &facts, err) < 0)
        return -1;
    bool left = access(path, F_OK) == 0;
    if (!cli->json) {
        printf("removed %s from %s: %" PRIu64 " %s, %s%s\n",
               *facts.name ? facts.name : "an unfinished load", path, facts.files,
               facts.files == 1 ? "file" : "files", sl_human_bytes(facts.bytes, size),
               left ? "; the directory stays" : "");
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, 16 * 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "path", path);
    sl_json_key_string(&json, "name", facts.name);
    sl_json_key_uint(&json, "files", facts.files);
    sl_json_key_uint(&json, "bytes", facts.bytes);
    sl_json_key_bool(&json, "directory_left", left);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

const struct sl_command sl_cmd_rm = {
    .name = "rm",
    .usage = "sluice rm DIR",
    .summary = "remove a published model from its directory",
    .description =
        "Removes the files that the manifest names, what an interrupted load left, and the "
        "directory if it is empty then. Files of others stay. Nothing is removed while a load is "
        "at work there, from the directory of a running node daemon, or if the files are not "
        "those that were published. A program that has the files open or mapped keeps their "
        "memory until it ends.",
    .examples = "sluice rm /dev/shm/model\n"
                "sluice rm /dev/shm/model --force   # even if its files were changed",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
