/*
 * The lanes of one thread, through one poll(). Connections are not threads: a thread that serves
 * several keeps their concurrency for half the CPU, because fewer writers meet at the page cache's
 * locks. A round steps every lane that may move; poll() blocks only when none can.
 *
 * Every thread looks at its own lanes now and then. One whose request seems to stall blocks its
 * place: another lane stands in for it until that is settled (slow.c), so that a request in a
 * hundred that stalls costs the load next to nothing. At the end of a load, lanes that find no
 * range stay, idle, until the last has ended, and are given parts of large ranges, here or in other
 * threads.
 */
#include <errno.h>
#include <limits.h>

#include "metrics.h"
#include "reader_parts.h"

enum {
    FIXED_FDS = 3 /* cancel, stop, done */,
    LOOK_PART = 4, /* so often within the patience for a first byte */
};
#define LOOK_NS_MIN   (6 * SL_NS_PER_MS)
#define LOOK_AGAIN_NS (20 * SL_NS_PER_MS)

struct berth {
    struct sl_reader_lane *lane;
    bool waits;
    bool idle;  /* waits for something to read */
    bool quiet; /* it waits, and poll() found nothing for it */
    enum sl_lane_pace pace;
    uint64_t deadline_ns;
    int first_fd, fd_count; /* in crew->fds, while it waits */
};
struct crew {
    struct sl_reader *reader;
    unsigned thread;
    struct berth *berths;
    unsigned count, capacity; /* of berths */
    struct pollfd *fds;
    bool used_up;                /* no range of the plan is left: lanes help each other */
    unsigned doubtful;           /* lanes, when they were looked at last */
    uint64_t looked_ns, look_ns; /* when; when again */
};

static void tell_connections(struct sl_reader *reader, int change)
{
    unsigned lanes;
    {
        SL_LOCKED(&reader->lock);
        lanes = reader->locked.lanes += (unsigned)change;
        reader->locked.lanes_most = SL_MAX(reader->locked.lanes_most, lanes);
    }
    sl_metric_add(SL_M_CONNECTIONS, change);
    sl_progress_set_connections(reader->config->progress, lanes);
}

static unsigned share(const struct crew *crew)
{
    struct sl_reader *reader = crew->reader;
    SL_LOCKED(&reader->lock);
    const struct sl_share_facts facts = {.thread = crew->thread,
                                         .wanted = reader->locked.wanted,
                                         .doubtful = crew->doubtful,
                                         .all_doubtful = reader->locked.doubtful,
                                         .all_open = reader->locked.lanes,
                                         .too_many = reader->locked.growth.ceiling > 0};
    return sl_concurrency_share(&reader->concurrency, &facts);
}

static void set_idle(struct crew *crew, struct berth *berth, bool idle)
{
    if (berth->idle != idle)
        sl_reader_count_idle(crew->reader, idle ? 1 : -1);
    berth->idle = idle;
}

static void dismiss(struct crew *crew, unsigned number)
{
    set_idle(crew, &crew->berths[number], false);
    sl_reader_lane_free(crew->berths[number].lane);
    crew->berths[number] = crew->berths[--crew->count];
    tell_connections(crew->reader, -1);
}

static int hire(struct crew *crew, const struct sl_reader_job *job, struct sl_err *err)
{
    struct sl_reader_lane *lane = sl_reader_lane_new(crew->reader, err);
    if (!lane)
        return -1;
    crew->berths[crew->count++] = (struct berth){.lane = lane};
    tell_connections(crew->reader, 1);
    return sl_reader_lane_start(lane, job, err);
}

static int hire_missing(struct crew *crew, struct sl_err *err)
{
    struct sl_reader_job job;
    for (unsigned wanted = share(crew); crew->count < wanted;) {
        if (!sl_reader_take(crew->reader, &job))
            break;
        if (hire(crew, &job, err) < 0)
            return -1;
    }
    return 0;
}

/*
 * A lane came to the end of its range: give it another, or the hope of one that a slow lane gives
 * away; else let it go. 1 if it is gone.
 */
static int employ(struct crew *crew, unsigned number, struct sl_err *err)
{
    struct berth *berth = &crew->berths[number];
    bool wanted = crew->count <= share(crew);
    struct sl_reader_job job;
    bool found = wanted && sl_reader_take(crew->reader, &job);
    set_idle(crew, berth, wanted && !found && !sl_reader_finished(crew->reader));
    if (found)
        return sl_reader_lane_start(berth->lane, &job, err);
    if (berth->idle) {
        sl_reader_lane_rest(berth->lane);
        return 0;
    }
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
    return (int)SL_MIN(ms, (uint64_t)INT_MAX);
}

static unsigned gather_fds(struct crew *crew, uint64_t *deadline_ns)
{
    unsigned used = FIXED_FDS;
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        if (!berth->waits)
            continue;
        berth->deadline_ns = berth->idle ? sl_now_ns() + LOOK_AGAIN_NS : UINT64_MAX;
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
    bool done = crew->fds[2].revents != 0;
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        berth->quiet = berth->waits;
        for (int fd = 0; berth->waits && fd < berth->fd_count; fd++)
            if (crew->fds[berth->first_fd + fd].revents)
                berth->quiet = false;
        bool due = berth->deadline_ns <= now || (berth->idle && done);
        berth->waits = berth->quiet && !due;
    }
}

static int wait_for_lanes(struct crew *crew, bool moving, struct sl_err *err)
{
    /* Whatever comes or does not, lanes are looked at again soon. */
    uint64_t deadline_ns = moving ? 0 : sl_now_ns() + crew->look_ns;
    unsigned used = gather_fds(crew, &deadline_ns);
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
    sl_reader_know_distance(reader);
    reader->locked.wanted =
        sl_growth_tick(&reader->locked.growth, now, bytes, reader->locked.throttled);
    reader->locked.throttled = 0;
}

/* The lane of this crew that has most left, of those that may be split. */
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

static void wake_idle(struct crew *crew)
{
    for (unsigned i = 0; i < crew->count; i++)
        if (crew->berths[i].idle)
            crew->berths[i].waits = false;
}

/* All doubts are told before any is acted upon: where most are slow, none is sent again. */
static int send_again(struct crew *crew, struct sl_err *err)
{
    unsigned doubtful = 0;
    struct sl_patience patience = sl_reader_patience(crew->reader);
    crew->look_ns = SL_MIN(SL_MAX(patience.first_ns / LOOK_PART, LOOK_NS_MIN), LOOK_AGAIN_NS);
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        berth->pace = sl_reader_lane_pace(berth->lane, berth->quiet, &patience);
        doubtful += berth->pace != SL_PACE_FINE;
    }
    if (doubtful != crew->doubtful)
        sl_reader_count_doubtful(crew->reader, (int)doubtful - (int)crew->doubtful);
    crew->doubtful = doubtful;
    for (unsigned i = 0; i < crew->count; i++) {
        struct berth *berth = &crew->berths[i];
        if (berth->pace < SL_PACE_SLOW)
            continue;
        int sent = sl_reader_lane_hedge(berth->lane, berth->pace, err);
        if (sent < 0)
            return -1;
        /* What came but is less than poll() tells of is in the way, if it is too much to waste. */
        bool takes = !sent && sl_reader_lane_unread(berth->lane);
        berth->waits = berth->waits && !sent && !takes;
    }
    return 0;
}

/* Now and then: what is slow is sent again; when the plan is used up, those who are idle help. */
static int look_after(struct crew *crew, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (now - crew->looked_ns < crew->look_ns)
        return 0;
    crew->looked_ns = now;
    if (send_again(crew, err) < 0)
        return -1;
    if (!crew->used_up && !(crew->used_up = sl_reader_used_up(crew->reader)))
        return 0;
    while (sl_reader_hungry(crew->reader)) {
        struct sl_reader_lane *lane = busiest(crew);
        if (!lane || !sl_reader_lane_split(lane))
            break;
        wake_idle(crew);
    }
    return 0;
}

static int run_crew(struct crew *crew, struct sl_err *err)
{
    for (bool insist = false;;) {
        struct round round;
        if (hire_missing(crew, err) < 0 || step_all(crew, insist, &round, err) < 0)
            return -1;
        if (crew->count == 0 && sl_reader_finished(crew->reader))
            return 0;
        if (wait_for_lanes(crew, round.moving || round.full, err) < 0)
            return -1;
        insist = round.full && !round.moving;
        steer(crew);
        if (look_after(crew, err) < 0)
            return -1;
    }
}

void sl_crew_run(struct sl_reader *reader, unsigned thread)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_thread_room room = sl_concurrency_room(&reader->concurrency);
    unsigned capacity = room.most + room.stand_ins;
    struct crew crew = {
        .reader = reader, .thread = thread, .capacity = capacity, .look_ns = LOOK_NS_MIN};
    crew.berths = sl_alloc_array(capacity, sizeof(*crew.berths), &err);
    if (crew.berths)
        crew.fds =
            sl_alloc_array(FIXED_FDS + (size_t)capacity * SL_IO_POLL_MAX, sizeof(*crew.fds), &err);
    int failed = -1;
    if (crew.fds) {
        crew.fds[0] = (struct pollfd){sl_cancel_fd(reader->config->cancel), POLLIN, 0};
        crew.fds[1] = (struct pollfd){sl_cancel_fd(reader->stop), POLLIN, 0};
        crew.fds[2] = (struct pollfd){sl_cancel_fd(reader->done), POLLIN, 0};
        failed = run_crew(&crew, &err);
    }
    if (failed < 0)
        sl_reader_fail(reader, &err);
    while (crew.count)
        dismiss(&crew, 0);
    free(crew.berths);
    free(crew.fds);
}
