/*
 * Something to measure where there is nothing: a model of random bytes in the destination's file
 * system, and a server of it. The server is this program again, as a child that the kernel ends
 * with us, whatever ends us; a thread would have its processor time counted with the client's.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_parts.h"
#include "exact_io.h"
#include "hash.h"
#include "layout.h"
#include "publish.h"

enum { TENSORS_MAX = 64, CHUNK_BYTES = 1024 * 1024, LINE_MAX_BYTES = 8192, START_SECONDS = 20 };
static const uint64_t TENSOR_BYTES_MIN = 4 * 1024 * 1024;
static const char file_name[] = "model.tensors";

struct sl_bench_loopback {
    struct sl_bench_place place;
    pid_t pid;
    char uri[128];
};

/* ---- the model ------------------------------------------------------------------------------ */

struct synthetic {
    struct sl_tensor tensors[TENSORS_MAX];
    const struct sl_tensor *pointers[TENSORS_MAX];
    struct sl_path_part paths[TENSORS_MAX];
    char names[TENSORS_MAX][40];
    uint64_t shape[2];
    size_t count;
};

/* Equal matrices of BF16, 1024 wide. */
static void describe(struct synthetic *model, uint64_t bytes)
{
    uint64_t count = SL_MIN(bytes / TENSOR_BYTES_MIN, (uint64_t)TENSORS_MAX);
    model->count = (size_t)SL_MAX(count, UINT64_C(1));
    model->shape[0] = SL_MAX(bytes / model->count / 2048, UINT64_C(1));
    model->shape[1] = 1024;
    for (size_t i = 0; i < model->count; i++) {
        snprintf(model->names[i], sizeof(model->names[i]), "layers.%zu.weight", i);
        model->paths[i] =
            (struct sl_path_part){.text = model->names[i], .text_bytes = strlen(model->names[i])};
        model->tensors[i] = (struct sl_tensor){
            .name = model->names[i],
            .name_bytes = strlen(model->names[i]),
            .path = &model->paths[i],
            .path_count = 1,
            .dtype = SL_DTYPE_BF16,
            .dtype_name = "BF16",
            .rank = 2,
            .shape = model->shape,
            .bytes = model->shape[0] * 2048,
        };
        model->pointers[i] = &model->tensors[i];
    }
}

static int write_at(int fd, const void *data, size_t bytes, uint64_t offset, struct sl_err *err)
{
    if (sl_write_at(fd, data, bytes, offset) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot write the synthetic model: give another directory with "
                             "--to DIR, or fewer --bytes");
    return 0;
}

/* xorshift: nothing on the way may find a pattern to compress. */
static void fill(uint64_t *words, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        words[i] = *state;
    }
}

static int write_tensor(int fd, const struct sl_layout_place *place, uint64_t *chunk,
                        uint64_t *state, struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_layout_header *header = place->header;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    uint8_t digest[32];
    if (!sha)
        return -1;
    uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
    sl_sha256_update(sha, header->prefix, header->prefix_bytes);
    for (uint64_t at = 0; at < place->bytes; at += CHUNK_BYTES) {
        size_t part = (size_t)SL_MIN(place->bytes - at, (uint64_t)CHUNK_BYTES);
        fill(chunk, CHUNK_BYTES / sizeof(*chunk), state);
        crc = sl_crc32(crc, chunk, part);
        sl_sha256_update(sha, chunk, part);
        if (sl_cancel_check(cancel, err) < 0 ||
            write_at(fd, chunk, part, place->offset + at, err) < 0)
            return -1;
    }
    sl_sha256_finish(sha, digest);
    sl_layout_header_hashes(header, crc, digest);
    return write_at(fd, header->data, header->bytes, header->offset, err);
}

static int write_layout(int fd, const struct sl_layout *layout, struct sl_cancel *cancel,
                        struct sl_err *err)
{
    const struct sl_layout_file *file = &layout->files[0];
    uint64_t state = UINT64_C(88172645463325252);
    sl_autofree uint64_t *chunk = sl_alloc(CHUNK_BYTES, err);
    if (!chunk)
        return -1;
    if (ftruncate(fd, (off_t)file->bytes) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make the synthetic model");
    if (write_at(fd, file->head.data, file->head.used, 0, err) < 0)
        return -1;
    for (size_t i = 0; i < layout->place_count; i++)
        if (write_tensor(fd, &layout->places[i], chunk, &state, cancel, err) < 0)
            return -1;
    return 0;
}

static int make_model(const char *folder, uint64_t bytes, struct sl_cancel *cancel,
                      struct sl_err *err)
{
    SL_AUTO(sl_layout) layout = NULL;
    sl_autofree struct synthetic *model = sl_alloc(sizeof(*model), err);
    sl_autofree char *path = sl_asprintf(err, "%s/%s", folder, file_name);
    if (!model || !path)
        return -1;
    describe(model, bytes);
    if (sl_tensorizer_layout(model->pointers, model->count, NULL, &layout, err) < 0 ||
        sl_room_check(folder, layout->files[0].bytes, 0, NULL, err) < 0)
        return sl_wrap(err, "the synthetic model");
    sl_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", path);
    return write_layout(fd, layout, cancel, err);
}

/* ---- its server ----------------------------------------------------------------------------- */

/* Only what may be called between fork and exec. */
static void become_server(const char *program, char *folder, int write_end, pid_t parent)
{
    char share[] = "share", listen[] = "--listen", place[] = "127.0.0.1:0", json[] = "--json";
    char level[] = "--log-level", error[] = "error", name[] = "sluice";
    char *const argv[] = {name, share, folder, listen, place, json, level, error, NULL};
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    dup2(write_end, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execv(program, argv);
    _exit(127);
}

/* Its one line on stdout. */
static int read_line(int fd, char line[LINE_MAX_BYTES], struct sl_cancel *cancel,
                     struct sl_err *err)
{
    uint64_t end = sl_now_ns() + START_SECONDS * SL_NS_PER_S;
    size_t used = 0;
    while (used < LINE_MAX_BYTES - 1) {
        struct pollfd fds[] = {{fd, POLLIN, 0}, {sl_cancel_fd(cancel), POLLIN, 0}};
        uint64_t now = sl_now_ns();
        int ready = now < end ? poll(fds, 2, (int)((end - now) / SL_NS_PER_MS + 1)) : 0;
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        ssize_t got = ready > 0 ? read(fd, line + used, LINE_MAX_BYTES - 1 - used) : -1;
        if (ready == 0 || got == 0)
            break;
        if (got < 0)
            continue;
        used += (size_t)got;
        line[used] = 0;
        if (strchr(line, '\n'))
            return 0;
    }
    return sl_fail(err, SL_E_INTERNAL, "the server of the synthetic model did not start");
}

static int start_server(struct sl_bench_loopback *loopback, const char *program,
                        struct sl_cancel *cancel, struct sl_err *err)
{
    char line[LINE_MAX_BYTES] = "";
    int ends[2];
    pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make a pipe");
    sl_autoclose int read_end = ends[0];
    loopback->pid = fork();
    if (loopback->pid == 0)
        become_server(program, loopback->place.run, ends[1], parent);
    close(ends[1]);
    if (loopback->pid < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot start a server");
    if (read_line(read_end, line, cancel, err) < 0)
        return -1;
    json_t *reply = sl_json_parse(line, strlen(line), "the server's line", err);
    uint64_t port = reply ? sl_json_get_uint(reply, "port", 0) : 0;
    json_decref(reply);
    if (!reply)
        return -1;
    snprintf(loopback->uri, sizeof(loopback->uri), "http://127.0.0.1:%u/%s", (unsigned)port,
             file_name);
    return 0;
}

struct sl_bench_loopback *sl_bench_loopback_start(const char *program, const char *to,
                                                  uint64_t bytes, struct sl_cancel *cancel,
                                                  struct sl_err *err)
{
    SL_AUTO(sl_bench_loopback) loopback = sl_alloc(sizeof(*loopback), err);
    if (!loopback)
        return NULL;
    loopback->pid = -1;
    loopback->place = (struct sl_bench_place){.fd = -1, .parent_fd = -1};
    if (sl_bench_place_open(&loopback->place, to, "sluice-loopback", err) < 0 ||
        sl_bench_place_make(&loopback->place, err) < 0 ||
        make_model(loopback->place.run, bytes, cancel, err) < 0 ||
        start_server(loopback, program, cancel, err) < 0)
        return NULL;
    return sl_steal(&loopback);
}

const char *sl_bench_loopback_uri(const struct sl_bench_loopback *loopback)
{
    return loopback->uri;
}

void sl_bench_loopback_free(struct sl_bench_loopback *loopback)
{
    if (!loopback)
        return;
    if (loopback->pid > 0) {
        kill(loopback->pid, SIGTERM);
        while (waitpid(loopback->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    sl_bench_place_close(&loopback->place);
    free(loopback);
}
