/*
 * Where the work of a plan is done: the one place that decides, after planning and before reading.
 * Readers and device obey what it has noted in the plan's mappings and checks. For the one thread
 * that has made the plan.
 */
#ifndef SL_STAGES_H
#define SL_STAGES_H

#include "mapping.h"
#include "stage.h"

/** A destination's abilities with bytes that have landed there. */
struct sl_stage_offer {
    /** Does the device do this stage? Asked once for each stage that the plan has work for and
     * never for another, since finding out may take a measurement. -1: it is wanted there, and it
     * cannot.
     */
    int (*does)(void *arg, enum sl_stage stage, bool *does, struct sl_err *err);
    /** Do the bytes of this file of the plan land on the device? */
    bool (*has)(void *arg, uint32_t file);
    void *arg;
    uint64_t piece_bytes_max; /* of encrypted tensors that it can decrypt */
};
/**
 * Ask what the destination does, and note it: decrypt_on and cast_on of every mapping, crc_on of
 * every check. Without an offer (NULL) all is the host's, as it is after planning.
 *
 * The device's are: tensors whose plaintext lies as their ciphertext does, in pieces that are not
 * too large; casts of tensors that ranges bring, unless a hash wants to see the plaintext of one
 * that is encrypted; CRC32 and CRC32C over bytes that lie as they came, of several over the same
 * bytes the one that begins first. What is not a reader's to begin with (composed) stays the
 * host's.
 *
 * Before the plan is read; blocks as `does` does. -1: its error, or SL_E_NO_SPACE; the plan is not
 * to be read then.
 */
int sl_plan_stages(struct sl_plan *plan, const struct sl_stage_offer *offer, struct sl_err *err);
/** How many tensors are decrypted or cast, or checks computed, on the device. */
uint64_t sl_plan_on_device(const struct sl_plan *plan, enum sl_stage stage);

#endif
