/* Another program, started from an argument vector: no shell, nothing of ours inherited but what is
 * given. Any thread. */
#ifndef SL_SPAWN_H
#define SL_SPAWN_H

#include <sys/types.h>

/**
 * Start a program in a process group of its own, so that kill(-*pid) ends all of it, with default
 * signals.
 *
 * @file    a path, or with no '/' in it a name that PATH is searched for.
 * @argv    argv[0] included, ended by NULL.
 * @fds     its stdin, stdout and stderr, borrowed; -1: nothing.
 * @pid     out: of the child, which the caller waits for.
 * @return  0, or the errno.
 */
int sl_spawn(const char *file, char *const *argv, const int fds[3], pid_t *pid);

#endif
