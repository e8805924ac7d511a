/*
 * One run of a command: take the line apart, set up logs and signals, run, and say once how it
 * ended: on stderr, with --json on stdout, in the container's termination message, and as the exit
 * code of err.def.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli_flags.h"
#include "descriptors.h"
#include "json.h"
#include "log.h"
#include "operand.h"
#include "termination.h"
#include "url.h"

enum { ERROR_LINE_MAX = 8192, COMPLAINTS_MAX = 128 * 1024 };
/* A person waits for the answer. A load waits longer, since it may start before its store does. */
#define LOOK_SECONDS "2"

/* ---- commands ------------------------------------------------------------------------------- */

static const struct sl_command *const commands[] = {
#define SL_COMMAND(name) &sl_cmd_##name,
#include "commands.def"
#undef SL_COMMAND
    NULL,
};

const struct sl_command *const *sl_commands(void)
{
    return commands;
}

const struct sl_command *sl_command_find(const char *name)
{
    for (const struct sl_command *const *command = commands; *command; command++)
        if (strcmp((*command)->name, name) == 0)
            return *command;
    return NULL;
}

/* ---- signals -------------------------------------------------------------------------------- */

static struct sl_cancel *signal_cancel;

/* The first signal ends the work in order; a second Ctrl-C does not wait for that. */
static void on_signal(int number)
{
    if (number == SIGINT && sl_cancel_raised(signal_cancel))
        _exit(128 + number);
    sl_cancel_raise(signal_cancel, number);
}

/* What was ignored when we were started stays so: nohup, jobs in the background. */
static void catch_signals(struct sl_cancel *cancel)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    signal_cancel = cancel;
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        struct sigaction old, action = {.sa_handler = on_signal};
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond a limit is told as any that cannot be written */
}

void sl_cli_restore_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == on_signal)
            signal(numbers[i], SIG_DFL);
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sl_descriptors_restore();
}

void sl_cli_shut_others_out(void)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        sl_log(SL_LOG_WARN,
               "processes of this user may look into this one's memory: PR_SET_DUMPABLE: %s",
               strerror(errno));
}

/* ---- how it ended --------------------------------------------------------------------------- */

int sl_cli_print_json(struct sl_json *json, struct sl_err *err)
{
    const char *text = sl_json_text(json, err);
    if (!text)
        return -1;
    printf("%s\n", text);
    return 0;
}

void sl_cli_error_json(struct sl_json *json, const struct sl_err *err)
{
    sl_json_key_string(json, "kind", sl_err_row(err->kind)->name);
    sl_json_key_string(json, "code", err->code);
    sl_json_key_string(json, "message", err->message);
}

/* Lines as an array. */
static void add_mistakes(struct sl_json *json, const struct sl_buf *mistakes)
{
    sl_autofree char *lines = sl_strdup(sl_buf_string(mistakes), NULL);
    sl_json_key(json, "mistakes");
    sl_json_array(json);
    for (char *line = lines, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        sl_json_string(json, line);
    }
    sl_json_end(json);
}

static void write_error_json(const struct sl_err *err, const struct sl_buf *mistakes, bool for_log)
{
    char time_text[SL_TIME_TEXT];
    struct sl_json json;
    sl_json_init(&json, ERROR_LINE_MAX + 2 * COMPLAINTS_MAX);
    sl_json_object(&json);
    if (for_log) {
        sl_json_key_string(&json, "time", sl_json_time(time_text));
        sl_json_key_string(&json, "level", "error");
    } else {
        sl_json_key(&json, "error");
        sl_json_object(&json);
    }
    sl_cli_error_json(&json, err);
    if (mistakes->used && !for_log)
        add_mistakes(&json, mistakes);
    sl_json_end(&json);
    if (!for_log)
        sl_json_end(&json);
    if (!for_log)
        sl_cli_print_json(&json, NULL);
    else if (sl_json_text(&json, NULL))
        sl_log_json_line(sl_json_text(&json, NULL));
    sl_json_release(&json);
}

static bool log_is_json(const struct sl_cli_globals *globals)
{
    if (globals->log_format != SL_LOG_FORMAT_AUTO)
        return globals->log_format == SL_LOG_FORMAT_JSON;
    const char *wanted = getenv("SLUICE_LOG_FORMAT"); /* an image's, or its operator's, choice */
    bool json =
        wanted && *wanted ? strcmp(wanted, "json") == 0 : getenv("KUBERNETES_SERVICE_HOST") != NULL;
    return json && !isatty(STDERR_FILENO);
}

static int end_badly(const struct sl_command_line *line, struct sl_cancel *cancel,
                     const struct sl_err *err)
{
    char text[SL_TERMINATION_BYTES];
    int number = err->kind == SL_E_CANCELED && cancel ? sl_cancel_signal(cancel) : 0;
    const char *lines = sl_buf_string(&line->mistakes);
    snprintf(text, sizeof(text), "error %s: %s%s%.*s", sl_err_row(err->kind)->name, err->message,
             *lines ? "; the first is: " : "", (int)strcspn(lines, "\n"), lines);
    sl_cli_termination(text); /* first, so that the last line of the log is the diagnosis */
    if (log_is_json(&line->globals))
        write_error_json(err, &line->mistakes, true);
    else
        sl_log(SL_LOG_ERROR, "%s", err->message);
    if (line->globals.json && !line->cli.reported)
        write_error_json(err, &line->mistakes, false);
    if (number)
        return 128 + number;
    bool plain = line->command && line->command->failure_exit;
    return plain ? line->command->failure_exit : sl_err_exit(err);
}

/* stdio forgets why an earlier write failed; a pipe without a reader and a full device can still be
 * told apart. */
static int output_errno(int errno_value)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (errno_value)
        return errno_value;
    if (poll(&out, 1, 0) == 1 && out.revents & POLLERR)
        return EPIPE;
    return write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
}

/* Results that did not reach their reader are a failure; a reader that left (head) has seen enough.
 */
static int flush_output(struct sl_err *err)
{
    errno = 0;
    bool lost = ferror(stdout);
    if (fflush(stdout) == 0 && !lost)
        return 0;
    int why = output_errno(lost ? 0 : errno);
    sl_fail_errno(err, SL_E_NO_SPACE, why, "cannot write to standard output");
    errno = why;
    return -1;
}

/* ---- specs ---------------------------------------------------------------------------------- */

static void log_lines(const char *lines)
{
    for (size_t bytes; *lines; lines += bytes + (lines[bytes] == '\n')) {
        bytes = strcspn(lines, "\n");
        sl_log(SL_LOG_ERROR, "%.*s", (int)bytes, lines);
    }
}

int sl_cli_report_mistakes(struct sl_cli *cli, struct sl_buf *complaints, const char *where,
                           struct sl_err *err)
{
    size_t count = 0;
    for (const char *p = sl_buf_string(complaints); *p; p++)
        count += *p == '\n';
    if (count < 2)
        return -1;
    if (cli->mistakes)
        sl_buf_text(cli->mistakes, sl_buf_string(complaints), NULL);
    log_lines(sl_buf_string(complaints));
    return sl_fail(err, SL_E_USAGE, "%zu mistakes %s", count, where);
}

/* Standard input may stay silent for ever; a signal must end the wait. */
static int await_stdin(const struct sl_cli *cli, struct sl_err *err)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = sl_cancel_fd(cli->cancel), .events = POLLIN}};
    while (poll(fds, SL_COUNT(fds), -1) < 0 && errno == EINTR)
        continue;
    return sl_cancel_check(cli->cancel, err);
}

int sl_cli_spec_text(struct sl_cli *cli, const char *path, struct sl_buf *text, struct sl_err *err)
{
    if (strcmp(path, "-") == 0 && await_stdin(cli, err) < 0)
        return -1;
    return sl_spec_text(path, text, err);
}

int sl_cli_read_specs(struct sl_cli *cli, const char *path, struct sl_specs *specs,
                      struct sl_err *err)
{
    if (strcmp(path, "-") == 0 && await_stdin(cli, err) < 0)
        return -1;
    sl_autobuf complaints = SL_BUF_INIT(COMPLAINTS_MAX);
    int (*read)(const char *, const struct sl_spec_setting *, size_t, struct sl_specs *,
                struct sl_buf *, struct sl_err *) =
        cli->pooled ? sl_spec_read_pooled : sl_spec_read;
    if (read(path, cli->settings, cli->setting_count, specs, &complaints, err) == 0)
        return 0;
    return sl_cli_report_mistakes(
        cli, &complaints, "in the model spec, nothing was done: see `sluice docs spec`", err);
}

/* Beside what else is wrong on the line. */
static int note_missing_to(const char *uri, int done, struct sl_buf *complaints, struct sl_err *err)
{
    sl_autofree char *clean = sl_uri_sanitize(uri, NULL);
    struct sl_err missing = SL_ERR_INIT;
    if (done < 0 && !complaints->used)
        return -1; /* not the user's mistake */
    sl_fail(&missing, SL_E_USAGE,
            "--to DIR is missing: where to publish '%s' (the name of a spec ends in .yaml)",
            clean ? clean : "");
    if (sl_buf_printf(complaints, err, "%s\n", missing.message) == 0 && err)
        *err = missing;
    return -1;
}

int sl_cli_uri_specs(struct sl_cli *cli, const char *uri, const char *to, struct sl_specs *specs,
                     struct sl_err *err)
{
    sl_autobuf complaints = SL_BUF_INIT(COMPLAINTS_MAX);
    size_t first = cli->looks ? 0 : 1;
    sl_autofree struct sl_spec_setting *settings =
        sl_alloc_array(cli->setting_count + 1, sizeof(*settings), err);
    if (!settings)
        return -1;
    settings[0] = (struct sl_spec_setting){"readers.unreachableSeconds", LOOK_SECONDS, NULL};
    if (cli->setting_count)
        memcpy(settings + 1, cli->settings, cli->setting_count * sizeof(*settings));
    int done = sl_spec_from_uri(uri, to ? to : "/", settings + first,
                                cli->setting_count + 1 - first, specs, &complaints, err);
    if (!to)
        done = note_missing_to(uri, done, &complaints, err);
    if (done == 0)
        return 0;
    return sl_cli_report_mistakes(
        cli, &complaints, "on the command line, nothing was done: see `sluice docs spec`", err);
}

/* ---- main ----------------------------------------------------------------------------------- */

static int print_help(const struct sl_command *command, FILE *where, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    int done = command ? sl_cli_write_command_help(command, false, &text, err)
                       : sl_cli_write_help(&text, err);
    if (done == 0)
        fwrite(sl_buf_string(&text), 1, text.used, where);
    return done;
}

static int run(struct sl_command_line *line, struct sl_cancel *cancel, struct sl_err *err)
{
    if (line->globals.help || !line->command)
        return print_help(line->command, line->globals.help ? stdout : stderr, err);
    line->cli.cancel = cancel;
    int done = line->command->run(&line->cli, err);
    if (done < 0 && line->command->spec_flags && line->cli.operand_count)
        sl_operand_hint(line->cli.operands[0], err);
    return done;
}

/* For commands that had nothing more to say than that they did what they were asked for, or not. */
static void note_end(const struct sl_command_line *line, int exit_code)
{
    char text[96];
    const char *name = line->command ? line->command->name : "without a command";
    if (exit_code == 0)
        snprintf(text, sizeof(text), "ok: sluice %s", name);
    else
        snprintf(text, sizeof(text), "error: sluice %s ended with %d", name, exit_code);
    sl_termination_default(text);
}

/* What is opened later must not get the number of a stream that is closed: logs and results would
 * be written into it. Whoever reads or writes such a stream fails as before. */
static void occupy_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC) < 0)
            open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int sl_cli_main(int argc, char **argv)
{
    struct sl_command_line line;
    struct sl_err err = SL_ERR_INIT;
    occupy_closed_streams();
    sl_descriptors_raise();
    /* `sluice --version` is what people try first. */
    char word[] = "version", *version[] = {argv[0], word, NULL};
    bool asks_version =
        argc == 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0);
    int done = sl_command_line_parse(&line, argc, asks_version ? version : argv, &err);
    sl_log_setup((enum sl_log_level)line.globals.log_level, log_is_json(&line.globals));
    if (done < 0)
        log_lines(sl_buf_string(&line.mistakes));
    struct sl_cancel *cancel = done == 0 ? sl_cancel_new(&err) : NULL;
    bool idle = done == 0 && !line.command && !line.globals.help;
    if (cancel)
        catch_signals(cancel);
    done = cancel ? run(&line, cancel, &err) : -1;
    int exit_code = line.cli.exit_code;
    if (done < 0)
        exit_code = end_badly(&line, cancel, &err);
    struct sl_err lost = SL_ERR_INIT;
    if (flush_output(&lost) < 0 && exit_code == 0)
        exit_code = errno == EPIPE ? 128 + SIGPIPE : end_badly(&line, cancel, &lost);
    if (idle && exit_code == 0)
        exit_code = sl_err_row(SL_E_USAGE)->exit_code;
    note_end(&line, exit_code);
    sl_command_line_release(&line);
    return exit_code;
}
