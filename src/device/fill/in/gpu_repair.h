/*
 * Pieces of encrypted tensors that did not open on a device: their ciphertext is fetched again,
 * alone, checked against its MAC on the host, and copied over what is there, to be opened anew.
 */
#ifndef SL_GPU_REPAIR_H
#define SL_GPU_REPAIR_H

#include "gpu_ring.h"
#include "mapping.h"
#include "progress.h"

/** A piece that was bad. */
struct sl_gpu_bad {
    const struct sl_mapping *mapping;
    uint64_t number;
    struct sl_gpu_bad *next;
};

struct sl_gpu_repair;
struct sl_gpu_repair_config {
    const struct sl_plan *plan;
    struct sl_gpu_ring *ring;
    unsigned queue;               /* of the ring: the GPU on which pieces are bad */
    struct sl_cancel *cancel;     /* may be NULL */
    struct sl_progress *progress; /* may be NULL */
    /** Ring note, with the struct sl_gpu_bad as its subject: new bytes are on the device. */
    void (*deliver)(void *arg, const struct sl_gpu_note *note);
    void *arg;
};
/** All borrowed. */
struct sl_gpu_repair *sl_gpu_repair_new(const struct sl_gpu_repair_config *config,
                                        struct sl_err *err);
/** End its thread, in the middle of its work too. */
void sl_gpu_repair_stop(struct sl_gpu_repair *repair);
/** It was stopped, and the ring, whose notes name what is here, is gone. NULL is fine. */
void sl_gpu_repair_free(struct sl_gpu_repair *repair);
SL_AUTO_DEFINE(sl_gpu_repair)

/** So many pieces opened, so the key is right. Any thread. */
void sl_gpu_repair_decrypted(struct sl_gpu_repair *repair, uint64_t pieces);
/** This one is bad. The ring fails when it stays so. Any thread; does not wait. */
int sl_gpu_repair_add(struct sl_gpu_repair *repair, const struct sl_mapping *mapping,
                      uint64_t number, struct sl_err *err);
/** One that was added is right now. */
void sl_gpu_repair_done(struct sl_gpu_repair *repair);
/** Nothing will be added: wait until every one is right; or the ring's failure. */
int sl_gpu_repair_wait(struct sl_gpu_repair *repair, struct sl_err *err);

#endif
