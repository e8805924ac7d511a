/* See mirror_case.h. */
#include "mirror_case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "stores.h"

struct mirror_case mirrors;

static void digest_of(const void *data, size_t bytes, char text[80])
{
    uint8_t value[SL_HASH_BYTES_MAX];
    char hex[65];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, value, NULL);
    sl_hex(value, 32, hex);
    snprintf(text, 80, "sha256:%s", hex);
}

static void put_everywhere(const char *path, const char *mirrored, const void *data, size_t bytes)
{
    sl_server_put(mirrors.registry, path, data, bytes, "\"r\"");
    sl_server_put(mirrors.near, mirrored, data, bytes, "\"near\"");
    sl_server_put(mirrors.far, path, data, bytes, NULL);
}

void mirror_case_publish(const void *data, size_t bytes, const char *type, const char *more)
{
    char manifest[1024], path[200], mirrored[200];
    digest_of(data, bytes, mirrors.digest);
    snprintf(manifest, sizeof(manifest),
             "{\"layers\":[{\"mediaType\":\"%s\",\"size\":%zu,\"digest\":\"%s\"%s}]}", type, bytes,
             mirrors.digest, more);
    digest_of(manifest, strlen(manifest), mirrors.manifest_digest);
    snprintf(mirrors.blob, sizeof(mirrors.blob), "/v2/org/m/blobs/%s", mirrors.digest);
    snprintf(mirrored, sizeof(mirrored), "/v2/hub/org/m/blobs/%s", mirrors.digest);
    put_everywhere(mirrors.blob, mirrored, data, bytes);
    snprintf(path, sizeof(path), "/v2/org/m/manifests/%s", mirrors.manifest_digest);
    snprintf(mirrored, sizeof(mirrored), "/v2/hub/org/m/manifests/%s", mirrors.manifest_digest);
    put_everywhere(path, mirrored, manifest, strlen(manifest));
    put_everywhere("/v2/org/m/manifests/v1", "/v2/hub/org/m/manifests/v1", manifest,
                   strlen(manifest));
}

static void publish_file(void)
{
    mirror_case_publish(sl_blob(), SL_BLOB_BYTES, "x",
                        ",\"annotations\":{\"org.opencontainers.image.title\":\"m.bin\"}");
}

void mirror_case_begin(void)
{
    static char folder[] = "models";
    mirrors.registry = sl_server_start();
    mirrors.near = sl_server_start();
    mirrors.far = sl_server_start();
    snprintf(mirrors.names[0], sizeof(mirrors.names[0]), "127.0.0.1:%u/hub",
             sl_server_port(mirrors.near));
    snprintf(mirrors.names[1], sizeof(mirrors.names[1]), "127.0.0.1:%u",
             sl_server_port(mirrors.far));
    mirrors.list[0] = mirrors.names[0];
    mirrors.list[1] = mirrors.names[1];
    mirrors.options = (struct sl_oci_options){.image_folder = folder, .mirrors = {mirrors.list, 2}};
    mirrors.config =
        (struct sl_source_config){.attempts = 1, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
    mirrors.config.options[0] = (struct sl_store_options){&sl_oci_table, &mirrors.options};
    snprintf(mirrors.uri, sizeof(mirrors.uri), "oci://127.0.0.1:%u/org/m:v1/m.bin",
             sl_server_port(mirrors.registry));
    setenv("HOME", "/nonexistent", 1);
    publish_file();
}

bool mirror_case_prepare(void)
{
    sl_test_environment();
    return true;
}

void mirror_case_end(void)
{
    sl_server_stop(mirrors.registry);
    sl_server_stop(mirrors.near);
    sl_server_stop(mirrors.far);
}

int mirror_case_try(struct mirror_opened *opened, struct sl_err *err)
{
    sl_autofree char *key = NULL;
    *opened = (struct mirror_opened){NULL};
    *err = (struct sl_err)SL_ERR_INIT;
    if (sl_store_open(mirrors.uri, &mirrors.config, &opened->store, &key, err) < 0)
        return -1;
    return sl_source_open(opened->store, key, 10, &opened->source, err);
}

struct mirror_opened mirror_case_open(void)
{
    struct mirror_opened opened;
    struct sl_err err;
    ck_assert_msg(mirror_case_try(&opened, &err) == 0, "%s", err.message);
    return opened;
}

void mirror_case_close(struct mirror_opened *opened)
{
    sl_source_free(opened->source);
    sl_store_free(opened->store);
}

int mirror_case_read(struct mirror_opened *opened, uint64_t offset, bool vouched,
                     struct sl_err *err)
{
    uint8_t data[MIRROR_READ_BYTES];
    size_t used = 0, got;
    *err = (struct sl_err)SL_ERR_INIT;
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(opened->store, err);
    sl_fetch_vouch(fetch, vouched ? SL_VOUCH_WHOLE : SL_VOUCH_NONE);
    if (sl_fetch_start(fetch, opened->source, offset, offset + MIRROR_READ_BYTES, err) < 0)
        return -1;
    for (enum sl_io_state state = SL_IO_WAIT; state != SL_IO_END; used += got) {
        uint8_t beyond;
        bool full = used == MIRROR_READ_BYTES;
        state = sl_fetch_read(fetch, full ? &beyond : data + used,
                              full ? 1 : MIRROR_READ_BYTES - used, &got, err);
        if (state == SL_IO_FAILED || sl_fetch_wait(fetch, state == SL_IO_WAIT, err) < 0)
            return -1;
    }
    ck_assert_uint_eq(used, MIRROR_READ_BYTES);
    ck_assert_mem_eq(data, sl_blob() + offset, MIRROR_READ_BYTES);
    return 0;
}

void mirror_case_must_read(struct mirror_opened *opened, uint64_t offset, bool vouched)
{
    struct sl_err err;
    ck_assert_msg(mirror_case_read(opened, offset, vouched, &err) == 0, "%s", err.message);
}

unsigned mirror_case_blobs(struct sl_server *of)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(of); i++)
        count += strstr(sl_server_request_at(of, i)->target, "/blobs/") != NULL;
    return count;
}
