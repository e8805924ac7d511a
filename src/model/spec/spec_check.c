/*
 * Values against each other, and what the node daemon alone takes. Each complaint points at
 * the key that the user has to change.
 */
#include <stdlib.h>
#include <string.h>

#include "spec_decode.h"

static const struct sl_yaml_pair *named(const struct sl_yaml_node *root, const char *path)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, path);
    return pair && sl_yaml_sets_anything(pair->value) ? pair : NULL;
}

static struct sl_mark mark_at(const struct sl_yaml_node *root, const char *path)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, path);
    return pair ? pair->mark : root->mark;
}

/* ---- what is for the node daemon alone ------------------------------------------------------ */

static void complain_served(const struct sl_option_table *table, const struct sl_yaml_node *node,
                            struct sl_complaints *complaints)
{
    for (const struct sl_option *row = table->rows; row->member; row++) {
        char key[64];
        const struct sl_yaml_pair *pair = sl_yaml_get(node, sl_option_key(row, key));
        if (!pair)
            continue;
        if (!row->served) {
            if (row->type == SL_OPTION_SECTION)
                complain_served(row->section, pair->value, complaints);
            continue;
        }
        const struct sl_yaml_node *below = pair->value;
        struct sl_mark mark = pair->mark;
        if (below->kind == SL_YAML_MAP && below->count && !mark.line && below->pairs[0].mark.origin)
            mark = below->pairs[0].mark;
        if (sl_yaml_sets_anything(below) ||
            (row->type == SL_OPTION_SECTION && below->kind == SL_YAML_MAP && below->count == 0))
            sl_complain(complaints, mark, "only `sluice serve` takes '%s': %s", key, row->served);
    }
}

/* ---- sections ------------------------------------------------------------------------------- */

static void check_head(const struct sl_yaml_node *root, const struct sl_spec *spec,
                       struct sl_complaints *complaints)
{
    if (spec->api_version && strcmp(spec->api_version, "sluice/v1alpha1") != 0)
        sl_complain(complaints, mark_at(root, "apiVersion"),
                    "apiVersion '%.80s' is not known here, this sluice reads 'sluice/v1alpha1'",
                    spec->api_version);
}

static void check_source(const struct sl_yaml_node *root, const struct sl_spec *spec,
                         struct sl_complaints *complaints)
{
    const struct sl_spec_source *source = &spec->source;
    size_t length = source->uri ? strlen(source->uri) : 0;
    bool prefix = length && source->uri[length - 1] == '/';
    if (named(root, "source.rank") && source->rank.index >= source->rank.of)
        sl_complain(complaints, mark_at(root, "source.rank"),
                    "rank %u is not below %u, the value of 'of'", (unsigned)source->rank.index,
                    (unsigned)source->rank.of);
    for (size_t i = 0; i < source->mirrors.count && length; i++) {
        const char *mirror = source->mirrors.items[i];
        bool mirror_prefix = *mirror && mirror[strlen(mirror) - 1] == '/';
        if (strstr(mirror, "://") && strstr(source->uri, "://") && mirror_prefix != prefix)
            sl_complain(complaints, mark_at(root, "source.mirrors"),
                        prefix ? "the mirror '%.200s' must end with '/', as 'uri' does"
                               : "the mirror '%.200s' must not end with '/', since 'uri' does not",
                        mirror);
    }
}

static void check_selection(const struct sl_yaml_node *root, const struct sl_spec *spec,
                            struct sl_complaints *complaints)
{
    static const char *const keys[] = {"tensors.prefix", "tensors.include", "tensors.exclude",
                                       "tensors.rename", "tensors.cast",    "tensors.castOverflow",
                                       "tensors.shard"};
    if (!sl_yaml_find(root, "sink.tmpfs") || !sl_sink_layout_is_whole(spec->sink.tmpfs.layout))
        return;
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        const struct sl_yaml_pair *pair = named(root, keys[i]);
        if (pair)
            sl_complain(complaints, pair->mark,
                        "'%s' needs a layout other than verbatim, which copies objects whole: set "
                        "'sink.tmpfs.layout' to safetensors or tensorizer",
                        keys[i]);
    }
}

static bool is_section(const char *key)
{
    static const char *const keys[] = {
#define SL_DESTINATION(name, key, options, table, text, refusal) #key,
#define SL_DESTINATION_OF_CALLER(name)
#include "destinations.def"
#undef SL_DESTINATION
#undef SL_DESTINATION_OF_CALLER
        "caches",
    };
    for (size_t i = 0; i < SL_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* A key that is not a sink has its own complaint. */
static bool misnamed(const struct sl_yaml_node *sink)
{
    for (size_t i = 0; i < sink->count; i++)
        if (!is_section(sink->pairs[i].key))
            return true;
    return false;
}

static void check_id(const struct sl_yaml_node *root, const char *key, const char *text,
                     struct sl_complaints *complaints)
{
    size_t digits = text ? strspn(text, "0123456789") : 0;
    if (text && (text[digits] || !digits || strtoull(text, NULL, 10) >= UINT32_MAX))
        sl_complain(complaints, mark_at(root, key),
                    "'%s': '%.80s' is not a numeric id, such as 1000", key, text);
}

static void check_sink(const struct sl_yaml_node *root, const struct sl_spec *spec,
                       struct sl_complaints *complaints)
{
    const struct sl_yaml_pair *sink = sl_yaml_find(root, "sink");
    const struct sl_yaml_pair *tmpfs = sl_yaml_find(root, "sink.tmpfs"),
                              *pool = sl_yaml_find(root, "sink.pool");
    bool has_tmpfs = tmpfs && tmpfs->value->kind != SL_YAML_NULL;
    bool has_pool = pool && pool->value->kind != SL_YAML_NULL;
    if (!sink || sink->value->kind != SL_YAML_MAP)
        return; /* missing or no mapping: said already */
    if (has_tmpfs && has_pool)
        sl_complain(complaints, pool->mark, "'sink' takes either 'tmpfs' or 'pool', not both");
    if (!has_tmpfs && !has_pool && !misnamed(sink->value))
        sl_complain(complaints, sink->mark,
                    "'sink' names no place: give it 'tmpfs: {path: DIRECTORY}'");
    check_id(root, "sink.tmpfs.owner", spec->sink.tmpfs.owner, complaints);
    check_id(root, "sink.tmpfs.group", spec->sink.tmpfs.group, complaints);
    if (has_tmpfs && spec->sink.tmpfs.layout == SL_LAYOUT_TENSORIZER &&
        sl_yaml_find(root, "sink.tmpfs.shardBytes"))
        sl_complain(complaints, mark_at(root, "sink.tmpfs.shardBytes"),
                    "'shardBytes' is for layout safetensors: layout tensorizer writes one file");
}

static void check_decrypt(const struct sl_yaml_node *root, const struct sl_spec *spec,
                          struct sl_complaints *complaints)
{
    if (spec->decrypt.key_file && spec->decrypt.passphrase_file)
        sl_complain(complaints, mark_at(root, "decrypt.passphraseFile"),
                    "'decrypt' takes either 'keyFile' or 'passphraseFile', not both");
}

static void check_minisign(const struct sl_yaml_node *root, const struct sl_spec *spec,
                           struct sl_complaints *complaints)
{
    const struct sl_spec_minisign *minisign = &spec->verify.minisign;
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "verify.minisign");
    if (!pair || pair->value->kind != SL_YAML_MAP)
        return;
    if (minisign->public_key && minisign->public_key_file)
        sl_complain(complaints, mark_at(root, "verify.minisign.publicKeyFile"),
                    "'minisign' takes either 'publicKey' or 'publicKeyFile', not both");
    if (!named(root, "verify.minisign.publicKey") && !named(root, "verify.minisign.publicKeyFile"))
        sl_complain(complaints, pair->mark,
                    "'minisign' names no key: give it 'publicKey' or 'publicKeyFile'");
    if (sl_yaml_find(root, "sink.tmpfs") && !sl_sink_layout_is_whole(spec->sink.tmpfs.layout))
        sl_complain(complaints, pair->mark,
                    "'verify.minisign' needs layout verbatim: signatures are of whole objects");
}

static void check_device(const struct sl_yaml_node *root, const struct sl_spec *spec,
                         struct sl_complaints *complaints)
{
    const char *device = spec->sink.pool.device;
    const char *number = device && strncmp(device, "cuda:", 5) == 0 ? device + 5 : NULL;
    if (number && strcmp(number, "all") != 0 && strtoul(number, NULL, 10) >= SL_SPEC_GPUS_MAX)
        sl_complain(complaints, mark_at(root, "sink.pool.device"),
                    "'device: %.64s': GPUs are counted from 0 to %d", device, SL_SPEC_GPUS_MAX - 1);
    if (number && strcmp(number, "all") == 0 && sl_yaml_find(root, "tensors.shard"))
        sl_complain(complaints, mark_at(root, "tensors.shard"),
                    "'shard' does not go with 'device: cuda:all', which brings the same to every "
                    "GPU: write a model for each rank, with the 'device' of its GPU");
}

void sl_spec_check(const struct sl_yaml_node *root, const struct sl_spec *spec, bool placed,
                   bool pooled, struct sl_complaints *complaints)
{
    check_head(root, spec, complaints);
    check_source(root, spec, complaints);
    check_selection(root, spec, complaints);
    sl_spec_check_tensors(root, spec, complaints);
    check_sink(root, spec, complaints);
    check_decrypt(root, spec, complaints);
    check_minisign(root, spec, complaints);
    sl_spec_check_signing(sl_yaml_find(root, "verify.modelSigning"), &spec->verify.model_signing,
                          complaints);
    sl_spec_check_sets(root, spec, placed || (pooled && spec->has_pool), complaints);
    if (placed || pooled)
        check_device(root, spec, complaints);
    else
        complain_served(sl_spec_table(), root, complaints);
}
