/* The bytes of headers and metadata of a .tensors file that is written. One thread at a time for a
 * draft; failures are SL_E_FORMAT and SL_E_NO_SPACE. */
#ifndef SL_TENSORIZER_COMPOSE_H
#define SL_TENSORIZER_COMPOSE_H

#include "layout.h"
#include "tensorizer.h"

enum { SL_TZR_DTYPE_BYTES_MAX = 64 }; /* of the rows of dtypes.def */

/** A file being laid out: entries[i] is that of layout->places[i]. */
struct sl_tzr_draft {
    struct sl_layout *layout;
    struct sl_tensorizer_options options; /* piece_bytes is set */
    struct sl_tzr_entry *entries;         /* shape is not used: the tensor has it as numbers */
    uint32_t version;
    bool tagged;
    uint64_t metadata_bytes, tensor_bytes;
};

/** All of an entry but its offsets, from the tensor. SL_E_FORMAT: it cannot be written. */
int sl_tzr_fill_entry(struct sl_tzr_draft *draft, const struct sl_tensor *tensor,
                      struct sl_tzr_entry *entry, struct sl_err *err);
/** The lowest version, not below draft->version, that can say what is in all entries. */
void sl_tzr_choose_version(struct sl_tzr_draft *draft);
/** Bytes of the metadata block: not less than draft->metadata_bytes. E_METADATA. */
int sl_tzr_size_metadata(struct sl_tzr_draft *draft, struct sl_err *err);
/**
 * The header of one tensor at entry->header_offset, in the layout's arena; sets
 * entry->data_offset. Hashes of tensors without data are filled in. NULL with SL_E_NO_SPACE,
 * E_HEADER (64 MiB of MACs and more than a thousandth of the data: readers refuse it).
 */
struct sl_layout_header *sl_tzr_compose_header(const struct sl_tzr_draft *draft,
                                               const struct sl_tensor *tensor,
                                               struct sl_tzr_entry *entry, struct sl_err *err);
/** File header and metadata block, once all entries have their offsets. */
int sl_tzr_compose_start(const struct sl_tzr_draft *draft, struct sl_buf *head, struct sl_err *err);

#endif
