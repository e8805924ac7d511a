/*
 * Memory for secrets: pages of their own that are locked against swapping and left out of core
 * dumps, as far as the system allows it, and are wiped before they are freed. Any thread.
 */
#ifndef SL_SECRET_PAGES_H
#define SL_SECRET_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/** So many zero bytes and at least one more; sl_crypt_init() comes first. SL_E_NO_SPACE. */
void *sl_secret_pages_new(size_t bytes, struct sl_err *err);
/** With the bytes that it was made with. NULL is fine. */
void sl_secret_pages_free(void *secret, size_t bytes);

#endif
