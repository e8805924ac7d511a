/* What sluice share says of a file that changes: a version that holds, or none. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "http_client.h"
#include "scratch.h"
#include "thread.h"
#include "web.h"

static struct sl_web *web;
static char directory[SL_SCRATCH_PATH_BYTES];
static int directory_fd;

static void put(void)
{
    int fd = openat(directory_fd, "model.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "changed", 7), 7);
    close(fd);
}

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    directory_fd = sl_scratch_open(directory);
    const struct sl_web_config config = {
        .listen = "127.0.0.1:0", .share_directory = directory, .share_prefix = "/"};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
}

static void teardown(void)
{
    sl_web_free(web);
    sl_scratch_close(directory_fd, directory);
}

static int64_t age_ms(void)
{
    struct stat info;
    struct timespec now;
    ck_assert_int_eq(fstatat(directory_fd, "model.bin", &info, 0), 0);
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ms = (now.tv_nsec - info.st_ctim.tv_nsec) / 1000000;
    return (now.tv_sec - info.st_ctim.tv_sec) * 1000 + ms;
}

/* The answer's status; its ETag. */
static int ask(const char *headers, char etag[128])
{
    struct http_reply reply;
    ck_assert_int_eq(http_ask(sl_web_port(web), "GET", "/model.bin", headers, &reply), 0);
    int status = reply.status;
    snprintf(etag, 128, "%s", http_header(&reply, "ETag"));
    http_release(&reply);
    return status;
}

SL_TEST(a_file_that_has_just_changed_is_told_of_after_the_tick)
{
    char etag[128], later[128];
    put();
    ck_assert_int_eq(ask("", etag), 200);
    ck_assert_int_ge(age_ms(), 20);
    ck_assert_int_eq(etag[0], '"');
    ck_assert_int_eq(ask("", later), 200);
    ck_assert_str_eq(etag, later);
}

static struct sl_cancel *enough;

/* Its times alone: a reader is to get all of it. */
static void *change_all_the_time(void *arg)
{
    (void)arg;
    while (!sl_cancel_raised(enough)) {
        utimensat(directory_fd, "model.bin", NULL, 0);
        sl_sleep_ms(1, NULL, NULL);
    }
    return NULL;
}

static unsigned parts(const char *etag)
{
    unsigned count = 1;
    for (; *etag; etag++)
        count += *etag == '-';
    return count;
}

SL_TEST(a_file_that_changes_all_the_time_has_a_weak_etag)
{
    pthread_t thread;
    struct sl_err err = SL_ERR_INIT;
    char etag[128] = "", headers[256], other[128];
    put();
    enough = sl_cancel_new(&err);
    ck_assert_int_eq(sl_thread_start(&thread, "changes", change_all_the_time, NULL, &err), 0);
    /* not at once where the changer is stopped for a tick */
    SL_AWAIT(ask("", etag) == 200 && strncmp(etag, "W/\"", 3) == 0, "a weak ETag");
    snprintf(headers, sizeof(headers), "If-Match: %s\r\n", etag);
    ck_assert_int_eq(ask(headers, other), 412);
    snprintf(headers, sizeof(headers), "Range: bytes=0-1\r\nIf-Range: %s\r\n", etag);
    ck_assert_int_eq(ask(headers, other), 200);
    sl_cancel_raise(enough, 0);
    pthread_join(thread, NULL);
    sl_cancel_free(enough);
    /* with the same times other bytes may have settled: it says more than those */
    ck_assert_int_eq(ask("", other), 200);
    ck_assert_uint_eq(parts(other), 4);
    ck_assert_uint_eq(parts(etag), 5);
}

SL_CASE(.setup = setup, .teardown = teardown)
