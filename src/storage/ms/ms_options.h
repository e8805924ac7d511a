/* The kind of store that hubs of ModelScope are, and its section of the spec. The values are their
 * spec's; the row is a constant, for any thread. */
#ifndef SL_MS_OPTIONS_H
#define SL_MS_OPTIONS_H

#include "option.h"

/** `source.ms`; rows in ms.c. */
struct sl_ms_options {
    char *endpoint, *token_file;
};
extern const struct sl_option_table sl_ms_table;
extern const struct sl_store_kind sl_ms_store;

#endif
