/* The certificate of the range server. */
#ifndef SL_RANGE_CERTIFICATE_H
#define SL_RANGE_CERTIFICATE_H

#include <openssl/ssl.h>

/** What is wrong with the next server's certificate; a fine one after that. Expired and early ones
 * are so by a day. */
enum sl_certificate_fault { SL_CERT_FINE, SL_CERT_EXPIRED, SL_CERT_EARLY, SL_CERT_OTHER_NAME };
void sl_server_certificate_fault(enum sl_certificate_fault fault);

/**
 * Make a key and a self-signed certificate for 127.0.0.1 and localhost, use them, and write the
 * certificate to the mkstemp() path.
 */
void sl_server_certificate(SSL_CTX *tls, char *path);

#endif
