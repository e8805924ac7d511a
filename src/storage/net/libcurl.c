/* Never closed: its handles and caches live as long as the process. */
#include "libcurl.h"

#include <string.h>

#include "fork_guard.h"
#include "mem.h"
#include "shared_library.h"
#include "thread.h"

#define SERVES "HTTPS, proxies and control sockets"
SL_SHARED_LIBRARY_NOTE(SLUICE_CURL_SONAME, SERVES)

struct sl_libcurl sl_libcurl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
SL_FORK_GUARD(&lock, NULL)
static bool opened; /* guarded by the lock; what fails is tried again by the next call */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static const struct sl_shared_function functions[] = {
#define SL_LIBCURL(name) SL_SHARED_FUNCTION(curl_##name, &sl_libcurl.name, .optional = false),
#include "libcurl.def"
#undef SL_LIBCURL
    SL_SHARED_FUNCTION(SSL_CTX_ctrl, &sl_libcurl.ssl.ctx_ctrl, .optional = true),
    SL_SHARED_FUNCTION(SSL_CTX_set1_cert_store, &sl_libcurl.ssl.ctx_set1_cert_store,
                       .optional = true),
    SL_SHARED_FUNCTION(SSL_CTX_get_ciphers, &sl_libcurl.ssl.ctx_get_ciphers, .optional = true),
    SL_SHARED_FUNCTION(SSL_CTX_set_ciphersuites, &sl_libcurl.ssl.ctx_set_ciphersuites,
                       .optional = true),
    SL_SHARED_FUNCTION(SSL_CIPHER_get_name, &sl_libcurl.ssl.cipher_get_name, .optional = true),
};
#pragma GCC diagnostic pop

static int open_library(struct sl_err *err)
{
    if (sl_shared_library_open(SLUICE_CURL_SONAME, SERVES, functions, SL_COUNT(functions), err) < 0)
        return -1;
    if (sl_libcurl.global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        return sl_fail(err, SL_E_INTERNAL, "libcurl cannot be initialised");
    const char *tls = sl_libcurl.version_info(CURLVERSION_NOW)->ssl_version;
    bool openssl = tls && strncmp(tls, "OpenSSL/", 8) == 0 && sl_libcurl.ssl.ctx_set1_cert_store &&
                   sl_libcurl.ssl.ctx_get_ciphers && sl_libcurl.ssl.ctx_set_ciphersuites &&
                   sl_libcurl.ssl.cipher_get_name;
    if (!openssl)
        sl_libcurl.ssl.ctx_ctrl = NULL;
    return 0;
}

int sl_libcurl_open(struct sl_err *err)
{
    SL_LOCKED(&lock);
    if (!opened)
        opened = open_library(err) == 0;
    return opened ? 0 : -1;
}
