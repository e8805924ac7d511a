/* See deposit_case.h. */
#include "deposit_case.h"

#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "log.h"
#include "pool_index_write.h"

struct pool_case pool;
const uint8_t identity[32] = {1, 2, 3};

void deposit_case_setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    pool_case_init(&pool);
    pool_case_start(&pool);
}

void deposit_case_teardown(void)
{
    sl_alloc_fail_at(0);
    pool_case_release(&pool);
}

void open_link(struct sl_pool_link *link)
{
    struct sluice_error error = {0};
    int done = sl_pool_link_open(link, pool.socket, "raw", sl_limit_make(60000, -1), &error);
    ck_assert_msg(done == 0, "%s", error.message);
}

/* A memfd with so many seals. */
int make_fd(uint64_t bytes, int seals, const void *data)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (data)
        ck_assert_int_eq(pwrite(fd, data, bytes, 0), (ssize_t)bytes);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* One tensor in one slab of 4096 bytes. */
size_t make_index(const char *key, uint64_t *index, uint64_t slab_bytes)
{
    static const uint64_t shape = 1000;
    const struct sl_wire_index_slab slab = {.bytes = slab_bytes, .kind = 1};
    const struct sl_pool_item item = {.name = "a",
                                      .name_bytes = 1,
                                      .dtype = "F32",
                                      .kind = SL_WIRE_TENSOR,
                                      .rank = 1,
                                      .shape = &shape,
                                      .block_elements = 1,
                                      .block_bytes = 4,
                                      .bytes = 4000};
    struct sl_pool_contents contents = {
        .name = "m", .key = key, .slabs = &slab, .slab_count = 1, .items = &item, .item_count = 1};
    memcpy(contents.identity, identity, sizeof(identity));
    sl_pool_index_write(&contents, index);
    return sl_pool_index_size(&contents);
}

/* Its id. */
uint64_t begin_by_hand(struct sl_pool_link *link, uint64_t announced)
{
    struct sluice_error error = {0};
    struct sl_pool_reply reply;
    struct {
        struct sl_wire_deposit deposit;
        char texts[2];
    } ask = {.deposit = {.bytes = announced, .model_bytes = 1, .key_bytes = 1}, .texts = "mk"};
    memcpy(ask.deposit.identity, identity, sizeof(identity));
    open_link(link);
    int done = sl_pool_link_ask(link, SL_WIRE_DEPOSIT, &ask, sizeof(ask.deposit) + 2, NULL, 0,
                                sizeof(struct sl_wire_id), &reply, &error);
    ck_assert_msg(done == 0, "%s", error.message);
    return ((const struct sl_wire_id *)sl_pool_reply_data(&reply))->id;
}

/* A deposit of these files; 0 or the kind of the error. */
int deposit_by_hand(int slab_fd, int index_fd, uint64_t index_bytes, uint64_t announced)
{
    struct sl_pool_link link;
    struct sluice_error error = {0};
    struct sl_pool_reply reply;
    uint64_t id = begin_by_hand(&link, announced);
    struct sl_wire_slabs slabs = {.id = id, .count = 1};
    struct sl_wire_commit commit = {.id = id, .index_bytes = index_bytes};
    ck_assert_int_eq(sl_pool_link_ask(&link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), &slab_fd,
                                      1, sizeof(struct sl_wire_id), &reply, &error),
                     0);
    int done = sl_pool_link_ask(&link, SL_WIRE_COMMIT, &commit, sizeof(commit), &index_fd, 1,
                                sizeof(struct sl_wire_id), &reply, &error);
    sl_pool_link_close(&link);
    close(slab_fd);
    close(index_fd);
    pool_case_settle(&pool, 0, 0);
    return done < 0 ? error.kind : 0;
}
