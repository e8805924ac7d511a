/*
 * What a spec pins, its own word or the environment's, beside the keys that say the same: either
 * may, and where both do they must agree. What was found is put into those keys, so whoever reads
 * `readers.connections` need not know of a pin.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "concurrency.h"
#include "spec_decode.h"

struct fixing {
    struct sl_spec *spec;
    struct sl_fixed fixed;
    struct sl_mark mark;
    struct sl_complaints *complaints;
};

static void complain_of_both(struct fixing *fixing, const char *pinned, const char *key)
{
    sl_complain(fixing->complaints, fixing->mark,
                "'%s' is pinned to something else than '%s' says: leave one of them out", pinned,
                key);
}

static void fix_number(struct fixing *fixing, const char *pinned, uint64_t value, const char *key,
                       uint64_t *said)
{
    if (value != SL_AUTO_VALUE && *said != SL_AUTO_VALUE && value != *said)
        complain_of_both(fixing, pinned, key);
    else
        *said = sl_fixed_or(value, *said);
}

static void check_place(struct fixing *fixing, const char *pinned, int place, const char *key,
                        int said)
{
    int same = place == SL_FIXED_GPU ? SL_DECRYPT_GPU : SL_DECRYPT_HOST;
    if (place >= 0 && said != SL_DECRYPT_AUTO && said != same)
        complain_of_both(fixing, pinned, key);
}

static void fix_keys(struct fixing *fixing, const struct sl_yaml_node *root)
{
    const struct sl_fixed *fixed = &fixing->fixed;
    const struct sl_spec_pool *pool = &fixing->spec->sink.pool;
    struct sl_spec_readers *readers = &fixing->spec->readers;
    fix_number(fixing, "connections", fixed->connections, "readers.connections",
               &readers->connections);
    fix_number(fixing, "range-bytes", fixed->range_bytes, "readers.rangeBytes",
               &readers->range_bytes);
    if (fixed->request_worth != SL_AUTO_VALUE && fixed->request_worth != SL_WORTH_BYTES_MIN &&
        readers->slices == SL_SLICES_LEAST_BYTES)
        complain_of_both(fixing, "request-worth", "readers.slices");
    const struct sl_yaml_pair *hedge = sl_yaml_find(root, "readers.hedge");
    if (fixed->hedge >= 0 && readers->hedge == SL_HEDGE_AUTO && hedge &&
        sl_yaml_sets_anything(hedge->value))
        complain_of_both(fixing, "hedge", "readers.hedge");
    readers->hedge = SL_HEDGE_OFF;
    check_place(fixing, "decrypt", fixed->decrypt, "sink.pool.decrypt", pool->decrypt);
    check_place(fixing, "cast", fixed->cast, "sink.pool.cast", pool->cast);
    check_place(fixing, "crc", fixed->crc, "sink.pool.crc", pool->crc);
}

void sl_spec_fix(const struct sl_yaml_node *root, struct sl_spec *spec,
                 struct sl_complaints *complaints)
{
    struct fixing fixing = {.spec = spec, .fixed = sl_fixed_none(), .complaints = complaints};
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "readers.fixed");
    const char *text = spec->readers.fixed;
    struct sl_err why = SL_ERR_INIT;
    if (text) {
        fixing.mark = pair ? pair->value->mark : root->mark;
    } else {
        text = getenv("SLUICE_FIXED");
        fixing.mark.origin = "SLUICE_FIXED";
    }
    if (sl_fixed_parse(text, &fixing.fixed, &why) < 0)
        sl_complain(complaints, fixing.mark, "'fixed': %s", why.message);
    else if (fixing.fixed.on)
        fix_keys(&fixing, root);
    spec->fixed = fixing.fixed;
}
