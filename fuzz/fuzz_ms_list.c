/* What a ModelScope hub answers when it is asked for the files of a repository. */
#include <stdlib.h>
#include <string.h>

#include "ms_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int folder(void *arg, const char *path, struct sl_err *err)
{
    (void)arg;
    (void)err;
    if (!*path)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char endpoint[] = "https://hub";
    struct sl_err err = SL_ERR_INIT;
    struct sl_ms ms = {.endpoint = endpoint};
    for (unsigned i = 0; i < 2; i++) {
        struct sl_ms_tree tree = {0};
        struct sl_ms_page page = {
            .ms = &ms, .what = "it", .root = i ? "a" : "", .tree = &tree, .folder = folder};
        char *text = malloc(bytes + 1);
        memcpy(text, data, bytes);
        text[bytes] = 0;
        sl_ms_page_parse(&page, text, bytes, &err);
        for (size_t at = 0; at < tree.count; at++)
            if (!*tree.files[at].path || strlen(tree.files[at].sha256) % 64 != 0)
                abort();
        sl_ms_tree_release(&tree);
        free(text);
    }
    return 0;
}
