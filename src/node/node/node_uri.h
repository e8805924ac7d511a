/*
 * Models that clients ask for by URI instead of by a name that the config or a request gave them.
 * Pure functions over hostile input: any thread, and nothing is looked up.
 */
#ifndef SL_NODE_URI_H
#define SL_NODE_URI_H

#include "node_spec.h"

enum { SL_NODE_URI_NAME = 64 };
/** "s3://…" or an absolute path; anything else is a name. */
bool sl_node_is_uri(const char *text);
/**
 * May callers ask for it? It must be one of the prefixes, or go on behind a slash of one, and have
 * nothing that could lead out of it. *prefix_bytes: how much of it the widest prefix is. SL_E_AUTH:
 * no prefix fits; SL_E_USAGE: something could lead out of it.
 */
int sl_node_uri_check(const struct sl_list *prefixes, const char *uri, size_t *prefix_bytes,
                      struct sl_err *err);
/** The same without a text: 0, -1 if no prefix fits, -2 if something could lead out of it. */
int sl_node_uri_below(const struct sl_list *prefixes, const char *uri, size_t *prefix_bytes);
/** The name that a model has which was asked for by its URI: "uri-" and 32 hex digits, others for
 * each device: "host", "cuda:0". SL_E_NO_SPACE. */
int sl_node_uri_name(const char *uri, const char *device, char name[SL_NODE_URI_NAME],
                     struct sl_err *err);
/**
 * Make the spec of all that a URI has.
 *
 * @uri           one that sl_node_uri_check() allowed.
 * @prefix_bytes  of local files nothing outside of what so much of the URI names.
 * @device        "host", "cuda:0": into the pool there; NULL: it becomes files.
 * @name          of the model.
 * @specs         out: one; release it in either case.
 * @return        0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_node_uri_spec(const char *uri, size_t prefix_bytes, const char *device, const char *name,
                     struct sl_specs *specs, struct sl_err *err);

#endif
