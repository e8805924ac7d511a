/* Volumes in a mount namespace of the test's own. */
#include "volume_case.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "mounting.h"
#include "scratch.h"
#include "skip.h"
#include "tree.h"

bool volume_case_possible(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
              mount("t", "/tmp", "tmpfs", 0, "size=64k") < 0);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
        return true;
    sl_skipped("volumes", "mounting in a namespace of its own is not permitted here");
    return false;
}

void volume_case_init(struct volume_case *c)
{
    size_t bytes;
    memset(c, 0, sizeof(*c));
    sl_log_setup(SL_LOG_ERROR, false);
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    c->scratch = sl_scratch_open(c->path);
    snprintf(c->kubelet, sizeof(c->kubelet), "%s/kubelet", c->path);
    ck_assert_int_eq(mkdir(c->kubelet, 0755), 0);
    c->blob = sl_model_safetensors("a,b", 1000, &bytes);
    ck_assert_int_eq(sl_memory_put("m/a.safetensors", c->blob, bytes, NULL), 0);
    ck_assert_int_eq(sl_memory_put("n/b.safetensors", c->blob, bytes, NULL), 0);
    snprintf(c->models, sizeof(c->models), "%s", VOLUME_CASE_MODEL("m", "memory://m/"));
}

static void unmount_line(void *arg, const struct sl_mount_line *line)
{
    const struct volume_case *c = arg;
    if (strncmp(line->point, c->path, strlen(c->path)) == 0)
        umount2(line->point, MNT_DETACH);
}

void volume_case_release(struct volume_case *c)
{
    volume_case_end(c);
    sl_memory_clear();
    free(c->blob);
    sl_mount_table_each(unmount_line, c, NULL);
    sl_scratch_close(c->scratch, c->path);
}

static int found(void *arg, struct sl_node *node, struct sl_err *err)
{
    struct volume_case *c = arg;
    struct sl_node_config *config = (void *)c->volumes; /* until it is open */
    c->volumes = sl_volumes_open(node, &config->spec, err);
    return c->volumes ? 0 : -1;
}

static void read_config(struct volume_case *c, struct sl_node_config *config)
{
    char text[12288];
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    int bytes =
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\n%s\n"
                 "csi: {enabled: true, kubeletDirectory: %s%s}\n%s",
                 c->path, *c->keys ? c->keys : "budgetBytes: 1MiB", c->kubelet, c->csi, c->models);
    ck_assert_int_lt(bytes, (int)sizeof(text));
    char path[VOLUME_CASE_PATH];
    snprintf(path, sizeof(path), "%s/node.yaml", c->path);
    FILE *file = fopen(path, "we");
    ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
    c->err = (struct sl_err)SL_ERR_INIT;
    ck_assert_msg(sl_node_config_read(path, config, &complaints, &c->err) == 0, "%s",
                  c->err.message);
}

bool volume_case_try(struct volume_case *c)
{
    struct sl_node_config config;
    read_config(c, &config);
    c->volumes = (void *)&config;
    const struct sl_node_opening opening = {.found = found, .arg = c};
    c->node = sl_node_open(&config, &opening, &c->err);
    if (!c->node)
        c->volumes = NULL;
    sl_node_config_release(&config);
    return c->node;
}

void volume_case_open(struct volume_case *c)
{
    ck_assert_msg(volume_case_try(c), "%s", c->err.message);
}

void volume_case_reload(struct volume_case *c)
{
    struct sl_node_config config;
    read_config(c, &config);
    sl_node_reload(c->node, &config);
    sl_node_config_release(&config);
}

void volume_case_end(struct volume_case *c)
{
    sl_volumes_free(c->volumes);
    sl_node_free(c->node);
    c->volumes = NULL;
    c->node = NULL;
}

const char *volume_case_pod(struct volume_case *c, const char *uid)
{
    static char target[VOLUME_CASE_PATH];
    const char *leaf;
    char name[VOLUME_CASE_PATH];
    snprintf(name, sizeof(name), "kubelet/pods/%s/volumes/kubernetes.io~csi/v/mount", uid);
    int fd = sl_tree_parent(c->scratch, name, true, &leaf);
    ck_assert_int_ge(fd, 0);
    close(fd);
    snprintf(target, sizeof(target), "%.250s/%.250s", c->path, name);
    return target;
}

/* ---- publishing ----------------------------------------------------------------------------- */

#define OF_KUBELET "csi.storage.k8s.io/"

void volume_case_wish(struct volume_case *c, struct volume_ask_case *request, const char *uid)
{
    memset(request, 0, sizeof(*request));
    snprintf(request->target, sizeof(request->target), "%s", volume_case_pod(c, uid));
    snprintf(request->id, sizeof(request->id), "csi-%s", uid);
    snprintf(request->uid, sizeof(request->uid), "%s", uid);
    request->ask = (struct sl_volume_ask){.volume_id = request->id,
                                          .target = request->target,
                                          .attributes = request->attributes,
                                          .secrets = request->secrets,
                                          .mount_group = "",
                                          .readonly = true,
                                          .ephemeral = true,
                                          .wait_ms = 600000};
    volume_case_set(request, "model", "m");
    volume_case_set(request, OF_KUBELET "pod.name", "pod");
    volume_case_set(request, OF_KUBELET "pod.namespace", "team-a");
    volume_case_set(request, OF_KUBELET "pod.uid", request->uid);
    volume_case_set(request, OF_KUBELET "serviceAccount.name", "default");
    volume_case_set(request, OF_KUBELET "ephemeral", "true");
}

static void set(struct sl_volume_pair *pairs, size_t *count, const char *key, const char *value)
{
    size_t i = 0;
    while (i < *count && strcmp(pairs[i].key, key) != 0)
        i++;
    if (value) {
        ck_assert_uint_lt(i, VOLUME_CASE_PAIRS);
        pairs[i] = (struct sl_volume_pair){key, value};
        *count += i == *count;
    } else if (i < *count) {
        pairs[i] = pairs[--*count];
    }
}

void volume_case_set(struct volume_ask_case *request, const char *key, const char *value)
{
    set(request->attributes, &request->ask.attribute_count, key, value);
}

void volume_case_secret(struct volume_ask_case *request, const char *key, const char *value)
{
    set(request->secrets, &request->ask.secret_count, key, value);
}

int volume_case_publish(struct volume_case *c, const struct volume_ask_case *request)
{
    c->err = (struct sl_err)SL_ERR_INIT;
    return sl_volumes_publish(c->volumes, &request->ask, NULL, &c->err);
}

int volume_case_unpublish(struct volume_case *c, const struct volume_ask_case *request)
{
    c->err = (struct sl_err)SL_ERR_INIT;
    return sl_volumes_unpublish(c->volumes, request->id, request->ask.target, &c->err);
}

void volume_case_mounted(struct volume_case *c, struct volume_ask_case *request, const char *uid)
{
    volume_case_wish(c, request, uid);
    ck_assert_msg(volume_case_publish(c, request) == 0, "%s", c->err.message);
    ck_assert(volume_case_sees(request->target));
}

void volume_case_refused(const struct volume_case *c, int done, enum sl_err_kind kind,
                         const char *code, const char *text)
{
    ck_assert_int_eq(done, -1);
    ck_assert_msg(c->err.kind == kind && strcmp(c->err.code, code) == 0 &&
                      strstr(c->err.message, text),
                  "%d '%s': %s", (int)c->err.kind, c->err.code, c->err.message);
}

/* ---- looking -------------------------------------------------------------------------------- */

bool volume_case_sees(const char *target)
{
    char path[VOLUME_CASE_PATH + 32];
    snprintf(path, sizeof(path), "%s/.sluice/ready", target);
    return access(path, R_OK) == 0;
}

struct counting {
    const char *below;
    unsigned count;
};

static void count_line(void *arg, const struct sl_mount_line *line)
{
    struct counting *counting = arg;
    size_t bytes = strlen(counting->below);
    counting->count += strncmp(line->point, counting->below, bytes) == 0 &&
                       (!line->point[bytes] || line->point[bytes] == '/');
}

unsigned volume_case_mounts(const char *below)
{
    struct counting counting = {.below = below};
    ck_assert_int_eq(sl_mount_table_each(count_line, &counting, NULL), 0);
    return counting.count;
}

uint64_t volume_case_references(struct volume_case *c)
{
    struct sl_registry_counts counts;
    sl_registry_counts(c->node->registry, &counts);
    return counts.references;
}
