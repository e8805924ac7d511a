/*
 * Rules of a node: which models must be signed, by where they come from. Pure but for links of
 * local paths, which are followed; any thread.
 */
#ifndef SL_NODE_SIGNING_H
#define SL_NODE_SIGNING_H

#include "node_spec.h"

/**
 * Put what the rules (struct sl_node_spec_signing) want of a spec's source and mirrors into
 * spec->verify.rule.
 *
 * A rule that wants a signature counts for every way to write a name: letters' case, users, default
 * ports, escapes, revisions, aliases of a scheme and links of local paths make no difference. One
 * that wants none counts only for names that begin as it is written.
 *
 * @return  0, or -1 with SL_E_USAGE: a name that could mean another place, or mirrors that another
 *          rule is for; SL_E_NO_SPACE.
 */
int sl_node_signing_rule(const struct sl_items *rules, struct sl_spec *spec, struct sl_err *err);
/** One name; NULL: no rule wants anything of it. */
int sl_node_signing_find(const struct sl_items *rules, const char *uri,
                         const struct sl_node_spec_signing **rule, struct sl_err *err);

#endif
