/* In place of link_kernel.c where sluice is built without it (SLUICE_KERNEL_TLS): TLS stays in the
 * process, and who wanted it elsewhere is warned once. */
#include <errno.h>
#include <pthread.h>

#include "link_kernel.h"
#include "log.h"

static pthread_once_t warned = PTHREAD_ONCE_INIT;

static void warn(void)
{
    sl_log(SL_LOG_WARN, "TLS is received in the process: 'source.tls.kernel: on' needs a sluice "
                        "that is built with SLUICE_KERNEL_TLS");
}

bool sl_kernel_tls_built_in(void)
{
    return false;
}

void sl_kernel_tls_watch(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, SSL_CTX *context)
{
    (void)kernel, (void)context;
    if (mode == SL_TLS_KERNEL_ON)
        pthread_once(&warned, warn);
}

void sl_kernel_tls_take(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, int fd)
{
    (void)kernel, (void)mode, (void)fd;
}

void sl_kernel_tls_end(struct sl_kernel_tls *kernel)
{
    (void)kernel;
}

ssize_t sl_kernel_tls_recv(int fd, void *data, size_t bytes)
{
    (void)fd, (void)data, (void)bytes;
    errno = ENOSYS; /* no connection was handed over */
    return -1;
}

uint64_t sl_kernel_tls_clock(void)
{
    return 0;
}

void sl_kernel_tls_note(bool by_kernel, uint64_t ns, size_t bytes)
{
    (void)by_kernel, (void)ns, (void)bytes;
}

bool sl_kernel_tls_pays(const uint64_t ns[2], const uint64_t bytes[2], unsigned asked)
{
    (void)ns, (void)bytes, (void)asked;
    return false;
}

bool sl_kernel_tls_used(void)
{
    return false;
}
