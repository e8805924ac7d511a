/*
 * Claimed sizes beside what runs for long: a node daemon refuses each with one sentence, stays
 * small and serves honest models afterwards; share says what a file of holes has and sends any end
 * of it; bench and verify end by themselves or by a signal.
 */
#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claim_maker.h"
#include "claim_server.h"
#include "claims.h"
#include "http_client.h"
#include "json.h"
#include "model_maker.h"
#include "sizes_case.h"
#include "thread.h"
#include "tree.h"

enum { BUDGET_BYTES = 16 << 20, SMALL_BYTES = 1 << 20, PATH_BYTES = SL_SCRATCH_PATH_BYTES + 64 };

static struct sl_server *server;
static char claim[40], log_path[PATH_BYTES], control_path[PATH_BYTES];
static pid_t daemon_pid;

/* While none of the server's threads reads it. */
static void set_claim(const char *text)
{
    sl_server_handle(server, NULL, NULL);
    snprintf(claim, sizeof(claim), "%s", text);
    sl_server_handle(server, claim_server_lie, claim);
}

static void setup(void)
{
    sizes_open();
    snprintf(log_path, sizeof(log_path), "%s/log", sizes_folder);
    snprintf(control_path, sizeof(control_path), "%s/control", sizes_folder);
    server = sl_server_start();
    sl_server_handle(server, claim_server_lie, claim);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

static void teardown(void)
{
    sl_server_stop(server);
    sizes_close();
}

/* The most memory that a running process has had. */
static long peak_kib_of(pid_t pid)
{
    char path[64], text[8192];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ssize_t bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    ck_assert_int_gt(bytes, 0);
    text[bytes] = 0;
    const char *at = strstr(text, "VmHWM:");
    ck_assert(at != NULL);
    return strtol(at + 6, NULL, 10);
}

static void stay_small(pid_t pid, const char *what)
{
    long kib = peak_kib_of(pid);
    ck_assert_msg(sizes_sanitized || kib <= SIZES_PEAK_KIB, "%s: %ld KiB", what, kib);
}

static char *read_log(void)
{
    size_t bytes;
    return (char *)sl_model_read(sizes_folder, "log", &bytes);
}

static bool is_logged(const char *words)
{
    char *text = read_log();
    bool told = text && strstr(text, words);
    free(text);
    return told;
}

/* ---- a node ---------------------------------------------------------------------------------- */

static int connect_control(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(control_path), sizeof(address.sun_path));
    memcpy(address.sun_path, control_path, strlen(control_path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool answers(void)
{
    int fd = connect_control();
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void start_node(void)
{
    char config[PATH_BYTES], text[2048];
    int bytes = snprintf(text, sizeof(text),
                         "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\n"
                         "budgetBytes: %d\nlisten: 127.0.0.1:0\ncontrol: {socket: %s}\n",
                         sizes_folder, BUDGET_BYTES, control_path);
    sizes_make_file("node.yaml", text, (size_t)bytes, 0);
    snprintf(config, sizeof(config), "%s/node.yaml", sizes_folder);
    daemon_pid = start_sluice((const char *const[]){"serve", config, NULL}, "/dev/null", log_path);
    SL_AWAIT(answers(), "the control socket");
}

static void end_node(void)
{
    ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_sluice(daemon_pid), 0);
}

static int ask(const char *method, const char *target, const char *body, struct http_reply *reply)
{
    char text[4096];
    int fd = connect_control();
    ck_assert_int_ge(fd, 0);
    snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
             method, target, strlen(body), body);
    ck_assert_int_eq(http_send(fd, text), 0);
    ck_assert_int_eq(http_receive(fd, 0, reply), 0);
    close(fd);
    return reply->status;
}

/* The state of a model and, if it failed, what kind of failure and why. */
struct told {
    char state[16], kind[24], message[1024];
};

static void copy_text(json_t *from, const char *key, char *text, size_t bytes)
{
    const char *value = json_string_value(json_object_get(from, key));
    snprintf(text, bytes, "%s", value ? value : "");
}

static bool is_over(const char *name, struct told *told)
{
    char target[80];
    struct http_reply reply = {0};
    snprintf(target, sizeof(target), "/v1/models/%s", name);
    ck_assert_int_eq(ask("GET", target, "", &reply), 200);
    json_t *model = sl_json_parse(reply.body, reply.bytes, "model", NULL);
    ck_assert_msg(model != NULL, "%s", reply.body);
    copy_text(model, "state", told->state, sizeof(told->state));
    json_t *error = json_object_get(model, "error");
    copy_text(error, "kind", told->kind, sizeof(told->kind));
    copy_text(error, "message", told->message, sizeof(told->message));
    json_decref(model);
    http_release(&reply);
    return strcmp(told->state, "ready") == 0 || strcmp(told->state, "failed") == 0;
}

static void load(const char *name, const char *source, struct told *told)
{
    char spec[2048];
    struct http_reply reply = {0};
    snprintf(spec, sizeof(spec),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
             "source: {uri: '%s'}\nreaders: {attempts: 1}\n",
             name, source);
    int status = ask("POST", "/v1/loads", spec, &reply);
    ck_assert_msg(status == 202, "%d %s", status, reply.body);
    http_release(&reply);
    SL_AWAIT(is_over(name, told), "the load's end");
    char target[80];
    snprintf(target, sizeof(target), "/v1/models/%s", name);
    ask("DELETE", target, "", &reply);
    http_release(&reply);
}

/* One claim by one source; what a load of it must say. */
enum place { RANGE, LISTING, SPARSE, TENSORS, PLACES };

static bool make(enum place place, uint64_t value, char *source)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.shape = wanted.data_bytes = value;
    if (place == RANGE)
        snprintf(source, PATH_BYTES, "%s", sl_server_url(server, "/m.bin"));
    else if (place == LISTING)
        snprintf(source, PATH_BYTES, "s3://b/m/");
    else
        snprintf(source, PATH_BYTES, "%s/%s", sizes_folder,
                 place == SPARSE ? "m.bin" : "m.tensors");
    if (place == SPARSE)
        return sizes_make_file("m.bin", "", 0, value) == value;
    return place != TENSORS || claim_tensorizer_file("m.tensors", &wanted);
}

static const char *expect(enum place place, const char *text, uint64_t value)
{
    uint64_t limit = place == LISTING   ? SL_OBJECT_BYTES_MAX / CLAIM_SERVER_OBJECTS
                     : place == TENSORS ? SL_OBJECT_BYTES_MAX - 8192
                                        : SL_OBJECT_BYTES_MAX;
    if (place == RANGE && *text == '-')
        return "NET"; /* it breaks the range contract */
    return *text == '-' || value > limit ? "FORMAT" : "NO_SPACE";
}

static void refuse_one(enum place place, const char *text, const char *small, unsigned number)
{
    char source[PATH_BYTES], name[32], what[120];
    struct told told;
    uint64_t value = strtoull(text, NULL, 10);
    set_claim(text);
    snprintf(name, sizeof(name), "m%u", number);
    snprintf(what, sizeof(what), "a claim of %s in place %d", text, (int)place);
    if (*text == '-' && place >= SPARSE)
        return;
    if (!make(place, value, source))
        return;
    load(name, source, &told);
    const char *kind = expect(place, text, value);
    ck_assert_msg(strcmp(told.state, "failed") == 0 && strcmp(told.kind, kind) == 0,
                  "%s: %s %s instead of %s: %s", what, told.state, told.kind, kind, told.message);
    ck_assert_msg(*told.message && !strchr(told.message, '\n') &&
                      !strstr(told.message, "out of memory"),
                  "%s: %s", what, told.message);
    stay_small(daemon_pid, what);
    load("small", small, &told);
    ck_assert_msg(strcmp(told.state, "ready") == 0, "after %s: %s %s", what, told.kind,
                  told.message);
}

SL_TEST_LOOP(a_node_refuses_every_claim_and_serves_the_next_model, 0, PLACES)
{
    enum { FIRST = 3 }; /* claims above the budget */
    char small[PATH_BYTES];
    snprintf(small, sizeof(small), "%s/small.bin", sizes_folder);
    sizes_make_file("small.bin", "honest", 6, SMALL_BYTES);
    start_node();
    for (unsigned i = FIRST; i < SIZES_CLAIMS; i++)
        refuse_one((enum place)_i, sizes_claims[i], small, i);
    end_node();
}

/* ---- share ----------------------------------------------------------------------------------- */

static unsigned shared_port(void)
{
    char *text = read_log();
    const char *at = text ? strstr(text, "http://127.0.0.1:") : NULL;
    unsigned port = at && strchr(at, '\n') ? (unsigned)strtoul(at + 17, NULL, 10) : 0;
    free(text);
    return port;
}

SL_TEST(share_sends_any_end_of_a_file_of_holes)
{
    uint64_t sizes[] = {UINT64_C(1) << 31, UINT64_C(1) << 40, UINT64_C(100000000000000000),
                        INT64_MAX};
    char range[100];
    struct http_reply reply = {0};
    pid_t pid =
        start_sluice((const char *const[]){"share", sizes_folder, "--listen", "127.0.0.1:0", NULL},
                     log_path, "/dev/null");
    SL_AWAIT(shared_port(), "the line that says where");
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        uint64_t bytes = sizes_make_file("m.bin", "", 0, sizes[i]);
        snprintf(range, sizeof(range), "Range: bytes=%" PRIu64 "-\r\n", bytes - 100);
        ck_assert_int_eq(http_ask(shared_port(), "GET", "/m.bin", range, &reply), 0);
        ck_assert_int_eq(reply.status, 206);
        ck_assert_uint_eq(reply.bytes, 100);
        snprintf(range, sizeof(range), "/%" PRIu64, bytes);
        ck_assert_msg(strstr(http_header(&reply, "Content-Range"), range), "%s", reply.head);
        http_release(&reply);
    }
    stay_small(pid, "share");
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(wait_sluice(pid), 0);
}

/* ---- commands that may read for ever --------------------------------------------------------- */

/* Has it read that much? What is read of a file does not come from a disk, but is counted. */
static bool has_read(pid_t pid, uint64_t bytes)
{
    char path[64], text[1024] = "";
    snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *at = got > 0 ? strstr(text, "rchar: ") : NULL;
    return at && strtoull(at + 7, NULL, 10) > bytes;
}

/* One that reads a file because it has a hash to compare. */
SL_TEST(verify_of_a_file_without_end_is_canceled)
{
    enum { READ_BYTES = 256 << 20 };
    char path[PATH_BYTES], text[2048];
    struct rusage usage;
    uint64_t bytes = sizes_make_file("m.bin", "", 0, UINT64_C(1) << 46);
    ck_assert_uint_gt(bytes, UINT64_C(1) << 36);
    int used = snprintf(text, sizeof(text),
                        "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                        "source: {uri: '%s/m.bin'}\nverify: {sha256: {m.bin: '%064d'}}\n"
                        "sink: {tmpfs: {path: /unused}}\n",
                        sizes_folder, 0);
    sizes_make_file("spec.yaml", text, (size_t)used, 0);
    snprintf(path, sizeof(path), "%s/spec.yaml", sizes_folder);
    pid_t pid = start_sluice((const char *const[]){"verify", path, NULL}, "/dev/null", log_path);
    SL_AWAIT(has_read(pid, READ_BYTES), "what is read");
    stay_small(pid, "verify");
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(wait_sluice(pid), 128 + SIGTERM);
    ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
    ck_assert_uint_lt(sizes_used_ns(&usage), SIZES_SECONDS_MAX * SL_NS_PER_S);
    ck_assert(!is_logged("out of memory"));
}

/* What a benchmark reads of a claim is chosen by it, and a load of all of it has no room. */
SL_TEST(bench_of_a_claim_ends_by_itself)
{
    static const struct {
        const char *measure;
        int code;
    } kinds[] = {{"load", 6}, {"store", 4}, {"network", 7}};
    struct ran ran = {0};
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        set_claim("100000000000000000");
        RUN(&ran, "bench", sl_server_url(server, "/m.bin"), "--to", sizes_folder, "--measure",
            kinds[i].measure, "--rounds", "1", "--warmups", "0", "--range-bytes", "1MiB",
            "--connections", "1");
        ck_assert_msg(ran.exit_code == kinds[i].code, "%s: %d: %s", kinds[i].measure, ran.exit_code,
                      ran.err);
        sizes_judge(kinds[i].measure, &ran, SIZES_PEAK_KIB);
    }
    ran_release(&ran);
}

SL_CASE(.setup = setup, .teardown = teardown)
