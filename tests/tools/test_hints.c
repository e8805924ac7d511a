/* What people type who come from other tools, and what they are told. */
#include <check.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "run_sluice.h"

static struct ran ran;
static char folder[256];

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void setup(void)
{
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/sluice-hints-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    write_file("model.yaml", "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                             "source: {uri: ./x}\nsink: {tmpfs: {path: d}}\n");
    write_file("star.yaml", "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                            "source:\n  uri: ./x\n  include: *.safetensors\n");
    write_file("at.yaml", "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: @m}\n");
    write_file("x", "bytes");
    ck_assert_int_eq(symlink("nowhere", "dangling"), 0);
    ck_assert_int_eq(mkdir("theirs", 0755), 0);
    write_file("theirs/a", "");
    write_file("theirs/b", "");
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *at)
{
    (void)status;
    (void)type;
    (void)at;
    return remove(path);
}

static void teardown(void)
{
    ran_release(&ran);
    ck_assert_int_eq(chdir("/"), 0);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static const struct {
    const char *arguments[8];
    int exit_code;
    const char *words;
} hints[] = {
    {{"load", "model.yaml", "python", "serve.py"}, 2, "unless '--' stands before a command"},
    {{"version", "x"}, 2, "'x' is one operand too many: sluice version"},
    {{"wait", "d", "--timeout", "3"}, 2, "did you mean '--timeout-seconds'?"},
    {{"load", "star.yaml"}, 2, "star.yaml:6:12: a value that begins with '*' needs quotes"},
    {{"load", "at.yaml"}, 2, "at.yaml:3:18: a value that begins with '@' needs quotes"},
    {{"serve", "model.yaml"}, 2, "model.yaml:1:1: this is of kind 'Model'"},
    {{"load", "./*.safetensors", "--to", "d"}, 4, "'*' stands for itself in a URI"},
    {{"load", "./y", "--to", "d"}, 4, "there is no file './y': check the path"},
    {{"load", "./x", "--to", "dangling"}, 6, "or is a link to what is not"},
    {{"load", "https://huggingface.co/org/name", "--to", "d"}, 2, "write hf://org/name"},
    {{"load", "https://HuggingFace.co/org/name/tree/main", "--to", "d"}, 2, "write hf://org/name"},
    {{"load", "https://hf.co/org/name/", "--to", "d"}, 2, "write hf://org/name"},
    {{"load", "https://www.modelscope.cn/models/org/name/summary", "--to", "d"},
     2,
     "write ms://org/name"},
    {{"load", "oci://ghcr.io", "--to", "d"}, 2, "names a registry and no repository"},
    {{"load", "oci://ghcr.io:443", "--to", "d"}, 2, "names a registry and no repository"},
    {{"help", "lod"}, 2, "did you mean 'load'?"},
    {{"docs", "lod"}, 2, "did you mean 'load'?"},
    {{"docs", "load"}, 0, ""},
    {{"pull", "hf://org/name"}, 2, "unknown command 'pull', did you mean 'sluice load'?"},
    {{"cp", "s3://b/m/", "d"}, 2, "did you mean 'sluice load'?"},
    {{"upload", "d", "s3://b/m/"}, 2, "did you mean 'sluice convert'?"},
    {{"load", "-f", "model.yaml"}, 2, "unknown flag '-f': the spec stands alone"},
    {{"load", "--spec=model.yaml"}, 2, "unknown flag '--spec': the spec stands alone"},
    {{"load", "./x", "--dry-run"}, 2, "unknown flag '--dry-run': `sluice plan` says what"},
    {{"load", "s3://b/m/", "--no-sign-request"}, 2, "write --set source.s3.anonymous=true"},
    {{"load", "s3://b/m/", "--jobs", "4"}, 2, "unknown flag '--jobs', did you mean '--connect"},
    {{"load", "s3://b/m", "--recursive"}, 2, "a folder's URI ends with '/'"},
    {{"load", "./x", "-o", "d"}, 2, "unknown flag '-o', did you mean '--to'?"},
    {{"load", "s3//b/m", "--to", "d"}, 4, "a URI has a colon and two slashes: s3://b/m"},
    {{"pool", "ls", "--socket", "none"}, 7, "no socket 'none': is `sluice serve` running?"},
};

SL_TEST_LOOP(who_comes_from_elsewhere_is_told_what_to_write, 0, SL_COUNT(hints))
{
    run_copy(&ran, hints[_i].arguments);
    ck_assert_msg(strstr(ran.err, hints[_i].words), "'%s' in: %s", hints[_i].words, ran.err);
    ck_assert_msg(ran.exit_code == hints[_i].exit_code, "exit code %d: %s", ran.exit_code, ran.err);
    ck_assert_ptr_null(strstr(ran.err, "\x1b")); /* it is no terminal */
}

/* What looks like a page and is none is asked for, and is not there. */
SL_TEST(files_of_hubs_are_no_pages)
{
    static const char *const uris[] = {"https://huggingface.co/org/name/resolve/main/m.gguf",
                                       "https://huggingface.co/datasets/name",
                                       "https://huggingface.co/name",
                                       "https://huggingface.co.example/org/name"};
    setenv("https_proxy", "http://127.0.0.1:1", 1); /* nobody is asked */
    for (size_t i = 0; i < SL_COUNT(uris); i++) {
        RUN_COPY(&ran, "load", uris[i], "--to", "d", "--attempts", "1", "--unreachable-seconds",
                 "0");
        ck_assert_int_eq(ran.exit_code, 7);
        ck_assert_ptr_null(strstr(ran.err, "web page"));
    }
}

SL_TEST(the_flags_that_tools_of_s3_have_are_keys_of_the_spec)
{
    write_file("config", "[profile team]\nregion = eu-west-9\naws_access_key_id = a\n"
                         "aws_secret_access_key = b\n");
    setenv("AWS_CONFIG_FILE", "config", 1);
    RUN_COPY(&ran, "load", "s3://b/m/", "--to", "d", "--endpoint-url", "http://127.0.0.1:1",
             "--region", "eu-x", "--profile", "team", "--attempts", "1", "--unreachable-seconds",
             "0", "-v");
    ck_assert_int_eq(ran.exit_code, 7);
    ck_assert_msg(
        strstr(ran.err, "is at http://127.0.0.1:1/b (from source.s3.endpoint), region eu-x"), "%s",
        ran.err);
    RUN_COPY(&ran, "load", "s3://b/m/", "--to", "d", "--profile", "other");
    ck_assert_msg(strstr(ran.err, "profile 'other' is neither in"), "%s", ran.err);
}

/* Answers whatever comes as web servers answer what they do not understand, until it is killed. */
static pid_t start_plain_server(unsigned *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    pid_t child = fork();
    for (int peer; child == 0 && (peer = accept(fd, NULL, NULL)) >= 0; close(peer)) {
        static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
        char hello[4096];
        if (read(peer, hello, sizeof(hello)) <= 0 || write(peer, answer, sizeof(answer) - 1) < 0)
            break;
    }
    if (child == 0)
        _exit(1);
    close(fd);
    return child;
}

SL_TEST(a_server_without_tls_is_told_from_one_that_refuses_it)
{
    char uri[64];
    unsigned port;
    pid_t server = start_plain_server(&port);
    snprintf(uri, sizeof(uri), "https://127.0.0.1:%u/m", port);
    RUN(&ran, "load", uri, "--to", "d", "--attempts", "1", "--unreachable-seconds", "0");
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    ck_assert_int_eq(ran.exit_code, 7);
    ck_assert_msg(strstr(ran.err, "answers, but not in TLS: write http://127.0.0.1:"), "%s",
                  ran.err);
}

SL_TEST(files_of_others_are_counted)
{
    RUN_COPY(&ran, "status", "theirs");
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_msg(strncmp(ran.out, "theirs: 2 files, none published by sluice, on ", 46) == 0, "%s",
                  ran.out);
}

SL_TEST(the_version_is_what_short_flags_ask_for)
{
    RUN_COPY(&ran, "-V");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_int_eq(strncmp(ran.out, "sluice ", 7), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
