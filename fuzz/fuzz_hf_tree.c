/* What a hub answers: a page of a tree, and where its next page is. */
#include <stdlib.h>
#include <string.h>

#include "hf_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int each(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg;
    (void)err;
    if (!*entry->name || !*entry->pin || strlen(entry->pin) >= SL_PIN_TEXT_MAX ||
        entry->bytes > INT64_MAX || (entry->sums && entry->sums->count != 1))
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t entries = 0;
    char *next = NULL, *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    for (unsigned i = 0; i < 4; i++) {
        char *page = malloc(bytes + 1);
        memcpy(page, data, bytes);
        sl_hf_page_parse(&(struct sl_hf_page){"it", i & 1 ? "a/" : "", i & 2 ? NULL : "commit",
                                              each, NULL, NULL},
                         page, bytes, &entries, &err);
        free(page);
    }
    if (sl_hf_next_page(text, "https://hub", "it", &next, &err) == 0 && next &&
        strncmp(next, "https://hub/api/", 16) != 0)
        abort();
    free(next);
    free(text);
    return 0;
}
