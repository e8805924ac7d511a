/* The outcome in one line, for Kubernetes to show as the container's message. */
#ifndef SL_TERMINATION_H
#define SL_TERMINATION_H

/* What Kubernetes keeps of one container. */
enum { SL_TERMINATION_BYTES = 4096 };

/**
 * One line of at most SL_TERMINATION_BYTES with its newline: control bytes become spaces, bytes
 * that are no UTF-8 question marks, and URLs lose what may be secret, users, passwords and queries.
 * Returns line.
 */
const char *sl_termination_line(const char *text, char line[SL_TERMINATION_BYTES + 1]);

/** At the end of a run that nobody has written a line for: sl_cli_termination(text), else nothing.
 */
void sl_termination_default(const char *text);

#endif
