/*
 * Man pages in the man(7) macros. Text from the tables is escaped here: backslashes, a leading dot
 * or quote, and the hyphens of flags, which must stay hyphens when they are copied.
 */
#include <ctype.h>
#include <string.h>

#include "cli_flags.h"

/* One code point of UTF-8 as \[uXXXX]; returns its bytes. */
static size_t escape_wide(struct sl_buf *out, const unsigned char *p, struct sl_err *err)
{
    size_t bytes = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    uint32_t point = *p & (0xff >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 1;
        point = point << 6 | (p[i] & 0x3f);
    }
    return sl_buf_printf(out, err, "\\[u%04X]", (unsigned)point) < 0 ? 0 : bytes;
}

static int escape(struct sl_buf *out, const char *text, size_t bytes, bool literal,
                  struct sl_err *err)
{
    bool bold = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        int done;
        if ((unsigned char)c >= 0x80) {
            size_t used = escape_wide(out, (const unsigned char *)text + i, err);
            if (!used)
                return -1;
            i += used - 1;
            continue;
        }
        if (c == '\\')
            done = sl_buf_text(out, "\\e", err);
        else if (c == '-')
            done = sl_buf_text(out, "\\-", err);
        else if (c == '\'')
            done = sl_buf_text(out, "\\(aq", err);
        else if (c == '"')
            done = sl_buf_text(out, "\\(dq", err);
        else if (c == '^' || c == '~')
            done = sl_buf_text(out, c == '^' ? "\\(ha" : "\\(ti", err);
        else if (c == '.' && (i == 0 || text[i - 1] == '\n'))
            done = sl_buf_text(out, "\\&.", err);
        else if (c == '`' && !literal) {
            bold = !bold;
            done = sl_buf_text(out, bold ? "\\fB" : "\\fR", err);
        } else if (c == '`')
            done = sl_buf_text(out, "\\(ga", err);
        else
            done = sl_buf_append(out, &c, 1, err);
        if (done < 0)
            return -1;
    }
    return bold ? sl_buf_text(out, "\\fR", err) : 0;
}

static int text_line(struct sl_buf *out, const char *text, struct sl_err *err)
{
    return escape(out, text, strlen(text), false, err) < 0 ? -1 : sl_buf_text(out, "\n", err);
}

static int section(struct sl_buf *out, const char *title, struct sl_err *err)
{
    return sl_buf_printf(out, err, ".SH %s\n", title);
}

static int paragraphs(struct sl_buf *out, const char *text, struct sl_err *err)
{
    for (bool first = true; text && *text; first = false) {
        const char *end = strstr(text, "\n\n");
        size_t bytes = end ? (size_t)(end - text) : strlen(text);
        bool literal = *text == ' ';
        if ((!first && sl_buf_text(out, ".PP\n", err) < 0) ||
            (literal && sl_buf_text(out, ".nf\n", err) < 0) ||
            escape(out, text, bytes, literal, err) < 0 ||
            sl_buf_text(out, literal ? "\n.fi\n" : "\n", err) < 0)
            return -1;
        text += bytes;
        while (*text == '\n')
            text++;
    }
    return 0;
}

static int flags_section(struct sl_buf *out, const struct sl_command *command,
                         enum sl_flag_group group, const char *title, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_group_flags(command, group, flags);
    if (count && section(out, title, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        char usage[160];
        sl_autobuf text = SL_BUF_INIT(4096);
        bool off = flags[i].row->type == SL_OPTION_BOOL && flags[i].row->initial &&
                   strcmp(flags[i].row->initial, "true") == 0;
        sl_cli_flag_usage(&flags[i], usage);
        if (sl_cli_describe_flag(&flags[i], &text, err) < 0 ||
            sl_buf_text(out, ".TP\n\\fB", err) < 0 ||
            (off && sl_buf_text(out, "\\-\\-no", err) < 0) ||
            escape(out, usage + (off ? 1 : 0), strlen(usage) - (off ? 1 : 0), true, err) < 0 ||
            sl_buf_text(out, "\\fR\n", err) < 0 || text_line(out, sl_buf_string(&text), err) < 0)
            return -1;
        if (flags[i].path[0] &&
            (sl_buf_text(out, ".br\nSpec key: \\fB", err) < 0 ||
             escape(out, flags[i].path, strlen(flags[i].path), false, err) < 0 ||
             sl_buf_text(out, "\\fR\n", err) < 0))
            return -1;
    }
    return 0;
}

static int exit_section(struct sl_buf *out, struct sl_err *err)
{
    if (section(out, "EXIT STATUS", err) < 0 || sl_buf_text(out, ".TP\n0\nsuccess\n", err) < 0)
        return -1;
    for (int kind = 1; kind < SL_ERR_KIND_COUNT; kind++) {
        const struct sl_err_row *row = sl_err_row((enum sl_err_kind)kind);
        if (sl_buf_printf(out, err, ".TP\n%d\n", row->exit_code) < 0 ||
            text_line(out, row->meaning, err) < 0)
            return -1;
    }
    return sl_buf_text(out, ".TP\n128+n\nended by signal n\n", err);
}

struct entry {
    const char *names, *meaning;
};
static const struct entry variables[] = {
#define SL_VARIABLE(names, meaning) {names, meaning},
#include "environment.def"
#undef SL_VARIABLE
    {NULL, NULL},
};
static const struct entry files[] = {
#define SL_FILE(names, meaning) {names, meaning},
#include "files.def"
#undef SL_FILE
    {NULL, NULL},
};

static int entries_section(struct sl_buf *out, const char *title, const struct entry *entry,
                           struct sl_err *err)
{
    if (section(out, title, err) < 0)
        return -1;
    for (; entry->names; entry++)
        if (sl_buf_text(out, ".TP\n", err) < 0 || text_line(out, entry->names, err) < 0 ||
            text_line(out, entry->meaning, err) < 0)
            return -1;
    return 0;
}

static int examples_section(struct sl_buf *out, const char *examples, struct sl_err *err)
{
    if (!examples || !*examples)
        return 0;
    if (section(out, "EXAMPLES", err) < 0 || sl_buf_text(out, ".nf\n", err) < 0 ||
        escape(out, examples, strlen(examples), true, err) < 0)
        return -1;
    return sl_buf_text(out, "\n.fi\n", err);
}

static int write_overview(struct sl_buf *out, struct sl_err *err)
{
    if (sl_buf_text(
            out,
            ".TH SLUICE 1 \"\" \"sluice " SLUICE_VERSION "\" \"sluice\"\n"
            ".SH NAME\nsluice \\- put model weights where inference needs them\n"
            ".SH SYNOPSIS\n\\fBsluice\\fR \\fICOMMAND\\fR [\\fIOPERANDS\\fR] [\\fIFLAGS\\fR]\n"
            ".SH DESCRIPTION\n"
            "sluice reads a YAML model spec, streams what it names out of object storage with "
            "many\n"
            "concurrent range reads, checks it, and leaves it in memory.\n"
            ".SH COMMANDS\n",
            err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_buf_printf(out, err, ".TP\n\\fB%s\\fR\n", (*command)->name) < 0 ||
            text_line(out, (*command)->summary, err) < 0)
            return -1;
    if (flags_section(out, NULL, SL_FLAG_GLOBAL, "FLAGS", err) < 0 || exit_section(out, err) < 0 ||
        entries_section(out, "ENVIRONMENT", variables, err) < 0 ||
        entries_section(out, "FILES", files, err) < 0 || section(out, "SEE ALSO", err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_buf_printf(out, err, "\\fBsluice\\-%s\\fR(1)%s\n", (*command)->name,
                          command[1] ? "," : "") < 0)
            return -1;
    return 0;
}

int sl_cli_write_man(const struct sl_command *command, struct sl_buf *out, struct sl_err *err)
{
    char upper[64] = "";
    if (!command)
        return write_overview(out, err);
    for (size_t i = 0; command->name[i] && i + 1 < sizeof(upper); i++)
        upper[i] = (char)toupper((unsigned char)command->name[i]);
    if (sl_buf_printf(out, err,
                      ".TH SLUICE\\-%s 1 \"\" \"sluice " SLUICE_VERSION "\" \"sluice\"\n"
                      ".SH NAME\nsluice\\-%s \\- ",
                      upper, command->name) < 0 ||
        text_line(out, command->summary, err) < 0 || section(out, "SYNOPSIS", err) < 0 ||
        text_line(out, command->usage, err) < 0 || section(out, "DESCRIPTION", err) < 0 ||
        paragraphs(out, command->description ? command->description : command->summary, err) < 0)
        return -1;
    if (flags_section(out, command, SL_FLAG_OWN, "FLAGS", err) < 0 ||
        flags_section(out, command, SL_FLAG_SPEC, "FLAGS FOR KEYS OF THE SPEC", err) < 0 ||
        flags_section(out, command, SL_FLAG_GLOBAL, "FLAGS OF EVERY COMMAND", err) < 0 ||
        exit_section(out, err) < 0 || examples_section(out, command->examples, err) < 0 ||
        section(out, "SEE ALSO", err) < 0)
        return -1;
    return sl_buf_text(out, "\\fBsluice\\fR(1)\n", err);
}
