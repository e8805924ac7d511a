/* Names that are ours, whoever gives them to a file: no model has one of them. */
#ifndef SL_OWN_NAMES_H
#define SL_OWN_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Is it a name of sluice's own files? name: `bytes` bytes, a path relative to the folder of a
 * model, or one component of it. Ours is what lies below a .sluice, and what the rows of
 * own_names.def say of files beside others, in any folder: another model may be put into it. Any
 * thread; cannot fail.
 */
bool sl_own_name(const char *name, size_t bytes);
/**
 * Does a node keep this for itself, below its directory? name: `bytes` bytes, one component.
 * closed: only its owner can read it; a model may have a model.yaml, too. Any thread; cannot fail.
 */
bool sl_own_name_of_node(const char *name, size_t bytes, bool closed);

#endif
