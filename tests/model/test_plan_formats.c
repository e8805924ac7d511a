/*
 * What a plan makes of prefixes by the formats of their objects: which are looked into, which win
 * where the same weights lie there twice, which are data.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "format.h"
#include "golden.h"
#include "model_maker.h"
#include "plan_case.h"
#include "plan_parts.h"
#include "stores.h"

static const char layout[] = "sink: {tmpfs: {path: /n, layout: safetensors}}\n";

/* Golden files that are objects, freed by drop_objects(). */
static uint8_t *objects[16];
static unsigned object_count;
static uint8_t *shards[3000];

static void put_golden(const char *name, const char *golden)
{
    char path[200];
    size_t bytes;
    snprintf(path, sizeof(path), "pytorch/%s", golden);
    uint8_t *data = golden_read(path, &bytes);
    put(name, data, bytes);
    objects[object_count++] = data;
}

static void put_safetensors(const char *name, const char *tensors)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors(tensors, 16, &bytes);
    put(name, data, bytes);
    objects[object_count++] = data;
}

static void drop_objects(void)
{
    clear();
    while (object_count > 0)
        free(objects[--object_count]);
}

static bool has_file(const struct sl_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->file_count; i++)
        if (strcmp(plan->files[i].name, name) == 0)
            return true;
    return false;
}

/* Plan memory://m/ and expect these files ("a b c"), no others, and so many tensors. */
static void expect_files(const char *more, const char *files, size_t tensors)
{
    struct sl_specs specs;
    struct sl_plan *plan = expect_plan(more, &specs);
    char names[400], *state = NULL;
    size_t count = 0;
    snprintf(names, sizeof(names), "%s", files);
    for (char *name = strtok_r(names, " ", &state); name; name = strtok_r(NULL, " ", &state)) {
        ck_assert_msg(has_file(plan, name), "no file '%s'", name);
        count++;
    }
    ck_assert_uint_eq(plan->file_count, count);
    ck_assert_uint_eq(plan->tensor_count, tensors);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

static void put_shards(void)
{
    put_golden("m/pytorch_model.bin.index.json", "sharded/pytorch_model.bin.index.json");
    put_golden("m/pytorch_model-00001-of-00002.bin", "sharded/pytorch_model-00001-of-00002.bin");
    put_golden("m/pytorch_model-00002-of-00002.bin", "sharded/pytorch_model-00002-of-00002.bin");
}

SL_TEST(names_say_what_to_expect)
{
    static const struct {
        const char *name;
        enum sl_format_says says;
    } cases[] = {
        {"model.safetensors", SL_SAYS_MODEL},
        {"a/b.tensors", SL_SAYS_MODEL},
        {"q4.gguf", SL_SAYS_MODEL},
        {"model.safetensors.index.json", SL_SAYS_INDEX},
        {"pytorch_model.bin.index.json", SL_SAYS_INDEX},
        {"pytorch_model-00001-of-00002.bin", SL_SAYS_LIKELY},
        {"unet/diffusion_pytorch_model.bin", SL_SAYS_LIKELY},
        {"consolidated.00.pth", SL_SAYS_LIKELY},
        {"tokenizer.bin", SL_SAYS_PERHAPS},
        {"model/tokenizer.bin", SL_SAYS_PERHAPS},
        {"training_args.bin", SL_SAYS_STATE},
        {"checkpoint-10/optimizer.pt", SL_SAYS_STATE},
        {"config.json", SL_SAYS_NOTHING},
        {"other.index.json", SL_SAYS_NOTHING},
        {"bin", SL_SAYS_NOTHING},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_msg(sl_format_name_says(cases[i].name) == cases[i].says, "%s", cases[i].name);
}

SL_TEST(loads_of_whole_files_do_not_look_into_checkpoints)
{
    put_golden("m/pytorch_model.bin", "records_2_7.pt");
    put_golden("m/evil_model.bin", "mal_os_system.pt");
    put_golden("m/legacy.pt", "legacy_os_system.pt");
    expect_files("", "pytorch_model.bin evil_model.bin legacy.pt", 0);
    expect_files("verify: {hashes: all}\n", "pytorch_model.bin evil_model.bin legacy.pt", 0);
    expect_refusal("verify: {hashes: require}\n", SL_E_INTEGRITY, "");
}

/* Whether somebody wants tensors or not. */
SL_TEST(every_prefix_of_a_checkpoint_is_refused)
{
    static const char *const files[] = {"pytorch/records_2_7.pt", "pytorch/legacy_0_4.pt"};
    for (size_t f = 0; f < SL_COUNT(files); f++) {
        size_t bytes;
        uint8_t *data = golden_read(files[f], &bytes);
        for (size_t cut = 0; cut < bytes; cut += cut < 200 || cut + 200 > bytes ? 1 : 13) {
            put("m/x.pt", data, cut);
            expect_refusal("", SL_E_FORMAT, "'x.pt'");
            clear();
        }
        put("m/x.pt", data, bytes);
        expect_files("", "x.pt", 0);
        clear();
        free(data);
    }
}

/* An index, a pipeline, ranks, a distributed checkpoint, and what is missing of one. */
SL_TEST(every_failing_allocation_of_claims_is_survived)
{
    static const char names[] = "\x80\x04\x8c\x0c__0_0.distcp\x94.";
    struct sl_specs specs;
    put_shards();
    put_safetensors("m/unet/model-00001-of-00002.safetensors", "a");
    put_safetensors("m/unet/model-rank-0-part-0.safetensors", "a");
    put_text("m/unet/model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"model-rank-0-part-0.safetensors\"}}");
    put_text("m/model_index.json", "{\"unet\":[\"a\",\"b\"]}");
    put_text("m/__0_0.distcp", "data");
    put("m/.metadata", names, sizeof(names) - 1);
    put("m/marked", "", 0);
    put_text("m/marked/config.json", "{}");
    put_text("m/left/out.txt", "out");
    sl_model_spec(&specs, "memory://m/", "/n",
                  "source: {uri: \"memory://m/\", exclude: [\"left/*\"], incomplete: warn}\n");
    unsigned succeeded = 0;
    for (unsigned nth = 1; nth < 3000 && succeeded < 3; nth++) {
        struct sl_plan *plan = NULL;
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        if (sl_model_plan(&specs, &plan, &err) == 0)
            succeeded++;
        else
            ck_assert_msg(err.kind == SL_E_NO_SPACE, "allocation %u: %d %s", nth, err.kind,
                          err.message);
        sl_alloc_fail_at(0);
        sl_plan_free(plan);
    }
    ck_assert_uint_eq(succeeded, 3);
    sl_specs_release(&specs);
}

SL_TEST(an_index_of_checkpoints_brings_its_files)
{
    struct sl_specs specs;
    struct sl_plan *plan;
    struct sl_err err = SL_ERR_INIT;
    put_shards();
    expect_files("",
                 "pytorch_model.bin.index.json pytorch_model-00001-of-00002.bin "
                 "pytorch_model-00002-of-00002.bin",
                 0);
    sl_model_spec(&specs, "memory:m/pytorch_model.bin.index.json", "/n", "");
    ck_assert_msg(sl_model_plan(&specs, &plan, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(plan->file_count, 3);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

/* What is refused for its tensors may be fine as a file. */
SL_TEST(an_index_brings_files_that_would_be_refused)
{
    struct sl_specs specs;
    struct sl_plan *plan;
    struct sl_err err = SL_ERR_INIT;
    put_golden("m/x.bin", "mal_os_system.pt");
    put_text("m/x.bin.index.json", "{\"metadata\":{},\"weight_map\":{\"w\":\"x.bin\"}}");
    sl_model_spec(&specs, "memory:m/x.bin.index.json", "/n", "");
    ck_assert_msg(sl_model_plan(&specs, &plan, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(plan->file_count, 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    sl_model_spec(&specs, "memory:m/x.bin.index.json", "/n", layout);
    ck_assert_int_lt(sl_model_plan(&specs, &plan, &err), 0);
    ck_assert_str_eq(err.code, "pkl.global");
    sl_specs_release(&specs);
}

SL_TEST(tensors_come_from_an_index_and_what_it_names)
{
    put_shards();
    put_golden("m/consolidated.pth", "records_2_7.pt");
    put_golden("m/training_args.bin", "mal_os_system.pt");
    put_golden("m/optimizer.pt", "nested_training.pt");
    put_text("m/config.json", "{}");
    expect_files(layout, "model.safetensors config.json training_args.bin optimizer.pt", 3);
}

SL_TEST(weights_in_two_formats_are_taken_once)
{
    put_safetensors("m/model.safetensors", "a,b");
    put_golden("m/pytorch_model.bin", "records_2_7.pt");
    put_shards();
    put_text("m/config.json", "{}");
    put_text("m/tokenizer.bin", "no checkpoint");
    expect_files(layout, "model.safetensors config.json tokenizer.bin", 2);
}

SL_TEST(a_checkpoint_alone_is_the_model)
{
    put_golden("m/pytorch_model.bin", "records_2_7.pt");
    put_golden("m/training_args.bin", "mal_eval.pt");
    put_text("m/vocab.bin", "no checkpoint");
    expect_files(layout, "model.safetensors training_args.bin vocab.bin", 2);
}

SL_TEST(a_broken_checkpoint_is_refused_with_advice)
{
    put_golden("m/pytorch_model.bin", "records_2_7.pt");
    put_golden("m/other_model.bin", "mal_os_system.pt");
    expect_refusal(layout, SL_E_FORMAT, "source.exclude");
}

/* The shards of an index below a prefix are listed; it must not bring them again. */
SL_TEST(a_large_index_below_a_prefix_is_data)
{
    static const char text[] = "{\"metadata\":{},\"weight_map\":{\"a\":\"model-1.safetensors\"}}";
    size_t bytes = 3 << 20;
    char *index = malloc(bytes);
    memset(index, ' ', bytes);
    memcpy(index, text, sizeof(text) - 1);
    put("m/model.safetensors.index.json", index, bytes);
    put_safetensors("m/model-1.safetensors", "a");
    expect_files("", "model.safetensors.index.json model-1.safetensors", 1);
    expect_files("verify: {hashes: all}\n", "model.safetensors.index.json model-1.safetensors", 1);
    expect_files(layout, "model.safetensors", 1);
    clear();
    free(index);
}

/* A safetensors object of one empty tensor of so many dimensions. */
static void put_rank(const char *name, unsigned rank)
{
    size_t room = 8 + 200 + 2 * (size_t)rank;
    char *data = calloc(1, room), *at = data + 8;
    at += snprintf(at, 100, "{\"wide.weight\":{\"dtype\":\"F32\",\"shape\":[0");
    for (unsigned i = 1; i < rank; i++)
        at += snprintf(at, 3, ",1");
    at += snprintf(at, 100, "],\"data_offsets\":[0,0]}}");
    uint64_t bytes = (uint64_t)(at - data) - 8;
    for (unsigned i = 0; i < 8; i++)
        data[i] = (char)(bytes >> 8 * i);
    put(name, data, 8 + bytes);
    objects[object_count++] = (uint8_t *)data;
}

static int plan_slabs(struct sl_err *err)
{
    struct sl_specs specs;
    struct sl_plan *plan = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "memory://m/", "/nowhere", "");
    const struct sl_plan_output wanted = {SL_LAYOUT_SLABS, .part_bytes = 512 << 20};
    int done = sl_model_plan_as(&specs, &wanted, &plan, err);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    return done;
}

/* 65,536 wrapped to 0 in the pool's index. */
SL_TEST(more_dimensions_than_the_pool_tells_are_refused_in_the_plan)
{
    static const unsigned ranks[] = {64, 65, 255, 256, 65535, 65536};
    for (size_t i = 0; i < SL_COUNT(ranks); i++) {
        struct sl_err err;
        char word[60];
        put_rank("m/a.safetensors", ranks[i]);
        int done = plan_slabs(&err);
        snprintf(word, sizeof(word), "'wide.weight' has %u dimensions", ranks[i]);
        ck_assert_msg(ranks[i] <= 64 ? done == 0 : done < 0 && strstr(err.message, word), "%u: %s",
                      ranks[i], err.message);
        drop_objects();
    }
}

/* Each shard was looked for among all objects. */
SL_TEST(many_shards_leave_the_listing_together)
{
    enum { SHARDS = 3000 };
    struct sl_buf map = SL_BUF_INIT(1 << 20);
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    sl_buf_text(&map, "{\"weight_map\":{", &err);
    for (unsigned i = 0; i < SHARDS; i++) {
        char name[40], tensor[20];
        size_t bytes;
        snprintf(name, sizeof(name), "m/s-%05u.safetensors", i);
        snprintf(tensor, sizeof(tensor), "t%u", i);
        uint8_t *data = sl_model_safetensors(tensor, 1, &bytes);
        put(name, data, bytes);
        shards[i] = data;
        sl_buf_printf(&map, &err, "%s\"%s\":\"%s\"", i ? "," : "", tensor, name + 2);
    }
    sl_buf_text(&map, "}}", &err);
    put("m/model.safetensors.index.json", map.data, map.used);
    put_text("m/config.json", "{}");
    struct sl_plan *plan = expect_plan(layout, &specs);
    ck_assert_uint_eq(plan->tensor_count, SHARDS);
    ck_assert(has_file(plan, "config.json"));
    ck_assert(!has_file(plan, "s-00000.safetensors"));
    ck_assert_uint_eq(plan->file_count, 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    clear();
    sl_buf_release(&map);
    for (unsigned i = 0; i < SHARDS; i++)
        free(shards[i]);
}

/* As many as three looks: the first one ends it. */
SL_TEST(a_canceled_load_drops_no_shards)
{
    enum { SHARDS = 10000 };
    static char names[SHARDS][16];
    static char *named[SHARDS];
    static struct sl_candidate candidates[SHARDS];
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    const struct sl_source_config config = {.cancel = cancel};
    struct sl_plan_own own = {.candidates = candidates, .candidate_count = SHARDS};
    const struct sl_index index = {.source_names = named, .source_count = SHARDS};
    char *key;
    ck_assert_int_eq(sl_store_open("memory:m/", &config, &own.store, &key, &err), 0);
    for (unsigned i = 0; i < SHARDS; i++) {
        snprintf(names[i], sizeof(names[i]), "s-%05u", i);
        named[i] = candidates[i].name = names[i];
    }
    sl_cancel_raise(cancel, 0);
    ck_assert_int_eq(sl_plan_drop_shards(&own, &index, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_uint_eq(own.candidate_count, SHARDS);
    for (unsigned i = 0; i < SHARDS; i++)
        ck_assert(!candidates[i].named && candidates[i].name == names[i]);
    free(key);
    sl_store_free(own.store);
    sl_cancel_free(cancel);
}

SL_TEST(parts_that_ranks_saved_as_safetensors_are_told_from_tensors)
{
    static const char part[] = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"},\"w\":{\"dtype\":"
                               "\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char file[8 + sizeof(part)] = {(char)(sizeof(part) - 1)};
    memcpy(file + 8, part, sizeof(part) - 1);
    put("m/shard-00001-model-00001-of-00001.safetensors", file, sizeof(file));
    expect_files(layout, "model.safetensors", 1); /* with a warning */
    put("m/shard-00002-model-00001-of-00001.safetensors", file, sizeof(file));
    expect_refusal(layout, SL_E_FORMAT, "consolidate_safetensors_files");
    drop_objects();
}

SL_CASE(.setup = clear, .teardown = drop_objects)
