/*
 * Strided gather: views and slices of a tensor that lies on the device as it is stored. A thread
 * takes one item after another; what it writes lies together, what it reads lies where the box
 * says. An item that would lie outside of the memory read is left out: its place stays as it was.
 * What is written the launcher has checked.
 */
#ifndef SL_KERNEL_GATHER_H
#define SL_KERNEL_GATHER_H

#include "kernel_base.h"

/* Where item `number` of the box lies. */
SL_INLINE uint64_t sl_gather_place(const struct sl_gather_args *args, uint64_t number)
{
    uint64_t place = args->first;
    uint32_t low = (uint32_t)number;
    if (args->narrow) {
        for (uint32_t i = args->rank; i-- > 0;) {
            uint32_t width = (uint32_t)args->dimensions[i].width, row = low / width;
            place += (low - row * width) * args->dimensions[i].stride;
            low = row;
        }
        return place;
    }
    for (uint32_t i = args->rank; i-- > 0;) {
        uint64_t width = args->dimensions[i].width, row = number / width;
        place += (number - row * width) * args->dimensions[i].stride;
        number = row;
    }
    return place;
}

SL_INLINE void sl_copy_item(const uint8_t *from, uint8_t *to, uint32_t item)
{
    uint32_t words[4];
    if (item == 4) {
        sl_put_word(to, sl_get_word(from));
    } else if (item == 8) {
        sl_get_words(from, words, 2);
        sl_put_words(to, words, 2);
    } else if (item == 16) {
        sl_get_words(from, words, 4);
        sl_put_words(to, words, 4);
#if SL_ON_DEVICE
    } else if (item == 2 && sl_is_aligned(from, 2) && sl_is_aligned(to, 2)) {
        *(uint16_t *)to = *(const uint16_t *)from;
#endif
    } else {
        for (uint32_t i = 0; i < item; i++)
            to[i] = from[i];
    }
}

SL_INLINE void sl_swap_item(const uint8_t *from, uint8_t *to, uint32_t item, uint32_t swap)
{
    for (uint32_t part = 0; part < item; part += swap)
        for (uint32_t i = 0; i < swap; i++)
            to[part + i] = from[part + swap - 1 - i];
}

SL_INLINE void sl_gather_phase(const struct sl_gather_args *args, struct sl_no_shared *shared,
                               const struct sl_where *where, int phase)
{
    (void)shared, (void)phase;
    const uint8_t *in = sl_device_bytes(args->in);
    uint8_t *out = sl_device_bytes(args->out);
    uint64_t all = where->blocks * where->threads;
    for (uint64_t i = where->block * where->threads + where->thread; i < args->count; i += all) {
        uint64_t place = sl_gather_place(args, args->begin + i);
        if (place > args->in_bytes || args->in_bytes - place < args->item)
            continue; /* the launcher has checked: this never happens */
        else if (args->swap > 1)
            sl_swap_item(in + place, out + i * args->item, args->item, args->swap);
        else
            sl_copy_item(in + place, out + i * args->item, args->item);
    }
}

#endif
