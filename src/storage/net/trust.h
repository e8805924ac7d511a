/*
 * Certificates that servers are trusted by, read once for all connections: a system's file has 140
 * of them, and reading it takes 30 ms and more of a processor. Beside them stand the TLS sessions
 * that were made by them: who resumes one shows no certificate again, so sessions are never shared
 * by those who trust others. Any thread.
 */
#ifndef SL_TRUST_H
#define SL_TRUST_H

#include <openssl/x509.h>

#include "ca.h"
#include "err.h"

struct sl_trust;

/**
 * Those of a choice, which is copied, as its file and its folder are now: what has changed is
 * another trust. Nothing is read yet. Release it, also after all its handles. NULL: SL_E_NO_SPACE.
 */
struct sl_trust *sl_trust_take(const struct sl_ca_choice *choice, struct sl_err *err);
/** NULL is fine. */
void sl_trust_release(struct sl_trust *trust);

/** The certificates, read by the first call; borrowed until the release. NULL: they cannot be read,
 * which the next call tries again. */
X509_STORE *sl_trust_store(struct sl_trust *trust);

/** libcurl's cache of their sessions, and where libcurl looks up a tunnel's proxy, of that name.
 * Borrowed until the release. NULL: there is none. */
CURLSH *sl_trust_cache(struct sl_trust *trust, bool tunnel);

#endif
