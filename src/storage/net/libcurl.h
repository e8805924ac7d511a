/*
 * libcurl makes connections through TLS and proxies. It is opened when the first one is wanted
 * (shared_library.h), so its functions are called through a table.
 */
#ifndef SL_LIBCURL_H
#define SL_LIBCURL_H

#include <curl/curl.h>

#include "err.h"

struct sl_libcurl {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SL_LIBCURL(name) __typeof__(curl_##name) *name;
#include "libcurl.def"
#undef SL_LIBCURL
#pragma GCC diagnostic pop
    /** SSL_CTX_ctrl() of the OpenSSL that it uses; NULL: its TLS is another library's. */
    long (*ssl_ctx_ctrl)(void *context, int what, long number, void *pointer);
};
/** For whom sl_libcurl_open() was good. */
extern struct sl_libcurl sl_libcurl;

/** Open and initialise it (curl_global_init()), once per process; any thread. SL_E_USAGE: it is not
 * installed; SL_E_INTERNAL: it cannot be initialised. */
int sl_libcurl_open(struct sl_err *err);

#endif
