/* A limit of 64 open files, soft and hard: any number of files and connections goes through it, and
 * what cannot says which limit would do. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

enum { SMALL = 500, SHARDS = 24, SHARD_BYTES = 1 << 20, LIMIT = 64 };

static char folder[SL_SCRATCH_PATH_BYTES], to[SL_SCRATCH_PATH_BYTES + 8];
static int scratch;
static struct sl_server *server;

static void setup(void)
{
    scratch = sl_scratch_open(folder);
    snprintf(to, sizeof(to), "%s/out/", folder);
    server = sl_server_start();
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch, folder);
}

static void limit(rlim_t soft, rlim_t hard)
{
    const struct rlimit wanted = {soft, hard};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &wanted), 0);
}

static void put_file(const char *name, const void *data, size_t bytes)
{
    int fd = openat(scratch, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

/* One of `count` tensors, of so many bytes each; its bytes. */
static size_t make_model(char *data, int first, int count, size_t each)
{
    struct sl_buf json = SL_BUF_INIT(1 << 20);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(sl_buf_printf(&json, NULL,
                                       "%s\"w%d\":{\"dtype\":\"U8\",\"shape\":[%zu],"
                                       "\"data_offsets\":[%zu,%zu]}",
                                       i ? "," : "{", first + i, each, i * each, (i + 1) * each),
                         0);
    ck_assert_int_eq(sl_buf_text(&json, "}", NULL), 0);
    sl_put_le64((uint8_t *)data, json.used);
    memcpy(data + 8, json.data, json.used);
    memset(data + 8 + json.used, 'x', (size_t)count * each);
    size_t bytes = 8 + json.used + (size_t)count * each;
    sl_buf_release(&json);
    return bytes;
}

static void assert_done(const struct ran *ran)
{
    ck_assert_msg(ran->exit_code == 0, "%d: %s", ran->exit_code, ran->err);
}

SL_TEST(hundreds_of_small_files_need_few_descriptors)
{
    struct ran ran = {0};
    ck_assert_int_eq(mkdirat(scratch, "in", 0755), 0);
    for (int i = 0; i < SMALL; i++) {
        char name[40];
        snprintf(name, sizeof(name), "in/%03d.json", i);
        put_file(name, name, strlen(name));
    }
    char from[sizeof(folder) + 8];
    snprintf(from, sizeof(from), "%s/in/", folder);
    limit(LIMIT, LIMIT);
    RUN(&ran, "load", from, "--to", to);
    assert_done(&ran);
    ran_release(&ran);
}

SL_TEST(as_many_connections_are_made_as_there_are_descriptors_for)
{
    static char data[SHARD_BYTES + 4096];
    struct ran ran = {0};
    char path[60];
    struct sl_buf index = SL_BUF_INIT(65536);
    ck_assert_int_eq(sl_buf_text(&index, "{\"weight_map\":{", NULL), 0);
    for (int i = 0; i < SHARDS; i++) {
        snprintf(path, sizeof(path), "/m/s%02d.safetensors", i);
        sl_server_put(server, path, data, make_model(data, i, 1, SHARD_BYTES), "\"v1\"");
        ck_assert_int_eq(sl_buf_printf(&index, NULL, "%s\"w%d\":\"%s\"", i ? "," : "", i, path + 3),
                         0);
    }
    ck_assert_int_eq(sl_buf_text(&index, "}}", NULL), 0);
    sl_server_put(server, "/m/model.safetensors.index.json", index.data, index.used, "\"v1\"");
    sl_buf_release(&index);
    const char *from = sl_server_url(server, "/m/model.safetensors.index.json");
    limit(LIMIT, LIMIT);
    RUN(&ran, "load", from, "--to", to, "--connections", "128", "--range-bytes", "64KiB");
    assert_done(&ran);
    ran_release(&ran);
}

SL_TEST(too_many_files_side_by_side_name_the_limit_that_would_do)
{
    enum { TENSORS = 60 };
    static char data[TENSORS * SHARD_BYTES + 65536];
    struct ran ran = {0};
    put_file("m.safetensors", data, make_model(data, 0, TENSORS, SHARD_BYTES));
    char from[sizeof(folder) + 20];
    snprintf(from, sizeof(from), "%s/m.safetensors", folder);
    limit(LIMIT, LIMIT);
    RUN(&ran, "convert", from, to, "--shard-bytes", "1MiB");
    ck_assert_int_eq(ran.exit_code, 6);
    ck_assert_msg(strstr(ran.err, "61 files") && strstr(ran.err, "(ulimit -n) to 162"), "%s",
                  ran.err);
    limit(LIMIT, LIMIT);
    RUN(&ran, "convert", from, to, "--shard-bytes", "8MiB");
    assert_done(&ran);
    ran_release(&ran);
}

/* Ours is raised, which a program that uses select() would not survive. */
SL_TEST(a_command_gets_the_limit_that_it_would_have_had)
{
    struct ran ran = {0};
    char from[sizeof(folder) + 20];
    put_file("small", "text", 4);
    snprintf(from, sizeof(from), "%s/small", folder);
    limit(LIMIT, 4096);
    RUN(&ran, "load", from, "--to", to, "--", "sh", "-c", "ulimit -n; ulimit -H -n");
    assert_done(&ran);
    ck_assert_msg(strstr(ran.out, "64\n4096\n"), "%s", ran.out);
    ran_release(&ran);
}

SL_CASE(.setup = setup, .teardown = teardown)
