/* What stores in clouds answer and are told: pages of listings of Google and Azure, credentials
 * files, connection strings. */
#include <stdlib.h>
#include <string.h>

#include "az_store.h"
#include "gs_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int each(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg;
    (void)err;
    if (!*entry->name || strlen(entry->name) > 1024 || entry->bytes > SL_OBJECT_BYTES_MAX)
        abort();
    return 0;
}

static void list(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    char *next = NULL;
    uint64_t entries = 0;
    sl_gs_page_parse(text, bytes, "listing", "p/", each, NULL, &next, &entries, &err);
    free(next);
    sl_az_page_parse(text, bytes, "listing", "p/", each, NULL, &next, &entries, &err);
    free(next);
}

/* Files are read from the environment's JSON, as they are from a disk; nothing is asked. */
static void read_credentials(char *text)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config config = {0};
    struct sl_az_connection connection;
    setenv("NO_GCE_CHECK", "true", 1);
    setenv("HOME", "/nonexistent", 1);
    setenv("GOOGLE_SERVICE_ACCOUNT_KEY", text, 1);
    sl_gs_creds_free(sl_gs_creds_new(&config, false, &err));
    sl_az_connection_parse(text, &connection, &err);
    sl_az_connection_release(&connection);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = calloc(1, bytes + 1);
    if (!text)
        return 0;
    if (bytes)
        memcpy(text, data, bytes);
    list(text, bytes);
    read_credentials(text);
    free(text);
    return 0;
}
