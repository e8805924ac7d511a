/* Between the files of the safetensors reader. */
#ifndef SL_SAFETENSORS_H
#define SL_SAFETENSORS_H

#include "buf.h"
#include "index.h"

struct sl_edit;
enum { SL_SAFETENSORS_JSON_BYTES_MAX = 100 * 1000 * 1000 }; /* the library's own limit, section 1 */

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

/** Length, JSON and blanks up to a multiple of 8 of a file with these tensors one after another.
 * Codes as sl_safetensors_layout(). */
int sl_safetensors_head(const struct sl_tensor *const *tensors, size_t count,
                        const struct sl_meta_pair *metadata, size_t metadata_count,
                        struct sl_buf *head, struct sl_err *err);
/** The format's plan of an edit. */
int sl_safetensors_edit(struct sl_edit *edit, struct sl_err *err);

#endif
