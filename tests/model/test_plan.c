/* Plans from specs: what is refused, where every byte goes, how ranges are cut. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "model_maker.h"
#include "plan_case.h"

SL_TEST(hostile_names_are_refused)
{
    static const char *const names[] = {"m/../../etc/passwd", "m//etc/passwd", "m/a/./b",
                                        "m/.sluice/ready",    "m/a\nb",        "m/.x.sluice-edit",
                                        "m/a/.x.sluice-new/y"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        sl_memory_clear();
        put_text("m/good", "x");
        put_text(names[i], "x");
        expect_refusal("", SL_E_FORMAT, "");
    }
}

SL_TEST(a_file_that_is_also_a_folder_is_refused)
{
    put_text("m/a/b/c", "x");
    put_text("m/a.b", "x");
    put_text("m/a", "x");
    expect_refusal("", SL_E_FORMAT, "folder");
}

SL_TEST(empty_objects_that_stand_for_folders_are_no_files)
{
    struct sl_specs specs;
    struct sl_plan *plan = NULL;
    struct sl_err err = SL_ERR_INIT;
    put("m/sub", "", 0);
    put("m/sub_$folder$", "", 0);
    put_text("m/sub/deep/a.txt", "a");
    put("m/sub/deep", "", 0);
    put("m/merges.txt", "", 0);
    plan = expect_plan("", &specs);
    ck_assert_uint_eq(plan->file_count, 2);
    ck_assert_str_eq(plan->files[0].name, "merges.txt");
    ck_assert_str_eq(plan->files[1].name, "sub/deep/a.txt");
    sl_plan_free(plan);
    sl_specs_release(&specs);
    sl_model_spec(&specs, "memory:m/sub", "/nowhere", "");
    ck_assert_int_lt(sl_model_plan(&specs, &plan, &err), 0);
    ck_assert_msg(err.kind == SL_E_NOT_FOUND && strstr(err.message, "add the slash"), "%s",
                  err.message);
    sl_specs_release(&specs);
}

SL_TEST(nothing_left_is_not_found)
{
    expect_refusal("", SL_E_NOT_FOUND, "");
    put_text("m/a", "x");
    expect_refusal("source: {uri: \"memory://m/\", include: [\"*.safetensors\"]}\n", SL_E_NOT_FOUND,
                   "include");
    expect_refusal("source: {uri: \"memory://m/\", exclude: [\"*\"]}\n", SL_E_NOT_FOUND, "exclude");
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a,b", 16, &bytes);
    put("m/model.safetensors", model, bytes);
    expect_refusal("sink: {tmpfs: {path: /n, layout: safetensors}}\ntensors: {include: [nope]}\n",
                   SL_E_NOT_FOUND, "tensors.include");
    sl_memory_clear();
    put_text("m/a", "x");
    expect_refusal("sink: {tmpfs: {path: /n, layout: safetensors}}\n", SL_E_FORMAT, "verbatim");
    free(model);
}

/* What tells where tensors lie is noted for who can prove it; what is read of a planned source is
 * not, nor kept without a sidecar. */
SL_TEST(no_read_of_data_is_noted)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    size_t bytes, count;
    char byte;
    sl_autofree uint8_t *model = sl_model_safetensors("a,b", 16, &bytes);
    put("m/model.safetensors", model, bytes);
    struct sl_plan *plan = expect_plan("sink: {tmpfs: {path: /n, layout: safetensors}}\n", &specs);
    struct sl_source *source = plan->sources[0].source;
    sl_source_forget(source); /* its head */
    ck_assert_int_eq(sl_source_read(source, bytes - 1, &byte, 1, &err), 0);
    sl_autofree struct sl_source_note *notes = sl_source_take_notes(source, &count);
    ck_assert_uint_eq(count, 0);
    ck_assert_ptr_null(notes);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(include_and_exclude_choose_objects)
{
    struct sl_specs specs;
    put_text("m/config.json", "{}");
    put_text("m/sub/tokenizer.json", "[]");
    put_text("m/readme.md", "hello");
    put_text("m/.hidden", "");
    struct sl_plan *plan = expect_plan(
        "source: {uri: \"memory://m/\", include: [\"*.json\", \".*\"], exclude: [\"c*\"]}\n",
        &specs);
    ck_assert_uint_eq(plan->file_count, 2);
    ck_assert_str_eq(plan->files[0].name, ".hidden");
    ck_assert_str_eq(plan->files[1].name, "sub/tokenizer.json");
    ck_assert_uint_eq(plan->fetch_bytes, 2);
    ck_assert_uint_eq(plan->skipped_bytes, 7);
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(a_broken_model_is_data_only_without_hashes)
{
    static const uint8_t broken[64] = {16,  0,   0,   0,   0,   0,   0,   0,
                                       '{', '"', 'a', '"', ':', '1', '}', ' '};
    struct sl_specs specs;
    put("m/model.safetensors", broken, sizeof(broken));
    expect_refusal("", SL_E_FORMAT, "source.asIs");
    struct sl_plan *plan = expect_plan("verify: {hashes: off}\n", &specs);
    ck_assert_uint_eq(plan->fetch_bytes, sizeof(broken));
    ck_assert_uint_eq(plan->tensor_count, 0);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    expect_refusal("verify: {hashes: off}\nsink: {tmpfs: {path: /n, layout: safetensors}}\n",
                   SL_E_FORMAT, "");
    put_text("m/model.safetensors", "<html>not found</html>");
    expect_refusal("", SL_E_FORMAT, "model.safetensors");
}

SL_TEST(long_extents_are_cut_at_pages)
{
    struct sl_specs specs;
    size_t bytes = 3 * 1024 * 1024 + 4321;
    uint8_t *noise = sl_model_noise(bytes, 1);
    put("m/blob", noise, bytes);
    put_text("m/z.json", "{}");
    struct sl_plan *plan = expect_plan("readers: {rangeBytes: 256Ki}\n", &specs);
    check_shape(plan);
    ck_assert_uint_gt(plan->range_count, 12);
    ck_assert_str_eq(plan->sources[plan->ranges[0].source].name, "z.json"); /* small files first */
    for (size_t i = 1; i < plan->range_count; i++) {
        const struct sl_extent *extent = &plan->extents[plan->ranges[i].extent_first];
        ck_assert_uint_eq(extent->file_offset % 4096, 0);
        ck_assert(i == 1 || plan->ranges[i].begin == plan->ranges[i - 1].end);
    }
    ck_assert_uint_eq(plan->fetch_bytes, bytes + 2);
    ck_assert_uint_eq(plan->unhashed_bytes, bytes + 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(noise);
}

SL_TEST(selected_tensors_are_merged_over_small_gaps)
{
    struct sl_specs specs;
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a0,b0,a1,big,a2", 64 * 1024, &bytes); /* 256 KiB each */
    put("m/model.safetensors", model, bytes);
    struct sl_plan *plan = expect_plan(
        "tensors: {include: [\"a*\"]}\nsink: {tmpfs: {path: /n, layout: safetensors}}\n", &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->tensor_count, 3);
    ck_assert_uint_eq(plan->range_count, 3); /* 256 KiB is not a small gap */
    ck_assert_uint_eq(plan->fetch_bytes, 3 * 256 * 1024);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(model);

    model = sl_model_safetensors("a0,b0,a1,b1,a2", 1024, &bytes);
    put("m/model.safetensors", model, bytes);
    plan = expect_plan(
        "tensors: {include: [\"a*\"]}\nsink: {tmpfs: {path: /n, layout: safetensors}}\n", &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->range_count, 1);
    ck_assert_uint_eq(plan->fetch_bytes, 5 * 4096);
    ck_assert_uint_eq(plan->literal_count, 1);
    ck_assert_uint_eq(plan->sink_bytes, plan->files[0].bytes);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(model);
}

SL_TEST(tensors_of_several_files_become_one_model)
{
    struct sl_specs specs;
    size_t one_bytes, two_bytes;
    uint8_t *one = sl_model_safetensors("a,b", 16, &one_bytes),
            *two = sl_model_safetensors("c,d", 16, &two_bytes);
    put("m/one.safetensors", one, one_bytes);
    put("m/two.safetensors", two, two_bytes);
    put_text("m/config.json", "{}");
    static const char layout[] = "sink: {tmpfs: {path: /n, layout: safetensors}}\n";
    struct sl_plan *plan = expect_plan(layout, &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->tensor_count, 4);
    ck_assert_uint_eq(plan->file_count, 2);
    ck_assert_str_eq(plan->files[0].name, "model.safetensors");
    sl_plan_free(plan);
    sl_specs_release(&specs);
    put("m/three.safetensors", one, one_bytes);
    expect_refusal(layout, SL_E_FORMAT, "'a'");
    free(one);
    free(two);
}

SL_TEST(an_index_rules_over_files_beside_it)
{
    struct sl_specs specs;
    size_t one_bytes, two_bytes;
    uint8_t *one = sl_model_safetensors("a,b", 16, &one_bytes),
            *two = sl_model_safetensors("c,d", 16, &two_bytes);
    put("m/model-1.safetensors", one, one_bytes);
    put("m/model-2.safetensors", two, two_bytes);
    put("m/consolidated.safetensors", one, one_bytes);
    put_text("m/model.safetensors.index.json",
             "{\"metadata\":{},\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-1."
             "safetensors\","
             "\"c\":\"model-2.safetensors\",\"d\":\"model-2.safetensors\"}}");
    struct sl_plan *plan = expect_plan("sink: {tmpfs: {path: /n, layout: safetensors}}\n", &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->tensor_count, 4);
    ck_assert_uint_eq(plan->file_count, 1);
    sl_plan_free(plan);
    sl_specs_release(&specs);

    sl_model_spec(&specs, "memory:m/model.safetensors.index.json", "/n", "");
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_model_plan(&specs, &plan, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(plan->file_count, 3); /* the index and its shards, under their own names */
    ck_assert_str_eq(plan->files[0].name, "model.safetensors.index.json");
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(one);
    free(two);
}

SL_TEST(given_hashes_are_checked_whatever_the_mode)
{
    struct sl_specs specs;
    put_text("m/a", "x");
    expect_refusal("verify: {hashes: require}\n", SL_E_INTEGRITY, "verify.sha256");
    expect_refusal("verify: {sha256: {b: "
                   "\"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\"}}\n",
                   SL_E_USAGE, "'b'");
    static const char *const modes[] = {"auto", "off", "require", "all"};
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        char more[256];
        snprintf(more, sizeof(more),
                 "verify: {hashes: %s, sha256: {a: "
                 "\"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\"}}\n",
                 modes[i]);
        struct sl_plan *plan = expect_plan(more, &specs);
        ck_assert_uint_eq(plan->check_count, 1);
        ck_assert(plan->checks[0].given);
        ck_assert_str_eq(plan->checks[0].what, "object 'a'");
        ck_assert_uint_eq(plan->unhashed_bytes, 0);
        sl_plan_free(plan);
        sl_specs_release(&specs);
    }
}

/* The object m/t.tensors made of a golden file; free() it after use. */
static uint8_t *put_golden(const char *name)
{
    size_t bytes;
    uint8_t *data = golden_read(name, &bytes);
    put("m/t.tensors", data, bytes);
    return data;
}

static size_t count_checks(const char *more, enum sl_hash_kind kind, size_t *tensors)
{
    struct sl_specs specs;
    struct sl_plan *plan = expect_plan(more, &specs);
    size_t count = 0;
    for (size_t i = 0; i < plan->check_count; i++)
        count += plan->checks[i].kind == kind;
    *tensors = plan->tensor_count;
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    return count;
}

SL_TEST(hashes_of_tensors_are_chosen_by_mode)
{
    size_t tensors;
    uint8_t *data = put_golden("tensorizer/v1-ndim.tensors.gz");
    size_t crc = count_checks("", SL_HASH_CRC32, &tensors);
    ck_assert_uint_gt(crc, 0);
    ck_assert_uint_eq(count_checks("", SL_HASH_SHA256, &tensors), 0);
    ck_assert_uint_eq(count_checks("verify: {hashes: all}\n", SL_HASH_CRC32, &tensors), crc);
    ck_assert_uint_eq(count_checks("verify: {hashes: all}\n", SL_HASH_SHA256, &tensors), crc);
    ck_assert_uint_eq(count_checks("verify: {hashes: require}\n", SL_HASH_CRC32, &tensors), crc);
    ck_assert_uint_eq(count_checks("verify: {hashes: off}\n", SL_HASH_CRC32, &tensors), 0);
    ck_assert_uint_eq(
        count_checks("sink: {tmpfs: {path: /n, layout: safetensors}}\n", SL_HASH_CRC32, &tensors),
        crc);
    free(data);
    data = put_golden("tensorizer/tolerated-sha-only.tensors.gz");
    ck_assert_uint_gt(count_checks("", SL_HASH_SHA256, &tensors), 0);
    free(data);
    data = put_golden("tensorizer/tolerated-no-hashes.tensors.gz");
    ck_assert_uint_eq(count_checks("", SL_HASH_CRC32, &tensors), 0);
    expect_refusal("verify: {hashes: require}\n", SL_E_INTEGRITY, "t.tensors");
    free(data);
}

SL_TEST(encrypted_tensors_are_data_without_a_key)
{
    size_t tensors;
    uint8_t *data = put_golden("tensorizer/v3-key.tensors.gz");
    ck_assert_uint_eq(count_checks("", SL_HASH_CRC32, &tensors), 0);
    ck_assert_uint_gt(tensors, 0);
    expect_refusal("sink: {tmpfs: {path: /n, layout: safetensors}}\n", SL_E_AUTH, "--key-file");
    free(data);
}

SL_TEST(meta_tensors_are_holes)
{
    struct sl_specs specs;
    uint8_t *data = put_golden("tensorizer/v4-meta.tensors.gz");
    struct sl_plan *plan = expect_plan("sink: {tmpfs: {path: /n, layout: safetensors}}\n", &specs);
    size_t metas = 0;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const struct sl_plan_tensor *place = &plan->tensors[i];
        metas += place->tensor->meta;
        for (size_t e = 0; place->tensor->meta && e < plan->extent_count; e++)
            ck_assert(plan->extents[e].file != place->file ||
                      plan->extents[e].file_offset >= place->file_offset + place->tensor->bytes ||
                      plan->extents[e].file_offset +
                              (plan->extents[e].end - plan->extents[e].begin) <=
                          place->file_offset);
    }
    ck_assert_uint_gt(metas, 0);
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(data);
}

SL_TEST(identity_follows_versions_and_wishes_but_not_cutting)
{
    struct sl_specs specs;
    put_text("m/a", "x");
    put_text("m/b", "y");
    struct sl_plan *first = expect_plan("", &specs);
    uint8_t identity[32];
    memcpy(identity, first->identity, 32);
    sl_plan_free(first);
    sl_specs_release(&specs);
    static const char *const same[] = {"readers: {rangeBytes: 64Ki, connections: 3}\n", ""};
    static const char *const other[] = {
        "source: {uri: \"memory://m/\", exclude: [b]}\n",
        "verify: {sha256: {a: "
        "\"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\"}}\n"};
    for (size_t i = 0; i < SL_COUNT(same); i++) {
        struct sl_plan *plan = expect_plan(same[i], &specs);
        ck_assert_mem_eq(plan->identity, identity, 32);
        sl_plan_free(plan);
        sl_specs_release(&specs);
    }
    for (size_t i = 0; i < SL_COUNT(other); i++) {
        struct sl_plan *plan = expect_plan(other[i], &specs);
        ck_assert_mem_ne(plan->identity, identity, 32);
        sl_plan_free(plan);
        sl_specs_release(&specs);
    }
    put_text("m/a", "z"); /* another version of the same length */
    struct sl_plan *plan = expect_plan("", &specs);
    ck_assert_mem_ne(plan->identity, identity, 32);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(small_objects_begin_with_more_connections)
{
    sl_test_adapts();
    struct sl_specs specs;
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "m/%d", i);
        put_text(name, "xy"); /* one byte comes when it is opened */
    }
    struct sl_plan *plan = expect_plan("", &specs);
    ck_assert_uint_eq(plan->connections.first, 16);
    ck_assert_uint_eq(plan->connections.most, 128);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    plan = expect_plan("readers: {connections: 3}\n", &specs);
    ck_assert_uint_eq(plan->connections.first, 3);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    sl_memory_clear();
    uint8_t *large = calloc(1, 8 << 20);
    put("m/large", large, 8 << 20);
    plan = expect_plan("", &specs);
    ck_assert_uint_eq(plan->connections.first, 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(large);
}

SL_TEST(json_is_json)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    put_text("m/a", "x");
    struct sl_plan *plan = expect_plan("", &specs);
    struct sl_json json;
    sl_json_init(&json, 65536);
    sl_plan_json(&json, plan);
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    json_t *document = sl_json_parse(text, strlen(text), "plan", &err);
    ck_assert_ptr_nonnull(document);
    ck_assert_uint_eq(sl_json_get_uint(document, "fetch_bytes", 0), 1);
    json_decref(document);
    sl_json_release(&json);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(every_failing_allocation_and_read_is_survived)
{
    struct sl_specs specs;
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a,b", 16, &bytes);
    put("m/model.safetensors", model, bytes);
    put_text("m/config.json", "{}");
    sl_model_spec(&specs, "memory://m/", "/n",
                  "sink: {tmpfs: {path: /n, layout: safetensors}}\ntensors: {exclude: [b]}\n"
                  "verify: {sha256: {config.json: "
                  "\"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}}\n");
    unsigned succeeded = 0;
    for (unsigned nth = 1; nth < 2000 && succeeded < 3; nth++) {
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
    for (unsigned nth = 1; nth < 4; nth++) {
        struct sl_plan *plan = NULL;
        struct sl_err err = SL_ERR_INIT;
        sl_memory_fail_at(nth);
        int done = sl_model_plan(&specs, &plan, &err);
        ck_assert(done == 0 || err.kind == SL_E_NET);
        ck_assert(done < 0 || nth > 2);
        sl_memory_fail_at(0);
        sl_plan_free(plan);
    }
    sl_specs_release(&specs);
    free(model);
}

SL_CASE(.teardown = clear)
