/* The kind of store that hubs of Hugging Face are, and its section of the spec. The values are
 * their spec's; the row is a constant, for any thread. */
#ifndef SL_HF_OPTIONS_H
#define SL_HF_OPTIONS_H

#include "option.h"

/** `source.hf`; rows in hf.c. */
struct sl_hf_options {
    char *endpoint, *token_file;
    int xet; /* enum sl_xet_mode */
};
extern const struct sl_option_table sl_hf_table;
extern const struct sl_store_kind sl_hf_store;

#endif
