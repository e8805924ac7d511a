/* The tmpfs that a node mounts for its models: its size, what it must not hide, and that it stays.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "log.h"
#include "node.h"
#include "pages.h"
#include "scratch.h"
#include "tree.h"

#define MIB (1ull << 20)

static char base[SL_SCRATCH_PATH_BYTES], memory[SL_SCRATCH_PATH_BYTES + 32];
static int scratch;
static struct sl_err err;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    scratch = sl_scratch_open(base);
    snprintf(memory, sizeof(memory), "%s/memory", base);
}

static void teardown(void)
{
    sl_scratch_close(scratch, base);
}

static int read_node(struct sl_node_config *config, const char *budget, const char *more)
{
    char text[1024], file[SL_SCRATCH_PATH_BYTES + 32];
    sl_autobuf complaints = SL_BUF_INIT(65536);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: %s\n"
             "tmpfs: {path: %s%s}\n",
             memory, budget, memory, more);
    snprintf(file, sizeof(file), "%s/node.yaml", base);
    unlink(file);
    if (sl_tree_write(scratch, "node.yaml", text, strlen(text), &err) < 0)
        return -1;
    return sl_node_config_read(file, config, &complaints, &err);
}

/* A node of this budget comes up and ends; what it said if it did not. */
static bool node_opens(const char *budget, const char *more)
{
    struct sl_node_config config;
    err = (struct sl_err)SL_ERR_INIT;
    if (read_node(&config, budget, more) < 0)
        return false;
    struct sl_node *node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    sl_node_config_release(&config);
    sl_node_free(node);
    return node;
}

static uint64_t size_of_memory(void)
{
    struct statvfs status;
    return statvfs(memory, &status) == 0 ? (uint64_t)status.f_blocks * status.f_frsize : 0;
}

/* Each claim runs in a process with mounts of its own, which not every user may have. */
static int within_mounts(const char *function, int (*claim)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(77);
        _exit(claim());
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        sl_skipped(function, "cannot mount");
    return WEXITSTATUS(status) == 77 ? 0 : WEXITSTATUS(status);
}
#define with_mounts(claim) within_mounts(__func__, claim)

static int claim_size(void)
{
    if (!node_opens("32MiB", ""))
        return 1;
    if (size_of_memory() != 32 * MIB + 2 * MIB + 64 * MIB)
        return 2;
    return node_opens("32MiB", ", sizeBytes: 40MiB") && size_of_memory() == 40 * MIB ? 0 : 3;
}
SL_TEST(the_budget_gives_the_size)
{
    ck_assert_int_eq(with_mounts(claim_size), 0);
}

/* As by SIGHUP. */
static bool reloads(struct sl_node *node, const char *budget, const char *more)
{
    struct sl_node_config config;
    if (read_node(&config, budget, more) < 0)
        return false;
    sl_node_reload(node, &config);
    sl_node_config_release(&config);
    return true;
}

static struct sl_node *opened(const char *budget, const char *more)
{
    struct sl_node_config config;
    if (read_node(&config, budget, more) < 0)
        return NULL;
    struct sl_node *node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    sl_node_config_release(&config);
    return node;
}

static int claim_follows(void)
{
    struct sl_node *node = opened("32MiB", "");
    if (!node || !reloads(node, "64MiB", "") || size_of_memory() != (64 + 4 + 64) * MIB)
        return 1;
    /* What is in it counts by the budget; the file system itself gets smaller at the next start. */
    if (!reloads(node, "16MiB", "") || size_of_memory() != (64 + 4 + 64) * MIB)
        return 2;
    sl_node_free(node);
    return node_opens("16MiB", "") && size_of_memory() == (16 + 1 + 64) * MIB ? 0 : 3;
}
SL_TEST(a_new_config_makes_room_for_its_budget)
{
    ck_assert_int_eq(with_mounts(claim_follows), 0);
}

static int claim_own_size(void)
{
    struct sl_node *node = opened("32MiB", ", sizeBytes: 40MiB");
    bool same = node && reloads(node, "64MiB", ", sizeBytes: 40MiB") &&
                size_of_memory() == 40 * MIB && reloads(node, "64MiB", ", sizeBytes: 80MiB") &&
                size_of_memory() == 40 * MIB; /* that takes a restart */
    sl_node_free(node);
    return same ? 0 : 1;
}
SL_TEST(a_new_config_leaves_a_size_of_its_own)
{
    ck_assert_int_eq(with_mounts(claim_own_size), 0);
}

static int claim_stays(void)
{
    char kept[sizeof(memory) + 16];
    struct stat status;
    if (!node_opens("32MiB", ""))
        return 1;
    snprintf(kept, sizeof(kept), "%s/kept", memory);
    if (mkdir(kept, 0700) < 0 || !node_opens("64MiB", ""))
        return 2;
    if (stat(kept, &status) < 0 || size_of_memory() != (64 + 4 + 64) * MIB)
        return 3;
    /* One mount, not one over the other: after it is taken away the folder is there, and empty. */
    if (umount2(memory, UMOUNT_NOFOLLOW) < 0)
        return 4;
    return stat(kept, &status) < 0 && errno == ENOENT ? 0 : 5;
}
SL_TEST(the_next_daemon_finds_it_and_gives_it_its_size)
{
    ck_assert_int_eq(with_mounts(claim_stays), 0);
}

static int claim_in_use(void)
{
    char file[sizeof(memory) + 16];
    if (!node_opens("32MiB", ", sizeBytes: 8MiB"))
        return 1;
    snprintf(file, sizeof(file), "%s/file", memory);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (posix_fallocate(fd, 0, 6 * MIB) != 0)
        return 2;
    close(fd);
    return node_opens("32MiB", ", sizeBytes: 2MiB") && size_of_memory() == 8 * MIB ? 0 : 3;
}
SL_TEST(a_size_below_what_is_in_use_changes_nothing)
{
    ck_assert_int_eq(with_mounts(claim_in_use), 0);
}

static bool are_pages(const char *wanted)
{
    return strcmp(sl_pages_of_path(memory), wanted) == 0;
}

static int claim_huge(void)
{
    bool known = access("/sys/kernel/mm/transparent_hugepage/shmem_enabled", F_OK) == 0;
    if (!node_opens("32MiB", "") ||
        !are_pages(known ? "tmpfs with huge pages" : "tmpfs with 4 KiB pages"))
        return 1;
    if (umount2(memory, UMOUNT_NOFOLLOW) < 0 || !node_opens("32MiB", ", huge: never"))
        return 2;
    return are_pages("tmpfs with 4 KiB pages") ? 0 : 3;
}
SL_TEST(its_pages_are_huge_where_the_kernel_has_that)
{
    ck_assert_int_eq(with_mounts(claim_huge), 0);
}

static int claim_flags(void)
{
    struct statvfs status;
    if (!node_opens("32MiB", ""))
        return 1;
    unsigned long wanted = ST_NOSUID | ST_NODEV | ST_NOEXEC;
    return statvfs(memory, &status) == 0 && (status.f_flag & wanted) == wanted ? 0 : 2;
}
SL_TEST(nothing_in_it_is_executed_or_a_device)
{
    ck_assert_int_eq(with_mounts(claim_flags), 0);
}

static int claim_hidden(void)
{
    char file[sizeof(memory) + 16];
    snprintf(file, sizeof(file), "%s/mine", memory);
    if (mkdir(memory, 0755) < 0 || mkdir(file, 0755) < 0)
        return 1;
    return !node_opens("32MiB", "") && strstr(err.message, "is not empty") ? 0 : 2;
}
SL_TEST(what_lies_in_the_folder_is_not_hidden)
{
    ck_assert_int_eq(with_mounts(claim_hidden), 0);
}

static int claim_exposed(void)
{
    return fchmod(scratch, 0777) == 0 && !node_opens("32MiB", "") &&
                   strstr(err.message, "other users can replace")
               ? 0
               : 1;
}
SL_TEST(a_folder_that_others_could_exchange_is_refused)
{
    ck_assert_int_eq(with_mounts(claim_exposed), 0);
}

static int claim_refused(void)
{
    if (setresuid(65534, 65534, 65534) < 0)
        return 77;
    return !node_opens("32MiB", "") && strstr(err.message, "no CAP_SYS_ADMIN") ? 0 : 1;
}
SL_TEST(who_may_not_mount_is_told_what_to_do)
{
    ck_assert_int_eq(fchown(scratch, 65534, 65534), 0);
    ck_assert_int_eq(fchmod(scratch, 0755), 0);
    ck_assert_int_eq(with_mounts(claim_refused), 0);
}

SL_TEST(a_directory_outside_of_it_is_refused)
{
    struct sl_node_config config;
    char text[1024];
    const char *bad[] = {"/elsewhere/models", "/memory", "/memoryy/models"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_autobuf complaints = SL_BUF_INIT(65536);
        char file[SL_SCRATCH_PATH_BYTES + 32];
        snprintf(file, sizeof(file), "%s/bad%zu.yaml", base, i);
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s\ntmpfs: {path: "
                 "/memory/}\n",
                 bad[i]);
        ck_assert_int_eq(sl_tree_write(scratch, strrchr(file, '/') + 1, text, strlen(text), &err),
                         0);
        ck_assert_int_lt(sl_node_config_read(file, &config, &complaints, &err), 0);
        ck_assert_msg(strstr(err.message, "'/memory/models'"), "%s", err.message);
        sl_node_config_release(&config);
    }
}

SL_CASE(.setup = setup, .teardown = teardown)
