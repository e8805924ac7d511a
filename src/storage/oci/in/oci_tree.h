/*
 * The files of layers that are tars, laid over one another as an image's are: a later layer
 * replaces what it names, and takes away what it has a whiteout for.
 * https://github.com/opencontainers/image-spec/blob/main/layer.md
 *
 * Everything in a layer is a stranger's. One thread at a time; no network but the input's.
 */
#ifndef SL_OCI_TREE_H
#define SL_OCI_TREE_H

#include "oci_store.h"
#include "tar.h"

/** Of all layers of a manifest together. */
enum { SL_OCI_ENTRIES_MAX = 200000, SL_OCI_NAMES_BYTES_MAX = 64 * 1024 * 1024 };

struct sl_oci_tree;
/** Of its packed layers, so far. */
struct sl_oci_packed {
    uint64_t bytes, unpacked_bytes;
    size_t spare_points; /* that small ones have, beside one for each MiB of a layer */
};
struct sl_oci_packed *sl_oci_tree_packed(struct sl_oci_tree *tree);
/** folder: what of images is wanted, without '/' at its end; "": all. cancel (may be NULL) ends
 * everything with SL_E_CANCELED. Both are borrowed. SL_E_NO_SPACE. */
struct sl_oci_tree *sl_oci_tree_new(const char *folder, const struct sl_cancel *cancel,
                                    struct sl_err *err);
void sl_oci_tree_free(struct sl_oci_tree *tree);
SL_AUTO_DEFINE(sl_oci_tree)
/**
 * Lay the next layer over those before.
 *
 * @layer   borrowed until the tree is freed.
 * @input   of the unpacked layer, from its beginning.
 * @at      where the input stands in it; looked at after each read.
 * @check   the input is read to its end, and files get their hashes.
 * @return  0, or -1: SL_E_FORMAT, SL_E_NO_SPACE, SL_E_CANCELED, and the input's errors. What was
 *          added of it stays until sl_oci_tree_drop().
 */
int sl_oci_tree_add(struct sl_oci_tree *tree, const struct sl_oci_layer *layer,
                    const struct sl_tar_input *input, const uint64_t *at, bool check,
                    struct sl_err *err);
/** Forget the layer that was added last, wholly or in part. */
void sl_oci_tree_drop(struct sl_oci_tree *tree);
/** What is left of all, added to the manifest's files, with links as the files that they lead to.
 * SL_E_FORMAT, SL_E_NO_SPACE. */
int sl_oci_tree_finish(struct sl_oci_tree *tree, struct sl_oci_manifest *manifest,
                       struct sl_err *err);

#endif
