/* The commands load, plan, verify and wait as processes: operands, results, exit codes, signals. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "golden.h"
#include "json.h"
#include "model_maker.h"
#include "publish.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "skip.h"
#include "thread.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], path[PATH_BYTES], model[PATH_BYTES], spec[PATH_BYTES],
    out[PATH_BYTES], log_[PATH_BYTES];
static int scratch_fd;

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
    snprintf(path, sizeof(path), "%s/model", scratch);
    snprintf(model, sizeof(model), "%s/weights.safetensors", scratch);
    snprintf(spec, sizeof(spec), "%s/spec.yaml", scratch);
    snprintf(out, sizeof(out), "%s/out", scratch);
    snprintf(log_, sizeof(log_), "%s/log", scratch);
    uint8_t *data = sl_model_safetensors("a,b", 5000, &bytes);
    write_file(model, data, bytes);
    free(data);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    unsetenv("SLUICE_LISTEN");
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

static void write_spec(const char *source, const char *more)
{
    char text[4096];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
             "\"%s\"}\nsink: {tmpfs: {path: \"%s\"}}\n%s",
             source, path, more);
    write_file(spec, text, strlen(text));
}

#define EXPECT(ran, code, word)                                                                    \
    ck_assert_msg((ran).exit_code == (code) &&                                                     \
                      (strstr((ran).out, word) || strstr((ran).err, word)),                        \
                  "exit code %d\n%s\n%s", (ran).exit_code, (ran).out, (ran).err)

SL_TEST(a_uri_is_loaded_without_a_file)
{
    struct ran ran = {0};
    RUN(&ran, "load", model, "--to", path, "--json");
    EXPECT(ran, 0, "\"already\":false");
    json_t *result = sl_json_parse(ran.out, strlen(ran.out), "result", NULL);
    ck_assert_ptr_nonnull(result);
    ck_assert_str_eq(sl_json_get_string(result, "path"), path);
    ck_assert_uint_eq(sl_json_get_uint(result, "tensors", 0), 2);
    json_decref(result);
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path, "--json");
    EXPECT(ran, 0, "\"already\":true");
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "there already");
    ran_release(&ran);
}

SL_TEST(debug_shows_what_is_loaded_from_where_to_where)
{
    struct ran ran = {0};
    char to[PATH_BYTES + 32];
    snprintf(to, sizeof(to), "to the directory '%s', planned in ", path);
    RUN(&ran, "load", model, "--to", path);
    ck_assert_msg(!strstr(ran.err, "planned in"), "%s", ran.err);
    RUN(&ran, "load", model, "--to", path, "--log-level", "debug");
    EXPECT(ran, 0, to);
    EXPECT(ran, 0, " in 1 object of '");
    ran_release(&ran);
}

SL_TEST(usage_errors_say_what_to_add)
{
    struct ran ran = {0};
    RUN(&ran, "load", model);
    EXPECT(ran, 2, "--to DIR");
    ran_release(&ran);
    RUN(&ran, "load");
    ck_assert_int_eq(ran.exit_code, 2);
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path, "--stay", "--", "true");
    EXPECT(ran, 2, "--stay");
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path, "--");
    EXPECT(ran, 2, "command");
    ran_release(&ran);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", path);
    ck_assert_int_eq(ran.exit_code, 4);
    ran_release(&ran);
    RUN(&ran, "load", "ftp://x/y", "--to", path);
    ck_assert_int_eq(ran.exit_code, 2);
    ran_release(&ran);
}

static bool is_there(const char *name)
{
    return access(name, F_OK) == 0;
}

SL_TEST(a_load_that_brought_nothing_leaves_nothing)
{
    struct ran ran = {0};
    char deep[PATH_BYTES * 2], above[PATH_BYTES * 2], own[PATH_BYTES * 2];
    snprintf(above, sizeof(above), "%s/not", scratch);
    snprintf(deep, sizeof(deep), "%s/not/there//yet/", scratch);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", deep);
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert(!is_there(above));
    ran_release(&ran);
    /* What was there before stays, and so does what a load can go on with. */
    snprintf(own, sizeof(own), "%s/.sluice", path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", path);
    ck_assert(is_there(path) && !is_there(own));
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path);
    ck_assert_int_eq(ran.exit_code, 0);
    ran_release(&ran);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", path);
    ck_assert_int_eq(ran.exit_code, 4);
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "there already");
    ran_release(&ran);
}

SL_TEST(a_path_that_is_a_file_is_not_to_be_removed)
{
    struct ran ran = {0};
    char below[PATH_BYTES * 2];
    snprintf(below, sizeof(below), "%s/x", model);
    RUN(&ran, "load", model, "--to", "/etc/hostname");
    EXPECT(ran, 2, "'/etc/hostname' is not a directory: choose a directory");
    ck_assert_ptr_null(strstr(ran.err, "remove"));
    ran_release(&ran);
    RUN(&ran, "load", "/etc/hostname", "--to", below);
    EXPECT(ran, 2, "lies below something that is not a directory");
    ran_release(&ran);
}

SL_TEST(what_is_no_path_makes_no_folder)
{
    static const char *const words[] = {"s3://bucket/x", "~/models", "~", "file:///x"};
    struct ran ran = {0};
    char here[PATH_BYTES], text[1024];
    ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
    ck_assert_int_eq(chdir(scratch), 0);
    setenv("HOME", "/home/me", 1);
    for (size_t i = 0; i < SL_COUNT(words); i++) {
        const char *says = *words[i] == '~' ? "'~' is not replaced in" : "is not a directory";
        RUN(&ran, "load", model, "--to", words[i]);
        EXPECT(ran, 2, says);
        ran_release(&ran);
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
                 "\"%s\"}\nsink: {tmpfs: {path: \"%s\"}}\n",
                 model, words[i]);
        write_file(spec, text, strlen(text));
        RUN(&ran, "load", spec);
        EXPECT(ran, 2, says);
        ran_release(&ran);
        RUN(&ran, "initializer", model, words[i]);
        EXPECT(ran, 1, says);
        ran_release(&ran);
    }
    RUN(&ran, "load", model, "--to", "~/models");
    EXPECT(ran, 2, "write /home/me/models");
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", "/dev/null");
    EXPECT(ran, 2, "'/dev/null' is not a directory");
    ck_assert_ptr_null(strstr(ran.err, "warning"));
    ran_release(&ran);
    ck_assert(!is_there("~") && !is_there("s3:") && !is_there("file:"));
    RUN(&ran, "load", model, "--to", "./~");
    EXPECT(ran, 0, "");
    ran_release(&ran);
    ck_assert_int_eq(chdir(here), 0);
}

SL_TEST(of_several_models_each_failure_is_said_when_it_happens)
{
    struct ran ran = {0};
    char text[4096];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: gone}\nsource: {uri: "
             "/nowhere/a}\nsink: {tmpfs: {path: \"%s/a\"}}\n---\napiVersion: "
             "sluice/v1alpha1\nkind: Model\nmetadata: {name: lost}\nsource: {uri: "
             "/nowhere/b}\nsink: {tmpfs: {path: \"%s/b\"}}\n",
             scratch, scratch);
    write_file(spec, text, strlen(text));
    RUN(&ran, "load", spec);
    EXPECT(ran, 4, "2 of 2 models are not loaded: model 'gone': ");
    EXPECT(ran, 4, "error: model 'gone': ");
    EXPECT(ran, 4, "error: model 'lost': ");
    ran_release(&ran);
}

SL_TEST(of_several_models_each_is_told_in_json)
{
    struct ran ran = {0};
    char text[4096];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: gone}\nsource: {uri: "
             "/nowhere/a}\nsink: {tmpfs: {path: \"%s/a\"}}\n---\napiVersion: "
             "sluice/v1alpha1\nkind: Model\nmetadata: {name: there}\nsource: {uri: "
             "\"%s\"}\nsink: {tmpfs: {path: \"%s/b\"}}\n",
             scratch, model, scratch);
    write_file(spec, text, strlen(text));
    RUN(&ran, "load", spec, "--json");
    ck_assert_int_eq(ran.exit_code, 4);
    json_t *told = json_loads(ran.out, 0, NULL); /* one value */
    ck_assert_uint_eq(json_array_size(told), 2);
    const json_t *gone = json_array_get(told, 0), *there = json_array_get(told, 1);
    ck_assert_str_eq(json_string_value(json_object_get(gone, "name")), "gone");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(gone, "error"), "kind")),
                     "NOT_FOUND");
    ck_assert_str_eq(json_string_value(json_object_get(there, "name")), "there");
    ck_assert_ptr_null(json_object_get(there, "error"));
    ck_assert_int_gt(json_integer_value(json_object_get(there, "bytes")), 0);
    json_decref(told);
    ran_release(&ran);
}

SL_TEST(a_model_is_not_loaded_over_itself)
{
    struct ran ran = {0};
    char prefix[PATH_BYTES], below[PATH_BYTES];
    snprintf(prefix, sizeof(prefix), "%s/", scratch);
    snprintf(below, sizeof(below), "%s/weights", scratch);
    RUN(&ran, "load", prefix, "--to", below);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_int_eq(mkdir(below, 0755), 0);
    RUN(&ran, "load", prefix, "--to", scratch);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_msg(strstr(ran.err, "choose another directory") != NULL, "%s", ran.err);
    RUN(&ran, "load", prefix, "--to", below);
    ck_assert_int_eq(ran.exit_code, 2);
    RUN(&ran, "load", model, "--to", scratch);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert(!sl_model_exists(scratch, ".sluice"));
    RUN(&ran, "load", model, "--to", below);
    ck_assert_int_eq(ran.exit_code, 0);
    ran_release(&ran);
}

SL_TEST(a_model_is_not_loaded_over_itself_however_its_uri_is_spelled)
{
    static const char *const ways[] = {"file://%s/%s", "file:%s/%s", "file://localhost%s/%s"};
    struct ran ran = {0};
    char uri[PATH_BYTES];
    for (size_t i = 0; i < 2 * SL_COUNT(ways); i++) {
        const char *name = strrchr(scratch, '/') + 1;
        char place[PATH_BYTES];
        if (i % 2) /* its first letter by its number */
            snprintf(place, sizeof(place), "%.*s%%%02x%s", (int)(name - scratch), scratch,
                     (unsigned char)*name, name + 1);
        else
            snprintf(place, sizeof(place), "%s", scratch);
        snprintf(uri, sizeof(uri), ways[i / 2], place, "");
        RUN(&ran, "load", uri, "--to", scratch);
        ck_assert_msg(ran.exit_code == 2 && strstr(ran.err, "choose another directory"),
                      "%s: %d, %s", uri, ran.exit_code, ran.err);
        ck_assert(!sl_model_exists(scratch, ".sluice"));
    }
    ran_release(&ran);
}

SL_TEST(verify_says_that_nothing_is_published_yet)
{
    struct ran ran = {0};
    char state[PATH_BYTES * 2]; /* as a load that was killed leaves it */
    snprintf(state, sizeof(state), "%s/.sluice", path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_int_eq(mkdir(state, 0755), 0);
    RUN(&ran, "verify", path);
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_msg(strstr(ran.err, "nothing is published") != NULL, "%s", ran.err);
    ran_release(&ran);
}

SL_TEST(a_listing_that_fails_is_told_once)
{
    struct ran ran = {0};
    RUN(&ran, "load", "s3://bucket/m/", "--to", path, "--attempts", "1", "--unreachable-seconds",
        "0", "--set", "source.s3.endpoint=http://127.0.0.1:1", "--set", "source.s3.anonymous=true");
    ck_assert_int_eq(ran.exit_code, 7);
    const char *first = strstr(ran.err, "cannot list 's3://bucket/m/'");
    ck_assert_msg(first && !strstr(first + 1, "cannot list"), "%s", ran.err);
    ran_release(&ran);
}

SL_TEST(what_is_waited_for_is_told_early)
{
    const char *const words[] = {
        "load", "http://127.0.0.1:1/m.bin", "--to", path, "--unreachable-seconds", "3600", NULL};
    pid_t pid = start_sluice(words, out, log_);
    size_t bytes;
    char *text = NULL;
    SL_AWAIT((free(text), text = (char *)sl_model_read(scratch, "log", &bytes)) &&
                 strstr(text, "(readers.unreachableSeconds)"),
             "a warning");
    ck_assert_msg(strstr(text, "127.0.0.1:1") && strstr(text, "try 3, going on until "), "%s",
                  text);
    free(text);
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 143);
}

SL_TEST(a_spec_that_is_no_file_is_refused_at_once)
{
    struct ran ran = {0};
    ck_assert_int_eq(mkfifo(spec, 0600), 0);
    RUN(&ran, "load", spec);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_msg(strstr(ran.err, "is a pipe") && strstr(ran.err, "give a file"), "%s", ran.err);
    ck_assert_int_eq(unlink(spec), 0);
    ck_assert_int_eq(mkdir(spec, 0700), 0);
    RUN(&ran, "plan", spec);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_msg(strstr(ran.err, "is a directory") != NULL, "%s", ran.err);
    ran_release(&ran);
}

SL_TEST(a_spec_is_loaded_and_flags_go_over_it)
{
    struct ran ran = {0};
    char other[PATH_BYTES + 16];
    write_spec(model, "");
    RUN(&ran, "load", spec, "--connections", "2", "--range-bytes", "64Ki", "--name", "renamed");
    EXPECT(ran, 0, "renamed");
    ck_assert(sl_model_exists(path, "weights.safetensors"));
    ran_release(&ran);
    snprintf(other, sizeof(other), "%s-other", path);
    RUN(&ran, "load", spec, "--to", other);
    EXPECT(ran, 0, "model-other");
    ck_assert(sl_model_exists(other, "weights.safetensors"));
    ran_release(&ran);
}

SL_TEST(several_models_are_loaded_together)
{
    struct ran ran = {0};
    char text[4096];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: one}\nsource: {uri: "
             "\"%s\"}\nsink: {tmpfs: {path: \"%s/one\"}}\n"
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: two}\nsource: {uri: "
             "\"%s\"}\nsink: {tmpfs: {path: "
             "\"%s/two\"}}\n",
             model, scratch, model, scratch);
    write_file(spec, text, strlen(text));
    RUN(&ran, "load", spec, "--json");
    EXPECT(ran, 0, "\"name\":\"two\"");
    ck_assert(ran.out[0] == '[');
    ck_assert(sl_model_exists(scratch, "one/.sluice/ready") &&
              sl_model_exists(scratch, "two/.sluice/ready"));
    ran_release(&ran);
    RUN(&ran, "load", spec, "--to", path);
    EXPECT(ran, 2, "another model");
    ran_release(&ran);
}

SL_TEST(the_process_becomes_the_command)
{
    struct ran ran = {0};
    RUN(&ran, "load", model, "--to", path, "--", "sh", "-c", "echo \"got $1\"; exit 7", "sh",
        "a b;c");
    EXPECT(ran, 7, "got a b;c");
    ran_release(&ran);
    RUN(&ran, "load", model, "--to", path, "--", "/nowhere/command");
    EXPECT(ran, 4, "/nowhere/command");
    ran_release(&ran);
    RUN(&ran, "load", "/nowhere/model", "--to", path, "--", "sh", "-c", "echo started");
    ck_assert(ran.exit_code == 4 && !strstr(ran.out, "started"));
    ran_release(&ran);
}

/* While a request stalls that nothing but the signal ends. */
SL_TEST(sigterm_ends_a_load_with_143)
{
    struct sl_server *server = sl_server_start();
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 1);
    sl_server_put(server, "/w.bin", noise, bytes, "\"one\"");
    const struct sl_step stall[] = {
        {.first = 5, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1}};
    sl_server_script(server, stall, 1);
    const char *arguments[] = {"load",
                               sl_server_url(server, "/w.bin"),
                               "--to",
                               path,
                               "--range-bytes",
                               "128Ki",
                               "--connections",
                               "1",
                               "--progress",
                               "none",
                               "--stall-seconds",
                               "3600",
                               "--hedge",
                               "off",
                               NULL};
    pid_t pid = start_sluice(arguments, out, log_);
    SL_AWAIT(sl_server_request_count(server) >= 5, "the request that stalls");
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 143);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    ck_assert(sl_model_exists(path, ".sluice/staging/w.bin"));
    sl_server_script(server, NULL, 0);
    struct ran ran = {0};
    RUN(&ran, "load", arguments[1], "--to", path, "--json", "--progress", "none");
    json_t *result = sl_json_parse(ran.out, strlen(ran.out), "result", NULL);
    ck_assert_uint_ge(sl_json_get_uint(result, "resumed", 0), 128 * 1024);
    ck_assert(sl_model_same(path, "w.bin", noise, bytes));
    json_decref(result);
    ran_release(&ran);
    sl_server_stop(server);
    free(noise);
}

static unsigned count_logged(const char *words)
{
    size_t bytes;
    unsigned count = 0;
    char *text = (char *)sl_model_read(scratch, "log", &bytes);
    for (const char *at = text; at && (at = strstr(at, words)); at++)
        count++;
    free(text);
    return count;
}

static bool is_logged(const char *words)
{
    return count_logged(words) > 0;
}

SL_TEST(every_model_that_was_interrupted_says_where_it_resumes)
{
    static const char names[] = {'a', 'b'};
    struct sl_server *servers[SL_COUNT(names)];
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 1);
    const struct sl_step stall[] = {
        {.first = 5, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1}};
    char text[4096] = "";
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        servers[i] = sl_server_start();
        sl_server_put(servers[i], "/w.bin", noise, bytes, "\"one\"");
        sl_server_script(servers[i], stall, 1);
        snprintf(
            text + strlen(text), sizeof(text) - strlen(text),
            "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %c}\nsource: {uri: "
            "'%s'}\nsink: {tmpfs: {path: \"%s/%c\"}}\nreaders: {connections: 1, rangeBytes: "
            "128Ki, stallSeconds: 3600, hedge: 'off'}\n",
            names[i], sl_server_url(servers[i], "/w.bin"), scratch, names[i]);
    }
    write_file(spec, text, strlen(text));
    const char *arguments[] = {"load", spec, "--progress", "none", NULL};
    pid_t pid = start_sluice(arguments, out, log_);
    for (size_t i = 0; i < SL_COUNT(names); i++)
        SL_AWAIT(sl_server_request_count(servers[i]) >= 5, "the request that stalls");
    kill(pid, SIGINT);
    ck_assert_int_eq(wait_sluice(pid), 130);
    ck_assert_uint_eq(count_logged("model 'a': interrupted with "), 2); /* the command's own, too */
    ck_assert_uint_eq(count_logged("model 'b': interrupted with "), 1);
    ck_assert_uint_eq(count_logged("the next load resumes there"), 3);
    ck_assert_uint_eq(count_logged("failed"), 0);
    for (size_t i = 0; i < SL_COUNT(names); i++)
        sl_server_stop(servers[i]);
    free(noise);
}

SL_TEST(caches_are_named_by_a_flag_or_the_environment)
{
    enum { BYTES = 1024 * 1024 };
    struct ran ran = {0};
    char cache[128], bad[160];
    struct sl_server *origin = sl_server_start(), *between = sl_server_start();
    uint8_t *noise = sl_model_noise(BYTES, 3);
    sl_server_put(origin, "/w.bin", noise, BYTES, "\"one\"");
    sl_server_put(between, "/w.bin", noise, BYTES, "\"one\"");
    const char *url = sl_server_url(origin, "/w.bin");
    snprintf(cache, sizeof(cache), "%s", sl_server_url(between, ""));
    snprintf(bad, sizeof(bad), "%s/models", cache);
    RUN(&ran, "load", url, "--to", path, "--through", bad);
    EXPECT(ran, 2, "--through: a cache is named as http://HOST:PORT, and no more");
    RUN(&ran, "load", url, "--to", path, "--through", cache);
    EXPECT(ran, 2, "source.through.unverified");
    ck_assert_uint_eq(sl_server_request_count(between), 0);
    RUN(&ran, "load", url, "--to", path, "--through", cache, "--set",
        "source.through.unverified=warn");
    EXPECT(ran, 0, "have no hash");
    ck_assert(sl_model_same(path, "w.bin", noise, BYTES));
    unsigned asked = sl_server_request_count(between);
    ck_assert_uint_gt(asked, 0);
    sl_server_put(origin, "/w.bin", noise, BYTES, "\"two\"");
    sl_server_put(between, "/w.bin", noise, BYTES, "\"two\"");
    setenv("SLUICE_THROUGH", cache, 1);
    RUN(&ran, "load", url, "--to", path, "--set", "source.through.unverified=warn");
    EXPECT(ran, 0, "have no hash");
    ck_assert_uint_gt(sl_server_request_count(between), asked);
    unsetenv("SLUICE_THROUGH");
    ran_release(&ran);
    sl_server_stop(origin);
    sl_server_stop(between);
    free(noise);
}

SL_TEST(staying_without_an_address_is_warned_of)
{
    const char *arguments[] = {"load", model, "--to", path, "--stay", NULL};
    unsetenv("SLUICE_LISTEN");
    pid_t pid = start_sluice(arguments, out, log_);
    SL_AWAIT(is_logged("--stay keeps this process, but it serves nothing: add --listen ADDRESS"),
             "the warning");
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 0);
}

SL_TEST(a_sidecar_stays_until_sigterm_and_ends_well)
{
    struct sl_err err = SL_ERR_INIT;
    const char *arguments[] = {"load",   model,      "--to",        path,
                               "--stay", "--listen", "127.0.0.1:0", NULL};
    pid_t pid = start_sluice(arguments, out, log_);
    ck_assert_msg(sl_publish_wait(path, 120, NULL, &err) == 0, "%s", err.message);
    SL_AWAIT(is_logged("is in"), "the summary"); /* it is written after publishing */
    ck_assert(is_logged("health, metrics and the page: http://127.0.0.1:"));
    ck_assert(!is_logged("127.0.0.1:0/"));
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 0);
}

SL_TEST(plan_shows_figures_and_loads_nothing)
{
    struct ran ran = {0};
    write_spec(model, "");
    RUN(&ran, "plan", spec);
    EXPECT(ran, 0, "to fetch");
    ran_release(&ran);
    RUN(&ran, "plan", spec, "--json");
    EXPECT(ran, 0, "\"fits\":true");
    json_t *result = sl_json_parse(ran.out, strlen(ran.out), "result", NULL);
    ck_assert_ptr_nonnull(result);
    ck_assert_uint_eq(sl_json_get_uint(json_object_get(result, "plan"), "tensors", 0), 2);
    json_decref(result);
    ran_release(&ran);
    RUN(&ran, "plan", model);
    EXPECT(ran, 0, "safetensors");
    ck_assert_msg(!strstr(ran.out, "huge pages"), "of a few bytes: %s", ran.out);
    ran_release(&ran);
    ck_assert(!sl_model_exists(scratch, "model"));
}

SL_TEST(verify_reads_directories_and_objects)
{
    struct ran ran = {0};
    char tensors[PATH_BYTES], bad[PATH_BYTES];
    size_t bytes;
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "");
    ran_release(&ran);
    RUN(&ran, "verify", path);
    EXPECT(ran, 0, "1 right, 0 wrong");
    ran_release(&ran);
    RUN(&ran, "verify", model);
    EXPECT(ran, 0, "no hashes");
    ran_release(&ran);
    uint8_t *data = golden_read("tensorizer/v1-module.tensors.gz", &bytes);
    snprintf(tensors, sizeof(tensors), "%s/good.tensors", scratch);
    snprintf(bad, sizeof(bad), "%s/bad.tensors", scratch);
    write_file(tensors, data, bytes);
    RUN(&ran, "verify", tensors, "--json");
    EXPECT(ran, 0, "\"bad\":0");
    ran_release(&ran);
    uint8_t *place = NULL; /* a byte of tensor data: the last one that is not zero */
    for (place = data + bytes - 1; place > data && !*place; place--)
        ;
    *place ^= 1;
    write_file(bad, data, bytes);
    RUN(&ran, "verify", bad);
    EXPECT(ran, 5, "BAD");
    ran_release(&ran);
    RUN(&ran, "load", bad, "--to", path);
    EXPECT(ran, 5, "tensor '");
    ran_release(&ran);
    RUN(&ran, "load", bad, "--to", path, "--set", "verify.hashes=off");
    EXPECT(ran, 0, "without a hash");
    ran_release(&ran);
    free(data);
}

SL_TEST(wait_returns_when_published_or_out_of_time)
{
    struct ran ran = {0};
    RUN(&ran, "wait", path, "--timeout-seconds", "1");
    EXPECT(ran, 8, "not published");
    ran_release(&ran);
    const char *arguments[] = {"wait", path, "--json", NULL};
    pid_t pid = start_sluice(arguments, out, log_);
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "");
    ran_release(&ran);
    ck_assert_int_eq(wait_sluice(pid), 0);
    size_t bytes;
    uint8_t *text = sl_model_read(scratch, "out", &bytes);
    ck_assert_ptr_nonnull(strstr((char *)text, "\"identity\""));
    free(text);
}

SL_TEST(what_can_hold_no_model_is_not_waited_for)
{
    const char *const words[] = {"", "s3://bucket/x/", model};
    struct ran ran = {0};
    for (size_t i = 0; i < SL_COUNT(words); i++) {
        RUN(&ran, "wait", words[i], "--timeout-seconds", "1");
        EXPECT(ran, 2, "is not a path of a directory");
        ran_release(&ran);
        RUN(&ran, "wait", words[i], "--next", "--timeout-seconds", "1");
        EXPECT(ran, 2, "is not a path of a directory");
        ran_release(&ran);
    }
}

SL_TEST(wait_for_the_next_version_prints_which)
{
    struct ran ran = {0};
    char first[65], none[65]; /* no version: as long as one, since its begin is enough */
    snprintf(none, sizeof(none), "%064d", 0);
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "");
    ran_release(&ran);
    RUN(&ran, "wait", path, "--than", none);
    EXPECT(ran, 0, "");
    ck_assert_uint_eq(strspn(ran.out, "0123456789abcdef"), 64);
    snprintf(first, sizeof(first), "%s", ran.out);
    ran_release(&ran);
    RUN(&ran, "wait", path, "--next", "--timeout-seconds", "1");
    EXPECT(ran, 8, "another version of");
    ran_release(&ran);
    static const char *const wrong[] = {"v1", "", "AB"}; /* "": of a wait that failed */
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        RUN(&ran, "wait", path, "--than", wrong[i]);
        EXPECT(ran, 2, "is not a version");
        ran_release(&ran);
    }
    size_t bytes;
    uint8_t *data = sl_model_safetensors("another", 100, &bytes);
    write_file(model, data, bytes);
    free(data);
    RUN(&ran, "load", model, "--to", path);
    EXPECT(ran, 0, "");
    ran_release(&ran);
    RUN(&ran, "wait", path, "--than", first, "--timeout-seconds", "60");
    EXPECT(ran, 0, "");
    ck_assert_uint_eq(strspn(ran.out, "0123456789abcdef"), 64);
    ck_assert_int_ne(strncmp(ran.out, first, 64), 0);
    ran_release(&ran);
}

SL_TEST(an_s3cfg_that_trusts_anyone_is_warned_of)
{
    char s3cfg[PATH_BYTES], setting[PATH_BYTES + 64];
    const char *text = "[default]\naccess_key = k\nsecret_key = s\nhost_base = 127.0.0.1:1\n"
                       "use_https = True\ncheck_ssl_certificate = False\n";
    struct ran ran = {0};
    snprintf(s3cfg, sizeof(s3cfg), "%s/s3cfg", scratch);
    snprintf(setting, sizeof(setting), "source.s3.configFile=%s", s3cfg);
    write_file(s3cfg, text, strlen(text));
    RUN(&ran, "load", "s3://b/k.bin", "--to", path, "--attempts", "1", "--unreachable-seconds", "0",
        "--set", setting);
    ck_assert_int_eq(ran.exit_code, 7);
    ck_assert_msg(strstr(ran.err, "certificates are not verified") != NULL, "%s", ran.err);
    ck_assert_msg(strstr(ran.err, "check the name, the port") != NULL, "%s", ran.err);
    ran_release(&ran);
}

/* A thousand bytes of which nothing tells the version. */
static bool answer_bare(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    (void)request, (void)arg;
    reply->status = 206;
    reply->body_bytes = 1000;
    reply->body = calloc(1, reply->body_bytes);
    snprintf(reply->headers, sizeof(reply->headers), "Content-Range: bytes 0-999/1000\r\n");
    return true;
}

SL_TEST(an_object_without_any_version_is_warned_of)
{
    struct ran ran = {0};
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, answer_bare, NULL);
    RUN(&ran, "load", sl_server_url(server, "/bare.bin"), "--to", path);
    EXPECT(ran, 0, "neither ETag nor Last-Modified");
    EXPECT(ran, 0,
           "can neither resume nor skip it; give verify.sha256, or sidecars (`sluice sign`)");
    ran_release(&ran);
    RUN(&ran, "load", sl_server_url(server, "/bare.bin"), "--to", path, "--json");
    EXPECT(ran, 0, "neither ETag nor Last-Modified");
    ck_assert_ptr_nonnull(strstr(ran.out, "\"already\":false"));
    ck_assert_ptr_nonnull(strstr(ran.out, "\"unversioned\":1"));
    ran_release(&ran);
    sl_server_handle(server, NULL, NULL);
    sl_server_put(server, "/dated.bin", "x", 1, NULL);
    RUN(&ran, "load", sl_server_url(server, "/dated.bin"), "--to", out);
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_msg(!strstr(ran.err, "neither"), "%s", ran.err);
    ran_release(&ran);
    sl_server_stop(server);
}

static bool prepare(void)
{
    if (!getenv("SLUICE")) {
        sl_skipped("cmd_load", "SLUICE does not name the program");
        return false;
    }
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
