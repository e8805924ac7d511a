/* What a spec may say of Azure. */
#include "az_options.h"

static const struct sl_option az_rows[] = {
    SL_OPTION(sl_az_options, endpoint, STRING, "",
              "URL of the store; if its host is an IP address, the account is in the path; empty: "
              "the URI's, AZURE_STORAGE_ENDPOINT, the account's at Azure",
              .value = "URL"),
    SL_OPTION(sl_az_options, account, STRING, "",
              "the storage account, if the URI names none; empty: AZURE_STORAGE_ACCOUNT",
              .value = "NAME"),
    SL_OPTION(sl_az_options, account_key_file, STRING, "",
              "file with a key of the account; a SAS is signed with it", .value = "FILE"),
    SL_OPTION(sl_az_options, sas_file, STRING, "", "file with a shared access signature",
              .value = "FILE"),
    SL_OPTION(sl_az_options, connection_string_file, STRING, "",
              "file with a connection string; empty: AZURE_STORAGE_CONNECTION_STRING",
              .value = "FILE"),
    SL_OPTION(sl_az_options, anonymous, BOOL, "false",
              "send requests without credentials and do not look for any"),
    SL_OPTION_END,
};
const struct sl_option_table sl_az_table = {"az", sizeof(struct sl_az_options), az_rows};
