/* What a container brings: another group, another umask, taken ports, no home, an end by SIGTERM.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "http_client.h"
#include "listen_at.h"
#include "mem.h"
#include "model_maker.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "skip.h"

enum { PATH_BYTES = 512, VOLUME_GROUP = 4242 };
static char scratch[SL_SCRATCH_PATH_BYTES], prefix[PATH_BYTES], volume[SL_SCRATCH_PATH_BYTES + 8],
    target[PATH_BYTES], log_[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* A model of two files, one of them in a folder; a volume to put it into. */
static void setup(void)
{
    char name[PATH_BYTES + 64];
    umask(022); /* whatever it is where this runs: a destination's own folder goes by it */
    scratch_fd = sl_scratch_open(scratch);
    snprintf(prefix, sizeof(prefix), "%s/source/", scratch);
    snprintf(volume, sizeof(volume), "%s/volume", scratch);
    snprintf(target, sizeof(target), "%s/volume/model", scratch);
    snprintf(log_, sizeof(log_), "%s/log", scratch);
    snprintf(name, sizeof(name), "%ssub", prefix);
    ck_assert_int_eq(mkdir(prefix, 0755) + mkdir(name, 0755) + mkdir(volume, 0755), 0);
    snprintf(name, sizeof(name), "%sa.bin", prefix);
    write_file(name, "aaaa", 4);
    snprintf(name, sizeof(name), "%ssub/b.bin", prefix);
    write_file(name, "bb", 2);
    setenv("SLUICE_TERMINATION_LOG", "off", 1);
    unsetenv("SLUICE_LISTEN");
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

static struct stat look(const char *name)
{
    char whole[PATH_BYTES + 64];
    struct stat status;
    snprintf(whole, sizeof(whole), "%s/%s", target, name);
    ck_assert_msg(stat(whole, &status) == 0, "%s", whole);
    return status;
}

static void expect_mode(const char *name, mode_t mode)
{
    ck_assert_msg((look(name).st_mode & 07777) == mode, "%s has mode %o, not %o", name,
                  look(name).st_mode & 07777, mode);
}

/* ---- files ---------------------------------------------------------------------------------- */

SL_TEST(files_do_not_depend_on_the_umask)
{
    static const mode_t masks[] = {0, 022, 077};
    for (size_t i = 0; i < SL_COUNT(masks); i++) {
        umask(masks[i]);
        snprintf(target, sizeof(target), "%s/m%zu", volume, i);
        RUN(&ran, "load", prefix, "--to", target);
        umask(022);
        ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
        expect_mode("a.bin", 0444);
        expect_mode("sub", 0555);
        expect_mode("sub/b.bin", 0444);
        expect_mode(".sluice", 0755);
        expect_mode(".sluice/ready", 0444);
        expect_mode(".sluice/manifest.json", 0444);
    }
}

/* fsGroup makes a volume's root setgid; what lies below belongs to its group, and may be read by
 * it. */
SL_TEST(the_group_of_a_volume_is_inherited)
{
    gid_t group = getuid() == 0 ? VOLUME_GROUP : getgid();
    ck_assert_int_eq(chown(volume, (uid_t)-1, group), 0);
    ck_assert_int_eq(chmod(volume, 02775), 0);
    RUN(&ran, "load", prefix, "--to", target);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    static const char *const names[] = {
        ".", "a.bin", "sub", "sub/b.bin", ".sluice", ".sluice/ready", ".sluice/manifest.json"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct stat status = look(names[i]);
        ck_assert_msg(status.st_gid == group, "%s is of group %u", names[i], status.st_gid);
        ck_assert_msg(status.st_mode & S_IRGRP, "%s", names[i]);
        ck_assert_msg(!S_ISDIR(status.st_mode) || status.st_mode & S_ISGID, "%s", names[i]);
    }
}

SL_TEST(neither_home_nor_path_is_needed)
{
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "/"), *path = strdup(getenv("PATH"));
    unsetenv("HOME");
    unsetenv("PATH");
    RUN(&ran, "load", prefix, "--to", target);
    setenv("HOME", home, 1);
    setenv("PATH", path, 1);
    free(home);
    free(path);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
}

/* ---- ports ---------------------------------------------------------------------------------- */

SL_TEST(a_port_of_the_image_that_is_taken_stops_no_load)
{
    struct sl_server *server = sl_server_start();
    unsigned port;
    char address[64];
    ck_assert_int_eq(sscanf(sl_server_url(server, "/"), "http://127.0.0.1:%u/", &port), 1);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    RUN(&ran, "load", prefix, "--to", target, "--listen", address);
    ck_assert_msg(ran.exit_code == 7, "%s", ran.err); /* who asks for it, needs it */
    setenv("SLUICE_LISTEN", address, 1);
    RUN(&ran, "load", prefix, "--to", target, "--stay");
    ck_assert_msg(ran.exit_code == 7, "%s", ran.err);
    RUN(&ran, "load", prefix, "--to", target);
    ck_assert_msg(ran.exit_code == 0 && strstr(ran.err, "warning: cannot listen on"), "%s",
                  ran.err);
    sl_server_stop(server);
}

/* ---- a sidecar ------------------------------------------------------------------------------ */

static int status_of(unsigned port, const char *path)
{
    struct http_reply reply;
    int status = http_ask(port, "GET", path, "", &reply) < 0 ? -1 : reply.status;
    http_release(&reply);
    return status;
}

static void await_status(unsigned port, const char *path, int status)
{
    SL_AWAIT(status_of(port, path) == status, path);
}

SL_TEST(a_sidecar_is_started_when_published_and_ends_well)
{
    struct sl_server *server = sl_server_start();
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 1);
    sl_server_put(server, "/w.bin", noise, bytes, "\"one\"");
    const struct sl_step stall[] = {
        {.first = 5, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1}};
    sl_server_script(server, stall, 1);
    char address[64];
    unsigned port = 0;
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    const char *arguments[] = {"load",
                               sl_server_url(server, "/w.bin"),
                               "--to",
                               target,
                               "--range-bytes",
                               "128Ki",
                               "--connections",
                               "1",
                               "--stay",
                               "--listen",
                               address,
                               "--stall-seconds",
                               "1",
                               NULL};
    pid_t pid = start_sluice(arguments, "/dev/null", log_);
    await_status(port, "/healthz", 200);
    SL_AWAIT(sl_server_request_count(server) >= 5, "the fifth request");
    ck_assert_int_eq(status_of(port, "/startupz"), 503);
    ck_assert_int_eq(status_of(port, "/readyz"), 503);
    sl_server_script(server, NULL, 0);
    await_status(port, "/startupz", 200);
    ck_assert_int_eq(status_of(port, "/readyz"), 200);
    int fd = http_connect(port); /* a reader of events does not keep it */
    ck_assert_int_eq(http_send(fd, "GET /v1/events HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
    int status;
    kill(pid, SIGTERM);
    SL_AWAIT(waitpid(pid, &status, WNOHANG) == pid, "the end of the program");
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
    close(held);
    sl_server_stop(server);
    free(noise);
}

static bool prepare(void)
{
    if (!getenv("SLUICE")) {
        sl_skipped("container", "SLUICE does not name the program");
        return false;
    }
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
