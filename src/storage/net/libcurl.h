/*
 * libcurl makes connections through TLS and proxies. It is opened when the first one is wanted
 * (shared_library.h), so its functions are called through a table.
 */
#ifndef SL_LIBCURL_H
#define SL_LIBCURL_H

#include <curl/curl.h>
#include <openssl/ssl.h>

#include "err.h"

struct sl_libcurl {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SL_LIBCURL(name) __typeof__(curl_##name) *name;
#include "libcurl.def"
#undef SL_LIBCURL
#pragma GCC diagnostic pop
    /** Of the OpenSSL that it uses, as SSL_NAME there; ctx_ctrl is NULL where its TLS is another
     * library's, and then none of them may be called. */
    struct {
        __typeof__(SSL_CTX_ctrl) *ctx_ctrl;
        __typeof__(SSL_CTX_set1_cert_store) *ctx_set1_cert_store;
        __typeof__(SSL_CTX_get_ciphers) *ctx_get_ciphers;
        __typeof__(SSL_CTX_set_ciphersuites) *ctx_set_ciphersuites;
        __typeof__(SSL_CIPHER_get_name) *cipher_get_name;
    } ssl;
};
/** For whom sl_libcurl_open() was good. */
extern struct sl_libcurl sl_libcurl;

/** Open and initialise it (curl_global_init()), once per process; any thread. SL_E_USAGE: it is not
 * installed; SL_E_INTERNAL: it cannot be initialised. */
int sl_libcurl_open(struct sl_err *err);

#endif
