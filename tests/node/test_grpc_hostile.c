/* What strangers send to a server of gRPC: it answers or closes, and goes on with others. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "grpc_case.h"
#include "grpc_client.h"
#include "nghttp2/nghttp2.h"

SL_CASE(.setup = grpc_case_open, .teardown = grpc_case_close, .seconds = 120)

static const struct grpc_wish usual = {.path = GRPC_FAST, .message = "x", .bytes = 1};

static void check_goes_on(void)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    grpc_client_close(client);
}

static void send_bytes(int fd, const void *data, size_t bytes)
{
    ck_assert_int_ge(send(fd, data, bytes, MSG_NOSIGNAL), 0);
}

/* Until it closes. */
static size_t read_to_end(int fd)
{
    char bytes[4096];
    size_t total = 0;
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        total += (size_t)got;
    return total;
}

SL_TEST(every_prefix_of_a_request_is_survived)
{
    sl_autobuf bytes = SL_BUF_INIT(1 << 20);
    grpc_client_bytes(&usual, &bytes);
    for (size_t i = 0; i <= bytes.used; i++) {
        int fd = grpc_client_connect(grpc_case.socket);
        ck_assert_int_ge(fd, 0);
        send_bytes(fd, bytes.data, i);
        shutdown(fd, SHUT_WR);
        read_to_end(fd);
        close(fd);
    }
    check_goes_on();
}

SL_TEST(a_request_byte_by_byte_is_answered)
{
    sl_autobuf bytes = SL_BUF_INIT(1 << 20);
    char got[4096];
    size_t used = 0;
    int fd = grpc_client_connect(grpc_case.socket);
    grpc_client_bytes(&usual, &bytes);
    for (size_t i = 0; i < bytes.used; i++)
        send_bytes(fd, bytes.data + i, 1);
    while (!memmem(got, used, "\0\0\0\0\1x", 6)) {
        ssize_t more = recv(fd, got + used, sizeof(got) - used, 0);
        ck_assert_int_gt(more, 0);
        used += (size_t)more;
    }
    close(fd);
}

SL_TEST(every_byte_of_a_request_may_be_another)
{
    sl_autobuf bytes = SL_BUF_INIT(1 << 20);
    grpc_client_bytes(&usual, &bytes);
    for (size_t i = 0; i < bytes.used; i++) {
        int fd = grpc_client_connect(grpc_case.socket);
        bytes.data[i] = (char)(bytes.data[i] ^ 0xff);
        send_bytes(fd, bytes.data, bytes.used);
        bytes.data[i] = (char)(bytes.data[i] ^ 0xff);
        shutdown(fd, SHUT_WR);
        read_to_end(fd);
        close(fd);
    }
    check_goes_on();
}

SL_TEST(what_is_no_http_2_is_closed)
{
    static const char *const all[] = {
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on, TLS"};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        int fd = grpc_client_connect(grpc_case.socket);
        send_bytes(fd, all[i], strlen(all[i]));
        read_to_end(fd);
        close(fd);
    }
    check_goes_on();
}

SL_TEST(requests_without_sense_are_reset)
{
    static const struct grpc_wish wrong[] = {
        {.path = NULL},                    /* no :path */
        {.path = GRPC_FAST, .method = ""}, /* no :method */
        {.path = GRPC_FAST, .more_name = "Upper", .more_value = "x"},
        {.path = GRPC_FAST, .more_name = ":path", .more_value = GRPC_FAST}, /* behind others */
        {.path = GRPC_FAST, .more_name = ":other", .more_value = "x"},
        {.path = GRPC_FAST, .more_name = "a name", .more_value = "x"},
    };
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        struct grpc_answer *answer = grpc_client_call(client, &wrong[i]);
        ck_assert_msg(answer->ended && answer->reset, "request %zu was not reset", i);
        ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    }
    grpc_client_close(client);
}

SL_TEST(headers_beyond_the_limit_are_reset)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    static char value[40 * 1024];
    struct grpc_wish request = usual;
    memset(value, 'v', sizeof(value) - 1);
    request.more_name = "more";
    request.more_value = value;
    ck_assert_uint_ne(grpc_client_call(client, &request)->reset, 0);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    request.more_value = value + 20 * 1024;
    ck_assert_int_eq(grpc_client_call(client, &request)->code, 0);
    grpc_client_close(client);
}

SL_TEST(a_thousand_connections_are_answered)
{
    enum { COUNT = 1000 };
    static struct grpc_client *clients[COUNT];
    for (int i = 0; i < COUNT; i++) {
        clients[i] = grpc_client_open(grpc_case.socket);
        ck_assert_int_eq(grpc_client_call(clients[i], &usual)->code, 0);
    }
    ck_assert_int_eq(grpc_client_call(clients[COUNT - 1], &usual)->code, 0);
    int32_t id = grpc_client_begin(clients[0], &usual);
    grpc_client_await(clients[0], id);
    ck_assert_int_eq(grpc_client_answer(clients[0], id)->code, -1); /* it had to go */
    for (int i = 0; i < COUNT; i++)
        grpc_client_close(clients[i]);
    check_goes_on();
}

SL_TEST(when_all_connections_have_calls_another_is_closed)
{
    static struct grpc_client *clients[SL_GRPC_CONNECTIONS_MAX];
    const struct grpc_wish held = {.path = GRPC_HOLD, .message = "x", .bytes = 1};
    int32_t ids[SL_GRPC_CONNECTIONS_MAX];
    for (int i = 0; i < SL_GRPC_CONNECTIONS_MAX; i++) {
        clients[i] = grpc_client_open(grpc_case.socket);
        ck_assert_int_eq(grpc_client_call(clients[i], &usual)->code, 0);
        ids[i] = grpc_client_begin(clients[i], &held);
        /* Behind this answer, the held call is known. */
        ck_assert_int_eq(grpc_client_call(clients[i], &usual)->code, 0);
    }
    int fd = grpc_client_connect(grpc_case.socket);
    ck_assert_uint_eq(read_to_end(fd), 0);
    close(fd);
    grpc_case_release();
    for (int i = 0; i < SL_GRPC_CONNECTIONS_MAX; i++) {
        ck_assert(grpc_client_await(clients[i], ids[i]));
        ck_assert_int_eq(grpc_client_answer(clients[i], ids[i])->code, 0);
        grpc_client_close(clients[i]);
    }
}

/* Of these clients' calls; each connection moves on a little. */
static unsigned count_refused(struct grpc_client **clients, const int32_t *ids, unsigned count)
{
    unsigned refused = 0;
    for (unsigned i = 0; i < count; i++) {
        grpc_client_step(clients[i], 0);
        refused += grpc_client_answer(clients[i], ids[i])->reset == NGHTTP2_ENHANCE_YOUR_CALM;
    }
    return refused;
}

SL_TEST(requests_that_hold_much_memory_are_refused)
{
    enum { COUNT = 20, FIT = SL_GRPC_HELD_BYTES / SL_GRPC_REQUEST_BYTES };
    struct grpc_client *clients[COUNT];
    sl_autofree char *message = sl_alloc(SL_GRPC_REQUEST_BYTES, NULL);
    const struct grpc_wish held = {
        .path = GRPC_HOLD, .message = message, .bytes = SL_GRPC_REQUEST_BYTES};
    int32_t ids[COUNT];
    for (int i = 0; i < COUNT; i++) {
        clients[i] = grpc_client_open(grpc_case.socket);
        ids[i] = grpc_client_begin(clients[i], &held);
    }
    SL_AWAIT(count_refused(clients, ids, COUNT) >= COUNT - FIT, "what does not fit is refused");
    check_goes_on();
    grpc_case_release();
    for (int i = 0; i < COUNT; i++)
        ck_assert(grpc_client_await(clients[i], ids[i]));
    ck_assert_uint_lt(count_refused(clients, ids, COUNT), COUNT);
    struct grpc_answer *answer = grpc_client_call(clients[0], &held); /* all was given back */
    ck_assert_int_eq(answer->code, SL_GRPC_RESOURCE_EXHAUSTED);
    ck_assert_str_ne(answer->text, "");
    for (int i = 0; i < COUNT; i++)
        grpc_client_close(clients[i]);
}

SL_TEST(a_flood_of_resets_stops_nobody_else)
{
    const struct grpc_wish held = {.path = GRPC_HOLD, .message = "x", .bytes = 1};
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    bool open = true;
    for (int i = 0; i < 3000 && open; i++) {
        int32_t id = grpc_client_begin(client, &held);
        grpc_client_step(client, 0);
        grpc_client_reset(client, id, NGHTTP2_CANCEL);
        open = grpc_client_step(client, 0);
    }
    grpc_client_close(client);
    check_goes_on();
}

SL_TEST(a_flood_of_pings_that_reads_nothing_stops_nobody_else)
{
    static const uint8_t ping[17] = {0, 0, 8, 6};
    static uint8_t flood[sizeof(ping) * 1024];
    sl_autobuf bytes = SL_BUF_INIT(1 << 20);
    int fd = grpc_client_connect(grpc_case.socket);
    ssize_t sent = 1;
    grpc_client_bytes(&usual, &bytes);
    send_bytes(fd, bytes.data, bytes.used);
    for (size_t i = 0; i < sizeof(flood); i += sizeof(ping))
        memcpy(flood + i, ping, sizeof(ping));
    for (int i = 0; i < 1000 && sent > 0; i++)
        sent = send(fd, flood, sizeof(flood), MSG_NOSIGNAL | MSG_DONTWAIT);
    ck_assert_int_le(sent, 0);
    check_goes_on();
    close(fd);
}

SL_TEST(other_users_are_turned_away)
{
    if (geteuid() != 0)
        SL_SKIP("not root");
    ck_assert_int_eq(chmod(grpc_case.path, 0755), 0);
    struct stat status;
    ck_assert_int_eq(stat(grpc_case.socket, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert_int_eq(chmod(grpc_case.socket, 0666), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = setuid(65534) == 0 ? grpc_client_connect(grpc_case.socket) : -1;
        _exit(fd < 0 ? 2 : read_to_end(fd) == 0 ? 0 : 1);
    }
    int how;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "the stranger got %d", how);
    check_goes_on();
}

SL_TEST(a_call_that_finds_no_memory_ends_and_others_go_on)
{
    const struct grpc_wish request = {.path = GRPC_ECHO, .message = "x", .bytes = 1};
    for (unsigned nth = 1; nth < 12; nth++) {
        struct grpc_client *client = grpc_client_open(grpc_case.socket);
        ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
        int32_t id = grpc_client_begin(client, &request);
        sl_alloc_fail_at(nth + 4); /* four are the client's own at most */
        grpc_client_await(client, id);
        sl_alloc_fail_at(0);
        grpc_client_close(client);
    }
    check_goes_on();
}
