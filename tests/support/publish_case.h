/* What a test of publishing pretends. For test_publish, which has the link options. One thread. */
#ifndef SL_PUBLISH_CASE_H
#define SL_PUBLISH_CASE_H

#include <stdbool.h>

/** Another boot of the machine (NULL: the real one, "": one that cannot be told; borrowed), and
 * that every folder is on a disk. */
void publish_pretend_boot(const char *id, bool disk);
/** Called from now on before each change that a commit makes, the first of which is manifest.new:
 * what ("write", "rename", "remove", "unlink") is done to which name in its folder. */
void publish_before_steps(void (*called)(const char *what, const char *name));

#endif
