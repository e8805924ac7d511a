/*
 * Reading: OpenSSL asks the socket for a record's head and for its rest, 16 KiB, one by one, so it
 * is let take what is there. Whoever reads goes on until nothing comes, so nothing is forgotten in
 * its buffer.
 *
 * Suites: decrypting is what TLS costs, and OpenSSL offers AES-256-GCM before AES-128-GCM, which
 * needs three quarters of its time. A server that leaves the choice to its client (nginx, for one)
 * takes the first. So TLS 1.3's are offered in another order, that of browsers and of Go. What the
 * system's policy leaves out stays out.
 */
#include "tls_context.h"

#include <stdio.h>
#include <string.h>

#include "libcurl.h"

enum { SUITES_BYTES = 512 };
static const char preferred[] = "TLS_AES_128_GCM_SHA256", of_tls13[] = "TLS_";

/* ":NAME" behind what is there; false: too long. */
static bool append(char suites[SUITES_BYTES], const char *name)
{
    size_t used = strlen(suites), room = SUITES_BYTES - used;
    return (size_t)snprintf(suites + used, room, "%s%s", used ? ":" : "", name) < room;
}

static void prefer(SSL_CTX *context)
{
    const STACK_OF(SSL_CIPHER) *all = sl_libcurl.ssl.ctx_get_ciphers(context);
    char others[SUITES_BYTES] = "", suites[SUITES_BYTES] = "";
    bool offered = false, fits = true;
    for (int i = 0; i < sk_SSL_CIPHER_num(all); i++) {
        const char *name = sl_libcurl.ssl.cipher_get_name(sk_SSL_CIPHER_value(all, i));
        if (strcmp(name, preferred) == 0)
            offered = true;
        else if (strncmp(name, of_tls13, strlen(of_tls13)) == 0)
            fits = fits && append(others, name);
    }
    if (offered && fits && *others && append(suites, preferred) && append(suites, others))
        (void)sl_libcurl.ssl.ctx_set_ciphersuites(context, suites);
}

void sl_tls_context_prepare(SSL_CTX *context)
{
    sl_libcurl.ssl.ctx_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    prefer(context);
}
