/*
 * Who does which work of a load: the one function that decides, row by row. The destination is a
 * row of answers, which notes what it was asked.
 */
#include <check.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "form_maker.h"
#include "stages.h"

#define DECRYPT (1u << SL_STAGE_DECRYPT)
#define CAST    (1u << SL_STAGE_CAST)
#define CRC     (1u << SL_STAGE_CRC)

enum { PIECE_BYTES_MAX = 4096 };

/* A destination. */
struct answers {
    unsigned does, refuses; /* stages, a bit each */
    uint32_t files;         /* that lie on the device, a bit each */
    unsigned asked;         /* a bit each */
    unsigned questions;
};

static int does(void *arg, enum sl_stage stage, bool *is_done, struct sl_err *err)
{
    struct answers *answers = arg;
    answers->asked |= 1u << stage;
    answers->questions++;
    if (answers->refuses & 1u << stage)
        return sl_fail(err, SL_E_GPU, "no kernels");
    *is_done = answers->does & 1u << stage;
    return 0;
}

static bool has(void *arg, uint32_t file)
{
    return ((const struct answers *)arg)->files & 1u << file;
}

static int place(struct sl_plan *plan, struct answers *answers, struct sl_err *err)
{
    const struct sl_stage_offer offer = {
        .does = does, .has = has, .arg = answers, .piece_bytes_max = PIECE_BYTES_MAX};
    return sl_plan_stages(plan, &offer, err);
}

/* ---- tensors --------------------------------------------------------------------------------- */

#define MATRIX .rank = 2, .shape = {64, 64}
#define ROWS   .sliced = true, .begin = {16, 0}, .end = {32, 64}
#define SEALED .encrypted = true, .piece_bytes = 1024
#define HALF   .cast = SL_DTYPE_F16
#define F32    .dtype = SL_DTYPE_F32

static const struct tensor_row {
    const char *what;
    struct sl_form_tensor tensor;
    int hashes;
    unsigned does;
    bool is_away;           /* its file does not lie on the device */
    unsigned asked, device; /* what must be */
} tensor_rows[] = {
    {"plain", {F32, MATRIX}, 0, DECRYPT | CAST, false, 0, 0},
    {"encrypted", {F32, MATRIX, SEALED}, 0, DECRYPT | CAST, false, DECRYPT, DECRYPT},
    {"encrypted, not offered", {F32, MATRIX, SEALED}, 0, CAST, false, DECRYPT, 0},
    {"encrypted, on the host", {F32, MATRIX, SEALED}, 0, DECRYPT, true, 0, 0},
    {"encrypted, the largest piece",
     {F32, MATRIX, .encrypted = true, .piece_bytes = 4096},
     0,
     DECRYPT,
     false,
     DECRYPT,
     DECRYPT},
    {"encrypted, a larger piece",
     {F32, MATRIX, .encrypted = true, .piece_bytes = 4100},
     0,
     DECRYPT,
     false,
     0,
     0},
    {"encrypted, one piece", {F32, MATRIX, .encrypted = true}, 0, DECRYPT, false, 0, 0},
    {"encrypted and cut", {F32, MATRIX, SEALED, ROWS}, 0, DECRYPT, false, 0, 0},
    {"encrypted, big-endian", {F32, MATRIX, SEALED, .swapped = true}, 0, DECRYPT, false, 0, 0},
    {"encrypted, its hash is not wanted",
     {F32, MATRIX, SEALED, .crc32 = true},
     SL_HASHES_AUTO,
     DECRYPT,
     false,
     DECRYPT,
     DECRYPT},
    {"encrypted, its hash is wanted",
     {F32, MATRIX, SEALED, .crc32 = true},
     SL_HASHES_ALL,
     DECRYPT,
     false,
     0,
     0},
    {"cast", {F32, MATRIX, HALF}, 0, DECRYPT | CAST, false, CAST, CAST},
    {"cast, not offered", {F32, MATRIX, HALF}, 0, DECRYPT, false, CAST, 0},
    {"cast, on the host", {F32, MATRIX, HALF}, 0, CAST, true, 0, 0},
    {"cast to more", {F32, MATRIX, .cast = SL_DTYPE_F64}, 0, CAST, false, CAST, CAST},
    {"cast and cut", {F32, MATRIX, HALF, ROWS}, 0, CAST, false, CAST, CAST},
    {"cast, big-endian", {F32, MATRIX, HALF, .swapped = true}, 0, CAST, false, CAST, CAST},
    {"cast, hashed before",
     {F32, MATRIX, HALF, .crc32 = true, .sha256 = true},
     SL_HASHES_ALL,
     CAST,
     false,
     CAST,
     CAST},
    {"cast, of a view", {F32, MATRIX, HALF, .turned = true}, 0, CAST, false, 0, 0},
    {"cast and encrypted, hashed before",
     {F32, MATRIX, HALF, SEALED, .crc32 = true},
     SL_HASHES_ALL,
     DECRYPT | CAST,
     false,
     CAST,
     CAST},
    {"cast and encrypted", {F32, MATRIX, HALF, SEALED}, 0, DECRYPT | CAST, false, CAST, CAST},
};

static unsigned stages_of(const struct sl_mapping *mapping)
{
    return (mapping->decrypt_on == SL_ON_DEVICE ? DECRYPT : 0) |
           (mapping->cast_on == SL_ON_DEVICE ? CAST : 0);
}

SL_TEST_LOOP(each_tensor_is_worked_on_where_its_row_says, 0, (int)SL_COUNT(tensor_rows))
{
    const struct tensor_row *row = &tensor_rows[_i];
    struct sl_err err = SL_ERR_INIT;
    struct answers answers = {.does = row->does, .files = row->is_away ? 0 : 1};
    struct sl_form_options wanted = {.hashes = row->hashes};
    struct sl_form *form = sl_form_new();
    sl_form_add(form, &row->tensor);
    sl_form_add(form, &row->tensor); /* one question is enough */
    ck_assert_msg(sl_form_plan(form, &wanted, &err) == 0, "%s: %s", row->what, err.message);
    struct sl_plan *plan = sl_form_planned(form);
    ck_assert_msg(place(plan, &answers, &err) == 0, "%s: %s", row->what, err.message);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(stages_of(&plan->mappings[i]) == row->device, "%s: %u", row->what,
                      stages_of(&plan->mappings[i]));
    ck_assert_msg((answers.asked & ~CRC) == row->asked, "%s: asked %u", row->what, answers.asked);
    ck_assert_uint_le(answers.questions, 1 + (answers.asked & CRC ? 1 : 0));
    ck_assert_uint_eq(sl_plan_on_device(plan, SL_STAGE_DECRYPT), row->device & DECRYPT ? 2 : 0);
    ck_assert_uint_eq(sl_plan_on_device(plan, SL_STAGE_CAST), row->device & CAST ? 2 : 0);
    sl_form_free(form);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Of bytes [begin, end) of its file; the second file is on the host. */
static const struct check_row {
    const char *what;
    struct sl_check check;
    unsigned asked, device;
} check_rows[] = {
    {"CRC32", {SL_HASH_CRC32, .end = 100, .repair = SL_REPAIR_FETCH}, CRC, CRC},
    {"CRC32C", {SL_HASH_CRC32C, .end = 100, .repair = SL_REPAIR_FETCH}, CRC, CRC},
    {"CRC64", {SL_HASH_CRC64NVME, .end = 100, .repair = SL_REPAIR_FETCH}, 0, 0},
    {"SHA-256", {SL_HASH_SHA256, .end = 100, .repair = SL_REPAIR_FETCH}, 0, 0},
    {"of bytes that change", {SL_HASH_CRC32, .end = 100, .repair = SL_REPAIR_NEVER}, 0, 0},
    {"judged later", {SL_HASH_CRC32, .end = 100, .repair = SL_REPAIR_LATER}, 0, 0},
    {"ordered", {SL_HASH_CRC32, .end = 100, .repair = SL_REPAIR_FETCH, .ordered = true}, 0, 0},
    {"computed", {SL_HASH_CRC32, .end = 100, .repair = SL_REPAIR_FETCH, .computed = true}, 0, 0},
    {"of nothing", {SL_HASH_CRC32, .begin = 5, .end = 5, .repair = SL_REPAIR_FETCH}, 0, 0},
    {"on the host", {SL_HASH_CRC32, .end = 100, .file = 1, .repair = SL_REPAIR_FETCH}, 0, 0},
};

SL_TEST_LOOP(each_check_is_computed_where_its_row_says, 0, (int)SL_COUNT(check_rows))
{
    const struct check_row *row = &check_rows[_i];
    struct sl_err err = SL_ERR_INIT;
    for (unsigned offered = 0; offered < 2; offered++) {
        struct answers answers = {.does = offered ? CRC : 0, .files = 1};
        struct sl_check check = row->check;
        struct sl_plan plan = {.checks = &check, .check_count = 1};
        ck_assert_msg(place(&plan, &answers, &err) == 0, "%s", err.message);
        ck_assert_msg(answers.asked == row->asked, "%s: asked %u", row->what, answers.asked);
        bool there = offered && row->device;
        ck_assert_msg((check.crc_on == SL_ON_DEVICE) == there, "%s", row->what);
        ck_assert_uint_eq(sl_plan_on_device(&plan, SL_STAGE_CRC), there);
    }
}

/* In the order of the plan: a byte counts for one check of the device alone. */
SL_TEST(of_checks_over_the_same_bytes_one_is_the_devices)
{
    static const struct {
        uint64_t offset, bytes;
        uint32_t file;
        bool there;
    } rows[] = {{100, 50, 0, false}, /* within the one that begins at 0 */
                {0, 200, 0, true},   {0, 10, 0, false}, {200, 1, 0, true}, {300, 10, 0, true},
                {309, 5, 0, false},  {310, 5, 0, true}, {0, 200, 2, true}};
    struct sl_err err = SL_ERR_INIT;
    struct answers answers = {.does = CRC, .files = 5};
    struct sl_check checks[SL_COUNT(rows)];
    struct sl_plan plan = {.checks = checks, .check_count = SL_COUNT(rows)};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        checks[i] = (struct sl_check){.kind = SL_HASH_CRC32,
                                      .begin = 7000 + rows[i].offset,
                                      .end = 7000 + rows[i].offset + rows[i].bytes,
                                      .file = rows[i].file,
                                      .file_offset = rows[i].offset,
                                      .repair = SL_REPAIR_FETCH};
    ck_assert_int_eq(place(&plan, &answers, &err), 0);
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg((checks[i].crc_on == SL_ON_DEVICE) == rows[i].there, "check %zu", i);
    ck_assert_uint_eq(answers.questions, 1);
}

/* ---- all ------------------------------------------------------------------------------------- */

static struct sl_form *planned_mixture(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_form_options wanted = {.hashes = SL_HASHES_AUTO};
    struct sl_form *form = sl_form_new();
    sl_form_add(form, &(struct sl_form_tensor){F32, MATRIX, SEALED});
    sl_form_add(form, &(struct sl_form_tensor){F32, MATRIX, HALF});
    sl_form_add(form, &(struct sl_form_tensor){F32, MATRIX, .crc32 = true});
    ck_assert_msg(sl_form_plan(form, &wanted, &err) == 0, "%s", err.message);
    struct sl_plan *plan = sl_form_planned(form);
    for (size_t i = 0; i < plan->check_count; i++)
        plan->checks[i].repair = SL_REPAIR_FETCH; /* as where sidecars say what came */
    return form;
}

static uint64_t on_device(const struct sl_plan *plan)
{
    return sl_plan_on_device(plan, SL_STAGE_DECRYPT) + sl_plan_on_device(plan, SL_STAGE_CAST) +
           sl_plan_on_device(plan, SL_STAGE_CRC);
}

SL_TEST(without_an_offer_all_is_the_hosts_again)
{
    struct sl_err err = SL_ERR_INIT;
    struct answers answers = {.does = DECRYPT | CAST | CRC, .files = 1};
    struct sl_form *form = planned_mixture();
    struct sl_plan *plan = sl_form_planned(form);
    ck_assert_uint_eq(on_device(plan), 0);
    ck_assert_int_eq(place(plan, &answers, &err), 0);
    ck_assert_uint_eq(answers.asked, DECRYPT | CAST | CRC);
    ck_assert_uint_eq(on_device(plan), 3);
    ck_assert_int_eq(sl_plan_stages(plan, NULL, &err), 0);
    ck_assert_uint_eq(on_device(plan), 0);
    sl_form_free(form);
}

SL_TEST(a_stage_that_is_refused_is_a_failure)
{
    for (unsigned stage = 0; stage < SL_STAGES; stage++) {
        struct sl_err err = SL_ERR_INIT;
        struct answers answers = {.does = ~0u, .refuses = 1u << stage, .files = 1};
        struct sl_form *form = planned_mixture();
        ck_assert_int_eq(place(sl_form_planned(form), &answers, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_GPU);
        sl_form_free(form);
    }
}

SL_TEST(a_failing_allocation_is_a_failure)
{
    struct sl_err err = SL_ERR_INIT;
    struct answers answers = {.does = DECRYPT | CAST | CRC, .files = 1};
    struct sl_form *form = planned_mixture();
    sl_alloc_fail_at(1);
    int done = place(sl_form_planned(form), &answers, &err);
    sl_alloc_fail_at(0);
    ck_assert_int_eq(done, -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_form_free(form);
}
