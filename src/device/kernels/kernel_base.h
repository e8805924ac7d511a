/* What all kernels need: addresses, and words of memory that may lie anywhere. Called by a thread
 * of the device, or of the host in tests, on memory that the launcher has checked. */
#ifndef SL_KERNEL_BASE_H
#define SL_KERNEL_BASE_H

#include "kernel_args.h"

SL_INLINE uint8_t *sl_device_bytes(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

SL_INLINE bool sl_is_aligned(const void *at, uint32_t bytes)
{
    return ((uint64_t)(uintptr_t)at & (bytes - 1)) == 0;
}

#if SL_ON_DEVICE
/** Sixteen bytes that are moved at once. */
struct __attribute__((aligned(16))) sl_four_words {
    uint32_t word[4];
};
#endif

/** Four bytes at any address, little-endian. */
SL_INLINE uint32_t sl_get_word(const uint8_t *at)
{
#if SL_ON_DEVICE
    if (sl_is_aligned(at, 4))
        return *(const uint32_t *)at;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
#else
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    return word;
#endif
}

SL_INLINE void sl_put_word(uint8_t *at, uint32_t word)
{
#if SL_ON_DEVICE
    if (sl_is_aligned(at, 4)) {
        *(uint32_t *)at = word;
        return;
    }
    at[0] = (uint8_t)word, at[1] = (uint8_t)(word >> 8);
    at[2] = (uint8_t)(word >> 16), at[3] = (uint8_t)(word >> 24);
#else
    memcpy(at, &word, sizeof(word));
#endif
}

/** `count` words, a constant; in steps of sixteen bytes where the address allows it. */
SL_INLINE void sl_get_words(const uint8_t *at, uint32_t *words, uint32_t count)
{
#if SL_ON_DEVICE
    if (count % 4 == 0 && sl_is_aligned(at, 16)) {
        SL_UNROLL
        for (uint32_t i = 0; i < count / 4; i++) {
            struct sl_four_words four = ((const struct sl_four_words *)at)[i];
            SL_UNROLL
            for (uint32_t k = 0; k < 4; k++)
                words[4 * i + k] = four.word[k];
        }
        return;
    }
#endif
    SL_UNROLL
    for (uint32_t i = 0; i < count; i++)
        words[i] = sl_get_word(at + 4 * i);
}

SL_INLINE void sl_put_words(uint8_t *at, const uint32_t *words, uint32_t count)
{
#if SL_ON_DEVICE
    if (count % 4 == 0 && sl_is_aligned(at, 16)) {
        SL_UNROLL
        for (uint32_t i = 0; i < count / 4; i++) {
            struct sl_four_words four;
            SL_UNROLL
            for (uint32_t k = 0; k < 4; k++)
                four.word[k] = words[4 * i + k];
            ((struct sl_four_words *)at)[i] = four;
        }
        return;
    }
#endif
    SL_UNROLL
    for (uint32_t i = 0; i < count; i++)
        sl_put_word(at + 4 * i, words[i]);
}

/** Up to eight bytes as a little-endian number, one by one. */
SL_INLINE uint64_t sl_get_number(const uint8_t *at, uint32_t bytes)
{
    uint64_t number = 0;
    for (uint32_t i = 0; i < bytes; i++)
        number |= (uint64_t)at[i] << (8 * i);
    return number;
}

SL_INLINE void sl_put_number(uint8_t *at, uint64_t number, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(number >> (8 * i));
}

#endif
