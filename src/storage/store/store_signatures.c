/* Which stores keep signatures, and what they found. */
#include "store_signatures.h"

#include "store_kind.h"

int sl_store_signatures(struct sl_store *store, struct sl_store_signatures *found,
                        struct sl_err *err)
{
    *found = (struct sl_store_signatures){{0}};
    if (!sl_store_traits(store)->signatures)
        return sl_fail(err, SL_E_USAGE, "'%s': this kind of store keeps no signatures", store->uri);
    return store->kind->signatures(store, found, err);
}

void sl_store_signatures_release(struct sl_store_signatures *found)
{
    for (size_t i = 0; i < found->count; i++) {
        free(found->items[i].text);
        free(found->items[i].signature);
    }
    free(found->items);
    *found = (struct sl_store_signatures){{0}};
}
