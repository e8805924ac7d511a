/*
 * After a restart, in this order: what lies in memory is told to the registry, then what callers
 * had brought and what the config says get their specs, and what is left without one is not asked
 * for any more. So nothing of a model that is whole is loaded again: its source is only asked
 * whether there is a newer version.
 */
#include "node.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "cgroup.h"
#include "log.h"
#include "metrics_write.h"
#include "node_signing.h"
#include "node_tmpfs.h"
#include "peer.h"
#include "selinux_label.h"

enum {
    READER_MEMORY_BYTES = 48 * 1024 * 1024, /* of all loads together, where a spec does not say */
    BUDGET_PERCENT = 80,
    FILES_LAPSE_MS = 5 * 60 * 1000, /* a kubelet asks again after at most two minutes */
};

/* ---- the budget ----------------------------------------------------------------------------- */

static void narrow(const struct sl_cgroup *group, void *arg)
{
    uint64_t *bytes = arg;
    const char *file = group->version == 2 ? "memory.max" : "memory.limit_in_bytes";
    *bytes = SL_MIN(*bytes, sl_cgroup_number(group, file));
}

uint64_t sl_node_memory(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    sl_cgroup_each("memory", narrow, &bytes);
    return bytes;
}

/* What `auto` means for a directory, in bytes: 80 % of the smaller of its file system and our
 * cgroups. */
static uint64_t auto_budget(const char *directory)
{
    struct statfs status;
    uint64_t bytes = sl_node_memory();
    if (statfs(directory, &status) == 0 && status.f_blocks)
        bytes = SL_MIN(bytes, (uint64_t)status.f_blocks * (uint64_t)status.f_bsize);
    return bytes / 100 * BUDGET_PERCENT;
}

static uint64_t budget_of(const struct sl_node_spec *spec)
{
    return spec->budget_bytes == SL_AUTO_VALUE ? auto_budget(spec->directory) : spec->budget_bytes;
}

/* ---- models --------------------------------------------------------------------------------- */

static const struct sl_holder *holder_of(struct sl_node *node, const struct sl_spec *spec)
{
    unsigned ordinal;
    if (!spec->has_pool)
        return sl_directory_holder_ops(node->directory);
    if (spec->sink.pool.device && sl_gpu_is_all(spec->sink.pool.device))
        return sl_gpu_holders_all(node->gpus);
    if (spec->sink.pool.device && sl_gpu_ordinal(spec->sink.pool.device, &ordinal))
        return sl_gpu_holders_ops(node->gpus, ordinal);
    return sl_pool_holder_ops(node->pool);
}

static int inherit(struct sl_node *node, struct sl_spec *spec, struct sl_err *err)
{
    SL_LOCKED(&node->lock);
    if (sl_node_signing_rule(&node->locked.signing, spec, err) < 0)
        return -1;
    return sl_spec_inherit_through(spec, &node->locked.through, err);
}

/* What the node adds to a spec. */
static int complete(struct sl_node *node, struct sl_spec *spec, struct sl_err *err)
{
    if (inherit(node, spec, err) < 0)
        return -1;
    if (spec->readers.memory_bytes == SL_AUTO_VALUE)
        spec->readers.memory_bytes =
            SL_MAX(READER_MEMORY_BYTES / node->loads_at_once, 1024u * 1024u);
    return 0;
}

static int define(struct sl_node *node, struct sl_spec *spec,
                  const struct sl_model_options *options, struct sl_err *err)
{
    return complete(node, spec, err) < 0
               ? -1
               : sl_registry_define(node->registry, spec, holder_of(node, spec), options, err);
}

static void take_config(struct sl_node *node, struct sl_node_config *config)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autofree const char **names = sl_alloc_array(config->count, sizeof(*names), &err);
    sl_autofree char(*copies)[64] = sl_alloc_array(config->count, sizeof(*copies), &err);
    if (!names || !copies) {
        sl_log(SL_LOG_ERROR, "the models of the config cannot be used: %s", err.message);
        return;
    }
    for (size_t i = 0; i < config->count; i++) {
        const struct sl_model_options options = {SL_MODEL_OF_CONFIG, config->models[i].pin, true};
        struct sl_err why = SL_ERR_INIT;
        snprintf(copies[i], sizeof(copies[i]), "%s", config->models[i].spec.metadata.name);
        names[i] = copies[i];
        SL_LOCKED(&node->keeping);
        if (define(node, &config->models[i].spec, &options, &why) < 0 ||
            sl_directory_holder_remember(node->directory, names[i], NULL, &why) < 0)
            sl_log(SL_LOG_ERROR, "model '%s': %s", names[i], why.message);
    }
    sl_registry_keep_only(node->registry, names, config->count);
}

/* ---- what callers bring --------------------------------------------------------------------- */

static int parse_request(const char *text, size_t bytes, struct sl_specs *specs, struct sl_err *err)
{
    sl_autobuf complaints = SL_BUF_INIT(128 * 1024);
    if (sl_spec_parse_placed(text, bytes, "request", false, specs, &complaints, err) < 0)
        return -1;
    if (specs->count <= SL_NODE_REQUEST_MODELS_MAX)
        return 0;
    sl_fail(err, SL_E_USAGE, "%zu models in one request, at most %d are taken", specs->count,
            SL_NODE_REQUEST_MODELS_MAX);
    sl_specs_release(specs);
    return -1;
}

static void define_kept(void *arg, const char *name, const char *text, size_t bytes)
{
    const struct sl_model_options options = {SL_MODEL_OF_REQUEST, false, false};
    struct sl_node *node = arg;
    struct sl_specs specs = {0};
    struct sl_err why = SL_ERR_INIT;
    bool good = parse_request(text, bytes, &specs, &why) == 0;
    for (size_t i = 0; i < specs.count; i++)
        if (strcmp(specs.items[i].metadata.name, name) == 0 &&
            define(node, &specs.items[i], &options, &why) < 0)
            good = false;
    sl_specs_release(&specs);
    if (!good)
        sl_log(SL_LOG_WARN, "the kept spec of '%s' is not valid any more: %s", name, why.message);
}

/* Kept first, since what cannot be kept is not begun: its caller is told that it was refused. What
 * is refused then is not kept, but what was before. */
static int take_request(struct sl_node *node, struct sl_spec *spec, const char *name,
                        const char *text, struct sl_err *err)
{
    const struct sl_model_options options = {SL_MODEL_OF_REQUEST, false, true};
    sl_autobuf before = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    struct sl_err why = SL_ERR_INIT;
    SL_LOCKED(&node->keeping);
    bool kept = sl_directory_holder_recall(node->directory, name, &before, &why) == 0;
    if (!kept && why.kind != SL_E_NOT_FOUND && !*why.code) {
        *err = why;
        return -1;
    }
    if (complete(node, spec, err) < 0 ||
        sl_directory_holder_remember(node->directory, name, text, err) < 0)
        return -1;
    int done = sl_registry_define(node->registry, spec, holder_of(node, spec), &options, err);
    if (done < 0 && sl_directory_holder_remember(node->directory, name,
                                                 kept ? sl_buf_string(&before) : NULL, &why) < 0)
        sl_log(SL_LOG_WARN, "the refused spec of '%s' is kept: %s", name, why.message);
    return done;
}

int sl_node_request(struct sl_node *node, const char *text, size_t bytes,
                    char names[SL_NODE_REQUEST_MODELS_MAX][64], size_t *count, struct sl_err *err)
{
    struct sl_specs specs = {0};
    int done = parse_request(text, bytes, &specs, err);
    *count = 0;
    for (size_t i = 0; done == 0 && i < specs.count; i++) {
        char *name = names[*count];
        snprintf(name, 64, "%s", specs.items[i].metadata.name);
        done = take_request(node, &specs.items[i], name, text, err);
        *count += done == 0;
    }
    if (done < 0 && *count)
        sl_wrap(err, "the first %zu of %zu models will be loaded, the others not", *count,
                specs.count);
    sl_specs_release(&specs);
    return done;
}

static int check_uri(struct sl_node *node, const char *uri, size_t *prefix_bytes,
                     struct sl_err *err)
{
    SL_LOCKED(&node->lock);
    return sl_node_uri_check(&node->locked.uri_prefixes, uri, prefix_bytes, err);
}

const char *sl_node_sharer(uint32_t user, char sharer[SL_SHARER_BYTES])
{
    snprintf(sharer, SL_SHARER_BYTES, "user %u", user);
    return user == SL_PEER_PRIVILEGED ? NULL : sharer;
}

const char *sl_node_sharer_of_namespace(const char *name, char sharer[SL_SHARER_BYTES])
{
    snprintf(sharer, SL_SHARER_BYTES, "namespace '%.63s'", name);
    return sharer;
}

int sl_node_define_uri(struct sl_node *node, const char *uri, const char *device, uint32_t user,
                       char name[SL_NODE_URI_NAME], struct sl_err *err)
{
    char sharer[SL_SHARER_BYTES];
    const struct sl_model_options options = {
        .origin = SL_MODEL_OF_REQUEST, .passing = true, .sharer = sl_node_sharer(user, sharer)};
    struct sl_specs specs = {0};
    size_t prefix_bytes;
    if (check_uri(node, uri, &prefix_bytes, err) < 0 ||
        sl_node_uri_name(uri, device, name, err) < 0 ||
        sl_node_uri_spec(uri, prefix_bytes, device, name, &specs, err) < 0)
        return -1;
    int done = define(node, &specs.items[0], &options, err);
    sl_specs_release(&specs);
    return done;
}

int sl_node_define_files(struct sl_node *node, const struct sl_node_files_options *options,
                         char name[SL_NODE_URI_NAME], struct sl_err *err)
{
    char sharer[SL_SHARER_BYTES];
    const struct sl_model_options passing = {
        .origin = SL_MODEL_OF_REQUEST,
        .passing = true,
        .sharer = sl_node_sharer_of_namespace(options->name_space, sharer),
        .of_volume = true,
        .lapse_ms = FILES_LAPSE_MS};
    struct sl_specs specs = {0};
    sl_autofree char *place = sl_asprintf(err, "files %s", options->sharing);
    if (!place || sl_node_uri_name(options->uri, place, name, err) < 0 ||
        sl_node_uri_spec(options->uri, options->prefix_bytes, NULL, name, &specs, err) < 0)
        return -1;
    if (options->has_credentials)
        snprintf(specs.items[0].source.credentials, sizeof(specs.items[0].source.credentials), "%s",
                 name);
    int done = define(node, &specs.items[0], &passing, err);
    sl_specs_release(&specs);
    return done;
}

/* The lists of a config become the node's; the old ones go with the config. true: there are rules
 * for who signs, or there were. */
static bool take_lists(struct sl_node *node, struct sl_node_spec *spec)
{
    SL_LOCKED(&node->lock);
    struct sl_list old = node->locked.uri_prefixes;
    node->locked.uri_prefixes = spec->pool.uri_prefixes;
    spec->pool.uri_prefixes = old;
    struct sl_spec_through through = node->locked.through;
    node->locked.through = spec->through;
    spec->through = through;
    struct sl_items signing = node->locked.signing;
    node->locked.signing = spec->signing;
    spec->signing = signing;
    node->locked.hides_volumes = spec->csi.hide_volumes;
    sl_metrics_show_hidden(!spec->csi.hide_volumes);
    return node->locked.signing.count || spec->signing.count;
}

bool sl_node_hides_volumes(struct sl_node *node)
{
    SL_LOCKED(&node->lock);
    return node->locked.hides_volumes;
}

int sl_node_forget(struct sl_node *node, const char *name, struct sl_err *err)
{
    SL_LOCKED(&node->keeping);
    if (sl_registry_forget(node->registry, name, err) < 0)
        return -1;
    return sl_directory_holder_remember(node->directory, name, NULL, err);
}

/* ---- the node ------------------------------------------------------------------------------- */

static void warn_of_disk(const char *directory)
{
    enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6, HUGETLBFS = (int)0x958458f6 };
    struct statfs status;
    if (statfs(directory, &status) < 0)
        return;
    int type = (int)status.f_type;
    if (type != TMPFS && type != RAMFS && type != HUGETLBFS)
        sl_log(SL_LOG_WARN, "'%s' is not on a tmpfs: models will lie on a disk, not in memory",
               directory);
}

/* Of volumes in memory that somebody else mounted. */
static void warn_of_label(const struct sl_node_spec *spec)
{
    sl_autoclose int fd = spec->csi.enabled && !spec->tmpfs.path
                              ? open(spec->directory, O_PATH | O_DIRECTORY | O_CLOEXEC)
                              : -1;
    if (fd >= 0)
        sl_selinux_check(fd, spec->directory, sl_selinux_label(spec),
                         "mount its tmpfs with that label, by the option context=");
}

struct sl_node *sl_node_open(struct sl_node_config *config, const struct sl_node_opening *opening,
                             struct sl_err *err)
{
    SL_AUTO(sl_node) node = sl_alloc(sizeof(*node), err);
    if (!node)
        return NULL;
    sl_node_rights_init(&node->rights);
    pthread_mutex_init(&node->keeping, NULL);
    pthread_mutex_init(&node->lock, NULL);
    (void)take_lists(node, &config->spec);
    node->loads_at_once = (unsigned)config->spec.loads_at_once;
    if ((config->spec.tmpfs.path && !(node->tmpfs = sl_strdup(config->spec.tmpfs.path, err))) ||
        sl_node_rights_set(&node->rights, &config->spec.control, err) < 0 ||
        sl_node_tmpfs_mount(&config->spec, err) < 0 ||
        !(node->directory = sl_directory_holder_open(config->spec.directory, err)) ||
        !(node->pool = sl_pool_holder_new(config->spec.pool.directory, err)) ||
        !(node->gpus = sl_gpu_holders_new(err)))
        return NULL;
    warn_of_disk(config->spec.directory);
    warn_of_label(&config->spec);
    const struct sl_registry_config registry = {.budget_bytes = budget_of(&config->spec),
                                                .loads_at_once = node->loads_at_once};
    node->registry = sl_registry_new(&registry, err);
    if (!node->registry || sl_directory_holder_scan(node->directory, node->registry, err) < 0)
        return NULL;
    sl_gpu_holders_bind(node->gpus, node->registry);
    sl_gpu_holders_set(node->gpus, config->spec.pool.gpu_budget_bytes,
                       config->spec.pool.gpu_warm_seconds);
    sl_pool_holder_scan(node->pool, node->gpus, node->registry, opening->given);
    if (opening->found && opening->found(opening->arg, node, err) < 0)
        return NULL;
    sl_directory_holder_each_spec(node->directory, define_kept, node);
    take_config(node, config);
    sl_registry_set_budget(node->registry, registry.budget_bytes); /* it may be less than before */
    return sl_steal(&node);
}

static void release_rules(struct sl_items *rules)
{
    struct sl_node_spec_signing *rule = rules->items;
    for (size_t i = 0; i < rules->count; i++)
        sl_options_release(&sl_node_spec_signing_table, &rule[i]);
    free(rules->items);
}

void sl_node_free(struct sl_node *node)
{
    if (!node)
        return;
    sl_registry_free(node->registry);
    sl_directory_holder_free(node->directory);
    sl_pool_holder_free(node->pool);
    sl_gpu_holders_free(node->gpus);
    sl_node_rights_release(&node->rights);
    for (size_t i = 0; i < node->locked.uri_prefixes.count; i++)
        free(node->locked.uri_prefixes.items[i]);
    free(node->locked.uri_prefixes.items);
    sl_options_release(&sl_spec_through_table, &node->locked.through);
    release_rules(&node->locked.signing);
    pthread_mutex_destroy(&node->keeping);
    pthread_mutex_destroy(&node->lock);
    free(node->tmpfs);
    free(node);
}

void sl_node_reload(struct sl_node *node, struct sl_node_config *config)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_node_rights_set(&node->rights, &config->spec.control, &why) < 0)
        sl_log(SL_LOG_ERROR, "the rights of the new config are not applied: %s", why.message);
    bool rules = take_lists(node, &config->spec);
    if (node->tmpfs)
        sl_node_tmpfs_grow(&config->spec, node->tmpfs);
    sl_registry_hold(node->registry, true); /* until it is known what is pinned, and the budget */
    if (rules)                              /* for what callers have brought, too */
        sl_directory_holder_each_spec(node->directory, define_kept, node);
    take_config(node, config);
    sl_registry_set_budget(node->registry, budget_of(&config->spec));
    sl_gpu_holders_set(node->gpus, config->spec.pool.gpu_budget_bytes,
                       config->spec.pool.gpu_warm_seconds);
    sl_registry_hold(node->registry, false);
}
