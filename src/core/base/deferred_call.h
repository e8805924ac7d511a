/* Work that one thread leaves to another, whose it is from then on. */
#ifndef SL_DEFERRED_CALL_H
#define SL_DEFERRED_CALL_H

/** Part of what it is about, so that handing it over needs no memory; run() frees the whole. */
struct sl_deferred_call {
    void (*run)(struct sl_deferred_call *call);
    struct sl_deferred_call *next; /* of whoever has it */
};

#endif
