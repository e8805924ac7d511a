/*
 * Every length that a .tensors file or a checkpoint of PyTorch holds, claimed from 0 to 2^64-1, in
 * files that are as long as they claim: each command ends soon, in little memory, with the one code
 * that fits. More claims come from a seed (seed.h).
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claim_maker.h"
#include "claims.h"
#include "seed.h"
#include "sizes_case.h"
#include "source.h"
#include "tree.h"

enum {
    RANDOM_RUNS = 80,
    RANDOM_RUNS_WHOLE = 800,
    COSTLY_BYTES = 1 << 22, /* honest bytes that are not written … */
};
static const uint64_t ROOM_BYTES = UINT64_C(1) << 46; /* … unless no machine has room for them */
static const uint64_t STORAGE_BYTES_MAX = UINT64_C(1) << 40;

static char claim[40], file[32], source[SL_SCRATCH_PATH_BYTES + 64];

/* ---- where the claim is made ----------------------------------------------------------------- */

/* What the claim is in the file. */
static uint64_t value;

/* A claim is true, or it contradicts the file. */
enum truth { TRUE, FALSE };

static enum truth claim_count(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.count = value;
    claim_tensorizer_file(file, &wanted);
    return value == 1 ? TRUE : FALSE;
}

static enum truth claim_metadata(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.metadata_bytes = value;
    claim_tensorizer_file(file, &wanted);
    return value >= 46 && value <= CLAIM_METADATA_BYTES ? TRUE : FALSE; /* one entry, some zeros */
}

static enum truth claim_header_at(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.header_at = value;
    claim_tensorizer_file(file, &wanted);
    return value == CLAIM_HEADER_AT ? TRUE : FALSE;
}

static enum truth claim_header(void)
{
    enum { FIELDS = 38, MAX = 4 * 1024 * 1024 };
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.header_bytes = value;
    bool fits = claim_tensorizer_file(file, &wanted);
    return fits && value >= FIELDS && value <= MAX ? TRUE : FALSE;
}

/* As long as the MACs of an encrypted tensor of that length might be. */
static enum truth claim_header_of_data(void)
{
    enum { FIELDS = 38, MAX = 4 * 1024 * 1024 };
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.data_bytes = wanted.shape = value;
    wanted.header_bytes = value / 1000;
    bool fits = claim_tensorizer_file(file, &wanted);
    return fits && wanted.header_bytes >= FIELDS && wanted.header_bytes <= MAX ? TRUE : FALSE;
}

static enum truth claim_data(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.data_bytes = wanted.shape = value;
    return claim_tensorizer_file(file, &wanted) ? TRUE : FALSE;
}

static enum truth claim_shape(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.shape = value;
    claim_tensorizer_file(file, &wanted);
    return value == wanted.data_bytes ? TRUE : FALSE;
}

static enum truth claim_length(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.data_bytes = value;
    claim_tensorizer_file(file, &wanted);
    return value == wanted.shape || value == 0 ? TRUE : FALSE; /* 0: a meta tensor */
}

static enum truth checkpoint(struct claim_pytorch *wanted, bool fine)
{
    wanted->minus_one = *claim == '-';
    return claim_pytorch_file(file, wanted) && fine ? TRUE : FALSE;
}

static enum truth claim_gap(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.gap = value;
    return checkpoint(&wanted, true);
}

static enum truth claim_entry(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.said_entry_bytes = &value;
    return checkpoint(&wanted, value == wanted.storage);
}

static enum truth claim_entry_at(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.said_entry_at = &value;
    return checkpoint(&wanted, false);
}

static enum truth claim_directory_at(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.said_directory_at = &value;
    return checkpoint(&wanted, false);
}

static enum truth claim_directory(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.said_directory_bytes = &value;
    return checkpoint(&wanted, false);
}

static enum truth claim_directory_holes(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.directory_holes = value;
    return checkpoint(&wanted, value == 0);
}

static enum truth claim_entries(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.said_count = &value;
    return checkpoint(&wanted, value == 3);
}

static enum truth claim_storage(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.storage = wanted.elements = wanted.shape = value;
    return checkpoint(&wanted, value <= STORAGE_BYTES_MAX);
}

static enum truth claim_elements(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.elements = value;
    return checkpoint(&wanted, value == wanted.storage);
}

static enum truth claim_dimension(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.shape = value;
    return checkpoint(&wanted, value <= wanted.storage);
}

static enum truth claim_stride(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.shape = 2;
    wanted.stride = value;
    return checkpoint(&wanted, value < wanted.storage);
}

static enum truth claim_offset(void)
{
    struct claim_pytorch wanted = claim_pytorch;
    wanted.shape = 1;
    wanted.offset = value;
    return checkpoint(&wanted, value < wanted.storage);
}

static const struct place {
    const char *words, *file;
    enum truth (*make)(void);
} places[] = {
    {"the count of tensors", "m.tensors", claim_count},
    {"the metadata block's length", "m.tensors", claim_metadata},
    {"a tensor header's place", "m.tensors", claim_header_at},
    {"a tensor header's length", "m.tensors", claim_header},
    {"the lengths of a tensor and its header", "m.tensors", claim_header_of_data},
    {"shape and length of a tensor", "m.tensors", claim_data},
    {"the shape of a tensor", "m.tensors", claim_shape},
    {"the length of a tensor", "m.tensors", claim_length},
    {"the place of what follows the pickle", "m.pt", claim_gap},
    {"the length of an entry", "m.pt", claim_entry},
    {"the place of an entry", "m.pt", claim_entry_at},
    {"the directory's place", "m.pt", claim_directory_at},
    {"the directory's length", "m.pt", claim_directory},
    {"a directory of holes", "m.pt", claim_directory_holes},
    {"the count of entries", "m.pt", claim_entries},
    {"storage and shape", "m.pt", claim_storage},
    {"elements of a storage", "m.pt", claim_elements},
    {"a dimension", "m.pt", claim_dimension},
    {"a stride", "m.pt", claim_stride},
    {"an offset in a storage", "m.pt", claim_offset},
};

/* ---- what is done with it -------------------------------------------------------------------- */

enum command { INSPECT, VERIFY, PLAN, LOAD, CONVERT, SEAL, COMMANDS };
static const char *const command_names[] = {"inspect", "verify",  "plan",
                                            "load",    "convert", "convert --encrypt"};

static void run_command(enum command command, struct ran *ran)
{
    char to[sizeof(sizes_folder) + 40], key[sizeof(sizes_folder) + 40];
    snprintf(to, sizeof(to), "%s/%s", sizes_folder,
             command == LOAD   ? "out"
             : command == SEAL ? "out.tensors"
                               : "out.safetensors");
    snprintf(key, sizeof(key), "%s/key", sizes_folder);
    if (command == LOAD)
        RUN_COPY(ran, "load", source, "--to", to);
    else if (command == CONVERT)
        RUN_COPY(ran, "convert", source, to);
    else if (command == SEAL)
        RUN_COPY(ran, "convert", source, to, "--encrypt", "--seal-key-file", key);
    else
        RUN_COPY(ran, command_names[command], source);
}

static uint64_t file_bytes(void)
{
    struct stat status;
    ck_assert_int_eq(stat(source, &status), 0);
    return (uint64_t)status.st_size;
}

/* Bytes of a file are loaded as they are, unless the format has hashes that a load checks. */
static bool looks_inside(const struct place *place, enum command command)
{
    bool verbatim = command == PLAN || command == LOAD || command == VERIFY;
    return strcmp(place->file, "m.tensors") == 0 || !verbatim;
}

/* What a load or conversion would write, and a plan looks for room for. */
static uint64_t wanted_bytes(const struct place *place, enum command command)
{
    bool whole = command == PLAN || command == LOAD || place->make == claim_data ||
                 place->make == claim_header_of_data || place->make == claim_storage;
    return command == INSPECT || command == VERIFY || !whole ? 0 : file_bytes();
}

static int exit_of(enum sl_err_kind kind)
{
    return sl_err_row(kind)->exit_code;
}

/* The code that fits; -1: whether there is room depends on the machine. */
static int expect(const struct place *place, enum command command, enum truth truth)
{
    uint64_t bytes = wanted_bytes(place, command);
    bool shape_without_data = place->make == claim_length && value == 0;
    if (file_bytes() > SL_OBJECT_BYTES_MAX || (truth == FALSE && looks_inside(place, command)) ||
        (shape_without_data && command == CONVERT))
        return exit_of(SL_E_FORMAT);
    if (bytes > ROOM_BYTES)
        return exit_of(SL_E_NO_SPACE);
    return bytes < COSTLY_BYTES ? 0 : -1;
}

/* A claim and its file. */
struct trial {
    const struct place *place;
    char claim[sizeof(claim)];
    enum truth truth;
};

static void name_file(const struct trial *trial, unsigned number)
{
    snprintf(claim, sizeof(claim), "%s", trial->claim);
    value = *claim == '-' ? UINT64_MAX : strtoull(claim, NULL, 10);
    snprintf(file, sizeof(file), "%u-%s", number, trial->place->file);
    snprintf(source, sizeof(source), "%s/%s", sizes_folder, file);
}

/* A command waits until the times of the file that it reads would show another change, so all files
 * are made before the first is read. */
static void make_files(struct trial *trials, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        name_file(&trials[i], i);
        trials[i].truth = trials[i].place->make();
    }
}

static void try_one(const struct trial *trial, unsigned number, enum command command)
{
    char what[300];
    struct ran ran = {0};
    name_file(trial, number);
    int code = expect(trial->place, command, trial->truth);
    if (code < 0 && command != PLAN)
        return;
    snprintf(what, sizeof(what), "%s of a claim of %s by %s", command_names[command], claim,
             trial->place->words);
    run_command(command, &ran);
    bool fits = code >= 0 ? ran.exit_code == code
                          : ran.exit_code == 0 || ran.exit_code == exit_of(SL_E_NO_SPACE);
    ck_assert_msg(fits, "%s: %d instead of %d: %s", what, ran.exit_code, code, ran.err);
    sizes_judge(what, &ran, SIZES_PEAK_KIB);
    ran_release(&ran);
    sl_tree_remove(sizes_scratch, "out");
    unlinkat(sizes_scratch, "out.safetensors", 0);
    unlinkat(sizes_scratch, "out.tensors", 0);
}

/* ---- the tests ------------------------------------------------------------------------------- */

SL_TEST_LOOP(every_length_in_a_header_is_judged_before_it_costs_anything, 0, (int)SL_COUNT(places))
{
    struct trial trials[SIZES_CLAIMS];
    unsigned count = 0;
    for (size_t i = (size_t)_i % SL_TEST_STEP; i < SIZES_CLAIMS; i += SL_TEST_STEP) {
        trials[count] = (struct trial){.place = &places[_i]};
        snprintf(trials[count++].claim, sizeof(claim), "%s", sizes_claims[i]);
    }
    make_files(trials, count);
    for (unsigned i = 0; i < count; i++)
        for (enum command command = INSPECT; command < COMMANDS; command++)
            try_one(&trials[i], i, command);
}

SL_TEST(lengths_from_a_seed_are_judged_too)
{
    uint64_t state = sl_test_seed();
    unsigned count = sl_test_rounds(RANDOM_RUNS, RANDOM_RUNS_WHOLE) / SL_TEST_STEP;
    struct trial *trials = calloc(count, sizeof(*trials));
    ck_assert_ptr_nonnull(trials);
    for (unsigned i = 0; i < count; i++) {
        trials[i].place = &places[sl_test_draw(&state, SL_COUNT(places))];
        sizes_random(&state, trials[i].claim, sizeof(claim));
    }
    make_files(trials, count);
    for (unsigned i = 0; i < count; i++)
        try_one(&trials[i], i, (enum command)sl_test_draw(&state, COMMANDS));
    free(trials);
}

/* Each header is as long as one may be, and all of it is zeros that a file need not hold. */
SL_TEST(headers_of_all_tensors_are_added_up_before_one_is_read)
{
    struct ran ran = {0};
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.header_bytes = 4 * 1024 * 1024;
    wanted.shape = wanted.data_bytes = 1;
    snprintf(source, sizeof(source), "%s/m.tensors", sizes_folder);
    claim_headers_file("m.tensors", 8, &wanted);
    RUN(&ran, "plan", source);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    claim_headers_file("m.tensors", 200, &wanted);
    RUN(&ran, "plan", source);
    ck_assert_int_eq(ran.exit_code, exit_of(SL_E_FORMAT));
    ck_assert_msg(strstr(ran.err, "tensor headers have 838860800 bytes"), "%s", ran.err);
    sizes_judge("a plan", &ran, SIZES_PEAK_KIB);
    ran_release(&ran);
}

SL_TEST(no_file_is_written_whose_headers_would_be_refused)
{
    struct ran ran = {0};
    struct claim_tensorizer wanted = claim_tensorizer;
    char to[sizeof(sizes_folder) + 40];
    wanted.shape = wanted.data_bytes = 1;
    snprintf(source, sizeof(source), "%s/m.tensors", sizes_folder);
    snprintf(to, sizeof(to), "%s/out.tensors", sizes_folder);
    claim_headers_file("m.tensors", 600, &wanted);
    RUN(&ran, "convert", source, to, "--align", "1MiB");
    ck_assert_int_eq(ran.exit_code, exit_of(SL_E_FORMAT));
    ck_assert_msg(strstr(ran.err, "smaller --align"), "%s", ran.err);
    ck_assert_int_eq(faccessat(sizes_scratch, "out.tensors", F_OK, 0), -1);
    RUN(&ran, "convert", source, to, "--align", "4KiB");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ran_release(&ran);
}

SL_CASE(.setup = sizes_open, .teardown = sizes_close)
