/* Who signed a model, in words and as JSON. */
#include "signed_by.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "buf.h"
#include "mem.h"

static const char *time_of(int64_t at, char text[32])
{
    time_t seconds = (time_t)at;
    struct tm parts;
    *text = 0;
    if (at > 0 && gmtime_r(&seconds, &parts))
        strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

int64_t sl_signed_by_time(const char *text)
{
    struct tm parts = {.tm_isdst = 0};
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &parts) : NULL;
    return end && !*end ? (int64_t)timegm(&parts) : 0;
}

const char *sl_signed_by_text(const struct sl_signed_by *signed_by, char text[SL_SIGNED_BY_TEXT])
{
    char at[32], files[40], here[64] = "", others[64] = "";
    time_of(signed_by->at, at);
    if (signed_by->loaded != signed_by->resources)
        snprintf(here, sizeof(here), ", %" PRIu64 " of them loaded", signed_by->loaded);
    if (signed_by->strangers)
        snprintf(others, sizeof(others), ", and %" PRIu64 " unsigned", signed_by->strangers);
    snprintf(text, SL_SIGNED_BY_TEXT, "%.320s: %s%s%s%s%s", signed_by->by,
             sl_human_count(signed_by->resources, "file", files), here, others, *at ? ", on " : "",
             at);
    return text;
}

void sl_signed_by_json(struct sl_json *json, const struct sl_signed_by *signed_by)
{
    char at[32];
    sl_json_key(json, "signed");
    if (!*signed_by->by) {
        sl_json_null(json);
        return;
    }
    sl_json_object(json);
    sl_json_key_string(json, "by", signed_by->by);
    sl_json_key_uri(json, "file", signed_by->file);
    sl_json_key_uint(json, "resources", signed_by->resources);
    sl_json_key_uint(json, "loaded", signed_by->loaded);
    sl_json_key_uint(json, "unsigned", signed_by->strangers);
    sl_json_key_string(json, "at", *time_of(signed_by->at, at) ? at : NULL);
    sl_json_end(json);
}
