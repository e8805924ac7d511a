/*
 * Input that never blocks: what a step of it answers, how many descriptors it may wait for. Values
 * alone.
 */
#ifndef SL_IO_H
#define SL_IO_H

#include <poll.h>

enum sl_io_state {
    SL_IO_FAILED = -1, /* err says why */
    SL_IO_WAIT,        /* nothing now: its poll function says what to wait for */
    SL_IO_DATA,        /* bytes were moved, or the step is done */
    SL_IO_END,         /* all of it has come */
};

enum { SL_IO_POLL_MAX = 8 }; /* two connections, while a request is sent twice */

/** The code of an error that means: no connection was made, so no request was sent. */
#define SL_NET_UNREACHED "unreached"
/** The same, since nobody knows the host's name. sl_retry_unreached() (retry.h) asks for both. */
#define SL_NET_UNRESOLVED "unresolved"

#endif
