/* Config files of the AWS tools and of s3cmd. */
#include <stdlib.h>
#include <string.h>

#include "creds.h"
#include "ini.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int each(const struct sl_ini_item *item, void *arg, struct sl_err *err)
{
    struct sl_key *key = arg;
    int64_t seconds;
    if (!*item->key || !item->line)
        abort();
    sl_parse_time(item->value, &seconds);
    if (sl_key_set(key, item->key, item->value, item->parent, "fuzz", err) == 0 &&
        strpbrk(key->secret_key, "\r\n"))
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autokey key = {0};
    sl_ini_parse((const char *)data, bytes, "f", SL_INI_AWS, each, &key, &err);
    sl_ini_parse((const char *)data, bytes, "f", SL_INI_S3CMD, each, &key, &err);
    return 0;
}
