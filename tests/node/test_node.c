/* The node with real loads: what a new daemon knows of what lies in memory, what callers bring,
 * what a new config changes. */
#include "node.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "memory_store.h"
#include "metrics.h"
#include "model_maker.h"
#include "node_pool.h"
#include "publish.h"
#include "registry_settle.h"
#include "scratch.h"
#include "tree.h"

static char path[SL_SCRATCH_PATH_BYTES], place[SL_SCRATCH_PATH_BYTES + 16];
static char config_path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_err err;
static struct sl_node_config config;
static uint8_t *model; /* borrowed by its source */

#define MODEL(name, more)                                                                          \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"memory://m/\"}\n" more

static void setup(void)
{
    size_t bytes;
    scratch = sl_scratch_open(path);
    snprintf(place, sizeof(place), "%s/models", path);
    snprintf(config_path, sizeof(config_path), "%s/node.yaml", path);
    model = sl_model_safetensors("a,b", 1000, &bytes);
    ck_assert_int_eq(sl_memory_put("m/model.safetensors", model, bytes, NULL), 0);
    ck_assert_int_eq(sl_memory_put("m/config.json", "{}", 2, NULL), 0);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_node_config_release(&config);
    sl_memory_clear();
    free(model);
    sl_scratch_close(scratch, path);
}

static void write_config(const char *budget, const char *more)
{
    char text[8192];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s\nbudgetBytes: %s\n"
             "pool: {socket: %s/pool}\n%s",
             place, budget, path, more);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
}

static int read_config(void)
{
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    sl_node_config_release(&config);
    err = (struct sl_err)SL_ERR_INIT;
    return sl_node_config_read(config_path, &config, &complaints, &err);
}

static struct sl_node *open_with(const char *budget, const char *more)
{
    write_config(budget, more);
    ck_assert_msg(read_config() == 0, "%s", err.message);
    struct sl_node *node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    return node;
}

static struct sl_node *open_node(const char *more)
{
    return open_with("1GiB", more);
}

static struct sl_registry_counts settled(struct sl_node *node)
{
    struct sl_registry_counts counts;
    sl_registry_settle(node->registry);
    sl_registry_counts(node->registry, &counts);
    return counts;
}

static struct sl_model_ref *must(struct sl_node *node, const char *name)
{
    struct sl_model_ref *ref = sl_registry_wait_until(node->registry, name, SL_REF_DIRECTORY,
                                                      "test", NULL, UINT64_MAX, NULL, &err);
    ck_assert_msg(ref != NULL, "%s", err.message);
    return ref;
}

/* Where the files of the current version lie; the reference is given back. */
static void find(struct sl_node *node, const char *name, char found[SL_PUBLISH_PATH_MAX])
{
    struct sl_model_ref *ref = must(node, name);
    sl_model_ref_path(ref, found);
    sl_registry_release(node->registry, ref);
}

static void load_and_end(const char *more)
{
    struct sl_node *node = open_node(more);
    settled(node);
    sl_node_free(node);
}

/* ---- after a restart ------------------------------------------------------------------------ */

SL_TEST(what_lies_in_memory_is_not_loaded_again)
{
    char first[SL_PUBLISH_PATH_MAX], again[SL_PUBLISH_PATH_MAX], link[SL_PUBLISH_PATH_MAX];
    struct sl_node *node = open_node(MODEL("m", ""));
    find(node, "m", first);
    ck_assert_int_eq(sl_model_same(first, "config.json", "{}", 2), 1);
    snprintf(link, sizeof(link), "%s/m/current", place);
    ck_assert_int_eq(sl_model_same(link, "config.json", "{}", 2), 1);
    sl_node_free(node);
    node = open_node(MODEL("m", ""));
    find(node, "m", again);
    ck_assert_str_eq(first, again);
    ck_assert_uint_eq(settled(node).loads, 0);
    sl_node_free(node);
}

SL_TEST(it_is_there_although_the_source_is_gone)
{
    uint64_t published, expected;
    load_and_end(MODEL("m", ""));
    sl_memory_clear();
    struct sl_node *node = open_node(MODEL("m", ""));
    ck_assert(sl_registry_is_ready(node->registry, 0, NULL, NULL, &published, &expected));
    ck_assert_uint_eq(expected, 1);
    char found[SL_PUBLISH_PATH_MAX];
    find(node, "m", found);
    sl_registry_settle(node->registry);
    find(node, "m", found); /* nor after the source was asked for a newer one */
    sl_node_free(node);
}

SL_TEST(files_that_were_touched_do_not_count)
{
    char found[SL_PUBLISH_PATH_MAX], file[SL_PUBLISH_PATH_MAX + 16];
    struct sl_node *node = open_node(MODEL("m", ""));
    find(node, "m", found);
    sl_node_free(node);
    snprintf(file, sizeof(file), "%s/config.json", found);
    ck_assert_int_eq(chmod(file, 0644), 0);
    sl_autoclose int fd = open(file, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(write(fd, "XX", 2), 2);
    ck_assert_int_eq(futimens(fd, (struct timespec[]){{1, 0}, {1, 0}}), 0); /* another tick */
    node = open_node(MODEL("m", ""));
    find(node, "m", found);
    ck_assert_int_eq(sl_model_same(found, "config.json", "{}", 2), 1);
    ck_assert_uint_eq(settled(node).loads, 1);
    sl_node_free(node);
}

SL_TEST(what_nobody_defines_any_more_goes_when_room_is_needed)
{
    load_and_end(MODEL("old", ""));
    size_t bytes = 1010 << 10, count;
    sl_autofree uint8_t *noise = sl_model_noise(bytes, 1);
    ck_assert_int_eq(sl_memory_put("m/noise", noise, bytes, NULL), 0);
    struct sl_node *node = open_with("1MiB", "");
    ck_assert_uint_eq(settled(node).residents, 1);
    ck_assert_ptr_null(sl_registry_wait_until(node->registry, "old", SL_REF_CALLER, "", NULL,
                                              UINT64_MAX, NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    static const char text[] = MODEL("new", "");
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    ck_assert_uint_eq(settled(node).evictions, 1);
    sl_node_free(node);
    ck_assert_int_eq(sl_model_exists(place, "old"), 0);
}

SL_TEST(one_directory_has_one_daemon)
{
    struct sl_node *node = open_node("");
    ck_assert_int_eq(read_config(), 0);
    ck_assert_ptr_null(sl_node_open(&config, &(struct sl_node_opening){0}, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "another node daemon"));
    sl_node_free(node);
}

/* ---- versions ------------------------------------------------------------------------------- */

SL_TEST(a_new_version_leaves_the_files_of_the_old_one_alone)
{
    char old[SL_PUBLISH_PATH_MAX], new[SL_PUBLISH_PATH_MAX];
    struct sl_node *node = open_node(MODEL("m", ""));
    struct sl_model_ref *ref = must(node, "m");
    sl_model_ref_path(ref, old);
    ck_assert_int_eq(sl_memory_put("m/config.json", "{1}", 3, NULL), 0);
    ck_assert_int_eq(sl_registry_load(node->registry, "m", &err), 0);
    sl_registry_settle(node->registry);
    find(node, "m", new);
    ck_assert_str_ne(old, new);
    ck_assert_int_eq(sl_model_same(old, "config.json", "{}", 2), 1);
    ck_assert_int_eq(sl_model_same(new, "config.json", "{1}", 3), 1);
    sl_registry_release(node->registry, ref);
    ck_assert_int_eq(sl_registry_evict(node->registry, "m", NULL, &err), -1); /* pinned */
    sl_node_free(node);
}

static struct stat look_at(const char *folder, const char *name)
{
    char file[SL_PUBLISH_PATH_MAX + 64];
    struct stat status;
    snprintf(file, sizeof(file), "%s/%s", folder, name);
    ck_assert_int_eq(lstat(file, &status), 0);
    return status;
}

/* While pods have the old one, the new one costs what is new in it. */
SL_TEST(versions_share_the_files_that_did_not_change)
{
    char old[SL_PUBLISH_PATH_MAX], new[SL_PUBLISH_PATH_MAX];
    struct sl_node *node = open_node(MODEL("m", ""));
    struct sl_model_ref *ref = must(node, "m");
    sl_model_ref_path(ref, old);
    struct stat before = look_at(old, "model.safetensors");
    ck_assert_int_eq(sl_memory_put("m/config.json", "{1}", 3, NULL), 0);
    ck_assert_int_eq(sl_registry_load(node->registry, "m", &err), 0);
    sl_registry_settle(node->registry);
    find(node, "m", new);
    ck_assert_str_ne(old, new);
    struct stat after = look_at(new, "model.safetensors");
    ck_assert_uint_eq(after.st_ino, before.st_ino);
    ck_assert_uint_eq(after.st_nlink, 2);
    ck_assert_int_eq(sl_publish_verify(old, NULL, NULL, NULL, &err), 0);
    ck_assert_int_eq(sl_publish_verify(new, NULL, NULL, NULL, &err), 0);
    ck_assert_int_eq(sl_model_same(old, "config.json", "{}", 2), 1);
    sl_registry_release(node->registry, ref);
    sl_node_free(node);
    node = open_node(MODEL("m", "")); /* it finds both, whole */
    ref = must(node, "m");
    sl_model_ref_path(ref, old);
    ck_assert_str_eq(old, new);
    ck_assert_uint_eq(look_at(new, "model.safetensors").st_ino, before.st_ino);
    sl_registry_release(node->registry, ref);
    sl_node_free(node);
}

/* A budget with no room for both whole, which holds after a restart, too. */
SL_TEST(what_versions_share_counts_once)
{
    size_t bytes = 700 << 10;
    sl_autofree uint8_t *noise = sl_model_noise(bytes, 1);
    ck_assert_int_eq(sl_memory_put("m/noise", noise, bytes, NULL), 0);
    struct sl_node *node = open_with("1MiB", MODEL("m", ""));
    struct sl_model_ref *old = must(node, "m");
    uint64_t held = settled(node).held_bytes;
    ck_assert_int_eq(sl_memory_put("m/config.json", "{1}", 3, NULL), 0);
    ck_assert_int_eq(sl_registry_load(node->registry, "m", &err), 0);
    ck_assert_uint_eq(settled(node).residents, 2);
    ck_assert_uint_gt(settled(node).held_bytes, held);
    ck_assert_uint_lt(settled(node).held_bytes, held + 1000);
    ck_assert_uint_eq(settled(node).evictions, 0);
    held = settled(node).held_bytes;
    sl_registry_release(node->registry, old);
    sl_node_free(node);
    node = open_with("1MiB", MODEL("m", ""));
    ck_assert_uint_eq(settled(node).residents, 2);
    ck_assert_uint_eq(settled(node).held_bytes, held);
    sl_node_free(node);
}

SL_TEST(an_evicted_model_leaves_no_file)
{
    char folder[SL_PUBLISH_PATH_MAX];
    struct sl_node *node = open_node("");
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    static const char text[] = MODEL("r", "");
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    settled(node);
    uint64_t bytes;
    ck_assert_int_eq(sl_registry_evict(node->registry, "r", &bytes, &err), 0);
    ck_assert_uint_gt(bytes, 8000);
    ck_assert_uint_eq(settled(node).held_bytes, 0);
    snprintf(folder, sizeof(folder), "%s/r", place);
    ck_assert_int_eq(sl_model_exists(folder, "current"), 0);
    ck_assert_int_eq(sl_model_exists(folder, "model.yaml"), 1);
    ck_assert_int_eq(sl_node_forget(node, "r", &err), 0);
    sl_node_free(node);
    ck_assert_int_eq(access(folder, F_OK), -1);
}

/* Else it would come back when the config drops the name. */
SL_TEST(of_a_name_that_the_config_takes_no_spec_of_callers_is_kept)
{
    static const char text[] = MODEL("r", "");
    char names[SL_NODE_REQUEST_MODELS_MAX][64], folder[SL_PUBLISH_PATH_MAX];
    struct sl_registry_meaning meaning;
    size_t count;
    snprintf(folder, sizeof(folder), "%s/r", place);
    for (int reload = 0; reload < 2; reload++) {
        struct sl_node *node = open_node("");
        ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
        settled(node);
        ck_assert_int_eq(sl_model_exists(folder, "model.yaml"), 1);
        if (reload) {
            write_config("1GiB", text);
            ck_assert_int_eq(read_config(), 0);
            sl_node_reload(node, &config);
        } else {
            sl_node_free(node);
            node = open_node(text);
        }
        settled(node);
        ck_assert_int_eq(sl_model_exists(folder, "model.yaml"), 0);
        ck_assert_int_eq(sl_model_exists(folder, "current"), 1);
        sl_node_free(node);
        node = open_node("");
        ck_assert(!sl_registry_meaning(node->registry, "r", &meaning));
        sl_node_free(node);
    }
}

SL_TEST(more_than_the_budget_leaves_no_file)
{
    size_t bytes = 2 << 20;
    sl_autofree uint8_t *noise = sl_model_noise(bytes, 1);
    ck_assert_int_eq(sl_memory_put("m/noise", noise, bytes, NULL), 0);
    struct sl_node *node = open_with("1MiB", MODEL("m", ""));
    ck_assert_ptr_null(sl_registry_wait_until(node->registry, "m", SL_REF_CALLER, "", NULL,
                                              UINT64_MAX, NULL, &err));
    ck_assert_str_eq(err.code, "budget");
    ck_assert_int_eq(sl_model_exists(place, "m"), 0);
    sl_node_free(node);
}

#define MODEL_AT(name, uri)                                                                        \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"" uri "\"}\n"

/* Pinned or in use: it stays, whole, and the next one is refused for what is held. */
SL_TEST(a_new_budget_below_what_is_held_takes_nothing_away)
{
    static const char text[] = MODEL_AT("used", "memory://u/noise");
    static const char pinned[] = MODEL_AT("pinned", "memory://p/noise");
    char names[SL_NODE_REQUEST_MODELS_MAX][64], found[SL_PUBLISH_PATH_MAX];
    size_t bytes = 2 << 20, count;
    sl_autofree uint8_t *noise = sl_model_noise(3 * bytes, 1);
    ck_assert_int_eq(sl_memory_put("u/noise", noise, bytes, NULL), 0);
    ck_assert_int_eq(sl_memory_put("p/noise", noise + bytes, bytes, NULL), 0);
    ck_assert_int_eq(sl_memory_put("n/noise", noise + 2 * bytes, bytes, NULL), 0);
    struct sl_node *node = open_node(pinned);
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    struct sl_model_ref *ref = must(node, "used");
    ck_assert_uint_ge(settled(node).held_bytes, 2 * bytes);

    write_config("1MiB",
                 MODEL_AT("pinned", "memory://p/noise") MODEL_AT("next", "memory://n/noise"));
    ck_assert_msg(read_config() == 0, "%s", err.message);
    sl_node_reload(node, &config);
    ck_assert_uint_ge(settled(node).held_bytes, 2 * bytes);
    sl_model_ref_path(ref, found);
    ck_assert_int_eq(sl_model_exists(found, "noise"), 1);
    find(node, "pinned", found);
    ck_assert_int_eq(sl_model_exists(found, "noise"), 1);
    ck_assert_ptr_null(sl_registry_wait_until(node->registry, "next", SL_REF_CALLER, "", NULL,
                                              UINT64_MAX, NULL, &err));
    ck_assert_str_eq(err.code, "budget");

    sl_registry_release(node->registry, ref); /* nobody needs it now, and it is over the budget */
    ck_assert_uint_lt(settled(node).held_bytes, 2 * bytes);
    find(node, "pinned", found);
    sl_node_free(node);
}

/* ---- another sink --------------------------------------------------------------------------- */

static void reload(struct sl_node *node, const char *more)
{
    write_config("1GiB", more);
    ck_assert_msg(read_config() == 0, "%s", err.message);
    sl_node_reload(node, &config);
}

static bool in_pool(struct sl_node *node)
{
    struct sl_model_ref *ref = must(node, "m");
    bool has_body = sl_model_ref_body(ref);
    sl_registry_release(node->registry, ref);
    return has_body;
}

SL_TEST(a_model_moves_between_files_and_the_pool_as_its_spec_says)
{
    char found[SL_PUBLISH_PATH_MAX];
    struct sl_node *node = open_node(MODEL("m", ""));
    find(node, "m", found);
    ck_assert_int_eq(sl_model_same(found, "config.json", "{}", 2), 1);
    ck_assert(!in_pool(node));
    reload(node, MODEL("m", "sink: {pool: {}}\n"));
    settled(node);
    ck_assert(in_pool(node));
    reload(node, MODEL("m", ""));
    settled(node);
    ck_assert(!in_pool(node));
    find(node, "m", found);
    ck_assert_int_eq(sl_model_same(found, "config.json", "{}", 2), 1);
    sl_node_free(node);
}

/* ---- what callers bring --------------------------------------------------------------------- */

SL_TEST(what_a_caller_brought_is_known_after_a_restart)
{
    static const char text[] = MODEL("r", "");
    char names[SL_NODE_REQUEST_MODELS_MAX][64], found[SL_PUBLISH_PATH_MAX];
    size_t count;
    struct sl_node *node = open_node("");
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(names[0], "r");
    settled(node);
    sl_node_free(node);
    node = open_node("");
    find(node, "r", found);
    ck_assert_uint_eq(settled(node).loads, 0);
    ck_assert_int_eq(sl_node_forget(node, "r", &err), 0);
    settled(node);
    sl_node_free(node);
    node = open_node("");
    ck_assert_uint_eq(settled(node).models, 0);
    sl_node_free(node);
}

SL_TEST(a_caller_learns_what_is_wrong_and_nothing_was_done)
{
    static const char text[] = MODEL("r", "") MODEL("s", "extra: 1\n");
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    struct sl_node *node = open_node(MODEL("m", ""));
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), -1);
    ck_assert_str_eq(err.message, "request:11:1: unknown key 'extra'");
    static const char twin[] = MODEL("m", "readers: {attempts: 2}\n");
    ck_assert_int_eq(sl_node_request(node, twin, strlen(twin), names, &count, &err), -1);
    ck_assert_str_eq(err.code, "exists");
    ck_assert_uint_eq(settled(node).models, 1);
    sl_node_free(node);
}

SL_TEST(what_cannot_be_kept_is_not_begun)
{
    static const char text[] = MODEL("r", "");
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    struct rlimit before, none;
    struct sl_node *node = open_node(MODEL("m", ""));
    settled(node);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0); /* as a directory that is full */
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_uint_eq(settled(node).models, 1);
    ck_assert_int_eq(faccessat(scratch, "models/r", F_OK, 0), -1);
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    ck_assert_uint_eq(settled(node).ready, 2);
    sl_node_free(node);
}

static int request(struct sl_node *node, const char *text)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    return sl_node_request(node, text, strlen(text), names, &count, &err);
}

static void expect_kept(const char *text)
{
    sl_autobuf kept = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_tree_read(scratch, "models/r/model.yaml", &kept, NULL), 0);
    ck_assert_str_eq(sl_buf_string(&kept), text);
}

SL_TEST(of_a_spec_that_is_refused_the_one_before_is_kept)
{
    static const char first[] = MODEL("r", ""), second[] = MODEL("r", "readers: {attempts: 2}\n");
    struct sl_node *node = open_node("");
    unsigned refused = 0, made = 0;
    for (unsigned nth = 1; made + 1 >= nth; nth++) {
        ck_assert_int_eq(request(node, first), 0);
        settled(node);
        sl_alloc_fail_at(nth);
        int done = request(node, second);
        made = sl_alloc_count();
        sl_alloc_fail_at(0);
        expect_kept(done < 0 ? first : second);
        refused += done < 0;
    }
    ck_assert_uint_gt(refused, 0);
    ck_assert_int_eq(request(node, second), 0);
    expect_kept(second);
    sl_node_free(node);
}

/* ---- the config ----------------------------------------------------------------------------- */

SL_TEST(a_new_config_loads_what_is_new_and_unpins_what_left)
{
    struct sl_node *node = open_node(MODEL("a", "") MODEL("b", ""));
    struct sl_model_ref *ref = must(node, "a");
    settled(node);
    write_config("1GiB", MODEL("b", "") MODEL("c", ""));
    ck_assert_int_eq(read_config(), 0);
    sl_node_reload(node, &config);
    struct sl_registry_counts counts = settled(node);
    ck_assert_uint_eq(counts.ready, 3);
    ck_assert_uint_eq(counts.pinned, 2);
    ck_assert_uint_eq(counts.references, 1);
    ck_assert_uint_eq(counts.loads, 3);
    ck_assert_ptr_null(sl_registry_wait_until(node->registry, "a", SL_REF_CALLER, "", NULL,
                                              UINT64_MAX, NULL, &err));
    sl_registry_release(node->registry, ref);
    sl_node_free(node);
}

SL_TEST(every_file_of_a_config_is_read_and_every_mistake_told)
{
    static const char good[] = MODEL("a", ""), bad[] = MODEL("b", "wrong: 1\n");
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    char wanted[4096];
    ck_assert_int_eq(mkdirat(scratch, "specs", 0755), 0);
    sl_autoclose int folder = openat(scratch, "specs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(sl_tree_write(folder, "1.yaml", good, strlen(good), &err), 0);
    ck_assert_int_eq(sl_tree_write(folder, "2.yml", bad, strlen(bad), &err), 0);
    ck_assert_int_eq(sl_tree_write(folder, "3.yaml", good, strlen(good), &err), 0);
    ck_assert_int_eq(sl_tree_write(folder, ".4.yaml", bad, strlen(bad), &err), 0);
    ck_assert_int_eq(sl_tree_write(folder, "5.txt", bad, strlen(bad), &err), 0);
    write_config("1GiB", "models: [{file: specs}, {file: none.yaml}]\n");
    ck_assert_int_eq(sl_node_config_read(config_path, &config, &complaints, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    snprintf(wanted, sizeof(wanted),
             "%s/specs/2.yml:6:1: unknown key 'wrong'\n"
             "%s/specs/3.yaml: another file has a model 'a', too\n"
             "%s/node.yaml: cannot read the models of '%s/none.yaml': No such file or directory\n",
             path, path, path, path);
    ck_assert_str_eq(sl_buf_string(&complaints), wanted);
    /* a mistake of the config itself hides none of its files */
    write_config("1GiB", "loadsAtOnce: many\nmodels: [{file: specs}, {pin: true}]\n");
    complaints.used = 0;
    sl_node_config_release(&config);
    ck_assert_int_eq(sl_node_config_read(config_path, &config, &complaints, &err), -1);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&complaints), "loadsAtOnce"));
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&complaints), "/specs/2.yml:6:1: unknown key"));
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&complaints), "another file has a model 'a'"));
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    for (unsigned n = 1;; n++) {
        write_config("1GiB", MODEL("m", ""));
        sl_node_config_release(&config);
        ck_assert_int_eq(read_config(), 0);
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(n);
        struct sl_node *node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
        sl_alloc_fail_at(0);
        if (!node)
            ck_assert_msg(err.kind == SL_E_NO_SPACE, "%u: %s", n, err.message);
        sl_node_free(node);
        if (n == 60)
            break;
    }
}

/* ---- rights --------------------------------------------------------------------------------- */

SL_TEST(a_token_is_good_as_long_as_it_is_in_the_file)
{
    char file[SL_SCRATCH_PATH_BYTES + 16];
    struct sl_node_rights rights;
    struct sl_node_spec_control control = {.token_file = file};
    snprintf(file, sizeof(file), "%s/token", path);
    sl_node_rights_init(&rights);
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdef"), SL_NODE_TOKEN_NONE);
    ck_assert_int_eq(sl_node_rights_set(&rights, &control, &err), 0);
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdef"), SL_NODE_TOKEN_BROKEN);
    ck_assert_int_eq(sl_tree_write(scratch, "token", " 0123456789abcdef\n", 18, &err), 0);
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdef"), SL_NODE_TOKEN_GOOD);
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdeF"), SL_NODE_TOKEN_WRONG);
    ck_assert_int_eq(sl_node_rights_token(&rights, ""), SL_NODE_TOKEN_WRONG);
    ck_assert_int_eq(sl_tree_write(scratch, "token", "fedcba9876543210", 16, &err), 0);
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdef"), SL_NODE_TOKEN_WRONG);
    ck_assert_int_eq(sl_tree_write(scratch, "token", "short\n", 6, &err), 0);
    ck_assert_int_eq(sl_node_rights_token(&rights, "short"), SL_NODE_TOKEN_BROKEN);
    ck_assert_int_eq(unlinkat(scratch, "token", 0), 0);
    ck_assert_int_eq(mkfifoat(scratch, "token", 0600), 0); /* would hold up who asks */
    ck_assert_int_eq(sl_node_rights_token(&rights, "0123456789abcdef"), SL_NODE_TOKEN_BROKEN);
    sl_node_rights_release(&rights);
}

SL_TEST(only_those_who_are_named_may_change_something)
{
    char uid[] = "4001", gid[] = "4002", *uids[] = {uid}, *gids[] = {gid};
    struct sl_node_rights rights;
    const struct sl_node_spec_control control = {.uids = {uids, 1}, .gids = {gids, 1}};
    sl_node_rights_init(&rights);
    ck_assert(sl_node_rights_user(&rights, &(struct sl_peer){.uid = 0, .gid = 0, .home = true}));
    ck_assert(!sl_node_rights_user(&rights, &(struct sl_peer){.uid = 0, .gid = 0}));
    ck_assert(
        sl_node_rights_user(&rights, &(struct sl_peer){.uid = geteuid(), .gid = 77, .home = true}));
    ck_assert(!sl_node_rights_user(&rights, &(struct sl_peer){.uid = 4001, .gid = 4001}));
    ck_assert_int_eq(sl_node_rights_set(&rights, &control, &err), 0);
    ck_assert(sl_node_rights_user(&rights, &(struct sl_peer){.uid = 4001, .gid = 77}));
    ck_assert(sl_node_rights_user(&rights, &(struct sl_peer){.uid = 77, .gid = 4002}));
    ck_assert(!sl_node_rights_user(&rights, &(struct sl_peer){.uid = 4002, .gid = 4001}));
    sl_node_rights_release(&rights);
}

static void *keep_saying(void *holder)
{
    struct sl_err why = SL_ERR_INIT;
    for (int i = 0; i < 200 && !why.kind; i++)
        sl_directory_holder_remember(holder, "m", "a spec", &why);
    return why.kind ? holder : NULL;
}

SL_TEST(callers_may_bring_the_same_spec_at_once)
{
    pthread_t threads[4];
    void *failed[SL_COUNT(threads)];
    SL_AUTO(sl_directory_holder) holder = sl_directory_holder_open(place, &err);
    ck_assert_msg(holder != NULL, "%s", err.message);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, keep_saying, holder), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_join(threads[i], &failed[i]);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        ck_assert_ptr_null(failed[i]);
}

static void *request_once(void *node)
{
    static const char text[] = MODEL("r", "");
    struct sl_err why = SL_ERR_INIT;
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    (void)sl_node_request(node, text, strlen(text), names, &count, &why);
    return NULL;
}

static void *forget_once(void *node)
{
    struct sl_err why = SL_ERR_INIT;
    (void)sl_node_forget(node, "r", &why);
    return NULL;
}

SL_TEST(what_is_known_is_kept_whoever_forgets_it_meanwhile)
{
    enum { ROUNDS = 100 };
    struct sl_registry_meaning meaning;
    struct sl_node *node = open_node("");
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t asking, forgetting;
        request_once(node);
        ck_assert_int_eq(pthread_create(&forgetting, NULL, forget_once, node), 0);
        ck_assert_int_eq(pthread_create(&asking, NULL, request_once, node), 0);
        pthread_join(asking, NULL);
        pthread_join(forgetting, NULL);
        bool kept = faccessat(scratch, "models/r/model.yaml", F_OK, 0) == 0;
        ck_assert_int_eq(sl_registry_meaning(node->registry, "r", &meaning), kept);
    }
    sl_node_free(node);
}

SL_CASE(.setup = setup, .teardown = teardown)
