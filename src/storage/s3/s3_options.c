/* What a spec, and a command line, may say of S3. */
#include "s3_options.h"

static const struct sl_option s3_rows[] = {
    SL_OPTION(sl_s3_options, region, STRING, "",
              "region that requests are signed for; empty: AWS_REGION, the profile, us-east-1",
              .value = "REGION", .flag = "region"),
    SL_OPTION(sl_s3_options, endpoint, STRING, "",
              "URL of the store; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile, Amazon",
              .value = "URL", .flag = "endpoint-url"),
    SL_OPTION(sl_s3_options, addressing, CHOICE, "auto",
              "where the bucket's name goes: into the path or the host name",
              .choices = "auto|path|virtual"),
    SL_OPTION(sl_s3_options, profile, STRING, "",
              "profile of the AWS config files; empty: AWS_PROFILE, default", .value = "NAME",
              .flag = "profile"),
    SL_OPTION(sl_s3_options, config_file, STRING, "",
              "an s3cmd configuration (.s3cfg) that gives keys and endpoint", .value = "FILE"),
    SL_OPTION(sl_s3_options, request_payer, CHOICE, "owner",
              "who pays for requests and traffic: the bucket's owner, or you, as buckets with "
              "Requester Pays want it",
              .choices = "owner|requester"),
    SL_OPTION(sl_s3_options, anonymous, BOOL, "false",
              "send unsigned requests and look for no credentials"),
    SL_OPTION(sl_s3_options, credential_process, BOOL, "false",
              "run the program that the profile names as its credential_process"),
    SL_OPTION(
        sl_s3_options, follow_redirects, STRING, "",
        "hosts that a redirect may lead to, with the signature: of stores whose gateway sends "
        "readers to the node that has the object (AIStore). As in no_proxy: names with what "
        "lies below them, addresses, networks, *; empty: none",
        .value = "HOSTS"),
    SL_OPTION(sl_s3_options, prestage, BOOL, "false",
              "when a load begins, have the store fetch its objects into its cache: CoreWeave's "
              "cwlota.com does, for another price"),
    SL_OPTION_END,
};
const struct sl_option_table sl_s3_table = {"s3", sizeof(struct sl_s3_options), s3_rows};
