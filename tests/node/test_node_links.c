/* Clients of the pool who ask for local files: links, listings, indexes and sidecars below an
 * allowed prefix lead to nothing outside of it. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "model_maker.h"
#include "node_case.h"
#include "registry_settle.h"

static struct node_case c;

static void put(const char *name, const void *data, size_t bytes)
{
    int fd = openat(c.scratch, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, data, bytes), (int)bytes);
    close(fd);
}

static void setup(void)
{
    static const char *const folders[] = {"files",      "files/good", "files/listed", "files/index",
                                          "files/side", "files/hub",  "files-secret"};
    static const char *const links[][2] = {
        {"../files-secret/s.safetensors", "files/link.safetensors"},
        {"../../files-secret/s.safetensors", "files/listed/s.safetensors"},
        {"../../files-secret/s.safetensors", "files/index/s.safetensors"},
        {"../../files-secret/side.json", "files/side/m.safetensors.sluice.json"},
        {"../files-secret", "files/way"},
        {"../good/m.safetensors", "files/hub/m.safetensors"},
    };
    static const char index[] = "{\"metadata\":{},\"weight_map\":{\"a\":\"s.safetensors\","
                                "\"b\":\"s.safetensors\"}}";
    size_t bytes;
    node_case_init(&c);
    sl_autofree uint8_t *blob = sl_model_safetensors("a,b", 100, &bytes);
    for (size_t i = 0; i < SL_COUNT(folders); i++)
        ck_assert_int_eq(mkdirat(c.scratch, folders[i], 0755), 0);
    for (size_t i = 0; i < SL_COUNT(links); i++)
        ck_assert_int_eq(symlinkat(links[i][0], c.scratch, links[i][1]), 0);
    put("files/good/m.safetensors", blob, bytes);
    put("files/side/m.safetensors", blob, bytes);
    put("files-secret/s.safetensors", blob, bytes);
    put("files-secret/side.json", "canary", 6);
    put("files/index/model.safetensors.index.json", index, strlen(index));
}

static void teardown(void)
{
    node_case_release(&c);
}

static void open_node(const char *prefix)
{
    char keys[SL_SCRATCH_PATH_BYTES + 64];
    snprintf(keys, sizeof(keys), ", uriPrefixes: [\"%s%s\"]", c.path, prefix);
    node_case_open(&c, keys, "", NULL);
}

static bool loads(const char *name)
{
    char uri[SL_SCRATCH_PATH_BYTES + 64];
    snprintf(uri, sizeof(uri), "%s%s", c.path, name);
    struct sluice_model *model = node_case_load(&c, uri);
    bool whole = model && sluice_wait_all(model, -1, -1, &c.error) == 0;
    sluice_detach(model);
    sl_registry_settle(c.node->registry);
    return whole;
}

static void expect_refused(const char *name)
{
    ck_assert_msg(!loads(name), "'%s' was loaded", name);
    ck_assert_msg(c.error.kind == SLUICE_AUTH && !strstr(c.error.message, "canary"), "%s: %s", name,
                  c.error.message);
}

SL_TEST(links_below_a_prefix_lead_to_nothing_outside)
{
    open_node("/files/");
    ck_assert_msg(loads("/files/good/m.safetensors"), "%s", c.error.message);
    ck_assert_msg(loads("/files/hub/m.safetensors"), "%s", c.error.message); /* it stays below */
    expect_refused("/files/link.safetensors");
    expect_refused("/files/way/s.safetensors");
    expect_refused("/files/way/");
    expect_refused("/files/listed/");
    expect_refused("/files/index/model.safetensors.index.json");
    expect_refused("/files/side/");
}

SL_TEST(a_prefix_without_a_slash_has_no_siblings)
{
    open_node("/files");
    ck_assert_msg(loads("/files/good/m.safetensors"), "%s", c.error.message);
    expect_refused("/files-secret/s.safetensors");
    expect_refused("/files/link.safetensors");
}

SL_TEST(what_was_a_file_when_it_was_named_may_not_become_a_link)
{
    open_node("/files/");
    ck_assert_msg(loads("/files/good/m.safetensors"), "%s", c.error.message);
    char name[SL_NODE_URI_NAME], uri[SL_SCRATCH_PATH_BYTES + 64];
    struct sl_err err = SL_ERR_INIT;
    snprintf(uri, sizeof(uri), "%s/files/good/m.safetensors", c.path);
    ck_assert_int_eq(sl_node_uri_name(uri, "host", name, &err), 0);
    ck_assert_int_eq(unlinkat(c.scratch, "files/good/m.safetensors", 0), 0);
    ck_assert_int_eq(
        symlinkat("../../files-secret/s.safetensors", c.scratch, "files/good/m.safetensors"), 0);
    uint64_t before = node_case_counts(&c).loads;
    ck_assert_int_eq(sl_registry_load(c.node->registry, name, &err), 0);
    sl_registry_settle(c.node->registry);
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    ck_assert(sl_registry_model_json(c.node->registry, name, true, &json));
    ck_assert_msg(strstr(sl_buf_string(&json.buf), "leads out of"), "%s after %u loads",
                  sl_buf_string(&json.buf), (unsigned)(node_case_counts(&c).loads - before));
    sl_json_release(&json);
}

SL_CASE(.setup = setup, .teardown = teardown)
