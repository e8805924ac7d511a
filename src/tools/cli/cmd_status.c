/*
 * sluice status: what is in a directory that sluice loads into: a published model, whole or
 * changed; a load at work; what an interrupted one left; nothing. Nothing is written.
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
#include "json.h"
#include "pages.h"
#include "publish.h"
#include "tree.h"

struct state {
    char text[16]; /* "published", "changed", "loading", "interrupted", "empty" */
    bool loading;  /* a load holds the lock */
    uint64_t staged;
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

static void from_manifest(const json_t *manifest, struct sl_publish_facts *facts)
{
    const json_t *files = json_object_get(manifest, "files");
    const json_t *verified = json_object_get(manifest, "verified");
    const char *name = sl_json_get_string(manifest, "name");
    const char *uri = sl_json_get_string(manifest, "uri");
    const char *time = sl_json_get_string(manifest, "time");
    const char *identity = sl_json_get_string(manifest, "identity");
    snprintf(facts->name, sizeof(facts->name), "%s", name ? name : "");
    snprintf(facts->uri, sizeof(facts->uri), "%s", uri ? uri : "");
    snprintf(facts->time, sizeof(facts->time), "%s", time ? time : "");
    snprintf(facts->identity, sizeof(facts->identity), "%s", identity ? identity : "");
    facts->files = json_array_size(files);
    facts->tensors = json_array_size(json_object_get(manifest, "tensors"));
    facts->checks = sl_json_get_uint(verified, "checks", 0);
    facts->unhashed = sl_json_get_uint(verified, "unhashed_bytes", 0);
    for (size_t i = 0; i < json_array_size(files); i++)
        facts->bytes += sl_json_get_uint(json_array_get(files, i), "bytes", 0);
}

static bool is_ready(const char *path)
{
    sl_autofree char *name = sl_asprintf(NULL, "%s/.sluice/ready", path);
    return name && access(name, F_OK) == 0;
}

/* Size and kind of every file, as the manifest has them: no byte is read. */
static bool files_are_there(const char *path, const json_t *manifest)
{
    const json_t *files = json_object_get(manifest, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        struct stat status;
        const json_t *file = json_array_get(files, i);
        const char *name = sl_json_get_string(file, "name");
        sl_autofree char *whole = sl_asprintf(NULL, "%s/%s", path, name ? name : "");
        if (!whole || lstat(whole, &status) < 0 || !S_ISREG(status.st_mode) ||
            (uint64_t)status.st_size != sl_json_get_uint(file, "bytes", 0))
            return false;
    }
    return true;
}

static int look(const char *path, struct state *state, struct sl_err *err)
{
    struct stat status;
    struct sl_err why = SL_ERR_INIT;
    if (stat(path, &status) < 0)
        return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "cannot look into '%s'", path);
    if (!S_ISDIR(status.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is not a directory", path);
    state->loading = is_locked(path);
    state->staged = staged_bytes(path);
    json_t *manifest = sl_manifest_read(path, &why);
    const char *text = state->loading ? "loading" : state->staged ? "interrupted" : "empty";
    if (manifest && is_ready(path)) {
        from_manifest(manifest, &state->facts);
        text = files_are_there(path, manifest) ? "published" : "changed";
    }
    json_decref(manifest);
    snprintf(state->text, sizeof(state->text), "%s", text);
    if (why.kind && why.kind != SL_E_NOT_FOUND) {
        *err = why;
        return -1;
    }
    return 0;
}

static void print_text(const char *path, const struct state *state)
{
    const struct sl_publish_facts *facts = &state->facts;
    char size[32], staged[32], unhashed[32];
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
    }
    if (state->loading)
        printf("  a load is at work, with %s so far\n", sl_human_bytes(state->staged, staged));
    else if (state->staged)
        printf("  an interrupted load left %s: the next one resumes there, `sluice rm` removes "
               "it\n",
               sl_human_bytes(state->staged, staged));
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
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct state state = {.loading = false};
    const char *path = cli->operands[0];
    if (look(path, &state, err) < 0)
        return -1;
    if (!cli->json)
        print_text(path, &state);
    else if (print_json(path, &state, err) < 0)
        return -1;
    if (strcmp(state.text, "changed") == 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the files in '%s' are not those that were published: load it again", path);
    if (strcmp(state.text, "published") != 0)
        return sl_fail(err, SL_E_NOT_FOUND, "no model is published in '%s'", path);
    return 0;
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
