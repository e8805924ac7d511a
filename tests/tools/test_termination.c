/* The container's message: one clean line, at every end, and in no wrong place. */
#include "await.h"
#include "skip.h"
#include "termination.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "model_maker.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "thread.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], message[PATH_BYTES], model[PATH_BYTES],
    target[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    size_t bytes;
    scratch_fd = sl_scratch_open(scratch);
    snprintf(message, sizeof(message), "%s/message", scratch);
    snprintf(model, sizeof(model), "%s/weights.safetensors", scratch);
    snprintf(target, sizeof(target), "%s/model", scratch);
    uint8_t *data = sl_model_safetensors("a,b", 5000, &bytes);
    write_file(model, data, bytes);
    free(data);
    setenv("SLUICE_TERMINATION_LOG", message, 1);
    unsetenv("SLUICE_LISTEN");
    unsetenv("SLUICE_LOG_FORMAT");
    unsetenv("KUBERNETES_SERVICE_HOST");
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

static void expect_line(const char *text, const char *expected)
{
    char line[SL_TERMINATION_BYTES + 1];
    ck_assert_str_eq(sl_termination_line(text, line), expected);
}

/* What a run left: one line that begins so and holds the words. */
static void expect_message(int code, const char *begin, const char *word)
{
    size_t bytes;
    ck_assert_msg(ran.exit_code == code, "%d: %s", ran.exit_code, ran.err);
    char *text = (char *)sl_model_read(scratch, "message", &bytes);
    ck_assert_msg(text != NULL, "no message: %s", ran.err);
    ck_assert_uint_le(bytes, SL_TERMINATION_BYTES);
    ck_assert_msg(memchr(text, '\n', bytes) == text + bytes - 1, "%s", text);
    text[bytes - 1] = 0;
    ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0 && strstr(text, word), "%s", text);
    free(text);
    unlink(message);
}

/* ---- the line ------------------------------------------------------------------------------- */

SL_TEST(a_line_has_no_control_bytes)
{
    expect_line("", "\n");
    expect_line("a\nb\tc\x1b[31md\x7f", "a b c [31md \n");
    expect_line("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f\n");
    expect_line("bad\xff\xc3.\xe2\x82", "bad??.??\n");
}

SL_TEST(a_line_fits_and_ends_with_a_whole_character)
{
    char line[SL_TERMINATION_BYTES + 1];
    static char text[3 * SL_TERMINATION_BYTES];
    for (size_t before = 0; before < 4; before++) {
        memset(text, 'x', before);
        for (size_t i = before; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xe2\x82\xac", 3);
        sl_termination_line(text, line);
        size_t bytes = strlen(line);
        ck_assert_uint_le(bytes, SL_TERMINATION_BYTES);
        ck_assert_uint_gt(bytes, SL_TERMINATION_BYTES - 4);
        ck_assert_int_eq(line[bytes - 1], '\n');
        ck_assert_uint_eq((bytes - 1 - before) % 3, 0);
    }
}

SL_TEST(urls_lose_users_and_queries)
{
    expect_line("cannot open 'https://h/m?X-Amz-Signature=abc&x=1': 403",
                "cannot open 'https://h/m?\xe2\x80\xa6': 403\n");
    expect_line("at http://user:pass@h:80/a then redis://:pw@r/0?x done",
                "at http://\xe2\x80\xa6@h:80/a then redis://\xe2\x80\xa6@r/0?\xe2\x80\xa6 done\n");
    expect_line("s3://bucket/a@b is there, did you mean 'x'?",
                "s3://bucket/a@b is there, did you mean 'x'?\n");
    expect_line("http://a@b@c/d", "http://\xe2\x80\xa6@c/d\n");
    expect_line("://", "://\n");
    expect_line("x://?", "x://?\xe2\x80\xa6\n");
}

/* ---- every end ------------------------------------------------------------------------------ */

SL_TEST(success_says_what_was_published)
{
    RUN(&ran, "load", model, "--to", target);
    expect_message(0, "ok: 'weights' is in ", "KiB in ");
    RUN(&ran, "load", model, "--to", target, "--", "true");
    expect_message(0, "ok: ", "there already");
    RUN(&ran, "load", model, "--to", target, "--", "sh", "-c", "exit 7");
    expect_message(7, "ok: ", "; then 'sh' took over");
    RUN(&ran, "load", model, "--to", target, "--", "./no-such-command");
    expect_message(4, "error NOT_FOUND: ", "no-such-command");
}

SL_TEST(commands_with_nothing_to_say_say_so)
{
    RUN(&ran, "version");
    expect_message(0, "ok: sluice version", "");
    RUN(&ran, "load", "--help");
    expect_message(0, "ok: sluice load", "");
    RUN(&ran, "verify", model);
    expect_message(0, "ok: sluice verify", "");
    run_sluice(&ran, (const char *const[]){NULL});
    expect_message(2, "error: sluice without a command ended with 2", "");
}

SL_TEST(mistakes_are_told_and_the_first_of_many_by_name)
{
    static const char text[] =
        "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {urii: /m}\n"
        "sink: {tmpfs: {path: /t}}\nlisten: [a]\n";
    char spec[PATH_BYTES];
    snprintf(spec, sizeof(spec), "%s/spec.yaml", scratch);
    write_file(spec, text, strlen(text));
    RUN(&ran, "load", spec);
    expect_message(2, "error USAGE: ", "the first is: ");
    RUN(&ran, "load", spec);
    expect_message(2, "error USAGE: ", "'urii'");
    RUN(&ran, "load", "--no-such-flag");
    expect_message(2, "error USAGE: unknown flag", "");
    RUN(&ran, "frobnicate");
    expect_message(2, "error USAGE: unknown command", "");
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", target);
    expect_message(4, "error NOT_FOUND: ", "");
}

SL_TEST(a_file_beyond_the_limit_is_told_like_any_that_cannot_be_written)
{
    struct rlimit usual, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &usual), 0);
    small = (struct rlimit){8192, usual.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    RUN(&ran, "load", model, "--to", target);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &usual), 0);
    expect_message(6, "error NO_SPACE: ", "ulimit -f");
}

SL_TEST(the_last_line_of_the_log_is_the_diagnosis)
{
    setenv("SLUICE_LOG_FORMAT", "json", 1);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", target, "--log-level", "trace");
    char *end = strrchr(ran.err, '\n');
    ck_assert_ptr_nonnull(end);
    *end = 0;
    const char *last = strrchr(ran.err, '\n');
    last = last ? last + 1 : ran.err;
    ck_assert_msg(strstr(last, "\"level\":\"error\"") && strstr(last, "/nowhere/at/all.bin"), "%s",
                  last);
}

SL_TEST(a_stopped_load_says_what_is_kept)
{
    struct sl_server *server = sl_server_start();
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 1);
    sl_server_put(server, "/w.bin", noise, bytes, "\"one\"");
    const struct sl_step stall[] = {
        {.first = 5, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1}};
    sl_server_script(server, stall, 1);
    char url[PATH_BYTES];
    snprintf(url, sizeof(url), "%s?token=secret", sl_server_url(server, "/w.bin"));
    const char *arguments[] = {"load",          url, "--to", target, "--range-bytes", "128Ki",
                               "--connections", "1", NULL};
    pid_t pid = start_sluice(arguments, "/dev/null", "/dev/null");
    SL_AWAIT(sl_server_request_count(server) >= 5, "the fifth request");
    kill(pid, SIGTERM);
    ran.exit_code = wait_sluice(pid);
    expect_message(143, "error CANCELED: model ", "the next load resumes there");
    sl_server_stop(server);
    free(noise);
}

SL_TEST(no_secret_of_a_url_is_told)
{
    RUN(&ran, "load", "http://user:hidden@127.0.0.1:1/m.bin?sig=hidden", "--to", target,
        "--attempts", "1", "--unreachable-seconds", "0");
    ck_assert_msg(!strstr(ran.err, "hidden"), "%s", ran.err);
    char *text = (char *)sl_model_read(scratch, "message", &(size_t){0});
    ck_assert_msg(text && !strstr(text, "hidden"), "%s", text ? text : "");
    free(text);
}

/* ---- the place ------------------------------------------------------------------------------ */

SL_TEST(only_a_regular_file_is_written)
{
    char victim[PATH_BYTES], pipe_path[PATH_BYTES];
    struct stat status;
    snprintf(victim, sizeof(victim), "%s/victim", scratch);
    snprintf(pipe_path, sizeof(pipe_path), "%s/pipe", scratch);
    write_file(victim, "keep", 4);
    ck_assert_int_eq(symlink(victim, message), 0);
    RUN(&ran, "version");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_int_eq(stat(victim, &status), 0);
    ck_assert_int_eq(status.st_size, 4);
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    setenv("SLUICE_TERMINATION_LOG", pipe_path, 1);
    RUN(&ran, "version");
    ck_assert_int_eq(ran.exit_code, 0);
}

SL_TEST(a_place_that_cannot_be_written_is_no_failure)
{
    static const char *const places[] = {"/nonexistent/message", "/proc/version", "/", "/dev/full",
                                         "off"};
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        setenv("SLUICE_TERMINATION_LOG", places[i], 1);
        RUN(&ran, "version");
        ck_assert_msg(ran.exit_code == 0 && !*ran.err, "%s: %s", places[i], ran.err);
    }
    ck_assert_int_ne(access("off", F_OK), 0);
}

SL_TEST(an_older_longer_message_is_gone)
{
    char old[3000];
    memset(old, 'o', sizeof(old));
    write_file(message, old, sizeof(old));
    RUN(&ran, "version");
    expect_message(0, "ok: sluice version", "");
}

static bool prepare(void)
{
    if (!getenv("SLUICE")) {
        sl_skipped("termination", "SLUICE does not name the program");
        return false;
    }
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
