/*
 * When is a tensor complete? When all its bytes have landed and every check over any of its stored
 * bytes has agreed. Both are counted down: bytes by their place in the file, where tensors lie one
 * after another; checks by their place in the source, where tensors may overlap (views of one
 * storage), so there the tensors are sorted by where they begin, each knowing how far those before
 * it reach. A check of a whole object thus holds back each of its tensors to the end.
 *
 * Hashes that only whoever casts can see (`ordered`) agree before the last bytes land: the bytes
 * alone tell then. A check that fails ends the load, and with it everybody's waiting.
 */
#include "readiness.h"

#include "lower_bound.h"
#include "thread.h"

struct entry {
    struct sl_readiness_item item;
    uint64_t left;   /* bytes that have not landed */
    uint32_t checks; /* that have not agreed */
    bool reported;
};

struct sl_readiness {
    const struct sl_plan *plan;
    void (*ready)(void *arg, size_t item);
    void *arg;
    uint32_t *by_source; /* entries sorted by source and begin */
    uint64_t *reach;     /* beside it: the largest end of this source so far */
    size_t count;
    pthread_mutex_t lock;
    struct {
        struct entry *entries; /* sorted by file and offset */
        size_t left;
    } locked;
};

/* ---- entries --------------------------------------------------------------------------------- */

static int by_source(const void *a, const void *b, void *arg)
{
    const struct entry *entries = arg;
    const struct entry *x = &entries[*(const uint32_t *)a], *y = &entries[*(const uint32_t *)b];
    if (x->item.source != y->item.source)
        return x->item.source < y->item.source ? -1 : 1;
    return x->item.begin < y->item.begin ? -1 : x->item.begin > y->item.begin;
}

static void sort(struct sl_readiness *readiness)
{
    const struct entry *entries = readiness->locked.entries;
    for (size_t i = 0; i < readiness->count; i++)
        readiness->by_source[i] = (uint32_t)i;
    qsort_r(readiness->by_source, readiness->count, sizeof(*readiness->by_source), by_source,
            readiness->locked.entries);
    for (size_t i = 0; i < readiness->count; i++) {
        const struct entry *entry = &entries[readiness->by_source[i]];
        bool first =
            i == 0 || entries[readiness->by_source[i - 1]].item.source != entry->item.source;
        readiness->reach[i] =
            first ? entry->item.end : SL_MAX(readiness->reach[i - 1], entry->item.end);
    }
}

static bool is_out_of_reach(const struct sl_readiness *readiness, size_t place, uint32_t source,
                            uint64_t begin)
{
    const struct entry *entry = &readiness->locked.entries[readiness->by_source[place]];
    return entry->item.source != source ? entry->item.source < source
                                        : readiness->reach[place] <= begin;
}

/* The first in by_source that a check from `begin` on can touch. */
static size_t first_touched(const struct sl_readiness *readiness, uint32_t source, uint64_t begin)
{
    return SL_LOWER_BOUND(i, readiness->count, is_out_of_reach(readiness, i, source, begin));
}

/* ---- counting -------------------------------------------------------------------------------- */

/* The lock is held. */
static void judge(struct sl_readiness *readiness, struct entry *entry)
{
    if (entry->left || entry->checks || entry->reported)
        return;
    entry->reported = true;
    readiness->locked.left--;
    readiness->ready(readiness->arg, (size_t)(entry - readiness->locked.entries));
}

/* Every entry below the check has one check more to wait for, or one less. */
static void touch(struct sl_readiness *readiness, const struct sl_check *check, bool agreed)
{
    if (check->begin >= check->end)
        return;
    for (size_t i = first_touched(readiness, check->source, check->begin); i < readiness->count;
         i++) {
        struct entry *entry = &readiness->locked.entries[readiness->by_source[i]];
        if (entry->item.source != check->source || entry->item.begin >= check->end)
            return;
        if (entry->item.end <= check->begin || entry->item.begin >= entry->item.end)
            continue;
        entry->checks += agreed ? -1u : 1u;
        if (agreed)
            judge(readiness, entry);
    }
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    struct sl_readiness *readiness = arg;
    SL_LOCKED(&readiness->lock);
    touch(readiness, check, true);
}

static bool ends_by(const struct entry *entry, uint32_t file, uint64_t offset)
{
    return entry->item.file != file ? entry->item.file < file
                                    : entry->item.offset + entry->item.bytes <= offset;
}

/* The first entry that ends after this offset of the file. */
static size_t first_after(const struct sl_readiness *readiness, uint32_t file, uint64_t offset)
{
    return SL_LOWER_BOUND(i, readiness->count,
                          ends_by(&readiness->locked.entries[i], file, offset));
}

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct sl_readiness *readiness = arg;
    uint64_t end = offset + bytes;
    SL_LOCKED(&readiness->lock);
    for (size_t i = first_after(readiness, file, offset); i < readiness->count; i++) {
        struct entry *entry = &readiness->locked.entries[i];
        if (entry->item.file != file || entry->item.offset >= end)
            return;
        uint64_t first = SL_MAX(entry->item.offset, offset);
        uint64_t last = SL_MIN(entry->item.offset + entry->item.bytes, end);
        entry->left -= last > first ? last - first : 0;
        judge(readiness, entry);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* What waits for nothing is complete now. */
static void begin(struct sl_readiness *readiness)
{
    const struct sl_plan *plan = readiness->plan;
    for (size_t i = 0; i < plan->check_count; i++)
        if (!plan->checks[i].ordered)
            touch(readiness, &plan->checks[i], false);
    readiness->locked.left = readiness->count;
    for (size_t i = 0; i < readiness->count; i++)
        judge(readiness, &readiness->locked.entries[i]);
}

struct sl_readiness *sl_readiness_new(const struct sl_plan *plan,
                                      const struct sl_readiness_item *items, size_t count,
                                      void (*ready)(void *arg, size_t item), void *arg,
                                      struct sl_err *err)
{
    SL_AUTO(sl_readiness) readiness = sl_alloc(sizeof(*readiness), err);
    if (!readiness)
        return NULL;
    pthread_mutex_init(&readiness->lock, NULL);
    readiness->plan = plan;
    readiness->ready = ready;
    readiness->arg = arg;
    readiness->count = count;
    readiness->locked.entries = sl_alloc_array(count, sizeof(struct entry), err);
    readiness->by_source = sl_alloc_array(count, sizeof(*readiness->by_source), err);
    readiness->reach = sl_alloc_array(count, sizeof(*readiness->reach), err);
    if (!readiness->locked.entries || !readiness->by_source || !readiness->reach)
        return NULL;
    for (size_t i = 0; i < count; i++)
        readiness->locked.entries[i] = (struct entry){.item = items[i], .left = items[i].bytes};
    sort(readiness);
    begin(readiness);
    return sl_steal(&readiness);
}

void sl_readiness_free(struct sl_readiness *readiness)
{
    if (!readiness)
        return;
    pthread_mutex_destroy(&readiness->lock);
    free(readiness->locked.entries);
    free(readiness->by_source);
    free(readiness->reach);
    free(readiness);
}

struct sl_stage_events sl_readiness_events(struct sl_readiness *readiness)
{
    return (struct sl_stage_events){on_landed, on_agreed, readiness};
}

size_t sl_readiness_left(struct sl_readiness *readiness)
{
    SL_LOCKED(&readiness->lock);
    return readiness->locked.left;
}
