/*
 * A pool's daemon that hands out what a test has put together, slab by slab, and takes what is
 * deposited, by docs/pool-protocol.md alone. One thread serves all connections; whatever is not
 * as the protocol says aborts the test.
 */
#ifndef SL_POOL_SCRIPT_H
#define SL_POOL_SCRIPT_H

#include <pthread.h>

#include "pool_index_write.h"
#include "scratch.h"

enum { POOL_SCRIPT_SLABS = 8, POOL_SCRIPT_CLIENTS = 8 };

struct pool_script {
    char socket[SL_SCRATCH_PATH_BYTES + 16];
    /* What whoever attaches gets. Set before pool_script_start(); descriptors are the script's. */
    struct sl_wire_index_slab slabs[POOL_SCRIPT_SLABS];
    int fds[POOL_SCRIPT_SLABS];
    uint32_t slab_count;
    const struct sl_pool_item *items;
    uint32_t item_count;
    uint16_t version; /* that it says it speaks; 0: ours */
    /* Of its own. */
    struct sl_wire_page *page; /* words may be set with sl_word_set() */
    int index_fd, page_fd;
    uint64_t index_bytes, page_bytes;
    char directory[SL_SCRATCH_PATH_BYTES];
    int directory_fd, listen_fd, end[2];
    pthread_t thread;
    pthread_mutex_t lock;
    struct {
        char device[SL_WIRE_DEVICE_BYTES + 1]; /* that was asked for last */
        uint64_t announced;
        int deposited[POOL_SCRIPT_SLABS], deposited_index; /* of a commit; the script's */
        uint32_t deposited_count;
        uint64_t deposited_index_bytes;
        unsigned clients; /* that are connected */
    } locked;
};

void pool_script_init(struct pool_script *script);
/** Make index and page, and listen. */
void pool_script_start(struct pool_script *script);
/** The device that was asked for last. */
void pool_script_asked(struct pool_script *script, char device[SL_WIRE_DEVICE_BYTES + 1]);
/** Close everything, what was deposited included. */
void pool_script_release(struct pool_script *script);

#endif
