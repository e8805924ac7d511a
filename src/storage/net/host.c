/*
 * The table of hosts: permits for connections, names, and how addresses do. All of it is guarded by
 * one lock, which is held for a few instructions, once or twice a request.
 *
 * A permit is held from before a connection is made until it is closed, so the number of permits is
 * the number of connections. Where it is limited, permits that wait stand in the order of their
 * coming; one that was not asked for in a while (its thread is busy, or its load has ended) is
 * passed over. Nobody holds a permit while it waits for another: a link has one, an idle connection
 * gives its own up when somebody wants it (sl_host_on_want), and so loads cannot wait for each
 * other in a circle.
 *
 * Hosts stay when nobody uses them, for what was learned of their addresses, as long as there are
 * not too many.
 */
#include "host.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "descriptors.h"
#include "fork_guard.h"
#include "host_state.h"
#include "io.h"
#include "latency.h"
#include "log.h"
#include "metrics_write.h"
#include "thread.h"

enum {
    HOSTS_KEPT = 64,
    SAMPLES_MIN = 4,              /* before a rate counts */
    STRIKES_MAX = 3,              /* troubles in a row */
    SHOWN_MAX = 64,               /* addresses in the metrics */
    ANSWER_BYTES_MIN = 64 * 1024, /* a smaller answer tells nothing of the rate */
};
#define PASSED_OVER_NS (200 * SL_NS_PER_MS)
#define FRESH_NS       (180 * SL_NS_PER_S)
#define DOWN_NS        (10 * SL_NS_PER_S) /* so soon a name is looked up again that leads nowhere */
#define DOUBT_NS       (5 * SL_NS_PER_S)
#define BAD_NS         (5 * SL_NS_PER_S)
#define BAD_NS_MAX     (300 * SL_NS_PER_S)
#define GIVEN_UP_NS    (500 * SL_NS_PER_MS) /* a request that is given up later was too slow */
static const double MEMORY = 0.8, SLOW = 0.25, WORTH_MIN = 0.05;

struct sl_host_address {
    union sl_host_sockaddr socket;
    char text[INET6_ADDRSTRLEN];
    bool gone;                 /* the last look-up did not tell of it */
    unsigned links;            /* connections there, or on their way */
    unsigned strikes;          /* troubles in a row */
    unsigned refusals;         /* connections in a row that did not come about */
    uint64_t bad_until_ns;     /* out of favour */
    uint64_t doubted_until_ns; /* a request fell silent there lately: others come first */
    double bytes, seconds;     /* of answers, those of long ago less */
    unsigned samples;
    uint64_t connects, errors, received; /* for metrics */
};

struct sl_host {
    struct sl_host *next;
    char *name;
    unsigned port;
    bool numeric;  /* the name is an address */
    bool loopback; /* localhost, or a name below it: its addresses are known */
    unsigned users, held, waiting;
    struct sl_permit *permits, *permits_last;

    int fd;       /* readable when a look-up has ended; -1 for addresses */
    bool looking; /* a thread looks it up */
    bool failed;  /* the last look-up, of which nobody has heard yet */
    bool unknown; /* since there is no such name */
    char trouble[128];
    uint64_t answer_delay_ns; /* sl_latency_host_add() */
    uint64_t looked_ns;       /* when it was found last, 0: never */
    struct sl_host_address addresses[SL_HOST_ADDRESSES_MAX];
    unsigned count;
};

pthread_mutex_t sl_hosts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_host *hosts; /* the latest first */
static void (*shed_idle)(const struct sl_host *host);

/* ---- names and addresses ----------------------------------------------------------------------
 *
 * Names to addresses, in a thread for each look-up: resolvers block, for minutes if a name server
 * is silent, and nobody waits for a thread that is left behind. What is known goes on being used
 * while it is looked up anew. The order of a name server is shuffled, so that many machines do not
 * all begin with its first address.
 */

static bool is_good(const struct sl_host_address *address, uint64_t now_ns)
{
    return !address->gone && address->bad_until_ns <= now_ns;
}

static bool is_down(const struct sl_host *host, uint64_t now_ns)
{
    for (unsigned i = 0; i < host->count; i++)
        if (is_good(&host->addresses[i], now_ns))
            return false;
    return true;
}

static void count_link(struct sl_permit *permit, int change)
{
    if (permit->address >= 0)
        permit->host->addresses[permit->address].links += (unsigned)change;
}

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
        if (is_same(&host->addresses[i].socket.any, address))
            return (int)i;
    return -1;
}

/* In a place of its own, or one that nobody needs any more. */
static void add_address(struct sl_host *host, const struct sockaddr *address)
{
    struct sl_host_address *place = NULL;
    for (unsigned i = 0; i < host->count; i++) {
        struct sl_host_address *known = &host->addresses[i];
        if (is_same(&known->socket.any, address)) {
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
    memcpy(&place->socket, address, v6 ? sizeof(place->socket.v6) : sizeof(place->socket.v4));
    inet_ntop(address->sa_family,
              v6 ? (const void *)&place->socket.v6.sin6_addr
                 : (const void *)&place->socket.v4.sin_addr,
              place->text, sizeof(place->text));
}

static bool parse_address(const char *name, union sl_host_sockaddr *parsed)
{
    memset(parsed, 0, sizeof(*parsed));
    if (inet_pton(AF_INET, name, &parsed->v4.sin_addr) == 1) {
        parsed->any.sa_family = AF_INET;
        return true;
    }
    parsed->any.sa_family = AF_INET6;
    return inet_pton(AF_INET6, name, &parsed->v6.sin6_addr) == 1;
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
    union sl_host_sockaddr parsed;
    host->loopback = parse_address("127.0.0.1", &parsed);
    add_address(host, &parsed.any);
    if (has_v6() && parse_address("::1", &parsed))
        add_address(host, &parsed.any);
}

static int prepare(struct sl_host *host, struct sl_err *err)
{
    union sl_host_sockaddr parsed;
    host->numeric = is_spelled_address(host->name);
    if (host->numeric) {
        if (parse_address(host->name, &parsed))
            add_address(host, &parsed.any);
        return 0;
    }
    if (is_localhost(host->name)) {
        add_loopback(host);
        return 0;
    }
    host->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return host->fd < 0 ? sl_fail(err, SL_E_NO_SPACE, "too many open files: raise ulimit -n") : 0;
}

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
    return age > FRESH_NS || (age > DOWN_NS && is_down(host, now_ns));
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

/* ---- the table ------------------------------------------------------------------------------- */

/* Their permits are held by links that a child has not, and look-ups under way end nowhere. */
static void forget(void)
{
    hosts = NULL;
}
SL_FORK_GUARD(&sl_hosts_lock, forget)

void sl_host_on_want(void (*shed)(const struct sl_host *host))
{
    SL_LOCKED(&sl_hosts_lock);
    shed_idle = shed;
}

static void free_host(struct sl_host *host)
{
    if (host->fd >= 0)
        close(host->fd);
    free(host->name);
    free(host);
}

/* Of those that nobody uses keep the latest. */
static void forget_the_oldest(void)
{
    unsigned kept = HOSTS_KEPT;
    for (struct sl_host **at = &hosts; *at;) {
        struct sl_host *host = *at;
        bool used = host->users || host->looking;
        if (used || kept) {
            kept -= !used;
            at = &host->next;
        } else {
            *at = host->next;
            free_host(host);
        }
    }
}

static struct sl_host *find(const char *name, unsigned port, struct sl_err *err)
{
    for (struct sl_host *host = hosts; host; host = host->next)
        if (host->port == port && strcmp(host->name, name) == 0)
            return host;
    forget_the_oldest();
    struct sl_host *host = sl_alloc(sizeof(*host), err);
    if (!host)
        return NULL;
    host->fd = -1;
    host->port = port;
    host->name = sl_strdup(name, err);
    if (!host->name || prepare(host, err) < 0) {
        free_host(host);
        return NULL;
    }
    host->next = hosts;
    hosts = host;
    return host;
}

/* ---- permits ----------------------------------------------------------------------------------
 */

static void append(struct sl_host *host, struct sl_permit *permit)
{
    permit->next = NULL;
    permit->before = host->permits_last;
    *(host->permits_last ? &host->permits_last->next : &host->permits) = permit;
    host->permits_last = permit;
}

static void unlink_permit(struct sl_host *host, struct sl_permit *permit)
{
    *(permit->before ? &permit->before->next : &host->permits) = permit->next;
    *(permit->next ? &permit->next->before : &host->permits_last) = permit->before;
}

static unsigned bound(unsigned limit)
{
    unsigned most = sl_descriptors_for_connections();
    return limit ? SL_MIN(limit, most) : most;
}

void sl_host_pass_permit(struct sl_permit *permit, const void *owner, unsigned limit)
{
    unsigned bounded = bound(limit);
    if (!permit->host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    permit->owner = owner;
    permit->limit = bounded;
}

int sl_host_ask_permit(struct sl_permit *permit, const char *name, unsigned port, const void *owner,
                       unsigned limit, struct sl_err *err)
{
    unsigned bounded = bound(limit);
    sl_host_leave(permit);
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host *host = find(name, port, err);
    if (!host)
        return -1;
    *permit = (struct sl_permit){
        .host = host, .owner = owner, .limit = bounded, .address = -1, .asked_ns = sl_now_ns()};
    append(host, permit);
    host->users++;
    host->waiting++;
    return 0;
}

void sl_host_leave(struct sl_permit *permit)
{
    struct sl_host *host = permit->host;
    if (!host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    count_link(permit, -1);
    unlink_permit(host, permit);
    host->users--;
    *(permit->held ? &host->held : &host->waiting) -= 1;
    *permit = (struct sl_permit){.address = -1};
}

/* The permits that were asked for earlier, and wait. */
static unsigned count_before(const struct sl_permit *permit, uint64_t now_ns)
{
    unsigned count = 0;
    for (const struct sl_permit *other = permit->host->permits; other != permit;
         other = other->next)
        count += !other->held && now_ns - other->asked_ns < PASSED_OVER_NS;
    return count;
}

bool sl_host_is_permitted(struct sl_permit *permit)
{
    void (*shed)(const struct sl_host *host) = NULL;
    {
        SL_LOCKED(&sl_hosts_lock);
        struct sl_host *host = permit->host;
        uint64_t now_ns = permit->asked_ns = sl_now_ns();
        if (permit->held)
            return true;
        if (!permit->limit || host->held + host->waiting <= permit->limit ||
            host->held + count_before(permit, now_ns) < permit->limit) {
            permit->held = true;
            host->waiting--;
            host->held++;
            return true;
        }
        shed = shed_idle;
    }
    if (shed)
        shed(permit->host);
    return false;
}

bool sl_host_has_room(const struct sl_permit *permit)
{
    const struct sl_host *host = permit->host;
    if (!host || !permit->limit)
        return true;
    SL_LOCKED(&sl_hosts_lock);
    return host->held + host->waiting <= permit->limit;
}

static unsigned held_by(const struct sl_host *host, const void *owner)
{
    unsigned count = 0;
    for (const struct sl_permit *permit = host->permits; permit; permit = permit->next)
        count += permit->held && permit->owner == owner;
    return count;
}

bool sl_host_should_yield(const struct sl_permit *permit)
{
    const struct sl_host *host = permit->host;
    if (!host)
        return false;
    SL_LOCKED(&sl_hosts_lock);
    if (!host->waiting)
        return false;
    unsigned mine = held_by(host, permit->owner);
    for (const struct sl_permit *other = host->permits; other; other = other->next)
        if (!other->held && other->owner != permit->owner && other->limit &&
            held_by(host, other->owner) + 1 < mine)
            return host->held >= other->limit;
    return false;
}

/* ---- which address is next --------------------------------------------------------------------
 *
 * How the addresses of a host do, and which is next.
 *
 * An address is worth what its answers bring beside the best of its siblings; connections go where
 * there are fewest for that worth. A refusal puts an address out of favour at once, other troubles
 * when they come several in a row, a rate far below the siblings' when there are samples enough:
 * for some seconds, longer each time, and then it gets a connection again to show itself. Where all
 * are out of favour, the one whose time ends first is as good as any.
 */

static void move_to(struct sl_permit *permit, int address)
{
    count_link(permit, -1);
    permit->address = address;
    count_link(permit, 1);
}

static double rate_of(const struct sl_host_address *address)
{
    return address->samples >= SAMPLES_MIN && address->seconds > 0
               ? address->bytes / address->seconds
               : 0;
}

static double best_rate(const struct sl_host *host, uint64_t now_ns)
{
    double best = 0;
    for (unsigned i = 0; i < host->count; i++)
        if (is_good(&host->addresses[i], now_ns))
            best = SL_MAX(best, rate_of(&host->addresses[i]));
    return best;
}

/* Low is good: the kind first, then connections for what they bring. */
struct rank {
    unsigned kind;
    double load;
};

static struct rank rank_of(const struct sl_host *host, unsigned number, uint32_t avoid, double best,
                           uint64_t now_ns)
{
    const struct sl_host_address *address = &host->addresses[number];
    double rate = rate_of(address), worth = best > 0 && rate > 0 ? rate / best : 1;
    if (address->strikes || address->refusals)
        worth *= 0.5;
    worth = SL_MIN(SL_MAX(worth, WORTH_MIN), 1.0);
    bool bad = address->bad_until_ns > now_ns;
    bool doubted = address->doubted_until_ns > now_ns;
    return (struct rank){(avoid >> number & 1) * 4 + bad * 2 + doubted,
                         bad ? (double)address->bad_until_ns
                             : (double)(address->links + 1) / worth};
}

static bool is_before(struct rank a, struct rank b)
{
    return a.kind != b.kind ? a.kind < b.kind : a.load < b.load;
}

/* Numbers of the addresses that are not gone, the best first. */
static unsigned sort_addresses(const struct sl_host *host, uint32_t avoid,
                               unsigned order[SL_HOST_ADDRESSES_MAX])
{
    struct rank ranks[SL_HOST_ADDRESSES_MAX];
    uint64_t now_ns = sl_now_ns();
    double best = best_rate(host, now_ns);
    unsigned count = 0;
    for (unsigned i = 0; i < host->count; i++) {
        if (host->addresses[i].gone)
            continue;
        struct rank rank = rank_of(host, i, avoid, best, now_ns);
        unsigned at = count++;
        for (; at && is_before(rank, ranks[at - 1]); at--) {
            ranks[at] = ranks[at - 1];
            order[at] = order[at - 1];
        }
        ranks[at] = rank;
        order[at] = i;
    }
    return count;
}

unsigned sl_host_addresses(struct sl_permit *permit, uint32_t avoid,
                           union sl_host_sockaddr addresses[SL_HOST_ADDRESSES_MAX])
{
    struct sl_host *host = permit->host;
    unsigned order[SL_HOST_ADDRESSES_MAX];
    SL_LOCKED(&sl_hosts_lock);
    unsigned count = sort_addresses(host, avoid, order);
    move_to(permit, count ? (int)order[0] : -1);
    for (unsigned i = 0; i < count; i++)
        addresses[i] = host->addresses[order[i]].socket;
    return count;
}

bool sl_host_choose(struct sl_permit *permit, uint32_t avoid, char text[SL_HOST_RESOLVE_BYTES])
{
    struct sl_host *host = permit->host;
    unsigned order[SL_HOST_ADDRESSES_MAX];
    SL_LOCKED(&sl_hosts_lock);
    unsigned count = sort_addresses(host, avoid, order);
    move_to(permit, count ? (int)order[0] : -1);
    if (host->numeric || !count)
        return false;
    int used = snprintf(text, SL_HOST_RESOLVE_BYTES, "%s:%u:", host->name, host->port);
    for (unsigned i = 0; i < count && used < SL_HOST_RESOLVE_BYTES; i++) {
        const struct sl_host_address *address = &host->addresses[order[i]];
        bool v6 = address->socket.any.sa_family == AF_INET6;
        used += snprintf(text + used, (size_t)(SL_HOST_RESOLVE_BYTES - used), "%s%s%s%s",
                         i ? "," : "", v6 ? "[" : "", address->text, v6 ? "]" : "");
    }
    return used < SL_HOST_RESOLVE_BYTES;
}

bool sl_host_has_other(const struct sl_permit *permit, uint32_t avoid)
{
    const struct sl_host *host = permit->host;
    if (!host)
        return false;
    SL_LOCKED(&sl_hosts_lock);
    uint64_t now_ns = sl_now_ns();
    for (unsigned i = 0; i < host->count; i++)
        if (!(avoid >> i & 1) && is_good(&host->addresses[i], now_ns))
            return true;
    return false;
}

const char *sl_host_names(const struct sl_permit *permit, uint32_t bits, char *text, size_t bytes)
{
    const struct sl_host *host = permit->host;
    size_t used = 0;
    text[0] = 0;
    if (!host)
        return text;
    SL_LOCKED(&sl_hosts_lock);
    for (unsigned i = 0; !host->numeric && i < host->count && used < bytes; i++)
        if (bits >> i & 1)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     host->addresses[i].text);
    return text;
}

/* ---- scoring -------------------------------------------------------------------------------- */

static void put_out(struct sl_host *host, struct sl_host_address *address, unsigned times,
                    const char *why)
{
    uint64_t now_ns = sl_now_ns();
    uint64_t ns = SL_MIN(BAD_NS << SL_MIN(times - 1, 8u), BAD_NS_MAX);
    address->bad_until_ns = now_ns + ns;
    if (!host->numeric)
        sl_log(SL_LOG_DEBUG,
               "address %s of '%s' %s: no connections there for %" PRIu64
               " s (rate %.1f MB/s, the best %.1f; %" PRIu64 " errors)",
               address->text, host->name, why, (uint64_t)(ns / SL_NS_PER_S), rate_of(address) / 1e6,
               best_rate(host, now_ns) / 1e6, address->errors);
}

void sl_host_connected(struct sl_permit *permit, int number)
{
    if (!permit->host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    move_to(permit, number);
    if (number < 0)
        return;
    struct sl_host_address *address = &permit->host->addresses[number];
    address->connects++;
    address->refusals = 0;
}

void sl_host_refused(struct sl_permit *permit, int number)
{
    if (!permit->host || number < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[number];
    address->errors++;
    if (address->bad_until_ns <= sl_now_ns()) /* else it is the same trouble, told twice */
        put_out(permit->host, address, ++address->refusals, "takes no connection");
}

void sl_host_troubled(struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[permit->address];
    address->errors++;
    if (++address->strikes >= STRIKES_MAX && address->bad_until_ns <= sl_now_ns())
        put_out(permit->host, address, address->strikes - STRIKES_MAX + 1, "fails");
}

/* Much slower than the best, again and again. */
static void judge_rate(struct sl_host *host, struct sl_host_address *address)
{
    uint64_t now_ns = sl_now_ns();
    double rate = rate_of(address);
    if (address->samples < SAMPLES_MIN || address->bad_until_ns > now_ns ||
        rate >= SLOW * best_rate(host, now_ns))
        return;
    put_out(host, address, 1, "is slow");
    address->samples = 0; /* when it is back it is measured anew */
    address->bytes = address->seconds = 0;
}

void sl_host_answered(struct sl_permit *permit, uint64_t bytes, uint64_t ns, bool whole)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[permit->address];
    address->received += bytes;
    if (whole)
        address->strikes = 0;
    if (bytes < ANSWER_BYTES_MIN && (whole || ns < GIVEN_UP_NS))
        return;
    address->bytes = address->bytes * MEMORY + (double)bytes;
    address->seconds = address->seconds * MEMORY + (double)ns / (double)SL_NS_PER_S;
    address->samples++;
    judge_rate(permit->host, address);
}

void sl_host_waited(struct sl_permit *permit, uint64_t ns)
{
    if (!permit->host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    permit->host->answer_delay_ns = sl_latency_host_add(permit->host->answer_delay_ns, ns);
}

uint64_t sl_host_answer_delay(const struct sl_permit *permit)
{
    if (!permit->host)
        return 0;
    SL_LOCKED(&sl_hosts_lock);
    return permit->host->answer_delay_ns;
}

void sl_host_doubted(struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    permit->host->addresses[permit->address].doubted_until_ns = sl_now_ns() + DOUBT_NS;
}

bool sl_host_outdone(const struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return false;
    bool bad;
    {
        SL_LOCKED(&sl_hosts_lock);
        bad = !is_good(&permit->host->addresses[permit->address], sl_now_ns());
    }
    return bad && sl_host_has_other(permit, UINT32_C(1) << permit->address);
}

/* ---- metrics -------------------------------------------------------------------------------- */

struct table {
    struct sl_buf *out;
    unsigned family, shown;
    int failed;
};
static const struct {
    const char *name, *type, *unit, *help;
} families[] = {
    {"sluice_address_rate_bytes", "gauge", "bytes",
     "Bytes that a connection to this address brings in a second, lately"},
    {"sluice_address_connections", "gauge", "", "Connections to this address now"},
    {"sluice_address_errors_total", "counter", "",
     "Connections and answers of this address that failed"},
};

static double value_of(const struct sl_host_address *address, unsigned family)
{
    if (family == 0)
        return address->seconds > 0 ? address->bytes / address->seconds : 0;
    return (double)(family == 1 ? address->links : address->errors);
}

static void write_host(const struct sl_host *host, struct table *table)
{
    for (unsigned i = 0; i < host->count && table->shown < SHOWN_MAX; i++, table->shown++)
        table->failed |=
            sl_buf_printf(table->out, NULL, "%s{host=\"%s\",port=\"%u\",address=\"%s\"} %.17g\n",
                          families[table->family].name, host->name, host->port,
                          host->addresses[i].text, value_of(&host->addresses[i], table->family));
}

int sl_host_metrics(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    for (unsigned i = 0; i < SL_COUNT(families); i++) {
        struct table table = {.out = out, .family = i};
        if (sl_metrics_head(out, openmetrics, families[i].name, families[i].type, families[i].unit,
                            families[i].help, err) < 0)
            return -1;
        {
            SL_LOCKED(&sl_hosts_lock);
            for (struct sl_host *host = hosts; host; host = host->next)
                write_host(host, &table);
        }
        if (table.failed)
            return sl_fail(err, SL_E_NO_SPACE, "metrics are too large");
    }
    return 0;
}
