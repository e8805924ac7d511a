/*
 * Until when an origin takes no requests, as it said itself (429), for everybody in this process: a
 * limit counts them all, so one refusal speaks for every connection of every load. None blocks.
 */
#ifndef SL_HTTP_WINDOW_H
#define SL_HTTP_WINDOW_H

#include "url.h"

/** It takes none for so long from now on. Any thread. */
void sl_http_window_close(const struct sl_url *origin, uint64_t ms);
/** When it takes some again, on the scale of sl_now_ns(); 0: now. Any thread. */
uint64_t sl_http_window_opens_ns(const struct sl_url *origin);

#endif
