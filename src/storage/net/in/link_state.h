/* The inside of a link, shared by link.c and link_curl.c (TLS and tunnels, by libcurl). */
#ifndef SL_LINK_STATE_H
#define SL_LINK_STATE_H

#include "libcurl.h"
#include <signal.h>

#include "host_state.h"
#include "link.h"
#include "thread.h"
#include "tls.h"
#include "url.h"

/* Addresses of one family, tried one after another. */
struct sl_dial_family {
    int kind, fd;  /* AF_INET or AF_INET6; -1: none is on its way */
    unsigned next; /* of the addresses */
    uint64_t leave_ns;
};

/* A plain connection that is being made. */
struct sl_dial {
    bool on; /* the connection is ours, not libcurl's */
    union sl_host_sockaddr addresses[SL_HOST_ADDRESSES_MAX];
    unsigned count;
    struct sl_dial_family families[2];
    uint64_t end_ns, other_ns; /* when the second family begins; UINT64_MAX: it did */
    int trouble;               /* errno of the address that failed last */
};

enum sl_link_stage {
    SL_LINK_CLOSED,
    SL_LINK_PERMITTING,
    SL_LINK_LOOKING,
    SL_LINK_DIALING,
    SL_LINK_OPEN
};

struct sl_link {
    struct sl_connect connect;
    char *url, *proxy; /* where it leads */
    enum sl_link_stage stage;
    struct sl_permit permit;
    uint64_t ask_ns;                  /* PERMITTING: when to ask again */
    uint64_t opened_ns;               /* when connecting began: it has connect_seconds */
    uint64_t dialed_ns;               /* when these addresses were begun with */
    uint64_t connect_ns;              /* how long it took then */
    uint64_t away_ns;                 /* how far the server seemed in that time */
    uint32_t avoided;                 /* bits of addresses that were waited for long enough */
    int tried[SL_HOST_ADDRESSES_MAX]; /* in order */
    unsigned tried_count;

    struct sl_dial dial;
    struct sl_trust *trust; /* while there are handles of libcurl's */
    bool verified;          /* by that */
    bool begun;             /* they were driven */
    CURLM *multi;
    CURL *easy;
    struct curl_slist *resolved;
    struct pollfd wanted[SL_LINK_POLL_MAX]; /* what curl waits for while it connects */
    int wanted_count;
    uint64_t timer_ns, nudge_ns;
    int fd; /* of the connection, -1 until connected */
    bool tls;
    size_t expected; /* SO_RCVLOWAT as it is set */
    char authority[SL_URL_AUTHORITY_MAX];
    char host[SL_URL_AUTHORITY_MAX];
    uint16_t port;
    bool refused; /* an address that its name led to */
    char trouble[CURL_ERROR_SIZE];
};

/** Make the handles and begin; left_ms: to connect. SL_E_NO_SPACE, and those of
 * sl_libcurl_open(). */
int sl_link_curl_begin(struct sl_link *link, uint64_t left_ms, struct sl_err *err);
/** One round of curl's work; true if there was any. */
bool sl_link_curl_drive(struct sl_link *link);
/** Drop the handles, and the connection with them. */
void sl_link_curl_end(struct sl_link *link);

/*
 * A TLS library may write() to a connection that the peer has closed, and the SIGPIPE would end a
 * process that does not ignore it; its disposition is the program's business, not ours. So the
 * signal is blocked in this thread while libcurl works, and one that came of it is taken away.
 */
struct sl_quiet {
    sigset_t before;
    bool pending; /* one was there before us: it stays */
};
struct sl_quiet sl_quiet_begin(void);
void sl_quiet_end(struct sl_quiet *quiet);
#define SL_QUIET_PIPE                                                                              \
    __attribute__((cleanup(sl_quiet_end), unused)) struct sl_quiet quiet = sl_quiet_begin()

#endif
