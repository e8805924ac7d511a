/*
 * Which certificates servers are trusted by. Any thread; the environment is read at every call.
 */
#ifndef SL_CA_H
#define SL_CA_H

#include "libcurl.h"

/** Where certificates are, and who says so: for messages and for what is set. */
struct sl_ca_choice {
    const char *file;      /* NULL: none */
    const char *directory; /* SSL_CERT_DIR; NULL: none */
    const char *from;      /* "source.tls.caFile", the variable's name, or "the system" */
};
/**
 * Choose certificates: given (source.tls.caFile; NULL or "" for none), else the file that
 * SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE (Python's clients) names, else the system's.
 * SSL_CERT_DIR, a folder of hashed certificates, adds to either of the latter two. Nothing is read.
 */
struct sl_ca_choice sl_ca_choose(const char *given);
/** Point a handle at them. Returns what libcurl says. */
CURLcode sl_ca_use(CURL *easy, const struct sl_ca_choice *choice);

/** The system's file, where libcurl finds it by itself or in the usual places; NULL: none. A
 * constant. */
const char *sl_ca_system(void);

/** The first of count files that can be read, borrowed, or NULL. */
const char *sl_ca_first(const char *const *files, size_t count);

#endif
