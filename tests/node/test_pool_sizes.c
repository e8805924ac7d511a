/*
 * What a depositor says of sizes, and what its files say: sums that wrap, files without bytes,
 * memory behind a file's end, an index that is larger than was said. Nothing of it is believed.
 */
#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "deposit_case.h"
#include "pool_index_write.h"

/* Slabs of these sizes, sealed, with an index that says the same. 0, or the kind of the error. */
static int deposit_sizes(const uint64_t *sizes, uint32_t count, uint64_t announced,
                         struct sluice_error *error)
{
    uint64_t index[1024];
    int fds[8], index_fd;
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    struct sl_wire_index_slab slabs[8] = {{0}};
    struct sl_pool_contents contents = {
        .name = "m", .key = "k", .slabs = slabs, .slab_count = count};
    for (uint32_t i = 0; i < count; i++) {
        slabs[i] = (struct sl_wire_index_slab){.bytes = sizes[i], .kind = 1};
        fds[i] = make_fd(sizes[i], SEALED, NULL);
    }
    memcpy(contents.identity, identity, sizeof(identity));
    sl_pool_index_write(&contents, index);
    index_fd = make_fd(sl_pool_index_size(&contents), SEALED, index);
    struct sl_wire_slabs given = {.id = begin_by_hand(&link, announced), .count = count};
    struct sl_wire_commit commit = {.id = given.id, .index_bytes = sl_pool_index_size(&contents)};
    int done = sl_pool_link_ask(&link, SL_WIRE_DEPOSIT_SLABS, &given, sizeof(given), fds, count,
                                sizeof(struct sl_wire_id), &reply, error);
    if (done == 0)
        done = sl_pool_link_ask(&link, SL_WIRE_COMMIT, &commit, sizeof(commit), &index_fd, 1,
                                sizeof(struct sl_wire_id), &reply, error);
    sl_pool_link_close(&link);
    close(index_fd);
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    pool_case_settle(&pool, 0, 0);
    return done < 0 ? error->kind : 0;
}

SL_TEST(the_sum_of_the_slabs_cannot_wrap)
{
    const uint64_t huge = (1ull << 63) - 4096;
    const uint64_t wraps[] = {huge, huge, 3 * 4096}, three[] = {huge, huge, huge};
    const uint64_t fits[] = {4096, 4096, 3 * 4096};
    struct sluice_error error = {0};
    ck_assert_int_eq(deposit_sizes(wraps, 3, 4096, &error), SLUICE_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(error.message, "more bytes than the 4096 that were announced"));
    ck_assert_int_eq(deposit_sizes(wraps, 3, huge, &error), SLUICE_NO_SPACE);
    ck_assert_int_eq(deposit_sizes(wraps, 3, UINT64_MAX, &error), SLUICE_NO_SPACE);
    ck_assert_int_eq(deposit_sizes(three, 3, huge, &error), SLUICE_NO_SPACE);
    ck_assert_int_eq(deposit_sizes(three, 3, UINT64_MAX, &error), SLUICE_NO_SPACE);
    ck_assert_int_eq(deposit_sizes(fits, 3, 5 * 4096 - 1, &error), SLUICE_NO_SPACE);
    ck_assert_uint_eq(pool.locked.committed, 0);
    ck_assert_int_eq(deposit_sizes(fits, 3, 5 * 4096, &error), 0);
    ck_assert_uint_eq(pool.locked.committed, 1);
}

SL_TEST(an_index_cannot_wrap_either)
{
    uint64_t data[1024];
    char why[SL_POOL_WHY_BYTES];
    struct sl_pool_index index;
    struct sl_wire_index_slab slabs[] = {
        {.bytes = INT64_MAX - 1, .kind = 1}, {.bytes = 1, .kind = 1}, {.bytes = 1, .kind = 1}};
    struct sl_pool_contents contents = {.name = "m", .key = "", .slabs = slabs, .slab_count = 2};
    sl_pool_index_write(&contents, data);
    ck_assert_int_eq(sl_pool_index_check(data, sl_pool_index_size(&contents), &index, why), 0);
    ck_assert_uint_eq(index.slab_bytes, INT64_MAX);
    contents.slab_count = 3;
    sl_pool_index_write(&contents, data);
    ck_assert_int_eq(sl_pool_index_check(data, sl_pool_index_size(&contents), &index, why), -1);
}

SL_TEST(files_say_themselves_how_large_they_are)
{
    uint64_t index[1024];
    struct sluice_error error = {0};
    const uint64_t none[] = {4096, 0};
    size_t bytes = make_index("k", index, 4096);
    ck_assert_int_ne(deposit_sizes(none, 2, 1 << 20, &error), 0);
    ck_assert_int_eq(deposit_by_hand(make_fd(4096, SEALED, NULL), make_fd(bytes, SEALED, index),
                                     bytes - 8, 4096),
                     SLUICE_FORMAT); /* an index that is larger than was said */
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8 << 20), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, SEALED), 0);
    ck_assert_int_eq(deposit_by_hand(fd, make_fd(bytes, SEALED, index), bytes, 4096),
                     SLUICE_INTEGRITY); /* memory that no budget would know of */
    ck_assert_uint_eq(pool.locked.committed, 0);
}

SL_CASE(.setup = deposit_case_setup, .teardown = deposit_case_teardown)
