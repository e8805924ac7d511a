/* Answers of servers: the head parser, and every header that it lets through can be found again. */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "http_head_case.h"
#include "retry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"Content-Length", "Content-Range", "ETag", "Location",
                                        "Retry-After"};
    struct sl_err err = SL_ERR_INIT;
    char *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    int status = 0;
    if (http_head_parse(text, bytes, &status, &err) == 0) {
        assert(status >= 100 && status <= 999);
        size_t end = sl_head_end(text, bytes), value_bytes;
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            const char *value = sl_head_find(text, end, names[i], 0, &value_bytes);
            assert(!value || value + value_bytes <= text + end);
        }
    } else {
        assert(err.kind == SL_E_NET);
    }
    sl_retry_after_ms(text, 1800000000);
    free(text);
    return 0;
}
