/* What the spec's `tensors` makes of a model: which tensors, with which names, parts and types. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "model_maker.h"
#include "scratch.h"
#include "tensor_reader.h"

#define LAYOUT "sink: {tmpfs: {path: /n, layout: safetensors}}\n"

static struct sl_specs specs;
static struct sl_plan *plan;
static struct sl_err err;

static void release(void)
{
    sl_plan_free(plan);
    plan = NULL;
    sl_specs_release(&specs);
}

static void clear(void)
{
    release();
    sl_alloc_fail_at(0);
    sl_memory_clear();
}

static void put(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

/* A safetensors object whose header has these entries, and as many zeros as it asks for. */
static void put_model(const char *name, const char *entries, size_t data_bytes)
{
    static uint8_t files[4][4096]; /* memory objects are borrowed */
    static unsigned number;
    uint8_t *file = files[number++ % 4];
    size_t header = strlen(entries) + 2;
    header += (8 - header % 8) % 8;
    ck_assert_uint_lt(8 + header + data_bytes, sizeof(files[0]));
    sl_put_le64(file, header);
    snprintf((char *)file + 8, header + 1, "{%s}", entries);
    memset(file + 8 + strlen(entries) + 2, ' ', header - strlen(entries) - 2);
    memset(file + 8 + header, 0, data_bytes);
    put(name, file, 8 + header + data_bytes);
}

/* Five tensors, 424 bytes. */
static void put_usual(void)
{
    put_model(
        "m/model.safetensors",
        "\"h.0.attn.weight\":{\"dtype\":\"F32\",\"shape\":[4,6],\"data_offsets\":[0,96]},"
        "\"h.0.mlp.weight\":{\"dtype\":\"F32\",\"shape\":[4,6],\"data_offsets\":[96,192]},"
        "\"h.1.attn.weight\":{\"dtype\":\"BF16\",\"shape\":[4,6,2],\"data_offsets\":[192,288]},"
        "\"bias\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[288,296]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[16],\"data_offsets\":[296,424]}",
        424);
}

static int select_with(const char *more)
{
    static const struct sl_source_config config;
    char text[4096];
    release();
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(text, sizeof(text), "%s%s", LAYOUT, more);
    sl_model_spec(&specs, "memory://m/", "/n", text);
    return sl_plan_make_targets(&specs.items[0], &config, &plan, &err);
}

static void expect_targets(const char *more, size_t count)
{
    int done = select_with(more);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert_uint_eq(plan->target_count, count);
    ck_assert_uint_eq(plan->file_count + plan->extent_count + plan->check_count, 0);
}

/* What the pool would know it by. */
static void slabs_identity(const char *more, uint8_t identity[32])
{
    const struct sl_plan_output slabs = {.layout = SL_LAYOUT_SLABS, .part_bytes = 1 << 20};
    static const struct sl_source_config config;
    char text[4096];
    release();
    snprintf(text, sizeof(text), "%s%s", LAYOUT, more);
    sl_model_spec(&specs, "memory://m/", "/n", text);
    ck_assert_msg(sl_plan_make(&specs.items[0], &slabs, &config, &plan, &err) == 0, "%s",
                  err.message);
    memcpy(identity, plan->identity, 32);
}

static void expect_fail(const char *more, enum sl_err_kind kind, const char *message)
{
    ck_assert_int_eq(select_with(more), -1);
    ck_assert_msg(err.kind == kind && strstr(err.message, message), "%d: %s", err.kind,
                  err.message);
}

static const struct sl_target *find(const char *name)
{
    for (size_t i = 0; i < plan->target_count; i++)
        if (strcmp(plan->targets[i].out.name, name) == 0)
            return &plan->targets[i];
    ck_abort_msg("no target '%s'", name);
}

static void expect_shape(const struct sl_target *target, const char *dtype, unsigned rank,
                         const uint64_t *shape, uint64_t bytes)
{
    ck_assert_str_eq(target->out.dtype_name, dtype);
    ck_assert_str_eq(sl_dtype_row(target->out.dtype)->name, dtype);
    ck_assert_uint_eq(target->out.rank, rank);
    for (unsigned i = 0; i < rank; i++)
        ck_assert_uint_eq(target->out.shape[i], shape[i]);
    ck_assert_uint_eq(target->out.bytes, bytes);
}

SL_TEST(without_wishes_every_tensor_is_a_target_as_it_is)
{
    put_usual();
    put("m/config.json", "{}", 2);
    expect_targets("", 5);
    ck_assert_uint_eq(plan->source_count, 2);
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_target *target = &plan->targets[i];
        ck_assert_ptr_eq(target->index, plan->sources[target->source].index);
        ck_assert_ptr_null(target->slice);
        ck_assert_str_eq(target->out.name, target->from->name);
        ck_assert_ptr_null(target->out.hashes);
        expect_shape(target, target->from->dtype_name, target->from->rank, target->from->shape,
                     target->from->bytes);
    }
    ck_assert_str_eq(plan->metadata[0].key, "format");
    expect_targets("tensors: {include: ['h.*'], exclude: ['*mlp*']}\n", 2);
    expect_fail("tensors: {include: [nope]}\n", SL_E_NOT_FOUND, "tensors.include");
}

SL_TEST(the_first_rule_that_matches_renames)
{
    put_usual();
    expect_targets("tensors:\n  include: ['h.0.*', ids]\n  rename:\n"
                   "  - {match: '^h\\.([0-9]+)\\.(mlp)', to: 'layers.\\1.\\2_\\2'}\n"
                   "  - {match: '^h', to: model}\n"
                   "  - {match: '[.]weight$'}\n",
                   3);
    ck_assert_str_eq(find("layers.0.mlp_mlp.weight")->from->name, "h.0.mlp.weight");
    ck_assert_str_eq(find("model.0.attn.weight")->from->name, "h.0.attn.weight");
    ck_assert_uint_eq(find("ids")->out.path_count, 1);
    const struct sl_target *target = find("model.0.attn.weight");
    ck_assert_uint_eq(target->out.path_count, 1);
    ck_assert_uint_eq(target->out.path[0].text_bytes, strlen("model.0.attn.weight"));
    expect_targets("tensors: {rename: [{match: 'a|(t)', to: '<\\1\\\\>'}]}\n", 5);
    find("h.0.<\\>ttn.weight"); /* a group that took no part */
    find("h.0.mlp.weigh<t\\>");
}

SL_TEST(names_that_meet_are_refused)
{
    put_usual();
    expect_fail("tensors: {rename: [{match: 'attn|mlp', to: x}]}\n", SL_E_FORMAT,
                "tensor 'h.0.attn.weight' of 'model.safetensors' and tensor 'h.0.mlp.weight' of "
                "'model.safetensors' would both be called 'h.0.x.weight'");
    expect_fail("tensors: {rename: [{match: '^ids$'}]}\n", SL_E_USAGE, "without a name");
    put_model("m/second.safetensors",
              "\"ids\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1);
    expect_fail("", SL_E_FORMAT, "leave one out with source.exclude");
}

SL_TEST(a_name_has_a_limit)
{
    char to[4096] = "", more[8192];
    put_usual();
    for (int i = 0; i < 1000; i++)
        strncat(to, "\\1", 3);
    static char entries[2048];
    snprintf(entries, sizeof(entries),
             "\"%0200d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 7);
    put_model("m/model.safetensors", entries, 1);
    snprintf(more, sizeof(more), "tensors: {rename: [{match: '(.*)', to: '%s'}]}\n", to);
    expect_fail(more, SL_E_USAGE, "longer than 65536 bytes");
}

SL_TEST(paths_stay_unless_renamed)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v1-names.tensors.gz", &bytes);
    put("m/t.tensors", data, bytes);
    if (select_with("") == 0) /* every path is as it was */
        for (size_t i = 0; i < plan->target_count; i++)
            ck_assert_ptr_eq(plan->targets[i].out.path, plan->targets[i].from->path);
    else
        ck_abort_msg("%s", err.message);
    expect_targets("tensors: {rename: [{match: '^', to: 'x.'}]}\n", plan->target_count);
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_tensor *out = &plan->targets[i].out;
        ck_assert_uint_eq(out->path_count, 1);
        ck_assert_uint_eq(out->name_bytes, plan->targets[i].from->name_bytes + 2);
        ck_assert(memcmp(out->path[0].text, out->name, out->name_bytes) == 0);
    }
    free(data);
}

SL_TEST(casts_change_only_their_type)
{
    put_usual();
    expect_targets(
        "tensors: {cast: {F32: BF16, BF16: F8_E4M3, F64: F64}, castOverflow: saturate}\n", 5);
    expect_shape(find("h.0.attn.weight"), "BF16", 2, (const uint64_t[]){4, 6}, 48);
    expect_shape(find("h.1.attn.weight"), "F8_E4M3", 3, (const uint64_t[]){4, 6, 2}, 48);
    expect_shape(find("bias"), "F64", 0, NULL, 8);
    expect_shape(find("ids"), "I64", 1, (const uint64_t[]){16}, 128);
    ck_assert_int_eq(find("bias")->overflow, 0);
    ck_assert_int_eq(find("h.0.attn.weight")->overflow, 1);
    ck_assert_int_eq(find("h.0.attn.weight")->from->dtype, SL_DTYPE_F32);
}

SL_TEST(the_first_rule_cuts_and_the_rest_is_whole)
{
    put_usual();
    expect_targets("tensors:\n  rename: [{match: mlp, to: ffn}]\n  cast: {F32: F16}\n"
                   "  shard: {rank: 1, of: 2, rules: [{match: 'h.*.ffn.*', dim: 1}, "
                   "{match: '*.weight'}, {match: ids, dim: 0}]}\n",
                   5);
    const struct sl_target *cut = find("h.0.ffn.weight");
    expect_shape(cut, "F16", 2, (const uint64_t[]){4, 3}, 24);
    ck_assert_uint_eq(cut->slice->begin[0], 0);
    ck_assert_uint_eq(cut->slice->end[0], 4);
    ck_assert_uint_eq(cut->slice->begin[1], 3);
    ck_assert_uint_eq(cut->slice->end[1], 6);
    ck_assert_uint_eq(cut->out.bytes, sl_slice_bytes(cut->from, cut->slice, NULL) / 2);
    expect_shape(find("h.1.attn.weight"), "BF16", 3, (const uint64_t[]){2, 6, 2}, 48);
    expect_shape(find("ids"), "I64", 1, (const uint64_t[]){8}, 64);
    ck_assert_ptr_null(find("bias")->slice);
    expect_targets("tensors: {shard: {rank: 0, of: 1, rules: [{match: '*', dim: 9}]}}\n", 5);
    ck_assert_ptr_null(find("ids")->slice);
}

SL_TEST(tensors_that_are_cut_alike_share_a_slice)
{
    put_usual();
    expect_targets("tensors: {shard: {rank: 3, of: 4, rules: [{match: 'h.*'}]}}\n", 5);
    ck_assert_ptr_eq(find("h.0.attn.weight")->slice, find("h.0.mlp.weight")->slice);
    ck_assert_ptr_ne(find("h.0.attn.weight")->slice, find("h.1.attn.weight")->slice);
}

SL_TEST(cuts_that_do_not_fit_are_refused)
{
    put_usual();
    expect_fail("tensors: {shard: {rank: 0, of: 3, rules: [{match: 'h.0.*'}]}}\n", SL_E_USAGE,
                "dimension 0 of tensor 'h.0.attn.weight' has size 4, which cannot be cut into 3");
    expect_fail("tensors: {shard: {rank: 0, of: 2, rules: [{match: 'h.0.*', dim: 2}]}}\n",
                SL_E_USAGE, "has 2 dimensions, so there is no dimension 2");
    expect_fail("tensors: {shard: {rank: 0, of: 2, rules: [{match: 'bias', dim: 0}]}}\n",
                SL_E_USAGE, "has 0 dimensions");
    put_model("m/model.safetensors",
              "\"a\":{\"dtype\":\"F4\",\"shape\":[2,6],\"data_offsets\":[0,6]},"
              "\"b\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[6,10]}",
              10);
    expect_targets("tensors: {shard: {rank: 1, of: 2, rules: [{match: a}, {match: b}]}}\n", 2);
    expect_shape(find("a"), "F4", 2, (const uint64_t[]){1, 6}, 3);
    expect_fail("tensors: {shard: {rank: 1, of: 2, rules: [{match: a, dim: 1}]}}\n", SL_E_USAGE,
                "would split bytes");
    expect_fail("tensors: {shard: {rank: 1, of: 8, rules: [{match: b}]}}\n", SL_E_USAGE,
                "would split bytes");
}

SL_TEST(blocks_are_never_split)
{
    size_t bytes;
    uint8_t *data = golden_read("gguf/all_types.gguf", &bytes);
    put("m/m.gguf", data, bytes);
    expect_targets("", 35);
    unsigned whole = 0, split = 0;
    for (size_t i = 0; i < 35; i++) {
        char more[256];
        expect_targets("", 35);
        const struct sl_tensor *tensor = plan->targets[i].from;
        bool blocks = sl_dtype_row(tensor->dtype)->block > 1;
        unsigned last = tensor->rank - 1;
        uint64_t part = tensor->shape[last] / 2, size = tensor->bytes;
        if (tensor->shape[last] % 2)
            continue;
        bool fits = part % sl_dtype_row(tensor->dtype)->block == 0;
        snprintf(more, sizeof(more),
                 "tensors: {include: ['%s'], shard: {rank: 1, of: 2, rules: [{match: '*', dim: "
                 "%u}]}}\n",
                 tensor->name, last);
        if (fits) {
            expect_targets(more, 1);
            ck_assert_uint_eq(plan->targets[0].out.bytes, size / 2);
            whole++;
        } else {
            ck_assert(blocks);
            expect_fail(more, SL_E_USAGE, "would split its blocks");
            split++;
        }
    }
    ck_assert_uint_gt(whole, 0);
    ck_assert_uint_gt(split, 0);
    free(data);
}

SL_TEST(keys_are_asked_for_and_tried)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v3-key.tensors.gz", &bytes);
    char place[SL_SCRATCH_PATH_BYTES], more[4096];
    uint8_t key[32];
    int directory = sl_scratch_open(place),
        file = openat(directory, "key", O_CREAT | O_WRONLY, 0600);
    put("m/t.tensors", data, bytes);
    expect_fail("", SL_E_AUTH, "is encrypted");
    ck_assert_int_eq(
        sl_unhex("030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dc", key, 32), 0);
    ck_assert_int_eq(write(file, key, 32), 32);
    close(file);
    snprintf(more, sizeof(more), "decrypt: {keyFile: '%s/key'}\n", place);
    expect_targets(more, 7);
    for (size_t i = 0; i < 7; i++)
        ck_assert(!plan->targets[i].from->encrypted || plan->targets[i].from->key);
    struct sl_specs whole;
    struct sl_plan *none = NULL;
    sl_model_spec(&whole, "memory://m/", "/n", more);
    ck_assert_int_eq(sl_model_plan(&whole, &none, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "encrypted ones too"), "%s",
                  err.message);
    sl_specs_release(&whole);
    sl_memory_clear();
    put_usual();
    expect_fail(more, SL_E_USAGE, "is not encrypted");
    sl_scratch_close(directory, place);
    free(data);
}

static int once(void *arg, struct sl_err *why)
{
    static const struct sl_source_config config;
    struct sl_plan *made = NULL;
    int done = sl_plan_make_targets(arg, &config, &made, why);
    sl_plan_free(made);
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    put_usual();
    expect_targets("tensors:\n  rename: [{match: '^h', to: m}]\n  cast: {F32: F16}\n"
                   "  shard: {rank: 1, of: 2, rules: [{match: 'm*'}]}\n",
                   5);
    ck_assert_uint_gt(golden_each_allocation(once, &specs.items[0]), 10);
}

/* ---- prefixes -------------------------------------------------------------------------------- */

#define WEIGHT "\"weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

/* As diffusers keeps them: components in folders, with names of their own. */
static void put_components(void)
{
    put_model("m/unet/diffusion_pytorch_model.safetensors", WEIGHT, 8);
    put_model("m/vae/diffusion_pytorch_model.safetensors", WEIGHT, 8);
    put_model("m/extra.safetensors", WEIGHT, 8);
}

SL_TEST(folders_tell_tensors_of_one_name_apart)
{
    put_components();
    expect_fail("", SL_E_FORMAT, "with tensors.prefix: object");
    expect_targets("tensors: {prefix: object}\n", 3);
    ck_assert_uint_eq(find("unet/weight")->out.path_count, 1);
    ck_assert_str_eq(find("vae/weight")->from->name, "weight");
    find("weight"); /* which lies in no folder */
}

SL_TEST(all_other_rules_see_the_prefix)
{
    put_components();
    expect_targets("tensors: {prefix: object, include: [\"unet/*\", \"vae/*\"], exclude: "
                   "[\"vae/*\"]}\n",
                   1);
    find("unet/weight");
    expect_targets("tensors: {prefix: object, rename: [{match: \"^(unet|vae)/\", to: "
                   "\"\\\\1.\"}]}\n",
                   3);
    find("unet.weight");
    find("vae.weight");
    expect_fail("tensors: {prefix: object, rename: [{match: \"^.*/\", to: \"\"}]}\n", SL_E_FORMAT,
                "change tensors.rename");
}

SL_TEST(shards_of_a_component_have_one_prefix)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":"
                                "\"model-00002-of-00002.safetensors\"}}";
    put("m/te/model.safetensors.index.json", index, sizeof(index) - 1);
    put_model("m/te/model-00001-of-00002.safetensors",
              "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8);
    put_model("m/te/model-00002-of-00002.safetensors",
              "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8);
    expect_targets("tensors: {prefix: object}\n", 2);
    find("te/a");
    find("te/b");
}

/* An index rules over its folder, and safetensors stand for a second choice there alone. */
SL_TEST(each_component_has_its_own_choice_of_files)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"model-1.safetensors\"}}";
    put("m/te/model.safetensors.index.json", index, sizeof(index) - 1);
    put("m/te2/model.safetensors.index.json", index, sizeof(index) - 1);
    for (int i = 0; i < 2; i++)
        put_model(i ? "m/te2/model-1.safetensors" : "m/te/model-1.safetensors",
                  "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8);
    put_model("m/te/other.safetensors", WEIGHT, 8);
    put_model("m/vae/model.safetensors", WEIGHT, 8);
    expect_fail("", SL_E_USAGE, "are indexes of a model");
    expect_targets("tensors: {prefix: object}\n", 3);
    find("te/a");
    find("te2/a");
    find("vae/weight");
    put("m/te/another.safetensors.index.json", index, sizeof(index) - 1);
    expect_fail("tensors: {prefix: object}\n", SL_E_USAGE, "are indexes of a model");
}

SL_TEST(a_prefix_fails_with_each_allocation)
{
    static const struct sl_source_config config;
    put_components();
    sl_model_spec(&specs, "memory://m/", "/n", LAYOUT "tensors: {prefix: object}\n");
    for (unsigned n = 1;; n++) {
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(n);
        int done = sl_plan_make_targets(&specs.items[0], &config, &plan, &err);
        sl_alloc_fail_at(0);
        if (done == 0)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

/* A name is in no header there, and what the pool has by other names is another model. */
SL_TEST(names_are_in_the_identity_of_slabs)
{
    uint8_t plain[32], again[32], renamed[32];
    put_usual();
    slabs_identity("", plain);
    slabs_identity("readers: {connections: 3}\n", again);
    slabs_identity("tensors: {rename: [{match: \"^h\", to: \"g\"}]}\n", renamed);
    ck_assert_mem_eq(plain, again, 32);
    ck_assert_mem_ne(plain, renamed, 32);
}

SL_CASE(.teardown = clear)
