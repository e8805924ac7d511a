/* A web host as `sluice doctor` sees it. */
#ifndef SL_DOCTOR_HOST_H
#define SL_DOCTOR_HOST_H

#include "err.h"
#include "tls.h"

struct sl_doctor_host {
    char name[256], address[64], trusted[512];
    double lookup_seconds, connect_seconds; /* the latter with TLS */
    bool tls, dated;
    int64_t skew_seconds; /* our clock less its own, if dated */
};
/** One HEAD for the root of the URL's host, without credentials, up to ten seconds; what it answers
 * does not count. tls may be NULL. SL_E_NET with what to do. */
int sl_doctor_host(const char *url, const struct sl_tls_options *tls, struct sl_doctor_host *host,
                   struct sl_err *err);

#endif
