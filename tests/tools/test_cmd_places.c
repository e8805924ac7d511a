/* What is where: the commands ls, status, rm, init, plan --format pod and doctor as processes. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "json.h"
#include "model_maker.h"
#include "range_certificate.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], model[PATH_BYTES], out[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(model, sizeof(model), "%s/m", scratch);
    snprintf(out, sizeof(out), "%s/out", scratch);
    ck_assert_int_eq(mkdir(model, 0755), 0);
    write_file(model, "config.json", "{}");
    write_file(model, "words.txt", "hello");
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    unsetenv("KUBERNETES_SERVICE_HOST");
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && (strstr(ran.out, word) || strstr(ran.err, word)),     \
                  "exit code %d\n%s\n%s", ran.exit_code, ran.out, ran.err)

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* ---- ls -------------------------------------------------------------------------------------- */

SL_TEST(a_folder_is_listed_with_sizes_and_formats)
{
    RUN(&ran, "ls", model);
    EXPECT(0, "2 objects");
    EXPECT(0, "5 bytes");
    EXPECT(0, "words.txt");
    RUN(&ran, "ls", model, "--json");
    json_t *list = sl_json_parse(ran.out, strlen(ran.out), "list", NULL);
    ck_assert_uint_eq(json_array_size(list), 2);
    ck_assert_str_eq(sl_json_get_string(json_array_get(list, 0), "name"), "config.json");
    ck_assert_uint_eq(sl_json_get_uint(json_array_get(list, 1), "bytes", 0), 5);
    json_decref(list);
    RUN(&ran, "ls", "/nowhere/at/all");
    ck_assert_int_eq(ran.exit_code, 4);
}

SL_TEST(an_object_without_a_listing_is_shown_with_its_version)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/m.safetensors", "12345678", 8, "\"v7\"");
    RUN(&ran, "ls", sl_server_url(server, "/m.safetensors"));
    EXPECT(0, "v7");
    EXPECT(0, "safetensors");
    EXPECT(0, "1 object\n");
    sl_server_stop(server);
}

#define LISTING(keys)                                                                              \
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>false"       \
    "</IsTruncated>" keys "</ListBucketResult>"
#define KEY(name) "<Contents><Key>" name "</Key><Size>3</Size><ETag>&quot;e&quot;</ETag></Contents>"

/* A bucket whose only folder is m/. */
static bool bucket(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    ck_assert_int_gt(
        asprintf(&reply->body, "%s", LISTING(KEY("m/a") KEY("m/b.gguf") KEY("mother"))), 0);
    reply->body_bytes = strlen(reply->body);
    return true;
}

/* A load would try for a minute, and warn of that. */
SL_TEST(a_store_that_is_not_there_is_soon_given_up)
{
    static const char *const commands[] = {"ls", "inspect", "plan"};
    char said[SL_COUNT(commands)][PATH_BYTES * 2];
    pid_t pids[SL_COUNT(commands)];
    for (size_t i = 0; i < SL_COUNT(commands); i++) { /* side by side: each waits for two seconds */
        snprintf(said[i], sizeof(said[i]), "%s/said%zu", scratch, i);
        pids[i] = start_sluice(
            (const char *const[]){commands[i], "http://127.0.0.1:1/m.safetensors", NULL},
            "/dev/null", said[i]);
    }
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        char text[4096] = "";
        int code = wait_sluice(pids[i]);
        FILE *file = fopen(said[i], "r");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_gt(fread(text, 1, sizeof(text) - 1, file), 0);
        fclose(file);
        ck_assert_msg(code == 7 && strstr(text, "connection refused") &&
                          !strstr(text, "going on until"),
                      "%s: %d: %s", commands[i], code, text);
    }
}

SL_TEST(a_name_without_its_slash_stands_for_what_lies_below_it)
{
    struct sl_server *server = sl_server_start();
    char endpoint[200];
    snprintf(endpoint, sizeof(endpoint), "source.s3.endpoint=%s", sl_server_url(server, ""));
    sl_server_handle(server, bucket, NULL);
    RUN(&ran, "ls", "s3://bucket/m", "--set", endpoint, "--set", "source.s3.anonymous=true");
    EXPECT(0, "m/a");
    EXPECT(0, "gguf");
    EXPECT(0, "2 objects");
    ck_assert_ptr_null(strstr(ran.out, "mother"));
    /* A load is told the same. */
    RUN(&ran, "load", "s3://bucket/m", "--to", out, "--set", endpoint, "--set",
        "source.s3.anonymous=true");
    EXPECT(4, "2 objects below 's3://bucket/m/': add the slash");
    ck_assert(!is_there(out));
    sl_server_stop(server);
}

SL_TEST(what_lies_beside_a_missing_file_is_not_looked_at)
{
    char missing[PATH_BYTES * 2], fifo[PATH_BYTES * 2];
    snprintf(missing, sizeof(missing), "%s/missing", scratch);
    snprintf(fifo, sizeof(fifo), "%s/fifo", model);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    RUN(&ran, "load", missing, "--to", out);
    EXPECT(4, "there is no file '");
    ck_assert_ptr_null(strstr(ran.err, "left out"));
    ck_assert(!is_there(out));
}

/* ---- status and rm --------------------------------------------------------------------------- */

SL_TEST(a_published_model_is_shown_and_removed)
{
    RUN(&ran, "status", out);
    ck_assert_int_eq(ran.exit_code, 4);
    RUN(&ran, "rm", out);
    EXPECT(4, "nothing was removed");
    RUN(&ran, "load", model, "--to", out, "--name", "words");
    ck_assert_int_eq(ran.exit_code, 0);
    RUN(&ran, "status", out, "--json");
    EXPECT(0, "\"state\":\"published\"");
    EXPECT(0, "\"files\":2");
    RUN(&ran, "status", out);
    EXPECT(0, "2 files");
    RUN(&ran, "rm", out);
    EXPECT(0, "removed words");
    ck_assert(!is_there(out));
}

/* Who makes a folder makes its manifest, too. */
SL_TEST(what_a_manifest_says_cannot_move_the_cursor)
{
    char path[PATH_BYTES * 2];
    size_t bytes;
    snprintf(path, sizeof(path), "%s/.sluice", out);
    RUN(&ran, "load", model, "--to", out, "--name", "words");
    ck_assert_int_eq(ran.exit_code, 0);
    sl_autofree char *text = (char *)sl_model_read(path, "manifest.json", &bytes);
    sl_autofree char *hostile = malloc(bytes + 64);
    ck_assert(text && hostile);
    char *name = memmem(text, bytes, "\"words\"", 7);
    ck_assert_ptr_nonnull(name);
    snprintf(hostile, bytes + 64, "%.*s\"\\u001b[2J\\u202e\\nwords\"%.*s", (int)(name - text), text,
             (int)(text + bytes - name - 7), name + 7);
    snprintf(path, sizeof(path), "%s/.sluice/manifest.json", out);
    ck_assert_int_eq(unlink(path), 0);
    write_file(out, ".sluice/manifest.json", hostile);
    RUN(&ran, "status", out);
    EXPECT(0, "?[2J");
    ck_assert(!strpbrk(ran.out, "\x1b") && !strstr(ran.out, "\u202e"));
    RUN(&ran, "rm", out);
    EXPECT(0, "removed ?[2J");
    ck_assert(!strpbrk(ran.out, "\x1b") && !strstr(ran.out, "\u202e"));
}

/* As `--to "$DIR/"` is while DIR is not set. The model is not there, so that nothing is written
 * where this check is missing. */
SL_TEST(a_model_is_not_loaded_into_the_root_directory)
{
    static const char *const ways[] = {"/", "//", "/dev/..", "/proc/self/root"};
    for (size_t i = 0; i < SL_COUNT(ways); i++) {
        RUN(&ran, "load", "/nowhere/at/all.bin", "--to", ways[i]);
        EXPECT(2, "is the root directory: give the model one of its own");
    }
}

/* The sentence of a command that failed, without the model's name. */
static void keep_refusal(char text[1024])
{
    const char *said = strstr(ran.err, "error: "),
               *name = said ? strstr(said, "model 'm': ") : NULL;
    snprintf(text, 1024, "%d %s", ran.exit_code, name ? name + 11 : said ? said + 7 : ran.err);
}

/* Whatever is wrong with a place, plan says it as a load would, and makes nothing. */
SL_TEST(plan_refuses_the_places_that_a_load_refuses)
{
    char folder[PATH_BYTES * 2], state[PATH_BYTES * 3], lock[PATH_BYTES * 3];
    char planned[1024], loaded[1024];
    snprintf(folder, sizeof(folder), "%s/foreign", scratch);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    snprintf(state, sizeof(state), "%s/words.txt", folder);
    ck_assert_int_eq(mkdir(state, 0755), 0); /* in the way of a file of the model */
    snprintf(state, sizeof(state), "%s/linked", scratch);
    ck_assert_int_eq(mkdir(state, 0755), 0);
    snprintf(state, sizeof(state), "%s/linked/.sluice", scratch);
    ck_assert_int_eq(symlink("/etc", state), 0);
    write_file(scratch, "file", "");
    const char *const places[] = {"foreign", "linked",  "file",          "file/below",
                                  "m",       "m/below", "daemons/model", "new"};
    snprintf(folder, sizeof(folder), "%s/daemons", scratch);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    snprintf(lock, sizeof(lock), "%s/.lock", folder);
    sl_autoclose int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        snprintf(folder, sizeof(folder), "%s/%s", scratch, places[i]);
        bool there = is_there(folder);
        RUN(&ran, "plan", model, "--to", folder);
        keep_refusal(planned);
        ck_assert_msg(is_there(folder) == there, "%s", folder);
        RUN(&ran, "load", model, "--to", folder);
        keep_refusal(loaded);
        bool refused = i + 1 < SL_COUNT(places);
        ck_assert_msg((ran.exit_code != 0) == refused, "%s: %s", folder, loaded);
        ck_assert_msg(refused ? strcmp(planned, loaded) == 0 : *planned == '0', "%s: %s, not %s",
                      folder, planned, loaded);
    }
}

SL_TEST(no_folder_is_made_on_the_way_to_the_root_directory)
{
    char made[PATH_BYTES * 2], to[PATH_BYTES * 4];
    snprintf(made, sizeof(made), "%s/never-made", out);
    size_t used = (size_t)snprintf(to, sizeof(to), "%s/./deep", made), depth = 0;
    for (size_t i = 0; i < used; i++)
        depth += to[i] == '/';
    for (; depth > 1; depth--) /* one less: "/." is not a level */
        used += (size_t)snprintf(to + used, sizeof(to) - used, "/..");
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", to);
    EXPECT(2, "is the root directory: give the model one of its own");
    ck_assert(!is_there(made));
}

SL_TEST(what_is_not_ours_stays)
{
    char other[PATH_BYTES * 2], state[PATH_BYTES * 2];
    snprintf(other, sizeof(other), "%s/other", out);
    snprintf(state, sizeof(state), "%s/.sluice", out);
    RUN(&ran, "load", model, "--to", out);
    write_file(out, "other", "mine");
    RUN(&ran, "rm", out, "--json");
    EXPECT(0, "\"directory_left\":true");
    ck_assert(is_there(other) && !is_there(state));
    RUN(&ran, "status", out);
    EXPECT(4, "1 file, none published by sluice");
    RUN(&ran, "rm", model);
    EXPECT(4, "no model of sluice");
    ck_assert(is_there(model));
}

SL_TEST(changed_files_are_said_and_removed_only_by_force)
{
    char words[PATH_BYTES * 2];
    snprintf(words, sizeof(words), "%s/words.txt", out);
    RUN(&ran, "load", model, "--to", out);
    ck_assert_int_eq(chmod(words, 0644), 0);
    write_file(out, "words.txt", "changed");
    RUN(&ran, "status", out);
    EXPECT(5, "not those that were published");
    RUN(&ran, "rm", out);
    EXPECT(5, "nothing was removed");
    ck_assert(is_there(words));
    RUN(&ran, "rm", out, "--force");
    EXPECT(0, " file");
    ck_assert_msg(!strstr(ran.out, "unfinished"), "%s", ran.out);
    ck_assert(!is_there(out));
}

SL_TEST(a_load_at_work_is_seen_and_left_alone)
{
    char lock[PATH_BYTES * 2], staging[PATH_BYTES * 2];
    snprintf(lock, sizeof(lock), "%s/.sluice", out);
    ck_assert_int_eq(mkdir(out, 0755), 0);
    ck_assert_int_eq(mkdir(lock, 0755), 0);
    snprintf(staging, sizeof(staging), "%s/.sluice/staging", out);
    ck_assert_int_eq(mkdir(staging, 0700), 0);
    write_file(staging, "part", "some bytes");
    snprintf(lock, sizeof(lock), "%s/.sluice/lock", out);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "status", out);
    EXPECT(4, "a load is at work");
    RUN(&ran, "rm", out);
    EXPECT(2, "a load is at work");
    ck_assert(is_there(staging));
    close(fd);
    RUN(&ran, "status", out);
    EXPECT(4, "an interrupted load left");
    RUN(&ran, "rm", out);
    EXPECT(0, "removed an unfinished load from ");
    ck_assert_msg(!strstr(ran.out, ": 0 bytes") && !strstr(ran.out, "file"), "%s", ran.out);
    ck_assert(!is_there(staging));
}

/* What an initializer has fetched so far is not yet what is published; nor is it nobody's. */
SL_TEST(an_initializer_at_work_is_seen_and_left_alone)
{
    char work[PATH_BYTES * 2], lock[PATH_BYTES * 2 + 8], left[PATH_BYTES * 2 + 8];
    snprintf(work, sizeof(work), "%s/.sluice", out);
    ck_assert_int_eq(mkdir(out, 0755) + mkdir(work, 0755), 0);
    snprintf(work, sizeof(work), "%s/.sluice/initializer", out);
    ck_assert_int_eq(mkdir(work, 0755), 0);
    write_file(work, "0.mark", "half");
    snprintf(left, sizeof(left), "%s/0.mark", work);
    snprintf(lock, sizeof(lock), "%s/.sluice/lock", out);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "status", out);
    EXPECT(4, "a load is at work");
    RUN(&ran, "rm", out, "--force");
    EXPECT(2, "an initializer is at work");
    ck_assert(is_there(left));
    close(fd);
    RUN(&ran, "status", out);
    EXPECT(4, "an interrupted load left");
    RUN(&ran, "rm", out);
    EXPECT(0, "removed an unfinished load");
    ck_assert(!is_there(out));
}

SL_TEST(a_daemons_model_is_not_removed_behind_its_back)
{
    char lock[PATH_BYTES * 2];
    RUN(&ran, "load", model, "--to", out);
    snprintf(lock, sizeof(lock), "%s/.lock", scratch);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "rm", out);
    EXPECT(2, "belongs to the node daemon");
    close(fd);
    RUN(&ran, "rm", out);
    ck_assert_int_eq(ran.exit_code, 0);
}

SL_TEST(what_a_daemon_that_has_ended_left_goes_at_once)
{
    char node[PATH_BYTES], path[PATH_BYTES * 2];
    snprintf(node, sizeof(node), "%s/node", scratch);
    const char *const folders[] = {"", "/one", "/two", "/two/other"};
    for (size_t i = 0; i < SL_COUNT(folders); i++) {
        snprintf(path, sizeof(path), "%s%s", node, folders[i]);
        ck_assert_int_eq(mkdir(path, 0755), 0);
    }
    write_file(path, "mine", "mine");
    const char *const versions[] = {"one/0123456789abcdef", "one/4567456745674567",
                                    "two/89abcdef01234567"};
    for (size_t i = 0; i < SL_COUNT(versions); i++) {
        snprintf(path, sizeof(path), "%s/%s", node, versions[i]);
        RUN(&ran, "load", model, "--to", path);
        ck_assert_int_eq(ran.exit_code, 0);
    }
    snprintf(path, sizeof(path), "%s/one", node);
    write_file(path, "model.yaml", "kept");
    write_file(path, "0123456789abcdef.whole", "");
    snprintf(path, sizeof(path), "%s/one/current", node);
    ck_assert_int_eq(symlink("4567456745674567", path), 0);
    RUN(&ran, "rm", node);
    EXPECT(4, "no model of sluice"); /* nothing says that it is a node's */
    write_file(node, ".lock", "");
    snprintf(path, sizeof(path), "%s/.lock", node);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "rm", node);
    EXPECT(2, "a node daemon runs in");
    close(fd);
    char records[PATH_BYTES * 2], record[PATH_BYTES * 2 + 16];
    snprintf(records, sizeof(records), "%s/.volumes", node);
    snprintf(record, sizeof(record), "%s/00.json", records);
    ck_assert_int_eq(mkdir(records, 0755), 0);
    write_file(records, "00.json", "{}");
    RUN(&ran, "rm", node);
    EXPECT(2, "volumes of pods (1) show models of");
    ck_assert_int_eq(unlink(record), 0);
    ck_assert_int_eq(rmdir(records), 0);
    RUN(&ran, "rm", node);
    EXPECT(0, "removed 3 models from ");
    snprintf(path, sizeof(path), "%s/two/other/mine", node);
    ck_assert(is_there(path));
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/one", node);
    ck_assert(!is_there(path));
    write_file(node, ".lock", "");
    snprintf(path, sizeof(path), "%s/two/other", node);
    ck_assert_int_eq(rmdir(path), 0);
    snprintf(path, sizeof(path), "%s/%s", node, versions[2]);
    RUN(&ran, "load", model, "--to", path);
    ck_assert_int_eq(ran.exit_code, 0);
    RUN(&ran, "rm", node, "--json");
    EXPECT(0, "\"directory_left\":false");
    ck_assert(!is_there(node));
}

/* Other programs have a .lock, and other people a model.yaml. */
SL_TEST(a_directory_that_only_looks_like_a_daemons_stays_as_it_is)
{
    static const char *const names[] = {".lock", "n/model.yaml", "n/current", "n/mine/words.txt"};
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof(path), "%s/n/mine", scratch);
    RUN(&ran, "load", model, "--to", path); /* no daemon calls a version so */
    ck_assert_int_eq(ran.exit_code, 0);
    write_file(scratch, ".lock", "");
    snprintf(path, sizeof(path), "%s/n", scratch);
    write_file(path, "model.yaml", "mine");
    snprintf(path, sizeof(path), "%s/n/current", scratch);
    ck_assert_int_eq(symlink("mine", path), 0);
    RUN(&ran, "rm", scratch);
    EXPECT(4, "no model of sluice");
    RUN(&ran, "rm", scratch, "--force");
    EXPECT(4, "no model of sluice");
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", scratch, names[i]);
        ck_assert_msg(is_there(path), "%s", path);
    }
}

/* It has one lock for all of its directory, and none for a load. */
SL_TEST(a_daemons_load_is_seen_and_left_alone)
{
    char name[PATH_BYTES * 2];
    ck_assert_int_eq(mkdir(out, 0755), 0);
    snprintf(name, sizeof(name), "%s/.sluice", out);
    ck_assert_int_eq(mkdir(name, 0755), 0);
    snprintf(name, sizeof(name), "%s/.sluice/staging", out);
    ck_assert_int_eq(mkdir(name, 0700), 0);
    write_file(name, "part", "some bytes");
    snprintf(name, sizeof(name), "%s/.lock", scratch);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "status", out);
    EXPECT(4, "the node daemon of ");
    ck_assert_ptr_null(strstr(ran.out, "interrupted"));
    RUN(&ran, "status", out, "--json");
    EXPECT(4, "\"state\":\"loading\",\"loading\":true");
    RUN(&ran, "load", model, "--to", out);
    EXPECT(2, "belongs to the node daemon");
    snprintf(name, sizeof(name), "%s/new/one", scratch);
    RUN(&ran, "load", model, "--to", name);
    EXPECT(2, "belongs to the node daemon");
    close(fd);
    RUN(&ran, "load", model, "--to", out);
    ck_assert_int_eq(ran.exit_code, 0);
}

/* What anybody can put there is no daemon's. */
SL_TEST(a_lock_in_a_folder_of_all_keeps_nobody_out)
{
    char lock[PATH_BYTES * 2];
    ck_assert_int_eq(chmod(scratch, 01777), 0);
    snprintf(lock, sizeof(lock), "%s/.lock", scratch);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    RUN(&ran, "load", model, "--to", out);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    RUN(&ran, "rm", out);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    close(fd);
}

/* ---- init and pod ---------------------------------------------------------------------------- */

SL_TEST(a_spec_that_init_prints_is_loaded)
{
    char spec[PATH_BYTES * 2];
    snprintf(spec, sizeof(spec), "%s/spec.yaml", scratch);
    RUN(&ran, "init", model, "--to", out, "--name", "words");
    EXPECT(0, "# yaml-language-server: $schema=");
    write_file(scratch, "spec.yaml", ran.out);
    RUN(&ran, "load", spec);
    EXPECT(0, "'words' is in");
    RUN(&ran, "init", "s4://x/y");
    EXPECT(2, "did you mean 's3://'");
    RUN(&ran, "init", "/a/${HOME}");
    EXPECT(2, "stands for a variable");
    RUN(&ran, "init", "/a/quo\"ted: #1");
    EXPECT(0, "uri: \"/a/quo\\\"ted: #1\"");
}

SL_TEST(a_pod_has_the_memory_that_the_model_needs)
{
    RUN(&ran, "plan", model, "--format", "pod");
    EXPECT(0, "limits: {memory: 577Mi}"); /* 1 MiB, 64 for folders, 512 to work with */
    EXPECT(0, "sizeLimit: 65Mi");
    EXPECT(0, "--to, /models/model]");
    EXPECT(0, "image: \"REGISTRY/sluice:" SLUICE_VERSION "\"\n");
    setenv("SLUICE_REGISTRY", "registry.internal:5000/ml", 1);
    RUN(&ran, "plan", model, "--format", "pod");
    EXPECT(0, "image: \"registry.internal:5000/ml/sluice:" SLUICE_VERSION "\"\n");
    RUN(&ran, "plan", model, "--format", "pod", "--image", "other/sluice:1");
    EXPECT(0, "image: \"other/sluice:1\"\n");
    RUN(&ran, "plan", model, "--format", "pod", "--connections", "3");
    EXPECT(2, "no settings");
}

/* ---- doctor ---------------------------------------------------------------------------------- */

SL_TEST(a_healthy_machine_and_store_pass)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/m.bin", "12345678", 8, "\"v7\"");
    RUN(&ran, "doctor", sl_server_url(server, "/m.bin"));
    EXPECT(0, "ok    shared memory");
    EXPECT(0, "ok    connection");
    EXPECT(0, "8 bytes");
    ck_assert_ptr_null(strstr(ran.out, "FAIL"));
    RUN(&ran, "doctor", "--json");
    json_t *list = sl_json_parse(ran.out, strlen(ran.out), "list", NULL);
    ck_assert_uint_gt(json_array_size(list), 5);
    json_decref(list);
    sl_server_stop(server);
}

SL_TEST(every_check_that_fails_is_a_line_and_the_exit_code)
{
    RUN(&ran, "doctor", "http://127.0.0.1:1/m.bin");
    EXPECT(7, "FAIL  host           cannot connect to '127.0.0.1:1': connection refused, nothing");
    EXPECT(7, "FAIL  object");
    EXPECT(7, "2 checks failed");
    setenv("http_proxy", "http://127.0.0.1:2", 1);
    RUN(&ran, "doctor", "http://store.invalid/m.bin");
    unsetenv("http_proxy");
    EXPECT(7, "FAIL  host           cannot connect to '127.0.0.1:2': connection refused, nothing");
    struct sl_server *secure = sl_server_start_tls();
    RUN(&ran, "doctor", sl_server_url(secure, "/m.bin"));
    EXPECT(7, "cannot trust");
    sl_server_stop(secure);
    setenv("SSL_CERT_FILE", "/nonexistent.pem", 1);
    RUN(&ran, "doctor");
    unsetenv("SSL_CERT_FILE");
    EXPECT(2, "'/nonexistent.pem' (from SSL_CERT_FILE)");
    RUN(&ran, "doctor", "/nowhere/at/all");
    EXPECT(4, "FAIL  object");
}

SL_TEST(whose_credentials_a_load_would_use_is_said_and_never_the_secret)
{
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush-hush", 1);
    RUN(&ran, "doctor", "s3://bucket/m/", "--set", "source.s3.endpoint=http://127.0.0.1:1");
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    EXPECT(7, "ok    endpoint       http://127.0.0.1:1");
    EXPECT(7, "ok    credentials    ");
    ck_assert_ptr_null(strstr(ran.out, "hush"));
}

static const struct {
    const char *uri, *setting, *credentials;
} places[] = {
    {"hf://org/name", "source.hf.endpoint=http://127.0.0.1:1", "a token from HF_TOKEN"},
    {"ms://org/name", "source.ms.endpoint=http://127.0.0.1:1",
     "no token: public repositories only"},
    {"gs://bucket/m/", "source.gs.endpoint=http://127.0.0.1:1", "the metadata server"},
    {"az://models/m/", "source.az.endpoint=http://127.0.0.1:1/account", "managed identity"},
};

/* Nothing listens there, so that what is known without asking is all there is. */
SL_TEST_LOOP(every_store_says_where_it_asks_and_with_what, 0, (int)SL_COUNT(places))
{
    setenv("HF_TOKEN", "hush-hush", 1);
    setenv("GCE_METADATA_HOST", "127.0.0.1:1", 1);
    setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:1", 1);
    RUN(&ran, "doctor", places[_i].uri, "--set", places[_i].setting);
    EXPECT(7, "ok    endpoint       http://127.0.0.1:1");
    EXPECT(7, places[_i].credentials);
    EXPECT(7, "FAIL  host");
    ck_assert_ptr_null(strstr(ran.out, "hush"));
}

/* ---- plan and caches --------------------------------------------------------------------------
 */

/* _i: caches may carry what nothing checks; they may not. As text and as JSON. */
SL_TEST_LOOP(plan_says_what_goes_by_which_cache, 0, 2)
{
    enum { BYTES = 1024 * 1024 };
    struct sl_server *server = sl_server_start();
    uint8_t *noise = sl_model_noise(BYTES, 5);
    const char *unverified =
                   _i ? "source.through.unverified=direct" : "source.through.unverified=warn",
               *block = "source.through.blockBytes=64Ki", *uri = sl_server_url(server, "/m.bin");
    sl_server_put(server, "/m.bin", noise, BYTES, "\"v1\"");
    free(noise);
    RUN(&ran, "plan", uri, "--through", "http://127.0.0.1:1", "--through", "http://127.0.0.2:1",
        "--set", unverified, "--set", block);
    EXPECT(0, _i ? "nothing checks it" : "of it from 2 caches, in blocks of 64");
    ck_assert(!strstr(ran.out, "past caches") == !_i);
    ck_assert(strstr(ran.out, "from http://127.0.0.2:1"));
    RUN(&ran, "plan", uri, "--through", "http://127.0.0.1:1", "--through", "http://127.0.0.2:1",
        "--set", unverified, "--set", block, "--json");
    struct sl_err err = SL_ERR_INIT;
    json_t *plan = sl_json_parse(ran.out, strlen(ran.out), "plan", &err);
    ck_assert_msg(plan != NULL, "%s", err.message);
    const json_t *caches = json_object_get(plan, "caches");
    uint64_t bytes = 0,
             past = sl_json_get_uint(json_object_get(plan, "past_caches"), "unchecked", 0);
    ck_assert_uint_eq(json_array_size(caches), 2);
    for (size_t i = 0; i < 2; i++)
        bytes += sl_json_get_uint(json_array_get(caches, i), "bytes", 0);
    ck_assert_uint_eq(bytes > 0, !_i);
    ck_assert_uint_eq(past > 0, _i);
    json_decref(plan);
    sl_server_stop(server);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
