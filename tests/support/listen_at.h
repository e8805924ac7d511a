/* A listening socket on an address of this machine. */
#ifndef SL_LISTEN_AT_H
#define SL_LISTEN_AT_H

/** *port 0: a free one, told there. The descriptor, -1 if the port is taken. */
int sl_listen_at(const char *address, unsigned *port);

#endif
