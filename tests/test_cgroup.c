/* Control groups, read from made-up /proc and /sys. */
#include "cgroup.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc_fail.h"
#include "claims.h"
#include "mem.h"
#include "scratch.h"
#include "thread.h"

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    sl_cgroup_set_root(scratch);
}

static void teardown(void)
{
    sl_cgroup_set_root("");
    sl_scratch_close(scratch_fd, scratch);
}

/* A file below the made-up root, with its folders. */
static void put(const char *path, const char *text)
{
    char whole[1024];
    snprintf(whole, sizeof(whole), "%s%s", scratch, path);
    for (char *slash = strchr(whole + strlen(scratch) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0755);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void list(const struct sl_cgroup *group, void *arg)
{
    char *text = arg;
    size_t used = strlen(text);
    snprintf(text + used, 1024 - used, "%u:%s=%s ", group->version, group->path, group->folder);
}

static void expect_groups(const char *controller, const char *expected)
{
    char text[1024] = "";
    sl_cgroup_each(controller, list, text);
    ck_assert_str_eq(text, expected);
}

static void expect_cpus(double expected)
{
    ck_assert_double_eq_tol(sl_cgroup_cpus(), expected, 1e-9);
}

/* ---- which groups --------------------------------------------------------------------------- */

SL_TEST(our_group_comes_first_and_the_root_last)
{
    put("/proc/self/cgroup", "0::/pod/box\n");
    put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    expect_groups("cpu", "2:/pod/box=/sys/fs/cgroup/pod/box 2:/pod=/sys/fs/cgroup/pod "
                         "2:=/sys/fs/cgroup ");
}

SL_TEST(a_path_of_the_host_is_the_mounts_root)
{
    put("/proc/self/cgroup", "0::/kubepods.slice/pod1/cri-containerd-1.scope\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    expect_groups("memory", "2:=/sys/fs/cgroup ");
}

SL_TEST(controllers_that_share_a_mount_are_found)
{
    put("/proc/self/cgroup", "4:cpuset:/other\n3:cpuacct,cpu:/box\n2:memory:/box\n");
    put("/sys/fs/cgroup/cpuacct,cpu/box/cpu.cfs_quota_us", "-1\n");
    expect_groups("cpu", "1:/box=/sys/fs/cgroup/cpuacct,cpu/box 1:=/sys/fs/cgroup/cpuacct,cpu ");
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    expect_groups("cpu", "1:/box=/sys/fs/cgroup/cpu/box 1:=/sys/fs/cgroup/cpu ");
}

SL_TEST(a_hidden_proc_leaves_the_mount)
{
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    expect_groups("cpu", "2:=/sys/fs/cgroup ");
    expect_cpus(1.5);
}

/* ---- processors ----------------------------------------------------------------------------- */

SL_TEST(no_quota_is_no_limit)
{
    expect_cpus(0);
    put("/proc/self/cgroup", "0::/box\n");
    put("/sys/fs/cgroup/box/cpu.max", "max 100000\n");
    expect_cpus(0);
    put("/proc/self/cgroup", "3:cpu,cpuacct:/box\n");
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    expect_cpus(0);
}

SL_TEST(the_narrowest_quota_counts)
{
    put("/proc/self/cgroup", "0::/pod/box\n");
    put("/sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n");
    expect_cpus(4);
    put("/sys/fs/cgroup/pod/cpu.max", "25000 50000\n");
    expect_cpus(0.5);
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    expect_cpus(0.5);
}

SL_TEST(version_1_has_quota_and_period_apart)
{
    put("/proc/self/cgroup", "7:memory:/x\n3:cpu,cpuacct:/pod/box\n0::/\n");
    put("/sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/pod/box/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "75000\n");
    put("/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "50000\n");
    expect_cpus(1.5);
}

SL_TEST(threads_follow_the_quota)
{
    unsigned whole = sl_cpu_count();
    put("/proc/self/cgroup", "0::/box\n");
    put("/sys/fs/cgroup/box/cpu.max", "100000 100000\n");
    ck_assert_uint_eq(sl_cpu_count(), 1);
    put("/sys/fs/cgroup/box/cpu.max", "10000 100000\n");
    ck_assert_uint_eq(sl_cpu_count(), 1);
    put("/sys/fs/cgroup/box/cpu.max", "150000 100000\n");
    ck_assert_uint_eq(sl_cpu_count(), SL_MIN(whole, 2u));
    put("/sys/fs/cgroup/box/cpu.max", "100000000 100000\n"); /* more than there are */
    ck_assert_uint_eq(sl_cpu_count(), whole);
}

SL_TEST(nonsense_in_the_files_is_survived)
{
    static const char *const lines[] = {
        "", "\n", "0", "::", "0::", "0::/../..", "9:cpu", "x:cpu:/\n\n0::/a b\n", "9:,cpu,:\n"};
    static const char *const quotas[] = {
        "", "x", "-1", "0 0", "1", "100000 0", "0 100000", "99999999999999999999999 1", "max max"};
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        for (size_t k = 0; k < SL_COUNT(quotas); k++) {
            put("/proc/self/cgroup", lines[i]);
            put("/sys/fs/cgroup/cpu.max", quotas[k]);
            put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quotas[k]);
            put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", quotas[k]);
            ck_assert_double_ge(sl_cgroup_cpus(), 0);
            ck_assert_uint_ge(sl_cpu_count(), 1);
        }
}

SL_TEST(want_of_memory_is_no_limit)
{
    put("/proc/self/cgroup", "0::/box\n");
    put("/sys/fs/cgroup/box/cpu.max", "50000 100000\n");
    for (unsigned i = 1; i < 20; i++) {
        sl_alloc_fail_at(i);
        double cpus = sl_cgroup_cpus();
        sl_alloc_fail_at(0);
        ck_assert(cpus == 0 || cpus == 0.5);
    }
    expect_cpus(0.5);
}

SL_CASE(.setup = setup, .teardown = teardown)
