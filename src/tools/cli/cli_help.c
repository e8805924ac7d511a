/*
 * Help for a terminal, from the rows. Nothing about a flag is written twice: the text, the default,
 * the bounds and the spec key all come from its row.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli_flags.h"

enum {
    COLUMNS_USUAL = 80,
    COLUMNS_MIN = 50,
    COLUMNS_MAX = 120,
    HELP_INDENT = 28,
    COMMAND_INDENT = 14
};

/* Of who reads it: as wide as the terminal, within reason. */
static size_t columns_max(void)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_col)
        return COLUMNS_USUAL;
    return SL_MIN(SL_MAX((size_t)size.ws_col, (size_t)COLUMNS_MIN), (size_t)COLUMNS_MAX);
}

/* ---- wrapping ------------------------------------------------------------------------------- */

/* Columns of `bytes` bytes of UTF-8: continuation bytes take none. */
static size_t width(const char *text, size_t bytes)
{
    size_t columns = 0;
    for (size_t i = 0; i < bytes; i++)
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
    return columns;
}

static int spaces(struct sl_buf *out, size_t count, struct sl_err *err)
{
    return sl_buf_printf(out, err, "%*s", (int)count, "");
}

/* One paragraph, broken between words; `column` is where the cursor is now. Backquotes are for
 * pages. */
static int wrap(struct sl_buf *out, const char *text, size_t indent, size_t column,
                struct sl_err *err)
{
    size_t most = columns_max();
    bool first = true;
    while (*text) {
        size_t bytes = strcspn(text, " \n");
        size_t columns = width(text, bytes);
        if (bytes == 0) {
            text++;
            continue;
        }
        if (!first && column + 1 + columns > most) {
            if (sl_buf_text(out, "\n", err) < 0 || spaces(out, indent, err) < 0)
                return -1;
            column = indent;
        } else if (!first) {
            if (sl_buf_text(out, " ", err) < 0)
                return -1;
            column++;
        }
        if (sl_buf_append(out, text, bytes, err) < 0)
            return -1;
        column += columns;
        text += bytes;
        first = false;
    }
    return sl_buf_text(out, "\n", err);
}

/* Paragraphs are parted by empty lines; a line that starts with a space stays as it is. */
static int paragraphs(struct sl_buf *out, const char *text, struct sl_err *err)
{
    while (text && *text) {
        const char *end = strstr(text, "\n\n");
        size_t bytes = end ? (size_t)(end - text) : strlen(text);
        sl_autofree char *paragraph = sl_strndup(text, bytes, err);
        if (!paragraph)
            return -1;
        int done = *paragraph == ' ' ? sl_buf_printf(out, err, "%s\n", paragraph)
                                     : wrap(out, paragraph, 0, 0, err);
        if (done < 0 || sl_buf_text(out, "\n", err) < 0)
            return -1;
        text += bytes;
        while (*text == '\n')
            text++;
    }
    return 0;
}

/* ---- flags ---------------------------------------------------------------------------------- */

static int describe_bounds(const struct sl_option *row, struct sl_buf *out, struct sl_err *err)
{
    char low[32], high[32];
    if (!row->maximum || row->type == SL_OPTION_RATE)
        return 0;
    if (row->type == SL_OPTION_BYTES)
        return sl_buf_printf(out, err, "; %s to %s", sl_exact_bytes(row->minimum, low),
                             sl_exact_bytes(row->maximum, high));
    return sl_buf_printf(out, err, "; %" PRIu64 " to %" PRIu64, row->minimum, row->maximum);
}

int sl_cli_describe_flag(const struct sl_flag *flag, struct sl_buf *out, struct sl_err *err)
{
    const struct sl_option *row = flag->row;
    bool plain_bool =
        row->type == SL_OPTION_BOOL && (!row->initial || strcmp(row->initial, "true") != 0);
    if (sl_buf_text(out, row->help, err) < 0 || describe_bounds(row, out, err) < 0)
        return -1;
    if (row->type == SL_OPTION_LIST && sl_buf_text(out, "; may be repeated", err) < 0)
        return -1;
    if (row->initial && *row->initial && !plain_bool &&
        sl_buf_printf(out, err, " (default: %s)",
                      row->type == SL_OPTION_BOOL ? "yes" : row->initial) < 0)
        return -1;
    return row->served ? sl_buf_text(out, " (`sluice serve` alone)", err) : 0;
}

static int write_flag(const struct sl_flag *flag, struct sl_buf *out, struct sl_err *err)
{
    char usage[160];
    sl_autobuf text = SL_BUF_INIT(4096);
    sl_cli_flag_usage(flag, usage);
    bool off = flag->row->type == SL_OPTION_BOOL && flag->row->initial &&
               strcmp(flag->row->initial, "true") == 0;
    if (sl_cli_describe_flag(flag, &text, err) < 0 ||
        sl_buf_printf(out, err, "  --%s%s", off ? "no-" : "", usage + 2) < 0)
        return -1;
    size_t column = 2 + width(usage, strlen(usage)) + (off ? 3 : 0);
    if (column + 2 > HELP_INDENT) {
        if (sl_buf_text(out, "\n", err) < 0)
            return -1;
        column = 0;
    }
    if (spaces(out, HELP_INDENT - column, err) < 0)
        return -1;
    return wrap(out, sl_buf_string(&text), HELP_INDENT, HELP_INDENT, err);
}

static int write_group(const struct sl_command *command, enum sl_flag_group group,
                       const char *title, struct sl_buf *out, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_group_flags(command, group, flags);
    if (count && sl_buf_printf(out, err, "%s:\n", title) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (write_flag(&flags[i], out, err) < 0)
            return -1;
    return count ? sl_buf_text(out, "\n", err) : 0;
}

/* Some of a group, and where the others are. */
static int write_few(const struct sl_command *command, const char *title, size_t left_out,
                     const struct sl_flag *few, size_t count, struct sl_buf *out,
                     struct sl_err *err)
{
    if (sl_buf_printf(out, err, "%s; %zu more are in `sluice help %s`:\n", title, left_out,
                      command->name) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (write_flag(&few[i], out, err) < 0)
            return -1;
    return sl_buf_text(out, "\n", err);
}

/* Many: a screen shows those that are the command's own, and --set instead of all. */
static int write_spec_group(const struct sl_command *command, bool all, struct sl_buf *out,
                            struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_group_flags(command, SL_FLAG_SPEC, flags);
    if (all || count < 2)
        return write_group(command, SL_FLAG_SPEC, "Flags for keys of the spec (`sluice docs spec`)",
                           out, err);
    return write_few(command, "Flags for keys of the spec", count - 1, &flags[count - 1], 1, out,
                     err);
}

/* The first two are for everybody. */
static int write_global_group(const struct sl_command *command, bool all, struct sl_buf *out,
                              struct sl_err *err)
{
    enum { SHOWN = 2 };
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_group_flags(command, SL_FLAG_GLOBAL, flags);
    return all ? write_group(command, SL_FLAG_GLOBAL, "Flags of every command", out, err)
               : write_few(command, "Flags of every command", count - SHOWN, flags, SHOWN, out,
                           err);
}

/* ---- texts ---------------------------------------------------------------------------------- */

int sl_cli_write_command_help(const struct sl_command *command, bool all, struct sl_buf *out,
                              struct sl_err *err)
{
    if (sl_buf_printf(out, err, "Usage: %s\n\n", command->usage) < 0 ||
        paragraphs(out, command->summary, err) < 0 ||
        paragraphs(out, command->description, err) < 0 ||
        write_group(command, SL_FLAG_OWN, "Flags", out, err) < 0 ||
        write_spec_group(command, all, out, err) < 0 ||
        write_global_group(command, all, out, err) < 0)
        return -1;
    const char *line = command->examples;
    if (line && *line && sl_buf_text(out, "Examples:\n", err) < 0)
        return -1;
    while (line && *line) {
        size_t bytes = strcspn(line, "\n");
        if (sl_buf_printf(out, err, "  %.*s\n", (int)bytes, line) < 0)
            return -1;
        line += bytes + (line[bytes] == '\n');
    }
    return 0;
}

int sl_cli_write_help(struct sl_buf *out, struct sl_err *err)
{
    if (sl_buf_text(out,
                    "Usage: sluice COMMAND [OPERANDS] [FLAGS]\n\n"
                    "sluice puts model weights where inference needs them: a YAML spec in, a\n"
                    "verified model in memory out.\n\n"
                    "Commands:\n",
                    err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_buf_printf(out, err, "  %-12s", (*command)->name) < 0 ||
            wrap(out, (*command)->summary, COMMAND_INDENT, COMMAND_INDENT, err) < 0)
            return -1;
    return sl_buf_text(
        out,
        "\nStart with:\n"
        "  sluice load s3://bucket/model/ --to /dev/shm/model\n"
        "  sluice load model.yaml\n\n"
        "`sluice COMMAND --help` explains a command, `sluice help TOPIC` the rest: spec,\n"
        "sources, formats, options, errors, metrics.\n",
        err);
}
