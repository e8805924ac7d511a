/*
 * One connection: name, proxy and TLS by libcurl (CURLOPT_CONNECT_ONLY), bytes by us. Non-blocking,
 * one thread at a time.
 */
#ifndef SL_LINK_H
#define SL_LINK_H

#include <stddef.h>
#include <sys/types.h>

#include "exchange.h"
#include "io.h"

struct sl_link;
enum { SL_LINK_POLL_MAX = 4 };

/** connect is copied; what it points to is borrowed until the link is freed. No network.
 * SL_E_NO_SPACE. */
struct sl_link *sl_link_new(const struct sl_connect *connect, struct sl_err *err);
/** Closes it; NULL is fine. */
void sl_link_free(struct sl_link *link);
SL_AUTO_DEFINE(sl_link)

/**
 * Begin to connect to the origin of a URL ("https://host:port/"); proxy is a URL, or "" for none,
 * and tunnels (CONNECT or SOCKS). Both are copied. An open connection is closed first. SL_E_USAGE,
 * SL_E_NO_SPACE.
 */
int sl_link_open(struct sl_link *link, const char *url, const char *proxy, struct sl_err *err);
/**
 * WAIT until DATA: connected. FAILED is SL_E_NET; a certificate that was refused is not retryable
 * and says how to name a CA. SL_E_AUTH: the proxy wants a login.
 */
enum sl_io_state sl_link_connect(struct sl_link *link, struct sl_err *err);
/**
 * Say what to wait for.
 *
 * @want_write   once connected, for room to send, too.
 * @fds          out.
 * @deadline_ns  out: as of sl_fetch_poll().
 * @return       the count of fds.
 */
int sl_link_poll(const struct sl_link *link, bool want_write, struct pollfd fds[SL_LINK_POLL_MAX],
                 uint64_t *deadline_ns);
/** Connected, and the peer has neither closed nor sent anything since the last answer. */
bool sl_link_idle(struct sl_link *link);
/** Its permit is given up, too. One that is closed is fine. */
void sl_link_close(struct sl_link *link);

/** What errno says of a connection that was not made, for people; NULL: nothing that is worth
 * saying in other words. A constant. */
const char *sl_link_reason(long number);

/* Of an open link, for idle_links.c. */

/** It borrows nothing of whoever had it any more, and its permit is of no load. */
void sl_link_leave(struct sl_link *link);
/** It is another's from now on; connect as of sl_link_new(). */
void sl_link_enter(struct sl_link *link, const struct sl_connect *connect);
/**
 * Tell whether it was connected as one would be that is opened with this.
 *
 * @connect  as of sl_link_new(): proxies and trust count.
 * @url      as of sl_link_open().
 * @proxy    as of sl_link_open().
 */
bool sl_link_serves(const struct sl_link *link, const struct sl_connect *connect, const char *url,
                    const char *proxy);
/** Do both lead to the same origin by the same proxy? */
bool sl_link_leads_as(const struct sl_link *link, const struct sl_link *other);

enum { SL_LINK_AGAIN = -2 };
/** Bytes taken (at least 1), SL_LINK_AGAIN, or -1 with SL_E_NET. */
ssize_t sl_link_send(struct sl_link *link, const void *data, size_t bytes, struct sl_err *err);
/** Bytes that came, 0 at the end of the stream, SL_LINK_AGAIN, or -1 with SL_E_NET. */
ssize_t sl_link_recv(struct sl_link *link, void *data, size_t bytes, struct sl_err *err);
/** Wake poll() only when so many bytes are there (or the end is); a hint, 0 and 1 for any. */
void sl_link_expect(struct sl_link *link, size_t bytes);

/**
 * Tell that a request was answered, or given up, for the host's addresses.
 *
 * @bytes  of its answer that came.
 * @ns     the time that they took.
 * @whole  all of the answer came.
 */
void sl_link_note_answer(struct sl_link *link, uint64_t bytes, uint64_t ns, bool whole);
/** How far the server seemed while it was connected to, in ns, as are the lengths of time below: a
 * round trip, or what a tunnel took. */
uint64_t sl_link_away_ns(const struct sl_link *link);
/** How long an answer may take to begin, or to go on, before it is asked for once more: several
 * times what connecting took, and what the host needed lately; never less than a second. */
uint64_t sl_link_answer_delay(const struct sl_link *link);
/** It took so long to begin. */
void sl_link_note_wait(struct sl_link *link, uint64_t ns);
/** The host has a permit left, and nobody has to make room for it. */
bool sl_link_has_room(const struct sl_link *link);
/** It waits for a permit of the host. */
bool sl_link_awaits_permit(const struct sl_link *link);
/** It is given up after it had fallen silent: others may be on other addresses. */
void sl_link_note_silence(struct sl_link *link);
/** Its answer broke off, stalled, or was that of a server that is ill. */
void sl_link_note_trouble(struct sl_link *link);
/** The next request is better sent on a new connection: its address is out of favour and another
 * does well, or another load waits for a permit of the host and has far fewer. */
bool sl_link_is_past(const struct sl_link *link);
struct sl_host;
/** Whether it holds a connection there. */
bool sl_link_leads_to(const struct sl_link *link, const struct sl_host *host);

#endif
