/* URLs, Location references and .netrc files. What parses must print as a URL that parses to the
 * same. */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "netrc.h"
#include "proxy.h"
#include "url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_netrc_login login;
    char *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    sl_autourl url = {0};
    if (sl_url_parse(text, &url, &err) == 0) {
        sl_autourl again = {0};
        char *printed = sl_url_format(&url, true, &err);
        assert(!strpbrk(printed, "\r\n #"));
        if (strlen(printed) <= SL_URL_BYTES_MAX) {
            assert(sl_url_parse(printed, &again, &err) == 0);
            assert(sl_url_same_origin(&url, &again) && strcmp(url.target, again.target) == 0);
        }
        free(printed);
        sl_proxy_excluded(&url, text);
    }
    char *resolved = sl_url_resolve("https://host:8443/a/b?c=d", text, &err);
    assert(!resolved || strncmp(resolved, "http", 4) == 0);
    free(resolved);
    free(sl_url_decode(text, bytes, &err));
    sl_netrc_parse(text, bytes, "host", &login);
    free(text);
    return 0;
}
