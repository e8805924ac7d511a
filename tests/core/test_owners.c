/* What others own or share in a destination is neither written, cut nor given other modes; and what
 * is said of a destination that others can swap. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_work.h"
#include "claims.h"
#include "journal.h"
#include "model_maker.h"
#include "publish.h"
#include "run_sluice.h"
#include "scratch.h"
#include "tar_maker.h"

enum { PATH_BYTES = 512, STRANGER = 54321 };
static char scratch[SL_SCRATCH_PATH_BYTES], to[PATH_BYTES], source[PATH_BYTES];
static int scratch_fd;
static struct ran ran;
static const char secret[] = "a file beside the destination, of which nothing may change";

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    ck_assert_int_eq(fchmod(scratch_fd, 0755), 0);
    snprintf(to, sizeof(to), "%s/models", scratch);
    snprintf(source, sizeof(source), "%s/source.bin", scratch);
    setenv("SLUICE_TERMINATION_LOG", "off", 1);
    unsetenv("SLUICE_LISTEN");
    sl_autoclose int fd = openat(scratch_fd, "source.bin", O_WRONLY | O_CREAT, 0644);
    ck_assert_int_eq(write(fd, "weights", 7), 7);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

/* Another user's files can only be made by root. */
static bool is_root(const char *test)
{
    if (geteuid() == 0)
        return true;
    printf("skipped: %s: only root can make files of another user\n", test);
    return false;
}

/* ---- the canary ----------------------------------------------------------------------------- */

static void make_canary(void)
{
    sl_autoclose int fd = openat(scratch_fd, "canary", O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(fd, secret, sizeof(secret)), (ssize_t)sizeof(secret));
    ck_assert_int_eq(fchmod(fd, 0640), 0);
}

static void link_canary(int folder_fd, const char *name)
{
    ck_assert_int_eq(linkat(scratch_fd, "canary", folder_fd, name, 0), 0);
}

static void check_canary(nlink_t links)
{
    struct stat status;
    char text[2 * sizeof(secret)];
    sl_autoclose int fd = openat(scratch_fd, "canary", O_RDONLY);
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0640);
    ck_assert_uint_eq(status.st_nlink, links);
    ck_assert_int_eq(read(fd, text, sizeof(text)), (ssize_t)sizeof(secret));
    ck_assert_mem_eq(text, secret, sizeof(secret));
}

static int folder(const char *name)
{
    (void)mkdirat(scratch_fd, name, 0755);
    return openat(scratch_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void make_file(int folder_fd, const char *name, mode_t mode)
{
    sl_autoclose int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL, mode);
    ck_assert_int_eq(write(fd, "theirs", 6), 6);
}

#define REFUSED(word)                                                                              \
    ck_assert_msg(err.kind == SL_E_NO_SPACE && strstr(err.message, word), "%s", err.message)

/* ---- hard links ----------------------------------------------------------------------------- */

SL_TEST(a_hard_link_is_no_journal)
{
    static const uint8_t identity[32] = "x";
    struct sl_err err = SL_ERR_INIT;
    bool resumed;
    sl_autoclose int fd = folder("state");
    make_canary();
    link_canary(fd, "journal");
    ck_assert_ptr_null(sl_journal_open(fd, "journal", identity, &resumed, &err));
    REFUSED("hard link");
    check_canary(2);
}

SL_TEST(a_hard_link_is_no_staged_file)
{
    static const struct sl_sink_file file = {"d/weights.bin", 10};
    sl_autoclose int fd = folder("staging"), below = folder("staging/d");
    make_canary();
    link_canary(below, "weights.bin");
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_tmpfs_open(fd, &file, 1, NULL, &err));
    REFUSED("hard link");
    check_canary(2);
}

/* With its first use a file beyond those that stay open may have become another. */
SL_TEST(a_staged_file_that_becomes_a_hard_link_gets_no_mode)
{
    static const struct sl_sink_file file = {"weights.bin", sizeof(secret)};
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int fd = folder("staging");
    SL_AUTO(sl_sink) sink = sl_tmpfs_open(fd, &file, 1, NULL, &err);
    ck_assert_ptr_nonnull(sink);
    ck_assert_int_eq(linkat(fd, "weights.bin", scratch_fd, "canary", 0), 0);
    ck_assert_int_eq(fchmodat(scratch_fd, "canary", 0640, 0), 0);
    ck_assert_int_eq(sl_sink_finish(sink, &err), -1);
    REFUSED("hard link");
    struct stat status;
    ck_assert_int_eq(fstatat(scratch_fd, "canary", &status, 0), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0640);
}

SL_TEST(a_hard_link_is_no_lock)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int root = folder("models"), state = folder("models/.sluice");
    make_canary();
    link_canary(state, "lock");
    ck_assert_ptr_null(sl_publish_open(to, NULL, NULL, NULL, &err));
    REFUSED("hard link");
    check_canary(2);
}

/* Files that are made whole and renamed replace a link instead of writing through it. */
SL_TEST(no_name_of_a_load_leads_to_another_file)
{
    static const char *const names[] = {"models/.sluice/ready",         "models/.sluice/ready.tmp",
                                        "models/.sluice/manifest.new",  "models/.sluice/commit.tmp",
                                        "models/.sluice/manifest.json", "models/source.bin"};
    sl_autoclose int root = folder("models"), state = folder("models/.sluice");
    make_canary();
    for (size_t i = 0; i < SL_COUNT(names); i++)
        link_canary(scratch_fd, names[i]);
    RUN(&ran, "load", source, "--to", to);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    check_canary(1);
}

SL_TEST(a_published_hard_link_is_not_given_away)
{
    if (!is_root("a_published_hard_link_is_not_given_away"))
        return;
    struct stat status;
    char file[PATH_BYTES + 16], other[PATH_BYTES];
    snprintf(file, sizeof(file), "%s/source.bin", to);
    snprintf(other, sizeof(other), "%s/other", scratch);
    RUN(&ran, "load", source, "--to", to);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ck_assert_int_eq(link(file, other), 0);
    RUN(&ran, "load", "--set", "sink.tmpfs.owner=54321", source, "--to", to);
    ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "hard link"), "%s", ran.err);
    ck_assert_int_eq(stat(other, &status), 0);
    ck_assert_uint_eq(status.st_uid, 0);
}

SL_TEST(a_hard_link_gets_no_termination_message)
{
    char name[PATH_BYTES];
    snprintf(name, sizeof(name), "%s/message", scratch);
    make_canary();
    link_canary(scratch_fd, "message");
    setenv("SLUICE_TERMINATION_LOG", name, 1);
    RUN(&ran, "load", source, "--to", to);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    check_canary(2);
}

/* What converts and signs makes files of its own, and puts them in the place of a link. */
SL_TEST(files_that_are_made_anew_change_no_other)
{
    char model[PATH_BYTES + 32], converted[PATH_BYTES + 32];
    size_t bytes;
    sl_autofree uint8_t *data = sl_model_safetensors("a,b", 5000, &bytes);
    sl_autoclose int fd = openat(scratch_fd, "m.safetensors", O_WRONLY | O_CREAT, 0644);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    snprintf(model, sizeof(model), "%s/m.safetensors", scratch);
    snprintf(converted, sizeof(converted), "%s/m.tensors", scratch);
    make_canary();
    link_canary(scratch_fd, "m.tensors");
    link_canary(scratch_fd, "m.safetensors.sluice.json");
    RUN(&ran, "convert", "--replace", model, converted);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    check_canary(2);
    RUN(&ran, "sign", model);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    check_canary(1);
}

/* ---- other users ---------------------------------------------------------------------------- */

SL_TEST(files_of_another_user_are_not_written)
{
    if (!is_root("files_of_another_user_are_not_written"))
        return;
    static const uint8_t identity[32] = "x";
    static const struct sl_sink_file file = {"weights.bin", 10};
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    bool resumed;
    sl_autoclose int fd = folder("shared");
    ck_assert_int_eq(fchmod(fd, 0777), 0);
    make_file(fd, "journal", 0666);
    make_file(fd, "weights.bin", 0666);
    ck_assert_int_eq(fchownat(fd, "journal", STRANGER, STRANGER, 0), 0);
    ck_assert_int_eq(fchownat(fd, "weights.bin", STRANGER, STRANGER, 0), 0);
    ck_assert_ptr_null(sl_journal_open(fd, "journal", identity, &resumed, &err));
    REFUSED("belongs to user 54321");
    ck_assert_ptr_null(sl_tmpfs_open(fd, &file, 1, NULL, &err));
    REFUSED("belongs to user 54321");
    ck_assert_int_eq(fstatat(fd, "journal", &status, 0), 0);
    ck_assert_uint_eq(status.st_size, 6);
    ck_assert_int_eq(fstatat(fd, "weights.bin", &status, 0), 0);
    ck_assert_uint_eq(status.st_size, 6);
}

/* What root gave away before it was killed is still root's, in a folder that only root writes. */
SL_TEST(a_staged_file_that_was_given_away_is_gone_on_with)
{
    if (!is_root("a_staged_file_that_was_given_away_is_gone_on_with"))
        return;
    static const struct sl_sink_file file = {"weights.bin", 6};
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int fd = folder("staging");
    make_file(fd, "weights.bin", 0444);
    ck_assert_int_eq(fchownat(fd, "weights.bin", STRANGER, STRANGER, 0), 0);
    SL_AUTO(sl_sink) sink = sl_tmpfs_open(fd, &file, 1, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
}

SL_TEST(state_of_another_user_is_refused_with_what_to_do)
{
    if (!is_root("state_of_another_user_is_refused_with_what_to_do"))
        return;
    const char *const load[] = {"load", source, "--to", to, NULL};
    const char *const start[] = {"initializer", "--local", "copy", source, to, NULL};
    const struct {
        const char *const *command;
        const char *name;
        int code;
    } cases[] = {{load, "models/.sluice", 6},
                 {start, "models/.sluice", 1},
                 {start, "models/.sluice/initializer", 1},
                 {start, "models/.sluice/initializer/0.load", 1}};
    sl_autoclose int root = folder("models"), state = folder("models/.sluice"),
                     work = folder("models/.sluice/initializer");
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_autoclose int own = folder(cases[i].name);
        ck_assert_int_eq(fchown(own, STRANGER, STRANGER), 0);
        run_sluice(&ran, cases[i].command);
        ck_assert_msg(ran.exit_code == cases[i].code && strstr(ran.err, "belongs to user 54321") &&
                          strstr(ran.err, "load as that user"),
                      "%zu: %s", i, ran.err);
        ck_assert_int_eq(fchown(own, 0, 0), 0);
    }
}

SL_TEST(a_folder_of_another_user_takes_no_files)
{
    if (!is_root("a_folder_of_another_user_takes_no_files"))
        return;
    char prefix[PATH_BYTES + 8];
    struct stat status;
    sl_autoclose int root = folder("models"), theirs = folder("models/sub"),
                     prefix_fd = folder("prefix"), sub = folder("prefix/sub");
    snprintf(prefix, sizeof(prefix), "%s/prefix/", scratch);
    make_file(prefix_fd, "config.json", 0644);
    make_file(sub, "x", 0644);
    ck_assert_int_eq(fchown(theirs, STRANGER, STRANGER), 0);
    const char *const commands[][8] = {{"load", prefix, "--to", to, NULL},
                                       {"initializer", "--local", "copy", prefix, to, NULL}};
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        run_sluice(&ran, commands[i]);
        ck_assert_msg(ran.exit_code == (i ? 1 : 6) && strstr(ran.err, "belongs to user 54321"),
                      "%s", ran.err);
        ck_assert_int_eq(fstatat(root, "config.json", &status, 0), -1);
        ck_assert_int_eq(fstatat(theirs, "x", &status, 0), -1);
    }
}

/* A folder that an earlier load gave away is the model's. */
SL_TEST(folders_that_were_given_away_take_the_next_version)
{
    if (!is_root("folders_that_were_given_away_take_the_next_version"))
        return;
    char prefix[PATH_BYTES + 8];
    sl_autoclose int prefix_fd = folder("prefix"), sub = folder("prefix/sub");
    snprintf(prefix, sizeof(prefix), "%s/prefix/", scratch);
    make_file(sub, "x", 0644);
    static const char *const owners[] = {"sink.tmpfs.owner=54321", "sink.tmpfs.owner=54321",
                                         "sink.tmpfs.owner=0"};
    static const char *const more[] = {"one", "two", "three"};
    for (size_t i = 0; i < SL_COUNT(owners); i++) {
        make_file(sub, more[i], 0644);
        RUN(&ran, "load", "--set", owners[i], prefix, "--to", to);
        ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    }
}

/* ---- the way to the destination ------------------------------------------------------------- */

static void load_into(const char *path)
{
    RUN(&ran, "load", source, "--to", path);
}

static size_t warnings(const char *text)
{
    size_t count = 0;
    for (; (text = strstr(text, "warning")); text++)
        count++;
    return count;
}

SL_TEST(a_folder_that_others_can_swap_is_told_once)
{
    char path[PATH_BYTES + 32];
    sl_autoclose int wide = folder("wide"), inner = folder("wide/inner");
    snprintf(path, sizeof(path), "%s/wide/inner/models", scratch);
    ck_assert_int_eq(fchmod(wide, 0777), 0);
    ck_assert_int_eq(fchmod(inner, 0777), 0);
    load_into(path);
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1 && strstr(ran.err, "any user") &&
                      strstr(ran.err, "/wide'") && strstr(ran.err, "chmod o-w"),
                  "%s", ran.err);
    ck_assert_int_eq(fchmod(wide, 01777), 0); /* sticky: only its owner may swap it */
    ck_assert_int_eq(fchmod(inner, 0755), 0);
    load_into(path);
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 0, "%s", ran.err);
    ck_assert_int_eq(fchmod(inner, 0777), 0);
    RUN(&ran, "initializer", source, path, source, path); /* two sources, one destination */
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1, "%s", ran.err);
}

SL_TEST(a_folder_that_a_group_can_swap_is_told)
{
    if (!is_root("a_folder_that_a_group_can_swap_is_told"))
        return;
    sl_autoclose int fd = folder("models");
    ck_assert_int_eq(fchmod(fd, 0775), 0);
    load_into(to); /* the group of root */
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 0, "%s", ran.err);
    ck_assert_int_eq(fchown(fd, 0, STRANGER), 0);
    ck_assert_int_eq(fchmod(fd, 02775), 0);
    load_into(to);
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1 && strstr(ran.err, "group 54321"),
                  "%s", ran.err);
}

SL_TEST(a_folder_of_another_user_on_the_way_is_told)
{
    if (!is_root("a_folder_of_another_user_on_the_way_is_told"))
        return;
    char path[PATH_BYTES + 32];
    sl_autoclose int home = folder("home"), models = folder("home/models");
    ck_assert_int_eq(fchown(home, STRANGER, STRANGER), 0);
    snprintf(path, sizeof(path), "%s/home/models", scratch);
    load_into(path);
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1 && strstr(ran.err, "user 54321"),
                  "%s", ran.err);
    ck_assert_int_eq(fchown(models, STRANGER, STRANGER), 0);
    load_into(path);
    ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1 && strstr(ran.err, "user 54321"),
                  "%s", ran.err);
}

/* A load as this user, with what may be the group of a volume. */
static void load_as(const char *user, const char *group)
{
    char ids[2][64], groups[64];
    snprintf(ids[0], sizeof(ids[0]), "--reuid=%s", user);
    snprintf(ids[1], sizeof(ids[1]), "--regid=%s", user);
    snprintf(groups, sizeof(groups), "--groups=%s", group);
    const char *const arguments[] = {ids[0], ids[1], groups, getenv("SLUICE"), "load", source,
                                     "--to", to,     NULL};
    run_program(&ran, "setpriv", arguments);
}

/* Volumes of Kubernetes: an emptyDir is root's and open to all, one with fsGroup to a group. */
SL_TEST(volumes_take_loads_of_any_user_and_of_one_alone)
{
    static const char test[] = "volumes_take_loads_of_any_user_and_of_one_alone";
    static const unsigned modes[] = {0777, 02775};
    if (!is_root(test))
        return;
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        sl_autoclose int fd = folder("models");
        ck_assert_int_eq(fchown(fd, 0, STRANGER), 0);
        ck_assert_int_eq(fchmod(fd, modes[i]), 0);
        load_as("65532", "54321");
        if (strstr(ran.err, "setpriv") || strstr(ran.err, "Permission denied")) {
            printf("skipped: %s: no setpriv, or this build is not for others to run\n", test);
            return;
        }
        ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 1, "%s", ran.err);
        load_as("65533", "54321"); /* the container starts again as another user */
        ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "belongs to user 65532, and this is "
                                                            "user 65533: load as that user"),
                      "%s", ran.err);
        load_as("65532", "54321");
        ck_assert_msg(ran.exit_code == 0 && strstr(ran.err, "there already"), "%s", ran.err);
        RUN(&ran, "load", source, "--to", to); /* nor is root anybody */
        ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "belongs to user 65532"), "%s",
                      ran.err);
        sl_scratch_close(fcntl(fd, F_DUPFD_CLOEXEC, 0), to);
    }
}

/* A file system of the test's own at `to`, gone with its process. */
static bool mount_own(const char *options, const char *test)
{
    sl_autoclose int root = folder("models");
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("models", to, "tmpfs", 0, options) == 0)
        return true;
    printf("skipped: %s: cannot mount: %s\n", test, strerror(errno));
    return false;
}

/* Where archive and content do not fit, the archive is given back as it is read. */
SL_TEST(an_archive_that_is_a_hard_link_is_not_eaten)
{
    enum { BYTES = 4 << 20, FILES = 4 };
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    uint64_t count, bytes;
    if (!mount_own("size=30m,mode=0755", "an_archive_that_is_a_hard_link_is_not_eaten"))
        return;
    SL_AUTO(sl_destination) destination = sl_destination_open(to, NULL, &err);
    sl_autoclose int work = sl_destination_open_work(destination, 0, SL_WORK_LOAD, &err);
    sl_autoclose int fd = openat(work, "m.tar", O_RDWR | O_CREAT | O_EXCL, 0444);
    sl_autobuf tar = SL_BUF_INIT((FILES + 1) * BYTES);
    sl_autofree uint8_t *content = sl_alloc(BYTES, &err);
    for (unsigned i = 0; i < FILES; i++)
        tar_entry(&tar, '0', (const char[]){(char)('a' + i), 0}, NULL, content, BYTES);
    tar_end(&tar);
    ck_assert_int_eq(write(fd, tar.data, tar.used), (ssize_t)tar.used);
    ck_assert_int_eq(linkat(work, "m.tar", work, "another", 0), 0);
    ck_assert_int_eq(fstat(fd, &status), 0);
    blkcnt_t blocks = status.st_blocks;
    const struct sl_archive_work what = {destination, 0, to, NULL};
    const struct sl_archive_file file = {fd, SL_ARCHIVE_TAR, "m.tar", true};
    ck_assert_int_eq(sl_archive_work_unpack(&what, &file, &count, &bytes, &err), -1);
    REFUSED("hard link");
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert(status.st_blocks == blocks && (status.st_mode & 07777) == 0444);
    ck_assert_int_eq(unlinkat(work, "another", 0), 0);
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_msg(sl_archive_work_unpack(&what, &file, &count, &bytes, &err) == 0, "%s",
                  err.message);
}

/* As Kubernetes mounts an emptyDir, and a volume with fsGroup. */
SL_TEST(a_volume_that_all_of_a_pod_can_write_is_no_warning)
{
    static const char *const options[] = {"mode=0777", "mode=02775,gid=54321", "mode=01777"};
    for (size_t i = 0; i < SL_COUNT(options); i++) {
        if (!mount_own(options[i], "a_volume_that_all_of_a_pod_can_write_is_no_warning"))
            return;
        load_into(to);
        ck_assert_msg(ran.exit_code == 0 && warnings(ran.err) == 0, "%s: %s", options[i], ran.err);
        bool told = strstr(ran.err, "fine if it belongs to one pod alone") != NULL;
        ck_assert_msg(told == (i < 2), "%s: %s", options[i], ran.err);
        ck_assert_int_eq(umount(to), 0);
    }
}

/* As somebody can in /tmp and /dev/shm, for a name that is known. */
SL_TEST(a_destination_that_somebody_made_where_anyone_may_is_refused)
{
    if (!is_root("a_destination_that_somebody_made_where_anyone_may_is_refused"))
        return;
    struct stat status;
    char path[PATH_BYTES + 32];
    sl_autoclose int temporary = folder("tmp"), models = folder("tmp/models");
    ck_assert_int_eq(fchmod(temporary, 01777), 0);
    ck_assert_int_eq(fchown(models, STRANGER, STRANGER), 0);
    snprintf(path, sizeof(path), "%s/tmp/models", scratch);
    load_into(path);
    ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "user 54321 made it"), "%s", ran.err);
    RUN(&ran, "initializer", source, path);
    ck_assert_msg(ran.exit_code == 1 && strstr(ran.err, "user 54321 made it"), "%s", ran.err);
    ck_assert_int_eq(fstatat(models, ".sluice", &status, 0), -1);
    load_into("/dev/null/x"); /* and what cannot be is not a crash */
    ck_assert_int_eq(ran.exit_code, 2);
}

SL_TEST(a_link_that_somebody_made_where_anyone_may_is_refused)
{
    if (!is_root("a_link_that_somebody_made_where_anyone_may_is_refused"))
        return;
    struct stat status;
    char path[PATH_BYTES + 32];
    sl_autoclose int temporary = folder("tmp"), victim = folder("victim");
    ck_assert_int_eq(fchmod(temporary, 01777), 0);
    ck_assert_int_eq(symlinkat("../victim", temporary, "models"), 0);
    snprintf(path, sizeof(path), "%s/tmp/models", scratch);
    load_into(path);
    ck_assert_msg(ran.exit_code == 0, "our own link: %s", ran.err);
    ck_assert_int_eq(fchownat(temporary, "models", STRANGER, STRANGER, AT_SYMLINK_NOFOLLOW), 0);
    static const char *const below[] = {"", "/deeper"};
    for (size_t i = 0; i < SL_COUNT(below); i++) {
        char whole[sizeof(path) + 16];
        snprintf(whole, sizeof(whole), "%s%s", path, below[i]);
        load_into(whole);
        ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "user 54321 made it"), "%s", ran.err);
    }
    ck_assert_int_eq(fstatat(victim, "deeper", &status, 0), -1);
}

SL_CASE(.setup = setup, .teardown = teardown)
