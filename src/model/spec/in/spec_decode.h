/* From a tree to a struct sl_spec, by the rows; for the files of this folder. */
#ifndef SL_SPEC_DECODE_H
#define SL_SPEC_DECODE_H

#include "node_spec.h"
#include "spec.h"
#include "spec_node.h"

/** spec_source.c: the rows of `source`, complete after sl_spec_add_stores(). */
extern const struct sl_option_table sl_spec_source_table;
void sl_spec_add_stores(void);
/** spec_source.c, spec_rows.c: is this a URI of a store, a key of minisign? SL_E_USAGE. */
int sl_spec_check_uri(const char *text, struct sl_err *err);
int sl_spec_check_minisign(const char *text, struct sl_err *err);
/** spec_sets.c: the rows of `sink.caches`. */
extern const struct sl_option_table sl_spec_sets_table;
/**
 * spec_sets.c: check `sink.caches` against the other sections. A document without it passes.
 *
 * @root    the document.
 * @spec    decoded from it.
 * @placed  the spec is for a node, where nothing restores caches: a complaint.
 */
void sl_spec_check_sets(const struct sl_yaml_node *root, const struct sl_spec *spec, bool placed,
                        struct sl_complaints *complaints);
/** The same against the other models of a file, of which one has them at most. */
void sl_spec_check_all_sets(const struct sl_specs *specs, struct sl_complaints *complaints);
/** spec_signing.c: does `modelSigning` say who may sign, once? pair NULL: it is not named. */
void sl_spec_check_signing(const struct sl_yaml_pair *pair,
                           const struct sl_spec_model_signing *signing,
                           struct sl_complaints *complaints);
/** Note which keys of `through` a document names; pair may be NULL. */
void sl_spec_note_through(const struct sl_yaml_pair *pair, struct sl_spec_through *through);

/**
 * Put one setting over the tree: sections that are missing are made, an unknown path is a
 * complaint. Nodes that the document shares through aliases are not changed elsewhere. -1 only
 * without memory.
 */
int sl_spec_apply(const struct sl_spec_setting *setting, struct sl_yaml_tree *tree,
                  struct sl_complaints *complaints, struct sl_err *err);
/** Defaults first, then the document; mistakes are complaints. -1 only without memory; release the
 * spec anyway. */
int sl_spec_decode(const struct sl_yaml_node *root, struct sl_spec *spec,
                   struct sl_complaints *complaints, struct sl_err *err);
/**
 * As sl_spec_decode(), of any table.
 *
 * @root        the document.
 * @values      out: the struct that the table describes; release it anyway.
 * @complaints  gets the mistakes.
 * @return      0, or -1 only without memory.
 */
int sl_spec_decode_table(const struct sl_option_table *table, const struct sl_yaml_node *root,
                         void *values, struct sl_complaints *complaints, struct sl_err *err);
/** node_spec.c: as sl_spec_check, of a Node. */
void sl_node_spec_check(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                        struct sl_complaints *complaints);
/** spec_docs.c: the tables of a page. */
int sl_spec_write_keys(const struct sl_option_table *table, struct sl_buf *out, struct sl_err *err);
/**
 * Check combinations, and keys that only some commands take.
 *
 * @root        the document.
 * @spec        decoded from it.
 * @placed      the spec is for a node.
 * @pooled      it may be for a node or for a load.
 * @complaints  gets the mistakes.
 */
void sl_spec_check(const struct sl_yaml_node *root, const struct sl_spec *spec, bool placed,
                   bool pooled, struct sl_complaints *complaints);
/** spec_fixed.c: what is pinned, by readers.fixed or $SLUICE_FIXED, into spec->fixed and the keys
 * that say the same. After sl_spec_check(). */
void sl_spec_fix(const struct sl_yaml_node *root, struct sl_spec *spec,
                 struct sl_complaints *complaints);
/** spec_tensors.c: the rules under `tensors`; part of the above. */
void sl_spec_check_tensors(const struct sl_yaml_node *root, const struct sl_spec *spec,
                           struct sl_complaints *complaints);
/** spec_tensors.c: is this an expression for tensors.rename? SL_E_USAGE says why not. */
int sl_spec_check_match(const char *text, struct sl_err *err);

#endif
