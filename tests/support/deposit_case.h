/* A pool, and deposits made by hand: packet by packet, with files that libsluice would not make.
 * Whatever fails here aborts the test. */
#ifndef SL_DEPOSIT_CASE_H
#define SL_DEPOSIT_CASE_H

#include <fcntl.h>

#include "pool_case.h"
#include "pool_index.h"
#include "pool_link.h"

extern struct pool_case pool;
extern const uint8_t identity[32]; /* that deposits belong to */

void deposit_case_setup(void);
void deposit_case_teardown(void);

enum { SEALED = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };

void open_link(struct sl_pool_link *link);
/** A memfd with so many seals; data NULL: zeros. */
int make_fd(uint64_t bytes, int seals, const void *data);
/** One tensor of 4000 bytes in one slab. Returns the bytes of the index. */
size_t make_index(const char *key, uint64_t *index, uint64_t slab_bytes);
/** Opens the link and begins a deposit of so many bytes, key "k"; its id. */
uint64_t begin_by_hand(struct sl_pool_link *link, uint64_t announced);
/** A whole deposit of these files, which are closed; 0 or the kind of the error. */
int deposit_by_hand(int slab_fd, int index_fd, uint64_t index_bytes, uint64_t announced);

#endif
