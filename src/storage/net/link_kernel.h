/*
 * TLS records that the kernel opens ("kTLS", Documentation/networking/tls.rst), so that recv() puts
 * plain bytes where they are wanted. Only receiving: what we send is small.
 *
 * A connection begins with OpenSSL, which makes the handshake, reads the server's session tickets
 * and the first answer. Between two answers, when OpenSSL holds nothing of the stream, it can be
 * handed over. TLS 1.2 and 1.3 with AES-GCM or ChaCha20-Poly1305.
 */
#ifndef SL_LINK_KERNEL_H
#define SL_LINK_KERNEL_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "err.h"

enum sl_tls_kernel { SL_TLS_KERNEL_AUTO, SL_TLS_KERNEL_ON, SL_TLS_KERNEL_OFF };

/** What is known of a connection's keys. Zeroed before use; one thread at a time. */
struct sl_kernel_tls {
    SSL *ssl;         /* borrowed, as long as the connection lives; NULL: not to be handed over */
    uint64_t records; /* that OpenSSL has read with these keys */
    uint8_t secret[EVP_MAX_MD_SIZE]; /* of what the server sends */
    size_t secret_bytes;
    bool on; /* the kernel reads it now */
};

/** False: built without SLUICE_KERNEL_TLS. Nothing is ever handed over then, and `mode` ON is
 * answered by one warning of the process. */
bool sl_kernel_tls_built_in(void);

/**
 * Before the handshake, unless `mode` is OFF: note what handing over needs. The context must not
 * outlive `kernel`. A context whose keys somebody else writes down (SSLKEYLOGFILE) is left alone.
 */
void sl_kernel_tls_watch(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, SSL_CTX *context);

/**
 * Hand a connection over if that is asked for and possible: `mode` ON always, AUTO while the
 * kernel needs no more processor time for it than the process does. Call it only between answers.
 * Where it is not possible everything stays as it was.
 */
void sl_kernel_tls_take(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, int fd);

/** Forget and wipe the keys; the connection is at its end. */
void sl_kernel_tls_end(struct sl_kernel_tls *kernel);

/**
 * Bytes from a connection that was handed over, as recv(): at least 1, 0 when the server said that
 * it ends, -1 with errno: EAGAIN; EBADMSG for a record that is wrong; EPROTO for one that the
 * kernel cannot go on after (an alert, new keys); ECONNRESET for an end that the server did not
 * announce.
 */
ssize_t sl_kernel_tls_recv(int fd, void *data, size_t bytes);

/** Processor time of the calling thread, in ns, and what it was spent on. Any thread, like what is
 * below. */
uint64_t sl_kernel_tls_clock(void);
void sl_kernel_tls_note(bool by_kernel, uint64_t ns, size_t bytes);

/** What AUTO says after `ns` for `bytes`, in the process [0] and by the kernel [1]; asked: how
 * often it was asked before. Until both have been seen at work, now and then yes. */
bool sl_kernel_tls_pays(const uint64_t ns[2], const uint64_t bytes[2], unsigned asked);

/** Whether this kernel has been found to open records; false before it was asked. */
bool sl_kernel_tls_used(void);

#endif
