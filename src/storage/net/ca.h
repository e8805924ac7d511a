/*
 * Which certificates servers are trusted by.
 */
#ifndef SL_CA_H
#define SL_CA_H

#include <curl/curl.h>

/**
 * Point a handle at certificates: given (source.tls.caFile; NULL or "" for none), else the file
 * that AWS_CA_BUNDLE, SSL_CERT_FILE or CURL_CA_BUNDLE names, else the system's. SSL_CERT_DIR, a
 * folder of hashed certificates, adds to either of the latter two.
 */
CURLcode sl_ca_use(CURL *easy, const char *given);

/** The system's file, where libcurl finds it by itself or in the usual places; NULL: none. */
const char *sl_ca_system(void);

/** The first of count files that can be read, or NULL. */
const char *sl_ca_first(const char *const *files, size_t count);

#endif
