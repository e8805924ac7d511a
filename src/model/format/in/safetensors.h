/* Between the files of the safetensors reader. */
#ifndef SL_SAFETENSORS_H
#define SL_SAFETENSORS_H

#include "layout.h"

/**
 * The JSON header into index->tensors, begin and end still relative to the data section. The text
 * is changed and must live as long as the index. Codes st.utf8, st.json, st.tensor-info, st.dtype,
 * st.metadata, st.duplicate-key.
 */
int sl_safetensors_parse(struct sl_index *index, char *json, size_t json_bytes, struct sl_err *err);

/**
 * Sort by offset and check that shapes, sizes and offsets agree and cover the data section; make
 * offsets absolute. Codes st.offset, st.overflow, st.misaligned, st.size, st.incomplete.
 */
int sl_safetensors_check(struct sl_index *index, uint64_t data_begin, uint64_t object_bytes,
                         struct sl_err *err);

#endif
