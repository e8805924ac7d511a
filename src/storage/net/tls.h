/* How servers prove who they are. */
#ifndef SL_TLS_H
#define SL_TLS_H

#include <stdbool.h>

#include "option.h"

/** `source.tls`; rows in link.c. Whoever made it from the table releases it by that. */
struct sl_tls_options {
    char *ca_file; /* "" or NULL: as sl_ca_use() finds them */
    bool verify;
    const char *ca_from; /* no option: who named ca_file, for messages; NULL: source.tls.caFile */
};
extern const struct sl_option_table sl_tls_table;

#endif
