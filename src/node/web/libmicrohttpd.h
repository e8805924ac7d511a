/*
 * libmicrohttpd serves health, metrics and files. It is opened when the first server is wanted
 * (shared_library.h), so its functions are called through a table.
 */
#ifndef SL_LIBMICROHTTPD_H
#define SL_LIBMICROHTTPD_H

#include <microhttpd.h>

#include "err.h"

struct sl_libmicrohttpd {
#define SL_LIBMICROHTTPD(name) __typeof__(MHD_##name) *name;
#include "libmicrohttpd.def"
#undef SL_LIBMICROHTTPD
};
/** For whom sl_libmicrohttpd_open() was good. */
extern struct sl_libmicrohttpd sl_libmicrohttpd;

/** Open it, once per process; any thread. SL_E_USAGE: it is not installed. */
int sl_libmicrohttpd_open(struct sl_err *err);

#endif
