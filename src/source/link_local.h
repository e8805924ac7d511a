/*
 * Link-local addresses, where clouds keep the keys of a machine: an answer of a stranger (a
 * redirect, a name) must not lead us there.
 */
#ifndef SL_LINK_LOCAL_H
#define SL_LINK_LOCAL_H

#include <stdbool.h>
#include <sys/socket.h>

/** 169.254.0.0/16, also within IPv6, fe80::/10 and Amazon's fd00:ec2::/32. */
bool sl_link_local_address(const struct sockaddr *address);
/** Is the host of a URL such an address, in any spelling that a resolver takes ("0xa9fea9fe")? */
bool sl_link_local_host(const char *host);
/** Must a connection to `host` not be made to this address? It must not where a name, which
 * strangers can point anywhere, leads to a link-local one; who means it writes the address. */
bool sl_link_local_refused(const char *host, const struct sockaddr *address);

#endif
