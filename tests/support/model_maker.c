/* Specs go through the real parser, so that defaults are the real ones. */
#include "model_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "buf.h"

enum { HEADER_BYTES_MAX = 1024 * 1024, FILE_BYTES_MAX = 64 * 1024 * 1024 };

static void die(const char *what, const struct sl_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    abort();
}

uint8_t *sl_model_noise(size_t bytes, unsigned seed)
{
    uint8_t *data = malloc(bytes + 1);
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = (uint8_t)(state >> 24);
    }
    return data;
}

uint8_t *sl_model_safetensors(const char *names, unsigned items, size_t *bytes)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf header = SL_BUF_INIT(HEADER_BYTES_MAX);
    size_t offset = 0;
    char *copy = strdup(names), *rest = copy;
    sl_buf_text(&header, "{", &err);
    for (char *name; (name = strsep(&rest, ","));) {
        sl_buf_printf(&header, &err,
                      "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u],\"data_offsets\":[%zu,%zu]}",
                      offset ? "," : "", name, items, offset, offset + 4 * (size_t)items);
        offset += 4 * (size_t)items;
    }
    sl_buf_text(&header, "}", &err);
    while (header.used % 8)
        sl_buf_text(&header, " ", &err);
    free(copy);
    uint8_t *noise = sl_model_noise(offset, (unsigned)strlen(names) + items);
    uint8_t *file = malloc(8 + header.used + offset + 1);
    sl_put_le64(file, header.used);
    memcpy(file + 8, header.data, header.used);
    memcpy(file + 8 + header.used, noise, offset);
    *bytes = 8 + header.used + offset;
    free(noise);
    return file;
}

void sl_model_spec(struct sl_specs *specs, const char *uri, const char *path, const char *more)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(HEADER_BYTES_MAX), complaints = SL_BUF_INIT(HEADER_BYTES_MAX);
    bool own_sink = strstr(more, "sink:") != NULL, own_source = strstr(more, "source:") != NULL;
    sl_buf_text(&text, "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n", &err);
    if (!own_source)
        sl_buf_printf(&text, &err, "source: {uri: \"%s\"}\n", uri);
    if (!own_sink)
        sl_buf_printf(&text, &err, "sink: {tmpfs: {path: \"%s\"}}\n", path);
    sl_buf_text(&text, more, &err);
    memset(specs, 0, sizeof(*specs));
    if (err.kind ||
        sl_spec_parse(text.data, text.used, "test.yaml", NULL, 0, specs, &complaints, &err) < 0)
        die(sl_buf_string(&complaints), &err);
}

int sl_model_plan(const struct sl_specs *specs, struct sl_plan **plan, struct sl_err *err)
{
    const struct sl_plan_output wanted = sl_plan_output_of_spec(&specs->items[0]);
    return sl_model_plan_as(specs, &wanted, plan, err);
}

int sl_model_plan_as(const struct sl_specs *specs, const struct sl_plan_output *wanted,
                     struct sl_plan **plan, struct sl_err *err)
{
    static const struct sl_source_config config;
    return sl_plan_make(&specs->items[0], wanted, &config, plan, err);
}

uint8_t *sl_model_read(const char *directory, const char *name, size_t *bytes)
{
    struct sl_err err = SL_ERR_INIT;
    char path[4096];
    struct sl_buf text = SL_BUF_INIT(FILE_BYTES_MAX);
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (sl_buf_read_file(&text, path, &err) < 0) {
        sl_buf_release(&text);
        return NULL;
    }
    *bytes = text.used;
    return (uint8_t *)text.data;
}

json_t *sl_model_manifest(const char *directory)
{
    size_t bytes = 0;
    char *text = (char *)sl_model_read(directory, ".sluice/manifest.json", &bytes);
    json_t *manifest = text ? sl_json_parse(text, bytes, "manifest", NULL) : NULL;
    free(text);
    return manifest;
}

int sl_model_same(const char *directory, const char *name, const void *data, size_t bytes)
{
    size_t found_bytes;
    uint8_t *found = sl_model_read(directory, name, &found_bytes);
    int same = found && found_bytes == bytes && memcmp(found, data, bytes) == 0;
    free(found);
    return same;
}

int sl_model_exists(const char *directory, const char *name)
{
    struct stat status;
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return lstat(path, &status) == 0;
}
