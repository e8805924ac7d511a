/*
 * The budget is held before memory is taken: a load says how much it will need when its plan is
 * made, and counts with that from then on. What has to go for it is first what interrupted loads
 * left, then versions that are not current any more, then models that nobody uses, least recently
 * used first. What is referenced, pinned or worked with never goes; if the rest is not enough,
 * nothing goes and the load is refused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"

enum { TELL_BYTES = 480 };

/* Room is made from what will be there: what is being dropped is not. */
static uint64_t counted(const struct resident *resident)
{
    return resident->state == RESIDENT_DROPPING ? 0 : resident->bytes;
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
                bytes += dropping ? at->bytes : counted(at);
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

/* The lower, the sooner it goes; -1: it stays. */
static int rank(const struct resident *resident, const struct resident *wanting)
{
    const struct model *model = resident->model;
    if (resident->ref_count || resident->busy || resident == wanting)
        return -1;
    if (resident->state == RESIDENT_PARTIAL)
        return 0;
    if (resident->state != RESIDENT_READY)
        return -1;
    if (resident->key && !model->retired && registry_is_source(model, resident->identity))
        return 2;
    if (model->current != resident || model->retired)
        return 1;
    bool replaced = wanting && wanting->model == model && model->box &&
                    model->box->spec.sink.tmpfs.replace == 1;
    if (replaced)
        return 1;
    return registry_pinned(model) ? -1 : 2;
}

static bool is_chosen(const struct victims *victims, const struct resident *resident)
{
    for (size_t i = 0; i < victims->count; i++)
        if (victims->items[i] == resident)
            return true;
    return false;
}

static struct resident *next_victim(const struct sl_registry *registry, unsigned space,
                                    const struct resident *wanting, const struct victims *victims)
{
    struct resident *best = NULL;
    int best_rank = 0;
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            int own = rank(at, wanting);
            if (own < 0 || !lies_in(registry, at, space) || is_chosen(victims, at))
                continue;
            if (!best || own < best_rank || (own == best_rank && at->used_ns < best->used_ns)) {
                best = at;
                best_rank = own;
            }
        }
    return best;
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void tell_resident(const struct resident *resident, char *text, size_t capacity)
{
    char bytes[32], why[48];
    size_t used = strlen(text);
    if (resident->state == RESIDENT_GONE)
        snprintf(why, sizeof(why), "its load failed; %u %s", resident->ref_count,
                 resident->ref_count == 1 ? "reference" : "references");
    else if (resident->busy)
        snprintf(why, sizeof(why), resident->key ? "being deposited" : "being loaded");
    else if (resident->ref_count)
        snprintf(why, sizeof(why), "%u %s", resident->ref_count,
                 resident->ref_count == 1 ? "reference" : "references");
    else
        snprintf(why, sizeof(why), "pinned");
    snprintf(text + used, capacity - used, "%s'%s' %s (%s)", used ? ", " : "",
             resident->model->name, sl_human_bytes(resident->bytes, bytes), why);
}

static int refuse(const struct sl_registry *registry, const struct resident *wanting,
                  uint64_t bytes, unsigned space, struct sl_err *err)
{
    char text[TELL_BYTES] = "", need[32], budget[32], name[16], where[32] = "";
    const char *key = space == SL_SPACE_HOST ? "budgetBytes" : "pool.gpuBudgetBytes";
    sl_human_bytes(bytes, need);
    sl_human_bytes(registry->locked.budgets[space], budget);
    if (space != SL_SPACE_HOST)
        snprintf(where, sizeof(where), " on %s", sl_space_name(space, name));
    if (bytes > registry->locked.budgets[space])
        return sl_fail_code(err, SL_E_NO_SPACE, "budget",
                            "the model '%s' needs %s, and the budget of all models%s is %s: raise "
                            "%s",
                            wanting->model->name, need, where, budget, key);
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (at != wanting && lies_in(registry, at, space) && counted(at) &&
                rank(at, wanting) < 0)
                tell_resident(at, text, sizeof(text));
    for (const struct left *at = registry->locked.left; at; at = at->next)
        if (sl_placement_has(at->holder->placement, space))
            registry_tell_left(at, text, sizeof(text));
    return sl_fail_code(err, SL_E_NO_SPACE, "budget",
                        "the model '%s' needs %s, of a budget of %s%s these cannot be evicted: %s; "
                        "unpin or release one, or raise %s",
                        wanting->model->name, need, budget, where, text, key);
}

/* ---- making room ---------------------------------------------------------------------------- */

void registry_mark(struct sl_registry *registry, struct resident *resident, bool for_janitor)
{
    if (resident->state == RESIDENT_READY)
        registry->locked.counts.evictions++;
    resident->state = RESIDENT_DROPPING;
    resident->for_janitor = for_janitor;
    registry->locked.dropping++;
    if (resident->model->current == resident)
        resident->model->current = NULL;
    if (for_janitor)
        pthread_cond_signal(&registry->clean);
}

/* What must go in one space, beside what goes already. */
static int choose_victims(const struct sl_registry *registry, const struct resident *resident,
                          uint64_t bytes, unsigned space, struct victims *victims,
                          struct sl_err *err)
{
    uint64_t budget = registry->locked.budgets[space];
    uint64_t others = add_up(registry, space, false) - counted(resident);
    for (size_t i = 0; i < victims->count; i++)
        others -= lies_in(registry, victims->items[i], space) ? counted(victims->items[i]) : 0;
    while (bytes <= budget && others > budget - bytes && victims->count < VICTIMS_MAX) {
        struct resident *victim = next_victim(registry, space, resident, victims);
        if (!victim)
            break;
        victims->items[victims->count++] = victim;
        others -= counted(victim);
    }
    if (bytes > budget || others > budget - bytes)
        return refuse(registry, resident, bytes, space, err);
    return 0;
}

int registry_make_room(struct sl_registry *registry, struct resident *resident, uint64_t bytes,
                       struct victims *victims, struct sl_err *err)
{
    victims->count = 0;
    for (unsigned space = 0; space < SL_SPACES_MAX; space++) {
        if (!lies_in(registry, resident, space) ||
            choose_victims(registry, resident, bytes, space, victims, err) == 0)
            continue;
        victims->count = 0;
        registry->locked.counts.refusals++;
        return -1;
    }
    for (size_t i = 0; i < victims->count; i++)
        registry_mark(registry, victims->items[i], false);
    return 0;
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
    resident->state = RESIDENT_PARTIAL;
    resident->used_ns = sl_now_ns();
}

int registry_drop(struct sl_registry *registry, struct resident *resident, struct sl_err *err)
{
    const struct sl_holder *holder = resident->holder;
    struct sl_err why = SL_ERR_INIT;
    char name[64];
    snprintf(name, sizeof(name), "%s", resident->model->name);
    struct left *left = registry_watch(resident, resident->body);
    int done = holder->drop(holder->self, name, resident->version, resident->body, &why);
    if (done < 0)
        sl_log(SL_LOG_WARN, "version %s of '%s' cannot be taken out of memory: %s",
               resident->version, name, why.message);
    registry_leave(registry, left); /* counted twice for a moment, rather than not at all */
    {
        SL_LOCKED(&registry->lock);
        note_dropped(registry, resident, done);
        if (done < 0)
            registry_note_stuck(registry, &why);
        registry_tell(registry);
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
    const struct victims none = {.count = 0};
    while (add_up(registry, space, false) > registry->locked.budgets[space]) {
        struct resident *victim = next_victim(registry, space, NULL, &none);
        if (!victim)
            return;
        registry_mark(registry, victim, true);
    }
}

void registry_enforce(struct sl_registry *registry)
{
    for (unsigned space = 0; space < SL_SPACES_MAX; space++)
        enforce(registry, space);
}

/* ---- by hand -------------------------------------------------------------------------------- */

static int find_named(struct sl_registry *registry, const char *name, struct model **model,
                      struct sl_err *err)
{
    *model = registry_find(registry, name);
    if (*model)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND, "no model is called '%.100s' here", name);
}

static unsigned references(const struct model *model, bool derived)
{
    unsigned count = 0;
    for (const struct resident *at = model->residents; at; at = at->next)
        count += derived || !at->key ? at->ref_count : 0;
    return count;
}

/* Every resident that is not on its way out; the bytes of all. */
static uint64_t mark_all(struct sl_registry *registry, struct model *model, bool derived)
{
    uint64_t bytes = 0;
    for (struct resident *at = model->residents; at; at = at->next)
        if ((at->state == RESIDENT_READY || at->state == RESIDENT_PARTIAL) && !at->busy &&
            !at->ref_count && (derived || !at->key)) {
            bytes += registry_copies(registry, at) * at->bytes;
            registry_mark(registry, at, true);
        }
    return bytes;
}

int sl_registry_evict(struct sl_registry *registry, const char *name, uint64_t *bytes,
                      struct sl_err *err)
{
    struct model *model;
    SL_LOCKED(&registry->lock);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (references(model, false))
        return sl_fail_code(err, SL_E_USAGE, "busy",
                            "the model '%s' is in use (%u references): it goes when they are gone",
                            name, references(model, false));
    if (registry_pinned(model))
        return sl_fail_code(err, SL_E_USAGE, "pinned", "the model '%s' is pinned%s: unpin it first",
                            name, model->pinned_by_config ? " by the config" : "");
    if (model->work != WORK_NONE)
        return sl_fail_code(err, SL_E_USAGE, "loading", "the model '%s' is being loaded", name);
    uint64_t freed = mark_all(registry, model, false);
    if (bytes)
        *bytes = freed;
    registry_tell(registry);
    return 0;
}

int sl_registry_forget(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model;
    SL_LOCKED(&registry->lock);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (model->of_config && !model->retired)
        return sl_fail_code(err, SL_E_USAGE, "config",
                            "the model '%s' is in the config: take it out there", name);
    if (references(model, true))
        return sl_fail_code(err, SL_E_USAGE, "busy", "the model '%s' is in use (%u references)",
                            name, references(model, true));
    model->forgotten = true;
    model->wanted = model->again = false;
    if (model->cancel)
        sl_cancel_raise(model->cancel, 0);
    mark_all(registry, model, true);
    registry_tell(registry);
    pthread_cond_signal(&registry->clean);
    return 0;
}

int sl_registry_pin(struct sl_registry *registry, const char *name, bool pin, struct sl_err *err)
{
    struct model *model;
    SL_LOCKED(&registry->lock);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (!pin && model->pinned_by_config)
        return sl_fail_code(err, SL_E_USAGE, "config",
                            "the model '%s' is pinned by the config: change it there", name);
    if (pin && model->retired)
        return sl_fail(err, SL_E_NOT_FOUND, "the model '%s' was taken out of the config", name);
    model->pinned_by_hand = pin;
    registry_tell(registry);
    return 0;
}

int sl_registry_load(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model;
    SL_LOCKED(&registry->lock);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (model->retired || !model->box)
        return sl_fail(err, SL_E_NOT_FOUND, "the model '%s' was taken out of the config", name);
    model->abandoned = false;
    registry_queue(registry, model);
    registry_tell(registry);
    return 0;
}

void sl_registry_set_budget(struct sl_registry *registry, uint64_t budget_bytes)
{
    SL_LOCKED(&registry->lock);
    registry->locked.budgets[SL_SPACE_HOST] = budget_bytes;
    registry_enforce(registry);
    registry_tell(registry);
}

void sl_registry_set_gpu_budget(struct sl_registry *registry, unsigned ordinal,
                                uint64_t budget_bytes)
{
    SL_LOCKED(&registry->lock);
    registry->locked.budgets[SL_SPACE_GPU + ordinal] = budget_bytes;
    registry->locked.opened |= SL_PLACEMENT(SL_SPACE_GPU + ordinal);
    registry_enforce(registry);
}

void sl_registry_gpu_bytes(struct sl_registry *registry, unsigned ordinal, uint64_t *held_bytes,
                           uint64_t *budget_bytes)
{
    SL_LOCKED(&registry->lock);
    *held_bytes = registry_held(registry, SL_SPACE_GPU + ordinal);
    *budget_bytes = registry->locked.budgets[SL_SPACE_GPU + ordinal];
}
