/* What Google's own tools leave of a user who has logged in. */
#include "gs_user.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scratch.h"

void sl_gs_user_of(struct sl_server *server, const char *folder)
{
    char path[SL_SCRATCH_PATH_BYTES + 16];
    setenv("STORAGE_EMULATOR_HOST", strstr(sl_server_url(server, ""), "//") + 2, 1);
    snprintf(path, sizeof(path), "%s/user.json", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"type\": \"authorized_user\", \"client_id\": \"id\", \"client_secret\": \"s\", "
            "\"refresh_token\": \"r\", \"token_uri\": \"%s\"}",
            sl_server_url(server, "/token"));
    fclose(file);
    setenv("GOOGLE_APPLICATION_CREDENTIALS", path, 1);
}
