/* Tensors that come wrong once, or always: pieces that do not open, hashes that do not match. */
#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "form_maker.h"
#include "metrics.h"
#include "range_server.h"
#include "reader_parts.h"
#include "reread.h"
#include "scratch.h"
#include "stores.h"

enum { TENSORS = 6 };
static const uint8_t identity[32] = "refetch";

struct scene {
    struct sl_form *form;
    struct sl_server *server;
    uint8_t *object;
    size_t bytes;
    uint64_t flip; /* this byte is wrong in the next `times` answers */
    unsigned times;
    struct sl_progress *progress; /* NULL: none */
    bool late;                    /* wrong answers but the first come when every range was read */
    unsigned answered;            /* wrongly */
    struct sl_err err;
};

static bool is_checking(const struct scene *scene)
{
    struct sl_progress_view view;
    sl_progress_view(scene->progress, &view);
    return view.state == SL_LOAD_CHECKING;
}

static bool flip_byte(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    struct scene *scene = arg;
    uint64_t begin, end;
    if (!scene->times || !sl_server_range(request, scene->bytes, &begin, &end) ||
        begin > scene->flip || end <= scene->flip)
        return false;
    if (scene->answered++ && scene->late)
        SL_AWAIT(is_checking(scene), "the end of the last range");
    scene->times--;
    sl_server_reply_range(reply, scene->object, begin, end, scene->bytes, "\"v1\"");
    reply->body[scene->flip - begin] ^= 0x40;
    return true;
}

/* Small pieces, one piece of several windows, pieces that are cast; hashes in any order and in
 * order. */
static void fill_form(struct sl_form *form)
{
    struct sl_form_tensor wanted = {.dtype = SL_DTYPE_F32,
                                    .rank = 1,
                                    .shape = {5000},
                                    .encrypted = true,
                                    .piece_bytes = 1024,
                                    .gap = 300};
    sl_form_add(form, &wanted);
    wanted.piece_bytes = 0;
    wanted.shape[0] = 200000;
    sl_form_add(form, &wanted);
    wanted.piece_bytes = 100 * 1024;
    wanted.cast = SL_DTYPE_F16;
    wanted.shape[0] = 300000;
    sl_form_add(form, &wanted);
    wanted.encrypted = false;
    wanted.crc32 = wanted.sha256 = true;
    sl_form_add(form, &wanted); /* with `all`: in order */
    wanted.cast = SL_DTYPE_NONE;
    sl_form_add(form, &wanted);
    wanted.sha256 = false;
    wanted.gap = 1;
    sl_form_add(form, &wanted);
}

static void open_scene(struct scene *scene)
{
    scene->form = sl_form_new();
    fill_form(scene->form);
    scene->object = sl_form_object(scene->form, &scene->bytes);
    scene->server = sl_server_start();
    sl_server_put(scene->server, "/object", scene->object, scene->bytes, "\"v1\"");
    sl_server_handle(scene->server, flip_byte, scene);
}

static void close_scene(struct scene *scene)
{
    sl_server_stop(scene->server);
    sl_form_free(scene->form);
}

/* 0 if every byte is right. */
static int load(struct scene *scene, int hashes, unsigned connections, uint64_t range_bytes)
{
    static const struct sl_source_config config = {.attempts = 3};
    char path[SL_SCRATCH_PATH_BYTES];
    bool resumed;
    int directory = sl_scratch_open(path), failed = -1;
    struct sl_reader_config reader = {
        .connections = connections, .threads = 1 + connections / 3, .progress = scene->progress};
    struct sl_form_options wanted = {.uri = sl_server_url(scene->server, "/object"),
                                     .config = &config,
                                     .hashes = hashes,
                                     .range_bytes = range_bytes};
    unsigned times = scene->times;
    scene->times = 0; /* not for the planner */
    scene->err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_form_plan(scene->form, &wanted, &scene->err), 0);
    scene->times = times;
    struct sl_sink *sink =
        sl_tmpfs_open(directory, sl_form_file(scene->form), 1, NULL, &scene->err);
    struct sl_journal *journal =
        sl_journal_open(directory, "journal", identity, &resumed, &scene->err);
    if (sink && journal)
        failed = sl_reader_run(sl_form_planned(scene->form), sink, journal, &reader, &scene->err);
    if (!failed)
        ck_assert_msg(sl_form_matches(scene->form, sink), "bytes differ");
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_scratch_close(directory, path);
    return failed;
}

/* The load with one wrong byte; *again: how often something was fetched once more. */
static int load_with(unsigned tensor, uint64_t at, unsigned times, int hashes, unsigned connections,
                     uint64_t *again, struct sl_err *err)
{
    struct scene scene = {.times = times};
    uint64_t before = sl_metric_get(SL_M_REFETCHED_RANGES);
    open_scene(&scene);
    scene.flip = sl_form_begin(scene.form, tensor) + at;
    int failed = load(&scene, hashes, connections, connections == 1 ? 1 << 20 : 70000);
    *again = sl_metric_get(SL_M_REFETCHED_RANGES) - before;
    *err = scene.err;
    close_scene(&scene);
    return failed;
}

static const struct {
    unsigned tensor;
    uint64_t at;
} places[] = {{0, 3},     {0, 12345},  {0, 19999},   {1, 0},       {1, 555555}, {1, 799999}, {2, 0},
              {2, 99999}, {2, 777777}, {2, 1199999}, {4, 1000000}, {5, 0},      {5, 1199999}};

SL_TEST(what_comes_wrong_once_is_fetched_again)
{
    static const int hashes[] = {SL_HASHES_AUTO, SL_HASHES_ALL};
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        unsigned connections = i % 3 ? 4 : 1;
        uint64_t again;
        struct sl_err err;
        int failed =
            load_with(places[i].tensor, places[i].at, 1, hashes[i % 2], connections, &again, &err);
        ck_assert_msg(!failed, "tensor %u at %" PRIu64 ", %u connections: %s", places[i].tensor,
                      places[i].at, connections, err.message);
        ck_assert_uint_eq(again, 1);
    }
}

/* In order, by one reader, before the cast. */
SL_TEST(a_tensor_that_is_hashed_in_order_is_read_again_from_its_begin)
{
    for (uint64_t at = 0; at < 1200000; at += 599999) {
        uint64_t again;
        struct sl_err err;
        ck_assert_msg(!load_with(3, at, 1, SL_HASHES_ALL, 3, &again, &err), "%s", err.message);
        ck_assert_uint_eq(again, 1);
    }
}

SL_TEST(what_stays_wrong_ends_the_load_after_a_few_tries)
{
    for (size_t i = 0; i < SL_COUNT(places); i += 3) {
        uint64_t again;
        struct sl_err err;
        int failed =
            load_with(places[i].tensor, places[i].at, UINT32_MAX, SL_HASHES_AUTO, 1, &again, &err);
        char name[8];
        snprintf(name, sizeof(name), "'t%u'", places[i].tensor);
        ck_assert_int_eq(failed, -1);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        ck_assert_msg(strstr(err.message, name) && strstr(err.message, "fetched "), "%s",
                      err.message);
        ck_assert_uint_le(again, 3);
    }
}

/* No connection is left that could tell. */
SL_TEST(what_stays_wrong_after_the_last_range_fails_the_load)
{
    struct scene scene = {.times = UINT32_MAX, .late = true};
    scene.progress = sl_progress_new("late", "", "", NULL);
    open_scene(&scene);
    scene.flip = sl_form_begin(scene.form, TENSORS - 1) + 1199999;
    ck_assert_int_eq(load(&scene, SL_HASHES_AUTO, 1, 1 << 20), -1);
    ck_assert_int_eq(scene.err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(scene.err.message, "'t5'") && strstr(scene.err.message, "fetched 4 times"),
                  "%s", scene.err.message);
    close_scene(&scene);
    sl_progress_free(scene.progress);
}

/* Nobody would await the thread. */
SL_TEST(nothing_is_fetched_again_for_a_load_that_ends)
{
    struct sl_reader reader = {0};
    const struct sl_check check = {.what = "tensor 'late'"};
    struct sl_err err = SL_ERR_INIT;
    sl_repair_init(&reader.repair);
    sl_repair_stop(&reader.repair);
    ck_assert_int_eq(sl_repair_add(&reader, &check, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_repair_release(&reader.repair);
}

/* Bytes of a file come without waiting. */
static int stop_it(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    sl_cancel_raise(arg, 0);
    (void)data, (void)bytes, (void)err;
    return 0;
}

SL_TEST(what_is_read_again_without_waiting_can_be_stopped)
{
    enum { BYTES = 4 << 20 };
    char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 8];
    int scratch_fd = sl_scratch_open(scratch);
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int fd = openat(scratch_fd, "m", O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    snprintf(path, sizeof(path), "%s/m", scratch);
    struct sl_cancel *cancel = sl_cancel_new(&err), *stop = sl_cancel_new(&err);
    static const struct sl_source_config config = {.attempts = 1};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_store_open(path, &config, &store, &name, &err), 0);
    ck_assert_int_eq(sl_source_open(store, name, 1, &source, &err), 0);
    const struct sl_reread again = {.cancel = cancel, .stop = stop, .take = stop_it, .arg = cancel};
    ck_assert_int_eq(sl_reread_range(source, 0, BYTES, &again, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
    sl_cancel_free(stop);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.seconds = 60)
