/* Another user of the machine, who means harm. Takes root; tests without it say that they were
 * skipped. */
#ifndef SL_STRANGER_H
#define SL_STRANGER_H

#include <stdbool.h>

enum { STRANGER_UID = 61234, STRANGER_GID = 61235 };

/** Is this root, who can be somebody else for a while? If not, it is said on stdout that `test` is
 * skipped. */
bool stranger_exists(const char *test);
/** In a child process with the stranger's user and groups: what() returns its exit code. -1 if it
 * died. */
int stranger_runs(int (*what)(void *arg), void *arg);
/** The same, going on until stranger_ends(). Its pid. */
int stranger_begins(int (*what)(void *arg), void *arg);
void stranger_ends(int pid);

#endif
