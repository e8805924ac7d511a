/*
 * A hash that must match: made by the plan, carried out by transform/verify, which knows nothing of
 * plans. Made by one thread, then read by any.
 */
#ifndef SL_CHECK_H
#define SL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hash_kind.h"
#include "stage.h"

/** How wrong bytes are handled. */
enum sl_check_repair {
    SL_REPAIR_NEVER,
    SL_REPAIR_FETCH, /* they lie in the file as they came: they are fetched again, alone */
    SL_REPAIR_LATER, /* checks within it fetch them again: it is judged anew when they have ended */
};
/**
 * A hash over prefix and then [begin, end) of a source, which lies at file_offset of file without
 * gaps.
 */
/** Whether whoever delivered the bytes has checked them all by a hash of the whole object. */
enum sl_delivery { SL_DELIVERY_UNCHECKED, SL_DELIVERY_CHECKING, SL_DELIVERY_CHECKED };

struct sl_check {
    enum sl_hash_kind kind;
    uint32_t source; /* plan->sources */
    uint64_t begin, end;
    uint32_t file; /* plan->files */
    uint64_t file_offset;
    const uint8_t *prefix; /* owned by an index */
    size_t prefix_bytes;
    uint8_t expected[SL_HASH_BYTES_MAX];
    const uint8_t *signer; /* of SL_HASH_BLAKE2B: `expected` is an Ed25519 signature of the hash by
                              this public key of 32 bytes, owned by the plan; else NULL */
    const char *what;      /* "tensor 'a.b'" or "object 'model.tensors'": owned by the plan */
    bool given;            /* the user gave it: checked even with hashes off */
    bool placed;           /* other tensors may be made of the same bytes: only what lands in this
                              file, as far behind file_offset as behind begin, is part of it */
    bool ordered; /* its bytes change before they land: whoever changes them hashes them, in
                     order, and verify passes it over */
    enum sl_check_repair repair;
    enum sl_stage_side crc_on; /* who computes it; a device calls sl_verify_take_crc() */
    bool of_signature;         /* a signature of the model has it */
    bool range;                /* of the object that `what` names: messages say which bytes */
    bool delivery;             /* a delivery that was checked does as well */
    bool sample;               /* it is where chance put it: no part of what a plan is */
    bool computed; /* nothing is expected: the hash is told (sl_verify_config.computed) */
};

#endif
