/* The commands convert, encrypt and decrypt as processes: operands, flags, results, exit codes. */
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
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "thread.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], model[PATH_BYTES], tensors[PATH_BYTES],
    sealed[PATH_BYTES], key[PATH_BYTES], other[PATH_BYTES];
static int scratch_fd;

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(name, "w");
    ck_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
    ck_assert_int_eq(chmod(name, 0600), 0);
}

static const char *place(char *path, const char *name)
{
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static void setup(void)
{
    size_t bytes;
    scratch_fd = sl_scratch_open(scratch);
    place(tensors, "m.tensors");
    place(sealed, "s.tensors");
    place(other, "other");
    uint8_t *data = sl_model_safetensors("h.a,h.b,c", 5000, &bytes);
    write_file(place(model, "model.safetensors"), data, bytes);
    write_file(place(key, "key"), "0123456789abcdef0123456789abcdef", 32);
    free(data);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

#define EXPECT(ran, code, word)                                                                    \
    do {                                                                                           \
        ck_assert_msg((ran).exit_code == (code) &&                                                 \
                          (strstr((ran).out, word) || strstr((ran).err, word)),                    \
                      "exit code %d\n%s\n%s", (ran).exit_code, (ran).out, (ran).err);              \
        ran_release(&(ran));                                                                       \
    } while (0)

static bool same_file(const char *a, const char *b)
{
    size_t bytes;
    uint8_t *data = sl_model_read(scratch, a, &bytes);
    bool same = data && sl_model_same(scratch, b, data, bytes);
    free(data);
    return same;
}

SL_TEST(flags_without_effect_are_refused)
{
    struct ran ran = {0};
    RUN(&ran, "convert", model, tensors, "--shard-rule", "*=0");
    EXPECT(ran, 2, "--shard RANK/OF");
    RUN(&ran, "convert", model, tensors, "--listen", "127.0.0.1:0");
    EXPECT(ran, 2, "--listen");
    RUN(&ran, "decrypt", model, tensors, "--range-bytes", "1MiB");
    EXPECT(ran, 2, "--range-bytes");
}

SL_TEST(the_name_says_the_format)
{
    struct ran ran = {0};
    char folder[PATH_BYTES];
    RUN(&ran, "convert", model, tensors, "--json");
    EXPECT(ran, 0, "\"format\":\"tensorizer\",\"tensors\":3");
    RUN(&ran, "convert", tensors, place(folder, "new/"));
    EXPECT(ran, 0, "3 hashes checked");
    ck_assert(sl_model_exists(scratch, "new/model.safetensors"));
    RUN(&ran, "convert", tensors, place(folder, "new"));
    EXPECT(ran, 2, "exists");
    RUN(&ran, "convert", model, other);
    EXPECT(ran, 2, "--to-format");
    RUN(&ran, "convert", model, other, "--to-format", "tensorizer");
    EXPECT(ran, 0, "converted");
    ck_assert(same_file("m.tensors", "other"));
    RUN(&ran, "convert", model, tensors, "--to-format", "safetensors");
    EXPECT(ran, 2, "--to-format says safetensors");
    RUN(&ran, "convert", model, "http://me:secret@127.0.0.1:1/m.tensors?sig=secret", "--attempts",
        "1", "--align", "3");
    ck_assert_msg(!strstr(ran.err, "secret"), "%s", ran.err);
    EXPECT(ran, 2, "align");
}

SL_TEST(flags_choose_rename_cast_and_cut)
{
    struct ran ran = {0};
    RUN(&ran, "convert", model, tensors, "--include", "h.*", "--exclude", "*.b", "--rename",
        "^h\\.=layer.", "--cast", "F32:BF16", "--shard", "1/4", "--shard-rule", "layer.a=0");
    EXPECT(ran, 0, ", 1 tensor");
    RUN(&ran, "inspect", "--json", tensors);
    ck_assert_msg(strstr(ran.out, "\"name\":\"layer.a\"") && strstr(ran.out, "\"BF16\"") &&
                      strstr(ran.out, "\"shape\":[1250]"),
                  "%s", ran.out);
    ran_release(&ran);
}

SL_TEST(ranks_have_files_of_their_own_and_rules)
{
    struct ran ran = {0};
    size_t bytes;
    char named[PATH_BYTES], folder[PATH_BYTES], rules[PATH_BYTES];
    static const char text[] = "# of vectors\n- {match: 'h.*', dim: 0}\n- match: c\n  whole: yes\n";
    static const char wrong[] = "- {match: 'h.*', dims: 0}\n";
    uint8_t *data = sl_model_safetensors("model.embed_tokens.weight,model.norm.weight", 64, &bytes);
    write_file(place(named, "named.safetensors"), data, bytes);
    free(data);
    place(folder, "ranks/");
    RUN(&ran, "convert", named, folder, "--ranks", "2", "--json");
    EXPECT(ran, 0, "\"tensors\":4,\"objects\":2,\"files\":2");
    RUN(&ran, "inspect", "--json", place(rules, "ranks/model-rank-1-part-0.safetensors"));
    ck_assert_msg(strstr(ran.out, "\"shape\":[32]") && strstr(ran.out, "\"shape\":[64]"), "%s",
                  ran.out);
    ran_release(&ran);
    RUN(&ran, "convert", model, folder, "--ranks", "2", "--replace");
    EXPECT(ran, 2, "no rule says how tensor 'h.a' is cut");
    write_file(place(rules, "rules"), text, sizeof(text) - 1);
    RUN(&ran, "convert", model, folder, "--ranks", "4", "--rank-rules", rules, "--replace");
    EXPECT(ran, 0, ", 12 tensors");
    write_file(rules, wrong, sizeof(wrong) - 1);
    RUN(&ran, "convert", model, folder, "--ranks", "4", "--rank-rules", rules, "--replace");
    EXPECT(ran, 2, "'dims'");
    write_file(rules, "none", 4);
    RUN(&ran, "convert", model, folder, "--ranks", "4", "--rank-rules", rules, "--replace");
    EXPECT(ran, 2, "--rank-rules");
    RUN(&ran, "convert", model, folder, "--ranks", "4", "--rank-rules", "/nowhere");
    EXPECT(ran, 4, "/nowhere");
}

SL_TEST(flags_that_make_no_sense_are_refused)
{
    static const struct {
        const char *flag, *value, *word;
    } wrong[] = {
        {"--cast", "F32", "FROM:TO"},
        {"--cast", "I32:F32", "cannot be cast"},
        {"--rename", "a", "REGEX=TO"},
        {"--rename", "(=x", "--rename"},
        {"--shard", "3", "RANK/OF"},
        {"--shard", "8/8", "rank 8"},
        {"--shard-rule", "a=x", "PATTERN=DIM"},
        {"--shard-bytes", "1Mi", "folder"},
        {"--ranks", "2", "name a folder"},
        {"--rank-rules", "f", "--ranks N"},
        {"--ranks", "1025", "1 to 1024"},
        {"--ranks", "0", "1 to 1024"},
        {"--ranks", "two", "1 to 1024"},
        {"--align", "3", "power of two"},
        {"--encrypt", "--replace", "--seal-key-file"},
        {"--seal-key-file", "k", "--encrypt"},
        {"--set", "verify.sha256={a: 00}", "sha256"},
        {"--key-file", "/nowhere", "/nowhere"},
    };
    struct ran ran = {0};
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        RUN(&ran, "convert", model, tensors, wrong[i].flag, wrong[i].value);
        ck_assert_msg(ran.exit_code >= 2 && ran.exit_code <= 4 && strstr(ran.err, wrong[i].word),
                      "%s: exit code %d\n%s", wrong[i].flag, ran.exit_code, ran.err);
        ran_release(&ran);
    }
    ck_assert(!sl_model_exists(scratch, "m.tensors"));
}

/* Neither advice may lead to the other's refusal. */
SL_TEST(files_of_ranks_are_not_encrypted)
{
    struct ran ran = {0};
    char to[sizeof(scratch) + 8];
    snprintf(to, sizeof(to), "%s/ranks/", scratch);
    const char *const destinations[] = {to, tensors};
    for (size_t i = 0; i < SL_COUNT(destinations); i++) {
        RUN(&ran, "convert", model, destinations[i], "--ranks", "2", "--encrypt", "--seal-key-file",
            key);
        EXPECT(ran, 2, "leave --encrypt out");
    }
}

SL_TEST(encrypt_and_decrypt_are_each_others_reverse)
{
    struct ran ran = {0};
    char back[PATH_BYTES];
    RUN(&ran, "convert", model, tensors);
    EXPECT(ran, 0, "converted");
    RUN(&ran, "encrypt", tensors, sealed, "--key-file", key);
    EXPECT(ran, 0, "encrypted");
    RUN(&ran, "inspect", sealed);
    EXPECT(ran, 0, "encrypted");
    RUN(&ran, "decrypt", sealed, place(back, "back.tensors"), "--key-file", key);
    EXPECT(ran, 0, "decrypted");
    ck_assert(same_file("m.tensors", "back.tensors"));
    RUN(&ran, "decrypt", sealed, other);
    EXPECT(ran, 3, "key");
    RUN(&ran, "decrypt", tensors, other);
    EXPECT(ran, 2, "nothing to decrypt");
    RUN(&ran, "encrypt", sealed, other, "--key-file", key);
    EXPECT(ran, 2, "encrypted already");
    RUN(&ran, "encrypt", tensors, other);
    EXPECT(ran, 2, "--key-file");
    RUN(&ran, "encrypt", model, other, "--key-file", key);
    EXPECT(ran, 2, "sluice convert");
    ck_assert(!sl_model_exists(scratch, "other"));
}

SL_TEST(a_passphrase_and_its_work_are_chosen)
{
    struct ran ran = {0};
    char phrase[PATH_BYTES], back[PATH_BYTES];
    write_file(place(phrase, "phrase"), "open sesame\n", 12);
    RUN(&ran, "convert", model, tensors);
    EXPECT(ran, 0, "converted");
    RUN(&ran, "encrypt", tensors, sealed, "--passphrase-file", phrase, "--kdf", "min", "--salt",
        "000102030405060708090a0b0c0d0e0f");
    EXPECT(ran, 0, "encrypted");
    RUN(&ran, "decrypt", sealed, place(back, "back.tensors"), "--passphrase-file", phrase);
    EXPECT(ran, 0, "decrypted");
    ck_assert(same_file("m.tensors", "back.tensors"));
    RUN(&ran, "encrypt", tensors, other, "--passphrase-file", phrase, "--salt", "00");
    EXPECT(ran, 2, "32 hex digits");
    RUN(&ran, "encrypt", tensors, other, "--passphrase-file", phrase, "--memlimit", "1Ki");
    EXPECT(ran, 2, "8 KiB");
    RUN(&ran, "encrypt", tensors, other, "--passphrase-file", phrase, "--key-file", key);
    ck_assert_int_eq(ran.exit_code, 2);
    ran_release(&ran);
}

SL_TEST(in_place_needs_replace)
{
    struct ran ran = {0};
    RUN(&ran, "convert", model, tensors);
    EXPECT(ran, 0, "converted");
    RUN(&ran, "encrypt", tensors, tensors, "--key-file", key);
    EXPECT(ran, 2, "exists");
    RUN(&ran, "encrypt", tensors, tensors, "--key-file", key, "--replace");
    EXPECT(ran, 0, "encrypted");
    RUN(&ran, "inspect", "--json", tensors);
    EXPECT(ran, 0, "\"encrypted\":true");
}

SL_TEST(a_spec_says_what_is_converted)
{
    struct ran ran = {0};
    char spec[PATH_BYTES], text[4096];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
             "\"%s\"}\nsink: {tmpfs: {path: /nowhere, layout: safetensors}}\n"
             "tensors: {exclude: [c]}\n",
             model);
    write_file(place(spec, "spec.yaml"), text, strlen(text));
    RUN(&ran, "convert", spec, tensors);
    EXPECT(ran, 0, "2 tensors");
    RUN(&ran, "convert", spec, tensors, "--exclude", "h.a", "--replace");
    EXPECT(ran, 0, "2 tensors");
}

static unsigned count_names(void)
{
    struct ran ran = {0};
    unsigned count = 0;
    run_program(&ran, "/bin/ls", (const char *const[]){"-A", scratch, NULL});
    for (const char *at = ran.out; at && (at = strchr(at, '\n')); at++)
        count++;
    ran_release(&ran);
    return count;
}

SL_TEST(sigterm_ends_it_with_143_and_leaves_nothing)
{
    struct sl_server *server = sl_server_start();
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b,c,d", 500000, &bytes);
    sl_server_put(server, "/m.safetensors", data, bytes, "\"one\"");
    const struct sl_step stall[] = {
        {.first = 2, .last = 1000000, .fault = SL_FAULT_STALL, .after = 100000}};
    sl_server_script(server, stall, 1);
    unsigned before = count_names();
    const char *arguments[] = {"convert", sl_server_url(server, "/m.safetensors"),
                               tensors,   "--progress",
                               "none",    "--stall-seconds",
                               "3600", /* nothing else ends it */
                               "--hedge", "off",
                               NULL};
    pid_t pid = start_sluice(arguments, "/dev/null", "/dev/null");
    SL_AWAIT(sl_server_request_count(server) >= 2, "the second request");
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 143);
    ck_assert_uint_eq(count_names(), before);
    sl_server_stop(server);
    free(data);
}

/* A part of each row is many small reads. */
SL_TEST(a_sidecar_checks_what_a_part_of_a_tensor_is_made_of)
{
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[512,512],\"data_offsets\":[0,1048576]}}";
    enum { HEAD = 8 + sizeof(header) - 1, BYTES = HEAD + 1048576 };
    struct ran ran = {0};
    char path[PATH_BYTES];
    uint8_t *data = calloc(1, BYTES);
    data[0] = sizeof(header) - 1;
    memcpy(data + 8, header, sizeof(header) - 1);
    write_file(place(path, "matrix.safetensors"), data, BYTES);
    RUN(&ran, "sign", path, "--range-bytes", "256KiB");
    EXPECT(ran, 0, "1 object");
    data[BYTES - 1000] = 1;
    write_file(path, data, BYTES);
    RUN(&ran, "convert", path, other, "--to-format", "safetensors", "--set",
        "verify.sidecar=require", "--shard", "0/2", "--shard-rule", "w=1");
    EXPECT(ran, 5, "its crc32c is");
    free(data);
}

/* Elements that lie in another order are gathered one by one. */
SL_TEST(a_sidecar_checks_what_is_stored_in_another_order)
{
    struct ran ran = {0};
    size_t bytes;
    char path[PATH_BYTES];
    uint8_t *data = golden_read("pytorch/big_endian.pt", &bytes);
    write_file(place(path, "big.pt"), data, bytes);
    RUN(&ran, "sign", path);
    EXPECT(ran, 0, "1 object");
    RUN(&ran, "convert", path, other, "--to-format", "safetensors", "--set",
        "verify.sidecar=require", "--include", "[hqc]"); /* row by row, big-endian */
    EXPECT(ran, 0, "");
    data[1000] ^= 1; /* of q */
    write_file(path, data, bytes);
    RUN(&ran, "convert", path, other, "--to-format", "safetensors", "--set",
        "verify.sidecar=require", "--include", "[hqc]", "--replace");
    EXPECT(ran, 5, "its crc32c is");
    free(data);
}

SL_CASE(.setup = setup, .teardown = teardown)
