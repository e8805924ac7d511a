/*
 * sluice serve: the node daemon. One thread, this one, waits for signals and for the watchdog's
 * time; everything else is done by the threads of the registry and of the servers. SIGHUP reads the
 * config again; what it says about models, rights and the budget counts from then on, and where the
 * daemon listens stays as it was.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"
#include "gpu.h"
#include "libcurl.h"
#include "log.h"
#include "node.h"
#include "node_pool.h"
#include "serve_csi.h"
#include "systemd.h"
#include "thread.h"
#include "web.h"

enum {
    DRAIN_MS = 700, /* of the second that SIGTERM leaves */
    END_MS = 10000, /* of the thirty seconds that Kubernetes leaves */
    END_LOOK_MS = 1000,
    STATUS_MS = 1000,
    COMPLAINTS_MAX = 1024 * 1024,
    FILES_WANTED = 65536,
};

struct serve_options {
    char *listen;
    bool check;
};
static const struct sl_option rows[] = {
    SL_OPTION(serve_options, listen, STRING, "",
              "address of health, metrics and the page; wins over the config", .flag = "listen",
              .value = "ADDR:PORT"),
    SL_OPTION(serve_options, check, BOOL, "false",
              "read the config and the specs it names, report every mistake, or what was checked, "
              "and exit"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"serve", sizeof(struct serve_options), rows};

struct server {
    struct sl_cli *cli;
    struct sl_node_config config; /* in force; its specs are the node's */
    struct sl_systemd_sockets sockets;
    struct sl_node *node;
    struct sl_node_pool *pool;
    struct sl_serve_csi csi;
    struct sl_web *web, *control;
    char status[160]; /* told to the service manager */
};

/* ---- SIGHUP --------------------------------------------------------------------------------- */

static int hangup_fd = -1;

static void on_hangup(int number)
{
    int saved = errno;
    (void)number;
    eventfd_write(hangup_fd, 1);
    errno = saved;
}

static int catch_hangup(struct sl_err *err)
{
    struct sigaction action = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    hangup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hangup_fd < 0 || sigaction(SIGHUP, &action, NULL) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot wait for SIGHUP");
    return 0;
}

/* ---- the config ----------------------------------------------------------------------------- */

/* One mistake is the error itself; of several each is logged, and the error counts them. */
static int read_config(struct sl_cli *cli, struct sl_node_config *config, struct sl_err *err)
{
    sl_autobuf complaints = SL_BUF_INIT(COMPLAINTS_MAX);
    if (sl_node_config_read(cli->operands[0], config, &complaints, err) == 0) {
        sl_node_rights_warn(&config->spec.control);
        return 0;
    }
    sl_node_config_release(config);
    return sl_cli_report_mistakes(cli, &complaints, "in the config: see `sluice docs node`", err);
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* What takes a restart; said, and left as it is. */
static void warn_of_restart(const struct sl_node_spec *old, const struct sl_node_spec *new)
{
    const struct {
        const char *key;
        bool same;
    } keys[] = {
        {"directory", same_text(old->directory, new->directory)},
        {"tmpfs", same_text(old->tmpfs.path, new->tmpfs.path) &&
                      old->tmpfs.huge == new->tmpfs.huge &&
                      old->tmpfs.size_bytes == new->tmpfs.size_bytes},
        {"selinuxLabel", same_text(old->selinux_label, new->selinux_label)},
        {"loadsAtOnce", old->loads_at_once == new->loads_at_once},
        {"listen", same_text(old->listen, new->listen)},
        {"control.socket", same_text(old->control.socket, new->control.socket)},
        {"control.group", same_text(old->control.group, new->control.group)},
        {"pool.socket", same_text(old->pool.socket, new->pool.socket)},
        {"pool.group", same_text(old->pool.group, new->pool.group)},
        {"pool.directory", same_text(old->pool.directory, new->pool.directory)},
        {"csi.enabled", old->csi.enabled == new->csi.enabled},
        {"csi.driverName", same_text(old->csi.driver_name, new->csi.driver_name)},
        {"csi.nodeId", same_text(old->csi.node_id, new->csi.node_id)},
        {"csi.socket", same_text(old->csi.socket, new->csi.socket)},
        {"csi.registration", same_text(old->csi.registration, new->csi.registration)},
        {"csi.kubeletDirectory", same_text(old->csi.kubelet_directory, new->csi.kubelet_directory)},
        {"csi.waitSeconds", old->csi.wait_seconds == new->csi.wait_seconds},
    };
    for (size_t i = 0; i < SL_COUNT(keys); i++)
        if (!keys[i].same)
            sl_log(SL_LOG_WARN, "'%s' has changed in the config: restart the daemon to apply it",
                   keys[i].key);
}

/* Those whom the new lists name must get through to be asked who they are. */
static void set_control_mode(const struct server *server, const struct sl_node_spec *spec)
{
    unsigned mode;
    struct sl_err why = SL_ERR_INIT;
    if (server->control && (sl_node_spec_control_mode(&spec->control, &mode, &why) < 0 ||
                            sl_web_set_mode(server->control, mode, &why) < 0))
        sl_log(SL_LOG_WARN, "%s: the old one stays in force", why.message);
}

static void reload(struct server *server)
{
    struct sl_node_config config;
    struct sl_err err = SL_ERR_INIT;
    sl_systemd_reloading();
    struct sl_cli later = *server->cli;
    later.mistakes = NULL; /* they are not why the process ends */
    if (read_config(&later, &config, &err) < 0) {
        sl_log(SL_LOG_ERROR, "the new config is not used, the old one stays in force: %s",
               err.message);
    } else {
        warn_of_restart(&server->config.spec, &config.spec);
        if (server->pool)
            sl_node_pool_reload(server->pool, &config.spec);
        sl_serve_csi_reload(&server->csi, &config.spec);
        set_control_mode(server, &config.spec);
        sl_node_reload(server->node, &config);
        char models[40];
        sl_log(SL_LOG_INFO, "the config was read again: %s",
               sl_human_count(config.count, "model", models));
        sl_node_config_release(&config);
    }
    sl_systemd_notify("READY=1");
}

/* What was checked, on one line. */
static int report_check(const struct server *server, struct sl_err *err)
{
    const struct sl_node_config *config = &server->config;
    uint64_t budget = config->spec.budget_bytes, memory = sl_node_memory();
    bool is_auto = budget == SL_AUTO_VALUE;
    char models[40], budget_text[32] = "auto", memory_text[32];
    struct sl_json json;
    if (!is_auto)
        sl_human_bytes(budget, budget_text);
    if (!is_auto && budget > memory)
        sl_log(SL_LOG_WARN, "budgetBytes is %s, and there are %s of memory here", budget_text,
               sl_human_bytes(memory, memory_text));
    if (!server->cli->json) {
        printf("ok: %s: %s, budget %s\n", server->cli->operands[0],
               sl_human_count(config->count, "model", models), budget_text);
        return 0;
    }
    sl_json_init(&json, 8192);
    sl_json_object(&json);
    sl_json_key_string(&json, "config", server->cli->operands[0]);
    sl_json_key_uint(&json, "models", config->count);
    if (!is_auto)
        sl_json_key_uint(&json, "budget_bytes", budget);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

/* ---- serving -------------------------------------------------------------------------------- */

/* Each client of a pool and each connection of a load takes descriptors. */
static void raise_file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur >= FILES_WANTED)
        return;
    files.rlim_cur = SL_MIN(files.rlim_max, (rlim_t)FILES_WANTED);
    setrlimit(RLIMIT_NOFILE, &files);
}

static const char *listen_address(const struct server *server)
{
    const struct serve_options *options = server->cli->options;
    const char *usual = getenv("SLUICE_LISTEN");
    if (options->listen)
        return options->listen;
    if (server->config.spec.listen)
        return server->config.spec.listen;
    return usual && *usual ? usual : "0.0.0.0:9464";
}

static int start_control(struct server *server, struct sl_err *err)
{
    const struct sl_node_spec_control *control = &server->config.spec.control;
    struct sl_web_socket at = {control->socket, 0600, UINT32_MAX};
    int fd = sl_systemd_take(&server->sockets, "control");
    if (fd < 0 && !control->socket)
        return 0;
    if (!at.path)
        at.path = "control"; /* the service manager's */
    if (sl_node_spec_control_mode(control, &at.mode, err) < 0 ||
        (control->group && sl_node_spec_id(control->group, &at.group, err) < 0))
        return -1;
    const struct sl_web_config config = {.control = &at,
                                         .node = server->node,
                                         .beside = sl_serve_csi_beside(&server->csi),
                                         .listen_fd = SL_MAX(fd, 0)};
    server->control = sl_web_start(&config, err);
    return server->control ? 0 : -1;
}

static int start_pool(struct server *server, struct sl_err *err)
{
    int fd = sl_systemd_take(&server->sockets, "pool");
    if (fd < 0 && !server->config.spec.pool.socket)
        return 0;
    server->pool = sl_node_pool_start_with(server->node->registry, server->node->gpus,
                                           &server->config.spec, fd, err);
    if (server->pool)
        sl_node_pool_allow_uris(server->pool, server->node);
    return server->pool ? 0 : -1;
}

static int start_web(struct server *server, struct sl_err *err)
{
    int fd = sl_systemd_take(&server->sockets, "http");
    char host[256];
    const struct sl_web_config config = {.listen = listen_address(server),
                                         .node_name = sl_serve_csi_node_id(&server->csi, host),
                                         .node = server->node,
                                         .beside = sl_serve_csi_beside(&server->csi),
                                         .listen_fd = SL_MAX(fd, 0)};
    server->web = sl_web_start(&config, err);
    return server->web ? 0 : -1;
}

static int announce(const struct server *server, struct sl_err *err)
{
    const struct sl_node_spec *spec = &server->config.spec;
    struct sl_registry_counts counts;
    char budget[32], models[40];
    sl_registry_counts(server->node->registry, &counts);
    sl_log(SL_LOG_INFO, "the node daemon serves %s in '%s', at most %s, on port %u",
           sl_human_count(counts.models, "model", models),
           sl_directory_holder_path(server->node->directory),
           sl_human_bytes(counts.budget_bytes, budget), sl_web_port(server->web));
    if (!server->cli->json)
        return 0;
    struct sl_json json;
    sl_json_init(&json, 8192);
    sl_json_object(&json);
    sl_json_key_uint(&json, "port", sl_web_port(server->web));
    sl_json_key_string(&json, "directory", sl_directory_holder_path(server->node->directory));
    sl_json_key_uint(&json, "budget_bytes", counts.budget_bytes);
    if (spec->control.socket)
        sl_json_key_string(&json, "control", spec->control.socket);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return fflush(stdout) == 0 ? done : sl_fail(err, SL_E_NO_SPACE, "cannot write to stdout");
}

static void report_status(struct server *server)
{
    struct sl_registry_counts counts;
    char text[sizeof(server->status)], held[32], models[40], references[40];
    sl_registry_counts(server->node->registry, &counts);
    snprintf(text, sizeof(text), "STATUS=%llu of %s in memory, %s, %s",
             (unsigned long long)counts.ready, sl_human_count(counts.models, "model", models),
             sl_human_bytes(counts.held_bytes, held),
             sl_human_count(counts.references, "reference", references));
    if (strcmp(text, server->status) == 0)
        return;
    memcpy(server->status, text, sizeof(text));
    sl_systemd_notify(text);
}

/* Until SIGTERM. */
static void serve(struct server *server)
{
    struct sl_cancel *cancel = server->cli->cancel;
    unsigned watchdog_ms = sl_systemd_watchdog_ms();
    bool managed = getenv("NOTIFY_SOCKET");
    int wait_ms = !managed      ? -1
                  : watchdog_ms ? (int)SL_MIN(watchdog_ms, (unsigned)STATUS_MS)
                                : STATUS_MS;
    while (!sl_cancel_raised(cancel)) {
        struct pollfd fds[] = {{sl_cancel_fd(cancel), POLLIN, 0}, {hangup_fd, POLLIN, 0}};
        eventfd_t times;
        poll(fds, SL_COUNT(fds), wait_ms);
        if (eventfd_read(hangup_fd, &times) == 0)
            reload(server);
        if (managed)
            report_status(server);
        if (watchdog_ms)
            sl_systemd_notify("WATCHDOG=1");
    }
}

/* ---- the end ----------------------------------------------------------------------------------
 */

/*
 * A driver that hangs never returns, and whoever waits for it never ends. What the process has of
 * memory the kernel gives back as after a kill: loads go on with the next daemon, and what clients
 * and the service manager have stays theirs.
 */
struct end_watch {
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct {
        bool has_ended;
    } locked;
};

/* False: it has ended. */
static bool await_end(struct end_watch *watch, uint64_t ms)
{
    uint64_t when = sl_now_ns() + ms * SL_NS_PER_MS;
    const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
    int timed_out = 0;
    SL_LOCKED(&watch->lock);
    while (!watch->locked.has_ended && !timed_out)
        timed_out = pthread_cond_timedwait(&watch->ended, &watch->lock, &at);
    return !watch->locked.has_ended;
}

static void *watch_end(void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    int ordinal;
    for (uint64_t ms = END_MS; await_end(arg, ms); ms = END_LOOK_MS) {
        if (!sl_gpu_is_waited_for(&ordinal))
            continue;
        char gpu[24] = "a GPU";
        if (ordinal >= 0)
            snprintf(gpu, sizeof(gpu), "cuda:%d", ordinal);
        sl_fail(&err, SL_E_GPU,
                "the driver of %s does not answer, so the daemon ends without it: what was loading "
                "is loaded again by the next one; look for the GPU's errors (nvidia-smi -q)",
                gpu);
        sl_log(SL_LOG_ERROR, "%s", err.message);
        _exit(sl_err_exit(&err)); /* what exit() would call may wait for the driver, too */
    }
    return NULL;
}

static void begin_end(struct end_watch *watch)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->ended, &clock);
    pthread_condattr_destroy(&clock);
    watch->has_thread = sl_thread_start(&watch->thread, "sluice-end", watch_end, watch, NULL) == 0;
}

static void finish_end(struct end_watch *watch)
{
    {
        SL_LOCKED(&watch->lock);
        watch->locked.has_ended = true;
        pthread_cond_signal(&watch->ended);
    }
    if (watch->has_thread)
        pthread_join(watch->thread, NULL);
    pthread_mutex_destroy(&watch->lock);
    pthread_cond_destroy(&watch->ended);
}

static void end(struct server *server)
{
    struct end_watch watch = {0};
    begin_end(&watch);
    if (server->node)
        sl_systemd_notify("STOPPING=1");
    sl_serve_csi_close(&server->csi, DRAIN_MS);
    if (server->web)
        sl_web_drain(server->web, DRAIN_MS);
    if (server->control)
        sl_web_drain(server->control, DRAIN_MS);
    if (server->node)
        sl_registry_stop(server->node->registry);
    sl_node_pool_free(server->pool);
    sl_web_free(server->control);
    sl_web_free(server->web);
    sl_serve_csi_free(&server->csi);
    sl_node_free(server->node);
    sl_systemd_close(&server->sockets);
    sl_node_config_release(&server->config);
    sl_autoclose_(&hangup_fd);
    finish_end(&watch);
}

static int start(struct server *server, struct sl_err *err)
{
    raise_file_limit();
    sl_cli_shut_others_out();
    server->csi.spec = &server->config.spec;
    const struct sl_node_opening opening = {
        .given = &server->sockets, .found = sl_serve_csi_found, .arg = &server->csi};
    server->node = sl_node_open(&server->config, &opening, err);
    if (!server->node || start_control(server, err) < 0 || start_pool(server, err) < 0 ||
        start_web(server, err) < 0 ||
        sl_serve_csi_start(&server->csi, server->cli->cancel, err) < 0)
        return -1;
    unsigned unused = sl_systemd_close(&server->sockets);
    if (unused)
        sl_log(
            SL_LOG_WARN,
            "unused sockets of the service manager, named neither 'http', 'control' nor 'pool': %u",
            unused);
    return announce(server, err);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct serve_options *options = cli->options;
    struct server server = {.cli = cli};
    sl_systemd_sockets(&server.sockets);
    if (read_config(cli, &server.config, err) < 0)
        return -1;
    int done = 0;
    if (options->check) {
        done = report_check(&server, err);
    } else {
        /* Now, since an upgrade of the system may exchange it; where it is missing, loads say so.
         */
        sl_libcurl_open(NULL);
        done = catch_hangup(err) < 0 ? -1 : start(&server, err);
        if (done == 0) {
            sl_systemd_notify("READY=1");
            serve(&server);
            done = sl_serve_csi_refused(&server.csi, err);
        }
    }
    end(&server);
    return done;
}

const struct sl_command sl_cmd_serve = {
    .name = "serve",
    .usage = "sluice serve CONFIG",
    .summary = "keep the models of a machine: the node daemon",
    .description =
        "CONFIG is a YAML file of `kind: Node`; see `sluice docs node`. The models that it names "
        "are loaded into its directory, a folder for each version. They stay there when the daemon "
        "ends: the next one finds them and reads nothing again. All of them together stay below "
        "the budget. When room is needed, unused models are evicted, the least recently used "
        "first; models that are pinned or in use stay.\n\n"
        "Health, metrics and the page are served as `sluice load --stay` does. Requests that load, "
        "pin, evict or forget models are answered at the control socket, or with a token.\n\n"
        "SIGHUP reads the config again: new models are loaded, models that it no longer names are "
        "unpinned, and models in use stay available. A config with mistakes changes nothing. "
        "SIGTERM "
        "ends the daemon with exit code 0; interrupted loads resume with the next one. If the "
        "driver of a GPU hangs, that takes ten seconds and the exit code is 9.\n\n"
        "Under systemd it reports readiness, reloads, shutdown (Type=notify-reload), status and "
        "watchdog pings (WatchdogSec). It takes sockets with the names http, control and pool, and "
        "keeps models of the pool in its descriptor store (FileDescriptorStoreMax).",
    .examples = "sluice serve /etc/sluice/node.yaml\n"
                "sluice serve --check /etc/sluice/node.yaml   # report every mistake, and exit\n"
                "curl --unix-socket /run/sluice/control.sock --data-binary @model.yaml \\\n"
                "    http://localhost/v1/loads",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
