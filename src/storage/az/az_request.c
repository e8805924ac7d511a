/* What every request of ours needs, reads, listings and uploads alike. */
#include <stdio.h>
#include <string.h>

#include "az_store.h"
#include "hash.h"
#include "log.h"
#include "url.h"

int sl_az_let_in(struct sl_az *az, const char *blob, const char *query,
                 struct sl_range_request *request, unsigned *generation, struct sl_err *err)
{
    sl_autosecret char *text = NULL;
    bool is_query;
    if (sl_az_creds_get(az->creds, &text, &is_query, generation, err) < 0)
        return -1;
    const char *sas = text && is_query ? text : "";
    request->secret = *sas;
    sl_autofree char *name = blob ? sl_url_encode(blob, true, err) : NULL;
    sl_autofree char *container = sl_url_encode(az->place.container, false, err);
    if ((blob && !name) || !container)
        return -1;
    request->url = sl_asprintf(err, "%s/%s%s%s%s%s%s%s", az->place.base, container, blob ? "/" : "",
                               blob ? name : "", *query || *sas ? "?" : "", query,
                               *query && *sas ? "&" : "", sas);
    if (!request->url || sl_range_add_header(request, err, "x-ms-version: 2023-11-03") < 0)
        return -1;
    return text && !is_query ? sl_range_add_header(request, err, "Authorization: Bearer %s", text)
                             : 0;
}

bool sl_az_recover(struct sl_az *az, unsigned generation, const struct sl_err *why)
{
    bool refused = why->http_status == 401 ||
                   (why->http_status == 403 && strcmp(why->code, "AuthenticationFailed") == 0);
    return refused && sl_az_creds_renew(az->creds, generation);
}

bool sl_az_take_md5(const char *text, const char *what, struct sl_checksums *sums)
{
    *sums = (struct sl_checksums){.items[0].kind = SL_HASH_MD5};
    bool given = text && *text;
    sums->count = given && sl_cloud_base64(text, sums->items[0].value, sl_hash_bytes(SL_HASH_MD5));
    if (given && !sums->count && what)
        sl_log(SL_LOG_WARN,
               "the MD5 of '%.300s' is not checked: the store says it is '%.40s', which is not the "
               "base64 text of 16 bytes; set the blob's Content-MD5 again, or remove it",
               what, text);
    return !given || sums->count;
}
