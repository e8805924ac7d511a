/* Limits of memory and space, read from made-up /proc and /sys. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "claims.h"
#include "fake_root.h"
#include "publish.h"

static void expect_refusal(uint64_t bytes, const char *word, const char *figure)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_room_check(fake_root, bytes, 0, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_msg(strstr(err.message, word) && strstr(err.message, figure), "%s", err.message);
}

static void expect_fit(uint64_t bytes, uint64_t already)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_room_check(fake_root, bytes, already, NULL, &err) == 0, "%s", err.message);
}

static const uint64_t MIB = 1024 * 1024;

static void put_v2(const char *group, const char *max, const char *high, const char *current,
                   const char *stat)
{
    char path[512];
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
    fake_root_put(path, max);
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.high", group);
    fake_root_put(path, high);
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
    fake_root_put(path, current);
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.stat", group);
    fake_root_put(path, stat);
}

SL_TEST(no_limits_are_no_limits)
{
    expect_fit(100 * MIB, 0);
    fake_root_put("/proc/self/cgroup", "0::/\n");
    put_v2("", "max\n", "max\n", "4096\n", "inactive_file 0\n");
    expect_fit(100 * MIB, 0);
}

SL_TEST(a_full_cgroup_v2_is_refused_with_figures)
{
    fake_root_put("/proc/self/cgroup", "0::/pod/box\n");
    put_v2("", "max\n", "max\n", "0\n", "");
    put_v2("/pod/box", "1073741824\n", "max\n", "104857600\n", "anon 1\ninactive_file 52428800\n");
    expect_fit(900 * MIB, 0);
    expect_refusal(912 * MIB, "memory.max", "1.00 GiB"); /* 64 MiB are kept for ourselves */
    expect_refusal(912 * MIB, "912 MiB of memory and 64 MiB to work with", "at least 1026Mi");
    expect_refusal(141 * 1024 * MIB, "resources.limits.memory", "141 GiB");
    expect_fit(1900 * MIB, 1000 * MIB); /* what is staged is paid for */
}

SL_TEST(high_and_parents_count)
{
    fake_root_put("/proc/self/cgroup", "0::/pod/box\n");
    put_v2("/pod/box", "max\n", "209715200\n", "0\n", "");
    expect_refusal(200 * MIB, "memory.high", "200 MiB");
    put_v2("/pod/box", "max\n", "max\n", "0\n", "");
    put_v2("/pod", "314572800\n", "max\n", "104857600\n", "");
    expect_refusal(200 * MIB, "cgroup /pod: memory.max", "300 MiB");
    expect_fit(100 * MIB, 0);
}

SL_TEST(a_path_of_the_host_falls_back_to_the_mount)
{
    fake_root_put("/proc/self/cgroup", "0::/kubepods/burstable/podx/cri\n");
    put_v2("", "104857600\n", "max\n", "0\n", "");
    expect_refusal(100 * MIB, "cgroup /: memory.max", "100 MiB");
}

SL_TEST(cgroup_v1_counts_with_its_parents)
{
    fake_root_put("/proc/self/cgroup", "12:cpu,cpuacct:/a\n9:memory:/pod/box\n0::/\n");
    fake_root_put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
    fake_root_put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    fake_root_put("/sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "104857600\n");
    fake_root_put("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "314572800\n");
    fake_root_put("/sys/fs/cgroup/memory/pod/memory.stat",
                  "inactive_file 7\ntotal_inactive_file 52428800\n");
    fake_root_put("/sys/fs/cgroup/memory/pod/box/memory.usage_in_bytes", "0\n");
    fake_root_put("/sys/fs/cgroup/memory/pod/box/memory.limit_in_bytes", "9223372036854771712\n");
    expect_fit(180 * MIB, 0);
    expect_refusal(200 * MIB, "memory.limit_in_bytes", "250 MiB free");
}

SL_TEST(the_machine_itself_may_be_too_small)
{
    fake_root_put("/proc/meminfo",
                  "MemTotal:       1048576 kB\nMemFree:  1 kB\nMemAvailable:     102400 kB\n");
    expect_refusal(101 * MIB, "machine", "100 MiB");
    expect_fit(99 * MIB, 0);
}

SL_TEST(space_of_the_file_system_counts_also_for_what_does_not_exist_yet)
{
    char path[512];
    struct sl_err err = SL_ERR_INIT;
    struct sl_room room;
    fake_root_leave();
    snprintf(path, sizeof(path), "%s/not/yet", fake_root);
    ck_assert_int_eq(sl_room_check(path, (uint64_t)1 << 60, 0, &room, &err), -1);
    ck_assert_msg(err.kind == SL_E_NO_SPACE && strstr(err.message, "1.00 EiB"), "%s", err.message);
    ck_assert_uint_ge(room.count, 1);
    ck_assert_int_eq(sl_room_check(path, 1, 0, &room, &err), 0);
    struct sl_json json;
    sl_json_init(&json, 65536);
    sl_room_json(&json, &room);
    ck_assert_ptr_nonnull(strstr(sl_json_text(&json, NULL), "\"needed_bytes\":1"));
    sl_json_release(&json);
}

SL_TEST(a_read_only_place_is_refused_where_there_is_one)
{
    static const char *const places[] = {"/sys", "/proc/sys", "/sys/fs/cgroup"};
    struct statvfs space;
    fake_root_leave();
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        struct sl_err err = SL_ERR_INIT;
        if (statvfs(places[i], &space) < 0 || !(space.f_flag & ST_RDONLY))
            continue;
        ck_assert_int_eq(sl_room_check(places[i], 1, 0, NULL, &err), -1);
        ck_assert_msg(strstr(err.message, "mount it writable") != NULL, "%s", err.message);
    }
}

SL_TEST(nonsense_in_the_files_is_survived)
{
    static const char *const texts[] = {
        "", "\n", "0", "::", "0::", "0::/../..", "9:memory", "x:memory:/\n\n0::/a b\n"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        fake_root_put("/proc/self/cgroup", texts[i]);
        put_v2("", "nonsense", "-", "x", "inactive_file");
        fake_root_put("/proc/meminfo", "MemAvailable\nMemTotal: x\n");
        expect_fit(MIB, 0);
    }
}

SL_CASE(.setup = fake_root_setup, .teardown = fake_root_teardown)
