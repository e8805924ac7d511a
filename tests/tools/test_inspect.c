/* The inspect command as scripts see it: exit codes, JSON, refusals. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "scratch.h"

enum { OUTPUT_MAX = 16 * 1024 * 1024, ARGS_MAX = 8 };

/* What a run of sluice gave. */
struct outcome {
    int exit_code;
    char *text;   /* of stdout; owned */
    json_t *json; /* owned; NULL if stdout is not JSON */
};

static void outcome_release(struct outcome *outcome)
{
    free(outcome->text);
    json_decref(outcome->json);
}

static void run_child(int output, const char *const *args)
{
    const char *argv[ARGS_MAX + 3] = {getenv("SLUICE"), "inspect"};
    for (int i = 0; args[i] && i < ARGS_MAX; i++)
        argv[i + 2] = args[i];
    dup2(output, STDOUT_FILENO);
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Run `sluice inspect ARGS…`. */
static struct outcome inspect(const char *const *args)
{
    int ends[2], status;
    struct outcome outcome = {0};
    sl_autobuf out = SL_BUF_INIT(OUTPUT_MAX);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        run_child(ends[1], args);
    close(ends[1]);
    char piece[65536];
    ssize_t got;
    while ((got = read(ends[0], piece, sizeof(piece))) > 0)
        ck_assert_int_eq(sl_buf_append(&out, piece, (size_t)got, NULL), 0);
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    outcome.text = sl_strdup(sl_buf_string(&out), NULL);
    outcome.json = json_loadb(outcome.text, strlen(outcome.text), JSON_ALLOW_NUL, NULL);
    return outcome;
}

static const char *golden_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/golden/%s", SL_TEST_DATA, name);
    return path;
}

/* Inflate a golden .tensors file into the directory. */
static void place_tensors(int directory, const char *name)
{
    char path[256];
    size_t bytes;
    snprintf(path, sizeof(path), "tensorizer/%s.tensors.gz", name);
    uint8_t *data = golden_read(path, &bytes);
    snprintf(path, sizeof(path), "%s.tensors", name);
    int fd = openat(directory, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
    free(data);
}

SL_TEST(json_holds_what_the_design_promises)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "v1-tree");
    snprintf(path, sizeof(path), "%s/v1-tree.tensors", folder);
    struct outcome outcome = inspect((const char *const[]){"--json", "--digest", path, NULL});
    json_t *sidecar = golden_json("tensorizer/v1-tree.json");
    ck_assert_int_eq(outcome.exit_code, 0);
    static const char *const keys[] = {"uri",        "format",       "format_version",
                                       "encrypted",  "object_bytes", "read_requests",
                                       "read_bytes", "tensors"};
    for (unsigned i = 0; i < SL_COUNT(keys); i++)
        ck_assert_msg(json_object_get(outcome.json, keys[i]) != NULL, "%s", keys[i]);
    const json_t *tensors = json_object_get(outcome.json, "tensors"),
                 *expected = json_object_get(sidecar, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), json_array_size(expected));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i), *wanted = json_array_get(expected, i);
        ck_assert(json_equal(json_object_get(tensor, "path"), json_object_get(wanted, "path")));
        ck_assert(json_equal(json_object_get(tensor, "shape"), json_object_get(wanted, "shape")));
        ck_assert(json_equal(json_object_get(tensor, "bytes"), json_object_get(wanted, "nbytes")));
        ck_assert(json_equal(json_object_get(tensor, "sha256"), json_object_get(wanted, "sha256")));
    }
    json_decref(sidecar);
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

static void check_error(const struct outcome *outcome, int exit_code, const char *kind,
                        const char *code)
{
    const json_t *error = json_object_get(outcome->json, "error");
    ck_assert_int_eq(outcome->exit_code, exit_code);
    ck_assert_str_eq(json_string_value(json_object_get(error, "kind")), kind);
    ck_assert_str_eq(json_string_value(json_object_get(error, "code")), code);
    ck_assert_ptr_null(json_object_get(outcome->json, "tensors"));
}

SL_TEST(a_refused_file_exits_with_10_and_its_code)
{
    struct outcome outcome = inspect((const char *const[]){
        "--json", golden_path("safetensors/overlap_partial.safetensors"), NULL});
    check_error(&outcome, 10, "FORMAT", "st.offset");
    outcome_release(&outcome);
}

SL_TEST(a_missing_file_exits_with_4)
{
    struct outcome outcome =
        inspect((const char *const[]){"--json", golden_path("safetensors/gone.safetensors"), NULL});
    ck_assert_int_eq(outcome.exit_code, 4);
    outcome_release(&outcome);
}

SL_TEST(a_wrong_hash_exits_with_5_unless_hashes_are_off)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "bad-hash-crc");
    snprintf(path, sizeof(path), "%s/bad-hash-crc.tensors", folder);
    struct outcome outcome = inspect((const char *const[]){"--json", "--digest", path, NULL});
    check_error(&outcome, 5, "INTEGRITY", "E_HASH_CRC32");
    outcome_release(&outcome);
    outcome = inspect((const char *const[]){"--json", "--digest", "--hashes", "off", path, NULL});
    ck_assert_int_eq(outcome.exit_code, 0);
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

/* The key or passphrase of a golden file, in a file. */
static void place_secret(int directory, const char *file, const char *golden, const char *member)
{
    char path[256];
    uint8_t bytes[256];
    snprintf(path, sizeof(path), "tensorizer/%s.json", golden);
    json_t *sidecar = golden_json(path);
    const char *hex =
        json_string_value(json_object_get(json_object_get(sidecar, "encryption"), member));
    size_t size = strlen(hex) / 2;
    ck_assert_int_eq(sl_unhex(hex, bytes, size), 0);
    int fd = openat(directory, file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    close(fd);
    json_decref(sidecar);
}

/* Do the digests and the slice come out, and without the key their refusal? */
static void check_encrypted(const char *name, const char *flag, const char *member)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512], secret[512], sidecar_path[256];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, name);
    place_secret(directory, "secret", name, member);
    snprintf(path, sizeof(path), "%s/%s.tensors", folder, name);
    snprintf(secret, sizeof(secret), "%s/secret", folder);
    snprintf(sidecar_path, sizeof(sidecar_path), "tensorizer/%s.json", name);
    struct outcome outcome = inspect((const char *const[]){"--json", "--digest", path, NULL});
    check_error(&outcome, 3, "AUTH", "E_KEY_REQUIRED");
    outcome_release(&outcome);
    outcome = inspect((const char *const[]){"--json", "--digest", flag, secret, path, NULL});
    ck_assert_int_eq(outcome.exit_code, 0);
    json_t *sidecar = golden_json(sidecar_path);
    const json_t *tensors = json_object_get(outcome.json, "tensors"),
                 *expected = json_object_get(sidecar, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), json_array_size(expected));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        ck_assert(json_equal(json_object_get(json_array_get(tensors, i), "sha256"),
                             json_object_get(json_array_get(expected, i), "sha256")));
    json_decref(sidecar);
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

SL_TEST(encrypted_files_are_digested_with_their_key_or_passphrase)
{
    check_encrypted("v3-key", "--key-file", "key_hex");
    check_encrypted("v3-passphrase-min", "--passphrase-file", "passphrase_hex");
    check_encrypted("v3-passphrase-min", "--key-file", "derived_key_hex");
}

SL_TEST(a_key_that_does_not_fit_is_refused)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512], secret[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "v3-key");
    place_tensors(directory, "base-plain");
    place_secret(directory, "secret", "v3-passphrase-min", "derived_key_hex");
    snprintf(secret, sizeof(secret), "%s/secret", folder);
    snprintf(path, sizeof(path), "%s/v3-key.tensors", folder);
    struct outcome outcome =
        inspect((const char *const[]){"--json", "--digest", "--key-file", secret, path, NULL});
    check_error(&outcome, 5, "INTEGRITY", "E_DECRYPT");
    outcome_release(&outcome);
    snprintf(path, sizeof(path), "%s/base-plain.tensors", folder);
    outcome = inspect((const char *const[]){"--json", "--key-file", secret, path, NULL});
    check_error(&outcome, 2, "USAGE", "E_NOT_ENCRYPTED");
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

SL_TEST(an_encrypted_file_is_listed_without_its_key)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "bad-key-missing");
    snprintf(path, sizeof(path), "%s/bad-key-missing.tensors", folder);
    struct outcome outcome = inspect((const char *const[]){"--json", path, NULL});
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert(json_is_true(json_object_get(outcome.json, "encrypted")));
    ck_assert_uint_eq(json_array_size(json_object_get(outcome.json, "tensors")), 7);
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

SL_TEST(a_folder_means_its_index)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/", golden_path("safetensors/sharded"));
    struct outcome outcome = inspect((const char *const[]){"--json", path, NULL});
    json_t *expected = golden_json("safetensors/sharded/model.safetensors.index.json.expect.json");
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(outcome.json, "tensors")),
                      json_array_size(json_object_get(expected, "tensors")));
    json_decref(expected);
    outcome_release(&outcome);
}

/* The files of a distributed checkpoint cannot be read by themselves. */
SL_TEST(a_folder_of_several_distributed_checkpoints_gives_each_once)
{
    const char *args[] = {"--json", golden_path("dcp/"), NULL};
    struct outcome outcome = inspect(args);
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert_uint_eq(json_array_size(outcome.json), 7);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(outcome.json, 0), "format")),
                     "dcp");
    outcome_release(&outcome);
}

SL_TEST(a_folder_of_several_files_gives_a_list)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "v1-tree");
    place_tensors(directory, "v4-meta");
    snprintf(path, sizeof(path), "%s/", folder);
    struct outcome outcome = inspect((const char *const[]){"--json", path, NULL});
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert_uint_eq(json_array_size(outcome.json), 2);
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

/* One has 2^32 + 128 elements and no byte: nothing is hashed for it, and at once. */
SL_TEST(tensors_without_data_have_no_digest)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    static const char *const files[] = {"v4-meta", "v5-long-meta"};
    for (size_t i = 0; i < 2; i++) {
        place_tensors(directory, files[i]);
        snprintf(path, sizeof(path), "%s/%s.tensors", folder, files[i]);
        struct outcome outcome = inspect((const char *const[]){"--json", "--digest", path, NULL});
        const json_t *tensors = json_object_get(outcome.json, "tensors");
        size_t without = 0, with = 0;
        ck_assert_int_eq(outcome.exit_code, 0);
        for (size_t k = 0; k < json_array_size(tensors); k++) {
            const json_t *digest = json_object_get(json_array_get(tensors, k), "sha256");
            ck_assert(json_is_null(digest) || json_is_string(digest));
            const json_t *meta = json_object_get(json_array_get(tensors, k), "meta");
            ck_assert(json_is_null(digest) == json_is_true(meta));
            *(json_is_null(digest) ? &without : &with) += 1;
        }
        ck_assert_uint_ge(without, 1);
        ck_assert_uint_ge(with, 1);
        outcome_release(&outcome);
    }
    sl_scratch_close(directory, folder);
}

SL_TEST(slices_are_repeatable_and_wrong_ones_are_refused)
{
    const char *path = golden_path("safetensors/dtypes.safetensors");
    struct outcome outcome = inspect((const char *const[]){"--json", "--slice", "t_f32[0:1,1:3]",
                                                           "--slice", "t_f4[1:2]", path, NULL});
    const json_t *slices = json_object_get(outcome.json, "slices");
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert_uint_eq(json_array_size(slices), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(slices, 0), "sha256")),
                     "0bc80d5558c766e913bd99424e3d35d5386f5e58bb14d877b608e7b2eb0873b0");
    outcome_release(&outcome);
    outcome = inspect((const char *const[]){"--json", "--slice", "t_f4[0:2,1:2]", path, NULL});
    check_error(&outcome, 10, "FORMAT", "st.misaligned");
    outcome_release(&outcome);
    outcome = inspect((const char *const[]){"--json", "--slice", "gone[:]", path, NULL});
    check_error(&outcome, 4, "NOT_FOUND", "st.not-found");
    outcome_release(&outcome);
}

SL_TEST(names_cannot_paint_on_the_terminal)
{
    char folder[SL_SCRATCH_PATH_BYTES], path[512];
    int directory = sl_scratch_open(folder);
    place_tensors(directory, "v1-names");
    snprintf(path, sizeof(path), "%s/v1-names.tensors", folder);
    struct outcome outcome = inspect((const char *const[]){path, NULL});
    ck_assert_int_eq(outcome.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(outcome.text, "tab?here"));
    for (const char *at = outcome.text; *at; at++)
        ck_assert((unsigned char)*at >= 0x20 || *at == '\n');
    outcome_release(&outcome);
    sl_scratch_close(directory, folder);
}

static bool prepare(void)
{
    if (!getenv("SLUICE")) {
        sl_skipped("inspect", "SLUICE does not name the program");
        return false;
    }
    return true;
}

SL_CASE(.prepare = prepare)
