/* What a spec may say of Google. */
#include "gs_options.h"

static const struct sl_option gs_rows[] = {
    SL_OPTION(sl_gs_options, endpoint, STRING, "",
              "URL of the store; empty: STORAGE_EMULATOR_HOST, "
              "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE, Google",
              .value = "URL"),
    SL_OPTION(
        sl_gs_options, credentials_file, STRING, "",
        "a JSON file of Google's (service account, authorised user, external account); empty: "
        "GOOGLE_APPLICATION_CREDENTIALS, gcloud's, the metadata server",
        .value = "FILE"),
    SL_OPTION(sl_gs_options, user_project, STRING, "",
              "the project that pays for requests to requester-pays buckets", .value = "PROJECT"),
    SL_OPTION(sl_gs_options, anonymous, BOOL, "false",
              "send requests without a token and do not look for credentials"),
    SL_OPTION_END,
};
const struct sl_option_table sl_gs_table = {"gs", sizeof(struct sl_gs_options), gs_rows};
