/*
 * Names to addresses, in a thread for each look-up: resolvers block, for minutes if a name server
 * is silent, and nobody waits for a thread that is left behind. What is known goes on being used
 * while it is looked up anew. The order of a name server is shuffled, so that many machines do not
 * all begin with its first address.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host_state.h"
#include "io.h"
#include "log.h"

#define FRESH_NS (180 * SL_NS_PER_S)
#define DOWN_NS  (10 * SL_NS_PER_S) /* so soon a name is looked up again that leads nowhere */

/* ---- addresses ------------------------------------------------------------------------------ */

static bool is_same(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)a)->sin_addr,
                      &((const struct sockaddr_in *)b)->sin_addr, sizeof(struct in_addr)) == 0;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

int sl_host_number(const struct sl_permit *permit, const struct sockaddr *address)
{
    const struct sl_host *host = permit->host;
    if (!host || (address->sa_family != AF_INET && address->sa_family != AF_INET6))
        return -1;
    SL_LOCKED(&sl_hosts_lock);
    for (unsigned i = 0; i < host->count; i++)
        if (is_same(&host->addresses[i].place.any, address))
            return (int)i;
    return -1;
}

/* In a place of its own, or one that nobody needs any more. */
static void add_address(struct sl_host *host, const struct sockaddr *address)
{
    struct sl_host_address *place = NULL;
    for (unsigned i = 0; i < host->count; i++) {
        struct sl_host_address *known = &host->addresses[i];
        if (is_same(&known->place.any, address)) {
            known->gone = false;
            return;
        }
        if (known->gone && !known->links && !place)
            place = known;
    }
    if (!place && host->count < SL_HOST_ADDRESSES_MAX)
        place = &host->addresses[host->count++];
    if (!place)
        return;
    memset(place, 0, sizeof(*place));
    bool v6 = address->sa_family == AF_INET6;
    memcpy(&place->place, address, v6 ? sizeof(place->place.v6) : sizeof(place->place.v4));
    inet_ntop(address->sa_family,
              v6 ? (const void *)&place->place.v6.sin6_addr
                 : (const void *)&place->place.v4.sin_addr,
              place->text, sizeof(place->text));
}

static bool parse_address(const char *name, union sl_host_place *place)
{
    memset(place, 0, sizeof(*place));
    if (inet_pton(AF_INET, name, &place->v4.sin_addr) == 1) {
        place->any.sa_family = AF_INET;
        return true;
    }
    place->any.sa_family = AF_INET6;
    return inet_pton(AF_INET6, name, &place->v6.sin6_addr) == 1;
}

/* Other spellings of addresses (2130706433, fe80::1%eth0) are left to curl. */
static bool is_spelled_address(const char *name)
{
    struct in_addr ignored;
    return strchr(name, ':') || strchr(name, '%') || inet_aton(name, &ignored);
}

static bool has_v6(void)
{
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* RFC 6761 section 6.3: such names are this machine, and no name server is asked. */
static bool is_localhost(const char *name)
{
    static const char word[] = "localhost";
    size_t bytes = strlen(name), wanted = sizeof(word) - 1;
    if (bytes && name[bytes - 1] == '.')
        bytes--;
    if (bytes < wanted || strncasecmp(name + bytes - wanted, word, wanted) != 0)
        return false;
    return bytes == wanted || name[bytes - wanted - 1] == '.';
}

static void add_loopback(struct sl_host *host)
{
    union sl_host_place place;
    host->loopback = parse_address("127.0.0.1", &place);
    add_address(host, &place.any);
    if (has_v6() && parse_address("::1", &place))
        add_address(host, &place.any);
}

int sl_host_prepare(struct sl_host *host, struct sl_err *err)
{
    union sl_host_place place;
    host->numeric = is_spelled_address(host->name);
    if (host->numeric) {
        if (parse_address(host->name, &place))
            add_address(host, &place.any);
        return 0;
    }
    if (is_localhost(host->name)) {
        add_loopback(host);
        return 0;
    }
    host->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return host->fd < 0 ? sl_fail(err, SL_E_NO_SPACE, "too many open files: raise ulimit -n") : 0;
}

/* ---- looking up ----------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void shuffle(const struct addrinfo **items, unsigned count)
{
    uint64_t state = (sl_now_ns() ^ (uint64_t)getpid() << 40) | 1;
    for (unsigned i = count; i > 1; i--) {
        unsigned k = (unsigned)(next_random(&state) % i);
        const struct addrinfo *other = items[k];
        items[k] = items[i - 1];
        items[i - 1] = other;
    }
}

static unsigned take_addresses(struct sl_host *host, const struct addrinfo *list)
{
    const struct addrinfo *items[SL_HOST_ADDRESSES_MAX];
    unsigned count = 0;
    bool v6 = has_v6();
    for (; list && count < SL_HOST_ADDRESSES_MAX; list = list->ai_next)
        if (list->ai_family == AF_INET || (v6 && list->ai_family == AF_INET6))
            items[count++] = list;
    shuffle(items, count);
    for (unsigned i = 0; count && i < host->count; i++)
        host->addresses[i].gone = true;
    for (unsigned i = 0; i < count; i++)
        add_address(host, items[i]->ai_addr);
    return count;
}

/* Name servers answered: there is no such name, or none with an address. */
static bool is_unknown(int failed)
{
    return failed == EAI_NONAME || failed == EAI_NODATA;
}

/* The host stays while it is being looked up. */
static void *look_up(void *arg)
{
    struct sl_host *host = arg;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int failed = getaddrinfo(host->name, NULL, &hints, &list);
    {
        SL_LOCKED(&sl_hosts_lock);
        if (!failed && !take_addresses(host, list))
            failed = EAI_NONAME;
        if (failed)
            snprintf(host->trouble, sizeof(host->trouble), "%s", gai_strerror(failed));
        else
            host->looked_ns = sl_now_ns();
        host->failed = failed != 0;
        host->unknown = is_unknown(failed);
        host->looking = false;
        (void)!eventfd_write(host->fd, 1);
    }
    if (!failed)
        freeaddrinfo(list);
    return NULL;
}

/* With the lock held. */
static int begin(struct sl_host *host, struct sl_err *err)
{
    pthread_t thread;
    eventfd_t ignored;
    (void)!eventfd_read(host->fd, &ignored);
    host->looking = true;
    if (sl_thread_start(&thread, "sluice-names", look_up, host, err) == 0) {
        pthread_detach(thread);
        return 0;
    }
    host->looking = false;
    return -1;
}

static bool is_stale(const struct sl_host *host, uint64_t now_ns)
{
    uint64_t age = now_ns - host->looked_ns;
    return age > FRESH_NS || (age > DOWN_NS && sl_host_is_down(host, now_ns));
}

enum sl_host_state sl_host_look_up(struct sl_permit *permit, struct sl_err *err)
{
    struct sl_host *host = permit->host;
    SL_LOCKED(&sl_hosts_lock);
    if (host->numeric || host->loopback)
        return SL_HOST_KNOWN;
    if (host->looked_ns) {
        if (!host->looking && is_stale(host, sl_now_ns())) {
            host->looked_ns = sl_now_ns(); /* whatever comes of it, not again soon */
            begin(host, NULL);
        }
        return SL_HOST_KNOWN;
    }
    if (host->failed) {
        host->failed = false;
        sl_fail_code(err, SL_E_NET, host->unknown ? SL_NET_UNRESOLVED : SL_NET_UNREACHED,
                     "its name cannot be resolved: %s", host->trouble);
        return SL_HOST_FAILED;
    }
    if (!host->looking && begin(host, err) < 0)
        return SL_HOST_FAILED;
    return SL_HOST_WAIT;
}

int sl_host_fd(const struct sl_permit *permit)
{
    return permit->host->fd;
}
