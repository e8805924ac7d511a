/*
 * sluice status: what is in a directory that sluice loads into: a published model, whole or
 * changed; a load at work; what an interrupted one left; nothing. Nothing is written.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "entries.h"
#include "initializer.h"
#include "json.h"
#include "own_names.h"
#include "owners.h"
#include "pages.h"
#include "publish.h"
#include "tree.h"

struct state {
    char text[16]; /* "published", "changed", "loading", "interrupted", "empty" */
    bool loading;  /* a load holds the lock, or a daemon that runs has begun one */
    char *daemon;  /* that one's directory; or NULL */
    uint64_t staged;
    uint64_t others; /* entries of an empty one that are not ours */
    struct sl_publish_facts facts;
};

/* Somebody holds the lock: a load is at work. Where it cannot be opened nobody can tell. */
static bool is_locked(const char *path)
{
    sl_autofree char *name = sl_asprintf(NULL, "%s/.sluice/lock", path);
    sl_autoclose int fd = name ? open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static uint64_t staged_bytes(const char *path)
{
    sl_autofree char *name = sl_asprintf(NULL, "%s/.sluice/staging", path);
    sl_autoclose int fd = name ? open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    return fd < 0 ? 0 : sl_tree_bytes(fd);
}

static bool is_ready(const char *path)
{
    sl_autofree char *name = sl_asprintf(NULL, "%s/.sluice/ready", path);
    return name && access(name, F_OK) == 0;
}

/* Of other people, or not of a load; what is ours is told of by itself. */
static int count_foreign(const char *path, uint64_t *count, struct sl_err *err)
{
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = sl_next_entry(folder));)
        *count += !sl_own_name(entry->d_name, strlen(entry->d_name));
    int done = errno ? sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot list '%s'", path) : 0;
    if (folder)
        closedir(folder);
    return done;
}

static int look(const char *path, struct state *state, struct sl_err *err)
{
    struct stat status;
    struct sl_err why = SL_ERR_INIT;
    if (stat(path, &status) < 0)
        return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "cannot look into '%s'", path);
    if (!S_ISDIR(status.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is not a directory", path);
    (void)sl_initializer_is_at_work(path, &state->staged); /* it has the lock of a load */
    state->staged = sl_add_capped(state->staged, staged_bytes(path));
    state->daemon = sl_owners_daemon_of(path);
    state->loading = is_locked(path) || (state->daemon && state->staged);
    bool there = false;
    const char *text = state->loading ? "loading" : state->staged ? "interrupted" : "empty";
    if (sl_publish_look(path, &state->facts, &there, &why) == 0 && is_ready(path))
        text = there ? "published" : "changed";
    else
        state->facts = (struct sl_publish_facts){0};
    snprintf(state->text, sizeof(state->text), "%s", text);
    if (why.kind && why.kind != SL_E_NOT_FOUND) {
        *err = why;
        return -1;
    }
    return strcmp(text, "empty") == 0 ? count_foreign(path, &state->others, err) : 0;
}

static int print_text(const char *path, const struct state *state)
{
    const struct sl_publish_facts *facts = &state->facts;
    char size[32], staged[32], unhashed[32];
    char foreign[40], signer[SL_SIGNED_BY_TEXT];
    if (state->others)
        printf("%s: %s, none published by sluice, on %s\n", path,
               sl_human_count(state->others, "file", foreign), sl_pages_of_path(path));
    else
        printf("%s: %s, on %s\n", path, state->text, sl_pages_of_path(path));
    if (facts->files) {
        printf("  model       %s\n  source      %s\n  version     %.16s\n  published   %s\n",
               facts->name, facts->uri, facts->identity, facts->time);
        printf("  size        %s in %" PRIu64 " %s, %" PRIu64 " %s\n",
               sl_human_bytes(facts->bytes, size), facts->files,
               facts->files == 1 ? "file" : "files", facts->tensors,
               facts->tensors == 1 ? "tensor" : "tensors");
        printf("  checked     %" PRIu64 " %s, %s without one\n", facts->checks,
               facts->checks == 1 ? "hash" : "hashes", sl_human_bytes(facts->unhashed, unhashed));
        if (*facts->signed_by.by)
            printf("  signed      %s\n", sl_signed_by_text(&facts->signed_by, signer));
    }
    if (state->loading && state->daemon)
        printf("  the node daemon of %s has loaded %s so far\n", state->daemon,
               sl_human_bytes(state->staged, staged));
    else if (state->loading)
        printf("  a load is at work, with %s so far\n", sl_human_bytes(state->staged, staged));
    else if (state->staged)
        printf("  an interrupted load left %s: the next one resumes there, `sluice rm` removes "
               "it\n",
               sl_human_bytes(state->staged, staged));
    return 0;
}

static int print_json(const char *path, const struct state *state, struct sl_err *err)
{
    const struct sl_publish_facts *facts = &state->facts;
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "path", path);
    sl_json_key_string(&json, "state", state->text);
    sl_json_key_bool(&json, "loading", state->loading);
    sl_json_key_uint(&json, "staged_bytes", state->staged);
    sl_json_key_string(&json, "name", facts->name);
    sl_json_key_uri(&json, "uri", facts->uri);
    sl_json_key_string(&json, "identity", facts->identity);
    sl_json_key_string(&json, "time", facts->time);
    sl_json_key_uint(&json, "bytes", facts->bytes);
    sl_json_key_uint(&json, "files", facts->files);
    sl_json_key_uint(&json, "tensors", facts->tensors);
    sl_json_key_uint(&json, "checks", facts->checks);
    sl_json_key_uint(&json, "unhashed_bytes", facts->unhashed);
    sl_signed_by_json(&json, &facts->signed_by);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int show(const struct sl_cli *cli, struct state *state, struct sl_err *err)
{
    const char *path = cli->operands[0];
    if (look(path, state, err) < 0)
        return -1;
    if ((cli->json ? print_json(path, state, err) : print_text(path, state)) < 0)
        return -1;
    if (strcmp(state->text, "changed") == 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the files in '%s' are not those that were published: load it again", path);
    if (strcmp(state->text, "published") != 0)
        return sl_fail(err, SL_E_NOT_FOUND, "no model is published in '%s'", path);
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct state state = {.loading = false};
    int done = show(cli, &state, err);
    free(state.daemon);
    return done;
}

const struct sl_command sl_cmd_status = {
    .name = "status",
    .usage = "sluice status DIR",
    .summary = "show what is in a directory: a model, a load at work, or its rest",
    .description =
        "Shows which model is published, from where, in which version, how much of it was checked, "
        "and whether a load is at work or left something to resume. The sizes of the files are "
        "compared with the manifest; `sluice verify` reads every byte. Nothing is written. Exits "
        "with 0 for a published model, 4 if there is none, 5 if its files were changed.",
    .examples = "sluice status /dev/shm/model\n"
                "sluice status /dev/shm/model --json   # for scripts",
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
