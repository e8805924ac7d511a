/* Models at paths of pods: what is mounted, what stays, and what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "listen_at.h"
#include "memory_store.h"
#include "mounting.h"
#include "progress.h"
#include "registry_settle.h"
#include "volume_case.h"
#include "volumes_parts.h"

static struct volume_case c;
static struct volume_ask_case request;

static void setup(void)
{
    volume_case_init(&c);
}

static void teardown(void)
{
    volume_case_release(&c);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible)

/* ---- what works ----------------------------------------------------------------------------- */

SL_TEST(a_model_is_seen_whole_and_read_only)
{
    struct statvfs status;
    char path[VOLUME_CASE_PATH + 16];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    snprintf(path, sizeof(path), "%s/a.safetensors", request.target);
    ck_assert_int_eq(access(path, R_OK), 0);
    ck_assert_int_lt(open(path, O_WRONLY | O_CLOEXEC), 0);
    ck_assert_int_eq(errno, EROFS);
    ck_assert_int_eq(statvfs(request.target, &status), 0);
    const unsigned long flags = ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC;
    ck_assert_uint_eq(status.f_flag & flags, flags);
    ck_assert_uint_eq(volume_case_references(&c), 1);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_int_eq(access(request.target, F_OK), -1);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 0);
    ck_assert_uint_eq(volume_case_references(&c), 0);
}

SL_TEST(the_same_again_changes_nothing)
{
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(volume_case_publish(&c, &request), 0);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 1);
    ck_assert_uint_eq(volume_case_references(&c), 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 0);
}

SL_TEST(what_somebody_unmounted_is_mounted_again)
{
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    ck_assert_int_eq(umount2(request.target, MNT_DETACH), 0);
    ck_assert_int_eq(volume_case_publish(&c, &request), 0);
    ck_assert(volume_case_sees(request.target));
    ck_assert_uint_eq(volume_case_references(&c), 1);
}

SL_TEST(other_arguments_at_the_same_target_are_told_so)
{
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    request.ask.volume_id = "another";
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "exists", "published");
    request.ask.volume_id = request.id;
    volume_case_set(&request, "csi.storage.k8s.io/pod.namespace", "team-b");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "exists", "published");
    ck_assert_int_eq(sl_volumes_unpublish(c.volumes, "another", request.target, NULL), 0);
    ck_assert(volume_case_sees(request.target)); /* it is not that one's */
}

SL_TEST(pods_of_one_model_share_it_and_each_keeps_it)
{
    struct volume_ask_case pods[5];
    struct sl_registry_counts counts;
    snprintf(c.csi, sizeof(c.csi),
             ", namespaces: [{name: team-a, uriPrefixes: [\"memory://n/\"]}]");
    volume_case_open(&c);
    for (unsigned i = 0; i < 5; i++) {
        char uid[16];
        snprintf(uid, sizeof(uid), "v%u", i);
        volume_case_wish(&c, &pods[i], uid);
        volume_case_set(&pods[i], "model", NULL);
        volume_case_set(&pods[i], "uri", "memory://n/");
        ck_assert_msg(volume_case_publish(&c, &pods[i]) == 0, "%s", c.err.message);
    }
    ck_assert_uint_eq(volume_case_references(&c), 5);
    char name[64];
    snprintf(name, sizeof(name), "%s", c.volumes->locked.volumes->record.model);
    sl_registry_settle(c.node->registry);
    sl_registry_counts(c.node->registry, &counts);
    ck_assert_uint_eq(counts.loads, 2); /* "m" of the config, and one for all of them */
    for (unsigned i = 0; i < 5; i++) {
        ck_assert(volume_case_sees(pods[0].target));
        ck_assert_int_eq(sl_registry_evict(c.node->registry, name, NULL, &c.err), -1);
        ck_assert_str_eq(c.err.code, "busy"); /* never below a mount */
        ck_assert_int_eq(volume_case_unpublish(&c, &pods[4 - i]), 0);
        if (i == 4)
            ck_assert_int_eq(sl_registry_evict(c.node->registry, name, NULL, &c.err), 0);
    }
}

static void *publish_in_thread(void *arg)
{
    struct volume_ask_case *mine = arg;
    struct sl_err why = SL_ERR_INIT;
    return (void *)(intptr_t)sl_volumes_publish(c.volumes, &mine->ask, NULL, &why);
}

SL_TEST(many_pods_at_once_get_one_load)
{
    static struct volume_ask_case pods[8];
    pthread_t threads[8];
    struct sl_registry_counts counts;
    volume_case_open(&c);
    for (unsigned i = 0; i < 8; i++) {
        char uid[16];
        snprintf(uid, sizeof(uid), "p%u", i);
        volume_case_wish(&c, &pods[i], uid);
        ck_assert_int_eq(sl_thread_start(&threads[i], "publish", publish_in_thread, &pods[i], NULL),
                         0);
    }
    for (unsigned i = 0; i < 8; i++) {
        void *done;
        pthread_join(threads[i], &done);
        ck_assert_ptr_null(done);
        ck_assert(volume_case_sees(pods[i].target));
    }
    sl_registry_counts(c.node->registry, &counts);
    ck_assert_uint_eq(counts.loads, 1);
    ck_assert_uint_eq(counts.references, 8);
}

SL_TEST(what_nobody_knows_is_unpublished)
{
    char below[VOLUME_CASE_PATH + 64];
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_int_eq(mkdir(request.target, 0755), 0); /* as a reboot leaves it */
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_int_eq(access(request.target, F_OK), -1);
    ck_assert_int_eq(mkdir(request.target, 0755), 0);
    ck_assert_int_eq(mount("other", request.target, "tmpfs", 0, "size=64k"), 0);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0); /* of another directory */
    ck_assert_uint_eq(volume_case_mounts(request.target), 0);
    ck_assert_int_eq(access(request.target, F_OK), -1);
    ck_assert_int_eq(mkdir(request.target, 0755), 0);
    snprintf(below, sizeof(below), "%s/kept", request.target);
    ck_assert_int_eq(mkdir(below, 0755), 0);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0); /* no mount: it stays */
    ck_assert_int_eq(access(below, F_OK), 0);
}

/* ---- loads ---------------------------------------------------------------------------------- */

SL_TEST(a_load_that_takes_long_goes_on_and_is_joined)
{
    struct sl_registry_counts counts;
    unsigned port = 0;
    int silent = sl_listen_at("127.0.0.1", &port);
    snprintf(c.models, sizeof(c.models),
             VOLUME_CASE_MODEL("m", "http://127.0.0.1:%u/a.safetensors"), port);
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    request.ask.wait_ms = 1;
    for (int i = 0; i < 3; i++)
        volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_TIMEOUT, "aborted",
                            "model m:");
    ck_assert_int_eq(access(request.target, F_OK), -1);
    sl_registry_counts(c.node->registry, &counts);
    ck_assert_uint_eq(counts.loading + counts.queued, 1);
    ck_assert_uint_eq(counts.loads + counts.failed, 0);
    close(silent);
}

SL_TEST(progress_is_told_with_the_time_that_is_left)
{
    struct sl_progress *progress = sl_progress_new("big", "s3://b/", "/x", NULL);
    struct sl_err err = SL_ERR_INIT;
    sl_progress_set_total(progress, 4ull << 30, 10, 1);
    sl_progress_set_state(progress, SL_LOAD_READING);
    sl_progress_add_bytes(progress, 1ull << 30);
    volumes_fail_loading("big", "big", &err);
    ck_assert_msg(strncmp(err.message, "model big: 1.00 GiB of 4.00 GiB, ", 33) == 0, "%s",
                  err.message);
    ck_assert_ptr_null(strchr(err.message, '%')); /* the kubelet takes it for a format */
    ck_assert_str_eq(err.code, "aborted");
    sl_progress_free(progress);
}

/* Also before the first byte, and in the middle. */
SL_TEST(the_trouble_of_a_store_is_told_while_a_volume_waits)
{
    struct sl_progress *progress = sl_progress_new("big", "s3://b/", "/x", NULL);
    struct sl_err err = SL_ERR_INIT, why = SL_ERR_INIT;
    sl_fail(&why, SL_E_NET, "the store says nothing");
    sl_progress_set_state(progress, SL_LOAD_READING);
    sl_progress_note_retry(progress, 2, 8, &why, false);
    volumes_fail_loading("big", "big", &err);
    ck_assert_str_eq(err.message,
                     "model big: its load has not started to read yet: try 2 of 8: the "
                     "store says nothing");
    sl_progress_set_total(progress, 4ull << 30, 10, 1);
    sl_progress_note_retry(progress, 3, 8, &why, false);
    volumes_fail_loading("big", "big", &err);
    ck_assert_msg(strstr(err.message, "/s: try 3 of 8: the store says nothing"), "%s", err.message);
    ck_assert_str_eq(err.code, "aborted");
    sl_progress_free(progress);
}

SL_TEST(a_load_that_failed_tells_its_own_line)
{
    snprintf(c.models, sizeof(c.models), "%s",
             VOLUME_CASE_MODEL("m", "memory://m/none.safetensors"));
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NOT_FOUND, "", "model m: ");
    ck_assert_int_eq(access(request.target, F_OK), -1);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
}

SL_TEST(a_full_budget_is_told_and_another_mount_is_not_touched)
{
    snprintf(c.keys, sizeof(c.keys), "budgetBytes: 1MiB");
    size_t bytes = 900 * 1024;
    static uint8_t big[2][900 * 1024];
    ck_assert_int_eq(sl_memory_put("x/one.bin", big[0], bytes, NULL), 0);
    ck_assert_int_eq(sl_memory_put("y/two.bin", big[1], bytes, NULL), 0);
    snprintf(c.models, sizeof(c.models), "%s%s", VOLUME_CASE_MODEL("m", "memory://x/"),
             VOLUME_CASE_MODEL("n", "memory://n/"));
    snprintf(c.csi, sizeof(c.csi), ", namespaces: [{name: \"*\", uriPrefixes: [\"memory://y/\"]}]");
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    struct volume_ask_case second;
    volume_case_wish(&c, &second, "u2");
    volume_case_set(&second, "model", NULL);
    volume_case_set(&second, "uri", "memory://y/");
    volume_case_refused(&c, volume_case_publish(&c, &second), SL_E_NO_SPACE, "budget", "budget");
    ck_assert(volume_case_sees(request.target));
}

SL_TEST(what_a_provisioner_adds_says_nothing_of_the_volume)
{
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    volume_case_set(&request, "storage.kubernetes.io/csiProvisionerIdentity", "17-4711-csi");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    volume_case_set(&request, "storage.kubernetes.io/csiProvisionerIdentity", "18-another");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    volume_case_set(&request, "storage.kubernetes.io/endpoint", "http://evil/");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "",
                        "'storage.kubernetes.io/endpoint' is not known");
}

/* ---- what is refused ------------------------------------------------------------------------ */

SL_TEST(hostile_attributes_are_refused_by_name)
{
    static const struct {
        const char *key, *value, *text;
    } bad[] = {
        {"endpoint", "http://evil/", "'endpoint' is not known"},
        {"device", "cuda:0", "remove 'device'"},
        {"pool", "yes", "'pool' is 'yes'"},
        {"pool", "true", "exactly one"},
        {"uri", "s3://b/", "exactly one"},
        {"model", "../../etc", "is not a model name"},
        {"model", "m\n[INFO] all is well", "control characters"},
        {"model", NULL, "names none"},
        {"csi.storage.k8s.io/pod.uid", NULL, "no CSIDriver object 'csi.sluice.dev'"},
        {"csi.storage.k8s.io/pod.namespace", "../x", "is not a Kubernetes name"},
        {"csi.storage.k8s.io/pod.name", "", "is not a Kubernetes name"},
    };
    volume_case_open(&c);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        volume_case_wish(&c, &request, "u1");
        volume_case_set(&request, bad[i].key, bad[i].value);
        volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "", bad[i].text);
        ck_assert_int_eq(access(request.target, F_OK), -1);
    }
    volume_case_wish(&c, &request, "u1");
    request.ask.readonly = false;
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "", "readOnly: true");
    volume_case_wish(&c, &request, "u1");
    request.ask.volume_id = "";
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "",
                        "the volume id is missing");
    volume_case_wish(&c, &request, "u1");
    volume_case_set(&request, "model", "unknown");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NOT_FOUND, "", "has no model");
}

SL_TEST(targets_elsewhere_are_refused)
{
    char long_path[2048], text[1024];
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    const char *const formats[] = {
        "/etc/x", "%s/../x",       "%s/pods/../../x", "%s/./x",         "%s//x",          "%s/",
        "%s",     "%selsewhere/x", "relative/x",      "%s/pods/u1/\nx", "%s/pods/u1/x/.."};
    for (size_t i = 0; i < SL_COUNT(formats); i++) {
        const char *format = strstr(formats[i], "%s") ? formats[i] + 2 : formats[i];
        snprintf(text, sizeof(text), "%s%s", format == formats[i] ? "" : c.kubelet, format);
        request.ask.target = text;
        volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "", "target path");
        volume_case_refused(&c, volume_case_unpublish(&c, &request), SL_E_USAGE, "", "target path");
    }
    int bytes = snprintf(long_path, sizeof(long_path), "%s/", c.kubelet);
    memset(long_path + bytes, 'x', sizeof(long_path) - (size_t)bytes - 1);
    long_path[sizeof(long_path) - 1] = 0;
    request.ask.target = long_path;
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "", "the limit is");
    request.ask.target = "";
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "", "needs a target");
}

SL_TEST(links_on_the_way_are_not_followed)
{
    char link[VOLUME_CASE_PATH + 32], below[VOLUME_CASE_PATH + 48], outside[VOLUME_CASE_PATH];
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    snprintf(outside, sizeof(outside), "%s/outside", c.path);
    ck_assert_int_eq(mkdir(outside, 0755), 0);
    ck_assert_int_eq(symlink(outside, request.target), 0); /* in the target's own place */
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "precondition",
                        "not an empty");
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_int_eq(unlink(request.target), 0);
    snprintf(link, sizeof(link), "%s/pods/evil", c.kubelet); /* on the way */
    ck_assert_int_eq(symlink(outside, link), 0);
    snprintf(below, sizeof(below), "%s/mount", link);
    request.ask.target = below;
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "precondition",
                        "a link");
    ck_assert_uint_eq(volume_case_mounts(c.path), 0);
    snprintf(below, sizeof(below), "%s/mount", outside);
    ck_assert_int_eq(access(below, F_OK), -1);
}

SL_TEST(a_folder_with_something_in_it_is_not_hidden)
{
    char path[VOLUME_CASE_PATH + 8];
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    ck_assert_int_eq(mkdir(request.target, 0755), 0);
    snprintf(path, sizeof(path), "%s/data", request.target);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_USAGE, "precondition",
                        "not an empty");
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_uint_eq(volume_case_references(&c), 0);
}

SL_TEST(a_pod_whose_folder_is_missing_is_told)
{
    char target[VOLUME_CASE_PATH + 32];
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    snprintf(target, sizeof(target), "%s/pods/nobody/mount", c.kubelet);
    request.ask.target = target;
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NOT_FOUND, "",
                        "does not exist");
    ck_assert_uint_eq(volume_case_references(&c), 0);
}

/* ---- stats ---------------------------------------------------------------------------------- */

SL_TEST(stats_tell_size_and_damage)
{
    struct sl_volume_stats stats;
    char path[VOLUME_CASE_PATH * 2];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, request.target, &stats, &c.err), 0);
    ck_assert_uint_ge(stats.total_bytes, 8000);
    ck_assert_uint_eq(stats.used_bytes, stats.total_bytes);
    ck_assert_msg(!stats.abnormal, "%s", stats.message);
    ck_assert_int_eq(umount2(request.target, MNT_DETACH), 0);
    ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, request.target, &stats, &c.err), 0);
    ck_assert(stats.abnormal && strstr(stats.message, "unmounted"));
    ck_assert_int_eq(volume_case_publish(&c, &request), 0);
    snprintf(path, sizeof(path), "%s/models/m/current/a.safetensors", c.path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, request.target, &stats, &c.err), 0);
    ck_assert(stats.abnormal && strstr(stats.message, "damaged or gone"));
    ck_assert_int_eq(sl_volumes_stats(c.volumes, "x", request.target, &stats, &c.err), -1);
    ck_assert_int_eq(c.err.kind, SL_E_NOT_FOUND);
    ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, "/", &stats, &c.err), -1);
    ck_assert_int_eq(c.err.kind, SL_E_NOT_FOUND);
    ck_assert(sl_volumes_ready(c.volumes, &c.err));
}

/* By a pod that leases what it sees, while nothing beside the version says that it is whole. */
SL_TEST(a_version_that_cannot_be_looked_at_is_not_called_damaged)
{
    struct sl_volume_stats stats;
    char path[VOLUME_CASE_PATH * 2], version[32] = "";
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    snprintf(path, sizeof(path), "%s/models/m/current", c.path);
    ck_assert_int_gt(readlink(path, version, sizeof(version) - 1), 0);
    snprintf(path, sizeof(path), "%s/models/m/%s.whole", c.path, version);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/.sluice/ready", request.target);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    signal(SIGIO, SIG_IGN);
    ck_assert_int_eq(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
    ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, request.target, &stats, &c.err), 0);
    ck_assert_msg(!stats.abnormal, "%s", stats.message);
    ck_assert_uint_ge(stats.total_bytes, 8000);
    close(fd);
}

/* A claim that two pods share: one id, a path each, and no more of the pod than its path. */
SL_TEST(stats_of_a_claim_are_there_for_each_pod_and_after_a_restart)
{
    struct volume_ask_case other;
    struct sl_volume_stats stats;
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    volume_case_wish(&c, &other, "u2");
    request.ask.ephemeral = other.ask.ephemeral = false;
    other.ask.volume_id = request.ask.volume_id;
    ck_assert_int_eq(volume_case_publish(&c, &request), 0);
    ck_assert_int_eq(volume_case_publish(&c, &other), 0);
    for (unsigned i = 0; i < 2; i++) {
        const char *const targets[] = {request.target, other.target};
        for (unsigned j = 0; j < 2; j++) {
            ck_assert_int_eq(
                sl_volumes_stats(c.volumes, request.ask.volume_id, targets[j], &stats, &c.err), 0);
            ck_assert_uint_ge(stats.used_bytes, 8000);
            ck_assert_uint_eq(stats.used_bytes, stats.total_bytes);
            ck_assert(stats.available_bytes == 0 && !stats.abnormal);
        }
        volume_case_end(&c);
        volume_case_open(&c);
    }
}

static void *list_on(void *ending)
{
    while (!sl_cancel_raised(ending)) {
        struct sl_json json;
        sl_json_init(&json, 1 << 20);
        sl_json_object(&json);
        sl_volumes_json(c.volumes, &json);
        sl_json_release(&json);
    }
    return NULL;
}

/* For the thread sanitizer. */
SL_TEST(volumes_are_listed_while_others_come_and_go)
{
    pthread_t thread;
    volume_case_open(&c);
    struct sl_cancel *ending = sl_cancel_new(&c.err);
    ck_assert_ptr_nonnull(ending);
    ck_assert_int_eq(pthread_create(&thread, NULL, list_on, ending), 0);
    for (unsigned i = 0; i < 20; i++) {
        volume_case_mounted(&c, &request, "u1");
        ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    }
    sl_cancel_raise(ending, 0);
    pthread_join(thread, NULL);
    sl_cancel_free(ending);
}
