/* What people and services pass as text: slices of tensors, names of files and addresses to
 * listen on. */
#include <stdlib.h>
#include <string.h>

#include "index.h"
#include "sink.h"
#include "web_http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint64_t shape[] = {7, 1ull << 40, 0};
    struct sl_tensor tensor = {.name = (char *)(uintptr_t) "x", .rank = 3, .shape = shape};
    struct sl_slice slice;
    struct sl_err err = SL_ERR_INIT;
    char host[256];
    unsigned port;
    char *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    if (sl_slice_parse(text, &tensor, &slice, &err) == 0)
        for (unsigned i = 0; i < tensor.rank; i++)
            if (slice.begin[i] > slice.end[i] || slice.end[i] > shape[i])
                abort();
    if (sl_name_check(text, bytes, &err) == 0 && (*text == '/' || strncmp(text, "../", 3) == 0 ||
                                                  strstr(text, "/../") || memchr(text, 0, bytes)))
        abort();
    if (sl_web_address_parse(text, host, &port, &err) == 0 && port > 65535)
        abort();
    free(text);
    return 0;
}
