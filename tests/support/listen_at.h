/* Ports of this machine: a socket that listens, and one that keeps everybody else away. */
#ifndef SL_LISTEN_AT_H
#define SL_LISTEN_AT_H

/** *port 0: a free one, told there. The descriptor, -1 if the port is taken. */
int sl_listen_at(const char *address, unsigned *port);

/** A port where nobody is, as long as this descriptor is open: who connects is refused, and nobody
 * gets it by asking for any. sl_listen_at() and programs whose sockets say SO_REUSEADDR can still
 * listen there. *port and result as above. */
int sl_port_hold(const char *address, unsigned *port);

#endif
