/* The command `initializer` as a process, and what it does when something fails in the middle. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "golden.h"
#include "initializer.h"
#include "json.h"
#include "oms_maker.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "tar_maker.h"

enum { PATH_BYTES = 512, WEIGHTS_BYTES = 300000 };
static char scratch[SL_SCRATCH_PATH_BYTES], to[PATH_BYTES], local[PATH_BYTES];
static int scratch_fd;
static struct ran ran;
static uint8_t weights[WEIGHTS_BYTES];

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof(path), "%s/%s", local, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(to, sizeof(to), "%s/models", scratch);
    snprintf(local, sizeof(local), "%s/local", scratch);
    ck_assert_int_eq(mkdir(local, 0755), 0);
    for (size_t i = 0; i < sizeof(weights); i++)
        weights[i] = (uint8_t)(i * 7 + i / 251);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && strstr(ran.err, word), "exit code %d\n%s",            \
                  ran.exit_code, ran.err)

/* Every name in a folder, "a b", in order. */
static const char *names_in(const char *path)
{
    static char text[1024];
    struct dirent **found;
    int count = scandir(path, &found, NULL, alphasort);
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(found[i]->d_name, ".") != 0 && strcmp(found[i]->d_name, "..") != 0) {
            if (*text)
                strncat(text, " ", 2);
            strncat(text, found[i]->d_name, sizeof(text) - strlen(text) - 2);
        }
        free(found[i]);
    }
    if (count >= 0)
        free(found);
    return text;
}

static bool holds(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES * 2];
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf found = SL_BUF_INIT(1024 * 1024);
    snprintf(path, sizeof(path), "%s/%s", to, name);
    return sl_buf_read_file(&found, path, &err) == 0 && found.used == bytes &&
           memcmp(sl_buf_string(&found), data, bytes) == 0;
}

SL_TEST(arguments_that_are_no_pairs_end_with_1)
{
    RUN(&ran, "initializer");
    EXPECT(1, "expected pairs of arguments, SRC DST [SRC DST …], but there are 0");
    RUN(&ran, "initializer", "s3://b/k", to, "s3://b/l");
    EXPECT(1, "but there are 3");
    RUN(&ran, "initializer", "--no-such-flag", "s3://b/k", to);
    EXPECT(1, "no-such-flag");
    RUN(&ran, "initializer", "hdfs://h/p", to);
    EXPECT(1, "use an S3 gateway");
    ck_assert_str_eq(names_in(scratch), "local"); /* judged before anything is made */
}

SL_TEST(a_file_of_a_web_server_lies_there_alone)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/d/weights.bin", weights, sizeof(weights), "\"1\"");
    char uri[PATH_BYTES];
    snprintf(uri, sizeof(uri), "sluice+%s", sl_server_url(server, "/d/weights.bin?signature=x"));
    RUN(&ran, "initializer", "--json", uri, to);
    EXPECT(0, "weights.bin");
    ck_assert_ptr_null(strstr(ran.err, "signature")); /* no query in a log */
    ck_assert(holds("weights.bin", weights, sizeof(weights)));
    ck_assert_str_eq(names_in(to), "weights.bin");
    json_t *result = sl_json_parse(ran.out, strlen(ran.out), "result", NULL);
    ck_assert_str_eq(sl_json_get_string(json_array_get(result, 0), "path"), to);
    ck_assert_uint_eq(sl_json_get_uint(json_array_get(result, 0), "bytes", 0), sizeof(weights));
    json_decref(result);
    sl_server_stop(server);
}

static bool needs_token(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    char token[64];
    (void)arg;
    if (sl_server_header(request, "X-Token", token, sizeof(token)) && strcmp(token, "sesame") == 0)
        return false;
    reply->status = 401;
    return true;
}

SL_TEST(headers_of_the_environment_are_sent_to_their_host)
{
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, needs_token, NULL);
    sl_server_put(server, "/x.bin", "x", 1, "\"1\"");
    RUN(&ran, "initializer", sl_server_url(server, "/x.bin"), to);
    EXPECT(1, "401");
    setenv("127.0.0.1-headers", "{\"X-Token\": \"sesame\"}", 1);
    RUN(&ran, "initializer", sl_server_url(server, "/x.bin"), to);
    EXPECT(0, "x.bin");
    ck_assert_ptr_null(strstr(ran.err, "sesame"));
    unsetenv("127.0.0.1-headers");
    sl_server_stop(server);
}

static struct sl_buf archive(void)
{
    struct sl_buf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '0', "config.json", NULL, "{}", 2);
    tar_entry(&tar, '0', "1/weights.bin", NULL, weights, sizeof(weights));
    tar_end(&tar);
    return tar;
}

SL_TEST(a_single_archive_is_unpacked_and_gone)
{
    struct sl_server *server = sl_server_start();
    struct sl_buf tar = archive();
    size_t bytes;
    sl_autofree uint8_t *packed = tar_gzip(tar.data, tar.used, &bytes);
    sl_server_put(server, "/model.tar.gz", packed, bytes, "\"1\"");
    sl_server_put(server, "/get", tar.data, tar.used, "\"1\"");
    static const char *const paths[] = {"/model.tar.gz", "/get?file=model.tar"};
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        RUN(&ran, "initializer", sl_server_url(server, paths[i]), to);
        EXPECT(0, "2 files unpacked");
        ck_assert_str_eq(names_in(to), "1 config.json");
        ck_assert(holds("1/weights.bin", weights, sizeof(weights)));
    }
    sl_buf_release(&tar);
    sl_server_stop(server);
}

SL_TEST(a_refused_archive_leaves_nothing_to_see)
{
    struct sl_server *server = sl_server_start();
    struct sl_buf tar = archive();
    tar.used -= 1024;
    tar_entry(&tar, '0', "../evil", NULL, "x", 1);
    tar_end(&tar);
    sl_server_put(server, "/model.tar", tar.data, tar.used, "\"1\"");
    RUN(&ran, "initializer", sl_server_url(server, "/model.tar"), to);
    EXPECT(1, "'../evil' leads out of the archive");
    ck_assert_str_eq(names_in(to), ".sluice");
    ck_assert_str_eq(names_in(scratch), "local models");
    sl_buf_release(&tar);
    sl_server_stop(server);
}

SL_TEST(half_a_model_in_an_archive_is_refused)
{
    struct sl_server *server = sl_server_start();
    struct sl_buf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '0', "1/model-00001-of-00002.bin", NULL, "weights", 7);
    tar_end(&tar);
    sl_server_put(server, "/model.tar", tar.data, tar.used, "\"1\"");
    RUN(&ran, "initializer", sl_server_url(server, "/model.tar"), to);
    EXPECT(1, "'1/model-00002-of-00002.bin' is not there");
    ck_assert_str_eq(names_in(to), ".sluice");
    RUN(&ran, "initializer", "--set", "source.incomplete=warn", sl_server_url(server, "/model.tar"),
        to);
    EXPECT(0, "1 file unpacked");
    sl_buf_release(&tar);
    sl_server_stop(server);
}

/* What stopped the moving is away; the server is, too. */
SL_TEST(a_run_that_ended_while_moving_is_completed_without_the_network)
{
    struct sl_server *server = sl_server_start();
    char uri[PATH_BYTES], obstacle[PATH_BYTES * 2];
    snprintf(uri, sizeof(uri), "%s", sl_server_url(server, "/weights.bin"));
    snprintf(obstacle, sizeof(obstacle), "%s/weights.bin", to);
    sl_server_put(server, "/weights.bin", weights, sizeof(weights), "\"1\"");
    ck_assert_int_eq(mkdir(to, 0755), 0);
    ck_assert_int_eq(mkdir(obstacle, 0755), 0);
    RUN(&ran, "initializer", "--attempts", "1", uri, to);
    EXPECT(1, "is in the way: choose another directory");
    sl_server_stop(server);
    ck_assert_int_eq(rmdir(obstacle), 0);
    RUN(&ran, "initializer", "--attempts", "1", uri, to);
    EXPECT(0, "weights.bin");
    ck_assert(holds("weights.bin", weights, sizeof(weights)));
    ck_assert_str_eq(names_in(to), "weights.bin");
    /* and only once */
    RUN(&ran, "initializer", "--attempts", "1", "--unreachable-seconds", "0", uri, to);
    EXPECT(1, "127.0.0.1");
}

SL_TEST(nothing_is_to_be_seen_before_every_model_is_complete)
{
    struct sl_server *server = sl_server_start();
    char one[PATH_BYTES], other[PATH_BYTES], base[PATH_BYTES + 8], adapters[PATH_BYTES + 16];
    sl_server_put(server, "/one.bin", weights, sizeof(weights), "\"1\"");
    snprintf(one, sizeof(one), "%s", sl_server_url(server, "/one.bin"));
    snprintf(other, sizeof(other), "%s", sl_server_url(server, "/other.bin"));
    snprintf(base, sizeof(base), "%s/base", to);
    snprintf(adapters, sizeof(adapters), "%s/base/adapters", to);
    RUN(&ran, "initializer", one, base, other, adapters);
    EXPECT(1, "/other.bin'"); /* which one it was */
    ck_assert_str_eq(names_in(base), ".sluice adapters");
    sl_server_put(server, "/other.bin", weights, 7, "\"1\"");
    RUN(&ran, "initializer", one, base, other, adapters, one, base);
    EXPECT(0, "base/adapters");
    ck_assert_str_eq(names_in(base), "adapters one.bin");
    ck_assert_str_eq(names_in(adapters), "other.bin");
    sl_server_stop(server);
}

static void sign_local(EVP_PKEY *key)
{
    const struct oms_file file = {"model.bin", weights, sizeof(weights)};
    sl_autofree char *bundle = oms_sign(&(struct oms_wanted){.files = &file, .count = 1}, key);
    write_file("model.sig", bundle, strlen(bundle));
}

/* What is behind a link could change: it is copied, and refused if it was not signed. */
SL_TEST(the_environment_says_who_must_have_signed)
{
    char key_file[PATH_BYTES + 16];
    EVP_PKEY *key = oms_key(), *other = oms_key();
    snprintf(key_file, sizeof(key_file), "%s/key.pem", scratch);
    oms_put_key(key, key_file, false);
    write_file("model.bin", weights, sizeof(weights));
    setenv("SLUICE_SIGNED_BY", key_file, 1);
    RUN(&ran, "initializer", local, to);
    EXPECT(1, "the model is not signed");
    sign_local(other);
    RUN(&ran, "initializer", local, to);
    EXPECT(1, "signature 'model.sig'");
    sign_local(key);
    RUN(&ran, "initializer", local, to);
    EXPECT(0, "signed by key ");
    ck_assert_str_eq(names_in(to), "model.bin");
    ck_assert(holds("model.bin", weights, sizeof(weights)));
    struct stat status;
    snprintf(key_file, sizeof(key_file), "%s/model.bin", to);
    ck_assert(lstat(key_file, &status) == 0 && S_ISREG(status.st_mode));
    unsetenv("SLUICE_SIGNED_BY");
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
}

SL_TEST(a_mounted_folder_is_linked_or_copied)
{
    char whole[PATH_BYTES * 2], target[PATH_BYTES] = "", copy[PATH_BYTES * 2];
    struct stat status;
    write_file("weights.bin", weights, sizeof(weights));
    write_file("config.json", "{}", 2);
    write_file(".hidden", "x", 1);
    setenv("STORAGE_IGNORE_PATTERNS", "*.json", 1);
    RUN(&ran, "initializer", local, to);
    EXPECT(0, "as links");
    ck_assert_str_eq(names_in(to), "weights.bin");
    snprintf(whole, sizeof(whole), "%s/weights.bin", to);
    ck_assert_int_gt(readlink(whole, target, sizeof(target) - 1), 0);
    ck_assert(strncmp(target, local, strlen(local)) == 0);
    unsetenv("STORAGE_IGNORE_PATTERNS");
    snprintf(copy, sizeof(copy), "%s/copy", scratch);
    RUN(&ran, "initializer", "--local", "copy", "-v", local, copy);
    EXPECT(0, "2 files");
    ck_assert_str_eq(names_in(copy), "config.json weights.bin");
    snprintf(whole, sizeof(whole), "%s/copy/weights.bin", scratch);
    ck_assert_int_eq(lstat(whole, &status), 0);
    ck_assert(S_ISREG(status.st_mode));
    RUN(&ran, "initializer", "/mnt/models/none/such", to);
    EXPECT(0, "there is nothing to do");
}

/* Lists an object as it was before it was overwritten, for the first `stale` times. */
struct listing {
    unsigned stale, listed;
};

static bool list_stale(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    struct listing *listing = arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    ck_assert_int_gt(asprintf(&reply->body,
                              "<ListBucketResult><Contents><Key>m/weights.bin</Key><Size>%d</Size>"
                              "<ETag>&quot;%s&quot;</ETag></Contents></ListBucketResult>",
                              WEIGHTS_BYTES, listing->listed < listing->stale ? "old" : "new"),
                     0);
    listing->listed++;
    reply->body_bytes = strlen(reply->body);
    return true;
}

SL_TEST(what_is_overwritten_after_the_listing_is_listed_once_more)
{
    for (unsigned stale = 1; stale <= 2; stale++) {
        struct sl_server *server = sl_server_start();
        struct listing listing = {.stale = stale};
        sl_server_handle(server, list_stale, &listing);
        sl_server_put(server, "/bucket/m/weights.bin", weights, sizeof(weights), "\"new\"");
        setenv("AWS_ENDPOINT_URL", sl_server_url(server, ""), 1);
        setenv("awsAnonymousCredential", "true", 1);
        RUN(&ran, "initializer", "s3://bucket/m", to);
        if (stale == 1) {
            EXPECT(0, "listed once more");
            ck_assert(holds("weights.bin", weights, sizeof(weights)));
        } else {
            EXPECT(1, "changed");
        }
        unsetenv("AWS_ENDPOINT_URL");
        unsetenv("awsAnonymousCredential");
        sl_server_stop(server);
        ck_assert_uint_eq(listing.listed, 2);
    }
}

SL_TEST(a_login_page_is_no_model)
{
    static const char page[] = "\n<!DOCTYPE html><html>log in</html>";
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/model.joblib", page, sizeof(page) - 1, "\"1\"");
    sl_server_put(server, "/index.html", page, sizeof(page) - 1, "\"1\"");
    RUN(&ran, "initializer", sl_server_url(server, "/model.joblib"), to);
    EXPECT(1, "'model.joblib': it is a web page, not a model");
    ck_assert_str_eq(names_in(to), ".sluice");
    sl_server_put(server, "/models", page, sizeof(page) - 1, "\"1\""); /* a folder's listing */
    RUN(&ran, "load", sl_server_url(server, "/models"), "--to", local);
    EXPECT(10, "'models': it is a web page, not a model");
    EXPECT(10, "shows a folder: end its name with '/'");
    RUN(&ran, "initializer", sl_server_url(server, "/index.html"), to);
    EXPECT(0, "index.html");
    sl_server_stop(server);
}

SL_TEST(a_confidential_model_is_refused_by_name)
{
    setenv("CONFIDENTIAL_ENABLED", "true", 1);
    RUN(&ran, "initializer", local, to);
    EXPECT(1, "CONFIDENTIAL_ENABLED");
    unsetenv("CONFIDENTIAL_ENABLED");
}

struct once {
    char *arguments[4];
    int local;
};

static int initialize_once(void *arg, struct sl_err *err)
{
    struct once *once = arg;
    struct sl_initialized done[2];
    const struct sl_initializer job = {
        .arguments = once->arguments, .pair_count = 2, .local = once->local};
    return sl_initializer_run(&job, done, err);
}

SL_TEST(every_failing_allocation_is_survived)
{
    char one[PATH_BYTES + 32], other[PATH_BYTES + 8];
    struct sl_buf tar = archive();
    write_file("model.tar", tar.data, tar.used);
    sl_buf_release(&tar);
    snprintf(one, sizeof(one), "%s/model.tar", local);
    snprintf(other, sizeof(other), "%s/other", to);
    struct once once = {{one, to, local, other}, SL_INITIALIZER_LINK};
    ck_assert_uint_gt(golden_each_allocation(initialize_once, &once), 20);
    ck_assert(holds("1/weights.bin", weights, sizeof(weights)));
}

SL_CASE(.setup = setup, .teardown = teardown)
