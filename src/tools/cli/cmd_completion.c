/*
 * sluice completion: the commands, their flags and the values of choices for bash, zsh and fish,
 * from the rows. The scripts hold data only, so completing never runs sluice.
 */
#include <stdio.h>
#include <string.h>

#include "cli_flags.h"

/* Help as the text of a single-quoted shell word: the first clause, without characters that mean
 * something. */
static void short_help(const struct sl_option *row, char text[80])
{
    size_t used = 0;
    for (const char *p = row->help; *p && *p != ';' && used < 78; p++) {
        bool ascii = (unsigned char)*p < 0x80, special = strchr("'[]\\`\"$", *p) != NULL;
        if (*p == ':' && p[1] == ' ')
            text[used++] = ' ', text[used++] = '-';
        else if (ascii && !special)
            text[used++] = *p == ':' ? ' ' : *p;
    }
    text[used] = 0;
    char *space = strrchr(text, ' ');
    if (used >= 78 && space) /* not in the middle of a word */
        used = (size_t)(space - text);
    while (used && text[used - 1] == ' ')
        used--;
    text[used] = 0;
}

static int choices_of(const struct sl_option *row, const char *separator, struct sl_buf *out,
                      struct sl_err *err)
{
    char name[64];
    for (int i = 0; row->type == SL_OPTION_CHOICE && sl_choice_name(row->choices, i, name); i++)
        if (sl_buf_printf(out, err, "%s%s", i ? separator : "", name) < 0)
            return -1;
    return 0;
}

/* ---- bash ----------------------------------------------------------------------------------- */

static int bash_command(const struct sl_command *command, struct sl_buf *out, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    size_t count = sl_cli_flags(command, flags);
    if (sl_buf_printf(out, err, "    %s) flags='", command->name) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (sl_buf_printf(out, err, "%s--%s", i ? " " : "", flags[i].name) < 0)
            return -1;
    return sl_buf_text(out, "' ;;\n", err);
}

/* What the first operand may be, where that is not a file. */
static int bash_operands(struct sl_buf *out, struct sl_err *err)
{
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if ((*command)->operand_words &&
            sl_buf_printf(out, err, "    %s) words='%s' ;;\n", (*command)->name,
                          (*command)->operand_words) < 0)
            return -1;
    return 0;
}

static int bash_values(struct sl_buf *out, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        size_t count = sl_cli_flags(*command, flags);
        for (size_t i = 0; i < count; i++) {
            if (flags[i].row->type != SL_OPTION_CHOICE)
                continue;
            if (sl_buf_printf(out, err, "    %s:--%s) COMPREPLY=($(compgen -W '", (*command)->name,
                              flags[i].name) < 0 ||
                choices_of(flags[i].row, " ", out, err) < 0 ||
                sl_buf_text(out, "' -- \"$word\")); return ;;\n", err) < 0)
                return -1;
        }
    }
    return 0;
}

static int write_bash(struct sl_buf *out, struct sl_err *err)
{
    if (sl_buf_text(
            out,
            "# bash completion for sluice: source it, or put it into /etc/bash_completion.d\n"
            "_sluice() {\n"
            "    local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\" "
            "command= flags= words= i\n"
            "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
            "        [[ ${COMP_WORDS[i]} != -* ]] && { command=\"${COMP_WORDS[i]}\"; break; }\n"
            "    done\n"
            "    case \"$command:$before\" in\n",
            err) < 0 ||
        bash_values(out, err) < 0 ||
        sl_buf_text(out, "    esac\n    case \"$command\" in\n    '') flags='", err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (sl_buf_printf(out, err, "%s ", (*command)->name) < 0)
            return -1;
    if (sl_buf_text(out, "--help --version' ;;\n", err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++)
        if (bash_command(*command, out, err) < 0)
            return -1;
    if (sl_buf_text(out, "    esac\n    case \"$before\" in\n", err) < 0 ||
        bash_operands(out, err) < 0)
        return -1;
    return sl_buf_text(out,
                       "    esac\n"
                       "    if [[ -z $command || $word == -* ]]; then\n"
                       "        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
                       "    elif [[ $words && $before == \"$command\" ]]; then\n"
                       "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                       "    else\n"
                       "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
                       "    fi\n"
                       "}\n"
                       "complete -o filenames -F _sluice sluice\n",
                       err);
}

/* ---- zsh ------------------------------------------------------------------------------------ */

static int zsh_flag(const struct sl_flag *flag, struct sl_buf *out, struct sl_err *err)
{
    char help[80];
    short_help(flag->row, help);
    bool valued = flag->row->type != SL_OPTION_BOOL;
    bool repeated = flag->row->type == SL_OPTION_LIST || flag->row->type == SL_OPTION_MAP;
    if (sl_buf_printf(out, err, "            '%s--%s%s[%s]", repeated ? "*" : "", flag->name,
                      valued ? "=" : "", help) < 0)
        return -1;
    if (flag->row->type == SL_OPTION_CHOICE) {
        if (sl_buf_text(out, ":value:(", err) < 0 || choices_of(flag->row, " ", out, err) < 0 ||
            sl_buf_text(out, ")", err) < 0)
            return -1;
    } else if (valued && sl_buf_text(out, ":value:_files", err) < 0) {
        return -1;
    }
    return sl_buf_text(out, "' \\\n", err);
}

static int write_zsh(struct sl_buf *out, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    if (sl_buf_text(out,
                    "#compdef sluice\n"
                    "# zsh completion for sluice: put it into a directory of $fpath as _sluice\n"
                    "_sluice() {\n"
                    "    local -a commands\n"
                    "    commands=(\n",
                    err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        char help[80];
        struct sl_option row = {.help = (*command)->summary};
        short_help(&row, help);
        if (sl_buf_printf(out, err, "        '%s:%s'\n", (*command)->name, help) < 0)
            return -1;
    }
    if (sl_buf_text(out,
                    "    )\n"
                    "    if (( CURRENT == 2 )); then\n"
                    "        _describe command commands\n"
                    "        return\n"
                    "    fi\n"
                    "    case $words[2] in\n",
                    err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        size_t count = sl_cli_flags(*command, flags);
        if (sl_buf_printf(out, err, "    %s)\n        _arguments \\\n", (*command)->name) < 0)
            return -1;
        for (size_t i = 0; i < count; i++)
            if (zsh_flag(&flags[i], out, err) < 0)
                return -1;
        const char *words = (*command)->operand_words;
        if ((words && sl_buf_printf(out, err, "            '1:what:(%s)' \\\n", words) < 0) ||
            sl_buf_text(out, "            '*:file:_files' ;;\n", err) < 0)
            return -1;
    }
    return sl_buf_text(out,
                       "    esac\n"
                       "}\n"
                       "if [ \"$funcstack[1]\" = _sluice ]; then _sluice \"$@\"; else compdef "
                       "_sluice sluice; fi\n",
                       err);
}

/* ---- fish ----------------------------------------------------------------------------------- */

static int write_fish(struct sl_buf *out, struct sl_err *err)
{
    struct sl_flag flags[SL_FLAGS_MAX];
    char help[80];
    if (sl_buf_text(out, "# fish completion for sluice: put it into ~/.config/fish/completions\n",
                    err) < 0)
        return -1;
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        struct sl_option row = {.help = (*command)->summary};
        size_t count = sl_cli_flags(*command, flags);
        short_help(&row, help);
        if (sl_buf_printf(out, err, "complete -c sluice -n __fish_use_subcommand -a %s -d '%s'\n",
                          (*command)->name, help) < 0)
            return -1;
        if ((*command)->operand_words &&
            sl_buf_printf(out, err,
                          "complete -c sluice -n '__fish_seen_subcommand_from %s' -f -a '%s'\n",
                          (*command)->name, (*command)->operand_words) < 0)
            return -1;
        for (size_t i = 0; i < count; i++) {
            bool choice = flags[i].row->type == SL_OPTION_CHOICE;
            short_help(flags[i].row, help);
            if (sl_buf_printf(
                    out, err,
                    "complete -c sluice -n '__fish_seen_subcommand_from %s' -l %s%s -d '%s'",
                    (*command)->name, flags[i].name,
                    choice                                 ? " -x"
                    : flags[i].row->type == SL_OPTION_BOOL ? ""
                                                           : " -r",
                    help) < 0 ||
                (choice &&
                 (sl_buf_text(out, " -a '", err) < 0 ||
                  choices_of(flags[i].row, " ", out, err) < 0 || sl_buf_text(out, "'", err) < 0)) ||
                sl_buf_text(out, "\n", err) < 0)
                return -1;
        }
    }
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static int (*const writers[])(struct sl_buf *, struct sl_err *) = {write_bash, write_zsh,
                                                                       write_fish};
    const char *shell = cli->operands[0];
    for (size_t i = 0; i < SL_COUNT(shells); i++) {
        if (strcmp(shell, shells[i]) != 0)
            continue;
        sl_autobuf text = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
        if (writers[i](&text, err) < 0)
            return -1;
        fwrite(sl_buf_string(&text), 1, text.used, stdout);
        return 0;
    }
    const char *near = sl_nearest(shell, shells, SL_COUNT(shells));
    return sl_fail(err, SL_E_USAGE,
                   near ? "no completion for '%.80s', did you mean '%s'?"
                        : "no completion for '%.80s': there is bash, zsh and fish",
                   shell, near);
}

const struct sl_command sl_cmd_completion = {
    .name = "completion",
    .usage = "sluice completion bash|zsh|fish",
    .summary = "print the completion script for a shell",
    .description = "The script knows every command, flag and choice of this version, and runs "
                   "nothing while completing.",
    .operand_words = "bash zsh fish",
    .examples = "source <(sluice completion bash)                                 # this bash\n"
                "sluice completion fish > ~/.config/fish/completions/sluice.fish  # every fish",
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
