/* Parts of tensors that are read onto a GPU from an object with a sidecar: what came wrong is
 * fetched again before it is copied, and nothing wrong is ever on the device. */
#include <string.h>

#include "api_device.h"
#include "claims.h"
#include "metrics.h"
#include "open_case.h"
#include "signed_model.h"
#include "use_fake_cuda.h"

enum { ITEMS = 400000, TENSOR_BYTES = 4 * ITEMS };

static const struct fake_cuda_control *fake;
static struct sl_api_device gpu;
static struct sluice_source *source;
static uint64_t handle, room_bytes;
static uint8_t *room; /* of the GPU; the fake driver's addresses can be read */

static void setup(void)
{
    void *map;
    const struct sluice_open_options options = {.size = sizeof(options),
                                                .spec = "verify: {sidecar: require}\n"};
    fake->reset();
    server = sl_server_start();
    put_model("a", ITEMS);
    sl_server_handle(server, flip_bit, NULL);
    flip(0, 0);
    source = open_it(sl_server_url(server, "/m.safetensors"), &options);
    ck_assert_msg(sl_api_device_open(&gpu, 0, &error) == 0, "%s", error.message);
    room_bytes = sl_api_device_round(&gpu, TENSOR_BYTES);
    ck_assert_int_eq(sl_api_device_make(&gpu, room_bytes, &handle, &map, &error), 0);
    room = map;
    memset(room, 0xee, TENSOR_BYTES);
}

static void teardown(void)
{
    sl_api_device_unmap(&gpu, room, room_bytes);
    sl_api_device_drop(&gpu, handle);
    sl_api_device_close(&gpu);
    sluice_close(source);
    sl_server_stop(server);
    free(sl_steal(&data));
    check_no_cuda_left(fake);
}

static uint64_t place_of(uint64_t item)
{
    return bytes - TENSOR_BYTES + 4 * item;
}

/* The first item of the range after the one that this item is in. */
static uint64_t next_range(uint64_t item)
{
    return ((place_of(item) / RANGE + 1) * RANGE - place_of(0) + 3) / 4;
}

static uint64_t count_of(struct sluice_range range)
{
    return (range.stop - range.start + range.step - 1) / range.step;
}

static int read_onto(struct sluice_range range)
{
    const struct sluice_read read = {
        .size = sizeof(read), .slice = &range, .to = room, .bytes = 4 * count_of(range)};
    const struct sluice_read_options options = {.size = sizeof(options), .device = "cuda:0"};
    memset(&error, 0, sizeof(error));
    return sluice_read(source, &read, 1, &options, &error);
}

/* Is what lies on the device the right bytes, from the first item on? */
static bool is_right(struct sluice_range range, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(room + 4 * i, data + place_of(range.start + i * range.step), 4) != 0)
            return false;
    return true;
}

SL_TEST(what_comes_wrong_once_is_right_on_the_device)
{
    uint64_t first = next_range(100000), last = first + 7 * (RANGE / 4);
    for (unsigned step = 1; step <= 3; step += 2) {
        struct sluice_range range = {first, last, step};
        uint64_t before = sl_metric_get(SL_M_REFETCHED_RANGES);
        flip(place_of(first + 30000), 1);
        ck_assert_msg(read_onto(range) == 0, "%s", error.message);
        ck_assert(is_right(range, count_of(range)));
        ck_assert_uint_eq(sl_metric_get(SL_M_REFETCHED_RANGES) - before, 1);
    }
}

SL_TEST(a_whole_tensor_is_mended_too)
{
    struct sluice_range all = {0, ITEMS, 1};
    const struct sluice_read read = {.size = sizeof(read), .to = room, .bytes = TENSOR_BYTES};
    const struct sluice_read_options options = {.size = sizeof(options), .device = "cuda:0"};
    uint64_t before = sl_metric_get(SL_M_REFETCHED_RANGES);
    flip(place_of(ITEMS / 2), 2);
    ck_assert_msg(sluice_read(source, &read, 1, &options, &error) == 0, "%s", error.message);
    ck_assert(is_right(all, ITEMS));
    ck_assert_uint_ge(sl_metric_get(SL_M_REFETCHED_RANGES) - before, 1);
}

/* Whatever was copied before the failure, the wrong byte was not. */
SL_TEST(what_stays_wrong_fails_and_is_never_on_the_device)
{
    uint64_t first = next_range(100000), last = first + 7 * (RANGE / 4);
    struct sluice_range range = {first, last, 1};
    uint64_t wrong = first + 30000;
    flip(place_of(wrong), UINT32_MAX);
    ck_assert_int_eq(read_onto(range), -1);
    ck_assert_msg(error.kind == SLUICE_INTEGRITY, "%s", error.message);
    uint8_t flipped[4];
    memcpy(flipped, data + place_of(wrong), 4);
    flipped[0] ^= 4;
    ck_assert_int_ne(memcmp(room + 4 * (wrong - first), flipped, 4), 0);
    flip(0, 0);
    ck_assert_msg(read_onto(range) == 0, "%s", error.message);
    ck_assert(is_right(range, count_of(range)));
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
