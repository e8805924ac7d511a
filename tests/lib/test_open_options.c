/* What callers say of what they want: which hashes are checked, and structs and flags that are
 * none. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "model_maker.h"
#include "open_case.h"
#include "sluice_edit.h"

enum { BYTES = 4000 };

static const uint64_t shape[] = {BYTES / 4};
static char path[SL_CASE_PATH_BYTES];

static struct sluice_tensor made(const void *data)
{
    return (struct sluice_tensor){.size = sizeof(struct sluice_tensor),
                                  .name = "w",
                                  .dtype = "F32",
                                  .shape = shape,
                                  .rank = 1,
                                  .data = data,
                                  .bytes = BYTES};
}

static void write_one(const char *name)
{
    sl_autofree uint8_t *data = sl_model_noise(BYTES, 1);
    const struct sluice_tensor tensor = made(data);
    struct sluice_writer *writer;
    sl_case_path(name, path);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
}

static void flip(long place)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, place, SEEK_SET), 0);
    int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, place, SEEK_SET), 0);
    ck_assert_int_ne(fputc(byte ^ 1, file), EOF);
    fclose(file);
}

/* Where the file has these bytes. */
static long place_of(const uint8_t *value, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    enum { MOST = 1 << 20 };
    sl_autofree uint8_t *text = malloc(MOST);
    size_t count = fread(text, 1, MOST, file);
    fclose(file);
    const uint8_t *found = memmem(text, count, value, bytes);
    ck_assert_ptr_nonnull(found);
    return found - text;
}

/* The SHA-256 of its only tensor is wrong; its CRC-32 is right. */
static void spoil(void)
{
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_hash hash = {.size = sizeof(hash)};
    uint32_t which = 0;
    while (sluice_source_hash(source, 0, which, &hash, &error) == 0 &&
           strcmp(hash.kind, "sha256") != 0)
        which++;
    ck_assert_str_eq(hash.kind, "sha256");
    long place = place_of(hash.value, hash.value_bytes);
    sluice_close(source);
    flip(place);
}

static int read_under(uint32_t verify)
{
    const struct sluice_open_options options = {.size = sizeof(options), .verify = verify};
    struct sluice_source *source = open_it(path, &options);
    uint8_t room[BYTES];
    const struct sluice_read read = {.size = sizeof(read), .to = room, .bytes = BYTES};
    int done = sluice_read(source, &read, 1, NULL, &error);
    sluice_close(source);
    return done;
}

SL_TEST(the_cheapest_hash_is_checked_or_each_that_there_is)
{
    write_one("m.tensors");
    ck_assert_int_eq(read_under(SLUICE_VERIFY_ALL), 0);
    spoil();
    for (uint32_t verify = SLUICE_VERIFY_DEFAULT; verify <= SLUICE_VERIFY_OFF; verify++)
        ck_assert_msg(read_under(verify) == 0, "%u: %s", verify, error.message);
    ck_assert_int_eq(read_under(SLUICE_VERIFY_ALL), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    const struct sluice_open_options options = {.size = sizeof(options),
                                                .verify = SLUICE_VERIFY_ALL + 1};
    struct sluice_source *source;
    ck_assert_int_eq(sluice_open(path, &options, &source, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
}

/* ---- structs and flags ----------------------------------------------------------------------- */

static void check_refused(int done, const char *phrase)
{
    ck_assert_int_eq(done, -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_msg(strstr(error.message, phrase), "%s", error.message);
    memset(&error, 0, sizeof(error));
}

SL_TEST(a_struct_without_its_size_is_refused)
{
    static const char says[] = "sizeof";
    const struct sluice_open_options open = {.verify = SLUICE_VERIFY_REQUIRE};
    const struct sluice_create_options create = {.format = "tensorizer"};
    const struct sluice_edit_options edit = {.flags = SLUICE_EDIT_COPY};
    const struct sluice_read_options how = {.timeout_ms = 1};
    const struct sluice_key key = {.key = "01234567890123456789012345678901"};
    const struct sluice_open_options keyed = {.size = sizeof(keyed), .key = &key};
    struct sluice_source *source;
    struct sluice_writer *writer;
    struct sluice_editor *editor;
    struct sluice_tensor tensor = {0};
    struct sluice_hash hash = {0};
    struct sluice_path_part part = {0};
    struct sluice_memory *memory;
    uint8_t room[BYTES];
    struct sluice_read read = {.to = room, .bytes = BYTES};
    write_one("m.tensors");
    check_refused(sluice_open(path, &open, &source, &error), says);
    check_refused(sluice_open(path, &keyed, &source, &error), says);
    check_refused(sluice_pull(path, sl_case_scratch, &open, &error), says);
    check_refused(sluice_create(path, &create, &writer, &error), says);
    check_refused(sluice_edit(path, &edit, &editor, &error), says);
    source = open_it(path, NULL);
    check_refused(sluice_source_tensor(source, 0, &tensor, &error), says);
    check_refused(sluice_source_find(source, "w", 0, &tensor, &error), says);
    check_refused(sluice_source_hash(source, 0, 0, &hash, &error), says);
    check_refused(sluice_source_path(source, 0, 0, &part, &error), says);
    check_refused(sluice_read(source, &read, 1, NULL, &error), says);
    read.size = sizeof(read);
    check_refused(sluice_read(source, &read, 1, &how, &error), says);
    check_refused(sluice_map(source, 0, &how, &memory, &error), says);
    sluice_close(source);
    sl_case_path("n.tensors", path);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    check_refused(sluice_write(writer, &tensor, &error), says);
    check_refused(sluice_write_path(writer, &tensor, &part, 1, &error), says);
    sluice_abandon(writer);
}

SL_TEST(flags_that_are_not_known_are_refused)
{
    static const char says[] = "flags has 0x100";
    const struct sluice_open_options open = {.size = sizeof(open), .flags = 0x100 | SLUICE_WHOLE};
    const struct sluice_open_options pull = {.size = sizeof(pull), .flags = 0x100};
    const struct sluice_create_options create = {.size = sizeof(create), .flags = 0x100};
    const struct sluice_edit_options edit = {.size = sizeof(edit), .flags = 0x100};
    struct sluice_source *source;
    struct sluice_writer *writer;
    struct sluice_editor *editor;
    write_one("m.tensors");
    check_refused(sluice_open(path, &open, &source, &error), says);
    check_refused(sluice_pull(path, sl_case_scratch, &pull, &error), says);
    check_refused(sluice_create(path, &create, &writer, &error), says);
    check_refused(sluice_edit(path, &edit, &editor, &error), says);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown)
