/* The daemon dies at every step of a publish and of an unpublish, each of its calls fails once, and
 * what is left behind is found: nothing of it stays that nobody has. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "mounting.h"
#include "registry_settle.h"
#include "tree.h"
#include "volume_case.h"
#include "volumes_parts.h"

enum { CALLS_MAX = 40, DIED = 77 };

/* ---- calls that go wrong -------------------------------------------------------------------- */

enum fate { FATE_NONE, FATE_DIE_BEFORE, FATE_DIE_AFTER, FATE_FAIL };
static __thread struct {
    bool armed;
    enum fate fate;
    unsigned at, count;
} calls;
static bool old_kernel; /* without open_tree() */

static bool is_now(enum fate fate)
{
    return calls.armed && calls.fate == fate && calls.count == calls.at;
}

/* Around a call: false if it is to fail. */
static bool before_call(void)
{
    if (!calls.armed)
        return true;
    calls.count++;
    if (is_now(FATE_DIE_BEFORE))
        _exit(DIED);
    errno = EIO;
    return !is_now(FATE_FAIL);
}

static long after_call(long result)
{
    if (is_now(FATE_DIE_AFTER))
        _exit(DIED);
    return result;
}

#define WRAPPED(name, parameters, arguments)                                                       \
    int __real_##name parameters;                                                                  \
    int __wrap_##name parameters;                                                                  \
    int __wrap_##name parameters                                                                   \
    {                                                                                              \
        return before_call() ? (int)after_call(__real_##name arguments) : -1;                      \
    }
WRAPPED(mount,
        (const char *source, const char *target, const char *type, unsigned long flags,
         const void *data),
        (source, target, type, flags, data))
WRAPPED(umount2, (const char *target, int flags), (target, flags))
WRAPPED(mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
WRAPPED(unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
WRAPPED(renameat, (int from_fd, const char *from, int to_fd, const char *to),
        (from_fd, from, to_fd, to))

/* Descriptors that cannot be had just now, once each. */
static __thread struct {
    int number; /* 0: off */
    unsigned at, count;
} openings;
int __real_openat64(int fd, const char *path, int flags, ...);
int __wrap_openat64(int fd, const char *path, int flags, ...);
int __wrap_openat64(int fd, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (openings.number && ++openings.count == openings.at) {
        errno = openings.number;
        return -1;
    }
    return __real_openat64(fd, path, flags, mode);
}

/* Tries at which another process looks at a lock. */
static unsigned looks;
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
    if (!looks)
        return __real_flock(fd, operation);
    looks--;
    errno = EWOULDBLOCK;
    return -1;
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    bool ours = number == 428 || number == 429 || number == 442;
    if (ours && old_kernel) {
        errno = ENOSYS;
        return -1;
    }
    if (ours && !before_call())
        return -1;
    long result = __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    return ours ? after_call(result) : result;
}

static void arm(enum fate fate, unsigned at)
{
    calls.fate = fate;
    calls.at = at;
    calls.count = 0;
    calls.armed = fate != FATE_NONE;
}

/* ---- the case ------------------------------------------------------------------------------- */

static struct volume_case c;
static struct volume_ask_case request;

static void setup(void)
{
    volume_case_init(&c);
    old_kernel = false;
}

static void teardown(void)
{
    arm(FATE_NONE, 0);
    volume_case_release(&c);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible, .seconds = 240)

/* Files, and what is known of them. */
static unsigned count_records(void)
{
    char path[VOLUME_CASE_PATH];
    struct stat status;
    unsigned files = 0, known = 0;
    snprintf(path, sizeof(path), "%s/models/.volumes", c.path);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0700);
    DIR *folder = opendir(path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        ck_assert_int_eq(fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW), 0);
        ck_assert(!S_ISREG(status.st_mode) || (status.st_mode & 0777) == 0600);
        files += strstr(entry->d_name, ".json") && !strstr(entry->d_name, ".tmp");
    }
    closedir(folder);
    for (struct volume *at = c.volumes->locked.volumes; at; at = at->next)
        known++;
    ck_assert_uint_eq(files, known);
    return files;
}

/* Either all of it is there, or nothing. */
static void check_whole(bool published)
{
    ck_assert_uint_eq(count_records(), published);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), published);
    ck_assert_uint_eq(volume_case_references(&c), published);
    ck_assert_int_eq(access(request.target, F_OK) == 0, published);
    ck_assert_int_eq(volume_case_sees(request.target), published);
}

/* In another process, with the same mounts: what it did is there when it is not. True: it died. */
static bool die_in(bool publish, enum fate fate, unsigned at)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        volume_case_open(&c);
        arm(publish ? fate : FATE_NONE, at);
        int done = volume_case_publish(&c, &request);
        arm(publish ? FATE_NONE : fate, at);
        if (!publish && done == 0)
            done = volume_case_unpublish(&c, &request);
        arm(FATE_NONE, 0);
        volume_case_end(&c);
        _exit(done == 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 1, "status %d", status);
    return WEXITSTATUS(status) == DIED;
}

static void die_everywhere(bool publish, enum fate fate)
{
    unsigned died = 0;
    for (unsigned at = 1; at < CALLS_MAX; at++) {
        char uid[16];
        snprintf(uid, sizeof(uid), "u%u", at);
        volume_case_wish(&c, &request, uid);
        bool dead = die_in(publish, fate, at);
        died += dead;
        volume_case_open(&c);
        check_whole(volume_case_mounts(c.kubelet) > 0);
        ck_assert_msg(volume_case_publish(&c, &request) == 0, "%u: %s", at, c.err.message);
        check_whole(true);
        ck_assert_msg(volume_case_unpublish(&c, &request) == 0, "%u: %s", at, c.err.message);
        check_whole(false);
        volume_case_end(&c);
        if (!dead)
            break;
    }
    ck_assert_uint_ge(died, 3);
    ck_assert_uint_lt(died, CALLS_MAX - 1);
}

SL_TEST_LOOP(a_daemon_that_dies_leaves_nothing_half_done, 0, 8)
{
    old_kernel = _i & 4;
    die_everywhere(_i & 1, _i & 2 ? FATE_DIE_BEFORE : FATE_DIE_AFTER);
}

SL_TEST_LOOP(a_call_that_fails_leaves_nothing_half_done, 0, 4)
{
    unsigned failed = 0;
    old_kernel = _i & 1;
    volume_case_open(&c);
    for (unsigned at = 1; at < CALLS_MAX; at++) {
        volume_case_wish(&c, &request, "u");
        if (_i & 2)
            ck_assert_int_eq(volume_case_publish(&c, &request), 0);
        arm(FATE_FAIL, at);
        int done = _i & 2 ? volume_case_unpublish(&c, &request) : volume_case_publish(&c, &request);
        bool reached = calls.count >= at;
        arm(FATE_NONE, 0);
        failed += done < 0;
        if (done < 0)
            ck_assert_str_ne(c.err.message, "");
        if (!(_i & 2) && volume_case_mounts(c.kubelet)) /* a reference stays with a mount */
            ck_assert_uint_eq(volume_case_references(&c), 1);
        ck_assert_msg(volume_case_publish(&c, &request) == 0, "%u: %s", at, c.err.message);
        check_whole(true);
        ck_assert_msg(volume_case_unpublish(&c, &request) == 0, "%u: %s", at, c.err.message);
        check_whole(false);
        if (!reached)
            break;
    }
    ck_assert_uint_ge(failed, 2);
}

SL_TEST_LOOP(memory_that_is_refused_leaves_nothing_half_done, 0, 2)
{
    unsigned failed = 0;
    bool reached = true;
    volume_case_open(&c);
    sl_registry_settle(c.node->registry);
    for (unsigned at = 1; reached; at++) {
        volume_case_wish(&c, &request, "u");
        if (_i)
            ck_assert_int_eq(volume_case_publish(&c, &request), 0);
        sl_alloc_fail_at(at);
        int done = _i ? volume_case_unpublish(&c, &request) : volume_case_publish(&c, &request);
        reached = sl_alloc_count() >= at;
        sl_alloc_fail_at(0);
        failed += done < 0;
        ck_assert_msg(volume_case_publish(&c, &request) == 0, "%u: %s", at, c.err.message);
        check_whole(true);
        ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
        check_whole(false);
    }
    ck_assert_uint_ge(failed, _i ? 1 : 5);
}

SL_TEST(a_daemon_that_lacks_memory_at_its_start_takes_no_mount_away)
{
    const struct sl_node_spec spec = {
        .csi = {.driver_name = (char *)(uintptr_t) "x", .kubelet_directory = c.kubelet}};
    unsigned failed = 0;
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u");
    for (unsigned at = 1;; at++) {
        sl_volumes_free(c.volumes);
        sl_alloc_fail_at(at);
        c.volumes = sl_volumes_open(c.node, &spec, &c.err);
        bool reached = sl_alloc_count() >= at;
        sl_alloc_fail_at(0);
        failed += !c.volumes;
        ck_assert_msg(volume_case_sees(request.target), "%u", at);
        if (!c.volumes)
            continue;
        check_whole(true);
        if (!reached)
            break;
    }
    ck_assert_uint_ge(failed, 5);
}

/* It starts, or it does not, and is started again: what is mounted stays. */
SL_TEST_LOOP(what_cannot_be_opened_just_now_costs_no_mount, 0, 3)
{
    static const int numbers[] = {EMFILE, EACCES, EAGAIN};
    unsigned failed = 0;
    bool reached = true;
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u");
    volume_case_end(&c);
    for (unsigned at = 1; reached; at++) {
        openings.at = at;
        openings.count = 0;
        openings.number = numbers[_i];
        bool open = volume_case_try(&c);
        if (open)
            volumes_sweep(c.volumes);
        reached = openings.count >= at;
        openings.number = 0;
        failed += reached;
        ck_assert_msg(volume_case_sees(request.target), "opening %u", at);
        if (open) {
            sl_registry_settle(c.node->registry); /* by now it can be looked at */
            ck_assert_msg(volume_case_references(&c) == 1, "opening %u", at);
            ck_assert_uint_eq(count_records(), 1);
            ck_assert_int_eq(volume_case_publish(&c, &request), 0);
        }
        volume_case_end(&c);
    }
    ck_assert_uint_ge(failed, 10);
}

/* ---- pods that hold what they see ----------------------------------------------------------- */

enum { HELD_MAX = 64 };
static int held_fds[HELD_MAX];
static unsigned held_count, lease_count;

/* All that a reader of a volume can do to one of its files. */
static int hold_file(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)where;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_lt(held_count, HELD_MAX);
    held_fds[held_count++] = fd;
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    if (type == FTW_F)
        lease_count += fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
    return 0;
}

static ino_t inode_of_model(const char *target)
{
    char path[VOLUME_CASE_PATH + 32];
    struct stat status;
    snprintf(path, sizeof(path), "%s/a.safetensors", target);
    ck_assert_int_eq(stat(path, &status), 0);
    return status.st_ino;
}

SL_TEST(a_pod_that_locks_all_that_it_sees_holds_up_nobody)
{
    struct volume_ask_case second;
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_end(&c);
    ino_t inode = inode_of_model(request.target);
    signal(SIGIO, SIG_IGN); /* somebody wants to open what is leased */
    held_count = lease_count = 0;
    ck_assert_int_eq(nftw(request.target, hold_file, 16, FTW_PHYS), 0);
    ck_assert_uint_ge(lease_count, 2);
    volume_case_open(&c);
    ck_assert(volume_case_sees(request.target));
    ck_assert_uint_eq(volume_case_references(&c), 1);
    volume_case_mounted(&c, &second, "u2");
    ck_assert_uint_eq(volume_case_references(&c), 2);
    ck_assert_uint_eq(inode_of_model(second.target), inode); /* it was not loaded again */
    while (held_count)
        close(held_fds[--held_count]);
}

SL_TEST(what_an_earlier_version_published_stays_and_has_no_lock_any_more)
{
    struct stat status;
    char version[32] = "", path[VOLUME_CASE_PATH * 2], lock[VOLUME_CASE_PATH + 32];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u");
    volume_case_end(&c);
    ck_assert_int_gt(readlinkat(c.scratch, "models/m/current", version, sizeof(version) - 1), 0);
    snprintf(path, sizeof(path), "%s/models/m/%s.whole", c.path, version);
    snprintf(lock, sizeof(lock), "%s/models/m/current/.sluice/lock", c.path);
    ck_assert_int_eq(unlink(path), 0);
    int fd = open(lock, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    volume_case_open(&c);
    check_whole(true);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert_int_eq(access(lock, F_OK), -1);
    close(fd);
}

/* ---- a new daemon --------------------------------------------------------------------------- */

SL_TEST(volumes_outlive_the_daemon_and_are_kept_by_the_next)
{
    struct volume_ask_case second;
    struct sl_registry_counts counts;
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_mounted(&c, &second, "u2");
    volume_case_end(&c);
    ck_assert(volume_case_sees(request.target));
    volume_case_open(&c);
    ck_assert_uint_eq(volume_case_references(&c), 2);
    sl_registry_counts(c.node->registry, &counts);
    ck_assert_uint_ge(counts.held_bytes, 8000); /* adopted bytes count */
    ck_assert_int_eq(volume_case_publish(&c, &request), 0);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 2);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_int_eq(volume_case_unpublish(&c, &second), 0);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 0);
}

/* `status`, `rm` and loads try it for a moment. */
SL_TEST(who_looks_at_the_lock_of_a_daemon_that_begins_is_none)
{
    looks = 3;
    volume_case_open(&c);
    ck_assert_uint_eq(looks, 0);
}

static int open_to_all(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)where;
    return type == FTW_F ? chmod(path, 0444) : 0;
}

SL_TEST(records_and_salt_that_all_could_read_are_closed)
{
    char path[VOLUME_CASE_PATH];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u");
    volume_case_end(&c);
    snprintf(path, sizeof(path), "%s/models/.volumes", c.path);
    ck_assert_int_eq(nftw(path, open_to_all, 16, FTW_PHYS), 0);
    volume_case_open(&c);
    check_whole(true); /* looks at the modes */
}

SL_TEST(a_model_that_left_the_config_stays_below_its_mounts)
{
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_end(&c);
    snprintf(c.models, sizeof(c.models), "%s", VOLUME_CASE_MODEL("other", "memory://n/"));
    snprintf(c.keys, sizeof(c.keys), "budgetBytes: 1MiB");
    volume_case_open(&c);
    sl_registry_settle(c.node->registry);
    ck_assert(volume_case_sees(request.target));
    ck_assert_uint_eq(volume_case_references(&c), 1);
    ck_assert_int_eq(volume_case_publish(&c, &request), 0); /* for a mounted target always */
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
}

SL_TEST(a_mount_without_a_record_is_taken_away_and_a_strangers_is_not)
{
    char path[VOLUME_CASE_PATH * 2], foreign[VOLUME_CASE_PATH];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_end(&c);
    snprintf(path, sizeof(path), "%s/models", c.path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(sl_tree_remove(fd, ".volumes"), 0);
    close(fd);
    snprintf(foreign, sizeof(foreign), "%s", volume_case_pod(&c, "u2"));
    ck_assert_int_eq(mkdir(foreign, 0755), 0);
    ck_assert_int_eq(mount("other", foreign, "tmpfs", 0, "size=64k"), 0);
    volume_case_open(&c);
    ck_assert_int_eq(access(request.target, F_OK), -1);
    ck_assert_uint_eq(volume_case_mounts(foreign), 1);
    ck_assert_uint_eq(volume_case_mounts(c.kubelet), 1);
    ck_assert_uint_eq(volume_case_references(&c), 0);
}

SL_TEST(a_volume_goes_when_its_pod_has_gone)
{
    struct volume_ask_case second;
    char folder[VOLUME_CASE_PATH + 32];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_mounted(&c, &second, "u2");
    volumes_sweep(c.volumes);
    ck_assert_uint_eq(volume_case_references(&c), 2);
    snprintf(folder, sizeof(folder), "%s/pods", c.kubelet);
    ck_assert_int_eq(umount2(request.target, MNT_DETACH), 0);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(sl_tree_remove(fd, "u1"), 0);
    close(fd);
    volumes_sweep(c.volumes);
    ck_assert_uint_eq(volume_case_references(&c), 1);
    ck_assert_uint_eq(count_records(), 1);
    ck_assert(volume_case_sees(second.target));
}

SL_TEST(a_node_that_rebooted_begins_anew)
{
    char path[VOLUME_CASE_PATH];
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    volume_case_end(&c);
    ck_assert_int_eq(umount2(request.target, MNT_DETACH), 0); /* mounts and the tmpfs have gone */
    snprintf(path, sizeof(path), "%s/models", c.path);
    ck_assert_int_eq(sl_tree_remove(c.scratch, "models"), 0);
    volume_case_open(&c);
    ck_assert_uint_eq(volume_case_references(&c), 0);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0); /* what vol_data.json still names */
    ck_assert_int_eq(access(request.target, F_OK), -1);
}

/* ---- records that somebody else wrote ------------------------------------------------------- */

#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define RECORD(volume, target, model, version, more)                                               \
    "{\"format\": 1, \"volume\": \"" volume "\", \"target\": \"" target "\", \"model\": \"" model  \
    "\", \"version\": \"" version "\", \"pool\": false, \"pod\": \"p\", \"namespace\": \"n\", "    \
    "\"podUid\": \"u\", \"arguments\": \"" HEX64 "\"" more "}"

SL_TEST(records_are_read_as_hostile_input)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"format\": 0}",
        RECORD("", "/x", "m", "0123456789abcdef", ""),
        RECORD("v", "", "m", "0123456789abcdef", ""),
        RECORD("v", "/x", "../m", "0123456789abcdef", ""),
        RECORD("v", "/x", "m", "0123456789abcde/", ""),
        RECORD("v", "/x", "m", "short", ""),
        RECORD("v\\n", "/x", "m", "0123456789abcdef", ""),
        RECORD("v", "/x", "m", "0123456789abcdef", ", \"volume\": \"twice\""),
    };
    struct sl_volume_record record;
    struct sl_err err = SL_ERR_INIT;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_msg(sl_volume_record_parse(bad[i], strlen(bad[i]), &record, &err) < 0, "%s",
                      bad[i]);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
    }
    const char *good = RECORD("v", "/x", "m", "0123456789abcdef", ", \"later\": [1]");
    for (size_t bytes = 0; bytes < strlen(good); bytes++)
        ck_assert_int_lt(sl_volume_record_parse(good, bytes, &record, &err), 0);
    ck_assert_int_eq(sl_volume_record_parse(good, strlen(good), &record, &err), 0);
    ck_assert_str_eq(record.target, "/x");
    ck_assert_uint_eq(record.arguments[1], 0x11);
}

SL_TEST(a_record_that_names_other_places_does_nothing_there)
{
    static const char *const targets[] = {"/etc", "%s/../../x", "%s/pods/u9/x"};
    struct sl_volume_record record = {.id = "v", .model = "m", .version = "0123456789abcdef"};
    char path[VOLUME_CASE_PATH];
    volume_case_open(&c);
    volume_case_end(&c);
    snprintf(path, sizeof(path), "%s/models/.volumes", c.path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < SL_COUNT(targets); i++) {
        const char *format = targets[i];
        snprintf(record.target, sizeof(record.target), "%s%s", *format == '%' ? c.kubelet : "",
                 format + (*format == '%' ? 2 : 0));
        ck_assert_int_eq(sl_volume_record_write(fd, &record, NULL), 0);
    }
    ck_assert_int_eq(sl_tree_write(fd, "junk.json", "{", 1, NULL), 0);
    volume_case_open(&c);
    ck_assert_uint_eq(count_records(), 0);
    ck_assert_int_eq(access("/etc/passwd", F_OK), 0);
    ck_assert_int_eq(faccessat(fd, "junk.json", F_OK, 0), -1);
    close(fd);
}

SL_TEST(lines_of_the_mount_table_are_read_with_their_escapes)
{
    struct sl_mount_line line;
    char good[] = "36 35 98:0 /mnt1 /mnt\\0402\\134x rw,noatime master:1 - ext3 /dev/root rw";
    ck_assert(sl_mount_line_parse(good, &line));
    ck_assert_str_eq(line.root, "/mnt1");
    ck_assert_str_eq(line.point, "/mnt 2\\x");
    static const char *const bad[] = {"",
                                      "36",
                                      "36 35 98:0 /a",
                                      "36 35 x /a /b rw - t s o",
                                      "36 35 98:0 a /b rw - t s o",
                                      "36 35 98:0 /a b rw - t s o"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", bad[i]);
        ck_assert_msg(!sl_mount_line_parse(text, &line), "%s", bad[i]);
    }
}
