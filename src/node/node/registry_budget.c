/*
 * The budget is held before memory is taken: a load says how much it will need when its plan is
 * made, and counts with that from then on. What has to go for it is first what interrupted loads
 * left, then versions that are not current any more, then models that nobody uses, least recently
 * used first. What is referenced, pinned or worked with never goes; if the rest is not enough,
 * nothing goes and the load is refused.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"
#include "uri_text.h"

enum { TEXT_BYTES = 480, TITLE_BYTES = 200 };
/* In the daemon's config, and in the chart's values. */
#define HOST_BUDGET "budgetBytes (node.budget of the chart)"
#define GPU_BUDGET  "pool.gpuBudgetBytes (node.gpu.budget of the chart)"

/* ---- what was dropped and somebody still has ------------------------------------------------ */

/*
 * What is dropped goes with whoever has it last: a client that keeps descriptors or mappings after
 * its lease has ended keeps the memory, too, which still counts for us and for the machine. So it
 * stays in the budget until it has gone, under the names of those who had it.
 *
 * The janitor looks, several times a second while there is anything, and at once for a load that
 * needs the room; whoever drops looks first, for what nobody has is gone by then.
 */

void registry_note_had(struct resident *resident, const char *who)
{
    struct had *had = &resident->had;
    for (unsigned i = 0; i < HAD_MAX && i < had->count; i++)
        if (strcmp(had->who[i], who) == 0)
            return;
    snprintf(had->who[had->count++ % HAD_MAX], sizeof(had->who[0]), "%s", who);
}

struct left *registry_watch(struct sl_registry *registry, struct resident *resident, void *body)
{
    const struct sl_holder *holder = resident->holder;
    struct left *left = body && holder->watch ? sl_alloc(sizeof(*left), NULL) : NULL;
    if (!left)
        return NULL;
    left->memory = holder->watch(holder->self, body);
    if (!left->memory) {
        free(left);
        return NULL;
    }
    snprintf(left->name, sizeof(left->name), "%s", resident->model->name);
    snprintf(left->version, sizeof(left->version), "%s", resident->version);
    left->derived = resident->key;
    left->holder = holder;
    left->since_ns = sl_now_ns();
    REGISTRY_LOCKED(registry);
    left->had = resident->had;
    return left;
}

static void free_left(struct left *left)
{
    left->memory->free(left->memory);
    free(left);
}

void registry_leave(struct sl_registry *registry, struct left *left)
{
    if (!left)
        return;
    left->bytes = left->memory->look(left->memory);
    if (!left->bytes) {
        free_left(left);
        return;
    }
    REGISTRY_LOCKED(registry);
    left->next = registry->locked.left;
    registry->locked.left = left;
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean);
}

uint64_t registry_left(const struct sl_registry *registry, unsigned space)
{
    uint64_t bytes = 0;
    for (const struct left *at = registry->locked.left; at; at = at->next)
        bytes += sl_placement_has(at->holder->placement, space) ? at->bytes : 0;
    return bytes;
}

void registry_describe_left(const struct left *left, char *text, size_t capacity)
{
    char bytes[32];
    size_t used = strlen(text);
    snprintf(text + used, capacity - used,
             "%s'%s' %s (evicted, and still held by its clients:", used ? ", " : "", left->name,
             sl_human_bytes(left->bytes, bytes));
    for (unsigned i = 0; i < HAD_MAX && i < left->had.count; i++) {
        used = strlen(text);
        snprintf(text + used, capacity - used, "%s %s", i ? "," : "", left->had.who[i]);
    }
    used = strlen(text);
    snprintf(text + used, capacity - used, left->had.count ? ")" : " unknown)");
}

void registry_free_left(struct sl_registry *registry)
{
    for (struct left *at; (at = registry->locked.left);) {
        registry->locked.left = at->next;
        free_left(at);
    }
}

static void note_look(struct sl_registry *registry, struct left *left, uint64_t bytes)
{
    REGISTRY_LOCKED(registry);
    left->bytes = bytes;
    if (bytes)
        return;
    struct left **at = &registry->locked.left;
    while (*at != left)
        at = &(*at)->next;
    *at = left->next;
}

/* Without the lock: look at what is left, if it is time. */
static void look_at_left(struct sl_registry *registry)
{
    struct left *next;
    {
        REGISTRY_LOCKED(registry);
        next = registry->locked.left; /* others only put something in front */
        registry->locked.look_at_left = false;
    }
    for (struct left *at; (at = next);) {
        next = at->next;
        uint64_t bytes = at->memory->look(at->memory);
        note_look(registry, at, bytes);
        if (!bytes)
            free_left(at);
    }
    REGISTRY_LOCKED(registry);
    registry->locked.looked_ns = sl_now_ns();
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
}

/* When it is time again; UINT64_MAX: nothing is left. */
static uint64_t next_look(const struct sl_registry *registry)
{
    if (!registry->locked.left)
        return UINT64_MAX;
    return registry->locked.look_at_left ? 0
                                         : registry->locked.looked_ns + LEFT_LOOK_MS * SL_NS_PER_MS;
}

bool registry_await_left(struct sl_registry *registry, uint64_t until_ns)
{
    if (!registry->locked.left || registry->locked.stopping || sl_now_ns() >= until_ns)
        return false;
    registry->locked.look_at_left = registry->locked.looked_ns == 0 ||
                                    sl_now_ns() - registry->locked.looked_ns > 10 * SL_NS_PER_MS;
    pthread_cond_signal(&registry->clean);
    registry_wait(registry, &registry->changed, until_ns);
    return true;
}

/* ---- what is held, and what goes first ------------------------------------------------------ */

/* The version of its model that it shares files with, if that is there and will be. */
static struct resident *shares_with(const struct resident *resident)
{
    struct resident *other =
        resident->shared.bytes
            ? registry_resident(resident->model, resident->shared.with, resident->holder)
            : NULL;
    return other == resident || (other && registry_is_going(other)) ? NULL : other;
}

uint64_t registry_own_bytes(const struct resident *resident, uint64_t bytes)
{
    return shares_with(resident) ? bytes - SL_MIN(bytes, resident->shared.bytes) : bytes;
}

/* Room is made from what will be there: what is being dropped is not. What two versions share
 * counts once, and when one of them goes the other has it all. */
static uint64_t counted(const struct resident *resident)
{
    return registry_is_going(resident) || resident->borrows
               ? 0
               : registry_own_bytes(resident, resident->bytes);
}

/* Whose memory it takes: of all GPUs, that of those which there are. */
static uint32_t spaces_of(const struct sl_registry *registry, const struct resident *resident)
{
    uint32_t placement = resident->holder->placement;
    return sl_placement_count(placement) == 1 ? placement : placement & registry->locked.opened;
}

static bool lies_in(const struct sl_registry *registry, const struct resident *resident,
                    unsigned space)
{
    return sl_placement_has(spaces_of(registry, resident), space);
}

unsigned registry_copies(const struct sl_registry *registry, const struct resident *resident)
{
    return SL_MAX(sl_placement_count(spaces_of(registry, resident)), 1u);
}

static uint64_t add_up(const struct sl_registry *registry, unsigned space, bool dropping)
{
    uint64_t bytes = registry_left(registry, space);
    for (const struct model *model = registry->locked.models; model; model = model->next)
        for (const struct resident *at = model->residents; at; at = at->next)
            if (lies_in(registry, at, space))
                bytes +=
                    dropping && registry_is_going(at) && !at->borrows ? at->bytes : counted(at);
    return bytes;
}

uint64_t registry_held(const struct sl_registry *registry, unsigned space)
{
    return add_up(registry, space, true);
}

bool registry_pinned(const struct model *model)
{
    return model->pinned_by_config || model->pinned_by_hand;
}

/* Does a load count on its files? */
static bool is_taken_over(const struct resident *resident, const struct resident *wanting)
{
    for (const struct resident *at = resident->model->residents; at; at = at->next)
        if ((at == wanting || at->state == RESIDENT_LOADING) && shares_with(at) == resident)
            return true;
    return false;
}

/* Of one name; the lower, the sooner it goes; -1: it stays. */
static int rank_alone(const struct resident *resident, const struct resident *wanting)
{
    const struct model *model = resident->model;
    if (resident->ref_count || resident->busy || resident == wanting ||
        is_taken_over(resident, wanting))
        return -1;
    if (resident->state == RESIDENT_PARTIAL)
        return 0;
    if (resident->state != RESIDENT_READY)
        return -1;
    if (resident->key && !registry_name_ended(model) &&
        registry_is_source(model, resident->identity))
        return 2;
    if (model->current != resident || registry_name_ended(model))
        return 1;
    bool replaced = wanting && wanting->model == model && model->box &&
                    model->box->spec.sink.tmpfs.replace == 1;
    if (replaced)
        return 1;
    return registry_pinned(model) ? -1 : 2;
}

/* Of all names that have this memory. */
static int rank(const struct resident *resident, const struct resident *wanting)
{
    int highest = rank_alone(resident, wanting);
    for (const struct resident *at = resident->share_next; at != resident && highest >= 0;
         at = at->share_next) {
        int own = rank_alone(at, wanting);
        highest = own < 0 ? own : SL_MAX(highest, own);
    }
    return highest;
}

static uint64_t used_ns(const struct resident *resident)
{
    uint64_t last = resident->used_ns;
    for (const struct resident *at = resident->share_next; at != resident; at = at->share_next)
        last = SL_MAX(last, at->used_ns);
    return last;
}

static struct resident *next_victim(const struct sl_registry *registry, unsigned space,
                                    const struct resident *wanting)
{
    struct resident *best = NULL;
    int best_rank = 0;
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            int own = rank(at, wanting);
            if (own < 0 || at->borrows || !lies_in(registry, at, space) || at->chosen)
                continue;
            if (!best || own < best_rank || (own == best_rank && used_ns(at) < used_ns(best))) {
                best = at;
                best_rank = own;
            }
        }
    return best;
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* As people know it: what was asked for by its URI has a hash for a name. */
static const char *title_of(const struct model *model, char text[TITLE_BYTES])
{
    bool by_uri = model->name_state == NAME_PASSING && model->box && model->box->spec.source.uri;
    snprintf(text, TITLE_BYTES, "%s", by_uri ? model->box->spec.source.uri : model->name);
    if (by_uri)
        sl_uri_hide(text, TITLE_BYTES);
    return text;
}

static void describe_resident(const struct resident *resident, char *text, size_t capacity)
{
    char bytes[32], why[48], title[TITLE_BYTES];
    size_t used = strlen(text);
    unsigned references = resident->ref_count, busy = resident->busy;
    for (const struct resident *at = resident->share_next; at != resident; at = at->share_next) {
        references += at->ref_count;
        busy += at->busy;
    }
    const char *noun = references == 1 ? "reference" : "references";
    if (resident->state == RESIDENT_GONE)
        snprintf(why, sizeof(why), "its load failed; %u %s", references, noun);
    else if (busy)
        snprintf(why, sizeof(why), resident->key ? "being deposited" : "being loaded");
    else if (references)
        snprintf(why, sizeof(why), "%u %s", references, noun);
    else if (is_taken_over(resident, NULL))
        snprintf(why, sizeof(why), "a load takes over its files");
    else
        snprintf(why, sizeof(why), "pinned%s",
                 resident->model->pinned_by_config ? " by the config" : "");
    snprintf(text + used, capacity - used, "%s'%s'", used ? ", " : "",
             title_of(resident->model, title));
    for (const struct resident *at = resident->share_next; at != resident; at = at->share_next) {
        used = strlen(text);
        if (registry_is_public(at->model))
            snprintf(text + used, capacity - used, " and '%s'", title_of(at->model, title));
    }
    used = strlen(text);
    snprintf(text + used, capacity - used, " %s (%s)", sl_human_bytes(resident->bytes, bytes), why);
}

/* What volumes asked for by URI, and what an earlier daemon left, is named to nobody else: a
 * guessed URI could be confirmed by its name. */
static void describe_nameless(unsigned count, uint64_t total, char *text, size_t capacity)
{
    char bytes[32];
    size_t used = strlen(text);
    if (count)
        snprintf(text + used, capacity - used, "%s%u %s of volumes %s", used ? ", " : "", count,
                 count == 1 ? "model" : "models", sl_human_bytes(total, bytes));
}

/* What stays in this space whatever else wants room. */
static void describe_staying(const struct sl_registry *registry, const struct resident *wanting,
                             unsigned space, char text[TEXT_BYTES])
{
    unsigned nameless = 0;
    uint64_t nameless_bytes = 0;
    *text = 0;
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (at != wanting && lies_in(registry, at, space) && counted(at) &&
                rank(at, wanting) < 0) {
                bool shown = registry_is_public(model);
                nameless += !shown;
                nameless_bytes += shown ? 0 : counted(at);
                if (shown)
                    describe_resident(at, text, TEXT_BYTES);
            }
    describe_nameless(nameless, nameless_bytes, text, TEXT_BYTES);
    for (const struct left *at = registry->locked.left; at; at = at->next)
        if (sl_placement_has(at->holder->placement, space))
            registry_describe_left(at, text, TEXT_BYTES);
}

static int refuse(const struct sl_registry *registry, const struct resident *wanting,
                  uint64_t bytes, unsigned space, struct sl_err *err)
{
    char text[TEXT_BYTES], title[TITLE_BYTES], need[32], budget[32], name[16], where[32] = "";
    const char *key = space == SL_SPACE_HOST ? HOST_BUDGET : GPU_BUDGET;
    title_of(wanting->model, title);
    sl_human_bytes(bytes, need);
    sl_human_bytes(registry->locked.budgets[space], budget);
    if (space != SL_SPACE_HOST)
        snprintf(where, sizeof(where), " on %s", sl_space_name(space, name));
    if (bytes > registry->locked.budgets[space])
        return sl_fail_code(err, SL_E_NO_SPACE, "budget",
                            "the model '%s' needs %s, and the budget of all models%s is %s: raise "
                            "%s",
                            title, need, where, budget, key);
    describe_staying(registry, wanting, space, text);
    return sl_fail_code(err, SL_E_NO_SPACE, "budget",
                        "the model '%s' needs %s, of a budget of %s%s these cannot be evicted: %s; "
                        "release or unpin one, or raise %s",
                        title, need, budget, where, text, key);
}

/* ---- making room ---------------------------------------------------------------------------- */

void registry_mark(struct sl_registry *registry, struct resident *resident, bool for_janitor)
{
    assert(!resident->refs && !resident->busy);
    if (resident->state == RESIDENT_READY)
        registry->locked.counts.evictions++;
    registry_set_resident(resident, for_janitor ? RESIDENT_MARKED : RESIDENT_DROPPING);
    registry_pass_memory(resident);
    registry->locked.dropping++;
    if (resident->model->current == resident)
        resident->model->current = NULL;
    if (for_janitor)
        pthread_cond_signal(&registry->clean);
}

void registry_leave_to_janitor(struct sl_registry *registry, const struct victims *victims)
{
    for (struct resident *at = victims->first; at; at = at->victim_next)
        registry_set_resident(at, RESIDENT_MARKED);
    pthread_cond_signal(&registry->clean);
}

/* What its going gives, when those before it have gone: what others share with it they keep. */
static uint64_t gives(const struct resident *victim)
{
    const struct resident *with = shares_with(victim);
    uint64_t bytes = with && with->chosen ? victim->bytes : counted(victim), kept = 0;
    for (const struct resident *at = victim->model->residents; at; at = at->next)
        if (shares_with(at) == victim && !registry_is_going(at) && !at->chosen)
            kept += SL_MIN(at->bytes, at->shared.bytes);
    return bytes - SL_MIN(bytes, kept);
}

/* With all its names. */
static void choose(struct resident *victim, struct victims *victims)
{
    struct resident *at = victim;
    do {
        at->chosen = true;
        at->victim_next = NULL;
        *(victims->last ? &victims->last->victim_next : &victims->first) = at;
        victims->last = at;
        at = at->share_next;
    } while (at != victim);
}

/* The choice is over: they stay, or are marked. */
static void end_choice(const struct victims *victims)
{
    for (struct resident *at = victims->first; at; at = at->victim_next)
        at->chosen = false;
}

/* What must go in one space, beside what goes already; false: that would not be enough. */
static bool choose_victims(const struct sl_registry *registry, const struct resident *resident,
                           uint64_t bytes, unsigned space, struct victims *victims)
{
    uint64_t budget = registry->locked.budgets[space];
    uint64_t others = add_up(registry, space, false) - counted(resident);
    for (const struct resident *at = victims->first; at; at = at->victim_next)
        others -= lies_in(registry, at, space) ? counted(at) : 0;
    while (bytes <= budget && others > budget - bytes) {
        struct resident *victim = next_victim(registry, space, resident);
        if (!victim)
            break;
        others -= gives(victim);
        choose(victim, victims);
    }
    return bytes <= budget && others <= budget - bytes;
}

int registry_make_room(struct sl_registry *registry, struct resident *resident, uint64_t bytes,
                       struct victims *victims, struct sl_err *err)
{
    *victims = (struct victims){0};
    for (unsigned space = 0; space < SL_SPACES_MAX; space++) {
        if (!lies_in(registry, resident, space) ||
            choose_victims(registry, resident, bytes, space, victims))
            continue;
        end_choice(victims);
        *victims = (struct victims){0};
        registry->locked.counts.refusals++;
        return refuse(registry, resident, bytes, space, err);
    }
    end_choice(victims);
    for (struct resident *at = victims->first; at; at = at->victim_next)
        registry_mark(registry, at, false);
    return 0;
}

static bool is_ending(const struct model *model)
{
    struct sl_progress_view view = {0};
    if (!registry_is_running(model) || !model->progress)
        return false;
    for (const struct resident *at = model->residents; at; at = at->next)
        if (at->state == RESIDENT_LOADING && !at->key && at->ref_count)
            return false;
    sl_progress_view(model->progress, &view);
    return view.bytes_total && view.bytes_done >= view.bytes_total;
}

bool registry_is_ending(const struct sl_registry *registry)
{
    for (const struct model *model = registry->locked.models; model; model = model->next)
        if (is_ending(model))
            return true;
    return false;
}

bool registry_await_end(struct sl_registry *registry, uint64_t until_ns)
{
    if (registry->locked.stopping || sl_now_ns() >= until_ns || !registry_is_ending(registry))
        return false;
    registry_wait(registry, &registry->changed, until_ns);
    return true;
}

bool registry_would_fit(const struct sl_registry *registry, const struct model *model)
{
    const struct resident wanting = {.model = (struct model *)(uintptr_t)model,
                                     .holder = model->holder};
    struct victims victims = {0};
    bool fits = model->refused_bytes;
    for (unsigned space = 0; fits && space < SL_SPACES_MAX; space++)
        if (lies_in(registry, &wanting, space))
            fits = choose_victims(registry, &wanting, model->refused_bytes, space, &victims);
    end_choice(&victims);
    return fits;
}

bool registry_has_room(const struct sl_registry *registry, const struct resident *resident)
{
    for (unsigned space = 0; space < SL_SPACES_MAX; space++)
        if (lies_in(registry, resident, space) &&
            registry_held(registry, space) > registry->locked.budgets[space])
            return false;
    return true;
}

int registry_check_room(struct sl_registry *registry, struct resident *resident, struct sl_err *err)
{
    for (unsigned space = 0; space < SL_SPACES_MAX; space++)
        if (lies_in(registry, resident, space) && registry_left(registry, space) &&
            add_up(registry, space, false) > registry->locked.budgets[space])
            return refuse(registry, resident, resident->bytes, space, err);
    return 0;
}

static void note_dropped(struct sl_registry *registry, struct resident *resident, int done)
{
    registry->locked.dropping--;
    if (done == 0) {
        registry_remove_resident(resident);
        return;
    }
    resident->body = NULL;
    resident->stuck = true;
    registry_set_resident(resident, RESIDENT_PARTIAL);
    resident->used_ns = sl_now_ns();
}

/* Nobody has the memory any more. */
static int drop_memory(struct sl_registry *registry, struct resident *resident, struct sl_err *err)
{
    const struct sl_holder *holder = resident->holder;
    char name[64];
    snprintf(name, sizeof(name), "%s", resident->model->name);
    struct left *left = registry_watch(registry, resident, resident->body);
    int done = holder->drop(holder->self, name, resident->version, resident->body, err);
    if (done < 0)
        sl_log(SL_LOG_WARN, "version %s of '%s' cannot be taken out of memory: %s",
               resident->version, name, err->message);
    registry_leave(registry, left); /* counted twice for a moment, rather than not at all */
    return done;
}

static bool leave_to_others(struct sl_registry *registry, struct resident *resident)
{
    REGISTRY_LOCKED(registry);
    bool shared = registry_is_shared(resident);
    registry_part(resident);
    return shared;
}

int registry_drop(struct sl_registry *registry, struct resident *resident, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    assert(resident->state == RESIDENT_DROPPING);
    int done = leave_to_others(registry, resident) ? 0 : drop_memory(registry, resident, &why);
    {
        REGISTRY_LOCKED(registry);
        note_dropped(registry, resident, done);
        if (done < 0)
            registry_note_stuck(registry, &why);
        registry_update_gauges(registry);
        pthread_cond_broadcast(&registry->changed);
        pthread_cond_signal(&registry->clean);
    }
    registry_answer_deposits(registry);
    if (done < 0 && err)
        *err = why;
    return done;
}

static void enforce(struct sl_registry *registry, unsigned space)
{
    while (add_up(registry, space, false) > registry->locked.budgets[space]) {
        struct resident *victim = next_victim(registry, space, NULL);
        if (!victim)
            return;
        struct resident *at = victim;
        do
            registry_mark(registry, at, true);
        while ((at = at->share_next) != victim);
    }
}

void registry_enforce(struct sl_registry *registry)
{
    for (unsigned space = 0; space < SL_SPACES_MAX; space++)
        enforce(registry, space);
}

/* ---- budgets -------------------------------------------------------------------------------- */

void sl_registry_set_budget(struct sl_registry *registry, uint64_t budget_bytes)
{
    char text[TEXT_BYTES] = "", budget[32], need[32];
    uint64_t staying;
    {
        REGISTRY_LOCKED(registry);
        registry->locked.budgets[SL_SPACE_HOST] = budget_bytes;
        registry_enforce(registry);
        registry_update_gauges(registry);
        staying = add_up(registry, SL_SPACE_HOST, false);
        if (staying > budget_bytes)
            describe_staying(registry, NULL, SL_SPACE_HOST, text);
    }
    if (*text)
        sl_log(SL_LOG_WARN,
               "a budget of %s is less than the %s that cannot be evicted: %s; nothing more is "
               "loaded until some of it goes: release or unpin one, or raise " HOST_BUDGET,
               sl_human_bytes(budget_bytes, budget), sl_human_bytes(staying, need), text);
}

void sl_registry_hold(struct sl_registry *registry, bool held)
{
    REGISTRY_LOCKED(registry);
    registry->locked.held = held;
    if (!held) {
        pthread_cond_broadcast(&registry->work);
        pthread_cond_broadcast(&registry->beside);
    }
}

void sl_registry_set_gpu_budget(struct sl_registry *registry, unsigned ordinal,
                                uint64_t budget_bytes)
{
    REGISTRY_LOCKED(registry);
    registry->locked.budgets[SL_SPACE_GPU + ordinal] = budget_bytes;
    registry->locked.opened |= SL_PLACEMENT(SL_SPACE_GPU + ordinal);
    enforce(registry, SL_SPACE_GPU + ordinal); /* of what lies elsewhere nothing may go yet */
}

void sl_registry_gpu_bytes(struct sl_registry *registry, unsigned ordinal, uint64_t *held_bytes,
                           uint64_t *budget_bytes)
{
    REGISTRY_LOCKED(registry);
    *held_bytes = registry_held(registry, SL_SPACE_GPU + ordinal);
    *budget_bytes = registry->locked.budgets[SL_SPACE_GPU + ordinal];
}

/* ---- the janitor ---------------------------------------------------------------------------- */

/*
 * The janitor: one thread for what others must not wait for. It does what it was left, drops what
 * was evicted by hand or goes for a deposit, keeps deposits for the next daemon, frees what is
 * forgotten, and queues again what failed and is wanted.
 */

bool registry_is_abandoned(const struct resident *resident)
{
    bool wanted = resident->state != RESIDENT_GONE && resident->model->name_state != NAME_FORGOTTEN;
    return !wanted && !resident->stuck && !resident->ref_count && !resident->busy &&
           !registry_is_going(resident);
}

/* A resident whose memory is to be given back now; it is the caller's from now on. */
static struct resident *take_dropping(struct sl_registry *registry)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (registry_is_abandoned(at))
                registry_mark(registry, at, true);
            if (at->state != RESIDENT_MARKED)
                continue;
            registry_set_resident(at, RESIDENT_DROPPING);
            return at;
        }
    return NULL;
}

void registry_evict(struct sl_registry *registry, struct resident *resident)
{
    resident->to_evict = resident->busy;
    if (!resident->busy)
        registry_mark(registry, resident, true);
}

/* What is to be kept; nobody drops it meanwhile. */
static struct resident *take_keeping(struct sl_registry *registry)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (!at->to_keep || at->state != RESIDENT_READY)
                continue;
            at->to_keep = false;
            at->busy++;
            return at;
        }
    return NULL;
}

static void keep(struct sl_registry *registry, struct resident *resident)
{
    resident->holder->keep(resident->holder->self, resident->body);
    REGISTRY_LOCKED(registry);
    resident->busy--;
    if (resident->to_evict && !resident->ref_count)
        registry_evict(registry, resident);
    resident->to_evict = false;
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
}

/* ---- what others leave to it ---------------------------------------------------------------- */

static struct sl_deferred_call *take_deferred(struct sl_registry *registry)
{
    struct sl_deferred_call *call = registry->locked.deferred;
    if (call && !(registry->locked.deferred = call->next))
        registry->locked.deferred_end = &registry->locked.deferred;
    return call;
}

static void run_deferred(struct sl_registry *registry, struct sl_deferred_call *call)
{
    call->run(call);
    REGISTRY_LOCKED(registry);
    registry->locked.later_count--;
    pthread_cond_broadcast(&registry->changed);
}

void registry_run_laters(struct sl_registry *registry)
{
    for (;;) {
        struct sl_deferred_call *call;
        {
            REGISTRY_LOCKED(registry);
            call = take_deferred(registry);
        }
        if (!call)
            return;
        run_deferred(registry, call);
    }
}

static bool put_deferred(struct sl_registry *registry, struct sl_deferred_call *call)
{
    REGISTRY_LOCKED(registry);
    if (registry->locked.stopping)
        return false;
    call->next = NULL;
    *registry->locked.deferred_end = call;
    registry->locked.deferred_end = &call->next;
    registry->locked.later_count++;
    pthread_cond_signal(&registry->clean);
    return true;
}

void sl_registry_defer(struct sl_registry *registry, struct sl_deferred_call *call)
{
    if (!put_deferred(registry, call))
        call->run(call);
}

/* ---- what is due ---------------------------------------------------------------------------- */

/* 0: goes now. Else when it may, UINT64_MAX if that is not a question of time. */
static uint64_t stays_until(const struct model *model, uint64_t now)
{
    uint64_t until = SL_MAX(model->passing_ns, model->err.kind ? model->retry_ns : 0);
    if (model->work != WORK_NONE || model->residents || model->waiters)
        return UINT64_MAX;
    bool passing = model->name_state == NAME_PASSING;
    if (registry_name_ended(model) || (passing && until <= now))
        return 0;
    return passing ? until : UINT64_MAX;
}

/* When the next one can go, UINT64_MAX if none. */
static uint64_t free_forgotten(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    struct model *next;
    for (struct model *model = registry->locked.models; model; model = next) {
        next = model->next;
        uint64_t until = stays_until(model, now);
        if (until)
            soonest = SL_MIN(soonest, until);
        else
            registry_free_model(registry, model);
    }
    return soonest;
}

/* Queue what is due; when the next one is, UINT64_MAX if none. */
static uint64_t queue_due(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        if (!model->wanted || !model->err.kind || model->work != WORK_NONE)
            continue;
        if (model->retry_ns <= now)
            registry_queue(registry, model);
        else
            soonest = SL_MIN(soonest, model->retry_ns);
    }
    return soonest;
}

/* Loads that nobody has asked for since a while end; when the next one does, UINT64_MAX if none. */
static uint64_t end_lapsed(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        if (model->name_state != NAME_PASSING || !model->lapse_ns || model->waiters ||
            model->work == WORK_NONE || model->work == WORK_UNWANTED ||
            model->work == WORK_ABANDONED)
            continue;
        uint64_t until = model->asked_ns + model->lapse_ns;
        if (until <= now)
            registry_abandon(registry, model);
        else
            soonest = SL_MIN(soonest, until);
    }
    return soonest;
}

void *registry_janitor(void *arg)
{
    struct sl_registry *registry = arg;
    for (;;) {
        struct resident *keeping, *resident = NULL;
        struct sl_deferred_call *call = NULL;
        bool look = false;
        {
            REGISTRY_LOCKED(registry);
            while (!(keeping = take_keeping(registry)) && !registry->locked.stopping &&
                   !(call = take_deferred(registry)) && !(resident = take_dropping(registry)) &&
                   !(look = next_look(registry) <= sl_now_ns())) {
                uint64_t due = queue_due(registry), free_at = free_forgotten(registry);
                registry_update_gauges(registry);
                due = SL_MIN(due, next_look(registry));
                due = SL_MIN(due, end_lapsed(registry));
                registry_wait(registry, &registry->clean, SL_MIN(due, free_at));
            }
            if (!keeping && registry->locked.stopping)
                return NULL;
        }
        if (keeping)
            keep(registry, keeping);
        else if (look)
            look_at_left(registry);
        else if (call)
            run_deferred(registry, call);
        else
            registry_drop(registry, resident, NULL);
    }
}
