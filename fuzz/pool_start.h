/* A pool's server on a socket in a folder of its own, for fuzzers: from the first input to the end
 * of the process. Whatever fails here aborts. */
#ifndef SL_POOL_START_H
#define SL_POOL_START_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "node_socket.h"
#include "pool_server.h"

static struct sl_pool_server *server;
static struct sl_node_socket listening;
static char directory[] = "/tmp/fuzz-pool-XXXXXX", path[64];

static void stop(void)
{
    sl_pool_server_free(server);
    sl_node_socket_release(&listening);
    rmdir(directory);
}

static void start_pool(const struct sl_pool_handler *handler, struct sl_pool_server_config config)
{
    struct sl_err err = SL_ERR_INIT;
    if (!mkdtemp(directory))
        abort();
    snprintf(path, sizeof(path), "%s/s", directory);
    const struct sl_node_socket_options wanted = {path, SOCK_SEQPACKET, 16, 0600, UINT32_MAX};
    sl_log_setup(SL_LOG_ERROR, false);
    if (sl_node_socket_open(&wanted, &listening, &err) < 0)
        abort();
    config.listen_fd = listening.fd;
    listening.fd = -1;
    if (!(server = sl_pool_server_start(&config, handler, NULL, &err)) || atexit(stop) != 0)
        abort();
}

#endif
