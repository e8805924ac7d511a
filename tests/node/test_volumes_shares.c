/* Pods of one namespace that wait for sources which never answer: others have their volumes. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "thread.h"
#include "volume_case.h"

#define SPACE "csi.storage.k8s.io/pod.namespace"
enum { PODS = 60 };

static struct volume_case c;
static int silent; /* listens, and never answers */
static unsigned port;
static struct sl_cancel *leave;

/* A pod whose volume is asked for by a thread. */
struct pod {
    struct volume_ask_case request;
    char uri[64];
    pthread_t thread;
    struct sl_err err;
    struct sl_counter ended; /* then err is told */
};
static struct pod pods[PODS];
static struct sl_counter answered;

static void setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    volume_case_init(&c);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(silent, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(silent, 64), 0);
    ck_assert_int_eq(getsockname(silent, (struct sockaddr *)&address, &bytes), 0);
    port = ntohs(address.sin_port);
    leave = sl_cancel_new(NULL);
    snprintf(
        c.csi, sizeof(c.csi),
        ", namespaces: [{name: team-a, uriPrefixes: [\"http://127.0.0.1:%u/\"]}, {name: team-b, "
        "uriPrefixes: [\"memory://n/\"]}]",
        port);
    volume_case_open(&c);
}

static void teardown(void)
{
    sl_cancel_raise(leave, 0);
    for (int i = 0; i < PODS; i++)
        if (pods[i].thread)
            pthread_join(pods[i].thread, NULL);
    close(silent);
    volume_case_release(&c);
    sl_cancel_free(leave);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible)

static void *publish(void *arg)
{
    struct pod *pod = arg;
    ck_assert_int_lt(sl_volumes_publish(c.volumes, &pod->request.ask, leave, &pod->err), 0);
    sl_counter_add(&pod->ended, 1);
    sl_counter_add(&answered, 1);
    return NULL;
}

/* Of team-a, each with a URI of its own. */
static void ask_silent(int count)
{
    for (int i = 0; i < count; i++) {
        struct pod *pod = &pods[i];
        char uid[16];
        snprintf(uid, sizeof(uid), "a%d", i);
        snprintf(pod->uri, sizeof(pod->uri), "http://127.0.0.1:%u/%d.safetensors", port, i);
        volume_case_wish(&c, &pod->request, uid);
        volume_case_set(&pod->request, "model", NULL);
        volume_case_set(&pod->request, "uri", pod->uri);
        ck_assert_int_eq(pthread_create(&pod->thread, NULL, publish, pod), 0);
    }
}

static void await_loading(uint64_t count)
{
    struct sl_registry_counts counts = {0};
    SL_AWAIT((sl_registry_counts(c.node->registry, &counts), counts.loading == count), "loads");
}

/* The model of the node's config. */
static void await_own_model(void)
{
    struct sl_registry_counts counts = {0};
    SL_AWAIT((sl_registry_counts(c.node->registry, &counts), counts.ready == 1), "its load");
}

SL_TEST(silent_sources_of_one_namespace_hold_up_no_other)
{
    struct volume_ask_case named, by_uri;
    ask_silent(8);
    await_loading(1); /* of two places */
    volume_case_wish(&c, &named, "b1");
    volume_case_set(&named, SPACE, "team-b");
    ck_assert_msg(volume_case_publish(&c, &named) == 0, "%s", c.err.message);
    volume_case_wish(&c, &by_uri, "b2");
    volume_case_set(&by_uri, SPACE, "team-b");
    volume_case_set(&by_uri, "model", NULL);
    volume_case_set(&by_uri, "uri", "memory://n/");
    ck_assert_msg(volume_case_publish(&c, &by_uri) == 0, "%s", c.err.message);
    ck_assert_uint_eq(sl_counter_get(&answered), 0);
}

SL_TEST(a_namespace_waits_with_a_share_of_the_publishes)
{
    struct volume_ask_case named;
    unsigned told = 0;
    await_own_model();
    ask_silent(PODS);
    SL_AWAIT(sl_counter_get(&answered) == PODS - SL_VOLUMES_WAITS_SHARE, "those beyond the share");
    for (int i = 0; i < PODS; i++) {
        const struct sl_err *why = &pods[i].err;
        if (!sl_counter_get(&pods[i].ended))
            continue;
        pthread_join(pods[i].thread, NULL);
        pods[i].thread = 0;
        told += strcmp(why->code, "aborted") == 0 && why->retryable &&
                strstr(why->message, "20 volumes of namespace 'team-a'") != NULL;
    }
    ck_assert_uint_eq(told, PODS - SL_VOLUMES_WAITS_SHARE);
    volume_case_wish(&c, &named, "a"); /* what is there has no need to wait */
    ck_assert_msg(volume_case_publish(&c, &named) == 0, "%s", c.err.message);
}
