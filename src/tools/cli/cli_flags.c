/*
 * A command line is read once, from left to right. The first operand is the command; flags may
 * stand before or after operands. A flag is a row of the command, a row of every command, or, for
 * commands that take a spec, a row of the spec that has a flag's name: then its text becomes a
 * setting and the spec judges it like the key in the file.
 */
#include "cli_flags.h"

#include <stdio.h>
#include <string.h>

#include "log.h"
#include "progress.h"

enum { MISTAKES_BYTES_MAX = 64 * 1024 };

static const struct sl_option globals_rows[] = {
    SL_OPTION(
        sl_cli_globals, json, BOOL, "false",
        "a machine-readable result on standard output, errors included; logs go to standard error"),
    SL_OPTION(sl_cli_globals, log_level, CHOICE, "info",
              "the least important events to show; -v is debug, -q is warn without progress",
              .choices = "error|warn|info|debug|trace"),
    SL_OPTION(sl_cli_globals, help, BOOL, "false", "show what the command does and its flags"),
    SL_OPTION(sl_cli_globals, log_format, CHOICE, "auto",
              "lines for people or one JSON object a line; auto is JSON in a Kubernetes container",
              .choices = "auto|text|json"),
    SL_OPTION(
        sl_cli_globals, progress, CHOICE, "auto",
        "a bar, a line every 5 s, or nothing; auto is a bar on a terminal and lines elsewhere",
        .choices = "auto|bar|lines|none"),
    SL_OPTION_END,
};
static const struct sl_option_table globals_table = {"", sizeof(struct sl_cli_globals),
                                                     globals_rows};

static const struct sl_option set_row = {
    .member = "set",
    .type = SL_OPTION_MAP,
    .initial = "",
    .value = "KEY=VALUE",
    .help = "set any key of the spec, as in --set verify.hashes=all; may be repeated",
};

/* ---- the list ------------------------------------------------------------------------------- */

struct listing {
    struct sl_flag *flags;
    size_t count;
    const char *const *idle; /* not listed; NULL: none */
};

static void list_row(struct listing *listing, enum sl_flag_group group, const char *name,
                     const struct sl_option *row, const char *path)
{
    if (listing->count >= SL_FLAGS_MAX)
        return;
    struct sl_flag *flag = &listing->flags[listing->count++];
    flag->group = group;
    flag->row = row;
    snprintf(flag->name, sizeof(flag->name), "%s", name);
    snprintf(flag->path, sizeof(flag->path), "%s", path);
}

static const struct sl_flag *find_flag(const struct sl_flag *flags, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
    return NULL;
}

static bool is_idle(const struct listing *listing, const char *flag)
{
    for (const char *const *idle = listing->idle; idle && *idle; idle++)
        if (strcmp(*idle, flag) == 0)
            return true;
    return false;
}

/* A command's own flag hides one of the spec. */
static int list_spec_row(const struct sl_option *row, const char *path, void *arg)
{
    struct listing *listing = arg;
    if (row->flag && !is_idle(listing, row->flag) &&
        !find_flag(listing->flags, listing->count, row->flag))
        list_row(listing, SL_FLAG_SPEC, row->flag, row, path);
    return 0;
}

static void list_table(struct listing *listing, enum sl_flag_group group,
                       const struct sl_option_table *table)
{
    char name[64];
    for (const struct sl_option *row = table->rows; row->member; row++)
        list_row(listing, group, sl_option_kebab(row, name), row, "");
}

size_t sl_cli_flags(const struct sl_command *command, struct sl_flag flags[SL_FLAGS_MAX])
{
    struct listing listing = {flags, 0, command ? command->idle_flags : NULL};
    if (command && command->options)
        list_table(&listing, SL_FLAG_OWN, command->options);
    if (command && command->spec_flags) {
        sl_options_walk(sl_spec_table(), list_spec_row, &listing);
        list_row(&listing, SL_FLAG_SPEC, "set", &set_row, "");
    }
    list_table(&listing, SL_FLAG_GLOBAL, &globals_table);
    return listing.count;
}

size_t sl_cli_group_flags(const struct sl_command *command, enum sl_flag_group group,
                          struct sl_flag flags[SL_FLAGS_MAX])
{
    size_t count = sl_cli_flags(command, flags), kept = 0;
    for (size_t i = 0; i < count; i++)
        if (flags[i].group == group)
            flags[kept++] = flags[i];
    return kept;
}

const char *sl_cli_flag_usage(const struct sl_flag *flag, char text[160])
{
    if (flag->row->type == SL_OPTION_BOOL)
        snprintf(text, 160, "--%s", flag->name);
    else if (flag->row->type == SL_OPTION_LIST && !flag->row->value)
        snprintf(text, 160, "--%s ITEM", flag->name);
    else
        snprintf(text, 160, "--%s %s", flag->name, sl_option_value_name(flag->row));
    return text;
}

/* ---- settings ------------------------------------------------------------------------------- */

static const char *keep(struct sl_command_line *line, char *text, struct sl_err *err)
{
    if (!text || sl_grow(&line->texts, &line->text_capacity, line->text_count + 1, sizeof(char *),
                         err) < 0) {
        free(text);
        return NULL;
    }
    line->texts[line->text_count++] = text;
    return text;
}

static int add_setting(struct sl_command_line *line, const char *path, const char *value,
                       const char *origin, struct sl_err *err)
{
    struct sl_cli *cli = &line->cli;
    if (!path || !origin ||
        sl_grow(&cli->settings, &line->setting_capacity, cli->setting_count + 1,
                sizeof(*cli->settings), err) < 0)
        return -1;
    cli->settings[cli->setting_count++] = (struct sl_spec_setting){path, value, origin};
    return 0;
}

static int add_set(struct sl_command_line *line, const char *text, struct sl_err *err)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return sl_fail(err, SL_E_USAGE,
                       "--set takes KEY=VALUE, such as verify.hashes=all, not '%.100s'", text);
    const char *path = keep(line, sl_strndup(text, (size_t)(equals - text), err), err);
    if (!path)
        return -1;
    return add_setting(line, path, equals + 1, keep(line, sl_asprintf(err, "--set %s", path), err),
                       err);
}

/* ---- one flag ------------------------------------------------------------------------------- */

struct flag_text {
    char name[64]; /* without dashes and "no-" */
    bool negated;
    const char *value; /* after '=', else NULL */
    const char *whole; /* as typed */
};

/* What other tools call it. */
static const struct {
    const char *word, *ours; /* a flag or a command; else a sentence */
} foreign[] = {
    {"-f", "the spec stands alone, without a flag: `sluice load SPEC`"},
    {"--file", "the spec stands alone, without a flag: `sluice load SPEC`"},
    {"--spec", "the spec stands alone, without a flag: `sluice load SPEC`"},
    {"--dry-run", "`sluice plan` says what a load would do"},
    {"--no-sign-request", "write --set source.s3.anonymous=true"},
    {"--recursive", "a folder's URI ends with '/', and is taken whole"},
    {"-o", "--to"},
    {"--output", "--to"},
    {"--local-dir", "--to"},
    {"-j", "--connections"},
    {"--jobs", "--connections"},
    {"--concurrency", "--connections"},
    {"pull", "load"},
    {"get", "load"},
    {"cp", "load"},
    {"sync", "load"},
    {"download", "load"},
    {"upload", "convert"},
    {"push", "convert"},
};

static const char *of_another_tool(const char *word, size_t bytes)
{
    for (size_t i = 0; i < SL_COUNT(foreign); i++)
        if (strlen(foreign[i].word) == bytes && strncmp(foreign[i].word, word, bytes) == 0)
            return foreign[i].ours;
    return NULL;
}

static bool has_flag(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static int unknown_flag(const struct sl_command *command, const struct flag_text *text,
                        struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    const char *names[SL_FLAGS_MAX];
    size_t count = sl_cli_flags(command, flags);
    for (size_t i = 0; i < count; i++)
        names[i] = flags[i].name;
    int typed = (int)strcspn(text->whole, "=");
    const char *ours = of_another_tool(text->whole, (size_t)typed), *near = NULL;
    bool flag = ours && strncmp(ours, "--", 2) == 0;
    if (ours && !flag && command && strcmp(command->name, "load") == 0)
        return sl_fail(err, SL_E_USAGE, "unknown flag '%.*s': %s", typed, text->whole, ours);
    if (flag && has_flag(names, count, ours + 2))
        near = ours + 2;
    if (!near)
        near = sl_nearest(text->name, names, count);
    for (size_t i = 0, bytes = strlen(text->name); !near && bytes && i < count; i++)
        if (strncmp(names[i], text->name, bytes) == 0 && names[i][bytes] == '-')
            near = names[i];
    if (near)
        return sl_fail(err, SL_E_USAGE, "unknown flag '%.*s', did you mean '--%s'?",
                       SL_MIN(typed, 100), text->whole, near);
    return sl_fail(err, SL_E_USAGE, "unknown flag '%.*s': see `sluice %s%s--help`",
                   SL_MIN(typed, 100), text->whole, command ? command->name : "",
                   command ? " " : "");
}

/* The flag that was typed: "--no-x" is the flag x of type BOOL unless there is a flag of that very
 * name. */
static const struct sl_flag *resolve(const struct sl_flag *flags, size_t count,
                                     struct flag_text *text)
{
    const struct sl_flag *flag = find_flag(flags, count, text->name);
    if (flag || strncmp(text->name, "no-", 3) != 0)
        return flag;
    flag = find_flag(flags, count, text->name + 3);
    text->negated = flag && flag->row->type == SL_OPTION_BOOL;
    return text->negated ? flag : NULL;
}

/* What this flag has set already; NULL: nothing, or it takes one value. */
static struct sl_spec_setting *find_list(const struct sl_command_line *line,
                                         const struct sl_flag *flag)
{
    for (size_t i = 0; flag->row->type == SL_OPTION_LIST && i < line->cli.setting_count; i++) {
        const struct sl_spec_setting *setting = &line->cli.settings[i];
        if (strncmp(setting->origin, "--", 2) == 0 && strcmp(setting->origin + 2, flag->name) == 0)
            return &line->cli.settings[i];
    }
    return NULL;
}

static int add_to_list(struct sl_command_line *line, struct sl_spec_setting *list,
                       const char *value, struct sl_err *err)
{
    if (*list->value == '[' || *value == '[')
        return sl_fail(err, SL_E_USAGE, "%s: a list in brackets is given once, and whole",
                       list->origin);
    list->value = keep(line, sl_asprintf(err, "%s,%s", list->value, value), err);
    return list->value ? 0 : -1;
}

static int set_flag(struct sl_command_line *line, const struct sl_flag *flag, const char *value,
                    struct sl_err *err)
{
    if (flag->group == SL_FLAG_SPEC && flag->row == &set_row)
        return add_set(line, value, err);
    struct sl_spec_setting *list = flag->group == SL_FLAG_SPEC ? find_list(line, flag) : NULL;
    if (list)
        return add_to_list(line, list, value, err);
    if (flag->group == SL_FLAG_SPEC)
        return add_setting(line, keep(line, sl_strdup(flag->path, err), err), value,
                           keep(line, sl_asprintf(err, "--%s", flag->name), err), err);
    void *values = flag->group == SL_FLAG_OWN ? line->cli.options : (void *)&line->globals;
    bool append = flag->row->type == SL_OPTION_LIST || flag->row->type == SL_OPTION_MAP;
    struct sl_err why = SL_ERR_INIT;
    /* What is empty counts as not given, which is another command where the value matters. */
    bool judged = !*value && flag->group == SL_FLAG_OWN && flag->row->check;
    if (!(judged && flag->row->check(value, &why) < 0) &&
        sl_option_set(flag->row, values, value, append, &why) == 0)
        return 0;
    const char *reason = strstr(why.message, ": ");
    if (why.kind == SL_E_USAGE)
        return sl_fail(err, SL_E_USAGE, "--%s: %s", flag->name, reason ? reason + 2 : why.message);
    if (err)
        *err = why;
    return -1;
}

/* -q and -v; false: it is neither. */
static bool take_short(struct sl_command_line *line, const char *argument)
{
    if (strcmp(argument, "-v") == 0) {
        line->globals.log_level = SL_LOG_DEBUG;
        return true;
    }
    if (strcmp(argument, "-q") != 0)
        return false;
    line->globals.log_level = SL_LOG_WARN;
    line->globals.progress = SL_PROGRESS_NONE;
    return true;
}

/* Returns how many further arguments were taken (0 or 1), -1 on failure. */
static int take_flag(struct sl_command_line *line, const char *argument, const char *next,
                     struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    struct flag_text text = {.whole = argument};
    if (take_short(line, argument))
        return 0;
    size_t count = sl_cli_flags(line->command, flags);
    const char *name = strcmp(argument, "-h") == 0 ? "help" : argument + 2;
    if (argument[1] != '-' && strcmp(argument, "-h") != 0)
        name = argument + 1;
    snprintf(text.name, sizeof(text.name), "%.*s", (int)strcspn(name, "="), name);
    const char *equals = strchr(name, '=');
    text.value = equals ? equals + 1 : NULL;
    bool dashed = argument[1] == '-' || strcmp(argument, "-h") == 0;
    const struct sl_flag *flag = dashed ? resolve(flags, count, &text) : NULL;
    if (!flag)
        return unknown_flag(line->command, &text, err);
    if (flag->row->type == SL_OPTION_BOOL) {
        if (text.negated && text.value)
            return sl_fail(err, SL_E_USAGE, "'--%s' takes no value", text.name);
        return set_flag(line, flag, text.negated ? "false" : text.value ? text.value : "true", err);
    }
    if (text.value)
        return set_flag(line, flag, text.value, err);
    if (!next)
        return sl_fail(err, SL_E_USAGE, "'--%s' needs a value: --%s %s", flag->name, flag->name,
                       sl_option_value_name(flag->row));
    return set_flag(line, flag, next, err) < 0 ? -1 : 1;
}

/* ---- the line ------------------------------------------------------------------------------- */

static int take_command(struct sl_command_line *line, const char *name, struct sl_err *err)
{
    const char *names[64];
    size_t count = 0;
    line->command = sl_command_find(name);
    for (const struct sl_command *const *command = sl_commands();
         *command && count < SL_COUNT(names); command++)
        names[count++] = (*command)->name;
    if (!line->command) {
        const char *near = of_another_tool(name, strlen(name));
        if (!near || *name == '-')
            near = sl_nearest(name, names, count);
        if (near)
            return sl_fail(err, SL_E_USAGE, "unknown command '%.80s', did you mean 'sluice %s'?",
                           name, near);
        return sl_fail(err, SL_E_USAGE, "unknown command '%.80s': see `sluice help`", name);
    }
    if (!line->command->options)
        return 0;
    line->cli.options = sl_alloc(line->command->options->struct_bytes, err);
    return line->cli.options ? sl_options_init(line->command->options, line->cli.options, err) : -1;
}

static bool becomes_command(const struct sl_command *command)
{
    return strstr(command->usage, "-- COMMAND") != NULL;
}

static int check_operands(const struct sl_command_line *line, struct sl_err *err)
{
    const struct sl_command *command = line->command;
    int count = line->cli.operand_count;
    if (line->globals.help)
        return 0;
    if (count < command->operand_min)
        return sl_fail(err, SL_E_USAGE, "'sluice %s' needs %s: %s", command->name,
                       command->operand_min == 1 ? "an operand" : "more operands", command->usage);
    if (command->operand_max >= 0 && count > command->operand_max)
        return sl_fail(err, SL_E_USAGE, "'%.100s' is one operand too many%s: %s",
                       line->cli.operands[command->operand_max],
                       becomes_command(command) ? ", unless '--' stands before a command" : "",
                       command->usage);
    return 0;
}

/* "--" begins the command to become, for commands whose usage names one; else it only ends the
 * flags. */
static int take_dashes(struct sl_command_line *line, char **rest, struct sl_err *err)
{
    if (!line->command)
        return sl_fail(err, SL_E_USAGE, "'--' before any command: see `sluice help`");
    if (becomes_command(line->command)) {
        if (!*rest)
            return sl_fail(err, SL_E_USAGE, "no command after '--': %s", line->command->usage);
        line->cli.after_dashes = rest;
        return 0;
    }
    while (*rest)
        line->cli.operands[line->cli.operand_count++] = *rest++;
    return 0;
}

/* A wrong flag is noted, and what comes behind it is read: all mistakes are said at once. 0: noted.
 */
static int note_mistake(struct sl_command_line *line, const struct sl_err *why, struct sl_err *err)
{
    if (why->kind == SL_E_USAGE && line->command &&
        sl_buf_printf(&line->mistakes, err, "%s\n", why->message) == 0) {
        if (!line->mistake_count++)
            line->first_mistake = *why;
        return 0;
    }
    if (err)
        *err = *why;
    return -1;
}

/* Beside a wrong flag the values of the others are judged here, else with the spec. */
static int note_wrong_values(struct sl_command_line *line, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    sl_autobuf wrong = SL_BUF_INIT(MISTAKES_BYTES_MAX);
    if (!line->mistake_count || !line->cli.setting_count ||
        sl_spec_check_settings(line->cli.settings, line->cli.setting_count, &wrong, &why) == 0)
        return 0;
    const char *text = sl_buf_string(&wrong);
    if (why.kind == SL_E_USAGE && sl_buf_text(&line->mistakes, text, &why) == 0) {
        for (; *text; text++)
            line->mistake_count += *text == '\n';
        return 0;
    }
    if (err)
        *err = why;
    return -1;
}

/* After the last argument. */
static int judge_line(struct sl_command_line *line, struct sl_err *err)
{
    if (note_wrong_values(line, err) < 0)
        return -1;
    line->cli.json = line->globals.json;
    line->cli.progress = line->globals.progress;
    line->cli.mistakes = &line->mistakes;
    if (line->mistake_count == 1 && err)
        *err = line->first_mistake;
    if (line->mistake_count > 1)
        return sl_fail(err, SL_E_USAGE,
                       "%u mistakes on the command line, nothing was done: see "
                       "`sluice %s --help`",
                       line->mistake_count, line->command->name);
    sl_buf_release(&line->mistakes); /* one alone is the error itself */
    line->mistakes = (struct sl_buf)SL_BUF_INIT(MISTAKES_BYTES_MAX);
    if (line->mistake_count)
        return -1;
    return line->command ? check_operands(line, err) : 0;
}

int sl_command_line_parse(struct sl_command_line *line, int argc, char **argv, struct sl_err *err)
{
    memset(line, 0, sizeof(*line));
    line->mistakes = (struct sl_buf)SL_BUF_INIT(MISTAKES_BYTES_MAX);
    line->cli.program = argc > 0 ? argv[0] : "sluice";
    line->cli.operands = sl_alloc_array((size_t)SL_MAX(argc, 0) + 1, sizeof(char *), err);
    if (!line->cli.operands || sl_options_init(&globals_table, &line->globals, err) < 0)
        return -1;
    for (int i = 1; i < argc; i++) {
        char *argument = argv[i];
        struct sl_err why = SL_ERR_INIT;
        int taken = 0;
        if (strcmp(argument, "--") == 0) {
            if (take_dashes(line, argv + i + 1, err) < 0)
                return -1;
            break;
        }
        if (argument[0] == '-' && argument[1])
            taken = take_flag(line, argument, i + 1 < argc ? argv[i + 1] : NULL, &why);
        else if (!line->command)
            taken = take_command(line, argument, &why);
        else
            line->cli.operands[line->cli.operand_count++] = argument;
        if (taken < 0 && note_mistake(line, &why, err) < 0)
            return -1;
        i += SL_MAX(taken, 0);
    }
    return judge_line(line, err);
}

void sl_command_line_release(struct sl_command_line *line)
{
    if (line->command && line->command->options && line->cli.options)
        sl_options_release(line->command->options, line->cli.options);
    free(line->cli.options);
    free(line->cli.operands);
    free(line->cli.settings);
    for (size_t i = 0; i < line->text_count; i++)
        free(line->texts[i]);
    free(line->texts);
    sl_buf_release(&line->mistakes);
    sl_options_release(&globals_table, &line->globals);
    memset(line, 0, sizeof(*line));
}
