/*
 * What loads of this process found out about a host, for the next one: a load begins where the last
 * one ended. A few dozen hosts are kept, the last that were used. Any thread; none blocks but for a
 * lock.
 */
#ifndef SL_HOST_MEMORY_H
#define SL_HOST_MEMORY_H

#include <stdbool.h>

enum { SL_HOST_KEY_BYTES = 160 };
/** "scheme://host:port" of a store's URI, or as much of it as is kept. */
void sl_host_memory_key(const char *uri, char key[SL_HOST_KEY_BYTES]);

struct sl_host_needs {
    double bytes_per_s;   /* of all connections of one load; 0: not known */
    unsigned connections; /* that helped; 0: not known */
};
/** uri: of a store; what comes behind its host does not count. false: nothing is known. */
bool sl_host_memory_recall(const char *uri, struct sl_host_needs *needs);
/** Note a host's needs; a member that is 0 (not known) keeps its value. */
void sl_host_memory_note(const char *uri, const struct sl_host_needs *needs);

#endif
