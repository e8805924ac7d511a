/* Bodies of requests: what they take is given back when the request ends, however it ends, and not
 * when its connection does. */
#include <check.h>
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "http_client.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node.h"
#include "registry_settle.h"
#include "scratch.h"
#include "thread.h"
#include "tree.h"
#include "web.h"

enum { BODY_BYTES = 900 * 1024, REQUESTS = 100, GROWTH_MAX = 40 * BODY_BYTES };
#if defined(__SANITIZE_ADDRESS__)
#define KEEPS_FREED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS_FREED
#endif
#endif
#define TOKEN  "0123456789abcdef"
#define BEARER "Authorization: Bearer " TOKEN "\r\n"
#define MODEL(name)                                                                                \
    "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                             \
    "}\nsource: {uri: \"memory://m/\"}\n"
#define LOADS "POST /v1/loads HTTP/1.1\r\nHost: x\r\n" BEARER

static char path[SL_SCRATCH_PATH_BYTES], big[BODY_BYTES + 1];
static int scratch;
static struct sl_err err;
static struct sl_node *node;
static struct sl_web *web;

static void setup(void)
{
    char text[1024];
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    sl_log_setup(SL_LOG_ERROR, false);
    scratch = sl_scratch_open(path);
    ck_assert_int_eq(sl_tree_write(scratch, "token", TOKEN, strlen(TOKEN), &err), 0);
    ck_assert_int_eq(sl_memory_put("m/config.json", "{}", 2, NULL), 0);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "control: {tokenFile: %s/token}\n",
             path, path);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", path);
    ck_assert_msg(sl_node_config_read(text, &config, &complaints, &err) == 0, "%s", err.message);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    sl_node_config_release(&config);
    const struct sl_web_config tcp = {.listen = "127.0.0.1:0", .node = node};
    web = sl_web_start(&tcp, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    memset(big, '#', BODY_BYTES); /* one comment: no model is in it */
}

static void teardown(void)
{
    sl_web_free(web);
    sl_node_free(node);
    sl_memory_clear();
    sl_scratch_close(scratch, path);
}

/* What this process has allocated, in bytes. Not what is resident: the allocator keeps some of what
 * is freed. */
static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* What a body leaves behind shows after so many of them; the address sanitizer, which keeps what is
 * freed, finds what is lost at the end of the process instead. */
static void check_growth(size_t before)
{
#ifdef KEEPS_FREED
    (void)before;
#else
    size_t now = allocated();
    ck_assert_msg(now < before + GROWTH_MAX, "%zu bytes more are allocated",
                  now - SL_MIN(before, now));
#endif
}

/* That this process has open: both ends of each connection. */
static unsigned descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void send_head(int fd, size_t bytes, const char *more)
{
    char text[512];
    snprintf(text, sizeof(text), LOADS "%sContent-Length: %zu\r\n\r\n", more, bytes);
    ck_assert_int_eq(http_send(fd, text), 0);
}

static void expect(int fd, int status, const char *words)
{
    struct http_reply reply = {0};
    ck_assert_int_eq(http_receive(fd, 0, &reply), 0);
    ck_assert_msg(reply.status == status && strstr(reply.body, words), "%d %s", reply.status,
                  reply.body);
    http_release(&reply);
}

static int open_client(void)
{
    int fd = http_connect(sl_web_port(web));
    ck_assert_int_ge(fd, 0);
    return fd;
}

SL_TEST(a_kept_connection_keeps_no_bodies)
{
    int fd = open_client();
    size_t before = allocated();
    for (unsigned i = 0; i < REQUESTS; i++) {
        send_head(fd, BODY_BYTES, "");
        ck_assert_int_eq(http_send(fd, big), 0);
        expect(fd, 400, "error");
    }
    check_growth(before);
    close(fd);
}

SL_TEST(a_body_that_breaks_off_is_given_back)
{
    size_t before = allocated();
    unsigned open_before = descriptors();
    for (unsigned i = 0; i < REQUESTS; i++) {
        int fd = open_client();
        send_head(fd, BODY_BYTES + 1, "");
        ck_assert_int_eq(http_send(fd, big), 0);
        close(fd);
    }
    /* Connections are accepted in order, and a body goes before its connection's descriptor. */
    int last = open_client();
    send_head(last, 1, "");
    ck_assert_int_eq(http_send(last, "#"), 0);
    expect(last, 400, "error");
    close(last);
    SL_AWAIT(descriptors() <= open_before, "the end of all connections");
    check_growth(before);
}

SL_TEST(requests_behind_each_other_have_their_own_bodies)
{
    int fd = open_client();
    struct sl_registry_counts counts;
    char text[2048];
    int used = 0;
    static const char *const bodies[] = {MODEL("first"), MODEL("second"), MODEL("third")};
    for (size_t i = 0; i < SL_COUNT(bodies); i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used,
                         LOADS "Content-Length: %zu\r\n\r\n%s", strlen(bodies[i]), bodies[i]);
    ck_assert_int_eq(http_send(fd, text), 0);
    expect(fd, 202, "\"first\"");
    expect(fd, 202, "\"second\"");
    expect(fd, 202, "\"third\"");
    close(fd);
    sl_registry_settle(node->registry);
    sl_registry_counts(node->registry, &counts);
    ck_assert_uint_eq(counts.models, 3);
}

SL_TEST(a_body_is_waited_for_only_from_who_may_send_it)
{
    int fd = open_client();
    struct http_reply reply = {0};
    send_head(fd, strlen(MODEL("patient")), "Expect: 100-continue\r\n");
    ck_assert_int_eq(http_receive(fd, 1, &reply), 0);
    ck_assert_int_eq(reply.status, 100);
    http_release(&reply);
    ck_assert_int_eq(http_send(fd, MODEL("patient")), 0);
    expect(fd, 202, "\"patient\"");
    close(fd);
    fd = open_client();
    ck_assert_int_eq(http_send(fd, "POST /v1/loads HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                                   "Content-Length: 900000\r\n\r\n"),
                     0);
    expect(fd, 401, "a bearer token is needed");
    close(fd);
}

/* Refused before a byte of it is kept; the connection ends, since what follows is not a request. */
static void expect_refused(const char *head, int status, const char *words)
{
    char rest;
    int fd = open_client();
    ck_assert_int_eq(http_send(fd, head), 0);
    (void)!http_send(fd, big); /* it may be cut off */
    struct http_reply reply = {0};
    if (http_receive(fd, 0, &reply) == 0) /* a reset may overtake it */
        ck_assert_msg(reply.status == status && strstr(reply.body, words), "%d %s", reply.status,
                      reply.body);
    http_release(&reply);
    ck_assert_int_le(recv(fd, &rest, 1, 0), 0);
    close(fd);
}

SL_TEST(bodies_that_nobody_wants_are_not_kept)
{
    static const struct {
        const char *head;
        int status;
        const char *words;
    } refused[] = {
        {"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 921600\r\n\r\n", 200, "models"},
        {"DELETE /v1/models/m HTTP/1.1\r\nHost: x\r\n" BEARER "Content-Length: 921600\r\n\r\n", 413,
         "takes no body"},
        {"POST /v1/models/m/pin HTTP/1.1\r\nHost: x\r\n" BEARER "Content-Length: 921600\r\n\r\n",
         413, "takes no body"},
        {"POST /v1/loads HTTP/1.1\r\nHost: x\r\nContent-Length: 921600\r\n\r\n", 401,
         "bearer token"},
        {LOADS "Content-Length: 1048577\r\n\r\n", 413, "at most 1048576 bytes"},
        {LOADS "Transfer-Encoding: chunked\r\n\r\ne1000\r\n", 411, "needs its Content-Length"},
    };
    size_t before = allocated();
    for (unsigned round = 0; round < REQUESTS / 5; round++)
        for (size_t i = 0; i < SL_COUNT(refused); i++)
            expect_refused(refused[i].head, refused[i].status, refused[i].words);
    check_growth(before);
}

SL_CASE(.setup = setup, .teardown = teardown)
