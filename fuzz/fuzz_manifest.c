/* A manifest of a published directory that somebody else may have written: every name that comes
 * out of it is one that a load could have made. */
#include <string.h>

#include "fuzz_folder.h"
#include "publish_parts.h"
#include "sink.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *name_of(const void *arg, size_t i)
{
    return ((const struct sl_published *)arg)->files[i].name;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_published published = {0};
    char stamp[65];
    int folder = fuzz_folder_put(SL_MANIFEST, NULL, 0, data, bytes);
    if (sl_published_read(folder, SL_MANIFEST, &published, &err) == 0) {
        for (size_t i = 0; i < published.count; i++)
            if (sl_name_check(published.files[i].name, strlen(published.files[i].name), &err) < 0)
                abort();
        sl_published_stamp(folder, name_of, &published, published.count, stamp, &err);
    } else if (published.files || published.document) {
        abort();
    }
    sl_published_release(&published);
    return 0;
}
