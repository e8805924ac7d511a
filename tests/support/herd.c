/*
 * One event after another. A flow is bytes of a block on their way from a giver to a taker: a cache
 * to a load, or the origin to a cache or a load. Links that send take flows in turn, a quantum
 * each; links that receive are a clock that says until when they are taken.
 */
#include "herd.h"

#include <stdlib.h>
#include <string.h>

#include "caches.h"
#include "mem.h"
#include "thread.h"

enum {
    QUANTA_MAX = 64,
    WINDOW = 2, /* quanta of a flow that are on their way */
    NONE = UINT32_MAX,
    LOCAL_TIMES = 16, /* as fast as a link is what comes from the same machine */
    LOOK_MS = 50,     /* a load looks at its requests at least so often */
};
#define WAY_NS (100 * UINT64_C(1000)) /* from machine to machine */

enum event_kind { ARRIVES, POLLS, SENT, MAY_GO_ON, COMES, LOOKS, BEGINS, DIES, REFUSED };
struct event {
    uint64_t at, sequence;
    enum event_kind kind;
    uint32_t of, generation; /* a flow, a slot, a node */
};

/* Bytes of a block from a giver to a taker. */
struct flow {
    uint32_t generation, giver, taker, slot, block;
    bool fill;                /* for the taker's cache, and not for one of its slots */
    bool over, queued, paced; /* nobody wants the rest; waits for its link; for its own rate */
    unsigned from;            /* quanta before it */
    unsigned ready, sent;     /* quanta that the giver has; that left it */
    unsigned flying;
    uint32_t next;    /* in the queue */
    uint32_t streams; /* fill: the flow that gets it as it comes */
};
struct queue {
    uint32_t head, tail;
};
struct link {
    double up_ns, down_ns; /* of a quantum */
    uint64_t down_free;
    struct queue ready, waiting; /* flows that may send; requests that are not served yet */
    unsigned serving;
    bool busy, dead;
};
struct slot {
    uint32_t flow, block, try;
    unsigned got;
    bool busy;
    struct sl_caches_ask ask;
};
struct node {
    struct sl_caches caches;
    uint32_t *order;
    uint32_t at, done;
    uint64_t begun, ended;
};

struct world {
    const struct herd *herd;
    uint64_t now, sequence, quantum_bytes;
    struct event *heap;
    size_t events, heap_capacity;
    struct flow *flows;
    size_t flow_count, flow_capacity;
    uint32_t unused;
    struct link *links; /* of each node, and the origin's */
    struct slot *slots;
    struct node *nodes;
    struct sl_caches_map *map; /* all have the same caches, and so the same owners */
    uint8_t *filled;           /* quanta that a cache has of a block, and FILLING */
    unsigned left;             /* nodes that are not done */
    uint64_t sent_by_origin;
    unsigned origin_most;
};
enum { HAS_NONE = 0, FILLING = 0x80 }; /* all quanta: it has the block */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

static void plan(struct world *world, uint64_t at, enum event_kind kind, uint32_t of,
                 uint32_t generation)
{
    if (sl_grow(&world->heap, &world->heap_capacity, world->events + 1, sizeof(*world->heap),
                NULL) < 0)
        abort();
    struct event event = {at, world->sequence++, kind, of, generation};
    size_t i = world->events++;
    for (; i && is_before(&event, &world->heap[(i - 1) / 2]); i = (i - 1) / 2)
        world->heap[i] = world->heap[(i - 1) / 2];
    world->heap[i] = event;
}

static struct event take_first(struct world *world)
{
    struct event first = world->heap[0], last = world->heap[--world->events];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < world->events; i = child) {
        if (child + 1 < world->events && is_before(&world->heap[child + 1], &world->heap[child]))
            child++;
        if (!is_before(&world->heap[child], &last))
            break;
        world->heap[i] = world->heap[child];
    }
    world->heap[i] = last;
    return first;
}

/* ---- flows ----------------------------------------------------------------------------------- */

static uint32_t new_flow(struct world *world, uint32_t giver, uint32_t taker, uint32_t block)
{
    uint32_t number = world->unused, generation;
    if (number == NONE) {
        if (sl_grow(&world->flows, &world->flow_capacity, world->flow_count + 1,
                    sizeof(*world->flows), NULL) < 0)
            abort();
        number = (uint32_t)world->flow_count++;
        world->flows[number] = (struct flow){.generation = 0};
    } else {
        world->unused = world->flows[number].next;
    }
    generation = world->flows[number].generation;
    world->flows[number] = (struct flow){.generation = generation,
                                         .giver = giver,
                                         .taker = taker,
                                         .block = block,
                                         .slot = NONE,
                                         .next = NONE,
                                         .streams = NONE};
    return number;
}

static void push(struct world *world, struct queue *queue, uint32_t number)
{
    world->flows[number].next = NONE;
    if (queue->head == NONE)
        queue->head = number;
    else
        world->flows[queue->tail].next = number;
    queue->tail = number;
}

static uint32_t pop(struct world *world, struct queue *queue)
{
    uint32_t number = queue->head;
    if (number != NONE)
        queue->head = world->flows[number].next;
    return number;
}

static void start_waiting(struct world *world, uint32_t giver);

static void let_go(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    if (!flow->over || flow->queued || flow->paced || flow->flying)
        return;
    flow->generation++;
    flow->next = world->unused;
    world->unused = number;
}

/* It has all, or nobody wants the rest. */
static void end_flow(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    if (flow->over)
        return;
    flow->over = true;
    world->links[flow->giver].serving--;
    uint32_t giver = flow->giver;
    let_go(world, number);
    start_waiting(world, giver);
}

static void send_next(struct world *world, uint32_t giver)
{
    struct link *link = &world->links[giver];
    uint32_t number;
    while (!link->busy && (number = pop(world, &link->ready)) != NONE) {
        struct flow *flow = &world->flows[number];
        if (flow->over || link->dead) {
            flow->queued = false;
            let_go(world, number);
            continue;
        }
        link->busy = true;
        plan(world, world->now + (uint64_t)link->up_ns, SENT, number, flow->generation);
    }
}

static void go_on(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    if (flow->over || flow->queued || flow->paced || flow->sent >= flow->ready ||
        flow->flying >= WINDOW)
        return;
    if (flow->giver == flow->taker) {
        flow->sent++;
        flow->flying++;
        plan(world, world->now + (uint64_t)(world->links[flow->giver].up_ns / LOCAL_TIMES), COMES,
             number, flow->generation);
        return;
    }
    flow->queued = true;
    push(world, &world->links[flow->giver].ready, number);
    send_next(world, flow->giver);
}

static void was_sent(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    struct link *giver = &world->links[flow->giver], *taker = &world->links[flow->taker];
    giver->busy = flow->queued = false;
    flow->sent++;
    flow->flying++;
    if (taker->down_free < world->now + WAY_NS)
        taker->down_free = world->now + WAY_NS;
    taker->down_free += (uint64_t)taker->down_ns;
    plan(world, taker->down_free, COMES, number, flow->generation);
    if (flow->giver == world->herd->nodes) {
        world->sent_by_origin += world->quantum_bytes;
        if (world->herd->connection_mbit > 0) {
            double ns = (double)world->quantum_bytes * 8e3 / world->herd->connection_mbit;
            flow->paced = true;
            plan(world, world->now + (uint64_t)ns, MAY_GO_ON, number, flow->generation);
        }
    }
    uint32_t from = flow->giver;
    go_on(world, number);
    send_next(world, from);
}

/* ---- caches ---------------------------------------------------------------------------------- */

static uint8_t *filled_of(struct world *world, uint32_t cache, uint32_t block)
{
    return &world->filled[(size_t)cache * world->herd->blocks + block];
}

/* A request begins to be served. */
static void serve(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    uint32_t cache = flow->giver, block = flow->block;
    world->links[cache].serving++;
    if (cache == world->herd->nodes) {
        if (world->links[cache].serving > world->origin_most)
            world->origin_most = world->links[cache].serving;
        flow->ready = world->herd->quanta - flow->from;
        go_on(world, number);
        return;
    }
    uint8_t *filled = filled_of(world, cache, block);
    if (*filled == world->herd->quanta) {
        flow->ready = world->herd->quanta - flow->from;
        go_on(world, number);
    } else if (*filled == HAS_NONE) {
        *filled = FILLING;
        uint32_t fill = new_flow(world, world->herd->nodes, cache, block);
        world->flows[fill].fill = true;
        world->flows[fill].streams = number;
        plan(world, world->now + WAY_NS + world->herd->origin_ms * SL_NS_PER_MS, ARRIVES, fill,
             world->flows[fill].generation);
    } else {
        plan(world, world->now + world->herd->poll_ms * SL_NS_PER_MS, POLLS, number,
             flow->generation);
    }
}

static bool is_full(const struct world *world, uint32_t giver)
{
    return giver != world->herd->nodes && world->links[giver].serving >= world->herd->served;
}

static void start_waiting(struct world *world, uint32_t giver)
{
    struct link *link = &world->links[giver];
    uint32_t number;
    while (!is_full(world, giver) && (number = pop(world, &link->waiting)) != NONE) {
        struct flow *flow = &world->flows[number];
        flow->queued = false;
        if (flow->over) {
            let_go(world, number);
            continue;
        }
        serve(world, number);
    }
}

static void arrives(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    struct link *link = &world->links[flow->giver];
    if (flow->over || (link->dead && !world->herd->refuses))
        return;
    if (link->dead) {
        plan(world, world->now + WAY_NS, REFUSED, number, flow->generation);
        return;
    }
    if (!is_full(world, flow->giver)) {
        serve(world, number);
        return;
    }
    flow->queued = true;
    push(world, &link->waiting, number);
}

static void polls(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    if (flow->over || world->links[flow->giver].dead)
        return;
    if (*filled_of(world, flow->giver, flow->block) != world->herd->quanta) {
        plan(world, world->now + world->herd->poll_ms * SL_NS_PER_MS, POLLS, number,
             flow->generation);
        return;
    }
    flow->ready = world->herd->quanta - flow->from;
    go_on(world, number);
}

/* A quantum of a block came to a cache. */
static void fill(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    uint8_t *filled = filled_of(world, flow->taker, flow->block);
    unsigned has = (unsigned)(*filled & ~FILLING) + 1;
    *filled = (uint8_t)(has == world->herd->quanta ? has : has | FILLING);
    struct flow *streams = &world->flows[flow->streams];
    if (!streams->over && streams->giver == flow->taker && streams->block == flow->block &&
        !streams->fill && has > streams->from) {
        streams->ready = has - streams->from;
        go_on(world, flow->streams);
    }
    if (has < world->herd->quanta)
        return;
    end_flow(world, number);
}

/* ---- loads ----------------------------------------------------------------------------------- */

static struct node *node_of(struct world *world, uint32_t slot)
{
    return &world->nodes[slot / world->herd->connections];
}

static void look_again(struct world *world, uint32_t number)
{
    struct slot *slot = &world->slots[number];
    struct node *node = node_of(world, number);
    uint64_t at = world->now + LOOK_MS * SL_NS_PER_MS;
    if (slot->ask.asked != SL_ASKED_CACHE && slot->ask.asked != SL_ASKED_WAITS)
        return;
    if (slot->ask.asked == SL_ASKED_WAITS)
        at = slot->ask.again_ns;
    at = SL_MIN(at, sl_caches_judge_ns(&node->caches, &slot->ask));
    plan(world, SL_MAX(at, world->now + 1), LOOKS, number, slot->try);
}

static void ask(struct world *world, uint32_t number)
{
    struct slot *slot = &world->slots[number];
    struct node *node = node_of(world, number);
    slot->try++;
    slot->flow = NONE;
    if (!world->herd->direct)
        sl_caches_choose(&node->caches, world->map, slot->block, true, &slot->ask, world->now);
    look_again(world, number);
    if (slot->ask.asked == SL_ASKED_WAITS)
        return;
    bool origin = slot->ask.asked != SL_ASKED_CACHE;
    uint32_t giver = origin ? world->herd->nodes : (uint32_t)slot->ask.cache;
    slot->flow = new_flow(world, giver, number / world->herd->connections, slot->block);
    world->flows[slot->flow].slot = number;
    world->flows[slot->flow].from = slot->got;
    plan(world, world->now + WAY_NS + (origin ? world->herd->origin_ms * SL_NS_PER_MS : 0), ARRIVES,
         slot->flow, world->flows[slot->flow].generation);
}

static void take_next(struct world *world, uint32_t number)
{
    struct slot *slot = &world->slots[number];
    struct node *node = node_of(world, number);
    slot->busy = false;
    if (node->at == world->herd->blocks)
        return;
    *slot = (struct slot){
        .flow = NONE, .block = node->order[node->at++], .busy = true, .try = slot->try};
    ask(world, number);
}

/* What is missing is asked of the next. */
static void turn_away(struct world *world, uint32_t number)
{
    struct slot *slot = &world->slots[number];
    struct flow *flow = &world->flows[slot->flow];
    /* it was served, or waits to be, or is on its way there */
    flow->slot = NONE;
    if (flow->queued && flow->ready == 0 && flow->sent == 0)
        flow->over = true;
    else
        end_flow(world, slot->flow);
    ask(world, number);
}

static void refused(struct world *world, uint32_t flow)
{
    uint32_t number = world->flows[flow].slot;
    if (number == NONE)
        return;
    struct slot *slot = &world->slots[number];
    sl_caches_failed(&node_of(world, number)->caches, &slot->ask, world->now);
    turn_away(world, number);
}

static void looks(struct world *world, uint32_t number)
{
    struct slot *slot = &world->slots[number];
    struct sl_caches *caches = &node_of(world, number)->caches;
    if (slot->ask.asked == SL_ASKED_WAITS)
        ask(world, number);
    else if (sl_caches_judge(caches, &slot->ask, world->now) != SL_CACHES_FINE)
        turn_away(world, number);
    else
        look_again(world, number);
}

static void land(struct world *world, uint32_t flow)
{
    uint32_t number = world->flows[flow].slot;
    struct slot *slot = &world->slots[number];
    struct node *node = node_of(world, number);
    if (slot->ask.asked == SL_ASKED_CACHE) { /* and it is right */
        sl_caches_came(&node->caches, &slot->ask, world->quantum_bytes, world->now);
        sl_caches_agreed(&node->caches, slot->ask.cache, world->quantum_bytes);
    }
    if (++slot->got < world->herd->quanta)
        return;
    if (!world->herd->direct)
        sl_caches_done(&node->caches, &slot->ask, !world->flows[flow].from, world->now);
    world->flows[flow].slot = NONE;
    end_flow(world, flow);
    slot->try++;
    if (++node->done == world->herd->blocks) {
        node->ended = world->now;
        world->left--;
    }
    take_next(world, number);
}

static void comes(struct world *world, uint32_t number)
{
    struct flow *flow = &world->flows[number];
    flow->flying--;
    if (flow->over) {
        let_go(world, number);
        return;
    }
    if (world->links[flow->taker].dead && (flow->fill || !world->herd->refuses))
        return;
    if (flow->fill)
        fill(world, number);
    else
        land(world, number);
    if (!world->flows[number].over)
        go_on(world, number);
}

static void begin(struct world *world, uint32_t number)
{
    for (unsigned i = 0; i < world->herd->connections; i++)
        take_next(world, number * world->herd->connections + i);
}

/* Its cache alone, or all of it. */
static void die(struct world *world, uint32_t number)
{
    world->links[number].dead = true;
    if (!world->herd->refuses && !world->nodes[number].ended)
        world->left--;
    for (uint32_t i = 0; i < world->herd->nodes * world->herd->connections; i++) {
        struct slot *slot = &world->slots[i];
        if (!slot->busy || slot->ask.asked != SL_ASKED_CACHE || slot->ask.cache != (int)number)
            continue;
        if (world->herd->refuses)
            refused(world, slot->flow);
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What was planned for a flow that has ended is of its generation, and does not happen. */
static void happens(struct world *world, const struct event *event)
{
    world->now = event->at;
    bool of_flow = event->kind != LOOKS && event->kind != BEGINS && event->kind != DIES;
    if (of_flow && world->flows[event->of].generation != event->generation)
        return;
    switch (event->kind) {
    case ARRIVES:
        arrives(world, event->of);
        break;
    case POLLS:
        polls(world, event->of);
        break;
    case SENT:
        was_sent(world, event->of);
        break;
    case MAY_GO_ON:
        world->flows[event->of].paced = false;
        if (world->flows[event->of].over)
            let_go(world, event->of);
        else
            go_on(world, event->of);
        break;
    case COMES:
        comes(world, event->of);
        break;
    case LOOKS:
        if (world->slots[event->of].busy && world->slots[event->of].try == event->generation)
            looks(world, event->of);
        break;
    case REFUSED:
        refused(world, event->of);
        break;
    case BEGINS:
        begin(world, event->of);
        break;
    case DIES:
        die(world, event->of);
        break;
    }
}

static void *take_memory(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        abort();
    return memory;
}

static void make_order(struct world *world, struct node *node, uint64_t seed)
{
    unsigned blocks = world->herd->blocks;
    int *owners = take_memory(blocks, sizeof(*owners));
    node->order = take_memory(blocks, sizeof(*node->order));
    for (unsigned i = 0; i < blocks; i++)
        owners[i] = sl_caches_owner(&node->caches, world->map, i);
    if (sl_caches_order(owners, blocks, world->herd->nodes, seed, node->order, NULL) < 0)
        abort();
    free(owners);
}

static void make_node(struct world *world, unsigned number, double alone, uint64_t *random)
{
    const struct herd *herd = world->herd;
    struct node *node = &world->nodes[number];
    sl_caches_init(&node->caches, herd->origin_share);
    for (unsigned k = 0; k < herd->nodes; k++)
        sl_caches_add(&node->caches, sl_caches_rank(k, herd->seed, k), NULL);
    make_order(world, node, next_random(random));
    bool slow = number >= herd->nodes - herd->slow;
    if (herd->spread_ms)
        node->begun = next_random(random) % herd->spread_ms * SL_NS_PER_MS;
    if (!slow && number >= herd->nodes - herd->slow - herd->late)
        node->begun += (uint64_t)(alone * 0.5e9);
    if (herd->idle && slow)
        world->left--;
    else
        plan(world, node->begun, BEGINS, number, 0);
    if (number < herd->dead)
        plan(world, (uint64_t)(alone * 0.25e9), DIES, number, 0);
}

static void make(struct world *world, const struct herd *herd, double alone)
{
    unsigned nodes = herd->nodes;
    *world = (struct world){.herd = herd, .unused = NONE, .left = nodes};
    world->quantum_bytes = herd->block_bytes / herd->quanta;
    world->links = take_memory(nodes + 1, sizeof(*world->links));
    world->nodes = take_memory(nodes, sizeof(*world->nodes));
    world->slots = take_memory((size_t)nodes * herd->connections, sizeof(*world->slots));
    world->filled = take_memory((size_t)nodes * herd->blocks, 1);
    world->map = sl_caches_map_new(herd->seed, herd->blocks);
    if (herd->warm)
        memset(world->filled, (int)herd->quanta, (size_t)nodes * herd->blocks);
    uint64_t random = herd->seed;
    for (unsigned i = 0; i <= nodes; i++) {
        double mbit = i == nodes ? herd->origin_mbit : herd->node_mbit;
        if (i < nodes && i >= nodes - herd->slow)
            mbit /= herd->slow_part;
        double ns = (double)world->quantum_bytes * 8e3 / mbit;
        world->links[i] = (struct link){
            .up_ns = ns, .down_ns = ns, .ready = {NONE, NONE}, .waiting = {NONE, NONE}};
    }
    for (unsigned i = 0; i < nodes; i++)
        make_node(world, i, alone, &random);
}

static void release(struct world *world)
{
    for (unsigned i = 0; i < world->herd->nodes; i++) {
        free(world->nodes[i].order);
        sl_caches_release(&world->nodes[i].caches);
    }
    free(world->heap);
    free(world->flows);
    free(world->links);
    free(world->nodes);
    free(world->slots);
    free(world->filled);
    free(world->map);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const struct world *world, struct herd_result *result)
{
    const struct herd *herd = world->herd;
    sl_autofree double *seconds = take_memory(herd->nodes, sizeof(*seconds));
    unsigned count = 0;
    for (unsigned i = herd->refuses ? 0 : herd->dead; i < herd->nodes - herd->slow; i++)
        seconds[count++] = (double)(world->nodes[i].ended - world->nodes[i].begun) / 1e9;
    qsort(seconds, count, sizeof(*seconds), by_size);
    result->worst = seconds[count - 1];
    result->median = seconds[count / 2];
    result->copies = (double)world->sent_by_origin / herd->blocks / herd->block_bytes;
    result->origin_most = world->origin_most;
}

static void run(const struct herd *herd, double alone, struct herd_result *result)
{
    struct world world;
    make(&world, herd, alone);
    while (world.events && world.left) {
        struct event event = take_first(&world);
        happens(&world, &event);
    }
    measure(&world, result);
    release(&world);
}

void herd_run(const struct herd *herd, struct herd_result *result)
{
    struct herd alone = *herd;
    alone.nodes = 1;
    alone.direct = true;
    alone.connections = SL_MAX(64u, herd->connections); /* as it would have without caches */
    alone.slow = alone.dead = alone.late = alone.spread_ms = 0;
    run(&alone, 0, result);
    result->alone = result->worst;
    run(herd, result->alone, result);
}
