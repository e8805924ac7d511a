/* What a handshake of libcurl's OpenSSL begins with. */
#ifndef SL_TLS_CONTEXT_H
#define SL_TLS_CONTEXT_H

#include <openssl/ssl.h>

/** Before the handshake, where sl_libcurl.ssl.ctx_ctrl is there. One thread a context. */
void sl_tls_context_prepare(SSL_CTX *context);

#endif
