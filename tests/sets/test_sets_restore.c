/* A set comes back as it was saved, or not at all: what is missing, broken, hostile, slow or not
 * signed leaves an empty folder. */
#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "packer.h"
#include "range_server.h"
#include "sets_case.h"
#include "sets_parts.h"
#include "skip.h"
#include "tar_maker.h"
#include "tree.h"
#include "unpack.h"

SL_CASE(.setup = sets_case_setup, .teardown = sets_case_teardown)

static void expect_refused(struct sl_sets_result result, const char *text)
{
    ck_assert_msg(result.outcome == SL_SETS_REFUSED, "%s: %s", sl_sets_outcome_name(result.outcome),
                  result.why.message);
    ck_assert_msg(strstr(result.why.message, text) != NULL, "%s", result.why.message);
    ck_assert(sets_are_empty());
}

/* Files of a saved set, and nothing at the path. */
static struct sl_sets_saved save_usual(const char *keys)
{
    sets_put("vllm/torch_compile_cache/ab/kernel.so", "code");
    sets_put("triton/x", "more");
    struct sl_sets_saved saved = sets_save_well(keys);
    ck_assert_uint_eq(saved.files, 2);
    sets_forget();
    return saved;
}

static void blob_file(const char *sha256, char path[SL_SCRATCH_PATH_BYTES + 160])
{
    snprintf(path, SL_SCRATCH_PATH_BYTES + 160, "%sblobs/%.64s.tar.zst", sets_store, sha256);
}

/* ---- what comes back ------------------------------------------------------------------------- */

SL_TEST(what_was_saved_comes_back)
{
    char name[300] = "deep/";
    struct stat status;
    memset(name + 5, 'n', 180);
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    sets_put("vllm/kernel.so", "code");
    sets_put(name, "long");
    ck_assert_int_eq(utimensat(sets_scratch_fd, "caches/engine/vllm/kernel.so", times, 0), 0);
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches/engine/vllm/kernel.so", 0755, 0), 0);
    ck_assert_int_eq(symlinkat("kernel.so", sets_scratch_fd, "caches/engine/vllm/latest"), 0);
    struct sl_sets_saved saved = sets_save_well(SETS_SIGNED);
    sets_forget();
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_msg(result.outcome == SL_SETS_RESTORED, "%s", result.why.message);
    ck_assert_uint_eq(result.files, saved.files);
    ck_assert_uint_eq(result.bytes, saved.bytes);
    ck_assert_str_eq(sets_get("vllm/latest"), "code");
    ck_assert_str_eq(sets_get(name), "long");
    ck_assert_int_eq(fstatat(sets_scratch_fd, "caches/engine/vllm/kernel.so", &status, 0), 0);
    ck_assert_int_eq(status.st_mtim.tv_sec, 1000000000);
    ck_assert_uint_eq(status.st_mode & 0111, 0111);
    ck_assert_int_eq(fstatat(sets_scratch_fd, "caches/engine", &status, 0), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0700);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_RESTORED), 1);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_BYTES), result.bytes);
}

SL_TEST(a_store_without_the_set_is_a_miss)
{
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_MISSED);
    ck_assert(sets_are_empty());
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(sets_restore("variant: other, " SETS_SIGNED).outcome, SL_SETS_MISSED);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_MISSED), 2);
}

SL_TEST(files_that_are_there_stay)
{
    save_usual(SETS_SIGNED);
    sets_put("triton/own", "mine");
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_int_eq(result.outcome, SL_SETS_KEPT);
    ck_assert_uint_eq(result.packed_bytes, 0); /* nor was anything fetched */
    ck_assert_str_eq(sets_get("triton/own"), "mine");
    ck_assert_str_eq(sets_get("triton/x"), "");
}

/* The engine begins to write while the blob is on its way. */
static bool write_then_serve(const struct sl_server_request *request, struct sl_server_reply *reply,
                             void *arg)
{
    (void)reply, (void)arg;
    if (strstr(request->target, "/blobs/"))
        sets_put("triton/own", "mine");
    return false;
}

static void serve_file(struct sl_server *server, const char *target, const char *path)
{
    sl_autobuf bytes = SL_BUF_INIT(1024 * 1024);
    ck_assert_int_eq(sl_buf_read_file(&bytes, path, &sets_err), 0);
    sl_server_put(server, target, bytes.data, bytes.used, "\"1\"");
}

SL_TEST(files_that_come_meanwhile_stay_and_nothing_is_left_beside_them)
{
    char blob[SL_SCRATCH_PATH_BYTES + 160], target[200];
    struct sl_sets_saved saved = save_usual("trust: store");
    struct sl_server *server = sl_server_start();
    blob_file(saved.sha256, blob);
    snprintf(target, sizeof(target), "/sets/%.64s/latest.json", saved.key);
    serve_file(server, target, sets_name_file(saved.key));
    snprintf(target, sizeof(target), "/blobs/%.64s.tar.zst", saved.sha256);
    serve_file(server, target, blob);
    sl_server_handle(server, write_then_serve, NULL);
    snprintf(sets_store, sizeof(sets_store), "%s", sl_server_url(server, "/"));
    struct sl_sets_result result = sets_restore("trust: store");
    ck_assert_msg(result.outcome == SL_SETS_KEPT, "%s", result.why.message);
    ck_assert_str_eq(sets_get("triton/own"), "mine");
    ck_assert_int_ne(faccessat(sets_scratch_fd, "caches/.engine.sluice-restoring", F_OK, 0), 0);
    sl_server_stop(server);
}

SL_TEST(what_an_earlier_run_left_goes)
{
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches/.engine.sluice-restoring", 0700), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches/.engine.sluice-restoring/half", 0700), 0);
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
    ck_assert_int_ne(faccessat(sets_scratch_fd, "caches/engine/half", F_OK, 0), 0);
}

SL_TEST(of_two_that_restore_to_one_path_the_second_leaves_it)
{
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches/.engine.sluice-restoring", 0700), 0);
    sl_autoclose int held =
        openat(sets_scratch_fd, "caches/.engine.sluice-restoring", O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(held, LOCK_EX | LOCK_NB), 0);
    ck_assert_int_eq(mkdirat(held, "half", 0700), 0);
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_int_eq(result.outcome, SL_SETS_REFUSED);
    ck_assert_ptr_nonnull(strstr(result.why.message, "another process restores"));
    ck_assert_int_eq(faccessat(held, "half", F_OK, 0), 0); /* the first goes on in it */
}

/* ---- trust ----------------------------------------------------------------------------------- */

SL_TEST(a_set_without_a_signature_is_not_used)
{
    save_usual("trust: store");
    expect_refused(sets_restore(SETS_SIGNED), "it is not signed");
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_REFUSED), 1);
    ck_assert_int_eq(sets_restore("trust: store").outcome, SL_SETS_RESTORED);
}

SL_TEST(a_set_of_another_signer_is_not_used)
{
    save_usual(SETS_SIGNED);
    expect_refused(sets_restore("publicKeyFile: " SL_TEST_DATA "/minisign/one.pub, "
                                "secretKeyFile: " SL_TEST_DATA "/minisign/plain.key"),
                   "key");
    expect_refused(sets_restore("publicKeyFile: /not/there, secretKeyFile: /x"), "/not/there");
}

/* latest.json with one text replaced by another of its length. */
static void change_name(const char *key, const char *from, const char *to)
{
    sl_autobuf text = SL_BUF_INIT(SL_SETS_NAME_BYTES_MAX);
    ck_assert_int_eq(sl_buf_read_file(&text, sets_name_file(key), &sets_err), 0);
    char *at = strstr(text.data, from);
    ck_assert_ptr_nonnull(at);
    memcpy(at, to, strlen(to));
    FILE *file = fopen(sets_name_file(key), "w");
    ck_assert_uint_eq(fwrite(text.data, 1, text.used, file), text.used);
    fclose(file);
}

SL_TEST(what_is_signed_cannot_be_changed)
{
    struct sl_sets_saved saved = save_usual(SETS_SIGNED);
    char sha[128], other[128];
    snprintf(sha, sizeof(sha), "\"sha256\":\"%.64s", saved.sha256);
    memcpy(other, sha, sizeof(other));
    memset(other + 10, 'e', 64);
    change_name(saved.key, sha, other);
    expect_refused(sets_restore(SETS_SIGNED), "signature");
    change_name(saved.key, other, sha);
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

SL_TEST(a_signed_set_of_another_key_is_not_used)
{
    char folder[SL_SCRATCH_PATH_BYTES + 160];
    struct sl_sets_saved saved = save_usual("variant: a, " SETS_SIGNED);
    struct sl_sets_result result = sets_restore("variant: b, " SETS_SIGNED);
    ck_assert_int_eq(result.outcome, SL_SETS_MISSED);
    snprintf(folder, sizeof(folder), "%ssets/%s", sets_store, result.key);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    char from[SL_SCRATCH_PATH_BYTES + 160];
    snprintf(from, sizeof(from), "%s", sets_name_file(saved.key));
    ck_assert_int_eq(rename(from, sets_name_file(result.key)), 0);
    expect_refused(sets_restore("variant: b, " SETS_SIGNED), "another key");
}

/* ---- broken ---------------------------------------------------------------------------------- */

SL_TEST(a_blob_that_is_changed_cut_or_missing_is_not_used)
{
    char path[SL_SCRATCH_PATH_BYTES + 160];
    struct sl_sets_saved saved = save_usual(SETS_SIGNED);
    blob_file(saved.sha256, path);
    sl_autoclose int fd = open(path, O_RDWR);
    uint8_t byte;
    ck_assert_int_eq(pread(fd, &byte, 1, 60), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, 60), 1);
    expect_refused(sets_restore(SETS_SIGNED), "SHA-256");
    ck_assert_int_eq(truncate(path, (off_t)saved.packed_bytes - 1), 0);
    expect_refused(sets_restore(SETS_SIGNED), "bytes");
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(sets_restore(SETS_SIGNED), "blobs/");
}

SL_TEST(a_latest_that_is_no_name_is_not_used)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{",
        "{\"sluice_engine_caches\":2}",
        "{\"sluice_engine_caches\":1,\"key\":\"ab\",\"sha256\":\"\"}",
        "{\"sluice_engine_caches\":1,\"key\":\"" /* 64 digits */
        "0000000000000000000000000000000000000000000000000000000000000000\",\"sha256\":\""
        "0000000000000000000000000000000000000000000000000000000000000000\",\"bytes\":"
        "17179869185,\"facts\":{}}",
    };
    struct sl_sets_saved saved = save_usual(SETS_SIGNED);
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        FILE *file = fopen(sets_name_file(saved.key), "w");
        fputs(texts[i], file);
        fclose(file);
        expect_refused(sets_restore(SETS_SIGNED), "latest.json");
    }
}

/* ---- hostile archives ------------------------------------------------------------------------ */

static int append(void *arg, const void *data, size_t bytes, struct sl_err *err)
{
    return sl_buf_append(arg, data, bytes, err);
}

/* As a set that the store is trusted for. */
static void plant_tar(const struct sl_buf *tar)
{
    sl_autobuf packed = SL_BUF_INIT(64 * 1024 * 1024);
    SL_AUTO(sl_packer)
    packer = sl_packer_new(&(struct sl_packer_output){append, &packed}, &sets_err);
    ck_assert_int_eq(sl_packer_write(packer, tar->data, tar->used, &sets_err), 0);
    ck_assert_int_eq(sl_packer_end(packer, &sets_err), 0);
    sets_plant(packed.data, packed.used);
}

static const struct {
    char type;
    const char *name, *link, *message;
} hostile[] = {
    {'0', "../outside", NULL, "leads out"},
    {'0', "a/../../outside", NULL, "leads out"},
    {'2', "l", "/etc/passwd", "absolute"},
    {'2', "l", "../outside", "leads out"},
    {'2', "a/l", "../../outside", "leads out"},
    {'1', "h", "../outside", "leads out"},
    {'1', "h", "not/before", "did not come before"},
    {'3', "d", NULL, "a device"},
    {'4', "d", NULL, "a device"},
    {'6', "p", NULL, "a pipe"},
    {'Z', "z", NULL, "not known"},
};
SL_TEST_LOOP(an_archive_that_reaches_out_is_not_used, 0, SL_COUNT(hostile))
{
    sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '0', "good", NULL, "x", 1);
    tar_entry(&tar, hostile[_i].type, hostile[_i].name, hostile[_i].link, NULL, 0);
    tar_end(&tar);
    plant_tar(&tar);
    expect_refused(sets_restore("trust: store"), hostile[_i].message);
    ck_assert_int_ne(faccessat(sets_scratch_fd, "outside", F_OK, 0), 0);
    ck_assert_int_ne(faccessat(sets_scratch_fd, "caches/outside", F_OK, 0), 0);
}

/* A link that stays inside is made last, so that nothing is written through it. */
SL_TEST(nothing_is_written_through_a_link)
{
    sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '2', "a", "b", NULL, 0);
    tar_entry(&tar, '0', "a/x", NULL, "x", 1);
    tar_end(&tar);
    plant_tar(&tar);
    expect_refused(sets_restore("trust: store"), "something else in it");
}

SL_TEST(an_archive_that_is_cut_is_not_used)
{
    sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '0', "good", NULL, "x", 1);
    plant_tar(&tar);
    expect_refused(sets_restore("trust: store"), "cut off");
    sets_plant("no archive at all", 17);
    expect_refused(sets_restore("trust: store"), "archive");
}

SL_TEST(too_many_entries_are_not_used)
{
    enum { ENTRY = 512, ENTRIES = SL_UNPACK_ENTRIES_MAX + 1 };
    sl_autobuf tar = SL_BUF_INIT((size_t)ENTRIES * ENTRY + 2048);
    tar_entry(&tar, '5', "folder", NULL, NULL, 0);
    ck_assert_int_eq(sl_grow(&tar.data, &tar.capacity, tar.limit, 1, &sets_err), 0);
    for (size_t i = 1; i < ENTRIES; i++)
        memcpy(tar.data + i * ENTRY, tar.data, ENTRY);
    tar.used = (size_t)ENTRIES * ENTRY;
    tar_end(&tar);
    plant_tar(&tar);
    expect_refused(sets_restore("trust: store"), "more than 200000 entries");
}

SL_TEST(a_bomb_is_not_used)
{
    sl_autobuf tar = SL_BUF_INIT(128 * 1024 * 1024);
    size_t bytes = 80 * 1024 * 1024;
    sl_autofree char *zeros = calloc(1, bytes);
    tar_entry(&tar, '0', "zeros", NULL, zeros, bytes);
    tar_end(&tar);
    plant_tar(&tar);
    expect_refused(sets_restore("trust: store"), "times its size");
}

SL_TEST(a_full_disk_leaves_nothing)
{
    char small[SL_SCRATCH_PATH_BYTES + 32];
    sl_autofree char *text = malloc(8 * 1024 * 1024 + 1);
    memset(text, 'x', 8 * 1024 * 1024);
    text[8 * 1024 * 1024] = 0;
    sets_put("large", text);
    sets_save_well(SETS_SIGNED);
    sets_forget();
    snprintf(small, sizeof(small), "%s/caches", sets_scratch);
    ck_assert_int_eq(mkdir(small, 0755), 0);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", small, "tmpfs", 0, "size=1m") < 0)
        SL_SKIP("no tmpfs of its own can be mounted");
    expect_refused(sets_restore(SETS_SIGNED), "large");
    umount2(small, MNT_DETACH);
}

/* ---- places ---------------------------------------------------------------------------------- */

static void expect_no_place(const char *text)
{
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_msg(result.outcome == SL_SETS_NO_PLACE, "%s", sl_sets_outcome_name(result.outcome));
    ck_assert_msg(strstr(result.why.message, text) != NULL, "%s", result.why.message);
}

SL_TEST(a_folder_that_others_can_write_is_no_place)
{
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches/engine", 0700), 0);
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches/engine", 0770, 0), 0);
    expect_no_place("others can write to");
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches/engine", 0755, 0), 0);
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

SL_TEST(a_folder_that_others_can_replace_is_no_place)
{
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches", 0777, 0), 0);
    expect_no_place("in the place of");
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches", 01777, 0), 0); /* as /tmp */
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

SL_TEST(a_folder_of_another_user_is_no_place)
{
    if (geteuid() != 0)
        SL_SKIP("only root can give a folder away");
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches/engine", 0700), 0);
    ck_assert_int_eq(fchownat(sets_scratch_fd, "caches/engine", 4321, 4321, 0), 0);
    expect_no_place("belongs to user 4321");
}

SL_TEST(a_link_is_no_place)
{
    save_usual(SETS_SIGNED);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "elsewhere", 0700), 0);
    ck_assert_int_eq(symlinkat("../elsewhere", sets_scratch_fd, "caches/engine"), 0);
    expect_no_place("cannot open the folder");
}

/* ---- time and memory ------------------------------------------------------------------------- */

static struct sl_sets_result slow_result;

static void restore_slowly(void *arg)
{
    (void)arg;
    sl_sets_restore(sets_spec("restoreSeconds: 20, trust: store"), NULL, &slow_result);
}

SL_TEST(a_slow_store_is_left_when_its_time_is_over)
{
    struct fake_clock_work work;
    struct sl_server *server = sl_server_start();
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    snprintf(sets_store, sizeof(sets_store), "%s", sl_server_url(server, "/sets/"));
    fake_clock_hold();
    fake_clock_begin(&work, restore_slowly, NULL);
    fake_clock_await(20 * SL_NS_PER_S);
    fake_clock_turn(20 * SL_NS_PER_S - SL_NS_PER_MS);
    fake_clock_turn(2 * SL_NS_PER_MS);
    fake_clock_end(&work);
    fake_clock_release();
    expect_refused(slow_result, "restoreSeconds");
    sl_server_stop(server);
}

/* Each allocation in turn: nothing crashes, and nothing is half there. */
SL_TEST(without_memory_it_is_there_whole_or_not_at_all)
{
    save_usual("trust: store");
    const struct sl_spec *spec = sets_spec("trust: store");
    struct sl_sets_result result = {.outcome = SL_SETS_NO_PLACE};
    for (unsigned nth = 1; result.outcome != SL_SETS_RESTORED; nth++) {
        ck_assert_uint_lt(nth, 2000);
        (void)sl_tree_remove(sets_scratch_fd, "caches");
        sl_alloc_fail_at(nth);
        sl_sets_restore(spec, NULL, &result);
        unsigned made = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (result.outcome == SL_SETS_RESTORED && made >= nth)
            result.outcome = SL_SETS_REFUSED; /* it did without that one */
        else if (result.outcome != SL_SETS_RESTORED)
            ck_assert_str_eq(sets_get("triton/x"), "");
    }
    ck_assert_str_eq(sets_get("triton/x"), "more");
}
