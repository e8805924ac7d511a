/* Tensors that a caller gives, checked and copied into the memory of an index. Any thread, one at a
 * time for an index. */
#ifndef SL_GIVEN_H
#define SL_GIVEN_H

#include "index.h"
#include "sluice.h"

/** Text that lives as long as the index; "" where there is none. NULL: SL_E_NO_SPACE. */
char *sl_given_text(struct sl_index *index, const char *text, uint64_t bytes, struct sl_err *err);
/** Its name and path of one part, from given->name. SL_E_NO_SPACE. */
int sl_given_name(struct sl_index *index, const struct sluice_tensor *given,
                  struct sl_tensor *tensor, struct sl_err *err);
/** Type, shape, bytes, role and module; not name and place. SL_E_USAGE: they do not fit each other;
 * SL_E_NO_SPACE. */
int sl_given_take(struct sl_index *index, const struct sluice_tensor *given,
                  struct sl_tensor *tensor, struct sl_err *err);
/** A row of F4 is so many elements in safetensors, and half as many bytes of a type of its own in
 * .tensors: as the format ("tensorizer", "safetensors", another) has it. What it cannot have so
 * stays, and is refused by it. SL_E_NO_SPACE. */
int sl_given_pairs(struct sl_index *index, const char *format, struct sl_tensor *tensor,
                   struct sl_err *err);

#endif
