/* What another program knows, asked over its stdin and stdout: keepers of logins and keys. */
#ifndef SL_ASK_PROGRAM_H
#define SL_ASK_PROGRAM_H

#include "buf.h"
#include "thread.h"

/** How it went. */
enum sl_asked {
    SL_ASKED_ANSWERED, /* it ended well; what it said is in the output */
    SL_ASKED_REFUSED,  /* it ended with another status than 0 */
    SL_ASKED_FAILED,   /* *why says it, as in "… takes too long" */
};

enum { SL_PROGRAM_OUTPUT_BYTES_MAX = 64 * 1024 };

/**
 * The path of a program: name itself where it is absolute, else the first of that name in PATH,
 * whose directories that depend on where the caller was started do not count. free() it; NULL:
 * there is none, or no memory.
 */
char *sl_program_find(const char *name);

/**
 * Run a program without a shell, for a minute at most, and take what it says.
 *
 * @path    of the program; PATH is not searched.
 * @argv    argv[0] included, ended by NULL.
 * @input   all of its stdin; its stderr is dropped.
 * @cancel  ends the wait; NULL: nothing does.
 * @output  out: appended to. What comes is a stranger's and often secret: use one that is wiped,
 *          and that takes SL_PROGRAM_OUTPUT_BYTES_MAX.
 * @why     out: a constant; only with SL_ASKED_FAILED.
 * @return  one of enum sl_asked, or -1 with SL_E_CANCELED.
 *
 * The program and what it started have ended when this returns. Blocks; any thread.
 */
int sl_program_ask(const char *path, char *const *argv, const char *input, struct sl_cancel *cancel,
                   struct sl_buf *output, const char **why, struct sl_err *err);

#endif
