/*
 * A source whose length and version are known already, from a listing or an earlier opening: no
 * request is made for it. The first range that is read carries the version, so an object that
 * changed since is noticed there.
 */
#include "store_kind.h"

int sl_source_known(struct sl_store *store, const char *name, uint64_t bytes,
                    const struct sl_version *version, struct sl_source **out, struct sl_err *err)
{
    SL_AUTO(sl_source) source = sl_alloc(sizeof(*source), err);
    if (!source)
        return -1;
    source->store = store;
    source->bytes = bytes;
    source->version = *version;
    source->opened = true;
    source->name = sl_strdup(name, err);
    if (!source->name || store->kind->locate(source, err) < 0)
        return -1;
    *out = sl_steal(&source);
    return 0;
}
