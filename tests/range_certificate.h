/* The certificate of the range server. */
#ifndef SL_RANGE_CERTIFICATE_H
#define SL_RANGE_CERTIFICATE_H

#include <openssl/ssl.h>

/**
 * Make a key and a self-signed certificate for 127.0.0.1 and localhost, use them, and write the
 * certificate to the mkstemp() path.
 */
void sl_server_certificate(SSL_CTX *tls, char *path);

#endif
