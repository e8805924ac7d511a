/* Reads that end early: canceled by another thread, a descriptor, a callback, the clock; and what a
 * read tells meanwhile. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "mem.h"
#include "memory_store.h"
#include "model_maker.h"
#include "open_case.h"
#include "open_parts.h"
#include "range_server.h"
#include "scratch.h"

/* ---- canceled -------------------------------------------------------------------------------- */

struct stalled {
    struct sl_server *server;
    struct sluice_source *source;
    uint8_t *data;
};

/* Every read waits for ever. */
static void stall(struct stalled *stalled)
{
    size_t bytes;
    stalled->server = sl_server_start();
    stalled->data = sl_model_safetensors("a,b,c", 100000, &bytes);
    sl_server_put(stalled->server, "/m.safetensors", stalled->data, bytes, "\"1\"");
    struct sluice_open_options options = {.size = sizeof(options),
                                          .spec = "readers: {stallSeconds: 3600, hedge: off}"};
    stalled->source = open_it(sl_server_url(stalled->server, "/m.safetensors"), &options);
    SL_SCRIPT(stalled->server, {.fault = SL_FAULT_STALL, .after = 100});
}

static void unstall(struct stalled *stalled)
{
    sluice_close(stalled->source);
    sl_server_stop(stalled->server);
    free(stalled->data);
}

static int read_stalled(struct stalled *stalled, const struct sluice_read_options *options)
{
    sl_autofree uint8_t *room = malloc(400000);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = room, .bytes = 400000};
    return sluice_read(stalled->source, &read, 1, options, &error);
}

/* Three elements of which each is a request of its own, or which are taken out of what is read. */
static int read_steps_stalled(struct stalled *stalled, uint64_t step,
                              const struct sluice_read_options *options)
{
    float rows[3];
    const struct sluice_range range = {1000, 1000 + 2 * step + 1, step};
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .slice = &range, .to = rows, .bytes = sizeof(rows)};
    return sluice_read(stalled->source, &read, 1, options, &error);
}

static void *cancel_when_stalled(void *arg)
{
    struct stalled *stalled = arg;
    SL_AWAIT(sl_server_stalled_count(stalled->server), "the request that stalls");
    sluice_cancel(stalled->source);
    return NULL;
}

SL_TEST(another_thread_cancels_a_read)
{
    struct stalled stalled;
    pthread_t thread;
    stall(&stalled);
    pthread_create(&thread, NULL, cancel_when_stalled, &stalled);
    ck_assert_int_eq(read_stalled(&stalled, NULL), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    pthread_join(thread, NULL);
    ck_assert_int_eq(read_stalled(&stalled, NULL), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    unstall(&stalled);
}

static void *write_when_stalled(void *arg)
{
    struct stalled *stalled = ((void **)arg)[0];
    const int *fds = ((void **)arg)[1];
    SL_AWAIT(sl_server_stalled_count(stalled->server), "the request that stalls");
    ck_assert_int_eq(write(fds[1], "x", 1), 1);
    return NULL;
}

SL_TEST(a_descriptor_cancels_a_read_and_no_other)
{
    struct stalled stalled;
    int fds[2];
    pthread_t thread;
    stall(&stalled);
    ck_assert_int_eq(pipe(fds), 0);
    void *args[] = {&stalled, fds};
    pthread_create(&thread, NULL, write_when_stalled, args);
    const struct sluice_read_options options = {.size = sizeof(options), .cancel_fd = fds[0]};
    ck_assert_int_eq(read_stalled(&stalled, &options), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    pthread_join(thread, NULL);
    sl_server_script(stalled.server, NULL, 0);
    ck_assert_msg(read_stalled(&stalled, NULL) == 0, "%s", error.message);
    close(fds[0]);
    close(fds[1]);
    unstall(&stalled);
}

SL_TEST(slices_are_canceled_as_whole_tensors_are)
{
    for (uint64_t step = 2; step <= 40000; step *= 20000) { /* taken out; asked for one by one */
        struct stalled stalled;
        pthread_t thread;
        int fds[2];
        stall(&stalled);
        SL_SCRIPT(stalled.server, {.fault = SL_FAULT_STALL, .after = 1});
        ck_assert_int_eq(pipe(fds), 0);
        void *args[] = {&stalled, fds};
        pthread_create(&thread, NULL, write_when_stalled, args);
        const struct sluice_read_options options = {.size = sizeof(options), .cancel_fd = fds[0]};
        ck_assert_int_eq(read_steps_stalled(&stalled, step, &options), -1);
        ck_assert_int_eq(error.kind, SLUICE_CANCELED);
        pthread_join(thread, NULL);
        close(fds[0]);
        close(fds[1]);
        unstall(&stalled);
    }
}

SL_TEST(a_read_ends_with_its_time)
{
    struct stalled stalled;
    stall(&stalled);
    const struct sluice_read_options options = {.size = sizeof(options), .timeout_ms = 50};
    ck_assert_int_eq(read_stalled(&stalled, &options), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    unstall(&stalled);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

struct told {
    uint64_t done[3], bytes, total;
    unsigned calls, stop_at;
};

static int note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct told *told = arg;
    ck_assert_uint_gt(done + 1, told->bytes);
    told->bytes = done;
    told->total = total;
    return 0;
}

static int report_done(void *arg, uint64_t index)
{
    struct told *told = arg;
    told->done[index]++;
    return ++told->calls == told->stop_at;
}

/* It ends well, but not before it was to end. */
static int end_late(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    (void)arg, (void)err;
    SL_AWAIT(sl_cancel_raised(cancel), "the end of its time");
    return 0;
}

/* What is open by then was canceled with it, and would refuse each read. */
SL_TEST(what_opens_when_its_time_is_over_is_not_open)
{
    const struct sl_open_limits limits = {.timeout_ms = 1};
    struct sl_err err = SL_ERR_INIT;
    for (int raise = 0; raise <= 1; raise++) {
        struct sl_cancel *outer = sl_cancel_new(&err);
        int done = sl_open_within(&limits, outer, raise, end_late, NULL, &err);
        ck_assert_int_eq(done, raise ? -1 : 0);
        ck_assert_int_eq(sl_cancel_raised(outer), raise);
        sl_cancel_free(outer);
    }
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
}

SL_TEST(each_read_is_told_once)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b,c", 100000, &bytes), *room = malloc(3 * 400000);
    struct sluice_read reads[3];
    struct told told = {0};
    sl_memory_put("m.safetensors", data, bytes, NULL);
    struct sluice_source *source = open_it("memory:m.safetensors", NULL);
    for (uint64_t i = 0; i < 3; i++)
        reads[i] = (struct sluice_read){
            .size = sizeof(reads[i]), .number = 2 - i, .to = room + i * 400000, .bytes = 400000};
    struct sluice_read_options options = {
        .size = sizeof(options), .progress = note_progress, .done = report_done, .arg = &told};
    ck_assert_int_eq(sluice_read(source, reads, 3, &options, &error), 0);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(told.done[i], 1);
        ck_assert_mem_eq(room + i * 400000, data + bytes - (i + 1) * 400000, 400000);
    }
    ck_assert_uint_eq(told.bytes, 3 * 400000);
    ck_assert_uint_eq(told.total, 3 * 400000);
    told = (struct told){.stop_at = 1};
    ck_assert_int_eq(sluice_read(source, reads, 3, &options, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    sluice_close(source);
    sl_memory_clear();
    free(data);
    free(room);
}

/* ---- pulled ---------------------------------------------------------------------------------- */

struct pulled {
    uint64_t done, total;
    unsigned times;
    int answer;
};

static int tell_pulled(void *arg, uint64_t done, uint64_t total)
{
    struct pulled *told = arg;
    told->done = done;
    told->total = total;
    told->times++;
    return told->answer;
}

static int pull_from(struct stalled *stalled, struct pulled *told, const char *folder)
{
    const struct sluice_open_options options = {.size = sizeof(options),
                                                .spec = "readers: {stallSeconds: 3600, hedge: off}",
                                                .progress = tell_pulled,
                                                .arg = told};
    return sluice_pull(sl_server_url(stalled->server, "/m.safetensors"), folder, &options, &error);
}

SL_TEST(a_pull_tells_how_far_it_is_and_a_callback_ends_it)
{
    struct pulled told = {0};
    char folder[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 8];
    int fd = sl_scratch_open(folder);
    struct stalled stalled;
    stall(&stalled);
    told.answer = 1;
    snprintf(path, sizeof(path), "%s/a", folder);
    ck_assert_int_eq(pull_from(&stalled, &told, path), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    sl_server_script(stalled.server, NULL, 0);
    told = (struct pulled){0};
    snprintf(path, sizeof(path), "%s/b", folder);
    ck_assert_msg(pull_from(&stalled, &told, path) == 0, "%s", error.message);
    ck_assert(told.times > 0 && told.total > 3 * 400000 && told.done == told.total);
    unstall(&stalled);
    sl_scratch_close(fd, folder);
}

SL_TEST(a_pull_into_its_own_source_says_so)
{
    char folder[SL_SCRATCH_PATH_BYTES], inside[SL_SCRATCH_PATH_BYTES + 8];
    int fd = sl_scratch_open(folder);
    snprintf(inside, sizeof(inside), "%s/x.json", folder);
    FILE *file = fopen(inside, "w");
    fputs("{}", file);
    fclose(file);
    snprintf(inside, sizeof(inside), "%s/inside", folder);
    memset(&error, 0, sizeof(error));
    int done = sluice_pull(folder, inside, NULL, &error);
    ck_assert_msg(done == 0 || error.message[0], "an empty message");
    sl_scratch_close(fd, folder);
}

/* ---- forked ---------------------------------------------------------------------------------- */

static void *read_whole(void *arg)
{
    struct stalled *stalled = arg;
    return (void *)(intptr_t)read_stalled(stalled, NULL);
}

/* What a child of fork() finds; its exit code. */
static int use_as_child(struct stalled *stalled)
{
    struct sluice_memory *memory;
    struct sluice_source_info info = {.size = sizeof(info)};
    if (read_stalled(stalled, NULL) != -1 || error.kind != SLUICE_USAGE ||
        strcmp(error.code, "forked") != 0)
        return 1;
    if (sluice_map(stalled->source, 1, NULL, &memory, &error) != -1 ||
        strcmp(error.code, "forked") != 0)
        return 2;
    sluice_source_info(stalled->source, &info);
    if (info.tensor_count != 3)
        return 3;
    sluice_cancel(stalled->source);
    sluice_close(stalled->source);
    return 0;
}

/* The child has neither the thread that reads nor its locks, and the parent's descriptors. */
SL_TEST(a_forked_process_leaves_its_parents_source_alone)
{
    struct stalled stalled;
    pthread_t thread;
    void *done;
    int status;
    struct sl_cancel *untouched;
    stall(&stalled);
    untouched = stalled.source->cancel;
    pthread_create(&thread, NULL, read_whole, &stalled);
    SL_AWAIT(sl_server_stalled_count(stalled.server), "the request that stalls");
    pid_t child = fork();
    if (child == 0)
        _exit(use_as_child(&stalled));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %x", status);
    struct pollfd canceled = {.fd = sl_cancel_fd(untouched), .events = POLLIN};
    ck_assert_int_eq(poll(&canceled, 1, 0), 0);
    sluice_cancel(stalled.source);
    ck_assert_int_eq(poll(&canceled, 1, 0), 1);
    pthread_join(thread, &done);
    ck_assert_int_eq((int)(intptr_t)done, -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    unstall(&stalled);
}
