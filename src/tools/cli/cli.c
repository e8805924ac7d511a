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
#include <unistd.h>

#include "cli_flags.h"
#include "descriptors.h"
#include "json.h"
#include "log.h"
#include "operand.h"
#include "termination.h"

enum { ERROR_LINE_MAX = 8192 };

/* ---- how it ended --------------------------------------------------------------------------- */

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
    sl_json_init(&json, ERROR_LINE_MAX + 2 * SL_CLI_COMPLAINTS_MAX);
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
        sl_cli_log_lines(sl_buf_string(&line.mistakes));
    struct sl_cancel *cancel = done == 0 ? sl_cancel_new(&err) : NULL;
    bool idle = done == 0 && !line.command && !line.globals.help;
    if (cancel)
        sl_cli_catch_signals(cancel);
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
