/*
 * What a load is about as far as a listing and the spec tell: enough to know that the same was
 * published before, without a request for any object. It is told by those listings alone that give
 * each object a strong ETag or a pin, and not where anything else decides about the plan: keys,
 * public keys, sidecars of which only the name is known. Files of this machine cost nothing to
 * open, and an opening sees more than a listing.
 */
#include "hash.h"
#include "plan_parts.h"

static void mix_number(struct sl_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    sl_put_le64(bytes, value);
    sl_sha256_update(sha, bytes, sizeof(bytes));
}

/* With its NUL, so that neighbours cannot flow into each other; NULL is not a text. */
static void mix_text(struct sl_sha256 *sha, const char *text)
{
    mix_number(sha, text != NULL);
    if (text)
        sl_sha256_update(sha, text, strlen(text) + 1);
}

static void mix_list(struct sl_sha256 *sha, const struct sl_list *list)
{
    mix_number(sha, list->count);
    for (size_t i = 0; i < list->count; i++)
        mix_text(sha, list->items[i]);
}

static void mix_map(struct sl_sha256 *sha, const struct sl_map *map)
{
    mix_number(sha, map->count);
    for (size_t i = 0; i < map->count; i++) {
        mix_text(sha, map->keys[i]);
        mix_text(sha, map->values[i]);
    }
}

static void mix_options(struct sl_sha256 *sha, const struct sl_option_table *table,
                        const void *values);

static void mix_items(struct sl_sha256 *sha, const struct sl_option_table *table,
                      const struct sl_items *items)
{
    mix_number(sha, items->count);
    for (size_t i = 0; i < items->count; i++)
        mix_options(sha, table, (const char *)items->items + i * table->struct_bytes);
}

static void mix_option(struct sl_sha256 *sha, const struct sl_option *row, const void *at)
{
    switch (row->type) {
    case SL_OPTION_BOOL:
        mix_number(sha, *(const bool *)at);
        break;
    case SL_OPTION_STRING:
        mix_text(sha, *(char *const *)at);
        break;
    case SL_OPTION_UINT:
    case SL_OPTION_BYTES:
    case SL_OPTION_RATE:
        mix_number(sha, *(const uint64_t *)at);
        break;
    case SL_OPTION_CHOICE:
        mix_number(sha, (uint64_t) * (const int *)at);
        break;
    case SL_OPTION_LIST:
        mix_list(sha, at);
        break;
    case SL_OPTION_MAP:
        mix_map(sha, at);
        break;
    case SL_OPTION_SECTION:
        mix_options(sha, row->section, at);
        break;
    case SL_OPTION_ITEMS:
        mix_items(sha, row->section, at);
        break;
    }
}

static void mix_options(struct sl_sha256 *sha, const struct sl_option_table *table,
                        const void *values)
{
    for (const struct sl_option *row = table->rows; row->member; row++) {
        mix_text(sha, row->member);
        mix_option(sha, row, (const char *)values + row->offset);
    }
}

/* What decides about a plan; who reads how, and by which rights, does not. Where nothing checks
 * what caches give, samples do, which a plan without caches has not. */
static void mix_spec(struct sl_sha256 *sha, const struct sl_spec *spec)
{
    const struct sl_spec_through *through = &spec->source.through;
    static const char *const sections[] = {"tensors", "verify", "sink"};
    mix_list(sha, &spec->source.include);
    mix_list(sha, &spec->source.exclude);
    mix_list(sha, &spec->source.as_is);
    mix_number(sha, (uint64_t)spec->source.incomplete);
    mix_number(sha, through->caches.count && through->unverified == SL_UNVERIFIED_WARN);
    for (const struct sl_option *row = sl_spec_table()->rows; row->member; row++)
        for (size_t i = 0; i < SL_COUNT(sections); i++)
            if (strcmp(row->member, sections[i]) == 0)
                mix_option(sha, row, (const char *)spec + row->offset);
}

static bool is_enough(const struct sl_plan_own *own)
{
    const struct sl_spec *spec = own->spec;
    if (own->single || own->listed_count || sl_store_traits(own->store)->local ||
        sl_plan_is_signed(spec) || sl_spec_is_signed(spec) || spec->decrypt.key_file ||
        spec->decrypt.passphrase_file)
        return false;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (!own->candidates[i].etag && !own->candidates[i].pin)
            return false;
    return true;
}

int sl_plan_ask(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    const struct sl_plan_output *output = &own->output;
    if (!is_enough(own))
        return 0;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    mix_text(sha, "sluice asked 1 " SLUICE_VERSION);
    mix_text(sha, sl_store_uri(own->store));
    mix_spec(sha, own->spec);
    mix_number(sha, output->layout);
    mix_number(sha, output->part_bytes);
    mix_number(sha, output->align_bytes);
    mix_number(sha, own->candidate_count);
    for (size_t i = 0; i < own->candidate_count; i++) {
        mix_text(sha, own->candidates[i].name);
        mix_number(sha, own->candidates[i].bytes);
        mix_text(sha, own->candidates[i].etag);
        mix_text(sha, own->candidates[i].pin);
    }
    sl_sha256_finish(sha, plan->asked);
    plan->asked_known = true;
    plan->there = output->there && output->there(plan->asked, output->there_arg);
    return 0;
}
