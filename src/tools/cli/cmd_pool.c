/*
 * sluice pool: what a node's daemon keeps in memory, for people. It is a client like any other, on
 * libsluice: `attach` shows that a model can be had, and holds it for as long as a command runs.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "cli.h"
#include "json.h"
#include "sluice.h"

enum { OUTPUT_BYTES_MAX = 16 * 1024 * 1024, STATES = 4 };

struct pool_options {
    char *socket, *key, *device, *exec;
    uint64_t timeout_seconds;
    bool present;
};
static const struct sl_option rows[] = {
    SL_OPTION(pool_options, socket, STRING, "",
              "the daemon's socket; $SLUICE_POOL_SOCKET, else /run/sluice/pool.sock, unless given",
              .value = "PATH"),
    SL_OPTION(pool_options, key, STRING, "", "of a derived model, as it was deposited",
              .value = "KEY"),
    SL_OPTION(pool_options, device, STRING, "host",
              "attach: where the daemon keeps it; `cuda:0`: a GPU, as this process counts them",
              .value = "DEVICE"),
    SL_OPTION(pool_options, timeout_seconds, UINT, "0",
              "attach: give up after this time with exit code 8; 0 waits for ever",
              .maximum = 2000000, .value = "SECONDS"),
    SL_OPTION(pool_options, present, BOOL, "false", "attach: do not begin a load"),
    SL_OPTION(pool_options, exec, STRING, "",
              "attach: a command for sh that runs while the model is held, as one after `--` does",
              .value = "COMMAND"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"pool", sizeof(struct pool_options), rows};

static const char *const states[STATES] = {"loading", "ready", "failed", "absent"};

static const char *state_name(int32_t state)
{
    return state >= 0 && state < STATES ? states[state] : "unknown";
}

/* The library's error as one of ours. */
static int fail_as(const struct sluice_error *error, struct sl_err *err)
{
    enum sl_err_kind kind = SL_E_INTERNAL;
    for (int i = 1; i < SL_ERR_KIND_COUNT; i++)
        if (sl_err_row((enum sl_err_kind)i)->exit_code == error->kind)
            kind = (enum sl_err_kind)i;
    return sl_fail_code(err, kind, error->code, "%s", error->message);
}

static const char *socket_of(const struct pool_options *options)
{
    return options->socket && *options->socket ? options->socket : NULL;
}
static const char *key_of(const struct pool_options *options)
{
    return options->key ? options->key : "";
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct listing {
    struct sl_json json;
    struct sl_buf text;
    struct sl_err err;
    unsigned count;
};

static void add_json(struct sl_json *json, const struct sluice_row *row)
{
    char identity[65];
    sl_hex(row->identity, sizeof(row->identity), identity);
    sl_json_key_string(json, "name", row->name);
    if (*row->key)
        sl_json_key_string(json, "key", row->key);
    if (row->owner >= 0)
        sl_json_key_uint(json, "owner", (uint64_t)row->owner);
    sl_json_key_string(json, "device", row->device);
    sl_json_key_string(json, "state", state_name(row->state));
    if (*row->error)
        sl_json_key_string(json, "error", row->error);
    sl_json_key_string(json, "memory", row->memory);
    sl_json_key_string(json, "identity", identity);
    sl_json_key_uint(json, "bytes", row->bytes);
    sl_json_key_uint(json, "bytes_done", row->bytes_done);
    sl_json_key_uint(json, "tensors", row->tensor_count);
    sl_json_key_uint(json, "ready_tensors", row->ready_count);
    sl_json_key_uint(json, "slabs", row->slab_count);
    sl_json_key_uint(json, "leases", row->lease_count);
    sl_json_key_bool(json, "pinned", row->pinned);
    sl_json_key_uint(json, "age_seconds", row->age_seconds);
    if (row->idle_seconds != UINT64_MAX)
        sl_json_key_uint(json, "idle_seconds", row->idle_seconds);
}

static int add_row(void *arg, const struct sluice_row *row)
{
    struct listing *listing = arg;
    char size[32], name[256], owner[32] = "";
    if (row->owner >= 0)
        snprintf(owner, sizeof(owner), " (user %u)", (unsigned)row->owner);
    snprintf(name, sizeof(name), "%s%s%.180s%s", row->name, *row->key ? " " : "", row->key, owner);
    sl_sanitize(name);
    if (listing->count++ == 0)
        sl_buf_printf(&listing->text, &listing->err, "%-32s %-8s %-8s %10s %8s %8s\n", "NAME",
                      "DEVICE", "STATE", "MEMORY", "TENSORS", "LEASES");
    sl_buf_printf(&listing->text, &listing->err, "%-32s %-8s %-8s %10s %8u %8u\n", name,
                  row->device, state_name(row->state), sl_human_bytes(row->bytes, size),
                  row->tensor_count, row->lease_count);
    if (*row->error && row->bytes && strcmp(state_name(row->state), "absent") == 0)
        sl_buf_printf(&listing->text, &listing->err, "  %s\n", row->error);
    sl_json_object(&listing->json);
    add_json(&listing->json, row);
    sl_json_end(&listing->json);
    return 0;
}

static void listing_init(struct listing *listing)
{
    memset(listing, 0, sizeof(*listing));
    sl_json_init(&listing->json, OUTPUT_BYTES_MAX);
    listing->text = (struct sl_buf)SL_BUF_INIT(OUTPUT_BYTES_MAX);
}

/* Whatever the command is for, unless it failed. */
static int listing_end(struct listing *listing, struct sl_cli *cli, int done, struct sl_err *err)
{
    if (done == 0 && listing->err.kind) {
        *err = listing->err;
        done = -1;
    }
    if (done == 0 && cli->json)
        done = sl_cli_print_json(&listing->json, err);
    else if (done == 0)
        fputs(sl_buf_string(&listing->text), stdout);
    sl_json_release(&listing->json);
    sl_buf_release(&listing->text);
    return done;
}

static int run_ls(struct sl_cli *cli, const struct pool_options *options, struct sl_err *err)
{
    struct listing listing;
    struct sluice_error error = {0};
    listing_init(&listing);
    sl_json_array(&listing.json);
    int done = sluice_list(socket_of(options), add_row, &listing, &error);
    sl_json_end(&listing.json);
    if (done < 0)
        fail_as(&error, err);
    else if (!listing.count)
        sl_buf_text(&listing.text, "the pool is empty\n", &listing.err);
    return listing_end(&listing, cli, done, err);
}

static int stat_row(void *arg, const struct sluice_row *row)
{
    struct listing *listing = arg;
    char size[32], done[32], slabs[40], leases[40];
    struct sl_buf *text = &listing->text;
    add_json(&listing->json, row);
    sl_json_key(&listing->json, "holders");
    sl_json_array(&listing->json);
    sl_buf_printf(text, &listing->err, "%s on %s: %s, %u of %u tensors, %s of %s\n", row->name,
                  row->device, state_name(row->state), row->ready_count, row->tensor_count,
                  sl_human_bytes(row->bytes_done, done), sl_human_bytes(row->bytes, size));
    sl_buf_printf(text, &listing->err, "%s, %s; %" PRIu64 " s old; %s\n",
                  sl_human_count(row->slab_count, "slab", slabs), row->memory, row->age_seconds,
                  sl_human_count(row->lease_count, "lease", leases));
    if (*row->error)
        sl_buf_printf(text, &listing->err, "%s\n", row->error);
    return 0;
}

static int stat_holder(void *arg, const struct sluice_holder *holder)
{
    struct listing *listing = arg;
    struct sl_json *json = &listing->json;
    sl_json_object(json);
    sl_json_key_uint(json, "pid", holder->pid > 0 ? (uint64_t)holder->pid : 0);
    sl_json_key_uint(json, "uid", holder->uid);
    sl_json_key_uint(json, "gid", holder->gid);
    sl_json_key_string(json, "name", holder->name);
    sl_json_key_uint(json, "age_ms", holder->age_ms);
    sl_json_end(json);
    sl_buf_printf(&listing->text, &listing->err, "  pid %d, uid %u, '%s', for %" PRIu64 " s\n",
                  holder->pid, holder->uid, holder->name, holder->age_ms / 1000);
    return 0;
}

static int run_stat(struct sl_cli *cli, const struct pool_options *options, struct sl_err *err)
{
    struct listing listing;
    struct sluice_error error = {0};
    listing_init(&listing);
    sl_json_object(&listing.json);
    int done = sluice_stat(socket_of(options), cli->operands[1], key_of(options), stat_row,
                           stat_holder, &listing, &error);
    if (done < 0) {
        fail_as(&error, err);
    } else {
        sl_json_end(&listing.json);
        sl_json_end(&listing.json);
    }
    return listing_end(&listing, cli, done, err);
}

static int run_evict(struct sl_cli *cli, const struct pool_options *options, struct sl_err *err)
{
    struct listing listing;
    struct sluice_error error = {0};
    uint64_t bytes = 0;
    char size[32];
    listing_init(&listing);
    int done = sluice_evict(socket_of(options), cli->operands[1], key_of(options), &bytes, &error);
    if (done < 0)
        fail_as(&error, err);
    sl_json_object(&listing.json);
    sl_json_key_uint(&listing.json, "bytes", bytes);
    sl_json_end(&listing.json);
    sl_buf_printf(&listing.text, &listing.err, "evicted %s: %s\n", cli->operands[1],
                  sl_human_bytes(bytes, size));
    return listing_end(&listing, cli, done, err);
}

/* ---- attach ---------------------------------------------------------------------------------- */

enum { SHELL_WORDS = 4 };

/* What is to run while the model is held; NULL: nothing. `shell` has room for words of it. */
static int choose_command(struct sl_cli *cli, const struct pool_options *options,
                          char *shell[SHELL_WORDS], char ***command, struct sl_err *err)
{
    static char sh[] = "sh", dash_c[] = "-c";
    bool given = options->exec && *options->exec;
    if (given && cli->after_dashes)
        return sl_fail(err, SL_E_USAGE, "--exec and a command after `--` exclude each other");
    shell[0] = sh;
    shell[1] = dash_c;
    shell[2] = options->exec;
    shell[3] = NULL;
    *command = given ? shell : cli->after_dashes;
    return 0;
}

/* Of a signal the library knows only that it was to end. */
static int attach_failed(struct sl_cli *cli, const struct sluice_error *error, struct sl_err *err)
{
    if (error->kind != SLUICE_CANCELED || sl_cancel_check(cli->cancel, err) == 0)
        return fail_as(error, err);
    return sl_wrap(err, "attaching to '%s'", cli->operands[1]);
}

static int attach(struct sl_cli *cli, const struct pool_options *options, const char *client,
                  struct sluice_model **model, struct sl_err *err)
{
    struct sluice_error error = {0};
    struct sluice_attach_options request = {
        .size = sizeof(request),
        .model = cli->operands[1],
        .socket = socket_of(options),
        .key = key_of(options),
        .device = options->device,
        .client = client,
        .flags = options->present ? SLUICE_PRESENT_ONLY : 0,
        .timeout_ms = (int32_t)(options->timeout_seconds * 1000),
        .cancel_fd = sl_cancel_fd(cli->cancel),
    };
    if (sluice_attach(&request, model, &error) < 0)
        return attach_failed(cli, &error, err);
    int timeout_ms = request.timeout_ms ? request.timeout_ms : -1;
    if (sluice_wait_all(*model, timeout_ms, request.cancel_fd, &error) == 0)
        return 0;
    sluice_detach(*model);
    return attach_failed(cli, &error, err);
}

/* Signals that are passed on. One of a terminal (SI_KERNEL) has reached the command already: it is
 * in our process group. */
static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP};

/* They wait from now on, with SIGCHLD, so that none is lost between two looks at the command. */
static void hold_signals(sigset_t *held, sigset_t *before)
{
    sigemptyset(held);
    sigaddset(held, SIGCHLD);
    for (size_t i = 0; i < SL_COUNT(passed_on); i++) {
        struct sigaction action;
        if (sigaction(passed_on[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(held, passed_on[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* one that is ignored takes the status with it */
    pthread_sigmask(SIG_BLOCK, held, before);
}

static pid_t start_command(char **command, const sigset_t *before, struct sl_err *err)
{
    pid_t child = fork();
    if (child == 0) {
        sl_cli_restore_signals();
        pthread_sigmask(SIG_SETMASK, before, NULL);
        execvp(command[0], command);
        fprintf(stderr, "sluice: cannot run '%s': %s\n", command[0], strerror(errno));
        _exit(127);
    }
    if (child < 0)
        sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot start '%s'", command[0]);
    return child;
}

static int await_command(pid_t child, const sigset_t *held, int *status)
{
    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);
        if (ended == child)
            return 0;
        if (ended < 0 && errno != EINTR)
            return -1;
        siginfo_t info;
        int number = sigwaitinfo(held, &info);
        if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL)
            kill(child, number);
    }
}

/* The command runs beside us, so that the lease lasts exactly as long as it does; its status is
 * ours, as a shell would tell it. */
static int run_command(struct sl_cli *cli, char **command, struct sl_err *err)
{
    sigset_t held, before;
    int status = 0, done = -1;
    hold_signals(&held, &before);
    pid_t child = -1;
    if (sl_cancel_check(cli->cancel, err) == 0)
        child = start_command(command, &before, err);
    if (child > 0) {
        done = await_command(child, &held, &status);
        if (done < 0)
            sl_fail_errno(err, SL_E_INTERNAL, errno, "cannot wait for '%s'", command[0]);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    cli->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return done;
}

static int run_attach(struct sl_cli *cli, const struct pool_options *options, struct sl_err *err)
{
    struct listing listing;
    struct sluice_model *model = NULL;
    struct sluice_model_info info = {.size = sizeof(info)};
    char size[32], tensors[40], slabs[40], *shell[SHELL_WORDS], **command = NULL;
    if (choose_command(cli, options, shell, &command, err) < 0 ||
        attach(cli, options, command ? command[0] : "sluice pool attach", &model, err) < 0)
        return -1;
    sluice_model_info(model, &info);
    listing_init(&listing);
    sl_json_object(&listing.json);
    sl_json_key_string(&listing.json, "name", info.name);
    sl_json_key_uint(&listing.json, "tensors", info.tensor_count);
    sl_json_key_uint(&listing.json, "bytes", info.bytes);
    sl_json_key_uint(&listing.json, "slabs", info.slab_count);
    sl_json_end(&listing.json);
    sl_buf_printf(&listing.text, &listing.err, "%s: %s, %s in %s\n", info.name,
                  sl_human_count(info.tensor_count, "tensor", tensors),
                  sl_human_bytes(info.bytes, size), sl_human_count(info.slab_count, "slab", slabs));
    int done = command ? run_command(cli, command, err) : 0;
    if (command && done == 0) {
        sl_json_release(&listing.json);
        sl_buf_release(&listing.text);
    } else {
        done = listing_end(&listing, cli, done, err);
    }
    sluice_detach(model);
    return done;
}

/* ---- the command ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int operands;
    int (*run)(struct sl_cli *cli, const struct pool_options *options, struct sl_err *err);
} verbs[] = {
    {"ls", 1, run_ls},
    {"stat", 2, run_stat},
    {"attach", 2, run_attach},
    {"evict", 2, run_evict},
};

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct pool_options *options = cli->options;
    for (size_t i = 0; i < SL_COUNT(verbs); i++) {
        if (strcmp(cli->operands[0], verbs[i].name) != 0)
            continue;
        if (verbs[i].run != run_attach && options->exec && *options->exec)
            return sl_fail(err, SL_E_USAGE, "--exec is for `sluice pool attach`");
        if (cli->operand_count != verbs[i].operands)
            return sl_fail(err, SL_E_USAGE, "`sluice pool %s` takes %s", verbs[i].name,
                           verbs[i].operands == 1 ? "no name" : "one model's name");
        return verbs[i].run(cli, options, err);
    }
    return sl_fail(err, SL_E_USAGE, "unknown pool command '%.80s': use ls, stat, attach or evict",
                   cli->operands[0]);
}

const struct sl_command sl_cmd_pool = {
    .name = "pool",
    .usage =
        "sluice pool ls | stat NAME | attach NAME [--exec COMMAND] [-- COMMAND …] | evict NAME",
    .summary = "look into the memory that `sluice serve` shares on this machine",
    .description = "`ls` lists the models of the pool, `stat` shows one and who holds it. `attach` "
                   "has it loaded if need be, waits until all of it is there, and holds it while "
                   "COMMAND runs. SIGTERM, SIGINT and SIGHUP are passed on to COMMAND, and its "
                   "exit code is that of sluice (128 and the number if a signal ended it). The "
                   "command is given after `--`, word by word, or as one "
                   "text for sh with --exec. Without a command it reports what is there and "
                   "releases it. `evict` removes a model without users from memory.",
    .examples = "sluice pool ls\n"
                "sluice pool stat gpt-j-6b --json                  # and who holds it\n"
                "sluice pool attach gpt-j-6b -- python serve.py    # held while it runs",
    .operand_words = "ls stat attach evict",
    .options = &table,
    .operand_min = 1,
    .operand_max = 2,
    .run = run,
};
