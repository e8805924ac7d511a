/* Clients that ask for URIs whose servers say nothing: they keep the others from nothing. */
#include <arpa/inet.h>
#include <check.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "early_child.h"
#include "node_case.h"
#include "pool_link.h"

enum { PATIENCE_MS = 20000, HOSTILE = 4001 };

static struct node_case c;
static struct sl_early_child *child;
static struct sluice_error error;
static int silent; /* listens, and never answers */
static unsigned port;

static int ask_silent(struct sl_pool_link *link, char name)
{
    union {
        struct sl_wire_attach attach;
        char bytes[200];
    } ask = {.attach = {.flags = 0}};
    int text = snprintf(ask.bytes + sizeof(ask.attach), sizeof(ask) - sizeof(ask.attach),
                        "http://127.0.0.1:%u/%c.safetensors", port, name);
    ask.attach.model_bytes = (uint16_t)text;
    if (sl_pool_link_open(link, c.socket, "x", sl_limit_make(PATIENCE_MS, -1), &error) < 0)
        return -1;
    return sl_pool_link_send(link, SL_WIRE_ATTACH, &ask, sizeof(ask.attach) + (size_t)text, NULL, 0,
                             &error);
}

/* Two of them, by another user who stays. */
static int run_child(struct sl_early_child *self, const void *order)
{
    struct sl_pool_link links[2];
    memcpy(&port, order, sizeof(port));
    if (chdir(c.path) < 0 || setgroups(0, NULL) < 0 || setgid(HOSTILE) < 0 || setuid(HOSTILE) < 0)
        return 99;
    snprintf(c.socket, sizeof(c.socket), "pool.sock");
    for (int i = 0; i < 2; i++)
        if (ask_silent(&links[i], (char)('a' + i)) < 0)
            return 98;
    sl_early_child_arrive(self);
}

static void setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    node_case_init(&c);
    node_case_put(&c, "object.safetensors", 1000);
    ck_assert_int_eq(fchmod(c.scratch, 0755), 0);
    child = getuid() == 0 ? sl_early_child_start(run_child) : NULL;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(silent, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(silent, 64), 0);
    ck_assert_int_eq(getsockname(silent, (struct sockaddr *)&address, &bytes), 0);
    port = ntohs(address.sin_port);
    char keys[200];
    snprintf(keys, sizeof(keys),
             ", mode: \"0666\", uriPrefixes: [\"memory://m/\", \"http://127.0.0.1:%u/\"]", port);
    node_case_open(&c, keys, "", NULL);
}

static void teardown(void)
{
    if (child)
        sl_early_child_kill(child);
    close(silent);
    node_case_release(&c);
}

static struct sluice_model *attach(int timeout_ms)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "memory://m/object.safetensors",
                                                  .socket = c.socket,
                                                  .timeout_ms = timeout_ms};
    return sluice_attach(&options, &model, &error) < 0 ? NULL : model;
}

static void await_loading(uint64_t count)
{
    SL_AWAIT(node_case_counts(&c).loading == count, "the number of loads");
}

SL_TEST(silent_sources_hold_up_nobody_once_their_clients_have_gone)
{
    struct sl_pool_link links[2];
    for (int i = 0; i < 2; i++)
        ck_assert_msg(ask_silent(&links[i], (char)('a' + i)) == 0, "%s", error.message);
    await_loading(2); /* both places of the default */
    ck_assert_ptr_null(attach(200));
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    for (int i = 0; i < 2; i++)
        sl_pool_link_close(&links[i]);
    struct sluice_model *model = attach(PATIENCE_MS);
    ck_assert_msg(model != NULL, "%s", error.message);
    sluice_detach(model);
}

SL_TEST(silent_sources_of_one_user_hold_up_no_other)
{
    if (!child) {
        printf("skipped: silent_sources_of_one_user_hold_up_no_other: it takes root to be another "
               "user\n");
        return;
    }
    sl_early_child_go(child, &port, sizeof(port));
    sl_early_child_await(child);
    await_loading(1); /* the other one waits for it */
    struct sluice_model *model = attach(PATIENCE_MS);
    ck_assert_msg(model != NULL, "%s", error.message);
    sluice_detach(model);
    ck_assert_uint_eq(node_case_counts(&c).queued, 1);
}

SL_CASE(.setup = setup, .teardown = teardown)
