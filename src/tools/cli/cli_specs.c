/* Specs and URIs of the command line, and what is wrong with them. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "log.h"
#include "uri_text.h"

/* A person waits for the answer. A load waits longer, since it may start before its store does. */
#define LOOK_SECONDS "2"

void sl_cli_log_lines(const char *lines)
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
    sl_cli_log_lines(sl_buf_string(complaints));
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
    sl_autobuf complaints = SL_BUF_INIT(SL_CLI_COMPLAINTS_MAX);
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
    sl_autobuf complaints = SL_BUF_INIT(SL_CLI_COMPLAINTS_MAX);
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
