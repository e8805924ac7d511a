/*
 * The slots of one thread, through one poll(). Connections are not threads: a thread that serves
 * several keeps their concurrency for half the CPU, because fewer writers meet at the page cache's
 * locks. A round steps every slot that may move; poll() blocks only when none can.
 *
 * Every thread looks at its own slots now and then. One whose request seems to stall blocks its
 * place: another slot stands in for it until that is settled (slow.c), so that a request in a
 * hundred that stalls costs the load next to nothing. At the end of a load, slots that find no
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

struct entry {
    struct sl_slot *slot;
    bool waits;
    bool idle;  /* waits for something to read */
    bool large; /* so is its buffer */
    bool quiet; /* it waits, and poll() found nothing for it */
    enum sl_slot_pace pace;
    size_t number; /* of the range that it reads next, where the load is pinned */
    uint64_t deadline_ns;
    int first_fd, fd_count; /* in self->fds, while it waits */
};
struct reader_thread {
    struct sl_reader *reader;
    unsigned number; /* of the load, from 0: the calling thread */
    struct entry *entries;
    unsigned count, capacity; /* of entries */
    unsigned opened;          /* slots so far */
    struct {
        size_t begin, end; /* of the ranges */
        size_t step;       /* from one that a slot reads to its next */
    } dealt;               /* where the load is pinned */
    unsigned large;        /* of them */
    struct pollfd *fds;
    bool used_up;                /* no range of the plan is left: slots help each other */
    unsigned doubtful;           /* slots, when they were looked at last */
    uint64_t looked_ns, look_ns; /* when; when again */
};

static void report_connections(struct sl_reader *reader, int change)
{
    unsigned slots;
    {
        SL_LOCKED(&reader->lock);
        slots = reader->locked.slots += (unsigned)change;
        reader->locked.slots_most = SL_MAX(reader->locked.slots_most, slots);
    }
    sl_metric_add(SL_M_CONNECTIONS, change);
    sl_progress_set_connections(reader->config->progress, slots);
}

static unsigned share(const struct reader_thread *self)
{
    struct sl_reader *reader = self->reader;
    SL_LOCKED(&reader->lock);
    const struct sl_share_facts facts = {
        .thread = self->number,
        .wanted = reader->locked.wanted,
        .doubtful = self->doubtful,
        .all_doubtful = reader->locked.doubtful,
        .all_open = reader->locked.slots,
        .crowded = sl_host_growth_is_crowded(&reader->locked.growth, reader->locked.slots)};
    return sl_concurrency_share(&reader->concurrency, &facts);
}

static void set_idle(struct reader_thread *self, struct entry *entry, bool idle)
{
    if (entry->idle != idle)
        sl_reader_count_idle(self->reader, idle ? 1 : -1);
    entry->idle = idle;
}

static void close_slot(struct reader_thread *self, unsigned number)
{
    set_idle(self, &self->entries[number], false);
    sl_slot_free(self->entries[number].slot);
    self->large -= self->entries[number].large;
    self->entries[number] = self->entries[--self->count];
    report_connections(self->reader, -1);
    if (!self->count)
        sl_reader_leave(self->reader, self->number);
}

/* Where the load is pinned each thread has a part of the ranges that follow one another, as large
 * as its part of the connections, and each of its slots every so many-th of these. So who is faster
 * reads no more, and few files have two writers. */
static void find_part(struct reader_thread *self)
{
    const struct sl_reader *reader = self->reader;
    size_t all = reader->concurrency.connections.most, threads = reader->concurrency.threads;
    size_t before = self->number * (all / threads) + SL_MIN((size_t)self->number, all % threads);
    self->dealt.step = all / threads + (self->number < all % threads);
    self->dealt.begin = reader->work.range_count * before / all;
    self->dealt.end = reader->work.range_count * (before + self->dealt.step) / all;
}

static bool take(struct reader_thread *self, size_t *number, struct sl_reader_job *job)
{
    struct sl_reader *reader = self->reader;
    if (!reader->plan->fixed.on)
        return sl_reader_take(reader, self->number, job);
    bool found = *number < self->dealt.end && sl_reader_deal(reader, self->number, *number, job);
    *number += found ? self->dealt.step : 0;
    return found;
}

static int open_slot(struct reader_thread *self, const struct sl_reader_job *job, size_t number,
                     struct sl_err *err)
{
    bool large = self->large < sl_concurrency_large(&self->reader->concurrency, self->number);
    struct sl_slot *slot = sl_slot_new(self->reader, large, err);
    if (!slot)
        return -1;
    self->entries[self->count++] = (struct entry){.slot = slot, .large = large, .number = number};
    self->opened++;
    self->large += large;
    report_connections(self->reader, 1);
    int failed = sl_slot_start(slot, job, err);
    SL_LOCKED(&self->reader->lock);
    self->reader->locked.begun++;
    return failed;
}

/* Whether each slot has its connection. Who composes needs another one first, and may wait for it.
 */
static bool have_all_begun(struct sl_reader *reader)
{
    if (sl_reader_composes(reader->plan))
        return true;
    SL_LOCKED(&reader->lock);
    return reader->locked.begun >=
           SL_MIN((size_t)reader->concurrency.connections.most, reader->work.range_count);
}

static int open_missing(struct reader_thread *self, struct sl_err *err)
{
    const struct sl_reader *reader = self->reader;
    const unsigned *there = reader->plan->fixed.on ? &self->opened : &self->count;
    struct sl_reader_job job;
    for (unsigned wanted = share(self); *there < wanted;) {
        size_t number = self->dealt.begin + self->opened;
        if (!take(self, &number, &job))
            break;
        if (open_slot(self, &job, number, err) < 0)
            return -1;
    }
    return 0;
}

/*
 * A slot came to the end of its range: give it another, or the hope of one that a slow slot gives
 * away; else let it go. 1 if it is gone. Where the load is pinned it keeps its connection until all
 * have one: else it depended on time which of them would go on with it.
 */
static int assign(struct reader_thread *self, unsigned number, struct sl_err *err)
{
    struct entry *entry = &self->entries[number];
    bool wanted = self->count <= share(self);
    struct sl_reader_job job;
    bool found = wanted && take(self, &entry->number, &job);
    bool fixed = self->reader->plan->fixed.on;
    bool stays = wanted && !found && (!fixed || !have_all_begun(self->reader));
    set_idle(self, entry, stays && !sl_reader_finished(self->reader));
    if (found)
        return sl_slot_start(entry->slot, &job, err);
    if (entry->idle) {
        if (!fixed)
            sl_slot_rest(entry->slot);
        return 0;
    }
    close_slot(self, number);
    return 1;
}

/* What a round of steps found. */
struct round {
    bool moving; /* some slot would move again */
    bool full;   /* some slot waits for its turn to write */
};

/* Step every slot that may move once. */
static int step_all(struct reader_thread *self, bool insist, struct round *round,
                    struct sl_err *err)
{
    *round = (struct round){false, false};
    for (unsigned i = 0; i < self->count;) {
        struct entry *entry = &self->entries[i];
        enum sl_slot_state state =
            entry->waits ? SL_SLOT_WAIT : sl_slot_step(entry->slot, insist, err);
        if (state == SL_SLOT_FAILED)
            return -1;
        int gone = state == SL_SLOT_IDLE ? assign(self, i, err) : 0;
        if (gone < 0)
            return -1;
        if (gone) {
            round->moving = true; /* someone else may be wanted */
            continue;
        }
        entry->waits = state == SL_SLOT_WAIT || entry->idle;
        round->full = round->full || state == SL_SLOT_FULL;
        round->moving =
            round->moving || state == SL_SLOT_RUN || (state == SL_SLOT_IDLE && !entry->idle);
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

static unsigned gather_fds(struct reader_thread *self, uint64_t *deadline_ns)
{
    unsigned used = FIXED_FDS;
    for (unsigned i = 0; i < self->count; i++) {
        struct entry *entry = &self->entries[i];
        if (!entry->waits)
            continue;
        entry->deadline_ns = entry->idle ? sl_now_ns() + LOOK_AGAIN_NS : UINT64_MAX;
        entry->first_fd = (int)used;
        entry->fd_count = 0;
        if (!entry->idle)
            entry->fd_count = sl_slot_poll(entry->slot, self->fds + used, &entry->deadline_ns);
        used += (unsigned)entry->fd_count;
        *deadline_ns = SL_MIN(*deadline_ns, entry->deadline_ns);
    }
    return used;
}

static void wake(struct reader_thread *self)
{
    uint64_t now = sl_now_ns();
    bool done = self->fds[2].revents != 0;
    for (unsigned i = 0; i < self->count; i++) {
        struct entry *entry = &self->entries[i];
        entry->quiet = entry->waits;
        for (int fd = 0; entry->waits && fd < entry->fd_count; fd++)
            if (self->fds[entry->first_fd + fd].revents)
                entry->quiet = false;
        bool due = entry->deadline_ns <= now || (entry->idle && done);
        entry->waits = entry->quiet && !due;
    }
}

static int wait_for_slots(struct reader_thread *self, bool moving, struct sl_err *err)
{
    /* Whatever comes or does not, slots are looked at again soon. */
    uint64_t deadline_ns = moving ? 0 : sl_now_ns() + self->look_ns;
    unsigned used = gather_fds(self, &deadline_ns);
    int ready = poll(self->fds, used, moving ? 0 : timeout_ms(deadline_ns));
    if (ready < 0 && errno != EINTR)
        return sl_fail_errno(err, SL_E_INTERNAL, errno, "cannot wait for connections");
    if (sl_cancel_check(self->reader->config->cancel, err) < 0 ||
        sl_cancel_check(self->reader->stop, err) < 0)
        return -1;
    wake(self);
    return 0;
}

/* The first thread steers the number of connections for all, unless that is pinned. */
static void steer(struct reader_thread *self)
{
    struct sl_reader *reader = self->reader;
    unsigned throttled = 0;
    if (reader->plan->fixed.on)
        return;
    for (unsigned i = 0; i < self->count; i++)
        throttled += sl_slot_take_throttled(self->entries[i].slot);
    uint64_t bytes = sl_counter_get(&reader->landed), now = sl_now_ns();
    uint64_t come = bytes + sl_counter_get(&reader->dropped);
    SL_LOCKED(&reader->lock);
    reader->locked.throttled += throttled;
    if (self->number)
        return;
    uint64_t wait_ns = sl_reader_first_byte_ns(reader);
    struct sl_growth *growth = sl_host_growth_lock(&reader->locked.growth);
    sl_concurrency_know_distance(&reader->facts, wait_ns, growth);
    reader->locked.wanted = sl_host_growth_tick(&reader->locked.growth, now, bytes,
                                                reader->locked.throttled, reader->locked.slots);
    reader->locked.throttled = 0;
    if (reader->plan->rows.rows && sl_weigh_tick(&reader->locked.weigh, now, come, bytes, wait_ns))
        sl_growth_know_smaller(growth, wait_ns, sl_plan_row_bytes(reader->plan));
    sl_host_growth_unlock();
}

/* The slot of this thread that has most left, of those that may be split. */
static struct sl_slot *busiest(struct reader_thread *self)
{
    struct sl_slot *most = NULL;
    for (unsigned i = 0; i < self->count; i++) {
        struct sl_slot *slot = self->entries[i].slot;
        if (sl_slot_may_split(slot) && (!most || sl_slot_left(slot) > sl_slot_left(most)))
            most = slot;
    }
    return most;
}

static void wake_idle(struct reader_thread *self)
{
    for (unsigned i = 0; i < self->count; i++)
        if (self->entries[i].idle)
            self->entries[i].waits = false;
}

/* All doubts are told before any is acted upon: where most are slow, none is sent again. */
static int send_again(struct reader_thread *self, struct sl_err *err)
{
    unsigned doubtful = 0;
    struct sl_latency_delays delays = sl_reader_delays(self->reader);
    self->look_ns = SL_MIN(SL_MAX(delays.first_ns / LOOK_PART, LOOK_NS_MIN), LOOK_AGAIN_NS);
    for (unsigned i = 0; i < self->count; i++) {
        struct entry *entry = &self->entries[i];
        entry->pace = sl_slot_pace(entry->slot, entry->quiet, &delays);
        doubtful += entry->pace != SL_PACE_FINE;
    }
    if (doubtful != self->doubtful)
        sl_reader_count_doubtful(self->reader, (int)doubtful - (int)self->doubtful);
    self->doubtful = doubtful;
    for (unsigned i = 0; i < self->count; i++) {
        struct entry *entry = &self->entries[i];
        if (entry->pace < SL_PACE_SLOW)
            continue;
        int sent = sl_slot_hedge(entry->slot, entry->pace, err);
        if (sent < 0)
            return -1;
        /* What came but is less than poll() tells of is in the way, if it is too much to waste. */
        bool takes = !sent && sl_slot_has_unread(entry->slot);
        entry->waits = entry->waits && !sent && !takes;
    }
    return 0;
}

/* What came some time ago is kept whatever becomes of this process. */
static int keep_what_came(struct reader_thread *self, uint64_t now_ns, struct sl_err *err)
{
    for (unsigned i = 0; i < self->count; i++) {
        bool due;
        if (sl_slot_keep(self->entries[i].slot, now_ns, &due, err) < 0)
            return -1;
        self->entries[i].waits = self->entries[i].waits && !due;
    }
    return 0;
}

/* Now and then: what is slow is sent again; when the plan is used up, those who are idle help. */
static int look_after(struct reader_thread *self, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (now - self->looked_ns < self->look_ns)
        return 0;
    self->looked_ns = now;
    if (send_again(self, err) < 0 || keep_what_came(self, now, err) < 0)
        return -1;
    if (self->reader->plan->fixed.on)
        return 0;
    if (!self->used_up && !(self->used_up = sl_reader_used_up(self->reader)))
        return 0;
    while (sl_reader_hungry(self->reader)) {
        struct sl_slot *slot = busiest(self);
        if (!slot || !sl_slot_split(slot))
            break;
        wake_idle(self);
    }
    return 0;
}

static int run_rounds(struct reader_thread *self, struct sl_err *err)
{
    for (bool insist = false;;) {
        struct round round;
        if (open_missing(self, err) < 0 || step_all(self, insist, &round, err) < 0)
            return -1;
        if (self->count == 0 && sl_reader_finished(self->reader))
            return 0;
        if (wait_for_slots(self, round.moving || round.full, err) < 0)
            return -1;
        insist = round.full && !round.moving;
        steer(self);
        if (look_after(self, err) < 0)
            return -1;
    }
}

void sl_reader_thread_run(struct sl_reader *reader, unsigned thread)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_thread_room room = sl_concurrency_room(&reader->concurrency);
    unsigned capacity = room.most + room.stand_ins;
    struct reader_thread self = {
        .reader = reader, .number = thread, .capacity = capacity, .look_ns = LOOK_NS_MIN};
    self.entries = sl_alloc_array(capacity, sizeof(*self.entries), &err);
    if (self.entries)
        self.fds =
            sl_alloc_array(FIXED_FDS + (size_t)capacity * SL_IO_POLL_MAX, sizeof(*self.fds), &err);
    int failed = -1;
    find_part(&self);
    if (self.fds) {
        self.fds[0] = (struct pollfd){sl_cancel_fd(reader->config->cancel), POLLIN, 0};
        self.fds[1] = (struct pollfd){sl_cancel_fd(reader->stop), POLLIN, 0};
        self.fds[2] = (struct pollfd){sl_cancel_fd(reader->done), POLLIN, 0};
        failed = run_rounds(&self, &err);
    }
    if (failed < 0)
        sl_reader_fail(reader, &err);
    for (unsigned i = 0; i < self.count; i++)
        sl_slot_rescue(self.entries[i].slot);
    while (self.count)
        close_slot(&self, 0);
    free(self.entries);
    free(self.fds);
}
