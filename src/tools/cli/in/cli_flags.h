/* Flags: their list, for help and pages, and a command line taken apart; for the files of this
 * folder. */
#ifndef SL_CLI_FLAGS_H
#define SL_CLI_FLAGS_H

#include "cli.h"

enum sl_log_format { SL_LOG_FORMAT_AUTO, SL_LOG_FORMAT_TEXT, SL_LOG_FORMAT_JSON };

/** The flags of every command. */
struct sl_cli_globals {
    bool help, json;
    int log_format, log_level, progress;
};

enum sl_flag_group { SL_FLAG_OWN, SL_FLAG_SPEC, SL_FLAG_GLOBAL };
/** One flag of a command. */
struct sl_flag {
    enum sl_flag_group group;
    char name[64]; /* without dashes */
    const struct sl_option *row;
    char path[128]; /* SPEC: the key, "readers.connections"; "" for --set */
};
enum { SL_FLAGS_MAX = 96 };
/** The flags of a command (NULL: those of every command) in the order of help; how many. */
size_t sl_cli_flags(const struct sl_command *command, struct sl_flag flags[SL_FLAGS_MAX]);
/** As sl_cli_flags, those of one group. */
size_t sl_cli_group_flags(const struct sl_command *command, enum sl_flag_group group,
                          struct sl_flag flags[SL_FLAGS_MAX]);

/** A command line, taken apart. */
struct sl_command_line {
    const struct sl_command *command; /* NULL: none was named */
    struct sl_cli_globals globals;
    struct sl_cli cli;
    size_t setting_capacity;
    struct sl_buf mistakes; /* lines, if there are several: of flags, or of a spec */
    unsigned mistake_count;
    struct sl_err first_mistake;
    char **texts; /* copies that the settings point to */
    size_t text_count, text_capacity;
};
/**
 * argv is borrowed. On SL_E_USAGE what was understood before the mistake is filled in all the same
 * (--json, --log-format). Release it in either case.
 */
int sl_command_line_parse(struct sl_command_line *line, int argc, char **argv, struct sl_err *err);
void sl_command_line_release(struct sl_command_line *line);

/* ---- pages; cli_help.c, cli_docs.c, cli_man.c ------------------------------------------------ */

/** What `sluice --help` prints; and `sluice COMMAND --help`, or, with all flags, `sluice help
 * COMMAND`. */
int sl_cli_write_help(struct sl_buf *out, struct sl_err *err);
int sl_cli_write_command_help(const struct sl_command *command, bool all, struct sl_buf *out,
                              struct sl_err *err);
/** roff of sluice.1 (command NULL) or sluice-COMMAND.1. */
int sl_cli_write_man(const struct sl_command *command, struct sl_buf *out, struct sl_err *err);
/** Markdown of one command. */
int sl_cli_write_command_page(const struct sl_command *command, struct sl_buf *out,
                              struct sl_err *err);
/** One page by topic, "errors"; SL_E_USAGE with a suggestion. */
int sl_cli_write_topic(const char *topic, struct sl_buf *out, struct sl_err *err);
/** All pages below a directory: reference/ and man/. */
int sl_cli_write_pages(const char *directory, struct sl_err *err);
/** "spec|schema|…". */
const char *sl_cli_topics(void);
/** What help says behind a flag: its text, its default and bounds. */
int sl_cli_describe_flag(const struct sl_flag *flag, struct sl_buf *out, struct sl_err *err);
/** "--connections NUMBER". */
const char *sl_cli_flag_usage(const struct sl_flag *flag, char text[160]);

enum { SL_PAGE_BYTES_MAX = 1024 * 1024 };

#endif
