/* Keys that a program prints. */
#ifndef SL_CREDS_PROGRAM_H
#define SL_CREDS_PROGRAM_H

#include "creds.h"

/**
 * Run a program, and take the keys that it prints.
 *
 * @profile  that names it as its credential_process, for messages.
 * @line     the command line, with quotes; no shell reads it.
 * @cancel   ends the wait; NULL: nothing does.
 * @key      zeroed before; out.
 * @return   0, or -1: SL_E_AUTH, with what it did and never what it said; SL_E_CANCELED,
 *           SL_E_NO_SPACE.
 *
 * Blocks for a minute at most; any thread.
 */
int sl_creds_from_program(const char *profile, const char *line, struct sl_cancel *cancel,
                          struct sl_key *key, struct sl_err *err);

#endif
