/*
 * What lies beside a file that is edited, whoever put it there: readers change nothing and are
 * never kept out, editors change this file alone, and a journal counts only where it was written.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "open_case.h"
#include "run_sluice.h"
#include "sluice_edit.h"
#include "stranger.h"

enum { ELEMENTS = 1000, BYTES = 4 * ELEMENTS, PATH_BYTES = SL_CASE_PATH_BYTES + 320 };
static const char name[] = "model.layers.0.weight", model[] = "m.safetensors";
static char folder[SL_CASE_PATH_BYTES], path[PATH_BYTES], beside[PATH_BYTES], canary[PATH_BYTES];
static uint8_t before[BYTES], after[BYTES];
static struct ran ran;

static const char *const ends[] = {
#define SL_OWN_BESIDE(end, writer, reader, proof) end,
#define SL_OWN_BELOW(name, writer, reader, proof)
#define SL_OWN_NODE(name, writer, reader, proof)
#include "own_names.def"
#undef SL_OWN_BESIDE
#undef SL_OWN_BELOW
#undef SL_OWN_NODE
};
enum { JOURNAL, STAGED, LOCK, ENDS };
_Static_assert(SL_COUNT(ends) == ENDS, "a row of own_names.def without a place here");

/* ---- a process that ends at a sync ----------------------------------------------------------- */

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

/* ---- a model in a folder --------------------------------------------------------------------- */

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

static void put(const char *to, const void *data, size_t bytes, mode_t mode)
{
    sl_autoclose int fd = open(to, O_WRONLY | O_CREAT | O_EXCL, mode);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    ck_assert_int_eq(fchmod(fd, mode), 0);
}

static uint8_t *take(const char *from, size_t *bytes)
{
    struct stat info;
    sl_autoclose int fd = open(from, O_RDONLY);
    ck_assert_int_eq(fstat(fd, &info), 0);
    *bytes = (size_t)info.st_size;
    uint8_t *data = malloc(*bytes + 1);
    ck_assert_int_eq(read(fd, data, *bytes), (ssize_t)*bytes);
    return data;
}

static void copy(const char *from, const char *to)
{
    size_t bytes;
    struct stat info;
    uint8_t *data = take(from, &bytes);
    ck_assert_int_eq(stat(from, &info), 0);
    put(to, data, bytes, info.st_mode & 0777);
    free(data);
}

/* A folder with a model; what is asked for beside it later lies at `beside`. */
static void make_folder(const char *called, unsigned end)
{
    struct sluice_writer *writer;
    const struct sluice_tensor tensor = vector(before);
    sl_case_path(called, folder);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    snprintf(path, sizeof(path), "%s/%s", folder, model);
    snprintf(beside, sizeof(beside), "%s/.%s%s", folder, model, ends[end]);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    ck_assert_int_eq(chmod(path, 0644), 0);
}

static void setup(void)
{
    sl_case_setup();
    ck_assert_int_eq(chmod(sl_case_scratch, 0755), 0);
    memset(before, 0x3c, sizeof(before));
    memset(after, 0x3d, sizeof(after));
    put(sl_case_path("canary", canary), "canary", 6, 0640);
    setenv("SLUICE_TERMINATION_LOG", "off", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_case_teardown();
}
SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)

static int change(void)
{
    const struct sluice_tensor tensor = vector(after);
    struct sluice_editor *editor;
    if (sluice_edit(path, NULL, &editor, &error) < 0)
        return -1;
    ck_assert_int_eq(sluice_replace(editor, &tensor, &error), 0);
    return sluice_commit(editor, &error);
}

/* Killed when the journal is there (2), or when the file is between its contents (3). */
static void change_killed(unsigned syncs)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        syncs_left = syncs;
        change();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* 0: it is `data`, 1: it is something else, 2: it cannot be read. */
static int compare(const uint8_t *data)
{
    struct sluice_source *source;
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    if (sluice_open(path, NULL, &source, &error) < 0)
        return 2;
    ck_assert_int_eq(sluice_source_find(source, name, 0, &tensor, &error), 0);
    uint8_t *found = whole(source, tensor.number);
    int result = memcmp(found, data, BYTES) != 0;
    free(found);
    sluice_close(source);
    return result;
}

static int compare_before(void *arg)
{
    (void)arg;
    return compare(before);
}

/* On a read-only mount of the folder, as a volume is; 77: there are none here. */
static int compare_mounted(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount(folder, folder, NULL, MS_BIND, NULL) < 0 ||
            mount(NULL, folder, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
            _exit(77);
        _exit(compare(before));
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

/* A killed editor leaves its lock, which the next one takes. */
static bool is_counted(const char *leaf)
{
    return strcmp(leaf, ".") != 0 && strcmp(leaf, "..") != 0 &&
           (!strstr(leaf, ends[LOCK]) || strstr(beside, ends[LOCK]));
}

/* Names, inodes, sizes and change times of all that is in the folder. */
static void survey(char text[2048])
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    ck_assert_int_gt(count, 0);
    *text = 0;
    for (int i = 0; i < count; i++) {
        struct stat info;
        char whole_name[2 * PATH_BYTES];
        size_t used = strlen(text);
        snprintf(whole_name, sizeof(whole_name), "%s/%s", folder, entries[i]->d_name);
        if (!is_counted(entries[i]->d_name)) {
            free(entries[i]);
            continue;
        }
        ck_assert_int_eq(lstat(whole_name, &info), 0);
        snprintf(text + used, 2048 - used, "%s %lu %lld %ld.%09ld\n", entries[i]->d_name,
                 (unsigned long)info.st_ino, (long long)info.st_size, (long)info.st_ctim.tv_sec,
                 info.st_ctim.tv_nsec);
        free(entries[i]);
    }
    free(entries);
}

/* ---- the table ------------------------------------------------------------------------------- */

enum thing {
    MISSING,
    EMPTY,
    TEXT,    /* of another format */
    COPIED,  /* a journal that was written for another file */
    EARLIER, /* a journal of the format before */
    LINKED,  /* a hard link to a file elsewhere */
    LEADING, /* a link to it */
    DANGLING,
    LOOP,
    LOCKED, /* a file that another process holds */
    HUGE,
    PIPE,
    HOLLOW, /* a folder */
    FULL,   /* a folder with something in it */
    THEIRS, /* another user's file */
    THINGS
};

static char elsewhere[2][PATH_BYTES]; /* a file that was left half-way, and its journal */

static void leave_elsewhere(void)
{
    make_folder("elsewhere", JOURNAL);
    change_killed(3);
    memcpy(elsewhere[0], path, sizeof(path));
    memcpy(elsewhere[1], beside, sizeof(beside));
}

/* The descriptor of what is held; -1: nothing. */
static int put_thing(enum thing thing, uid_t owner)
{
    static const char earlier[144] = "sluice-edit 1\n";
    char below[PATH_BYTES + 8];
    int fd = -1;
    switch (thing) {
    case MISSING:
    case THINGS:
        break;
    case EMPTY:
        put(beside, "", 0, 0644);
        break;
    case TEXT:
        put(beside, "not what the name says", 22, 0600);
        break;
    case COPIED:
        copy(elsewhere[1], beside);
        break;
    case EARLIER:
        put(beside, earlier, sizeof(earlier), 0600);
        break;
    case LINKED:
        ck_assert_int_eq(link(canary, beside), 0);
        break;
    case LEADING:
        ck_assert_int_eq(symlink(canary, beside), 0);
        break;
    case DANGLING:
        ck_assert_int_eq(symlink("nowhere/at/all", beside), 0);
        break;
    case LOOP:
        ck_assert_int_eq(symlink(strrchr(beside, '/') + 1, beside), 0);
        break;
    case LOCKED:
    case THEIRS:
        put(beside, "", 0, 0666);
        fd = open(beside, O_RDONLY | O_CLOEXEC);
        ck_assert_int_eq(flock(fd, LOCK_EX), 0);
        break;
    case HUGE:
        put(beside, "sluice-edit 2\n\0\0", 16, 0600);
        ck_assert_int_eq(truncate(beside, (off_t)1 << 40), 0);
        break;
    case PIPE:
        ck_assert_int_eq(mkfifo(beside, 0666), 0);
        break;
    case HOLLOW:
    case FULL:
        ck_assert_int_eq(mkdir(beside, 0755), 0);
        snprintf(below, sizeof(below), "%s/x", beside);
        if (thing == FULL)
            put(below, "x", 1, 0644);
        break;
    }
    if (thing == THEIRS && geteuid() == 0)
        owner = 54321;
    if (thing != MISSING && geteuid() == 0)
        ck_assert_int_eq(fchownat(AT_FDCWD, beside, owner, owner, AT_SYMLINK_NOFOLLOW), 0);
    return fd;
}

static void expect_canary(void)
{
    struct stat info;
    size_t bytes;
    uint8_t *data = take(canary, &bytes);
    ck_assert(bytes == 6 && memcmp(data, "canary", 6) == 0);
    ck_assert_int_eq(stat(canary, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0640);
    free(data);
}

/* This user, another one, and who sees the folder through a read-only mount. */
static void expect_readers(enum thing thing)
{
    char was[2048], is[2048];
    survey(was);
    ck_assert_msg(compare(before) == 0, "%d: %s", thing, error.message);
    if (geteuid() == 0) {
        ck_assert_int_eq(stranger_runs(compare_before, NULL), 0);
        int mounted = compare_mounted();
        ck_assert(mounted == 0 || mounted == 77);
    }
    survey(is);
    ck_assert_str_eq(was, is);
}

/* A lock that is held by who may edit the file is one. */
static bool is_busy(unsigned end, enum thing thing)
{
    return end == LOCK && (thing == LOCKED || (thing == THEIRS && geteuid() != 0));
}

/* Whatever lies at one of the names. */
SL_TEST_LOOP(nobody_is_kept_out_and_nothing_else_is_written, 0, ENDS *THINGS)
{
    unsigned end = (unsigned)_i / THINGS;
    enum thing thing = _i % THINGS;
    leave_elsewhere();
    make_folder("here", end);
    sl_autoclose int held = put_thing(thing, geteuid());
    expect_readers(thing);
    int done = change();
    if (is_busy(end, thing)) {
        ck_assert_int_eq(done, -1);
        ck_assert_str_eq(error.code, "busy");
        ck_assert_int_eq(compare(before), 0);
    } else {
        ck_assert_msg(done == 0, "%s with %d: %s", ends[end], thing, error.message);
        ck_assert_int_eq(compare(after), 0);
    }
    expect_canary();
}

static int change_as_stranger(void *arg)
{
    (void)arg;
    return change() == 0 ? 0 : error.kind == SLUICE_AUTH ? 2 : error.kind == SLUICE_USAGE ? 3 : 4;
}

/* Where everybody may put files, and nobody remove those of others. */
/* The second half: the file's group may write to it, and they are not of that. */
SL_TEST_LOOP(what_others_put_into_a_shared_folder_keeps_no_owner_out, 0, 2 * ENDS * THINGS)
{
    unsigned end = (unsigned)_i / THINGS % ENDS;
    enum thing thing = _i % THINGS;
    if (!stranger_exists("what_others_put_into_a_shared_folder_keeps_no_owner_out"))
        return;
    leave_elsewhere();
    make_folder("shared", end);
    ck_assert_int_eq(chmod(folder, 01777), 0);
    ck_assert_int_eq(chown(path, STRANGER_UID, STRANGER_GID), 0);
    ck_assert_int_eq(chmod(path, _i < ENDS * THINGS ? 0644 : 0664), 0);
    sl_autoclose int held = put_thing(thing, 54321);
    expect_readers(thing);
    int done = stranger_runs(change_as_stranger, NULL);
    bool refused = end == LOCK && thing != MISSING; /* to go on would be without any lock */
    ck_assert_int_eq(done, refused ? 2 : 0);
    ck_assert_int_eq(compare(refused ? before : after), 0);
    expect_canary();
}

static int hold_all(void *arg)
{
    (void)arg;
    int file = open(path, O_RDONLY), place = open(folder, O_RDONLY | O_DIRECTORY);
    if (file < 0 || place < 0 || flock(file, LOCK_EX) < 0 || flock(place, LOCK_EX) < 0)
        return 1;
    fcntl(file, F_SETLEASE, F_RDLCK); /* only its owner may */
    put(beside, "held", 4, 0644);
    pause();
    return 0;
}

/* Locks that a reader can take keep no editor out. */
SL_TEST(who_may_only_read_a_file_holds_no_editor_up)
{
    char mark[SL_CASE_PATH_BYTES];
    struct stat info;
    if (!stranger_exists("who_may_only_read_a_file_holds_no_editor_up"))
        return;
    make_folder("here", LOCK);
    sl_case_path("marks", mark);
    ck_assert_int_eq(mkdir(mark, 0777), 0);
    ck_assert_int_eq(chmod(mark, 0777), 0);
    snprintf(beside, sizeof(beside), "%s/held", mark);
    int pid = stranger_begins(hold_all, NULL);
    while (stat(beside, &info) < 0)
        sched_yield();
    int done = change();
    stranger_ends(pid);
    ck_assert_msg(done == 0, "%s", error.message);
    ck_assert_int_eq(compare(after), 0);
}

/* The lock's name would be longer than one may be. */
SL_TEST(a_file_with_the_longest_name_is_edited)
{
    char longest[NAME_MAX + 1], earlier[PATH_BYTES];
    make_folder("here", LOCK);
    memset(longest, 'n', NAME_MAX);
    longest[NAME_MAX] = 0;
    memcpy(longest + NAME_MAX - strlen(".safetensors"), ".safetensors", strlen(".safetensors"));
    memcpy(earlier, path, sizeof(earlier));
    snprintf(path, sizeof(path), "%.200s/%s", folder, longest);
    ck_assert_int_eq(rename(earlier, path), 0);
    ck_assert_msg(change() == 0, "%s", error.message);
    ck_assert_int_eq(compare(after), 0);
}

static int open_lock(void *arg)
{
    (void)arg;
    return open(beside, O_RDONLY) < 0 && errno == EACCES ? 0 : 1;
}

SL_TEST(the_lock_is_for_who_may_write_the_file)
{
    struct sluice_editor *editor;
    struct stat info;
    if (!stranger_exists("the_lock_is_for_who_may_write_the_file"))
        return;
    make_folder("here", LOCK);
    for (unsigned group = 0; group < 2; group++) {
        ck_assert_int_eq(chmod(path, group ? 0664 : 0644), 0);
        ck_assert_int_eq(sluice_edit(path, NULL, &editor, &error), 0);
        ck_assert_int_eq(stat(beside, &info), 0);
        ck_assert_uint_eq(info.st_mode & 0777, group ? 0660 : 0600);
        ck_assert_int_eq(stranger_runs(open_lock, NULL), 0);
        sluice_edit_abandon(editor);
        ck_assert_int_eq(access(beside, F_OK), -1);
    }
}

/* Who is not of the group that may write the file cannot have made a lock that is of it. */
SL_TEST_LOOP(a_lock_of_the_group_is_one_and_of_nobody_else, 0, 2)
{
    if (!stranger_exists("a_lock_of_the_group_is_one_and_of_nobody_else"))
        return;
    make_folder("here", LOCK);
    ck_assert_int_eq(chmod(path, 0664), 0);
    ck_assert_int_eq(chown(path, 54320, 54320), 0);
    sl_autoclose int held = put_thing(LOCKED, 54321);
    ck_assert_int_eq(chown(beside, 54321, _i ? 54320 : 54321), 0);
    int done = change();
    ck_assert_msg(done == (_i ? -1 : 0), "%s", error.message);
    if (_i)
        ck_assert_str_eq(error.code, "busy");
    ck_assert_int_eq(compare(_i ? before : after), 0);
}

/* ---- a change that was interrupted ----------------------------------------------------------- */

enum proof { HARD_LINK, FILE_LINK, OTHER_INODE, OTHER_FILE, OTHER_USER, WRITABLE, PROOFS };

static void spoil(enum proof proof, const char *other)
{
    switch (proof) {
    case HARD_LINK:
        ck_assert_int_eq(link(beside, other), 0);
        break;
    case FILE_LINK:
        ck_assert_int_eq(link(path, other), 0);
        break;
    case OTHER_INODE:
        ck_assert_int_eq(rename(beside, other), 0);
        copy(other, beside);
        break;
    case OTHER_FILE:
        ck_assert_int_eq(rename(path, other), 0);
        copy(other, path);
        break;
    case OTHER_USER:
        ck_assert_int_eq(chown(beside, 54321, 54321), 0);
        break;
    case WRITABLE:
    case PROOFS:
        ck_assert_int_eq(chmod(beside, 0622), 0);
        break;
    }
}

static void mend(enum proof proof, const char *other)
{
    if (proof == HARD_LINK || proof == FILE_LINK)
        ck_assert_int_eq(unlink(other), 0);
    if (proof == OTHER_INODE)
        ck_assert_int_eq(rename(other, beside), 0);
    if (proof == OTHER_FILE)
        ck_assert_int_eq(rename(other, path), 0);
    if (proof == OTHER_USER)
        ck_assert_int_eq(chown(beside, geteuid(), getegid()), 0);
    if (proof == WRITABLE)
        ck_assert_int_eq(chmod(beside, 0600), 0);
}

static int try_complete(void)
{
    struct sluice_editor *editor;
    int done = sluice_edit(path, NULL, &editor, &error);
    if (done == 0)
        sluice_edit_abandon(editor);
    return done;
}

/* A journal that lost one of its proofs completes nothing; with it again it does. */
SL_TEST_LOOP(a_journal_needs_every_proof, 0, PROOFS)
{
    char other[PATH_BYTES], was[2048], is[2048];
    if (_i == OTHER_USER && !stranger_exists("a_journal_needs_every_proof"))
        return;
    make_folder("here", JOURNAL);
    change_killed(3);
    spoil(_i, sl_case_path("other", other));
    survey(was);
    ck_assert_int_eq(compare(before), 2);
    ck_assert_int_eq(error.kind, SLUICE_FORMAT);
    ck_assert_int_eq(try_complete(), -1);
    ck_assert_int_eq(error.kind, SLUICE_FORMAT);
    survey(is);
    ck_assert_str_eq(was, is);
    mend(_i, other);
    ck_assert_msg(try_complete() == 0, "%s", error.message);
    ck_assert_int_eq(compare(after), 0);
}

/* As it comes out of a bucket, an archive, another folder: nothing of it is believed. */
SL_TEST_LOOP(a_file_and_its_journal_that_were_copied_change_nothing, 0, 2)
{
    char was[2048], is[2048];
    leave_elsewhere();
    make_folder("here", JOURNAL);
    ck_assert_int_eq(unlink(path), 0);
    copy(elsewhere[0], path);
    copy(elsewhere[1], beside);
    survey(was);
    if (_i == 0) {
        ck_assert_int_eq(compare(before), 2);
        ck_assert_int_eq(try_complete(), -1);
        ck_assert_int_eq(error.kind, SLUICE_FORMAT);
    } else {
        RUN(&ran, "inspect", "--complete-edit", path);
        ck_assert_msg(ran.exit_code == 10 && strstr(ran.err, "a copy, or of another file"), "%s",
                      ran.err);
    }
    survey(is);
    ck_assert_str_eq(was, is);
}

/* Each says what to do, and leaves the file and all beside it as they are. */
SL_TEST(no_command_that_reads_completes_an_edit)
{
    char was[2048], is[2048], to[PATH_BYTES], out[PATH_BYTES];
    sl_case_path("to", to);
    sl_case_path("out.tensors", out);
    const char *const commands[][6] = {{"inspect", path},      {"load", path, "--to", to},
                                       {"convert", path, out}, {"inspect", "--digest", path},
                                       {"sign", path},         {"plan", path}};
    make_folder("here", JOURNAL);
    change_killed(3);
    survey(was);
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        run_sluice(&ran, commands[i]);
        ck_assert_msg(ran.exit_code == 5 &&
                          strstr(ran.err, "let its owner run 'sluice inspect --complete-edit'"),
                      "%s: %d %s", commands[i][0], ran.exit_code, ran.err);
        survey(is);
        ck_assert_str_eq(was, is);
    }
    RUN(&ran, "inspect", "--complete-edit", path);
    ck_assert_msg(ran.exit_code == 0 && strstr(ran.out, name), "%s", ran.err);
    ck_assert_int_eq(compare(after), 0);
    ck_assert_int_eq(access(beside, F_OK), -1);
    RUN(&ran, "inspect", "--complete-edit", "s3://bucket/m.safetensors");
    ck_assert_msg(ran.exit_code == 2 && strstr(ran.err, "not a local file"), "%s", ran.err);
}

/* Another user that may read the file learns that it is between two contents. */
SL_TEST(another_user_does_not_take_a_half_changed_file_for_a_model)
{
    if (!stranger_exists("another_user_does_not_take_a_half_changed_file_for_a_model"))
        return;
    make_folder("here", JOURNAL);
    change_killed(3);
    ck_assert_int_eq(stranger_runs(compare_before, NULL), 2);
}

/* Nothing of the file has changed yet: it is what it was, and the journal goes with the next edit.
 */
SL_TEST(a_journal_that_was_not_begun_keeps_nobody_out)
{
    make_folder("here", JOURNAL);
    change_killed(2);
    expect_readers(COPIED);
    ck_assert_int_eq(try_complete(), 0);
    ck_assert_int_eq(access(beside, F_OK), -1);
    ck_assert_int_eq(compare(before), 0);
}
