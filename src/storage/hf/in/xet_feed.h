/*
 * The bytes of a plan's entries, in the order of its terms. An entry is asked for by one request,
 * since its signature covers all of it; one that several terms need is kept meanwhile, up to
 * SL_XET_KEPT_MAX bytes of them all, and asked for again beyond that.
 *
 * One thread at a time, without blocking. States as of a channel.
 */
#ifndef SL_XET_FEED_H
#define SL_XET_FEED_H

#include "xet.h"
#include "xet_plan.h"

enum { SL_XET_KEPT_MAX = 16 * 1024 * 1024 };

struct sl_xet_feed;
/** SL_E_NO_SPACE, SL_E_INTERNAL. */
struct sl_xet_feed *sl_xet_feed_new(struct sl_xet *xet, struct sl_err *err);
void sl_xet_feed_free(struct sl_xet_feed *feed);
/** The entries of this plan from now on; uri is for messages. Both are borrowed until the feed is
 * reset. */
int sl_xet_feed_begin(struct sl_xet_feed *feed, const struct sl_xet_plan *plan, char *uri,
                      struct sl_err *err);
/** Begin with this entry. The one before has been closed. */
int sl_xet_feed_open(struct sl_xet_feed *feed, uint32_t entry, unsigned hedge, struct sl_err *err);
/**
 * At least `bytes` (at most 256 KiB) that come next, without taking them: DATA with *data, good
 * until the next call. END: there are fewer.
 */
enum sl_io_state sl_xet_feed_peek(struct sl_xet_feed *feed, size_t bytes, const uint8_t **data,
                                  struct sl_err *err);
/** So many bytes of what peek showed are done with. */
void sl_xet_feed_take(struct sl_xet_feed *feed, size_t bytes);
/** No more of this entry: what is left of it is dropped, with the connection if it is still to
 * come. */
void sl_xet_feed_close(struct sl_xet_feed *feed);
/** Give up whatever is under way, and forget what is kept. */
void sl_xet_feed_reset(struct sl_xet_feed *feed);
/** Its connection, for polling and the like; borrowed. */
struct sl_channel *sl_xet_feed_channel(struct sl_xet_feed *feed);

#endif
