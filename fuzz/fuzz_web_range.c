/* What a request says about paths, ranges, validators and dates: nothing of it may leave its
 * bounds. */
#undef NDEBUG /* the claims are the point, in release builds too */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "web_http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_path(const char *text)
{
    char path[SL_WEB_PATH_BYTES];
    if (sl_web_path_decode(text, path) != 0)
        return;
    assert(path[0] != '/' && !strstr(path, "//") && strlen(path) < sizeof(path));
    for (const char *segment = path; segment; segment = strchr(segment, '/')) {
        segment += *segment == '/';
        size_t length = strcspn(segment, "/");
        assert(!(length == 2 && memcmp(segment, "..", 2) == 0));
        assert(!(length == 7 && memcmp(segment, ".sluice", 7) == 0));
    }
}

static void check_range(const char *text)
{
    static const uint64_t totals[] = {0, 1, 10, 1ull << 40, UINT64_MAX >> 1};
    for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
        uint64_t begin = 1, end = 0;
        if (sl_web_range_parse(text, totals[i], &begin, &end) == SL_WEB_RANGE_ONE)
            assert(begin < end && end <= totals[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char host[256], date[32], *text = malloc(bytes + 1);
    unsigned port;
    bool use_range = true;
    if (!text)
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    check_path(text);
    check_range(text);
    sl_web_accepts_openmetrics(text);
    int64_t seconds = sl_web_date_parse(text);
    if (seconds >= 0)
        assert(strlen(sl_web_date(seconds, date)) == 29);
    const struct sl_web_conditions conditions = {text, text, text, text, text};
    sl_web_conditions_check(&conditions, "\"tag\"", 1000, &use_range);
    const struct sl_web_conditions dates = {.if_modified_since = text, .if_unmodified_since = text};
    sl_web_conditions_check(&dates, "\"tag\"", 1000, &use_range);
    if (sl_web_address_parse(text, host, &port, NULL) == 0)
        assert(strlen(host) < sizeof(host) && port < 65536);
    free(text);
    return 0;
}
