/* sluice keygen: what it leaves, and all that it must not touch. */
#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "crypt.h"
#include "run_sluice.h"
#include "scratch.h"

static char folder[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 20];
static int folder_fd;
static struct ran ran;

static void set_up(void)
{
    folder_fd = sl_scratch_open(folder);
    snprintf(path, sizeof(path), "%s/model.key", folder);
}

static void tear_down(void)
{
    ran_release(&ran);
    sl_scratch_close(folder_fd, folder);
}

static void read_key(uint8_t key[SL_KEY_BYTES])
{
    struct stat status;
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_int_eq(status.st_mode & 07777, 0600);
    ck_assert_int_eq(status.st_size, SL_KEY_BYTES);
    ck_assert_int_eq(read(fd, key, SL_KEY_BYTES), SL_KEY_BYTES);
    close(fd);
}

SL_TEST(a_key_is_32_bytes_for_its_owner_and_never_the_same)
{
    uint8_t first[SL_KEY_BYTES], second[SL_KEY_BYTES];
    mode_t old = umask(0);
    RUN(&ran, "keygen", path);
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(ran.out, path));
    read_key(first);
    ck_assert_int_eq(unlink(path), 0);
    umask(0777);
    RUN(&ran, "keygen", path);
    umask(old);
    ck_assert_int_eq(ran.exit_code, 0);
    read_key(second);
    ck_assert_int_ne(memcmp(first, second, SL_KEY_BYTES), 0);
}

SL_TEST(json_names_the_file_and_not_the_key)
{
    RUN(&ran, "keygen", "--json", path);
    ck_assert_int_eq(ran.exit_code, 0);
    json_t *json = json_loads(ran.out, 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(json, "path")), path);
    ck_assert_int_eq(json_integer_value(json_object_get(json, "bytes")), 32);
    ck_assert_uint_eq(json_object_size(json), 2);
    json_decref(json);
}

SL_TEST(nothing_that_exists_is_overwritten)
{
    uint8_t before[SL_KEY_BYTES], after[SL_KEY_BYTES];
    char link[SL_SCRATCH_PATH_BYTES + 20];
    RUN(&ran, "keygen", path);
    read_key(before);
    RUN(&ran, "keygen", path);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ran.err, "exists"));
    read_key(after);
    ck_assert_int_eq(memcmp(before, after, SL_KEY_BYTES), 0);
    snprintf(link, sizeof(link), "%s/link", folder);
    ck_assert_int_eq(symlink("nowhere", link), 0);
    const char *const taken[] = {folder, "/dev/null", "/dev/tty", "/dev/stdout", link};
    for (unsigned i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
        RUN(&ran, "keygen", taken[i]);
        ck_assert_msg(ran.exit_code == 2, "%s: %d %s", taken[i], ran.exit_code, ran.err);
    }
}

SL_TEST(standard_output_and_impossible_places_are_refused)
{
    char below[SL_SCRATCH_PATH_BYTES + 40];
    RUN(&ran, "keygen", "-");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_str_eq(ran.out, "");
    RUN(&ran, "keygen");
    ck_assert_int_eq(ran.exit_code, 2);
    snprintf(below, sizeof(below), "%s/no/such/folder/key", folder);
    RUN(&ran, "keygen", below);
    ck_assert_int_eq(ran.exit_code, 6);
}

SL_CASE(.setup = set_up, .teardown = tear_down)
