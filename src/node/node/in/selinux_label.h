/* The SELinux label (context) of what containers are to reach. Any thread. */
#ifndef SL_SELINUX_LABEL_H
#define SL_SELINUX_LABEL_H

#include <stdbool.h>

#include "node_spec.h"

/** What pods may read, whatever their categories, in every policy with container types. */
#define SL_SELINUX_AUTO "system_u:object_r:container_file_t:s0"

/** The label that the config wants; NULL: none, or SELinux is off here. It lives with the spec. */
const char *sl_selinux_label(const struct sl_node_spec *spec);
/** Does the config name it? Then it must be given; what was chosen may be refused. */
bool sl_selinux_is_asked(const struct sl_node_spec *spec);
/**
 * Warn if what an open descriptor stands for has another label.
 *
 * @fd      any; O_PATH is fine.
 * @path    what it is called, for the message.
 * @label   the one expected; NULL: none, and nothing is done.
 * @advice  what to do, the end of the sentence.
 */
void sl_selinux_check(int fd, const char *path, const char *label, const char *advice);
/**
 * Give a socket a label; a refusal is a warning.
 *
 * @folder_fd, name  the socket's folder, and its name there.
 * @path             what it is called, for the message.
 * @label            NULL: it keeps the one that it has.
 */
void sl_selinux_give(int folder_fd, const char *name, const char *path, const char *label);

#endif
