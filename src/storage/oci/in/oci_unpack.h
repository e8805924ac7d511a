/*
 * Layers that are packed: read whole and in order once, for their files' names, places and hashes,
 * and for the points from which a file can be unpacked later without what comes before it.
 * The load then reads files from such points. One pass alone would need the whole model a second
 * time, or a load that learns while it runs what it loads. zstd has no points within a frame: its
 * files are read one after another.
 */
#ifndef SL_OCI_UNPACK_H
#define SL_OCI_UNPACK_H

#include "hash.h"
#include "oci_tree.h"

/** Compare what came with the layer's digest. SL_E_INTEGRITY. */
int sl_oci_check_layer(const struct sl_oci_layer *layer, struct sl_sha256 *sha, struct sl_err *err);
/** A layer that does not unpack, or is not a tar, may have been changed on its way: then its digest
 * says so, and nobody looks for a mistake of whoever made the image. Is it to be asked after this
 * failure? */
bool sl_oci_may_be_changed(const struct sl_oci_layer *layer, const struct sl_err *err);
/** Add the files of a layer, whose packing is known, to the tree, and note its points. source: its
 * blob. Blocks. SL_E_FORMAT, SL_E_INTEGRITY, SL_E_NO_SPACE, and what reading fails with. */
int sl_oci_unpack_layer(struct sl_source *source, struct sl_oci_layer *layer,
                        struct sl_oci_tree *tree, struct sl_err *err);
/** Must files of this layer be read one after another, on one connection, since it has too few
 * points for several? */
bool sl_oci_is_in_order(const struct sl_oci_layer *layer);

#endif
