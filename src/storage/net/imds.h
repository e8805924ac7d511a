/*
 * Addresses of metadata services (IMDS), where clouds keep the keys of a machine: an answer of a
 * stranger (a redirect, a name) must not lead us there. IPv4 addresses count as such within IPv6
 * too, however a gateway or a tunnel writes them. Pure functions over hostile input; any thread.
 */
#ifndef SL_IMDS_H
#define SL_IMDS_H

#include <stdbool.h>
#include <sys/socket.h>

/** Link-local addresses, and the other addresses where clouds are known to answer (imds.c). */
bool sl_imds_address(const struct sockaddr *address);
/** Is the host of a URL such an address, in any spelling that a resolver takes ("0xa9fea9fe"), with
 * or without dots at its end? */
bool sl_imds_host(const char *host);
/** Must a redirect to host `to` not be followed? It must not if that is such an address, unless
 * `named`, the host that the user wrote, is the same one, in whichever spelling. */
bool sl_imds_redirect_refused(const char *named, const char *to);
/** Must a connection to `host` not be made to this address? It must not where a name, which
 * strangers can point anywhere, leads to such a one; who means it writes the address. */
bool sl_imds_refused(const char *host, const struct sockaddr *address);

#endif
