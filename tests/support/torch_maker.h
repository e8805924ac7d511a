/* Checkpoints as torch.save lays them out, of any number of tensors. */
#ifndef SL_TORCH_MAKER_H
#define SL_TORCH_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct torch_options {
    unsigned tensors;    /* F32 vectors named model.layers.N.weight, a storage each */
    unsigned items;      /* elements of each */
    unsigned alignment;  /* of payloads; 0: 64, and no entry that says so */
    unsigned name_bytes; /* of each tensor's name, at least; 0: no more than needed */
    bool unchecked;      /* checksums of 0: torch.serialization.set_crc32_options(False) */
    bool tied;           /* all are made of the storage of the first */
};
/** The archive; free() it. Aborts without memory. */
uint8_t *torch_make(const struct torch_options *wanted, size_t *bytes);

#endif
