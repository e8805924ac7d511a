/* The pages of the reference. Each is a walk over a table that the program works from: rows,
 * err.def, metrics.def, … */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_flags.h"
#include "exact_io.h"
#include "node_spec.h"
#include "stores.h"
#include "tls.h"

enum { PATH_BYTES_MAX = 4096 };

typedef int page_writer(struct sl_buf *out, struct sl_err *err);

static int generated(struct sl_buf *out, const char *title, const char *topic, struct sl_err *err)
{
    return sl_buf_printf(out, err, "# %s\n\n<!-- Written by `sluice docs %s`; do not edit. -->\n\n",
                         title, topic);
}

/* ---- errors, metrics, sources, formats ------------------------------------------------------ */

static int write_errors(struct sl_buf *out, struct sl_err *err)
{
    if (generated(out, "Errors and exit codes", "errors", err) < 0 ||
        sl_buf_text(out,
                    "A command that fails prints one line on standard error that says what failed, "
                    "on what, why, and "
                    "what to do\nnext, and exits with the code of its kind. `--json` also prints "
                    "`{\"error\": {\"kind\": \"FORMAT\", \"code\": \"E_DTYPE\",\n\"message\": "
                    "\"…\"}}` on standard "
                    "output; `code` is the format's or the server's own, or empty. In a container "
                    "the line is\nalso "
                    "the termination message.\n\n"
                    "| exit code | kind | HTTP | gRPC | tried again | meaning |\n"
                    "| --- | --- | --- | --- | --- | --- |\n"
                    "| 0 | OK | 200 | 0 | | success |\n",
                    err) < 0)
        return -1;
    for (int kind = 1; kind < SL_ERR_KIND_COUNT; kind++) {
        const struct sl_err_row *row = sl_err_row((enum sl_err_kind)kind);
        if (sl_buf_printf(out, err, "| %d | %s | %d | %d | %s | %s |\n", row->exit_code, row->name,
                          row->http_status, row->grpc_status, row->retry ? "yes" : "",
                          row->meaning) < 0)
            return -1;
    }
    return sl_buf_text(out,
                       "| 128+n | CANCELED | | | | ended by signal n: 130 is SIGINT, 143 is "
                       "SIGTERM; an interrupted "
                       "load resumes when it is started again |\n",
                       err);
}

static int write_metrics(struct sl_buf *out, struct sl_err *err)
{
    static const struct {
        const char *name, *type, *unit, *help;
    } metrics[] = {
#define SL_METRIC(id, type, name, unit, help) {name, #type, unit, help},
#include "metrics.def"
#undef SL_METRIC
    };
    if (generated(out, "Metrics", "metrics", err) < 0 ||
        sl_buf_text(out,
                    "`/metrics` answers with Prometheus text, or OpenMetrics where the reader asks "
                    "for it.\n\n"
                    "| metric | type | unit | meaning |\n| --- | --- | --- | --- |\n",
                    err) < 0)
        return -1;
    for (size_t i = 0; i < SL_COUNT(metrics); i++) {
        const char *type = strcmp(metrics[i].type, "COUNTER") == 0 ? "counter"
                           : strcmp(metrics[i].type, "GAUGE") == 0 ? "gauge"
                                                                   : "histogram";
        if (sl_buf_printf(out, err, "| `%s` | %s | %s | %s |\n", metrics[i].name, type,
                          metrics[i].unit, metrics[i].help) < 0)
            return -1;
    }
    return 0;
}

/* The keys of one section of the spec that belong to a source. */
static int write_section(struct sl_buf *out, const struct sl_option_table *table, const char *path,
                         struct sl_err *err)
{
    char key[64];
    if (sl_buf_printf(
            out, err,
            "\n## `%s`\n\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n",
            path) < 0)
        return -1;
    for (const struct sl_option *row = table->rows; row->member; row++) {
        const char *value = sl_option_value_name(row);
        if (sl_buf_printf(out, err, "| `%s` | ", sl_option_key(row, key)) < 0)
            return -1;
        for (const char *p = value; *p; p++)
            if (sl_buf_printf(out, err, *p == '|' ? "\\%c" : "%c", *p) < 0)
                return -1;
        if (sl_buf_printf(out, err, " | %s | %s |\n", row->initial ? row->initial : "", row->help) <
            0)
            return -1;
    }
    return 0;
}

static int write_sources(struct sl_buf *out, struct sl_err *err)
{
    if (generated(out, "Sources", "sources", err) < 0 ||
        sl_buf_text(out,
                    "A model is loaded from an object, from a prefix (a URI with a slash at its "
                    "end: every object below "
                    "it), or from an\nindex (`*.index.json`: every object it names).\n\n"
                    "| source | example | what it is |\n| --- | --- | --- |\n",
                    err) < 0)
        return -1;
    const struct sl_store_kind *kind;
    for (size_t i = 0; (kind = sl_stores_at(i)); i++)
        if (sl_buf_printf(out, err, "| %s | `%s` | %s |\n", kind->name, kind->example, kind->help) <
            0)
            return -1;
    for (size_t i = 0; (kind = sl_stores_at(i)); i++) {
        char path[80];
        if (!kind->options)
            continue;
        snprintf(path, sizeof(path), "source.%s", kind->options->name);
        if (write_section(out, kind->options, path, err) < 0)
            return -1;
    }
    return write_section(out, &sl_tls_table, "source.tls", err);
}

static int write_formats(struct sl_buf *out, struct sl_err *err)
{
    static const struct {
        const char *name, *help;
    } formats[] = {
#define SL_FORMAT(name, help) {#name, help},
#include "formats.def"
#undef SL_FORMAT
    };
    if (generated(out, "Formats", "formats", err) < 0 ||
        sl_buf_text(
            out,
            "The format is found from the first bytes of an object, not from its name. Tensors can "
            "be listed, "
            "digested, selected\nand checked in these; any other object is copied as it is.\n\n"
            "| format | what it is |\n| --- | --- |\n",
            err) < 0)
        return -1;
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (sl_buf_printf(out, err, "| %s | %s |\n", formats[i].name, formats[i].help) < 0)
            return -1;
    return 0;
}

static int write_http(struct sl_buf *out, struct sl_err *err)
{
    static const char *const answers[][2] = {
#define WEB_CHANGE(method, path, name, verb, allow, body, run, does)
#define WEB_ROUTE(path, answer, is)             {path, is},
#define WEB_NAMED_ROUTE(path, name, answer, is) {path name, is},
#include "web_routes.def"
#undef WEB_CHANGE
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
    };
    static const char *const changes[][5] = {
#define WEB_ROUTE(path, answer, is)
#define WEB_NAMED_ROUTE(path, name, answer, is)
#define WEB_CHANGE(method, path, name, verb, allow, body, run, does)                               \
    {method, path, name, verb, does},
#include "web_routes.def"
#undef WEB_CHANGE
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
    };
    if (generated(out, "HTTP paths", "http", err) < 0 ||
        sl_buf_text(out,
                    "Who answers them, errors and limits: [what sluice answers over "
                    "HTTP](../http.md).\n\n| path | answer |\n| --- | --- |\n",
                    err) < 0)
        return -1;
    for (size_t i = 0; i < SL_COUNT(answers); i++)
        if (sl_buf_printf(out, err, "| `/%s` | %s |\n", answers[i][0], answers[i][1]) < 0)
            return -1;
    if (sl_buf_text(out,
                    "\n## Requests that change something\n\n| request | does |\n| --- | --- |\n",
                    err) < 0)
        return -1;
    for (size_t i = 0; i < SL_COUNT(changes); i++)
        if (sl_buf_printf(out, err, "| `%s /%s%s%s%s` | %s |\n", changes[i][0], changes[i][1],
                          changes[i][2], *changes[i][3] ? "/" : "", changes[i][3],
                          changes[i][4]) < 0)
            return -1;
    return 0;
}

/* ---- commands and options ------------------------------------------------------------------- */

static int flag_table(struct sl_buf *out, const struct sl_command *command,
                      enum sl_flag_group group, const char *title, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_group_flags(command, group, flags);
    if (count && sl_buf_printf(out, err, "## %s\n\n| flag | meaning |%s\n| --- | --- |%s\n", title,
                               group == SL_FLAG_SPEC ? " key |" : "",
                               group == SL_FLAG_SPEC ? " --- |" : "") < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        char usage[160];
        sl_autobuf text = SL_BUF_INIT(4096);
        if (sl_cli_describe_flag(&flags[i], &text, err) < 0 || sl_buf_text(out, "| `", err) < 0)
            return -1;
        for (const char *p = sl_cli_flag_usage(&flags[i], usage); *p; p++)
            if (sl_buf_printf(out, err, *p == '|' ? "\\%c" : "%c", *p) < 0)
                return -1;
        if (sl_buf_printf(out, err, "` | %s |", sl_buf_string(&text)) < 0)
            return -1;
        if (group == SL_FLAG_SPEC &&
            (flags[i].path[0] ? sl_buf_printf(out, err, " `%s` |", flags[i].path)
                              : sl_buf_text(out, " any |", err)) < 0)
            return -1;
        if (sl_buf_text(out, "\n", err) < 0)
            return -1;
    }
    return count ? sl_buf_text(out, "\n", err) : 0;
}

int sl_cli_write_command_page(const struct sl_command *command, struct sl_buf *out,
                              struct sl_err *err)
{
    if (sl_buf_printf(out, err,
                      "# sluice %s\n\n<!-- Written by `sluice docs commands %s`; do not edit. "
                      "-->\n\n```\n%s\n```\n\n"
                      "%s.\n\n%s\n\n",
                      command->name, command->name, command->usage, command->summary,
                      command->description ? command->description : "") < 0 ||
        flag_table(out, command, SL_FLAG_OWN, "Flags", err) < 0 ||
        flag_table(out, command, SL_FLAG_SPEC, "Flags for keys of the spec", err) < 0 ||
        flag_table(out, command, SL_FLAG_GLOBAL, "Flags of every command", err) < 0)
        return -1;
    if (command->examples &&
        sl_buf_printf(out, err, "## Examples\n\n```sh\n%s\n```\n", command->examples) < 0)
        return -1;
    return 0;
}

static int write_commands(struct sl_buf *out, struct sl_err *err)
{
    if (generated(out, "Commands", "commands", err) < 0 ||
        sl_buf_text(out, "| command | what it does |\n| --- | --- |\n", err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_buf_printf(out, err, "| [`sluice %s`](commands/%s.md) | %s |\n", (*command)->name,
                          (*command)->name, (*command)->summary) < 0)
            return -1;
    return 0;
}

static int write_options(struct sl_buf *out, struct sl_err *err)
{
    static const struct sl_command any = {.name = "", .spec_flags = true};
    if (generated(out, "Flags and environment", "options", err) < 0 ||
        sl_buf_text(out,
                    "Flags may stand before or after operands. `--flag value` and `--flag=value` "
                    "are the same; "
                    "`--no-flag` turns a switch\noff; `--` ends the flags, and before a command to "
                    "become it is the "
                    "only way.\n\n",
                    err) < 0 ||
        flag_table(out, &any, SL_FLAG_GLOBAL, "Flags of every command", err) < 0 ||
        flag_table(out, &any, SL_FLAG_SPEC, "Flags for keys of the spec", err) < 0)
        return -1;
    return sl_buf_text(out,
                       "## Environment\n\n| variable | meaning |\n| --- | --- |\n"
#define SL_VARIABLE(names, meaning) "| " names " | " meaning " |\n"
#include "environment.def"
#undef SL_VARIABLE
                       "\n## Files\n\n| file | meaning |\n| --- | --- |\n"
#define SL_FILE(names, meaning) "| " names " | " meaning " |\n"
#include "files.def"
#undef SL_FILE
                       ,
                       err);
}

static int write_files(struct sl_buf *out, struct sl_err *err)
{
    if (generated(out, "Files of sluice's own", "files", err) < 0)
        return -1;
    return sl_buf_text(
        out,
        "What sluice keeps beside files and in folders that others may write or read: who writes "
        "it, who reads it, and what is asked of it before it is believed.\nWhat is found wanting "
        "is passed over with a warning, or refused with what to do. No file of a model has one of "
        "these names: folders\nof this machine are read without them; what a store, an archive, an "
        "index or a manifest names so is refused.\n\n"
        "| file | written by | read by | believed if |\n| --- | --- | --- | --- |\n"
#define SL_OWN_BESIDE(end, writer, reader, proof)                                                  \
    "| `.NAME" end "` beside NAME | " writer " | " reader " | " proof " |\n"
#define SL_OWN_BELOW(name, writer, reader, proof)                                                  \
    "| `" name "` in a model's folder | " writer " | " reader " | " proof " |\n"
#define SL_OWN_NODE(name, writer, reader, proof)                                                   \
    "| `" name "` in a node's directory | " writer " | " reader " | " proof " |\n"
#include "own_names.def"
#undef SL_OWN_BESIDE
#undef SL_OWN_BELOW
#undef SL_OWN_NODE
        ,
        err);
}

static int write_man_overview(struct sl_buf *out, struct sl_err *err)
{
    return sl_cli_write_man(NULL, out, err);
}

/* ---- the list of pages ---------------------------------------------------------------------- */

static const struct page {
    const char *topic, *path;
    page_writer *write;
} pages[] = {
    {"spec", "reference/spec.md", sl_spec_write_reference},
    {"schema", "reference/spec.schema.json", sl_spec_write_schema},
    {"node", "reference/node.md", sl_node_spec_write_reference},
    {"commands", "reference/commands.md", write_commands},
    {"errors", "reference/errors.md", write_errors},
    {"metrics", "reference/metrics.md", write_metrics},
    {"sources", "reference/sources.md", write_sources},
    {"formats", "reference/formats.md", write_formats},
    {"options", "reference/options.md", write_options},
    {"http", "reference/http.md", write_http},
    {"files", "reference/files.md", write_files},
    {"man", "man/sluice.1", write_man_overview},
};

const char *sl_cli_topics(void)
{
    return "spec, schema, node, commands, errors, metrics, sources, formats, options, http, files, "
           "man, all";
}

static int write_all(struct sl_buf *out, struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(pages); i++)
        if (strstr(pages[i].path, ".md") &&
            (pages[i].write(out, err) < 0 || sl_buf_text(out, "\n", err) < 0))
            return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_cli_write_command_page(*command, out, err) < 0 || sl_buf_text(out, "\n", err) < 0)
            return -1;
    return 0;
}

enum { COMMANDS_MAX = 64 };

int sl_cli_write_topic(const char *topic, struct sl_buf *out, struct sl_err *err)
{
    const char *topics[SL_COUNT(pages) + 1 + COMMANDS_MAX] = {"all"};
    size_t count = 1;
    for (size_t i = 0; i < SL_COUNT(pages); i++) {
        if (strcmp(pages[i].topic, topic) == 0)
            return pages[i].write(out, err);
        topics[count++] = pages[i].topic;
    }
    if (strcmp(topic, "all") == 0)
        return write_all(out, err);
    const struct sl_command *command = sl_command_find(topic);
    if (command)
        return sl_cli_write_command_page(command, out, err);
    for (const struct sl_command *const *each = sl_commands(); *each && count < SL_COUNT(topics);
         each++)
        topics[count++] = (*each)->name;
    const char *near = sl_nearest(topic, topics, count);
    if (near)
        return sl_fail(err, SL_E_USAGE, "no page is called '%.80s', did you mean '%s'?", topic,
                       near);
    return sl_fail(err, SL_E_USAGE, "no page is called '%.80s': there are %s", topic,
                   sl_cli_topics());
}

/* ---- files ---------------------------------------------------------------------------------- */

static int make_directory(const char *path, struct sl_err *err)
{
    if (mkdir(path, 0755) == 0 || errno == EEXIST)
        return 0;
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make '%s'", path);
}

static int write_file(const char *directory, const char *path, const struct sl_buf *text,
                      struct sl_err *err)
{
    char full[PATH_BYTES_MAX];
    if (snprintf(full, sizeof(full), "%s/%s", directory, path) >= (int)sizeof(full))
        return sl_fail(err, SL_E_USAGE, "'%.100s…' is too long", directory);
    sl_autoclose int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", full);
    if (sl_write_all(fd, text->data, text->used) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", full);
    return 0;
}

static int write_command_files(const char *directory, const struct sl_command *command,
                               struct sl_err *err)
{
    char path[160];
    sl_autobuf page = SL_BUF_INIT(SL_PAGE_BYTES_MAX), man = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    snprintf(path, sizeof(path), "reference/commands/%s.md", command->name);
    if (sl_cli_write_command_page(command, &page, err) < 0 ||
        write_file(directory, path, &page, err) < 0)
        return -1;
    snprintf(path, sizeof(path), "man/sluice-%s.1", command->name);
    if (sl_cli_write_man(command, &man, err) < 0)
        return -1;
    return write_file(directory, path, &man, err);
}

int sl_cli_write_pages(const char *directory, struct sl_err *err)
{
    static const char *const folders[] = {"", "/reference", "/reference/commands", "/man"};
    for (size_t i = 0; i < SL_COUNT(folders); i++) {
        char path[PATH_BYTES_MAX];
        snprintf(path, sizeof(path), "%s%s", directory, folders[i]);
        if (make_directory(path, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < SL_COUNT(pages); i++) {
        sl_autobuf text = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
        if (pages[i].write(&text, err) < 0 || write_file(directory, pages[i].path, &text, err) < 0)
            return -1;
    }
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (write_command_files(directory, *command, err) < 0)
            return -1;
    return 0;
}
