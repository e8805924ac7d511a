/* A server that stands for Google Cloud Storage, asked with a user's credentials. One thread. */
#ifndef SL_GS_USER_H
#define SL_GS_USER_H

#include "range_server.h"

/** Have gs:// ask this server: its address, and a refresh token that is changed at its /token, from
 * a file in the folder, by the environment. */
void sl_gs_user_of(struct sl_server *server, const char *folder);

#endif
