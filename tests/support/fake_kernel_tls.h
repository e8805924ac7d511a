/*
 * A kernel that opens TLS records, for kernels that do not: a test program's own setsockopt() and
 * recvmsg() call these. It decrypts with the keys that it is given, so wrong ones are found.
 */
#ifndef SL_FAKE_KERNEL_TLS_H
#define SL_FAKE_KERNEL_TLS_H

#include <stdbool.h>
#include <sys/socket.h>

enum sl_fake_record {
    SL_FAKE_RECORD_AS_IT_IS,
    SL_FAKE_RECORD_DAMAGED,    /* EBADMSG */
    SL_FAKE_RECORD_TICKET,     /* a session ticket comes before it */
    SL_FAKE_RECORD_KEY_UPDATE, /* the server's keys change before it */
    SL_FAKE_RECORD_EMPTY,      /* a record without data comes before it */
};

/** What it does and has done. Set between answers; reset by memset(). */
extern struct sl_fake_kernel {
    bool absent;               /* the real one does it all */
    int ulp_errno, keys_errno; /* of the two setsockopt() calls; 0: it works */
    enum sl_fake_record next;  /* once */
    unsigned asked, handed, records;
} sl_fake_kernel;

int sl_fake_kernel_setsockopt(int fd, int level, int name, const void *value, socklen_t bytes);
ssize_t sl_fake_kernel_recvmsg(int fd, struct msghdr *message, int flags);
/** Forget all connections: before a test. */
void sl_fake_kernel_reset(void);

#endif
