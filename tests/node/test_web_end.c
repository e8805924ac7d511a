/* A server that is about to end: not ready any more, and nobody is cut off. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "http_client.h"
#include "mem.h"
#include "scratch.h"
#include "web.h"

enum { HOUR_MS = 3600 * 1000 }; /* longer than a test may take */

static struct sl_web *web;
static unsigned port;
static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    scratch_fd = sl_scratch_open(scratch);
    const struct sl_web_config config = {.listen = "127.0.0.1:0",
                                         .share_directory = scratch,
                                         .share_prefix = "/",
                                         .idle_seconds = 3600};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    port = sl_web_port(web);
}

static void teardown(void)
{
    sl_web_free(web);
    sl_scratch_close(scratch_fd, scratch);
}

static int status_of(const char *path)
{
    struct http_reply reply;
    int status = http_ask(port, "GET", path, "", &reply) < 0 ? -1 : reply.status;
    http_release(&reply);
    return status;
}

/* A connection on which something has been asked, and of whose answer something is there. */
static int begin(const char *path)
{
    char request[256];
    int fd = http_connect(port);
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
    ck_assert_int_eq(http_send(fd, request), 0);
    struct pollfd begun = {fd, POLLIN, 0};
    ck_assert_int_eq(poll(&begun, 1, 60000), 1);
    return fd;
}

static void *drain(void *arg)
{
    (void)arg;
    sl_web_drain(web, HOUR_MS);
    return NULL;
}

SL_TEST(an_end_is_not_ready_and_answers_what_has_begun)
{
    const size_t bytes = 24 << 20; /* more than sockets hold */
    int file = openat(scratch_fd, "big", O_CREAT | O_RDWR, 0600);
    ck_assert_int_eq(ftruncate(file, (off_t)bytes), 0);
    close(file);
    ck_assert_int_eq(status_of("/readyz"), 200);
    int fd = begin("/big");
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, drain, NULL), 0);
    SL_AWAIT(status_of("/readyz") == 503, "the end of readiness");
    ck_assert_int_eq(status_of("/startupz"), 200);
    ck_assert_int_eq(status_of("/healthz"), 200);
    struct http_reply reply;
    ck_assert_int_eq(http_receive(fd, 0, &reply), 0);
    ck_assert_uint_eq(reply.bytes, bytes);
    pthread_join(thread, NULL); /* long before its hour */
    http_release(&reply);
    close(fd);
}

SL_TEST(an_end_lets_readers_of_events_go)
{
    int fd = begin("/v1/events");
    sl_web_drain(web, HOUR_MS);
    ck_assert_int_eq(status_of("/readyz"), 503);
    close(fd);
}

SL_TEST(an_end_waits_no_longer_than_it_may)
{
    int file = openat(scratch_fd, "big", O_CREAT | O_RDWR, 0600);
    ck_assert_int_eq(ftruncate(file, 24 << 20), 0);
    close(file);
    int fd = begin("/big"); /* and nobody reads on */
    sl_web_drain(web, 30);
    close(fd);
}

SL_TEST(an_idle_server_ends_at_once)
{
    int fd = http_connect(port); /* a connection that asks nothing keeps nobody */
    sl_web_drain(web, HOUR_MS);
    close(fd);
}

SL_CASE(.setup = setup, .teardown = teardown)
