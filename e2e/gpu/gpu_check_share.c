/*
 * Memory between processes: what attaching costs, step by step; readers in another PID namespace;
 * an exporter that is killed; a reader that writes. Children are this program again, started
 * anew: a process that has CUDA cannot fork and go on.
 */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_check.h"
#include "mem.h"

extern char **environ;
enum { FDS_EACH = 253, SLABS_MAX = 253 };
static const uint64_t MIB = 1 << 20;

/* ---- talking --------------------------------------------------------------------------------- */

static void send_fds(int link, const int *fds, unsigned count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * FDS_EACH)];
    } control;
    char byte = 1;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (count > 0) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(sizeof(int) * count), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), fds, sizeof(int) * count);
    }
    if (sendmsg(link, &message, MSG_NOSIGNAL) < 0)
        exit(3);
}

static void receive_fds(int link, int *fds, unsigned count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * FDS_EACH)];
    } control;
    char byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room};
    message.msg_controllen = sizeof(control.room);
    if (recvmsg(link, &message, MSG_CMSG_CLOEXEC) <= 0)
        exit(3);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_len != CMSG_LEN(sizeof(int) * count))
        exit(3);
    memcpy(fds, CMSG_DATA(head), sizeof(int) * count);
}

static bool hear(int link, void *data, size_t bytes)
{
    return recv(link, data, bytes, 0) == (ssize_t)bytes;
}

static void tell(int link, const void *data, size_t bytes)
{
    if (send(link, data, bytes, MSG_NOSIGNAL) < 0)
        exit(3);
}

/* A child of this program with one end of a pair; the other end is returned. */
static int start(const char *role, uint64_t number, uint64_t bytes, bool own_namespaces, pid_t *pid)
{
    int pair[2];
    char self[4096], end[16], first[24], second[24];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        exit(3);
    self[length] = 0;
    int passed = dup(pair[1]); /* not closed on exec */
    snprintf(end, sizeof(end), "%d", passed);
    snprintf(first, sizeof(first), "%" PRIu64, number);
    snprintf(second, sizeof(second), "%" PRIu64, bytes);
    char *arguments[16];
    unsigned count = 0;
    const char *const own[] = {self,  "child", own_namespaces ? "apart" : role, end,
                               first, second,  own_namespaces ? role : NULL,    NULL};
    for (unsigned i = 0; i < SL_COUNT(own); i++)
        arguments[count++] = (char *)own[i];
    int failed = posix_spawnp(pid, arguments[0], NULL, NULL, arguments, environ);
    close(pair[1]);
    close(passed);
    if (failed) {
        close(pair[0]);
        return -1;
    }
    return pair[0];
}

/* Only root makes namespaces, and not everywhere. The child calls nothing of CUDA. */
static bool can_be_apart(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWPID | CLONE_NEWNS) < 0);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int end_of(pid_t pid)
{
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
}

/* ---- attaching ------------------------------------------------------------------------------- */

struct attach_times {
    double context, receive, import, map, access; /* seconds */
};

static void attach_child(int link, unsigned count, uint64_t bytes)
{
    struct gpu_check check = {0};
    struct attach_times times;
    int fds[SLABS_MAX];
    static struct gpu_area areas[SLABS_MAX];
    double begin = gpu_now(), now;
    gpu_start(&check);
    const struct sl_cuda *cuda = check.cuda;
    struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, 0}, SL_CUDA_READ};
    now = gpu_now(), times.context = now - begin, begin = now;
    char ready = 1;
    tell(link, &ready, 1);
    begin = gpu_now();
    receive_fds(link, fds, count);
    now = gpu_now(), times.receive = now - begin, begin = now;
    for (unsigned i = 0; i < count; i++) {
        gpu_must(&check,
                 cuda->mem_import(&areas[i].handle, (void *)(uintptr_t)fds[i], SL_CUDA_HANDLE_FD),
                 "import memory");
        close(fds[i]);
    }
    now = gpu_now(), times.import = now - begin, begin = now;
    uint64_t address;
    gpu_must(&check, cuda->address_reserve(&address, count * bytes, check.device.granularity, 0, 0),
             "reserve addresses");
    for (unsigned i = 0; i < count; i++)
        gpu_must(&check, cuda->mem_map(address + i * bytes, bytes, 0, areas[i].handle, 0),
                 "map memory");
    now = gpu_now(), times.map = now - begin, begin = now;
    gpu_must(&check, cuda->mem_set_access(address, count * bytes, &access, 1), "set access");
    times.access = gpu_now() - begin;
    tell(link, &times, sizeof(times));
}

static void attach_row(unsigned count, const char *step, double seconds, double each)
{
    char what[80];
    snprintf(what, sizeof(what), "%u slabs: %s%s", count, step, each > 0 ? ", for each slab" : "");
    gpu_row("attach", what, each > 0 ? seconds * 1e6 / each : seconds * 1e3, each > 0 ? "us" : "ms",
            "", GPU_MEASURED);
}

static void attach(struct gpu_check *check, unsigned count, uint64_t bytes)
{
    static struct gpu_area areas[SLABS_MAX];
    int fds[SLABS_MAX];
    pid_t pid;
    char ready;
    struct attach_times times = {0};
    double begin = gpu_now();
    for (unsigned i = 0; i < count; i++) {
        gpu_must(check, gpu_area_make(check, bytes, &areas[i]) < 0 ? SL_CUDA_OUT_OF_MEMORY : 0,
                 "take memory for slabs");
        gpu_must(check, check->cuda->mem_export(&fds[i], areas[i].handle, SL_CUDA_HANDLE_FD, 0),
                 "export memory");
    }
    attach_row(count, "made and exported", gpu_now() - begin, 0);
    int link = start("attach", count, areas[0].bytes, false, &pid);
    bool good = link >= 0 && hear(link, &ready, 1);
    if (good)
        send_fds(link, fds, count);
    good = good && hear(link, &times, sizeof(times)) && end_of(pid) == 0;
    if (good) {
        attach_row(count, "context of the client", times.context, 0);
        attach_row(count, "received, imported, mapped, accessible",
                   times.receive + times.import + times.map + times.access, 0);
        attach_row(count, "import", times.import, count);
        attach_row(count, "map", times.map, count);
        attach_row(count, "set access", times.access, count);
    } else {
        gpu_row("attach", "a client attaches", count, "slabs", "it does", GPU_FAIL);
    }
    close(link);
    for (unsigned i = 0; i < count; i++) {
        close(fds[i]);
        gpu_area_free(check, &areas[i]);
    }
}

void gpu_check_attach(struct gpu_check *check)
{
    static const unsigned counts[] = {1, 16, 64, 253};
    size_t free_bytes, total;
    gpu_must(check, check->cuda->mem_info(&free_bytes, &total), "ask for free memory");
    for (unsigned i = 0; i < SL_COUNT(counts); i++) {
        uint64_t bytes = SL_MIN(512 * MIB, (uint64_t)free_bytes * 8 / 10 / counts[i]);
        bytes = gpu_size(check, bytes / (2 * MIB) * (2 * MIB), 2 * MIB);
        attach(check, counts[i], SL_MAX(bytes, 2 * MIB));
    }
}

/* ---- holders --------------------------------------------------------------------------------- */

struct digest {
    char hex[65];
};

/* Makes memory, hands it to its first client, and waits to be killed. */
static void exporter_child(int link, uint64_t bytes)
{
    struct gpu_check check = {0};
    struct gpu_area area;
    struct digest digest;
    void *data;
    int fd;
    gpu_start(&check);
    if (gpu_area_make(&check, bytes, &area) < 0)
        exit(4);
    gpu_must(&check, check.cuda->host_alloc(&data, area.bytes, SL_CUDA_HOST_PORTABLE), "pin");
    gpu_fill_random(data, area.bytes);
    gpu_must(&check, check.cuda->copy_to_device(area.address, data, area.bytes, check.stream),
             "copy");
    gpu_must(&check, check.cuda->stream_synchronize(check.stream), "wait");
    gpu_digest(&check, area.address, area.bytes, digest.hex);
    gpu_must(&check, check.cuda->mem_export(&fd, area.handle, SL_CUDA_HANDLE_FD, 0), "export");
    tell(link, &digest, sizeof(digest));
    send_fds(link, &fd, 1);
    char byte;
    hear(link, &byte, 1); /* nobody says anything */
}

/* Digests what it was given whenever it is asked; 'w': tries to write first. */
static void holder_child(int link, uint64_t bytes)
{
    struct gpu_check check = {0};
    struct gpu_area area;
    struct digest digest;
    int fd;
    char word;
    receive_fds(link, &fd, 1);
    gpu_start(&check);
    gpu_area_import(&check, fd, bytes, SL_CUDA_READ, &area);
    close(fd);
    while (hear(link, &word, 1)) {
        if (word == 'w') {
            int result = check.cuda->set_bytes(area.address, 0x5a, 4096, check.stream);
            if (result == 0)
                result = check.cuda->stream_synchronize(check.stream);
            tell(link, &result, sizeof(result));
            return; /* an error has ended the context */
        }
        gpu_digest(&check, area.address, area.bytes, digest.hex);
        tell(link, &digest, sizeof(digest));
    }
}

/* A client with this descriptor. */
static int start_holder(int fd, uint64_t bytes, bool own_namespaces, pid_t *pid)
{
    int link = start("holder", 0, bytes, own_namespaces, pid);
    if (link >= 0)
        send_fds(link, &fd, 1);
    return link;
}

static bool digests_to(int link, const struct digest *wanted)
{
    struct digest digest = {{0}};
    char word = 'd';
    return link >= 0 && send(link, &word, 1, MSG_NOSIGNAL) == 1 &&
           hear(link, &digest, sizeof(digest)) && strcmp(digest.hex, wanted->hex) == 0;
}

static void check_writer(int fd, uint64_t bytes)
{
    pid_t pid;
    int result = 0, link = start_holder(fd, bytes, false, &pid);
    char word = 'w', what[96];
    bool heard =
        link >= 0 && send(link, &word, 1, MSG_NOSIGNAL) == 1 && hear(link, &result, sizeof(result));
    close(link);
    int status = end_of(pid);
    snprintf(what, sizeof(what), "a write through a read-only mapping: %s %d",
             heard ? "result" : "the client's status", heard ? result : status);
    gpu_row("holders", what, heard ? result : status, "", "an error",
            heard && result == 0 ? GPU_FAIL : GPU_OK);
}

static size_t free_now(struct gpu_check *check)
{
    size_t free_bytes, total;
    gpu_must(check, check->cuda->mem_info(&free_bytes, &total), "ask for free memory");
    return free_bytes;
}

/* Memory of a process that has handles and no context. */
static void handles_child(int link, uint64_t bytes)
{
    struct sl_cuda_err err;
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    struct sl_cuda_prop prop = sl_cuda_shareable(0);
    uint64_t handle;
    int result = cuda ? cuda->mem_create(&handle, bytes, &prop, 0) : -1;
    char byte;
    tell(link, &result, sizeof(result));
    hear(link, &byte, 1);
}

static void check_handles(struct gpu_check *check, uint64_t bytes)
{
    pid_t pid;
    int result = -1;
    size_t before = free_now(check);
    int link = start("handles", 0, bytes, false, &pid);
    bool good = link >= 0 && hear(link, &result, sizeof(result)) && result == 0;
    double more = ((double)before - (double)free_now(check) - (double)bytes) / (double)MIB;
    gpu_row("holders",
            "memory of the device that a process without a context takes beside its slabs",
            good ? more : -1, "MiB", "", good ? GPU_MEASURED : GPU_FAIL);
    close(link);
    end_of(pid);
}

void gpu_check_holders(struct gpu_check *check)
{
    uint64_t bytes = gpu_size(check, 512 * MIB, 4 * MIB);
    struct digest wanted = {{0}};
    pid_t exporter, near_pid, far_pid;
    int fd, status = 0;
    size_t before = free_now(check);
    int source = start("exporter", 0, bytes, false, &exporter);
    if (source < 0 || !hear(source, &wanted, sizeof(wanted))) {
        gpu_claim("holders", "another process makes memory", false, "it does");
        return;
    }
    receive_fds(source, &fd, 1);
    int nearby = start_holder(fd, bytes, false, &near_pid);
    bool apart = can_be_apart();
    int far = apart ? start_holder(fd, bytes, true, &far_pid) : -1;
    gpu_claim("holders", "another process reads the same bytes", digests_to(nearby, &wanted),
              "the same SHA-256");
    bool far_reads = digests_to(far, &wanted);
    gpu_row("holders", "so does one in another PID and mount namespace", far_reads, "",
            "the same SHA-256",
            !apart      ? GPU_SKIP
            : far_reads ? GPU_OK
                        : GPU_FAIL);
    check_writer(fd, bytes);
    gpu_claim("holders", "after which the bytes are as they were", digests_to(nearby, &wanted),
              "the same SHA-256");
    kill(exporter, SIGKILL);
    status = end_of(exporter);
    close(source);
    close(fd);
    gpu_claim("holders", "the exporter is killed", WIFSIGNALED(status), "signal 9");
    gpu_claim("holders", "after which both still read the same bytes",
              digests_to(nearby, &wanted) && (!apart || digests_to(far, &wanted)),
              "the same SHA-256");
    bool held = before - free_now(check) >= bytes;
    gpu_row("holders", "memory is there as long as a holder lives", held, "", "",
            held ? GPU_OK : GPU_MEASURED);
    close(nearby);
    end_of(near_pid);
    if (far >= 0) {
        close(far);
        end_of(far_pid);
    }
    double left = ((double)before - (double)free_now(check)) / (double)MIB;
    gpu_row("holders", "memory of the device that is left of it", left, "MiB", "< 64",
            check->quick ? GPU_MEASURED
            : left < 64  ? GPU_OK
                         : GPU_FAIL);
    check_handles(check, gpu_size(check, 1024 * MIB, 4 * MIB));
}

/* ---- what a descriptor keeps ----------------------------------------------------------------- */

/* This process has no CUDA. Between the exporter's end and the holder's start nobody has the GPU
 * open, as between two daemons. */
void gpu_check_alone(struct gpu_check *check)
{
    enum { ALONE_SECONDS = 10 };
    uint64_t bytes = gpu_size(check, 512 * MIB, 4 * MIB);
    struct digest wanted = {{0}};
    pid_t exporter, holder;
    int fd, source = start("exporter", 0, bytes, false, &exporter);
    if (source < 0 || !hear(source, &wanted, sizeof(wanted))) {
        gpu_claim("alone", "another process makes memory", false, "it does");
        return;
    }
    receive_fds(source, &fd, 1);
    kill(exporter, SIGKILL);
    end_of(exporter);
    close(source);
    sleep(check->quick ? 0 : ALONE_SECONDS);
    int link = start_holder(fd, bytes, false, &holder);
    bool same = digests_to(link, &wanted);
    gpu_row("alone", "a descriptor alone keeps memory while no process has the GPU open", same, "",
            "1 with persistence mode", same ? GPU_OK : GPU_MEASURED);
    close(link);
    end_of(holder);
    close(fd);
}

struct unmapped {
    int unmap, later;
};

/* What does a driver do that is to unmap memory under work? */
static void unmap_child(int link, uint64_t bytes)
{
    enum { WORKS = 64 };
    struct gpu_check check = {0};
    struct gpu_area area;
    struct unmapped results = {0};
    gpu_start(&check);
    if (gpu_area_make(&check, bytes, &area) < 0)
        exit(4);
    for (int i = 0; i < WORKS; i++)
        gpu_must(&check, check.cuda->set_bytes(area.address, 1, area.bytes, check.stream), "work");
    results.unmap = check.cuda->mem_unmap(area.address, area.bytes);
    results.later = check.cuda->stream_synchronize(check.stream);
    tell(link, &results, sizeof(results));
}

void gpu_check_unmapping(struct gpu_check *check)
{
    struct unmapped results = {-1, -1};
    pid_t pid;
    int link = start("unmap", 0, gpu_size(check, 512 * MIB, 4 * MIB), false, &pid);
    bool heard = link >= 0 && hear(link, &results, sizeof(results));
    gpu_row("rules", "unmapping memory under work: the call", results.unmap, "result", "",
            heard ? GPU_MEASURED : GPU_FAIL);
    gpu_row("rules", "unmapping memory under work: who waits for the work", results.later, "result",
            "", heard ? GPU_MEASURED : GPU_FAIL);
    close(link);
    end_of(pid);
}

/* ---- children -------------------------------------------------------------------------------- */

/* LINK NUMBER BYTES ROLE: another child, as the first process of its own PID namespace. */
static int run_apart(char **arguments)
{
    char *own[] = {arguments[3], arguments[0], arguments[1], arguments[2]};
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
        return 3;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return gpu_check_child(own, 4);
    }
    close((int)strtol(arguments[0], NULL, 10));
    return pid < 0 || end_of(pid) != 0;
}

int gpu_check_child(char **arguments, int count)
{
    if (count == 5 && strcmp(arguments[0], "apart") == 0)
        return run_apart(arguments + 1);
    if (count != 4)
        return 2;
    int link = (int)strtol(arguments[1], NULL, 10);
    uint64_t number = strtoull(arguments[2], NULL, 10), bytes = strtoull(arguments[3], NULL, 10);
    if (strcmp(arguments[0], "attach") == 0 && number <= SLABS_MAX)
        attach_child(link, (unsigned)number, bytes);
    else if (strcmp(arguments[0], "exporter") == 0)
        exporter_child(link, bytes);
    else if (strcmp(arguments[0], "holder") == 0)
        holder_child(link, bytes);
    else if (strcmp(arguments[0], "handles") == 0)
        handles_child(link, bytes);
    else if (strcmp(arguments[0], "unmap") == 0)
        unmap_child(link, bytes);
    else
        return 2;
    return 0;
}
