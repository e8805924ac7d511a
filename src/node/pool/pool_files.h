/*
 * Models that outlive the process as files of a tmpfs of our own: DIR/ID/ holds a link to every
 * slab, the index and a manifest, which comes last. Whoever looks again takes a model only if each
 * file is the one that the manifest tells of (inode, size, times); no byte of it is read. Any
 * thread, but not for the same model at once; directory_fd is borrowed.
 */
#ifndef SL_POOL_FILES_H
#define SL_POOL_FILES_H

#include "pool_model.h"

enum { SL_POOL_ID_TEXT = 33 };
/** What tells one copy from all others: name, key and identity of its model, and its GPU, as 32 hex
 * digits; returns text, or NULL with SL_E_NO_SPACE. */
const char *sl_pool_copy_id(const struct sl_pool_copy *copy, char text[SL_POOL_ID_TEXT],
                            struct sl_err *err);

/**
 * Keep a ready model whose slabs are files of this directory. Blocks for as long as a few small
 * files take. SL_E_NO_SPACE; then nothing is kept.
 */
int sl_pool_files_keep(int directory_fd, const struct sl_pool_model *model, struct sl_err *err);
/**
 * Keep it no more; one that was never kept is fine. The memory goes with whoever has it last, which
 * may take seconds here: the kernel frees it.
 */
void sl_pool_files_drop(int directory_fd, const struct sl_pool_model *model);
/**
 * Hand over every model that lies there: the callee's. What is not whole, or is another file than
 * the manifest says, is removed and logged. place: of the directory. Blocks for a few small files
 * of each.
 */
void sl_pool_files_scan(const struct sl_slab_place *place,
                        void (*found)(void *arg, struct sl_pool_model *model), void *arg);

#endif
