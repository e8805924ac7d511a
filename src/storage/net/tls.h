/* How servers prove who they are. */
#ifndef SL_TLS_H
#define SL_TLS_H

#include <stdbool.h>

#include "option.h"

/** `source.tls`; rows in link_connect.c. */
struct sl_tls_options {
    char *ca_file;
    bool verify;
    int kernel; /* enum sl_tls_kernel */
};
extern const struct sl_option_table sl_tls_table;

#endif
