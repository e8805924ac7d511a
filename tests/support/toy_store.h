/* A store that is not the program's: the proof that one needs a row and a file. */
#ifndef SL_TOY_STORE_H
#define SL_TOY_STORE_H

#include "store_kind.h"

/** `source.toy`. */
struct sl_toy_options {
    char *token_file;
    uint64_t revision;
};
extern const struct sl_option_table sl_toy_table;
/**
 * toy://HOST:PORT/FOLDER/NAME is an object of a web server, asked for as /REVISION/FOLDER/NAME;
 * GET of /REVISION/FOLDER/ answers lines "BYTES ETAG SHA256 NAME"; the revision
 * is the pin. Register it before a spec is read.
 */
extern const struct sl_store_kind sl_toy_store;

#endif
