/* A process that forks while its threads are inside the library: the child opens and reads models
 * as any process does, whatever the threads that it has not were doing. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "descriptors.h"
#include "host.h"
#include "host_growth.h"
#include "host_state.h"
#include "mem.h"
#include "model_maker.h"
#include "open_case.h"
#include "range_server.h"

enum { CHILD_SECONDS = 60 };

static struct sl_server *server;

static void serve(void)
{
    size_t bytes;
    server = sl_server_start();
    sl_autofree uint8_t *data = sl_model_safetensors("a,b,c", 1000, &bytes);
    sl_server_put(server, "/m.safetensors", data, bytes, "\"1\"");
    /* the library is in use */
    sluice_close(open_it(sl_server_url(server, "/m.safetensors"), NULL));
}

static void end(void)
{
    sl_server_stop(server);
}

SL_CASE(.setup = serve, .teardown = end, .seconds = 120)

static int read_as_child(void)
{
    struct sluice_source *source;
    float values[1000];
    struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = values, .bytes = sizeof(values)};
    alarm(CHILD_SECONDS); /* it would wait for ever */
    if (sluice_open(sl_server_url(server, "/m.safetensors"), NULL, &source, &error) < 0)
        return 1;
    if (sluice_read(source, &read, 1, NULL, &error) < 0)
        return 2;
    sluice_close(source);
    return 0;
}

static void expect_child_reads(pid_t child)
{
    int status;
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %x", (unsigned)status);
}

#ifdef __SANITIZE_THREAD__
#define NEED_THREADS_IN_A_CHILD() SL_SKIP("ThreadSanitizer ends a child that begins threads")
#else
#define NEED_THREADS_IN_A_CHILD() (void)0
#endif

/* ---- locks ----------------------------------------------------------------------------------- */

static void take_hosts(void)
{
    pthread_mutex_lock(&sl_hosts_lock);
}

static void leave_hosts(void)
{
    pthread_mutex_unlock(&sl_hosts_lock);
}

static void take_growth(void)
{
    static struct sl_host_share share;
    sl_host_growth_lock(&share);
}

static void take_both(void)
{
    take_growth();
    take_hosts();
}

static void leave_both(void)
{
    leave_hosts();
    sl_host_growth_unlock();
}

static void take_both_the_other_way(void)
{
    take_hosts();
    take_growth();
}

static const struct lock {
    void (*take)(void), (*leave)(void);
} locks[] = {
    {take_hosts, leave_hosts},
    {take_growth, sl_host_growth_unlock},
    {take_both, leave_both},
    {take_both_the_other_way, leave_both},
};

struct holder {
    const struct lock *lock;
    long forker; /* the thread that forks */
    _Atomic bool holds, begins, forked;
};

static bool sleeps(long thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    const char *name_end = got > 0 ? strrchr(text, ')') : NULL;
    return name_end && name_end[1] && name_end[2] == 'S';
}

/* Until the fork waits for it; a fork that does not wait is over by then. */
static void *hold(void *arg)
{
    struct holder *holder = arg;
    holder->lock->take();
    holder->holds = true;
    SL_AWAIT(holder->begins, "the beginning of the fork");
    SL_AWAIT(holder->forked || sleeps(holder->forker), "the fork");
    holder->lock->leave();
    return NULL;
}

SL_TEST_LOOP(a_fork_waits_for_locks_that_threads_hold, 0, 4)
{
    NEED_THREADS_IN_A_CHILD();
    struct holder holder = {.lock = &locks[_i], .forker = syscall(SYS_gettid)};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, &holder), 0);
    SL_AWAIT(holder.holds, "the lock");
    holder.begins = true;
    pid_t child = fork();
    if (child == 0)
        _exit(read_as_child());
    holder.forked = true;
    pthread_join(thread, NULL);
    expect_child_reads(child);
}

/* ---- tables ---------------------------------------------------------------------------------- */

SL_TEST(connections_of_the_parent_take_no_places_of_the_childs)
{
    NEED_THREADS_IN_A_CHILD();
    unsigned most = sl_descriptors_for_connections();
    struct sl_err err = SL_ERR_INIT;
    sl_autofree struct sl_permit *permits = sl_alloc_array(most, sizeof(*permits), &err);
    for (unsigned i = 0; i < most; i++) {
        ck_assert_int_eq(
            sl_host_ask_permit(&permits[i], "127.0.0.1", sl_server_port(server), permits, 0, &err),
            0);
        ck_assert(sl_host_is_permitted(&permits[i]));
    }
    pid_t child = fork();
    if (child == 0)
        _exit(read_as_child());
    expect_child_reads(child);
    for (unsigned i = 0; i < most; i++)
        sl_host_leave(&permits[i]);
}

SL_TEST(a_parent_keeps_what_it_knows)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_permit permit = {.address = -1};
    ck_assert_int_eq(
        sl_host_ask_permit(&permit, "127.0.0.1", sl_server_port(server), &permit, 0, &err), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    expect_child_reads(child);
    sl_autobuf out = {.limit = 1 << 20};
    char port[24];
    snprintf(port, sizeof(port), "port=\"%u\"", sl_server_port(server));
    ck_assert_int_eq(sl_host_metrics(&out, 0, &err), 0);
    ck_assert_ptr_nonnull(strstr(out.data, port));
    sl_host_leave(&permit);
}
