/*
 * sluice rm: take a published model, or what an interrupted load left, out of its directory; or all
 * models out of the directory of a node daemon that has ended. What goes is what manifests name and
 * our own state; files of others stay, and so does a directory in which a load is at work or whose
 * files are not those that were published.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "entries.h"
#include "initializer.h"
#include "json.h"
#include "owners.h"
#include "publish.h"

struct rm_options {
    bool force;
};
static const struct sl_option rows[] = {
    SL_OPTION(rm_options, force, BOOL, "false",
              "remove the files even if they are not those that were published, or if volumes of "
              "pods show them"),
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

/* *facts: of what is published, though it was changed; else how much of a load there is. */
static int remove_held(struct sl_publish *publish, const char *path, bool force, uint64_t fetched,
                       struct sl_publish_facts *facts, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    bool there;
    if (sl_publish_survey(publish, facts, &why) < 0 && why.kind != SL_E_NOT_FOUND) {
        if (!force)
            return sl_fail(err, why.kind,
                           "%s: nothing was removed; --force removes it all the same", why.message);
        (void)sl_publish_look(path, facts, &there, NULL);
    }
    if (!facts->files)
        facts->bytes = sl_add_capped(fetched, sl_publish_staged_bytes(publish));
    return sl_initializer_clear(sl_publish_state(publish), err) < 0
               ? -1
               : sl_publish_remove(publish, err);
}

static int remove_model(const char *path, bool force, struct sl_publish_facts *facts,
                        struct sl_err *err)
{
    uint64_t bytes;
    if (sl_initializer_is_at_work(path, &bytes))
        return sl_fail(err, SL_E_USAGE, "an initializer is at work in '%s': stop it first", path);
    /* A cancel that is raised already: a lock that is held is not waited for. */
    struct sl_cancel *at_once = sl_cancel_new(err);
    if (!at_once)
        return -1;
    sl_cancel_raise(at_once, 0);
    struct sl_publish *publish = sl_publish_open(path, at_once, NULL, NULL, err);
    int done = -1;
    if (publish)
        done = remove_held(publish, path, force, bytes, facts, err);
    else if (err->kind == SL_E_CANCELED)
        sl_fail(err, SL_E_USAGE, "a load is at work in '%s': stop it first", path);
    sl_publish_free(publish);
    sl_cancel_free(at_once);
    return done;
}

/* ---- the directory of a node daemon ---------------------------------------------------------- */

/* NAME/VERSION/, NAME/VERSION.whole, NAME/current, NAME/model.yaml, .lock. Others have a .lock and
 * folders, too: only what lies beside a version that is ours is taken for a daemon's. */
enum { VERSION_DIGITS = 16 };

/* Each folder in `path`, but hidden ones and links. */
static int each_folder(const char *path,
                       int (*each)(const char *folder, void *arg, struct sl_err *err), void *arg,
                       struct sl_err *err)
{
    DIR *dir = opendir(path);
    int done = dir ? 0 : sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", path);
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(dir)) != NULL;) {
        struct stat status;
        sl_autofree char *folder = sl_asprintf(err, "%s/%s", path, entry->d_name);
        if (!folder)
            done = -1;
        else if (entry->d_name[0] != '.' && lstat(folder, &status) == 0 && S_ISDIR(status.st_mode))
            done = each(folder, arg, err);
    }
    if (done == 0 && errno)
        done = sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", path);
    if (dir)
        closedir(dir);
    return done;
}

struct node_removal {
    bool force;
    uint64_t models;
    struct sl_publish_facts facts; /* sums; of the last model, its name */
};

static bool is_version(const char *folder)
{
    const char *name = strrchr(folder, '/') + 1;
    return strlen(name) == VERSION_DIGITS && strspn(name, "0123456789abcdef") == VERSION_DIGITS &&
           has_state(folder);
}

static int remove_version(const char *folder, void *arg, struct sl_err *err)
{
    struct node_removal *removal = arg;
    struct sl_publish_facts facts = {0}, *sum = &removal->facts;
    sl_autofree char *whole = sl_asprintf(err, "%s" SL_WHOLE, folder);
    if (!whole)
        return -1;
    if (!is_version(folder))
        return 0;
    if (remove_model(folder, removal->force, &facts, err) < 0)
        return -1;
    (void)unlink(whole);
    facts.files += sum->files;
    facts.bytes += sum->bytes;
    *sum = facts;
    removal->models++;
    return 0;
}

static int remove_name(const char *folder, void *arg, struct sl_err *err)
{
    static const char *const names[] = {"current", "model.yaml"};
    const struct node_removal *removal = arg;
    uint64_t before = removal->models;
    if (each_folder(folder, remove_version, arg, err) < 0)
        return -1;
    if (removal->models == before)
        return 0;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct stat status;
        sl_autofree char *own = sl_asprintf(err, "%s/%s", folder, names[i]);
        if (!own)
            return -1;
        if (lstat(own, &status) == 0 && (S_ISLNK(status.st_mode) || i > 0))
            (void)unlink(own);
    }
    rmdir(folder); /* it stays where something of others is in it */
    return 0;
}

/* How many pods' volumes show models of it, by the daemon's records: mounts outlive it. */
static int count_volumes(const char *path, unsigned *count, struct sl_err *err)
{
    static const char end[] = ".json";
    sl_autofree char *name = sl_asprintf(err, "%s/.volumes", path);
    if (!name)
        return -1;
    DIR *dir = opendir(name);
    if (!dir && errno == ENOENT)
        return 0;
    for (struct dirent *entry; dir && (entry = sl_next_entry(dir)) != NULL;) {
        size_t bytes = strlen(entry->d_name);
        *count +=
            bytes >= sizeof(end) && strcmp(entry->d_name + bytes - (sizeof(end) - 1), end) == 0;
    }
    int done = errno ? sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", name) : 0;
    if (dir)
        closedir(dir);
    return done;
}

/* The lock keeps a daemon from starting meanwhile. 1: there was such a directory. */
static int remove_node(const char *path, struct node_removal *removal, struct sl_err *err)
{
    sl_autofree char *lock = sl_asprintf(err, "%s/.lock", path);
    if (!lock)
        return -1;
    sl_autoclose int fd = open(lock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return sl_fail(err, SL_E_USAGE,
                       "a node daemon runs in '%s': end it first, or use `sluice node evict NAME`",
                       path);
    unsigned volumes = 0;
    if (!removal->force && count_volumes(path, &volumes, err) < 0)
        return -1;
    if (volumes)
        return sl_fail(
            err, SL_E_USAGE,
            "volumes of pods (%u) show models of '%s', and would be empty: end those pods "
            "first; --force removes the models all the same",
            volumes, path);
    if (each_folder(path, remove_name, removal, err) < 0)
        return -1;
    if (!removal->models)
        return 0;
    if (unlink(lock) == 0)
        rmdir(path); /* it stays where something of others is in it */
    return 1;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int remove_path(const char *path, struct node_removal *removal, struct sl_err *err)
{
    if (has_state(path)) {
        removal->models = 1;
        return refuse_daemon(path, err) < 0
                   ? -1
                   : remove_model(path, removal->force, &removal->facts, err);
    }
    int done = remove_node(path, removal, err);
    if (done == 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "there is no model of sluice in '%s': nothing was removed", path);
    return done < 0 ? -1 : 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct rm_options *options = cli->options;
    const char *path = cli->operands[0];
    struct node_removal removal = {.force = options->force};
    const struct sl_publish_facts *facts = &removal.facts;
    char size[32], files[40], what[96];
    if (remove_path(path, &removal, err) < 0)
        return -1;
    if (removal.models == 1)
        snprintf(what, sizeof(what), "%s", *facts->name ? facts->name : "an unfinished load");
    else
        snprintf(what, sizeof(what), "%" PRIu64 " models", removal.models);
    bool left = access(path, F_OK) == 0;
    if (!cli->json) {
        printf("removed %s from %s: %s%s%s%s\n", what, path,
               facts->files ? sl_human_count(facts->files, "file", files) : "",
               facts->files ? ", " : "", sl_human_bytes(facts->bytes, size),
               left ? "; the directory stays" : "");
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, 16 * 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "path", path);
    sl_json_key_string(&json, "name", facts->name);
    sl_json_key_uint(&json, "files", facts->files);
    sl_json_key_uint(&json, "bytes", facts->bytes);
    sl_json_key_bool(&json, "directory_left", left);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

const struct sl_command sl_cmd_rm = {
    .name = "rm",
    .usage = "sluice rm DIR",
    .summary = "remove a published model, or all of a node daemon that has ended",
    .description =
        "Removes the files that the manifest names, what an interrupted load left, and the "
        "directory if it is empty then; of a node daemon's directory, when it has ended, all "
        "models. Files of others stay. Nothing is removed while a load is at work there, from the "
        "directory of a running node daemon, while volumes of pods show its models, or if the "
        "files are not those that were published. "
        "A program that has the files open or mapped keeps their "
        "memory until it ends.",
    .examples = "sluice rm /dev/shm/model\n"
                "sluice rm /dev/shm/model --force   # even if its files were changed",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
