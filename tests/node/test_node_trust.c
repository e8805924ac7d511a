/* What another user of the machine made first, planted, or exchanges meanwhile: the node uses none
 * of it, and says so. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node.h"
#include "node_pool.h"
#include "pages.h"
#include "registry_settle.h"
#include "scratch.h"
#include "skip.h"
#include "stranger.h"
#include "tree.h"
#include "web.h"

#define CANARY "a secret of root"
#define MODEL(name)                                                                                \
    "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                             \
    "}\nsource: {uri: \"memory://m/\"}\n"

static char path[SL_SCRATCH_PATH_BYTES];
static int scratch;
static struct sl_err err;
static struct sl_node *node;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    scratch = sl_scratch_open(path);
    ck_assert_int_eq(fchmod(scratch, 01777), 0);
    ck_assert_int_eq(sl_memory_put("m/config.json", "{}", 2, NULL), 0);
    ck_assert_int_eq(sl_tree_write(scratch, "canary", CANARY, strlen(CANARY), &err), 0);
    ck_assert_int_eq(fchmodat(scratch, "canary", 0600, 0), 0);
}

static void close_node(void)
{
    sl_node_free(sl_steal(&node));
}

static void teardown(void)
{
    close_node();
    sl_memory_clear();
    sl_scratch_close(scratch, path);
}

static int read_config(const char *directory, const char *more, struct sl_node_config *config)
{
    char text[2048];
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/%s\nbudgetBytes: 1MiB\n%s",
             path, directory, more);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", path);
    return sl_node_config_read(text, config, &complaints, &err);
}

static bool opens(const char *directory, const char *more)
{
    struct sl_node_config config;
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_msg(read_config(directory, more, &config) == 0, "%s", err.message);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    sl_node_config_release(&config);
    if (node)
        sl_registry_settle(node->registry);
    return node;
}

static void open_node(const char *directory, const char *more)
{
    ck_assert_msg(opens(directory, more), "%s", err.message);
}

static void expect_refused(const char *directory, const char *more, const char *words)
{
    ck_assert_msg(!opens(directory, more), "%s was taken", directory);
    ck_assert_msg(strstr(err.message, words) && strcmp(err.code, "owner") == 0, "%s", err.message);
}

static void request(const char *text)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    ck_assert_msg(sl_node_request(node, text, strlen(text), names, &count, &err) == 0, "%s",
                  err.message);
    sl_registry_settle(node->registry);
}

/* The JSON of a model; "" if it is not known. */
static const char *about(const char *name)
{
    static char text[16384];
    struct sl_json json;
    sl_json_init(&json, sizeof(text));
    *text = 0;
    if (sl_registry_model_json(node->registry, name, true, &json))
        snprintf(text, sizeof(text), "%s", sl_buf_string(&json.buf));
    sl_json_release(&json);
    return text;
}

static bool is_ready(const char *name)
{
    return strstr(about(name), "\"state\":\"ready\"");
}

/* By a spec that a request brought. */
static bool is_known(const char *name)
{
    return strstr(about(name), "\"origin\":\"request\"");
}

/* The path of a model's current version, below the scratch directory. */
static void find_current(const char *model_folder, char version[512])
{
    char name[256], target[64] = "";
    snprintf(name, sizeof(name), "%s/current", model_folder);
    ck_assert_int_eq((int)readlinkat(scratch, name, target, sizeof(target) - 1), 16);
    snprintf(version, 512, "%s/%s", model_folder, target);
}

/* ---- the stranger's ------------------------------------------------------------------------- */

static int make_folder(void *arg)
{
    return mkdirat(scratch, arg, 0777) < 0;
}

static int link_real(void *arg)
{
    char target[SL_SCRATCH_PATH_BYTES + 16];
    snprintf(target, sizeof(target), "%s/real", path);
    return symlinkat(target, scratch, arg) < 0;
}

static int plant_spec(void *arg)
{
    char text[1024], name[512];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: evil}\n"
             "source: {uri: \"file://%s/canary\"}\n",
             path);
    snprintf(name, sizeof(name), "%s/evil", (const char *)arg);
    if (mkdirat(scratch, name, 0755) < 0)
        return 1;
    snprintf(name, sizeof(name), "%s/evil/model.yaml", (const char *)arg);
    int fd = openat(scratch, name, O_WRONLY | O_CREAT | O_EXCL, 0444);
    return fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text);
}

/* ---- who was first -------------------------------------------------------------------------- */

SL_TEST(a_folder_that_somebody_else_made_is_refused)
{
    char more[1024];
    if (!stranger_exists("a_folder_that_somebody_else_made_is_refused"))
        return;
    ck_assert_int_eq(stranger_runs(make_folder, (char *)"theirs"), 0);
    expect_refused("theirs", "", "belongs to user 61234");
    snprintf(more, sizeof(more), "pool: {directory: %s/theirs}\n", path);
    expect_refused("models", more, "belongs to user 61234");
    ck_assert_int_eq(mkdirat(scratch, "shared", 0755) | fchmodat(scratch, "shared", 01777, 0), 0);
    ck_assert_int_eq(stranger_runs(make_folder, (char *)"shared/.sluice-0"), 0);
    expect_refused("shared", "", ".sluice-0' belongs to user 61234");
}

SL_TEST(a_link_of_somebody_else_is_refused)
{
    struct stat status;
    if (!stranger_exists("a_link_of_somebody_else_is_refused"))
        return;
    ck_assert_int_eq(mkdirat(scratch, "real", 0755), 0);
    ck_assert_int_eq(stranger_runs(link_real, (char *)"models"), 0);
    expect_refused("models", "", "is a link of user 61234");
    expect_refused("models/deeper", "", "is a link of user 61234");
    ck_assert_int_eq(fstatat(scratch, "real/.lock", &status, 0), -1);
    ck_assert_int_eq(fstatat(scratch, "real/deeper", &status, 0), -1);
    ck_assert_int_eq(symlinkat("real", scratch, "mine"), 0); /* one of the operator's is fine */
    open_node("mine", "---\n" MODEL("m"));
    ck_assert(is_ready("m"));
}

SL_TEST(sockets_are_not_made_in_a_folder_of_somebody_else)
{
    char at_path[SL_SCRATCH_PATH_BYTES + 32], more[1024];
    struct sl_node_config config;
    if (!stranger_exists("sockets_are_not_made_in_a_folder_of_somebody_else"))
        return;
    ck_assert_int_eq(stranger_runs(make_folder, (char *)"theirs"), 0);
    open_node("models", "");
    snprintf(at_path, sizeof(at_path), "%s/theirs/control", path);
    const struct sl_web_socket at = {at_path, 0600, UINT32_MAX};
    const struct sl_web_config web = {.control = &at, .node = node};
    ck_assert_ptr_null(sl_web_start(&web, &err));
    ck_assert_msg(strstr(err.message, "belongs to user 61234"), "%s", err.message);
    snprintf(more, sizeof(more), "pool: {socket: %s/theirs/pool}\n", path);
    ck_assert_int_eq(read_config("models", more, &config), 0);
    ck_assert_ptr_null(sl_node_pool_start_with(node->registry, NULL, &config.spec, -1, &err));
    ck_assert_msg(strstr(err.message, "belongs to user 61234"), "%s", err.message);
    sl_node_config_release(&config);
}

/* ---- what was planted ----------------------------------------------------------------------- */

static bool has_canary(const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), "%s/%s", path, folder);
    size_t bytes = 0;
    sl_autofree uint8_t *data = sl_model_read(command, "canary", &bytes);
    return data && bytes == strlen(CANARY);
}

static void expect_no_evil(const char *folder)
{
    char version[600];
    struct stat status;
    ck_assert_str_eq(about("evil"), "");
    snprintf(version, sizeof(version), "%s/evil/current", folder);
    ck_assert_int_eq(fstatat(scratch, version, &status, AT_SYMLINK_NOFOLLOW), -1);
    ck_assert(!has_canary(version));
}

SL_TEST(a_shared_folder_gets_one_of_our_own)
{
    static const unsigned modes[] = {01777, 0777, 0775, 02775};
    char name[32], own[64], version[512];
    struct stat status;
    if (!stranger_exists("a_shared_folder_gets_one_of_our_own"))
        return;
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        snprintf(name, sizeof(name), "shared%zu", i);
        snprintf(own, sizeof(own), "%s/.sluice-%u/m", name, geteuid());
        ck_assert_int_eq(mkdirat(scratch, name, 0755) | fchmodat(scratch, name, 0777, 0), 0);
        ck_assert_int_eq(stranger_runs(plant_spec, name), 0);
        ck_assert_int_eq(fchmodat(scratch, name, modes[i], 0), 0);
        for (int again = 0; again < 2; again++) {
            open_node(name, "---\n" MODEL("m"));
            expect_no_evil(name);
            ck_assert(is_ready("m"));
            find_current(own, version);
            ck_assert(strstr(about("m"), strrchr(version, '/') + 1));
            ck_assert_int_eq(fstatat(scratch, version, &status, AT_SYMLINK_NOFOLLOW), 0);
            ck_assert_uint_eq(status.st_uid, geteuid());
            close_node();
        }
    }
}

SL_TEST(what_was_planted_before_the_folder_was_closed_is_left_alone)
{
    if (!stranger_exists("what_was_planted_before_the_folder_was_closed_is_left_alone"))
        return;
    ck_assert_int_eq(mkdirat(scratch, "models", 0755) | fchmodat(scratch, "models", 0777, 0), 0);
    ck_assert_int_eq(stranger_runs(plant_spec, (char *)"models"), 0);
    ck_assert_int_eq(fchmodat(scratch, "models", 0755, 0), 0);
    open_node("models", "---\n" MODEL("m"));
    expect_no_evil("models");
    ck_assert(is_ready("m"));
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    ck_assert_int_eq(
        sl_node_request(node, MODEL("evil"), strlen(MODEL("evil")), names, &count, &err), -1);
    ck_assert_msg(strstr(err.message, "belongs to user 61234"), "%s", err.message);
    sl_registry_settle(node->registry);
    ck_assert_str_eq(about("evil"), ""); /* nothing was begun */
}

static void give(const char *name)
{
    ck_assert_int_eq(fchownat(scratch, name, STRANGER_UID, STRANGER_GID, AT_SYMLINK_NOFOLLOW), 0);
}

/* The manifest of the only model that is kept in a pool's directory. */
static void find_kept(const char *folder, char name[600])
{
    int fd = openat(scratch, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fdopendir(fd);
    *name = 0;
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strlen(entry->d_name) == 32)
            snprintf(name, 600, "%s/%s/manifest.json", folder, entry->d_name);
    closedir(entries);
    ck_assert_str_ne(name, "");
}

/* Restarts, specs that were kept, pins, and files that are another's meanwhile. */
SL_TEST(kept_specs_of_others_are_not_read_again)
{
    struct stat status;
    if (!stranger_exists("kept_specs_of_others_are_not_read_again"))
        return;
    open_node("models", "---\n" MODEL("pinned"));
    request(MODEL("kept"));
    request(MODEL("given"));
    request(MODEL("linked"));
    request(MODEL("open"));
    close_node();
    give("models/given/model.yaml");
    ck_assert_int_eq(linkat(scratch, "models/linked/model.yaml", scratch, "second", 0), 0);
    ck_assert_int_eq(fchmodat(scratch, "models/open/model.yaml", 0666, 0), 0);
    for (int again = 0; again < 2; again++) {
        open_node("models", "---\n" MODEL("pinned"));
        ck_assert(is_ready("pinned") && strstr(about("pinned"), "\"pinned\":true"));
        ck_assert_msg(is_ready("kept") && is_known("kept"), "%s", about("kept"));
        ck_assert_msg(!is_known("given"), "%s", about("given"));
        ck_assert_msg(!is_known("linked"), "%s", about("linked"));
        ck_assert_msg(!is_known("open"), "%s", about("open"));
        close_node();
    }
    open_node("models", "");
    request(MODEL("given")); /* brought again it is kept again */
    close_node();
    ck_assert_int_eq(fstatat(scratch, "models/given/model.yaml", &status, 0), 0);
    ck_assert_uint_eq(status.st_uid, 0);
    open_node("models", "");
    ck_assert(is_known("given"));
}

static unsigned mode_of(const char *name)
{
    struct stat status;
    ck_assert_int_eq(fstatat(scratch, name, &status, AT_SYMLINK_NOFOLLOW), 0);
    return status.st_mode & 0777;
}

/* A source may have a password in it. */
SL_TEST(kept_specs_are_read_by_the_daemon_alone)
{
    open_node("models", "");
    request(MODEL("kept"));
    ck_assert_uint_eq(mode_of("models/kept/model.yaml"), 0600);
    close_node();
    ck_assert_int_eq(fchmodat(scratch, "models/kept/model.yaml", 0444, 0), 0);
    open_node("models", ""); /* of an earlier version */
    ck_assert(is_known("kept"));
    ck_assert_uint_eq(mode_of("models/kept/model.yaml"), 0600);
    close_node();
}

SL_TEST(versions_of_others_do_not_count)
{
    static const char *const parts[] = {"", "/.sluice", "/.sluice/manifest.json", "/.sluice/ready"};
    char version[512], name[600];
    if (!stranger_exists("versions_of_others_do_not_count"))
        return;
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        open_node("models", "---\n" MODEL("m"));
        ck_assert(is_ready("m"));
        close_node();
        find_current("models/m", version);
        snprintf(name, sizeof(name), "%s%s", version, parts[i]);
        give(name);
        open_node("models", "---\n" MODEL("m"));
        ck_assert_msg(!is_ready("m") && strstr(about("m"), "remove "), "%s: %s", parts[i],
                      about("m"));
        close_node();
        ck_assert_int_eq(sl_tree_remove(scratch, version), 0); /* as the message says */
    }
    open_node("models", "---\n" MODEL("m"));
    ck_assert(is_ready("m"));
    close_node();
    give("models/m");
    open_node("models", "");
    ck_assert_str_eq(about("m"), "");
}

SL_TEST(kept_models_of_the_pool_that_another_could_change_are_loaded_again)
{
    char more[1024], name[600];
    struct stat status;
    size_t bytes;
    if (!stranger_exists("kept_models_of_the_pool_that_another_could_change_are_loaded_again"))
        return;
    if (sl_pages_of(scratch) == SL_PAGES_NONE)
        SL_SKIP("TMPDIR is not on a tmpfs");
    sl_autofree uint8_t *blob = sl_model_safetensors("a,b", 100, &bytes);
    ck_assert_int_eq(sl_memory_put("m/object.safetensors", blob, bytes, NULL), 0);
    snprintf(more, sizeof(more),
             "pool: {directory: %s/pool}\n---\napiVersion: sluice/v1alpha1\nkind: Model\n"
             "metadata: {name: p}\nsource: {uri: \"memory://m/object.safetensors\"}\n"
             "sink: {pool: {}}\n",
             path);
    open_node("models", more);
    ck_assert(is_ready("p"));
    close_node();
    find_kept("pool", name);
    ck_assert_int_eq(fstatat(scratch, name, &status, 0), 0);
    ino_t before = status.st_ino;
    open_node("models", more);
    ck_assert(is_ready("p"));
    close_node();
    ck_assert_int_eq(fstatat(scratch, name, &status, 0), 0);
    ck_assert_uint_eq(status.st_ino, before); /* it was found */
    give(name);
    open_node("models", more);
    ck_assert(is_ready("p"));
    ck_assert_int_eq(fstatat(scratch, name, &status, 0), 0);
    ck_assert(status.st_uid == 0 && status.st_ino != before);
}

/* ---- what is exchanged meanwhile --------------------------------------------------------------
 */

static int exchange_folders(void *arg)
{
    (void)arg;
    mkdirat(scratch, "shared/theirs", 0777);
    for (unsigned i = 0; i < UINT32_MAX; i++)
        syscall(SYS_renameat2, scratch, "shared/.sluice-0", scratch, "shared/theirs", 2);
    return 0;
}

static void expect_empty(const char *name)
{
    sl_autoclose int fd = openat(scratch, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq(sl_tree_bytes(fd), 0);
}

SL_TEST(a_daemon_stays_in_its_folder_whoever_renames_it)
{
    enum { MODELS = 40 };
    struct stat status;
    char text[256], name[32];
    if (!stranger_exists("a_daemon_stays_in_its_folder_whoever_renames_it"))
        return;
    ck_assert_int_eq(mkdirat(scratch, "shared", 0755) | fchmodat(scratch, "shared", 0777, 0), 0);
    open_node("shared", "");
    int pid = stranger_begins(exchange_folders, NULL);
    for (unsigned i = 0; i < MODELS; i++) {
        snprintf(text, sizeof(text), MODEL("m%u"), i);
        snprintf(name, sizeof(name), "m%u", i);
        request(text);
        ck_assert_msg(is_ready(name), "%s", about(name));
    }
    stranger_ends(pid);
    close_node();
    ck_assert_int_eq(fstatat(scratch, "shared/.sluice-0", &status, 0), 0);
    expect_empty(status.st_uid == 0 ? "shared/theirs" : "shared/.sluice-0");
    if (status.st_uid != 0) {
        expect_refused("shared", "", "belongs to user 61234");
        syscall(SYS_renameat2, scratch, "shared/.sluice-0", scratch, "shared/theirs", 2);
    }
    open_node("shared", "---\n" MODEL("m7"));
    ck_assert(is_ready("m7"));
    ck_assert(!is_known("m8")); /* no spec was kept where it may be exchanged */
}

static int exchange_sockets(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < UINT32_MAX; i++) {
        (void)!symlinkat("../canary", scratch, "shared/link");
        renameat(scratch, "shared/link", scratch, "shared/control");
        unlinkat(scratch, "shared/control", 0);
    }
    return 0;
}

/* Somebody's link may be in the place just then. Whatever happens, the canary stays as it is. */
static bool starts_once(const struct sl_web_config *config)
{
    struct stat status;
    struct sl_web *web = sl_web_start(config, &err);
    bool started = web != NULL;
    sl_web_free(web);
    ck_assert_int_eq(fstatat(scratch, "canary", &status, 0), 0);
    ck_assert_msg((status.st_mode & 0777) == 0600 && status.st_gid == 0, "mode %o", status.st_mode);
    return started;
}

SL_TEST(no_file_is_opened_to_all_instead_of_a_socket)
{
    enum { ROUNDS = 300 };
    char at_path[SL_SCRATCH_PATH_BYTES + 32];
    if (!stranger_exists("no_file_is_opened_to_all_instead_of_a_socket"))
        return;
    ck_assert_int_eq(mkdirat(scratch, "shared", 0755) | fchmodat(scratch, "shared", 0777, 0), 0);
    open_node("models", "");
    snprintf(at_path, sizeof(at_path), "%s/shared/control", path);
    const struct sl_web_socket at = {at_path, 0666, STRANGER_GID};
    const struct sl_web_config config = {.control = &at, .node = node};
    int pid = stranger_begins(exchange_sockets, NULL);
    unsigned started = 0;
    for (unsigned i = 0; i < ROUNDS; i++)
        started += starts_once(&config);
    /* On a busy machine the stranger may have stood still all the time, with the link there. */
    SL_AWAIT(started || starts_once(&config), "a start while no link was there");
    stranger_ends(pid);
}

SL_CASE(.setup = setup, .teardown = teardown)
