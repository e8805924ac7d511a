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
 * Run the program at path, without a shell, for a minute at most, with `input` as its stdin. What
 * it says is a stranger's and often secret: use an output that is wiped, and that takes
 * SL_PROGRAM_OUTPUT_BYTES_MAX.
 * Its stderr is dropped. It and what it started have ended when this returns. One of enum sl_asked,
 * with *why; -1: SL_E_CANCELED. Blocks; any thread.
 */
int sl_program_ask(const char *path, char *const *argv, const char *input, struct sl_cancel *cancel,
                   struct sl_buf *output, const char **why, struct sl_err *err);

#endif
