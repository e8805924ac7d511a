/* A file that an editor left between its mark and its end, opened with memory that fails; and names
 * that are looked up with such memory. */
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
#include "sluice_edit.h"
#include "torch_maker.h"

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

enum kind { SAFETENSORS, TENSORIZER, TORCH, KINDS };
enum { ELEMENTS = 1000, BYTES = 4 * ELEMENTS, MARKED = 3 }; /* the sync of the mark */
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

static uint8_t *take_file(const char *from, size_t *bytes)
{
    struct stat info;
    int fd = open(from, O_RDONLY);
    ck_assert_int_eq(fstat(fd, &info), 0);
    *bytes = (size_t)info.st_size;
    uint8_t *data = malloc(*bytes + 1);
    ck_assert_int_eq(read(fd, data, *bytes), (ssize_t)*bytes);
    close(fd);
    return data;
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
        ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
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

/* With allocation `nth` failing; false: there was none so late. */
static bool open_without_memory(unsigned nth, struct sluice_source **source)
{
    *source = NULL;
    sl_alloc_fail_at(nth);
    int done = sluice_open(path, NULL, source, &error);
    bool failed = sl_alloc_count() >= nth;
    sl_alloc_fail_at(0);
    ck_assert_msg(done == 0 || error.kind == SLUICE_NO_SPACE, "allocation %u: %s", nth,
                  error.message);
    return failed;
}

SL_TEST_LOOP(an_allocation_that_fails_leaves_a_marked_file_for_the_next_one, 0, KINDS)
{
    uint8_t found[BYTES];
    size_t bytes, journal_bytes;
    struct sluice_source *source;
    let_files_be_old();
    make_file(_i);
    leave_marked();
    uint8_t *data = take_file(path, &bytes), *kept = take_file(journal, &journal_bytes);
    unsigned nth = 1;
    for (bool failed = true; failed; nth++) {
        write_file(path, data, bytes);
        write_file(journal, kept, journal_bytes);
        failed = open_without_memory(nth, &source);
        sluice_close(source);
        take_tensor(found);
        ck_assert_msg(memcmp(found, after, BYTES) == 0, "allocation %u", nth);
        ck_assert_int_eq(access(journal, F_OK), -1);
    }
    ck_assert_uint_gt(nth, 10);
    free(data);
    free(kept);
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
