/*
 * The words of a progress page, which other processes wait for. Whoever sets a word has written
 * what it speaks of before; whoever sees it set sees that, too.
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
/** Sleep while the word has this value, at most so long; it may return early. The mapping may be
 * read-only. */
static inline void sl_word_wait(const uint32_t *word, uint32_t value, unsigned ms)
{
    struct timespec most = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}
/** A number that is only ever looked at. */
static inline uint64_t sl_number_get(const uint64_t *number)
{
    return __atomic_load_n(number, __ATOMIC_RELAXED);
}
static inline void sl_number_set(uint64_t *number, uint64_t value)
{
    __atomic_store_n(number, value, __ATOMIC_RELAXED);
}

#endif
