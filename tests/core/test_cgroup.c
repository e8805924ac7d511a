/* Control groups, read from made-up /proc and /sys. */
#include "cgroup.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "fake_root.h"
#include "mem.h"
#include "thread.h"

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
    fake_root_put("/proc/self/cgroup", "0::/pod/box\n");
    fake_root_put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    expect_groups("cpu", "2:/pod/box=/sys/fs/cgroup/pod/box 2:/pod=/sys/fs/cgroup/pod "
                         "2:=/sys/fs/cgroup ");
}

SL_TEST(a_path_of_the_host_is_the_mounts_root)
{
    fake_root_put("/proc/self/cgroup", "0::/kubepods.slice/pod1/cri-containerd-1.scope\n");
    fake_root_put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    expect_groups("memory", "2:=/sys/fs/cgroup ");
}

SL_TEST(controllers_that_share_a_mount_are_found)
{
    fake_root_put("/proc/self/cgroup", "4:cpuset:/other\n3:cpuacct,cpu:/box\n2:memory:/box\n");
    fake_root_put("/sys/fs/cgroup/cpuacct,cpu/box/cpu.cfs_quota_us", "-1\n");
    expect_groups("cpu", "1:/box=/sys/fs/cgroup/cpuacct,cpu/box 1:=/sys/fs/cgroup/cpuacct,cpu ");
    fake_root_put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    expect_groups("cpu", "1:/box=/sys/fs/cgroup/cpu/box 1:=/sys/fs/cgroup/cpu ");
}

SL_TEST(a_hidden_proc_leaves_the_mount)
{
    fake_root_put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    expect_groups("cpu", "2:=/sys/fs/cgroup ");
    expect_cpus(1.5);
}

/* ---- processors ----------------------------------------------------------------------------- */

SL_TEST(no_quota_is_no_limit)
{
    expect_cpus(0);
    fake_root_put("/proc/self/cgroup", "0::/box\n");
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "max 100000\n");
    expect_cpus(0);
    fake_root_put("/proc/self/cgroup", "3:cpu,cpuacct:/box\n");
    fake_root_put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    fake_root_put("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    expect_cpus(0);
}

SL_TEST(the_narrowest_quota_counts)
{
    fake_root_put("/proc/self/cgroup", "0::/pod/box\n");
    fake_root_put("/sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n");
    expect_cpus(4);
    fake_root_put("/sys/fs/cgroup/pod/cpu.max", "25000 50000\n");
    expect_cpus(0.5);
    fake_root_put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    expect_cpus(0.5);
}

SL_TEST(version_1_has_quota_and_period_apart)
{
    fake_root_put("/proc/self/cgroup", "7:memory:/x\n3:cpu,cpuacct:/pod/box\n0::/\n");
    fake_root_put("/sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us", "-1\n");
    fake_root_put("/sys/fs/cgroup/cpu/pod/box/cpu.cfs_period_us", "100000\n");
    fake_root_put("/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "75000\n");
    fake_root_put("/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "50000\n");
    expect_cpus(1.5);
}

/* A second later. */
static unsigned cpu_count(void)
{
    fake_clock_turn(SL_NS_PER_S);
    return sl_cpu_count();
}

SL_TEST(threads_follow_the_quota)
{
    unsigned whole = cpu_count();
    fake_root_put("/proc/self/cgroup", "0::/box\n");
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "100000 100000\n");
    ck_assert_uint_eq(cpu_count(), 1);
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "10000 100000\n");
    ck_assert_uint_eq(cpu_count(), 1);
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "150000 100000\n");
    ck_assert_uint_eq(cpu_count(), SL_MIN(whole, 2u));
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "100000000 100000\n"); /* more than there are */
    ck_assert_uint_eq(cpu_count(), whole);
}

SL_TEST(the_quota_is_looked_up_once_a_second)
{
    fake_clock_hold();
    fake_clock_turn(SL_NS_PER_S);
    fake_root_put("/proc/self/cgroup", "0::/box\n");
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "50000 100000\n");
    ck_assert_double_eq_tol(sl_cgroup_cpus_recent(), 0.5, 1e-9);
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "150000 100000\n");
    fake_clock_turn(SL_NS_PER_S - 1);
    ck_assert_double_eq_tol(sl_cgroup_cpus_recent(), 0.5, 1e-9);
    fake_clock_turn(1);
    ck_assert_double_eq_tol(sl_cgroup_cpus_recent(), 1.5, 1e-9);
    fake_clock_release();
}

SL_TEST(nonsense_in_the_files_is_survived)
{
    static const char *const lines[] = {
        "", "\n", "0", "::", "0::", "0::/../..", "9:cpu", "x:cpu:/\n\n0::/a b\n", "9:,cpu,:\n"};
    static const char *const quotas[] = {
        "", "x", "-1", "0 0", "1", "100000 0", "0 100000", "99999999999999999999999 1", "max max"};
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        for (size_t k = 0; k < SL_COUNT(quotas); k++) {
            fake_root_put("/proc/self/cgroup", lines[i]);
            fake_root_put("/sys/fs/cgroup/cpu.max", quotas[k]);
            fake_root_put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quotas[k]);
            fake_root_put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", quotas[k]);
            ck_assert_double_ge(sl_cgroup_cpus(), 0);
            ck_assert_uint_ge(cpu_count(), 1);
        }
}

SL_TEST(what_is_free_is_the_least_of_all_limits)
{
    ck_assert_uint_eq(sl_memory_available(), 0); /* nobody knows */
    fake_root_put("/proc/meminfo", "MemTotal: 2048 kB\nMemAvailable:     1024 kB\n");
    ck_assert_uint_eq(sl_memory_available(), 1024 * 1024);
    fake_root_put("/proc/self/cgroup", "0::/pod/box\n");
    fake_root_put("/sys/fs/cgroup/pod/box/memory.current", "4096\n");
    fake_root_put("/sys/fs/cgroup/pod/box/memory.max", "max\n");
    ck_assert_uint_eq(sl_memory_available(), 1024 * 1024);
    fake_root_put("/sys/fs/cgroup/pod/memory.current", "600000\n");
    fake_root_put("/sys/fs/cgroup/pod/memory.stat", "inactive_file 100000\n");
    fake_root_put("/sys/fs/cgroup/pod/memory.max", "700000\n");
    ck_assert_uint_eq(sl_memory_available(), 200000);
}

SL_TEST(want_of_memory_is_no_limit)
{
    fake_root_put("/proc/self/cgroup", "0::/box\n");
    fake_root_put("/sys/fs/cgroup/box/cpu.max", "50000 100000\n");
    for (unsigned i = 1; i < 20; i++) {
        sl_alloc_fail_at(i);
        double cpus = sl_cgroup_cpus();
        sl_alloc_fail_at(0);
        ck_assert(cpus == 0 || cpus == 0.5);
    }
    expect_cpus(0.5);
}

SL_CASE(.setup = fake_root_setup, .teardown = fake_root_teardown)
