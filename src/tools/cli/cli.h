/* Commands: a row of commands.def and a file cmd_NAME.c each. The main thread's; rows are
 * constants. */
#ifndef SL_CLI_H
#define SL_CLI_H

#include "err.h"
#include "option.h"
#include "spec.h"
#include "thread.h"

struct sl_json;

enum { SL_CLI_COMPLAINTS_MAX = 128 * 1024 }; /* bytes of the mistakes of a spec that are told */

/** What every command gets; all of it lives until its run() has returned. */
struct sl_cli {
    struct sl_cancel *cancel; /* raised by SIGTERM, SIGINT, SIGHUP */
    bool json;                /* --json */
    int progress;             /* enum sl_progress_mode */
    const char *program;      /* argv[0] */
    char **operands;          /* what is not a flag */
    int operand_count;
    char **after_dashes;              /* after "--", NULL-terminated; NULL if there is no "--" */
    struct sl_spec_setting *settings; /* flags that are spec keys, and --set */
    size_t setting_count;
    bool pooled; /* specs of a node's models will do, too: set by a command's run() */
    bool looks;  /* a URI is only looked at: an unreachable store is soon given up; set by run() */
    void *options;           /* the command's own struct, filled from its rows */
    struct sl_buf *mistakes; /* where all mistakes of a spec are noted for --json; NULL: nowhere */
    bool reported;           /* set by run(): what it printed with --json says what failed */
    int exit_code; /* set by a command whose run() succeeds, but whose status is another program's
                    */
};

struct sl_command {
    const char *name;
    const char *usage;                     /* "sluice load SPEC | URI --to DIR [-- COMMAND …]" */
    const char *summary;                   /* one line */
    const char *description;               /* paragraphs for the page and --help */
    const char *examples;                  /* lines "command   # what it does" */
    const struct sl_option_table *options; /* own flags: every row's flag is its kebab-case */
    bool spec_flags;                       /* takes the flags of spec keys and --set */
    const char *const *idle_flags;         /* of those, NULL-terminated, what would do nothing */
    const char *operand_words; /* what the first operand may be, for completion; NULL: a file */
    /* If `usage` has "-- COMMAND", what follows "--" is sl_cli.after_dashes, else it is operands.
     */
    int operand_min, operand_max; /* -1: any */
    int failure_exit; /* the exit code of every failure but a signal; 0: as err.def says */
    /** Blocks until it is done. 0, or -1 with the error that the process ends with. */
    int (*run)(struct sl_cli *cli, struct sl_err *err);
};
#define SL_COMMAND(name) extern const struct sl_command sl_cmd_##name;
#include "commands.def"
#undef SL_COMMAND

/** By its name; NULL: there is none. */
const struct sl_command *sl_command_find(const char *name);
/** All of them in the order of commands.def, NULL at the end. */
const struct sl_command *const *sl_commands(void);

/**
 * Read the models of a command's first operand, with the flags of the command line over them.
 *
 * @path    a spec file, or "-" for stdin.
 * @specs   out: release it in either case.
 * @return  0, or -1: SL_E_USAGE, SL_E_NOT_FOUND, SL_E_NO_SPACE. Several mistakes are logged one by
 *          one and err then counts them; one mistake is err itself.
 */
int sl_cli_read_specs(struct sl_cli *cli, const char *path, struct sl_specs *specs,
                      struct sl_err *err);
/** Read the text of a spec alone, as sl_cli_read_specs(). */
int sl_cli_spec_text(struct sl_cli *cli, const char *path, struct sl_buf *text, struct sl_err *err);
/**
 * As sl_cli_read_specs(), for a URI and a directory instead of a file.
 *
 * @to  the directory; NULL: none was given, which is a mistake, too.
 */
int sl_cli_uri_specs(struct sl_cli *cli, const char *uri, const char *to, struct sl_specs *specs,
                     struct sl_err *err);

/** Each line as an error of the log. */
void sl_cli_log_lines(const char *lines);
/**
 * Report mistakes. Of several each is logged and noted for --json, and err counts them: "2
 * mistakes `where`". Of one, err stays as it is.
 *
 * @complaints  a line for each; borrowed.
 * @where       for the count's message.
 * @return      -1, always.
 */
int sl_cli_report_mistakes(struct sl_cli *cli, struct sl_buf *complaints, const char *where,
                           struct sl_err *err);

/**
 * Leave the outcome, one line, where Kubernetes looks for it: $SLUICE_TERMINATION_LOG ("off": in no
 * place), else /dev/termination-log if it is there. What cannot be written is not a failure; the
 * last call counts. Errors are written by sl_cli_main(), and "ok: sluice NAME" where a command that
 * succeeds wrote nothing. termination.c cleans the text.
 */
void sl_cli_termination(const char *text);

/** A command's result, finished, as one line on stdout; json is borrowed. Lost output is found at
 * the end, by sl_cli_main(). -1: json's own error. */
int sl_cli_print_json(struct sl_json *json, struct sl_err *err);
/** Members of an object that is open: kind, code and message. It cannot fail: json keeps what did.
 */
void sl_cli_error_json(struct sl_json *json, const struct sl_err *err);

/** SIGTERM, SIGINT and SIGHUP raise it from now on. Once. */
void sl_cli_catch_signals(struct sl_cancel *cancel);
/** Signals as they were before sl_cli_main(), for a process that is about to become another
 * program. */
void sl_cli_restore_signals(void);

/**
 * For what runs long and holds keys, or slabs that can still be written: other processes of this
 * user are not to look into its memory and descriptors (/proc/PID/mem, /proc/PID/fd, pidfd_getfd,
 * ptrace). It takes CAP_SYS_PTRACE then, and there is no core dump.
 */
void sl_cli_shut_others_out(void);

/** Parse, run, report; the process's exit code. */
int sl_cli_main(int argc, char **argv);

#endif
