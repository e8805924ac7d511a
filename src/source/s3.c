/*
 * Objects of S3 and compatible stores.
 */
#include "backend.h"

static const struct sl_option s3_rows[] = {
    SL_OPTION(sl_s3_options, region, STRING, "",
              "region that requests are signed for; empty: AWS_REGION, the profile, us-east-1",
              .value = "REGION"),
    SL_OPTION(sl_s3_options, endpoint, STRING, "",
              "URL of the store; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile, Amazon",
              .value = "URL"),
    SL_OPTION(sl_s3_options, addressing, CHOICE, "auto",
              "where the bucket's name goes: into the path or the host name",
              .choices = "auto|path|virtual"),
    SL_OPTION(sl_s3_options, profile, STRING, "",
              "profile of the AWS config files; empty: AWS_PROFILE, default", .value = "NAME"),
    SL_OPTION(sl_s3_options, config_file, STRING, "",
              "an s3cmd configuration (.s3cfg) that gives keys and endpoint", .value = "FILE"),
    SL_OPTION(sl_s3_options, anonymous, BOOL, "false",
              "send unsigned requests and look for no credentials"),
    SL_OPTION_END,
};
const struct sl_option_table sl_s3_table = {"s3", sizeof(struct sl_s3_options), s3_rows};

static int s3_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    (void)store;
    (void)key;
    return sl_fail(err, SL_E_INTERNAL, "cannot open '%s': not built yet", uri);
}

const struct sl_backend sl_s3_backend = {.name = "s3", .open = s3_open};
