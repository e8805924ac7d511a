/* Files by ranges: right bytes, right conditions, and no way out of the directory. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "cli.h"
#include "http_client.h"
#include "json.h"
#include "thread.h"
#include "web.h"
#include "web_http.h"

enum { FILE_BYTES = 5 << 20 };

static struct sl_web *web;
static unsigned port;
static char outside[64], directory[80];

static void put(const char *name, const void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void make_directory(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

static uint8_t byte_at(uint64_t position)
{
    return (uint8_t)(position * 131 + (position >> 9));
}

static void start(void)
{
    struct sl_err err = SL_ERR_INIT;
    snprintf(outside, sizeof(outside), "/tmp/sluice-share-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(outside));
    snprintf(directory, sizeof(directory), "%s/in", outside);
    make_directory("");
    uint8_t *data = malloc(FILE_BYTES);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        data[i] = byte_at(i);
    put("model.bin", data, FILE_BYTES);
    free(data);
    put("../secret", "secret", 6);
    put("empty", "", 0);
    put("a b+%\xc3\xa9", "odd", 3);
    make_directory("sub");
    put("sub/config.json", "{}", 2);
    const struct sl_web_config config = {.listen = "127.0.0.1:0",
                                         .share_directory = directory,
                                         .share_prefix = "/",
                                         .idle_seconds = 3600};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    port = sl_web_port(web);
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *where)
{
    (void)stat;
    (void)type;
    (void)where;
    return remove(path);
}

static void stop(void)
{
    sl_web_free(web);
    nftw(outside, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int ask(const char *path, const char *headers, struct http_reply *reply)
{
    ck_assert_int_eq(http_ask(port, "GET", path, headers, reply), 0);
    return reply->status;
}

static int status_with(const char *path, const char *format, const char *value)
{
    struct http_reply reply;
    char headers[512];
    snprintf(headers, sizeof(headers), format, value);
    int status = ask(path, headers, &reply);
    http_release(&reply);
    return status;
}

static int status_of(const char *path)
{
    return status_with(path, "%s", "");
}

/* ---- files ---------------------------------------------------------------------------------- */

static void check_range(const char *range, uint64_t begin, uint64_t end)
{
    struct http_reply reply;
    char headers[128], wanted[128];
    snprintf(headers, sizeof(headers), "Range: %s\r\n", range);
    ck_assert_int_eq(ask("/model.bin", headers, &reply), 206);
    snprintf(wanted, sizeof(wanted), "bytes %llu-%llu/%d", (unsigned long long)begin,
             (unsigned long long)end - 1, FILE_BYTES);
    ck_assert_str_eq(http_header(&reply, "Content-Range"), wanted);
    ck_assert_uint_eq(reply.bytes, end - begin);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < reply.bytes; i++)
        wrong += (uint8_t)reply.body[i] != byte_at(begin + i);
    ck_assert_uint_eq(wrong, 0);
    http_release(&reply);
}

static const struct sl_claim_case starting_claims;

SL_TEST(a_range_is_exactly_those_bytes)
{
    check_range("bytes=0-0", 0, 1);
    check_range("bytes=1000-1048999", 1000, 1049000);
    check_range("bytes=5242879-", FILE_BYTES - 1, FILE_BYTES);
    check_range("bytes=-70000", FILE_BYTES - 70000, FILE_BYTES);
    check_range("bytes=0-", 0, FILE_BYTES);
}

SL_TEST(a_range_beyond_the_end_is_refused_with_the_size)
{
    struct http_reply reply;
    ck_assert_int_eq(ask("/model.bin", "Range: bytes=5242880-\r\n", &reply), 416);
    ck_assert_str_eq(http_header(&reply, "Content-Range"), "bytes */5242880");
    http_release(&reply);
    ck_assert_int_eq(status_with("/empty", "Range: %s\r\n", "bytes=0-0"), 416);
}

SL_TEST(several_ranges_and_nonsense_get_the_whole)
{
    struct http_reply reply;
    ck_assert_int_eq(ask("/model.bin", "Range: bytes=0-1,4-5\r\n", &reply), 200);
    ck_assert_uint_eq(reply.bytes, FILE_BYTES);
    http_release(&reply);
    ck_assert_int_eq(status_with("/model.bin", "Range: %s\r\n", "lines=1-2"), 200);
}

SL_TEST(head_tells_length_and_version_without_bytes)
{
    struct http_reply reply;
    ck_assert_int_eq(http_ask(port, "HEAD", "/model.bin", "Range: bytes=0-3\r\n", &reply), 0);
    ck_assert_int_eq(reply.status, 200);
    ck_assert_str_eq(http_header(&reply, "Content-Length"), "5242880");
    ck_assert_str_eq(http_header(&reply, "Accept-Ranges"), "bytes");
    ck_assert_int_eq(http_header(&reply, "ETag")[0], '"');
    ck_assert_ptr_nonnull(http_header(&reply, "Last-Modified"));
    http_release(&reply);
    ck_assert_int_eq(http_ask(port, "HEAD", "/empty", "", &reply), 0);
    ck_assert_str_eq(http_header(&reply, "Content-Length"), "0");
    http_release(&reply);
    ck_assert_int_eq(status_of("/empty"), 200);
}

SL_TEST(conditions_are_kept)
{
    struct http_reply reply;
    char etag[128], date[64];
    ck_assert_int_eq(http_ask(port, "HEAD", "/model.bin", "", &reply), 0);
    snprintf(etag, sizeof(etag), "%s", http_header(&reply, "ETag"));
    snprintf(date, sizeof(date), "%s", http_header(&reply, "Last-Modified"));
    http_release(&reply);
    const char *old = "Sun, 06 Nov 1994 08:49:37 GMT";
    ck_assert_int_eq(status_with("/model.bin", "If-Match: %s\r\n", etag), 200);
    ck_assert_int_eq(status_with("/model.bin", "If-Match: %s\r\n", "*"), 200);
    ck_assert_int_eq(status_with("/model.bin", "If-Match: %s\r\n", "\"x\""), 412);
    ck_assert_int_eq(status_with("/model.bin", "If-Match: W/%s\r\n", etag), 412);
    ck_assert_int_eq(status_with("/model.bin", "If-None-Match: %s\r\n", etag), 304);
    ck_assert_int_eq(status_with("/model.bin", "If-None-Match: \"x\", W/%s\r\n", etag), 304);
    ck_assert_int_eq(status_with("/model.bin", "If-None-Match: %s\r\n", "\"x\""), 200);
    ck_assert_int_eq(status_with("/model.bin", "If-Modified-Since: %s\r\n", date), 304);
    ck_assert_int_eq(status_with("/model.bin", "If-Modified-Since: %s\r\n", old), 200);
    ck_assert_int_eq(status_with("/model.bin", "If-Unmodified-Since: %s\r\n", date), 200);
    ck_assert_int_eq(status_with("/model.bin", "If-Unmodified-Since: %s\r\n", old), 412);
    ck_assert_int_eq(status_with("/model.bin", "Range: bytes=0-1\r\nIf-Range: %s\r\n", etag), 206);
    ck_assert_int_eq(status_with("/model.bin", "Range: bytes=0-1\r\nIf-Range: %s\r\n", "\"x\""),
                     200);
    ck_assert_int_eq(status_with("/model.bin", "Range: bytes=0-1\r\nIf-Range: W/%s\r\n", etag),
                     200);
    ck_assert_int_eq(status_with("/model.bin", "Range: bytes=0-1\r\nIf-Match: %s\r\n", etag), 206);
    put("model.bin", "changed", 7);
    ck_assert_int_eq(status_with("/model.bin", "If-Match: %s\r\n", etag), 412);
}

SL_TEST(odd_names_are_served)
{
    struct http_reply reply;
    ck_assert_int_eq(ask("/a%20b+%25%C3%A9", "", &reply), 200);
    ck_assert_str_eq(reply.body, "odd");
    http_release(&reply);
    ck_assert_int_eq(ask("/sub/config.json?version=1", "", &reply), 200);
    ck_assert_str_eq(reply.body, "{}");
    http_release(&reply);
    ck_assert_int_eq(status_of("/model.bin/"), 404);
    ck_assert_int_eq(status_of("/model.bin/x"), 404);
    ck_assert_int_eq(status_of("/nothing"), 404);
    ck_assert_int_eq(status_of("/%zz"), 400);
}

/* From now on the process has a kernel without openat2, as far as it can see; false: it has no
 * filters, either (an emulated one). */
static bool forbid_openat2(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {SL_COUNT(code), code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    int done =
        (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (done < 0 && errno == ENOSYS)
        return false;
    ck_assert_int_eq(done, 0);
    return true;
}

SL_TEST_LOOP(nothing_outside_the_directory_is_served, 0, 2)
{
    if (_i && !forbid_openat2())
        SL_SKIP("no filters for system calls");
    ck_assert_int_eq(status_of("/sub/config.json"), 200);
    ck_assert_int_eq(status_of("/sub/"), 200);
    ck_assert_int_eq(status_of("/"), 200);
    char path[512], target[512];
    snprintf(path, sizeof(path), "%s/out", directory);
    ck_assert_int_eq(symlink("../secret", path), 0);
    snprintf(path, sizeof(path), "%s/absolute", directory);
    snprintf(target, sizeof(target), "%s/secret", outside);
    ck_assert_int_eq(symlink(target, path), 0);
    snprintf(path, sizeof(path), "%s/up", directory);
    ck_assert_int_eq(symlink("..", path), 0);
    snprintf(path, sizeof(path), "%s/fifo", directory);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    const char *urls[] = {"/../secret",  "/%2e%2e/secret",    "/..%2fsecret",      "/out",
                          "/absolute",   "/up/secret",        "/sub/../../secret", "/fifo",
                          "//../secret", "/proc/self/environ"};
    for (size_t i = 0; i < SL_COUNT(urls); i++)
        ck_assert_int_eq(status_of(urls[i]), 404);
}

SL_TEST(a_link_that_stays_inside_is_followed)
{
    char path[512];
    struct http_reply reply;
    if (syscall(SYS_openat2, -1, NULL, NULL, 0) < 0 && errno == ENOSYS)
        SL_SKIP("no openat2, without which links are refused");
    snprintf(path, sizeof(path), "%s/link", directory);
    ck_assert_int_eq(symlink("sub/config.json", path), 0);
    ck_assert_int_eq(ask("/link", "", &reply), 200);
    ck_assert_str_eq(reply.body, "{}");
    http_release(&reply);
}

/* Whoever loads the folder would lack it otherwise, and not know. */
SL_TEST(what_a_link_leads_to_is_listed_if_it_is_a_file_that_is_served)
{
    static const struct {
        const char *name, *target;
    } links[] = {{"file", "config.json"},    {"up", "../model.bin"}, {"none", "nothing"},
                 {"out", "../../secret"},    {"folder", "."},        {"loop", "loop"},
                 {"absolute", "/etc/passwd"}};
    char path[512];
    struct http_reply reply;
    if (syscall(SYS_openat2, -1, NULL, NULL, 0) < 0 && errno == ENOSYS)
        SL_SKIP("no openat2, without which links are refused");
    for (size_t i = 0; i < SL_COUNT(links); i++) {
        snprintf(path, sizeof(path), "%s/sub/%s", directory, links[i].name);
        ck_assert_int_eq(symlink(links[i].target, path), 0);
    }
    ck_assert_int_eq(ask("/sub/", "Accept: application/json\r\n", &reply), 200);
    ck_assert_ptr_nonnull(strstr(reply.body, "{\"name\":\"file\",\"type\":\"file\",\"bytes\":2,"));
    ck_assert_ptr_nonnull(
        strstr(reply.body, "{\"name\":\"up\",\"type\":\"file\",\"bytes\":5242880,"));
    for (size_t i = 2; i < SL_COUNT(links); i++) {
        snprintf(path, sizeof(path), "\"%s\"", links[i].name);
        ck_assert_msg(!strstr(reply.body, path), "%s: %s", path, reply.body);
    }
    http_release(&reply);
    ck_assert_int_eq(ask("/sub/", "", &reply), 200);
    ck_assert_ptr_nonnull(strstr(reply.body, "<a href=\"file\">"));
    ck_assert_ptr_null(strstr(reply.body, "<a href=\"out\">"));
    http_release(&reply);
}

SL_TEST(a_model_is_served_only_when_it_is_ready)
{
    make_directory("sub/.sluice");
    ck_assert_int_eq(status_of("/sub/config.json"), 503);
    ck_assert_int_eq(status_of("/model.bin"), 200);
    put("sub/.sluice/ready", "", 0);
    ck_assert_int_eq(status_of("/sub/config.json"), 200);
    ck_assert_int_eq(status_of("/sub/.sluice/ready"), 404);
    make_directory(".sluice");
    ck_assert_int_eq(status_of("/model.bin"), 503);
    ck_assert_int_eq(status_of("/sub/config.json"), 503);
    ck_assert_int_eq(status_of("/"), 503);
    ck_assert_int_eq(status_of("/readyz"), 503);
    ck_assert_int_eq(status_of("/healthz"), 200);
    put(".sluice/ready", "", 0);
    ck_assert_int_eq(status_of("/model.bin"), 200);
    ck_assert_int_eq(status_of("/readyz"), 200);
}

/* A node's directory that is shared: whoever asks is not who brought the specs. */
SL_TEST(what_a_node_keeps_for_itself_is_given_to_nobody)
{
    static const char *const kept[] = {"name/model.yaml", "name/0123456789abcdef.whole", ".lock",
                                       ".volumes/salt", ".volumes/0a.json"};
    char path[512], url[300];
    struct http_reply reply;
    make_directory("name");
    make_directory("name/0123456789abcdef");
    make_directory(".volumes");
    put("name/0123456789abcdef/model.yaml", "mine", 4); /* of a model: everybody may read it */
    for (size_t i = 0; i < SL_COUNT(kept); i++) {
        put(kept[i], "secret", 6);
        snprintf(path, sizeof(path), "%s/%s", directory, kept[i]);
        ck_assert_int_eq(chmod(path, 0600), 0);
    }
    for (size_t i = 0; i < SL_COUNT(kept); i++) {
        snprintf(url, sizeof(url), "/%s", kept[i]);
        ck_assert_int_eq(status_of(url), 404);
    }
    ck_assert_int_eq(status_of("/.volumes/"), 404);
    ck_assert_int_eq(status_of("/name/0123456789abcdef/model.yaml"), 200);
    ck_assert_int_eq(ask("/name/", "", &reply), 200);
    ck_assert_ptr_null(strstr(reply.body, "model.yaml"));
    ck_assert_ptr_null(strstr(reply.body, ".whole"));
    http_release(&reply);
    ck_assert_int_eq(ask("/", "Accept: application/json\r\n", &reply), 200);
    ck_assert_ptr_null(strstr(reply.body, ".volumes"));
    ck_assert_ptr_null(strstr(reply.body, ".lock"));
    http_release(&reply);
}

SL_TEST(files_win_over_our_own_names)
{
    struct http_reply reply;
    ck_assert_int_eq(status_of("/metrics"), 200);
    put("metrics", "mine", 4);
    ck_assert_int_eq(ask("/metrics", "", &reply), 200);
    ck_assert_str_eq(reply.body, "mine");
    http_release(&reply);
}

SL_TEST(a_directory_is_listed_for_people_and_programs)
{
    struct http_reply reply;
    struct sl_err err = SL_ERR_INIT;
    put("<b>&\"", "x", 1);
    make_directory(".sluice");
    put(".sluice/ready", "", 0);
    ck_assert_int_eq(ask("/", "", &reply), 200);
    ck_assert_ptr_nonnull(strstr(reply.body, "<a href=\"a%20b%2B%25%C3%A9\">a b+%\xc3\xa9</a>"));
    ck_assert_ptr_nonnull(strstr(reply.body, "<a href=\"%3Cb%3E%26%22\">&lt;b&gt;&amp;&quot;</a>"));
    ck_assert_ptr_null(strstr(reply.body, "sluice/"));
    ck_assert_ptr_null(strstr(reply.body, "../"));
    ck_assert_ptr_nonnull(strstr(reply.body, "<style>\n:root {"));
    const char *policy = http_header(&reply, "Content-Security-Policy");
    ck_assert_ptr_nonnull(strstr(policy, "default-src 'none'; style-src 'sha256-"));
    ck_assert_ptr_null(strstr(policy, "script-src"));
    http_release(&reply);
    ck_assert_int_eq(ask("/", "Accept: application/json\r\n", &reply), 200);
    json_t *json = sl_json_parse(reply.body, reply.bytes, "listing", &err);
    ck_assert_ptr_nonnull(json);
    ck_assert_uint_eq(json_array_size(json_object_get(json, "entries")), 5);
    json_decref(json);
    http_release(&reply);
    ck_assert_int_eq(ask("/sub", "", &reply), 301);
    ck_assert_str_eq(http_header(&reply, "Location"), "/sub/");
    http_release(&reply);
    make_directory("\\other.example"); /* browsers would read "//other.example" */
    ck_assert_int_eq(ask("/\\other.example", "", &reply), 301);
    ck_assert_str_eq(http_header(&reply, "Location"), "/%5Cother.example/");
    http_release(&reply);
    ck_assert_int_eq(status_of("/sub/"), 200);
}

static void expect_size(const char *folder, const char *size)
{
    struct http_reply reply;
    char row[256];
    snprintf(row, sizeof(row), ">%s/</a></td><td class=\"number\">%s</td>", folder, size);
    ck_assert_int_eq(ask("/", "", &reply), 200);
    ck_assert_msg(strstr(reply.body, row) != NULL, "%s", reply.body);
    http_release(&reply);
}

SL_TEST(a_folder_of_a_listing_has_the_size_of_its_files)
{
    char name[512];
    make_directory("folder");
    make_directory("folder/inner");
    make_directory("folder/.sluice");
    put("folder/.sluice/ready", "123", 3);
    put("folder/a", "12345", 5);
    put("folder/inner/b", "1234567", 7);
    snprintf(name, sizeof(name), "%s/folder/link", directory);
    ck_assert_int_eq(symlink("/etc/passwd", name), 0);
    expect_size("folder", "12 bytes");
    make_directory("z-many");
    for (int i = 0; i < 10001; i++) {
        snprintf(name, sizeof(name), "z-many/%d", i);
        put(name, "", 0);
    }
    expect_size("folder", "12 bytes");
    expect_size("z-many", ""); /* more than a listing counts */
}

/* A connection that ends without an answer would be tried again. */
SL_TEST(a_listing_that_is_too_long_is_told)
{
    enum { NAME_BYTES = 246, FILES = 3000 };
    char name[300], marks[NAME_BYTES + 1] = "";
    struct http_reply reply;
    memset(marks, 1, NAME_BYTES); /* each takes six bytes of JSON */
    make_directory("odd");
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "odd/%04d%s", i, marks);
        put(name, "", 0);
    }
    ck_assert_int_eq(ask("/odd/", "Accept: application/json\r\n", &reply), 507);
    ck_assert_msg(strstr(reply.body, "larger than 4 MiB"), "%s", reply.body);
    http_release(&reply);
    ck_assert_int_eq(status_of("/sub/config.json"), 200);
}

/* Each listing is big and left unread. */
SL_TEST(clients_that_ask_and_do_not_read_take_bounded_memory)
{
    int fds[60], count = 0, refused = 0;
    char name[256];
    make_directory("many");
    for (int i = 0; i < 4000; i++) {
        snprintf(name, sizeof(name), "many/%0200d", i);
        put(name, "", 0);
    }
    for (; count < 60 && refused < 3; count++) {
        int small = 4096;
        char text[16] = "";
        fds[count] = http_connect(port);
        setsockopt(fds[count], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
        ck_assert_int_eq(http_send(fds[count], "GET /many/ HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
        ck_assert_int_eq(recv(fds[count], text, 12, MSG_WAITALL), 12);
        refused += strcmp(text, "HTTP/1.1 503") == 0;
    }
    ck_assert_int_eq(refused, 3);
    ck_assert_int_eq(status_of("/sub/config.json"), 200);
    while (count)
        close(fds[--count]);
}

static void *read_ranges(void *arg)
{
    int fd = http_connect(port);
    for (int i = 0; i < 20; i++) {
        struct http_reply reply;
        char request[256];
        unsigned begin = (unsigned)(rand() % (FILE_BYTES - 300000));
        snprintf(request, sizeof(request),
                 "GET /model.bin HTTP/1.1\r\nHost: t\r\nRange: bytes=%u-%u\r\n\r\n", begin,
                 begin + 299999);
        if (http_send(fd, request) < 0 || http_receive(fd, 0, &reply) < 0) {
            *(int *)arg += 1;
            break;
        }
        *(int *)arg += reply.status != 206 || reply.bytes != 300000 ||
                       (uint8_t)reply.body[0] != byte_at(begin) ||
                       (uint8_t)reply.body[299999] != byte_at(begin + 299999);
        http_release(&reply);
    }
    close(fd);
    return NULL;
}

SL_TEST(many_connections_read_at_once)
{
    pthread_t threads[16];
    int failed[16] = {0};
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_ranges, &failed[i]), 0);
    for (int i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(failed[i], 0);
    }
}

/* One reader of the whole file, from a server that lets nobody idle for longer than a second. */
static int open_reader(void)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_web_config config = {.listen = "127.0.0.1:0",
                                         .share_directory = directory,
                                         .share_prefix = "/",
                                         .idle_seconds = 1};
    sl_web_free(web);
    ck_assert_ptr_nonnull(web = sl_web_start(&config, &err));
    int fd = http_connect(sl_web_port(web));
    ck_assert_int_ge(fd, 0);
    return fd;
}

static bool is_cut_off(int fd)
{
    struct pollfd peer = {fd, POLLIN, 0};
    char taken[512];
    (void)!recv(fd, taken, sizeof(taken), MSG_DONTWAIT);
    sl_sleep_ms(50, NULL, NULL);
    poll(&peer, 1, 0);
    return peer.revents & (POLLERR | POLLHUP);
}

SL_TEST(a_reader_that_takes_next_to_nothing_is_cut_off)
{
    int small = 16 * 1024, fd = open_reader();
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    ck_assert_int_eq(http_send(fd, "GET /model.bin HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
    SL_AWAIT(is_cut_off(fd), "the end of the connection");
    close(fd);
}

/* Slow for three times as long as one may idle, with megabytes of it in the sender's buffer. */
SL_TEST(a_slow_reader_gets_all_of_it)
{
    static char taken[48 * 1024];
    int fd = open_reader();
    struct http_reply head;
    struct tcp_info info;
    socklen_t told = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &told) < 0 || told < sizeof(info) / 2)
        SL_SKIP("an emulated kernel does not tell what a reader has taken");
    ck_assert_int_eq(http_send(fd, "GET /model.bin HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
    ck_assert_int_eq(http_receive(fd, 1, &head), 0);
    http_release(&head);
    uint64_t began = sl_now_ns();
    size_t total = 0;
    ssize_t got;
    while (total < FILE_BYTES && (got = recv(fd, taken, sizeof(taken), 0)) > 0) {
        total += (size_t)got;
        if (sl_now_ns() - began < 3 * SL_NS_PER_S)
            sl_sleep_ms(50, NULL, NULL);
    }
    ck_assert_uint_eq(total, FILE_BYTES);
    close(fd);
}

SL_TEST(a_reader_in_mid_file_does_not_delay_the_end)
{
    int fd = http_connect(port);
    char text[16];
    ck_assert_int_eq(http_send(fd, "GET /model.bin HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
    ck_assert_int_gt(recv(fd, text, sizeof(text), 0), 0);
    sl_web_free(web);
    web = NULL;
    close(fd);
}

/* ---- the command ---------------------------------------------------------------------------- */

static void *run_share(void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    char *listen[] = {(char *)"127.0.0.1:0"}, *operands[] = {directory, NULL};
    struct sl_cli cli = {
        .cancel = arg, .json = true, .operands = operands, .operand_count = 1, .options = listen};
    return sl_cmd_share.run(&cli, &err) == 0 ? NULL : arg;
}

SL_TEST(the_command_prints_where_it_listens_and_ends_at_a_signal)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    int ends[2];
    pthread_t thread;
    void *failed;
    char line[1024] = "";
    ck_assert_int_eq(pipe(ends), 0);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_share, cancel), 0);
    for (size_t used = 0; !strchr(line, '\n');) {
        ssize_t got = read(ends[0], line + used, sizeof(line) - used - 1);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
    }
    dup2(saved, STDOUT_FILENO);
    json_t *json = sl_json_parse(line, strlen(line), "stdout", &err);
    ck_assert_ptr_nonnull(json);
    port = (unsigned)sl_json_get_uint(json, "port", 0);
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", port);
    ck_assert_str_eq(sl_json_get_string(json, "url"), url);
    json_decref(json);
    ck_assert_int_eq(status_of("/sub/config.json"), 200);
    sl_cancel_raise(cancel, 15);
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
    sl_cancel_free(cancel);
}

SL_TEST_OF(starting_claims, a_directory_that_is_none_is_named)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_web_config config = {.listen = "127.0.0.1:0", .share_directory = "/nonexistent/x"};
    ck_assert_ptr_null(sl_web_start(&config, &err));
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "/nonexistent/x"));
    config.share_directory = "/etc/passwd";
    ck_assert_ptr_null(sl_web_start(&config, &err));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

static const struct sl_claim_case starting_claims = {.seconds = 0};

SL_CASE(.setup = start, .teardown = stop)
