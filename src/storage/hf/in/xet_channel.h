/* Hubs as a transport: HTTP, and Xet where a file is on it and that works. Channels as everywhere;
 * struct sl_hf in store->impl. */
#ifndef SL_XET_CHANNEL_H
#define SL_XET_CHANNEL_H

#include "store_kind.h"

extern const struct sl_transport sl_hf_transport;

/** The code of the error that a redirect ends in when the file turns out to be on Xet. */
#define SL_HF_ON_XET "on-xet"

#endif
