/* Nothing secret is kept in the tree, and nothing expires: every run makes its own certificate. */
#include "range_certificate.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static enum sl_certificate_fault next_fault;

void sl_server_certificate_fault(enum sl_certificate_fault fault)
{
    next_fault = fault;
}

void sl_server_certificate(SSL_CTX *tls, char *path)
{
    enum sl_certificate_fault fault = next_fault;
    long begin = fault == SL_CERT_EARLY ? 86400 : fault == SL_CERT_EXPIRED ? -2 * 86400 : -3600;
    next_fault = SL_CERT_FINE;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), (long)getpid());
    X509_gmtime_adj(X509_getm_notBefore(cert), begin);
    X509_gmtime_adj(X509_getm_notAfter(cert), begin + 86400);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"sluice test", -1,
                               -1, 0);
    X509_set_issuer_name(cert, name);
    X509_EXTENSION *names = X509V3_EXT_conf_nid(
        NULL, NULL, NID_subject_alt_name,
        fault == SL_CERT_OTHER_NAME ? "DNS:other.example" : "DNS:localhost,IP:127.0.0.1");
    X509_add_ext(cert, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(cert, key, EVP_sha256());
    int fd = mkstemp(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file || !PEM_write_X509(file, cert) || fclose(file) != 0)
        abort();
    SSL_CTX_use_certificate(tls, cert);
    SSL_CTX_use_PrivateKey(tls, key);
    X509_free(cert);
    EVP_PKEY_free(key);
}
