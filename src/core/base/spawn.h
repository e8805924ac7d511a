/* Another program, started from an argument vector: no shell, nothing of ours inherited but what is
 * given. Any thread. */
#ifndef SL_SPAWN_H
#define SL_SPAWN_H

#include <sys/types.h>

/**
 * Start it in a process group of its own, so that all of it can be ended by kill(-*pid), with
 * default signals. file: a path, or with no '/' in it a name that PATH is searched for. fds: its
 * stdin, stdout and stderr, borrowed; -1: nothing. 0, or the errno.
 */
int sl_spawn(const char *file, char *const *argv, const int fds[3], pid_t *pid);

#endif
