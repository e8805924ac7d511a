/*
 * Connections that nobody has a use for now, kept for whoever connects there next in this process:
 * a load, or an opened model, that comes soon after another has none to make. They are kept only
 * where the user says so, and for as long (readers.idleSeconds).
 *
 * A connection holds nothing of whoever used it: HTTP names its caller in each request. One over
 * TLS goes on only with those who trust the same certificates, and one through a tunnel with those
 * of the same proxy and login. Any thread; none blocks but for a lock.
 */
#ifndef SL_IDLE_LINKS_H
#define SL_IDLE_LINKS_H

#include "link.h"

enum { SL_IDLE_LINKS_MAX = 64, SL_IDLE_LINKS_ORIGIN_MAX = 16 };

/** Takes a link between two requests, and closes it after so many seconds; at once, if it is not
 * open. Where there are too many, those go that have been idle for longest. */
void sl_idle_links_keep(struct sl_link *link, unsigned seconds);
/** One that leads there as connect would, open and the caller's, or NULL. url and proxy as of
 * sl_link_open(). */
struct sl_link *sl_idle_links_take(const struct sl_connect *connect, const char *url,
                                   const char *proxy);
/** Somebody waits for a permit of this host: close one that has it. False: there is none. */
bool sl_idle_links_shed(const struct sl_host *host);

#endif
