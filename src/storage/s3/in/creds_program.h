/* Keys that a program prints. */
#ifndef SL_CREDS_PROGRAM_H
#define SL_CREDS_PROGRAM_H

#include "creds.h"

/**
 * Run the command line, which the profile names as its credential_process. SL_E_AUTH, with what it
 * did and never what it said; SL_E_CANCELED. Blocks for a minute at most; any thread.
 */
int sl_creds_from_program(const char *profile, const char *line, struct sl_cancel *cancel,
                          struct sl_key *key, struct sl_err *err);

#endif
