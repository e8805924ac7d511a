/* Which objects of a listing a storage URI of KServe means, and what their files are called. */
#ifndef SL_CHOOSING_H
#define SL_CHOOSING_H

#include "patterns.h"
#include "spec.h"

/** s3://bucket/path or a local directory, and what of it is loaded as what. */
struct sl_choice {
    char *base_uri; /* ends in '/'; the names of `objects` are relative to it */
    struct sl_chosen objects;
    /* The files that a load of these makes begin so; it is cut off, with the slashes behind it:
     * "model" makes "x" of "model/x" and "-v2/x" of "model-v2/x". Mostly "". */
    char *strip;
    uint64_t bytes;
};
void sl_choosing_release(struct sl_choice *choice);

/**
 * List and choose as KServe's own initializer does: what begins with the path, without looking at
 * slashes; only the object of exactly this name, if there is one; no empty objects and none whose
 * name ends in '/'. `strict`: only the object of this name or what lies below it as a folder.
 *
 * @uri   s3://BUCKET/PATH, /DIR/ or file:///DIR/
 * SL_E_NOT_FOUND, SL_E_FORMAT (two objects would be one file, hostile names), and those of stores.
 */
int sl_choose(const char *uri, const struct sl_source_config *config, bool strict,
              const struct sl_patterns *patterns, struct sl_choice *choice, struct sl_err *err);

/** What the file of a chosen object is called in the end; borrowed from name. */
const char *sl_choosing_file(const struct sl_choice *choice, const char *name);

#endif
