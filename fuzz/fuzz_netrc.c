/* Settings of people's accounts and environments: .netrc and no_proxy. */
#include <stdlib.h>
#include <string.h>

#include "netrc.h"
#include "proxy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_netrc_login login;
    struct sl_err err = SL_ERR_INIT;
    char *list = malloc(bytes + 1), *proxy = NULL;
    memcpy(list, data, bytes);
    list[bytes] = 0;
    if (sl_netrc_parse((const char *)data, bytes, "example.com", &login) &&
        (!memchr(login.login, 0, sizeof(login.login)) ||
         !memchr(login.password, 0, sizeof(login.password))))
        abort();
    static const char *const texts[] = {"http://models.example.com/m", "https://10.1.2.3:8443/m",
                                        "http://[2001:db8::1]/m"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        sl_autourl url = {0};
        if (sl_url_parse(texts[i], &url, NULL) < 0)
            abort();
        sl_proxy_excluded(&url, list);
        setenv(url.tls ? "https_proxy" : "http_proxy", list, 1);
        if (sl_proxy_find(&url, &proxy, &err) == 0)
            free(proxy);
    }
    free(list);
    return 0;
}
