/*
 * First it is found what a device could do, and only if that is anything the destination is asked.
 * A device computes a CRC when the last of a check's bytes has come, so a byte counts for one check
 * there: of those that overlap, sorted by their place, one is taken and the others stay here.
 */
#include "stages.h"

#include <stdlib.h>

#include "mem.h"

static bool can_decrypt(const struct sl_mapping *mapping, const struct sl_stage_offer *offer)
{
    return sl_mapping_keeps_pieces(mapping) && mapping->piece_bytes <= offer->piece_bytes_max;
}

static bool can_cast(const struct sl_mapping *mapping)
{
    bool hashed_late = mapping->check_count && mapping->piece_bytes && !mapping->ordered;
    return mapping->target->from->dtype != mapping->target->out.dtype && !mapping->composed &&
           !hashed_late;
}

static bool can_compute(const struct sl_check *check)
{
    return check->repair == SL_REPAIR_FETCH && !check->computed && !check->ordered &&
           check->begin < check->end &&
           (check->kind == SL_HASH_CRC32 || check->kind == SL_HASH_CRC32C);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static enum sl_stage_side *side_of(struct sl_mapping *mapping, enum sl_stage stage)
{
    return stage == SL_STAGE_DECRYPT ? &mapping->decrypt_on : &mapping->cast_on;
}

/* Decryption or casts. */
static int place_mappings(struct sl_plan *plan, const struct sl_stage_offer *offer,
                          enum sl_stage stage, struct sl_err *err)
{
    bool asked = false, does = false;
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++) {
        struct sl_mapping *mapping = &plan->mappings[i];
        bool can = stage == SL_STAGE_DECRYPT ? can_decrypt(mapping, offer) : can_cast(mapping);
        if (!can || !offer->has(offer->arg, mapping->file))
            continue;
        if (!asked && offer->does(offer->arg, stage, &does, err) < 0)
            return -1;
        asked = true;
        if (!does)
            return 0;
        *side_of(mapping, stage) = SL_ON_DEVICE;
    }
    return 0;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_check *x = *(const struct sl_check *const *)a;
    const struct sl_check *y = *(const struct sl_check *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->file_offset != y->file_offset)
        return x->file_offset < y->file_offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void take_apart(struct sl_check *const *checks, size_t count)
{
    const struct sl_check *last = NULL;
    for (size_t i = 0; i < count; i++) {
        struct sl_check *check = checks[i];
        if (last && last->file == check->file &&
            last->file_offset + (last->end - last->begin) > check->file_offset)
            continue;
        check->crc_on = SL_ON_DEVICE;
        last = check;
    }
}

static int place_checks(struct sl_plan *plan, const struct sl_stage_offer *offer,
                        struct sl_err *err)
{
    bool does = false;
    size_t count = 0;
    sl_autofree struct sl_check **checks =
        sl_alloc_array(plan->check_count, sizeof(struct sl_check *), err);
    if (!checks)
        return -1;
    for (size_t i = 0; i < plan->check_count; i++)
        if (can_compute(&plan->checks[i]) && offer->has(offer->arg, plan->checks[i].file))
            checks[count++] = &plan->checks[i];
    if (!count)
        return 0;
    if (offer->does(offer->arg, SL_STAGE_CRC, &does, err) < 0)
        return -1;
    if (!does)
        return 0;
    qsort(checks, count, sizeof(struct sl_check *), by_place);
    take_apart(checks, count);
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

int sl_plan_stages(struct sl_plan *plan, const struct sl_stage_offer *offer, struct sl_err *err)
{
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        plan->mappings[i].decrypt_on = plan->mappings[i].cast_on = SL_ON_HOST;
    for (size_t i = 0; i < plan->check_count; i++)
        plan->checks[i].crc_on = SL_ON_HOST;
    if (!offer)
        return 0;
    if (place_mappings(plan, offer, SL_STAGE_DECRYPT, err) < 0 ||
        place_mappings(plan, offer, SL_STAGE_CAST, err) < 0)
        return -1;
    return place_checks(plan, offer, err);
}

uint64_t sl_plan_on_device(const struct sl_plan *plan, enum sl_stage stage)
{
    uint64_t count = 0;
    for (size_t i = 0; stage == SL_STAGE_CRC && i < plan->check_count; i++)
        count += plan->checks[i].crc_on == SL_ON_DEVICE;
    for (size_t i = 0; stage != SL_STAGE_CRC && plan->mappings && i < plan->target_count; i++)
        count += *side_of(&plan->mappings[i], stage) == SL_ON_DEVICE;
    return count;
}
