/* Volumes of models whose files lie or come differently: a hub's cache with its links, and a local
 * file that is changed where it lies. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "hf_hub.h"
#include "registry_settle.h"
#include "volume_case.h"

enum { FILE_BYTES = 200000 };

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

/* The byte that all of a file of FILE_BYTES consists of; -1: it is another file, or none. */
static int byte_of(const char *folder, const char *name)
{
    static uint8_t data[FILE_BYTES + 1];
    char path[VOLUME_CASE_PATH + 256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, data, sizeof(data)) != FILE_BYTES)
        return -1;
    for (size_t i = 1; i < FILE_BYTES; i++)
        if (data[i] != data[0])
            return -1;
    return data[0];
}

/* ---- a hub's cache -------------------------------------------------------------------------- */

#define CACHE    "models--org--name/"
#define SNAPSHOT CACHE "snapshots/" SL_HUB_COMMIT "/"

static bool has_commit(const char *folder)
{
    char path[VOLUME_CASE_PATH + 64], text[64] = "";
    snprintf(path, sizeof(path), "%s/" CACHE "refs/main", folder);
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && strcmp(text, SL_HUB_COMMIT) == 0;
}

SL_TEST(a_cache_of_a_hub_is_a_volume)
{
    static uint8_t weights[FILE_BYTES];
    struct sl_hub hub;
    struct sl_volume_stats stats;
    char path[VOLUME_CASE_PATH + 256];
    memset(weights, 'w', sizeof(weights));
    sl_hub_start(&hub);
    sl_hub_put(&hub, "vocab.bin", weights, sizeof(weights), true); /* nobody looks into it */
    sl_hub_put(&hub, "config.json", "{}", 2, false);
    snprintf(c.models, sizeof(c.models),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: \"hf://org/name\", hf: {endpoint: \"%s\"}}\n"
             "sink: {tmpfs: {layout: hf-cache}}\n",
             sl_hub_url(&hub));
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    for (unsigned i = 0; i < 2; i++) { /* the next daemon finds it, and asks the hub for no file */
        unsigned links = hub.links;
        ck_assert_int_eq(byte_of(request.target, SNAPSHOT "vocab.bin"), 'w');
        ck_assert(has_commit(request.target));
        snprintf(path, sizeof(path), "%s/" SNAPSHOT "config.json", request.target);
        ck_assert_int_lt(open(path, O_WRONLY | O_CLOEXEC), 0);
        ck_assert_int_eq(errno, EROFS);
        ck_assert_int_eq(sl_volumes_stats(c.volumes, request.id, request.target, &stats, &c.err),
                         0);
        ck_assert(!stats.abnormal && stats.used_bytes >= FILE_BYTES);
        volume_case_end(&c);
        volume_case_open(&c);
        sl_registry_settle(c.node->registry);
        ck_assert_uint_eq(hub.links, links);
    }
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    volume_case_end(&c);
    sl_hub_stop(&hub);
}

/* ---- a file that is changed where it lies --------------------------------------------------- */

/* As an edit in place does it: the same inode and length. mtime is set back, which ctime is not. */
static void fill(const char *path, int byte, const struct timespec times[2])
{
    static uint8_t data[FILE_BYTES];
    memset(data, byte, sizeof(data));
    sl_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    ck_assert_int_eq(pwrite(fd, data, sizeof(data), 0), FILE_BYTES);
    if (times)
        ck_assert_int_eq(futimens(fd, times), 0);
}

#define LOCAL_MODEL                                                                                \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"                        \
    "source: {uri: \"file://%s/changed.bin\"}\n"

static int bytes_of_pod(struct volume_ask_case *pod, const char *uid, const char *model)
{
    volume_case_wish(&c, pod, uid);
    volume_case_set(pod, "model", model);
    ck_assert_msg(volume_case_publish(&c, pod) == 0, "%s", c.err.message);
    return byte_of(pod->target, "changed.bin");
}

SL_TEST(a_changed_file_is_shared_with_nobody_who_asks_later)
{
    struct volume_ask_case second, third;
    char path[VOLUME_CASE_PATH];
    struct stat status;
    snprintf(path, sizeof(path), "%s/changed.bin", c.path);
    snprintf(c.keys, sizeof(c.keys), "budgetBytes: 4MiB");
    fill(path, 'a', NULL);
    ck_assert_int_eq(stat(path, &status), 0);
    snprintf(c.models, sizeof(c.models), LOCAL_MODEL, "m", c.path);
    volume_case_open(&c);
    ck_assert_int_eq(bytes_of_pod(&request, "u1", "m"), 'a');

    fill(path, 'b', (const struct timespec[2]){status.st_atim, status.st_mtim});
    size_t used = strlen(c.models); /* another name for the same file */
    snprintf(c.models + used, sizeof(c.models) - used, LOCAL_MODEL, "n", c.path);
    volume_case_reload(&c);
    ck_assert_int_eq(bytes_of_pod(&second, "u2", "n"), 'b');
    ck_assert_int_eq(byte_of(request.target, "changed.bin"), 'a');

    volume_case_end(&c);
    volume_case_open(&c);
    sl_registry_settle(c.node->registry);
    ck_assert_int_eq(bytes_of_pod(&third, "u3", "m"), 'b');
    ck_assert_int_eq(byte_of(request.target, "changed.bin"), 'a');
    ck_assert_int_eq(byte_of(second.target, "changed.bin"), 'b');
}

/* ---- half a model --------------------------------------------------------------------------- */

SL_TEST(half_a_model_is_not_a_volume)
{
    char path[VOLUME_CASE_PATH + 64];
    snprintf(path, sizeof(path), "%s/half", c.path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/half/part-00001-of-00002.dat", c.path);
    fill(path, 'a', NULL);
    snprintf(c.models, sizeof(c.models),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: \"file://%s/half/\"}\n",
             c.path);
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    volume_case_set(&request, "model", "m");
    ck_assert_int_lt(volume_case_publish(&c, &request), 0);
    ck_assert_msg(strstr(c.err.message, "'part-00002-of-00002.dat' is not there"), "%s",
                  c.err.message);
}
