/* Files that are changed where they lie: what is read afterwards, and that whatever is killed or
 * fails on the way leaves what was or what shall be. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "hash.h"
#include "open_case.h"
#include "sluice_edit.h"
#include "torch_maker.h"

/* ---- calls that change files, one of which fails or is the last ------------------------------ */

static unsigned calls, wrong_at; /* 0: none */
static bool dies;

ssize_t __real_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_ftruncate64(int fd, off_t bytes);
int __wrap_ftruncate64(int fd, off_t bytes);
int __real_renameat(int from, const char *old, int to, const char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __real_unlinkat(int folder, const char *name, int flags);
int __wrap_unlinkat(int folder, const char *name, int flags);

/* Does this call go wrong? */
static bool here(void)
{
    calls++;
    return wrong_at && calls == wrong_at;
}

static int go_wrong(void)
{
    if (dies)
        raise(SIGKILL);
    errno = ENOSPC;
    return -1;
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
    if (!here())
        return __real_pwrite64(fd, data, bytes, offset);
    __real_pwrite64(fd, data, bytes / 2, offset); /* torn */
    return go_wrong();
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (!here())
        return __real_write(fd, data, bytes);
    __real_write(fd, data, bytes / 2);
    return go_wrong();
}

int __wrap_fsync(int fd)
{
    return here() ? go_wrong() : __real_fsync(fd);
}

int __wrap_ftruncate64(int fd, off_t bytes)
{
    return here() ? go_wrong() : __real_ftruncate64(fd, bytes);
}

int __wrap_renameat(int from, const char *old, int to, const char *name)
{
    return here() ? go_wrong() : __real_renameat(from, old, to, name);
}

int __wrap_unlinkat(int folder, const char *name, int flags)
{
    return here() ? go_wrong() : __real_unlinkat(folder, name, flags);
}

/* ---- models ---------------------------------------------------------------------------------- */

static char path[SL_CASE_PATH_BYTES];
static uint8_t noise[64 * 1024];

static void setup(void)
{
    sl_case_setup();
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)(i * 31 + i / 251);
}
SL_CASE(.setup = setup, .teardown = sl_case_teardown, .seconds = 120)

static struct sluice_tensor vector(const char *name, const uint64_t *elements, size_t from)
{
    return (struct sluice_tensor){.size = sizeof(struct sluice_tensor),
                                  .name = name,
                                  .dtype = "F32",
                                  .shape = elements,
                                  .rank = 1,
                                  .data = noise + from,
                                  .bytes = *elements * 4};
}

enum kind { SAFETENSORS, TENSORIZER, TORCH, KINDS };
static const char *const files[KINDS] = {"m.safetensors", "m.tensors", "m.pt"};

/* Tensors a, b, c of 1000 elements. */
static void make_file(enum kind kind)
{
    static const uint64_t elements = 1000;
    const struct sluice_create_options options = {.size = sizeof(options),
                                                  .flags = SLUICE_REPLACE | SLUICE_BORROW};
    const char *const names[] = {"model.layers.0.weight", "model.layers.1.weight",
                                 "model.layers.2.weight"};
    struct sluice_writer *writer;
    sl_case_path(files[kind], path);
    if (kind == TORCH) {
        size_t bytes;
        uint8_t *data =
            torch_make(&(struct torch_options){.tensors = 3, .items = elements}, &bytes);
        FILE *file = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
        fclose(file);
        free(data);
        return;
    }
    ck_assert_int_eq(sluice_create(path, &options, &writer, &error), 0);
    for (unsigned i = 0; i < 3; i++) {
        const struct sluice_tensor tensor = vector(names[i], &elements, 400 * i);
        ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    }
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
}

/* One number for all that a file has. */
static uint32_t sum_of(const char *uri)
{
    struct sluice_source *source = open_it(uri, NULL);
    uint64_t count = info_of(source).tensor_count;
    uint32_t crc = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct sluice_tensor tensor = tensor_of(source, i);
        uint8_t *data = whole(source, i);
        crc = sl_crc32(crc, tensor.name, tensor.name_bytes);
        crc = sl_crc32(crc, tensor.dtype, strlen(tensor.dtype));
        crc = sl_crc32(crc, tensor.shape, tensor.rank * sizeof(*tensor.shape));
        crc = sl_crc32(crc, data, tensor.bytes);
        free(data);
    }
    sluice_close(source);
    return crc;
}

/* ---- changes --------------------------------------------------------------------------------- */

enum what { SAME_SIZE, APPEND, OTHER_SIZE, DELETE, COPY, MANY, WHATS };

static int wanted(struct sluice_editor *editor, enum what what)
{
    static const uint64_t same = 1000, other = 777, more = 500;
    const struct sluice_tensor replaced =
        vector("model.layers.1.weight", what == OTHER_SIZE ? &other : &same, 8000);
    const struct sluice_tensor added = vector("added", &more, 12000);
    if (what == DELETE)
        return sluice_delete(editor, "model.layers.2.weight", 0, &error);
    if (what != APPEND && sluice_replace(editor, &replaced, &error) < 0)
        return -1;
    return what == APPEND || what == MANY ? sluice_append(editor, &added, &error) : 0;
}

static int change(enum what what)
{
    const struct sluice_edit_options options = {.size = sizeof(options),
                                                .flags = what == COPY ? SLUICE_EDIT_COPY : 0};
    struct sluice_editor *editor;
    if (sluice_edit(path, &options, &editor, &error) < 0)
        return -1;
    if (wanted(editor, what) < 0) {
        sluice_edit_abandon(editor);
        return -1;
    }
    return sluice_commit(editor, &error);
}

static void expect_change(enum what what)
{
    ck_assert_msg(change(what) == 0, "%s", error.message);
}

static void put_back(const uint8_t *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ck_assert_int_eq(__real_write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

static uint8_t *take_file(size_t *bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(fstat(fd, &info), 0);
    uint8_t *data = malloc((size_t)info.st_size + 1);
    *bytes = (size_t)info.st_size;
    ck_assert_int_eq(read(fd, data, *bytes), (ssize_t)*bytes);
    close(fd);
    return data;
}

static bool is_read(const char *name, const uint8_t *expected, uint64_t bytes)
{
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_msg(sluice_source_find(source, name, 0, &tensor, &error) == 0, "%s", error.message);
    uint8_t *data = whole(source, tensor.number);
    bool same = tensor.bytes == bytes && memcmp(data, expected, bytes) == 0;
    free(data);
    sluice_close(source);
    return same;
}

SL_TEST_LOOP(what_is_changed_is_read_and_the_rest_is_as_it_was, 0, KINDS)
{
    make_file(_i);
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor first = {.size = sizeof(first)};
    ck_assert_int_eq(sluice_source_find(source, "model.layers.0.weight", 0, &first, &error), 0);
    uint8_t *before = whole(source, first.number);
    sluice_close(source);
    for (enum what what = SAME_SIZE; what < DELETE; what++)
        expect_change(what);
    ck_assert(is_read("model.layers.0.weight", before, 4000));
    ck_assert(is_read("model.layers.1.weight", noise + 8000, 777 * 4));
    ck_assert(is_read("added", noise + 12000, 2000));
    expect_change(DELETE);
    source = open_it(path, NULL);
    ck_assert_uint_eq(info_of(source).tensor_count, 3);
    sluice_close(source);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 1);
    free(before);
}

/* Who has the file open has the same one afterwards. */
SL_TEST_LOOP(what_can_stay_where_it_is_does, 0, KINDS)
{
    struct stat before, after;
    make_file(_i);
    if (_i == SAFETENSORS)
        expect_change(APPEND); /* its head had no room, and has some now */
    else
        expect_change(SAME_SIZE);
    ck_assert_int_eq(stat(path, &before), 0);
    expect_change(SAME_SIZE);
    if (_i != SAFETENSORS)
        expect_change(APPEND);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
}

/* Versions of a model share files that did not change, as hard links. */
SL_TEST_LOOP(another_name_of_the_file_keeps_what_it_had, 0, KINDS)
{
    char other[sizeof(path) + 16];
    size_t bytes, other_bytes;
    make_file(_i);
    expect_change(_i == SAFETENSORS ? APPEND : SAME_SIZE); /* the next one can be in place */
    uint8_t *before = take_file(&bytes);
    snprintf(other, sizeof(other), "%s.other", path);
    ck_assert_int_eq(link(path, other), 0);
    expect_change(SAME_SIZE);
    ck_assert_int_eq(rename(other, path), 0);
    uint8_t *after = take_file(&other_bytes);
    ck_assert_uint_eq(bytes, other_bytes);
    ck_assert_int_eq(memcmp(before, after, bytes), 0);
    free(before);
    free(after);
}

SL_TEST_LOOP(a_copy_leaves_those_who_have_it_mapped_alone, 0, KINDS)
{
    size_t bytes;
    make_file(_i);
    uint8_t *before = take_file(&bytes);
    int fd = open(path, O_RDONLY);
    const uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    expect_change(COPY);
    ck_assert_int_eq(memcmp(map, before, bytes), 0);
    ck_assert(is_read("model.layers.1.weight", noise + 8000, 4000));
    munmap((void *)(uintptr_t)map, bytes);
    close(fd);
    free(before);
}

/* Torch finds the last directory; what lies before it is not touched, but for a name and a mark. */
SL_TEST(data_of_a_checkpoint_that_are_mapped_stay)
{
    make_file(TORCH);
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_memory *memory;
    ck_assert_int_eq(sluice_source_find(source, "model.layers.1.weight", 0, &tensor, &error), 0);
    uint8_t *before = whole(source, tensor.number);
    ck_assert_int_eq(sluice_map(source, tensor.number, NULL, &memory, &error), 0);
    expect_change(SAME_SIZE);
    ck_assert_int_eq(memcmp(memory->data, before, tensor.bytes), 0);
    sluice_unmap(memory);
    sluice_close(source);
    free(before);
}

/* ---- on the way ------------------------------------------------------------------------------ */

/* How many calls it takes. */
static unsigned count_calls(enum what what)
{
    calls = 0;
    expect_change(what);
    return calls;
}

static void expect_killed(enum what what, unsigned at)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        dies = true;
        calls = 0;
        wrong_at = at;
        change(what);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* An editor that changes nothing completes what one before left. */
static int complete(void)
{
    struct sluice_editor *editor;
    int done = sluice_edit(path, NULL, &editor, &error);
    if (done == 0)
        sluice_edit_abandon(editor);
    return done;
}

/* What a reader makes of a file that was left: what is in it, or that it is between two contents;
 * and it is as it was afterwards, with all that lies beside it. */
static bool look_without_change(uint32_t before, uint32_t after)
{
    size_t bytes, now_bytes;
    struct sluice_source *source;
    unsigned there = sl_case_files(sl_case_scratch);
    uint8_t *left = take_file(&bytes);
    bool read = sluice_open(path, NULL, &source, &error) == 0;
    if (read) {
        sluice_close(source);
        uint32_t found = sum_of(path);
        ck_assert(found == before || found == after);
    } else {
        ck_assert_str_eq(error.code, "changed");
        ck_assert_ptr_nonnull(strstr(error.message, "'sluice inspect --complete-edit'"));
    }
    uint8_t *now = take_file(&now_bytes);
    ck_assert(bytes == now_bytes && memcmp(left, now, bytes) == 0);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), there);
    free(left);
    free(now);
    return read;
}

/* KINDS times what can be done. */
SL_TEST_LOOP(killed_at_any_call_it_is_the_old_or_the_new_one, 0, KINDS *WHATS)
{
    size_t bytes;
    enum what what = _i % WHATS;
    unsigned olds = 0, news = 0, halves = 0;
    let_files_be_old();
    make_file(_i / WHATS);
    if (what == APPEND)
        expect_change(OTHER_SIZE); /* a head with room */
    uint8_t *data = take_file(&bytes);
    uint32_t before = sum_of(path);
    unsigned most = count_calls(what);
    uint32_t after = sum_of(path);
    ck_assert_uint_ne(before, after);
    for (unsigned at = 1; at <= most; at++) {
        put_back(data, bytes);
        expect_killed(what, at);
        halves += !look_without_change(before, after);
        ck_assert_msg(complete() == 0, "killed at call %u of %u: %s", at, most, error.message);
        uint32_t found = sum_of(path);
        ck_assert_msg(found == before || found == after, "killed at call %u of %u", at, most);
        olds += found == before;
        news += found == after;
        if (found == before)
            expect_change(what); /* over whatever was left */
        ck_assert_uint_eq(sum_of(path), after);
    }
    ck_assert(olds > 0 && news > 0);
    ck_assert(what != SAME_SIZE || halves > 0);
    free(data);
}

/* With allocation `nth` failing; false: there was none so late. */
static bool change_without_memory(enum what what, unsigned nth, int *done)
{
    sl_alloc_fail_at(nth);
    *done = change(what);
    bool failed = sl_alloc_count() >= nth;
    sl_alloc_fail_at(0);
    return failed;
}

SL_TEST_LOOP(an_allocation_that_fails_leaves_the_old_or_the_new_one, 0, KINDS *WHATS)
{
    size_t bytes;
    int done;
    enum what what = _i % WHATS;
    let_files_be_old();
    make_file(_i / WHATS);
    uint8_t *data = take_file(&bytes);
    uint32_t before = sum_of(path);
    expect_change(what);
    uint32_t after = sum_of(path);
    put_back(data, bytes);
    unsigned nth = 1;
    for (; change_without_memory(what, nth, &done); nth++) {
        struct sluice_error said = error;
        ck_assert_msg(complete() == 0, "allocation %u: %s", nth, error.message);
        error = said;
        uint32_t found = sum_of(path);
        ck_assert_msg(found == after || (done < 0 && found == before), "allocation %u", nth);
        ck_assert_msg(done == 0 || error.kind == SLUICE_NO_SPACE, "%s", error.message);
        put_back(data, bytes);
    }
    ck_assert_uint_gt(nth, 10);
    ck_assert_int_eq(done, 0);
    free(data);
}

SL_TEST_LOOP(a_call_that_fails_leaves_the_old_or_the_new_one, 0, KINDS *WHATS)
{
    size_t bytes;
    enum what what = _i % WHATS;
    let_files_be_old();
    make_file(_i / WHATS);
    uint8_t *data = take_file(&bytes);
    uint32_t before = sum_of(path);
    unsigned most = count_calls(what);
    uint32_t after = sum_of(path);
    for (unsigned at = 1; at <= most; at++) {
        put_back(data, bytes);
        calls = 0;
        wrong_at = at;
        int done = change(what);
        wrong_at = 0;
        struct sluice_error said = error;
        ck_assert_msg(complete() == 0, "call %u of %u: %s", at, most, error.message);
        error = said;
        uint32_t found = sum_of(path);
        ck_assert_msg(found == after || (done < 0 && found == before), "call %u of %u", at, most);
        ck_assert(done == 0 || error.message[0]);
    }
    free(data);
}

/* ---- others ---------------------------------------------------------------------------------- */

SL_TEST(two_editors_exclude_each_other)
{
    struct sluice_editor *one, *two;
    make_file(SAFETENSORS);
    ck_assert_int_eq(sluice_edit(path, NULL, &one, &error), 0);
    ck_assert_int_eq(sluice_edit(path, NULL, &two, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_str_eq(error.code, "busy");
    sluice_edit_abandon(one);
    ck_assert_int_eq(sluice_edit(path, NULL, &two, &error), 0);
    sluice_edit_abandon(two);
}

/* A child by fork() has the editor, too, and the lock is the parent's. */
SL_TEST(a_child_that_leaves_takes_no_lock_with_it)
{
    int status;
    struct sluice_editor *one, *two;
    make_file(SAFETENSORS);
    ck_assert_int_eq(sluice_edit(path, NULL, &one, &error), 0);
    pid_t child = fork();
    if (child == 0) {
        sluice_edit_abandon(one);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(sluice_edit(path, NULL, &two, &error), -1);
    ck_assert_str_eq(error.code, "busy");
    sluice_edit_abandon(one);
}

SL_TEST(a_file_that_others_wrote_to_meanwhile_is_left)
{
    struct sluice_editor *editor;
    make_file(SAFETENSORS);
    ck_assert_int_eq(sluice_edit(path, NULL, &editor, &error), 0);
    ck_assert_int_eq(wanted(editor, SAME_SIZE), 0);
    make_file(SAFETENSORS);
    uint32_t before = sum_of(path);
    ck_assert_int_eq(sluice_commit(editor, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_uint_eq(sum_of(path), before);
}

SL_TEST(a_source_that_was_opened_before_says_that_it_changed)
{
    uint8_t data[4000];
    make_file(TENSORIZER);
    struct sluice_source *source = open_it(path, NULL);
    expect_change(SAME_SIZE);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = data, .bytes = sizeof(data)};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_str_eq(error.code, "changed");
    sluice_close(source);
}

static void expect_refused(const char *file, enum sluice_error_kind kind)
{
    struct sluice_editor *editor;
    ck_assert_int_eq(sluice_edit(file, NULL, &editor, &error), -1);
    ck_assert_int_eq(error.kind, kind);
    ck_assert_msg(error.message[0], "an empty message");
}

SL_TEST(what_cannot_be_changed_is_said)
{
    static const uint64_t elements = 1000, wrong = 3;
    char other[SL_CASE_PATH_BYTES];
    struct sluice_editor *editor;
    expect_refused(NULL, SLUICE_USAGE);
    expect_refused("s3://bucket/m.safetensors", SLUICE_USAGE);
    expect_refused(sl_case_path("absent.safetensors", other), SLUICE_NOT_FOUND);
    expect_refused(sl_case_scratch, SLUICE_USAGE);
    make_file(SAFETENSORS);
    ck_assert_int_eq(sluice_edit(path, NULL, &editor, &error), 0);
    struct sluice_tensor tensor = vector("absent", &elements, 0);
    ck_assert_int_eq(sluice_replace(editor, &tensor, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_int_eq(sluice_delete(editor, "absent", 0, &error), -1);
    tensor = vector("model.layers.0.weight", &elements, 0);
    ck_assert_int_eq(sluice_append(editor, &tensor, &error), -1);
    ck_assert_str_eq(error.code, "exists");
    tensor.shape = &wrong;
    ck_assert_int_eq(sluice_replace(editor, &tensor, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_int_eq(sluice_commit(editor, &error), 0); /* nothing to do */
}
