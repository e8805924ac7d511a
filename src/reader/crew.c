/*
 * The lanes of one thread, through one poll(). Connections are not threads: a thread that serves
 * several keeps their concurrency for half the CPU, because fewer writers meet at the page cache's
 * locks. A round steps every lane that may move; poll() blocks only when none can.
 */
#include <errno.h>

#include "metrics.h"
#include "reader_parts.h"

enum { FIXED_FDS = 2 /* cancel, stop */, LONGEST_MS = 1000, LOOK_AGAIN_MS = 20 };

struct berth {
    struct sl_reader_lane *lane;
    bool waits;
    bool idle; /* waits for a chance to help a slow lane */
    uint64_t deadline_ns;
    int first_fd, fd_count; /* in crew->fds, while it waits */
};
struct crew {
    struct sl_reader *reader;
    unsigned thread;
    struct berth *berths;
    unsigned count, capacity;
    struct pollfd *fds;
    bool exhausted; /* no range is left to take */
};

static void tell_connections(struct sl_reader *reader, int change)
{
    unsigned lanes;
    {
        SL_LOCKED(&reader->lock);
        lanes = reader->locked.lanes += (unsigned)change;
    }
    sl_metric_add(SL_M_CONNECTIONS, change);
    sl_progress_set_connections(reader->config->progress, lanes);
}

/* This thread's part of the connections wanted. */
static unsigned share(const struct crew *crew)
{
    struct sl_reader *reader = crew->reader;
    SL_LOCKED(&reader->lock);
    unsigned wanted = reader->locked.wanted, threads = reader->threads;
    return SL_MIN(wanted / threads + (crew->thread < wanted % threads), crew->capacity);
}

static void dismiss(struct crew *crew, unsigned number)
{
    sl_reader_lane_free(crew->berths[number].lane);
    crew->berths[number] = crew->berths[--crew->count];
    tell_connections(crew->reader, -1);
}

static int hire(struct crew *crew, const struct sl_range *range, struct sl_err *err)
{
    struct sl_reader_lane *lane = sl_reader_lane_new(crew->reader, err);
    if (!lane)
        return -1;
    crew->berths[crew->count++] = (struct berth){.lane = lane};
    tell_connections(crew->reader, 1);
    return sl_reader_lane_start(lane, range, err);
}

static int hire_missing(struct crew *crew, struct sl_err *err)
{
    if (!crew->count && !sl_reader_has_work(crew->reader))
        crew->exhausted = true;
    for (unsigned wanted = share(crew); crew->count < wanted && !crew->exhausted;) {
        const struct sl_range *range = sl_reader_take(crew->reader);
        if (!range)
            crew->exhausted = true;
        else if (hire(crew, range, err) < 0)
            return -1;
    }
    return 0;
}

/* The lane of this crew that has most left, if that may be split. */
static struct sl_reader_lane *busiest(struct crew *crew)
{
    struct sl_reader_lane *most = NULL;
    for (unsigned i = 0; i < crew->count; i++) {
        struct sl_reader_lane *lane = crew->berths[i].lane;
        if (sl_reader_lane_may_split(lane) &&
            (!most || sl_reader_lane_left(lane) > sl_reader_lane_left(most)))
            most = lane;
    }
    return most;
}

/*
 * A lane came to the end of its range: give it another; at the end of the load half of a slow
 * lane's, or the hope of that; else let it go. 1 if it is gone.
 */
static int employ(struct crew *crew, unsigned number, struct sl_err *err)
{
    struct berth *berth = &crew->berths[number];
    bool wanted = crew->count <= share(crew);
    const struct sl_range *range = wanted ? sl_reader_take(crew->reader) : NULL;
    struct sl_reader_lane *slow = wanted && !range ? busiest(crew) : NULL;
    struct sl_range rest;
    if (slow && sl_reader_lane_split(slow, &rest))
        range = &rest;
    berth->idle = slow && !range;
    if (range)
        return sl_reader_lane_start(berth->lane, range, err);
    if (berth->idle)
        return 0;
    dismiss(crew, number);
    return 1;
}

/* What a round of steps found. */
struct round {
    bool moving; /* some lane would move again */
    bool full;   /* some lane waits for its turn to write */
};

/* Step every lane that may move once. */
static int step_all(struct crew *crew, bool insist, struct round *round, struct sl_err *err)
{
    *round = (struct round){false, false};
    for (unsigned i = 0; i < crew->count;) {
        struct berth *berth = &crew->berths[i];
        enum sl_lane_state state =
            berth->waits ? SL_LANE_WAIT : sl_reader_lane_step(berth->lane, insist, err);
        if (state == SL_LANE_FAILED)
            return -1;
        int gone = state == SL_LANE_IDLE ? employ(crew, i, err) : 0;
        if (gone < 0)
            return -1;
        if (gone) {
            round->moving = true; /* someone else may be wanted */
            continue;
        }
        berth->waits = state == SL_LANE_WAIT || berth->idle;
        round->full = round->full || state == SL_LANE_FULL;
        round->moving =
            round->moving || state == SL_LANE_RUN || (state == SL_LANE_IDLE && !berth->idle);
        i++;
    }
    return 0;
}

static int timeout_ms(uint64_t deadline_ns)
{
    uint64_t now = sl_now_ns();
    if (deadline_ns <= now)
        return 0;
    uint64_t ms = (deadline_ns - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS;
    return (int)SL_MIN(ms, (uint64_t)LONGEST_MS);
}

static unsigned gather_fds(struct crew *crew, uint64_t *deadline_ns)
{
    unsigned used = FIXED_FDS;
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        if (!berth->waits)
            continue;
        berth->deadline_ns = berth->idle ? sl_now_ns() + LOOK_AGAIN_MS * SL_NS_PER_MS : UINT64_MAX;
        berth->first_fd = (int)used;
        berth->fd_count = 0;
        if (!berth->idle)
            berth->fd_count =
                sl_reader_lane_poll(berth->lane, crew->fds + used, &berth->deadline_ns);
        used += (unsigned)berth->fd_count;
        *deadline_ns = SL_MIN(*deadline_ns, berth->deadline_ns);
    }
    return used;
}

static void wake(struct crew *crew)
{
    uint64_t now = sl_now_ns();
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        for (int fd = 0; berth->waits && fd < berth->fd_count; fd++)
            if (crew->fds[berth->first_fd + fd].revents)
                berth->waits = false;
        if (berth->waits && berth->deadline_ns <= now)
            berth->waits = false;
    }
}

static int wait_for_lanes(struct crew *crew, bool moving, struct sl_err *err)
{
    uint64_t deadline_ns = UINT64_MAX;
    unsigned used = gather_fds(crew, &deadline_ns);
    if (!crew->count) /* no connection is this thread's now: look again soon */
        deadline_ns = sl_now_ns() + LOOK_AGAIN_MS * SL_NS_PER_MS;
    int ready = poll(crew->fds, used, moving ? 0 : timeout_ms(deadline_ns));
    if (ready < 0 && errno != EINTR)
        return sl_fail_errno(err, SL_E_INTERNAL, errno, "cannot wait for connections");
    if (sl_cancel_check(crew->reader->config->cancel, err) < 0 ||
        sl_cancel_check(crew->reader->stop, err) < 0)
        return -1;
    wake(crew);
    return 0;
}

/* The first thread steers the number of connections for all. */
static void steer(struct crew *crew)
{
    struct sl_reader *reader = crew->reader;
    unsigned throttled = 0;
    for (unsigned i = 0; i < crew->count; i++)
        throttled += sl_reader_lane_take_throttled(crew->berths[i].lane);
    uint64_t bytes = sl_counter_get(&reader->landed), now = sl_now_ns();
    SL_LOCKED(&reader->lock);
    reader->locked.throttled += throttled;
    if (crew->thread)
        return;
    reader->locked.wanted =
        sl_growth_tick(&reader->locked.growth, now, bytes, reader->locked.throttled);
    reader->locked.throttled = 0;
}

static int run_crew(struct crew *crew, struct sl_err *err)
{
    for (bool insist = false;;) {
        struct round round;
        if (hire_missing(crew, err) < 0 || step_all(crew, insist, &round, err) < 0)
            return -1;
        if (crew->count == 0 && crew->exhausted)
            return 0;
        if (wait_for_lanes(crew, round.moving || round.full, err) < 0)
            return -1;
        insist = round.full && !round.moving;
        steer(crew);
    }
}

void sl_crew_run(struct sl_reader *reader, unsigned thread)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned capacity = reader->connections_max / reader->threads + 1;
    struct crew crew = {.reader = reader, .thread = thread, .capacity = capacity};
    crew.berths = sl_alloc_array(capacity, sizeof(*crew.berths), &err);
    if (crew.berths)
        crew.fds = sl_alloc_array(FIXED_FDS + (size_t)capacity * SL_FETCH_POLL_MAX,
                                  sizeof(*crew.fds), &err);
    int failed = -1;
    if (crew.fds) {
        crew.fds[0] = (struct pollfd){sl_cancel_fd(reader->config->cancel), POLLIN, 0};
        crew.fds[1] = (struct pollfd){sl_cancel_fd(reader->stop), POLLIN, 0};
        failed = run_crew(&crew, &err);
    }
    if (failed < 0)
        sl_reader_fail(reader, &err);
    while (crew.count)
        dismiss(&crew, 0);
    free(crew.berths);
    free(crew.fds);
}
