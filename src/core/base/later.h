/* Work that one thread leaves to another. */
#ifndef SL_LATER_H
#define SL_LATER_H

/** Part of what it is about, so that handing it over needs no memory; run() frees the whole. */
struct sl_later {
    void (*run)(struct sl_later *later);
    struct sl_later *next; /* of whoever has it */
};

#endif
