/* A file that an editor left between its mark and its end: what completes it, and what drops the
 * journal; all of it with memory that fails; and names that are looked up with such memory. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "convert_case.h"
#include "open_case.h"
#include "own_names.h"
#include "sluice_edit.h"
#include "torch_maker.h"

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

enum kind { SAFETENSORS, TENSORIZER, TORCH, KINDS };
enum {
    ELEMENTS = 1000,
    BYTES = 4 * ELEMENTS,
    MARKED = 3,               /* the sync of the mark */
    JOURNAL_HEAD_BYTES = 128, /* of them before, mark and final */
};
static const char *const files[KINDS] = {"m.safetensors", "m.tensors", "m.pt"};
static const char name[] = "model.layers.0.weight";
static char path[SL_CASE_PATH_BYTES], journal[SL_CASE_PATH_BYTES];
static uint8_t before[BYTES], after[BYTES];

static unsigned syncs_left; /* until the process ends; 0: it does not */

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    int done = __real_fsync(fd);
    if (syncs_left && !--syncs_left)
        raise(SIGKILL);
    return done;
}

static struct sluice_tensor vector(const uint8_t *data)
{
    static const uint64_t elements = ELEMENTS;
    return (struct sluice_tensor){.size = sizeof(struct sluice_tensor),
                                  .name = name,
                                  .dtype = "F32",
                                  .shape = &elements,
                                  .rank = 1,
                                  .data = data,
                                  .bytes = BYTES};
}

static void write_file(const char *to, const uint8_t *data, size_t bytes)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

static void take_tensor(uint8_t data[BYTES])
{
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_int_eq(sluice_source_find(source, name, 0, &tensor, &error), 0);
    uint8_t *found = whole(source, tensor.number);
    ck_assert_uint_eq(tensor.bytes, BYTES);
    memcpy(data, found, BYTES);
    free(found);
    sluice_close(source);
}

static void make_file(enum kind kind)
{
    char hidden[64];
    struct sluice_writer *writer;
    sl_case_path(files[kind], path);
    snprintf(hidden, sizeof(hidden), ".%s.sluice-edit", files[kind]);
    sl_case_path(hidden, journal);
    memset(after, 0x3d, sizeof(after));
    if (kind == TORCH) {
        size_t bytes;
        uint8_t *data =
            torch_make(&(struct torch_options){.tensors = 2, .items = ELEMENTS}, &bytes);
        write_file(path, data, bytes);
        free(data);
    } else {
        const struct sluice_tensor tensor = vector(before);
        const struct sluice_create_options options = {.size = sizeof(options),
                                                      .flags = SLUICE_REPLACE};
        ck_assert_int_eq(sluice_create(path, &options, &writer, &error), 0);
        ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
        ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    }
    take_tensor(before);
}

/* Replace the tensor, and be killed when the mark is on the disk. */
static void leave_marked(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        const struct sluice_tensor tensor = vector(after);
        struct sluice_editor *editor;
        if (sluice_edit(path, NULL, &editor, &error) < 0 ||
            sluice_replace(editor, &tensor, &error) < 0)
            _exit(1);
        syncs_left = MARKED;
        sluice_commit(editor, &error);
        _exit(2);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* A reader and an editor with allocation `nth` failing; false: neither made so many. */
static bool open_without_memory(unsigned nth)
{
    struct sluice_source *source;
    struct sluice_editor *editor = NULL;
    sl_alloc_fail_at(nth);
    ck_assert_int_eq(sluice_open(path, NULL, &source, &error), -1);
    bool failed = sl_alloc_count() >= nth;
    ck_assert_msg(strcmp(error.code, "changed") == 0 || (failed && error.kind == SLUICE_NO_SPACE),
                  "allocation %u: %s", nth, error.message);
    sl_alloc_fail_at(nth);
    int done = sluice_edit(path, NULL, &editor, &error);
    failed = sl_alloc_count() >= nth || failed;
    sl_alloc_fail_at(0);
    ck_assert_msg(done == 0 || error.kind == SLUICE_NO_SPACE, "allocation %u: %s", nth,
                  error.message);
    sluice_edit_abandon(editor);
    return failed;
}

SL_TEST_LOOP(an_allocation_that_fails_leaves_a_marked_file_for_the_next_one, 0, KINDS)
{
    uint8_t found[BYTES];
    struct sluice_editor *editor;
    let_files_be_old();
    unsigned nth = 1;
    for (bool failed = true; failed; nth++) {
        make_file(_i);
        leave_marked();
        failed = open_without_memory(nth);
        ck_assert_int_eq(sluice_edit(path, NULL, &editor, &error), 0);
        sluice_edit_abandon(editor);
        take_tensor(found);
        ck_assert_msg(memcmp(found, after, BYTES) == 0, "allocation %u", nth);
        ck_assert_int_eq(access(journal, F_OK), -1);
    }
    ck_assert_uint_gt(nth, 10);
}

/* A name is there, or it is not, or nobody knows: it is never taken for absent. */
SL_TEST_LOOP(an_allocation_that_fails_lets_no_name_in_twice, 0, KINDS)
{
    let_files_be_old();
    make_file(_i);
    const struct sluice_tensor tensor = vector(after);
    bool known = false;
    for (unsigned nth = 1; !known; nth++) {
        struct sluice_editor *editor;
        sl_alloc_fail_at(nth);
        int done = sluice_edit(path, NULL, &editor, &error);
        if (done == 0) {
            done = sluice_append(editor, &tensor, &error);
            known = sl_alloc_count() < nth;
            sluice_edit_abandon(editor);
        }
        sl_alloc_fail_at(0);
        ck_assert_int_eq(done, -1);
        ck_assert_msg(error.kind == SLUICE_NO_SPACE || strcmp(error.code, "exists") == 0, "%s",
                      error.message);
        ck_assert(!known || error.kind == SLUICE_USAGE);
    }
}

/* ---- what completes it ----------------------------------------------------------------------- */

static uint8_t *take_file(size_t *bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(fstat(fd, &info), 0);
    *bytes = (size_t)info.st_size;
    uint8_t *data = malloc(*bytes + 1);
    ck_assert_int_eq(read(fd, data, *bytes), (ssize_t)*bytes);
    close(fd);
    return data;
}

static void expect_file(const uint8_t *data, size_t bytes)
{
    size_t now_bytes;
    uint8_t *now = take_file(&now_bytes);
    ck_assert(bytes == now_bytes && memcmp(data, now, bytes) == 0);
    free(now);
}

static void write_at(const char *to, size_t at, const void *data, size_t bytes)
{
    int fd = open(to, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, data, bytes, (off_t)at), (ssize_t)bytes);
    close(fd);
}

static int complete(void)
{
    struct sluice_editor *editor;
    int done = sluice_edit(path, NULL, &editor, &error);
    if (done == 0)
        sluice_edit_abandon(editor);
    return done;
}

static void expect_tensor(const uint8_t wanted[BYTES])
{
    uint8_t found[BYTES];
    take_tensor(found);
    ck_assert_mem_eq(found, wanted, BYTES);
}

SL_TEST(a_damaged_journal_is_told_and_not_followed)
{
    size_t bytes;
    struct sluice_source *source;
    make_file(SAFETENSORS);
    leave_marked();
    write_at(journal, 200, "x", 1);
    uint8_t *data = take_file(&bytes);
    ck_assert_int_eq(sluice_open(path, NULL, &source, &error), -1);
    ck_assert_str_eq(error.code, "changed");
    ck_assert_int_eq(complete(), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_ptr_nonnull(strstr(error.message, "journal"));
    expect_file(data, bytes);
    free(data);
}

/* The journal of a file that is another one by now, or that was written over in place, by a program
 * that knows no lock. */
SL_TEST_LOOP(a_journal_of_what_is_not_there_any_more_does_nothing, 0, 2)
{
    char other[SL_CASE_PATH_BYTES];
    size_t bytes;
    make_file(SAFETENSORS);
    uint8_t *data = take_file(&bytes);
    leave_marked();
    sl_case_path("other", other);
    write_file(_i ? path : other, data, bytes);
    if (_i == 0)
        ck_assert_int_eq(rename(other, path), 0);
    ck_assert_int_eq(complete(), 0);
    expect_file(data, bytes);
    expect_tensor(before);
    const struct sluice_tensor tensor = vector(after);
    struct sluice_editor *editor;
    ck_assert_int_eq(sluice_edit(path, NULL, &editor, &error), 0);
    ck_assert_int_eq(sluice_replace(editor, &tensor, &error), 0);
    ck_assert_int_eq(sluice_commit(editor, &error), 0);
    expect_tensor(after);
    ck_assert_int_eq(access(journal, F_OK), -1);
    free(data);
}

/* The last of the eight bytes is 0xff, and one of the others is none of the journal's: neither what
 * stood there, nor the mark, which is random and not in the file yet, nor what shall stand there.
 */
SL_TEST_LOOP(a_mark_of_which_one_byte_is_another_is_none, 0, 7)
{
    uint8_t head[JOURNAL_HEAD_BYTES];
    size_t bytes;
    make_file(SAFETENSORS);
    leave_marked();
    uint8_t *data = take_file(&bytes), other = 0;
    ck_assert_uint_eq(data[7], 0xff);
    int fd = open(journal, O_RDONLY);
    ck_assert_int_eq(pread(fd, head, sizeof(head), 0), sizeof(head));
    close(fd);
    while (memchr(head, other, sizeof(head)))
        other++;
    data[_i] = other;
    write_at(path, (size_t)_i, &other, 1);
    ck_assert_int_eq(complete(), -1);
    ck_assert_int_eq(error.kind, SLUICE_FORMAT);
    expect_file(data, bytes);
    free(data);
}

SL_TEST(a_journal_is_completed_through_a_link_and_is_no_part_of_a_folder)
{
    char link[SL_CASE_PATH_BYTES];
    struct sluice_editor *editor;
    make_file(SAFETENSORS);
    leave_marked();
    ck_assert_int_eq(mkdir(sl_case_path("sub", link), 0755), 0);
    ck_assert_int_eq(symlink(path, sl_case_path("sub/link.safetensors", link)), 0);
    ck_assert_int_eq(sluice_edit(link, NULL, &editor, &error), 0);
    sluice_edit_abandon(editor);
    expect_tensor(after);
    const char *name_of_journal = strrchr(journal, '/') + 1;
    ck_assert(sl_own_name(name_of_journal, strlen(name_of_journal)));
}
