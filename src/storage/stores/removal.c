/* It is the other half of writing, and so a row of the same operations. */
#include "removal.h"

#include <string.h>

#include "stores.h"
#include "upload_backend.h"

int sl_removal_of(const char *uri, const struct sl_source_config *config, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    if (sl_upload_check_uri(uri, err) < 0 || sl_cancel_check(config->cancel, err) < 0)
        return -1;
    if (kind && kind->upload && kind->upload->remove)
        return kind->upload->remove(kind, uri, config, err);
    return sl_fail(err, SL_E_USAGE,
                   "sluice removes nothing from '%.*s:': use the store's own client, or its rules "
                   "for old objects",
                   (int)SL_MIN(strcspn(uri, ":"), (size_t)64), uri);
}
