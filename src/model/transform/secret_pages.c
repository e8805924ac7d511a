/* Whole pages, so that no other data shares their locks. */
#include "secret_pages.h"

#include <sodium.h>
#include <string.h>

#include "mem.h"

enum { PAGE_BYTES = 4096 };

/* With room for a byte that tells that a file is too long. */
static size_t room(size_t bytes)
{
    return (bytes + PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
}

/* A lock that is refused (RLIMIT_MEMLOCK) is not an error. */
void *sl_secret_pages_new(size_t bytes, struct sl_err *err)
{
    void *secret = sl_alloc_aligned(PAGE_BYTES, room(bytes), err);
    if (!secret)
        return NULL;
    memset(secret, 0, room(bytes));
    (void)sodium_mlock(secret, room(bytes));
    return secret;
}

void sl_secret_pages_free(void *secret, size_t bytes)
{
    if (!secret)
        return;
    (void)sodium_munlock(secret, room(bytes)); /* wipes it, too */
    sodium_memzero(secret, room(bytes));
    free(secret);
}
