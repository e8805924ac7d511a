/* What every request of ours needs, reads, listings and uploads alike. */
#include <stdio.h>
#include <string.h>

#include "gs_store.h"

int sl_gs_let_in(struct sl_gs *gs, struct sl_range_request *request, unsigned *generation,
                 struct sl_err *err)
{
    sl_autosecret char *token = NULL;
    if (sl_gs_creds_get(gs->creds, &token, generation, err) < 0)
        return -1;
    if (token && sl_range_add_header(request, err, "Authorization: Bearer %s", token) < 0)
        return -1;
    return gs->user_project
               ? sl_range_add_header(request, err, "x-goog-user-project: %s", gs->user_project)
               : 0;
}

bool sl_gs_pin(char pin[SL_PIN_TEXT_MAX], const char *generation)
{
    size_t bytes = strspn(generation, "0123456789");
    if (!bytes || bytes > 20 || generation[bytes])
        return false;
    snprintf(pin, SL_PIN_TEXT_MAX, "generation=%s", generation);
    return true;
}
