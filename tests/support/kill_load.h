/* Loads that are killed where a test wants it: while a request of theirs is on its way. */
#ifndef SL_KILL_LOAD_H
#define SL_KILL_LOAD_H

#include "range_server.h"

/**
 * Run $SLUICE with these arguments (NULL at the end), and kill it when its nth request (from 1) has
 * come to the server, which does not answer that one. Fails the test if the program ends before.
 * The server's script is empty afterwards.
 */
void sl_kill_load(struct sl_server *server, const char *const *arguments, unsigned nth);

#endif
