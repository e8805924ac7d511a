/*
 * The words of a progress page, which other processes wait for. Whoever sets a word has written
 * what it speaks of before; whoever sees it set sees that, too. Any thread of any process; none
 * blocks but sl_word_wait(). Words are 4-byte aligned, numbers 8-byte (futex(2)).
 */
#ifndef SL_POOL_WORDS_H
#define SL_POOL_WORDS_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint32_t sl_word_get(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
/** The waiters that are asleep, in whichever process, are woken. */
static inline void sl_word_set(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
/** Sleep while the word has this value, at most `ms` milliseconds; it may return early. The mapping
 * may be read-only. */
static inline void sl_word_wait(const uint32_t *word, uint32_t value, unsigned ms)
{
    struct timespec most = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}
/** A number that is only ever looked at: it says nothing of other memory. */
static inline uint64_t sl_number_get(const uint64_t *number)
{
    return __atomic_load_n(number, __ATOMIC_RELAXED);
}
static inline void sl_number_set(uint64_t *number, uint64_t value)
{
    __atomic_store_n(number, value, __ATOMIC_RELAXED);
}

/** One more owner of something that several have. */
static inline void sl_refcount_add(uint32_t *owners)
{
    __atomic_fetch_add(owners, 1, __ATOMIC_RELAXED);
}
/** One less: true for the last one, who sees what all others did. */
static inline _Bool sl_refcount_drop(uint32_t *owners)
{
    return __atomic_fetch_sub(owners, 1, __ATOMIC_ACQ_REL) == 1;
}

#endif
