/* The connections of a server, each in one state. Any of its threads. */
#ifndef SL_WEB_CONNECTIONS_H
#define SL_WEB_CONNECTIONS_H

#include "web_parts.h"

struct connection {
    int fd;
    enum connection_state state;
    uint64_t since_ns;               /* when it entered its state */
    bool file;                       /* STREAMING: what it takes; judged anew from then on … */
    uint64_t judged_ns, acked_bytes; /* … when and how much it had taken by then */
    struct sl_buf body;              /* of a request that changes something */
    bool receiving, ended;           /* it is not whole; nor will it be, as of the last look */
    int unsent_bytes;                /* what the socket is set to; only its own thread looks */
    struct connection *newer, *older;
};

/** The only way to its states. */
void web_enter(struct sl_web *web, struct connection *connection, enum connection_state state);
/** The library's; NULL: there was no memory for it. */
struct connection *web_connection_of(struct MHD_Connection *mhd);
/** Is more of its body still to come? */
void web_note_receiving(struct sl_web *web, struct connection *connection, bool receiving);
/** The ticker's: shut down what takes too long. */
void web_drop_late(struct sl_web *web);
/**
 * Note that a connection came or went: MHD_OPTION_NOTIFY_CONNECTION.
 *
 * @arg      the sl_web.
 * @mhd      the library's.
 * @context  its struct connection: made when it comes (NULL: there is no memory for it, and it is
 *           shut down), freed when it goes.
 * @code     came, or went.
 */
void web_on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                       enum MHD_ConnectionNotificationCode code);
/**
 * Note that a request has ended, so that its connection reads the next:
 * MHD_OPTION_NOTIFY_COMPLETED.
 *
 * @arg      the sl_web.
 * @mhd      the library's; one without a struct connection is fine.
 * @context  of the request; not looked at.
 * @code     how it ended.
 */
void web_on_completed(void *arg, struct MHD_Connection *mhd, void **context,
                      enum MHD_RequestTerminationCode code);

#endif
