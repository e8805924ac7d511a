/* Inside verify: its state, and the threads that hash what has landed, in order. */
#ifndef SL_HASH_WORKERS_H
#define SL_HASH_WORKERS_H

#include <stdbool.h>

#include "hash_kind.h"
#include "thread.h"
#include "verify.h"

enum { SL_FOLLOW_THREADS_MAX = 8 };

/* Source bytes that have landed; crc is unused for ordered hashes. */
struct sl_verify_piece {
    uint64_t begin, end;
    uint64_t crc;
};
struct sl_hash_task;
struct sl_verify_item {
    const struct sl_check *check;
    uint64_t max_end;               /* of the subtree whose middle this is */
    uint64_t fresh;                 /* bytes that no item before covers */
    struct sl_verify_piece *pieces; /* sorted, apart; guarded by the lock */
    size_t piece_count, piece_capacity;
    bool later, last;          /* SL_REPAIR_LATER: to be judged anew; this is the last time */
    bool resumed, delivered;   /* bytes of an earlier load are among it; it is done, since its
                                  delivery   was checked */
    struct sl_hash_task *task; /* of an ordered check in more than one piece; set under the lock */
};

struct sl_verify {
    struct sl_verify_config config;
    struct sl_verify_item *items; /* sorted by source and begin */
    size_t item_count;
    pthread_mutex_t lock;
    pthread_cond_t work, idle; /* work: queue or stop changed; idle: a check or a thread ended */
    struct {
        struct sl_hash_task *all, *head,
            *tail; /* every task; the queue of those with landed bytes */
        pthread_t threads[SL_FOLLOW_THREADS_MAX];
        unsigned started, busy;
        size_t remaining; /* checks not completed */
        size_t doubtful;  /* of them: their bytes are being fetched again */
        size_t later;     /* of them: SL_REPAIR_LATER */
        bool stop;
        struct sl_err err; /* the first failure */
    } locked;
};

/** A check is done, right if why is NULL. Takes the lock. */
void sl_verify_conclude(struct sl_verify *verify, const struct sl_verify_item *item,
                        const struct sl_err *why);
/** Compare, count, tell. Takes the lock. -1 if it does not match. */
int sl_verify_complete(struct sl_verify *verify, struct sl_verify_item *item,
                       const uint8_t digest[SL_HASH_BYTES_MAX], struct sl_err *err);
/** Judge the checks anew that did not match before the bytes within them were fetched again. */
int sl_verify_judge_later(struct sl_verify *verify, struct sl_err *err);
/** The lock is held: if the item can be hashed further, queue it and see that a thread is there. */
int sl_verify_add_task(struct sl_verify *verify, struct sl_verify_item *item, struct sl_err *err);
void sl_verify_tasks_init(struct sl_verify *verify);
/** Stop and join the threads, free the tasks. */
void sl_verify_tasks_release(struct sl_verify *verify);

#endif
