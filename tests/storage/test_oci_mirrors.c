/* A registry and two mirrors of it: what is asked where, what is never asked of a mirror, and what
 * becomes of one that fails. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "fake_clock.h"
#include "mirror_case.h"
#include "oci_endpoint.h"
#include "stores.h"
#include "tar_maker.h"

static struct sl_buf tar;

static void begin(void)
{
    mirror_case_begin();
    tar = (struct sl_buf)SL_BUF_INIT(4 * SL_BLOB_BYTES);
}

static void end(void)
{
    mirror_case_end();
    sl_buf_release(&tar);
}

/* ---- what is asked where --------------------------------------------------------------------- */

SL_TEST(what_is_checked_comes_from_the_first_mirror_and_the_rest_from_the_registry)
{
    struct mirror_opened opened = mirror_case_open();
    char ns[80];
    ck_assert_uint_eq(sl_server_request_count(mirrors.registry), 2); /* the tag, and the head */
    mirror_case_must_read(&opened, 5000, true);
    mirror_case_must_read(&opened, 9000, true);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 2);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 0);
    snprintf(ns, sizeof(ns), "?ns=127.0.0.1:%u", sl_server_port(mirrors.registry));
    ck_assert_ptr_nonnull(strstr(sl_server_request_at(mirrors.near, 0)->target, ns));
    mirror_case_must_read(&opened, 7000, false);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 2);
    mirror_case_close(&opened);
}

SL_TEST(a_tag_is_resolved_at_the_registry_and_a_digest_at_a_mirror)
{
    snprintf(mirrors.uri, sizeof(mirrors.uri), "oci://127.0.0.1:%u/org/m@%s/m.bin",
             sl_server_port(mirrors.registry), mirrors.manifest_digest);
    struct mirror_opened opened = mirror_case_open();
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.registry), 1); /* the head */
    mirror_case_close(&opened);
}

SL_TEST(a_manifest_that_is_not_its_digest_is_asked_for_elsewhere)
{
    char path[200];
    snprintf(mirrors.uri, sizeof(mirrors.uri), "oci://127.0.0.1:%u/org/m@%s/m.bin",
             sl_server_port(mirrors.registry), mirrors.manifest_digest);
    snprintf(path, sizeof(path), "/v2/hub/org/m/manifests/%s", mirrors.manifest_digest);
    sl_server_put(mirrors.near, path, "{\"layers\":[]}", 13, NULL);
    struct mirror_opened opened = mirror_case_open();
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 1);
    mirror_case_must_read(&opened, 5000, true); /* and who lies is not asked again */
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 1);
    mirror_case_close(&opened);
}

SL_TEST(mirrors_of_another_registry_are_not_asked)
{
    char other[100];
    snprintf(other, sizeof(other), "ghcr.io=%s", mirrors.names[0]);
    mirrors.list[0] = other;
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 0);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 1);
    mirror_case_close(&opened);
}

SL_TEST(without_mirrors_none_is_asked)
{
    mirrors.config.no_mirrors = true;
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near) + sl_server_request_count(mirrors.far),
                      0);
    mirror_case_close(&opened);
}

/* ---- mirrors that fail ----------------------------------------------------------------------- */

static const struct {
    struct sl_step step;
    bool for_good; /* it is not asked a second time */
} faults[] = {
    {{.fault = SL_FAULT_RESET, .after = -1}, false},
    {{.fault = SL_FAULT_RESET, .after = 300}, false},
    {{.fault = SL_FAULT_SHORT, .after = 300}, false},
    {{.fault = SL_FAULT_WRONG_RANGE}, true},
    {{.fault = SL_FAULT_WRONG_TOTAL}, true},
    {{.fault = SL_FAULT_NO_RANGE}, true},
    {{.fault = SL_FAULT_WHOLE}, true},
    {{.fault = SL_FAULT_LONG}, true},
    {{.fault = SL_FAULT_GZIP}, true},
    {{.fault = SL_FAULT_MULTIPART}, true},
    {{.fault = SL_FAULT_STATUS, .status = 400}, true},
    {{.fault = SL_FAULT_STATUS, .status = 401}, true},
    {{.fault = SL_FAULT_STATUS, .status = 403}, true},
    {{.fault = SL_FAULT_STATUS, .status = 404}, true},
    {{.fault = SL_FAULT_STATUS, .status = 416}, true},
    {{.fault = SL_FAULT_STATUS, .status = 429, .headers = "Retry-After: 60\r\n"}, false},
    {{.fault = SL_FAULT_STATUS, .status = 500}, false},
    {{.fault = SL_FAULT_STATUS, .status = 503}, false},
    {{.fault = SL_FAULT_STATUS, .status = 302, .headers = "Location: http://169.254.169.254/\r\n"},
     true},
    {{.fault = SL_FAULT_STATUS, .status = 302, .headers = "Location: ftp://x/\r\n"}, true},
};

/* One try is all that the fetch has: the registry's. */
SL_TEST_LOOP(a_mirror_that_fails_is_left_for_the_next, 0, (int)SL_COUNT(faults))
{
    struct sl_step step = faults[_i].step;
    fake_clock_run();
    struct mirror_opened opened = mirror_case_open();
    sl_server_script(mirrors.near, &step, 1);
    for (unsigned i = 0; i < 5; i++)
        mirror_case_must_read(&opened, 5000 + i, true);
    unsigned asked = sl_server_request_count(mirrors.near);
    ck_assert_msg(faults[_i].for_good ? asked <= 2 : asked >= 3 && asked <= 6, "%u", asked);
    mirror_case_must_read(&opened, 6000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), asked);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 1);
    mirror_case_close(&opened);
}

SL_TEST_LOOP(when_all_mirrors_fail_the_registry_has_it, 0, (int)SL_COUNT(faults))
{
    struct sl_step step = faults[_i].step;
    fake_clock_run();
    struct mirror_opened opened = mirror_case_open();
    sl_server_script(mirrors.near, &step, 1);
    sl_server_script(mirrors.far, &step, 1);
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 2);
    mirror_case_close(&opened);
}

SL_TEST(what_passes_once_does_not_end_a_mirror)
{
    struct mirror_opened opened = mirror_case_open();
    for (unsigned i = 0; i < 6; i++) {
        SL_SCRIPT(mirrors.near, {.first = 3 * i + 1, .fault = SL_FAULT_RESET, .after = 200});
        mirror_case_must_read(&opened, 5000, true);
        mirror_case_must_read(&opened, 6000, true);
        mirror_case_must_read(&opened, 7000, true);
    }
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 18);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 6);
    mirror_case_close(&opened);
}

SL_TEST(a_mirror_that_falls_silent_is_left_at_once)
{
    mirrors.config.stall_seconds = 1;
    fake_clock_run();
    struct mirror_opened opened = mirror_case_open();
    SL_SCRIPT(mirrors.near, {.fault = SL_FAULT_STALL, .after = 200});
    mirror_case_must_read(&opened, 5000, true);
    mirror_case_must_read(&opened, 6000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 2);
    mirror_case_close(&opened);
}

SL_TEST(a_mirror_that_is_gone_costs_nothing_but_a_warning)
{
    struct mirror_opened opened = mirror_case_open();
    int held[] = {sl_server_leave(mirrors.near), sl_server_leave(mirrors.far)};
    mirrors.near = sl_server_start();
    mirrors.far = sl_server_start();
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 2);
    mirror_case_close(&opened);
    close(held[0]);
    close(held[1]);
}

/* Ten bytes without a NUL of the blob, from a mirror that does not say that it is done. */
SL_TEST(a_mirror_that_sent_all_has_done_its_part)
{
    struct sl_err err = SL_ERR_INIT;
    struct mirror_opened opened = mirror_case_open();
    unsigned at = 1000;
    char text[256];
    uint8_t data[10];
    size_t used = 0, got;
    while (memchr(sl_blob() + at, 0, sizeof(data)))
        at++;
    snprintf(text, sizeof(text),
             "HTTP/1.1 206 OK\r\nContent-Range: bytes %u-%u/%u\r\nTransfer-Encoding: "
             "chunked\r\n\r\nA\r\n%.10s",
             at, at + 9, (unsigned)SL_BLOB_BYTES, (const char *)sl_blob() + at);
    SL_SCRIPT(mirrors.near, {.first = 1, .fault = SL_FAULT_HEAD, .text = text});
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(opened.store, &err);
    sl_fetch_vouch(fetch, SL_VOUCH_WHOLE);
    ck_assert_int_eq(sl_fetch_start(fetch, opened.source, at, at + 10, &err), 0);
    for (enum sl_io_state state = SL_IO_WAIT; state != SL_IO_END; used += got) {
        uint8_t beyond;
        state = sl_fetch_read(fetch, used == 10 ? &beyond : data + used, used == 10 ? 1 : 10 - used,
                              &got, &err);
        ck_assert_msg(state != SL_IO_FAILED, "%s", err.message);
        ck_assert_int_eq(sl_fetch_wait(fetch, state == SL_IO_WAIT, &err), 0);
    }
    ck_assert_mem_eq(data, sl_blob() + at, 10);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 0);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 1);
    sl_fetch_free(sl_steal(&fetch));
    mirror_case_close(&opened);
}

/* Only its tries count, and its error is told. */
SL_TEST(a_failure_of_the_registry_is_the_fetchs)
{
    struct sl_err err;
    struct mirror_opened opened = mirror_case_open();
    SL_SCRIPT(mirrors.near, {.fault = SL_FAULT_STATUS, .status = 404});
    SL_SCRIPT(mirrors.far, {.fault = SL_FAULT_STATUS, .status = 500});
    SL_SCRIPT(mirrors.registry, {.fault = SL_FAULT_STATUS, .status = 403});
    ck_assert_int_eq(mirror_case_read(&opened, 5000, true, &err), -1);
    ck_assert_int_eq(err.http_status, 403);
    mirror_case_close(&opened);
}

/* ---- a registry that cannot be reached ------------------------------------------------------- */

static void hide_registry(void)
{
    SL_SCRIPT(mirrors.registry, {.fault = SL_FAULT_STATUS, .status = 503});
}

SL_TEST(no_mirror_says_what_a_tag_means)
{
    struct mirror_opened opened;
    struct sl_err err;
    hide_registry();
    ck_assert_int_eq(mirror_case_try(&opened, &err), -1);
    ck_assert_msg(strstr(err.message, "source.oci.trustMirrors"), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near) + sl_server_request_count(mirrors.far),
                      0);
    mirror_case_close(&opened);
}

SL_TEST(mirrors_are_believed_where_the_user_says_so)
{
    mirrors.options.trust_mirrors = true;
    hide_registry();
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    mirror_case_must_read(&opened, 6000, false);
    ck_assert_uint_eq(sl_server_request_count(mirrors.registry), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 4);
    mirror_case_close(&opened);
}

/* An answer is an answer. */
SL_TEST_LOOP(a_registry_that_refuses_is_obeyed_though_mirrors_are_believed, 0, 3)
{
    static const int statuses[] = {401, 403, 404};
    struct mirror_opened opened;
    struct sl_err err;
    mirrors.options.trust_mirrors = true;
    SL_SCRIPT(mirrors.registry, {.fault = SL_FAULT_STATUS, .status = statuses[_i]});
    ck_assert_int_eq(mirror_case_try(&opened, &err), -1);
    ck_assert_int_eq(err.http_status, statuses[_i]);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 0);
    mirror_case_close(&opened);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void publish_car(void)
{
    tar_entry(&tar, '0', "models/m.bin", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_end(&tar);
    mirror_case_publish(tar.data, tar.used, "application/vnd.oci.image.layer.v1.tar", "");
}

static void put_wrong(struct sl_server *at, const char *path, const struct sl_buf *right)
{
    sl_autofree uint8_t *wrong = malloc(right->used);
    memcpy(wrong, right->data, right->used);
    wrong[right->used / 2] ^= 1;
    sl_server_put(at, path, wrong, right->used, NULL);
}

static char *at_near(char path[200])
{
    snprintf(path, 200, "/v2/hub/org/m/blobs/%s", mirrors.digest);
    return path;
}

SL_TEST(a_piece_without_a_hash_is_never_asked_of_a_mirror)
{
    mirrors.options.trust_mirrors = true;
    publish_car();
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, false);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near) + sl_server_request_count(mirrors.far),
                      0);
    mirror_case_close(&opened);
}

SL_TEST(a_layer_that_is_checked_whole_comes_from_a_mirror)
{
    mirrors.options.check_layers_up_to = UINT64_MAX;
    publish_car();
    struct mirror_opened opened = mirror_case_open();
    ck_assert_uint_eq(sl_server_request_count(mirrors.registry), 2); /* the tag, and the head */
    ck_assert_uint_ge(sl_server_request_count(mirrors.near), 1);
    mirror_case_must_read(&opened, 5000, true);
    mirror_case_close(&opened);
}

SL_TEST(a_layer_that_came_wrong_from_a_mirror_is_read_again)
{
    char path[200];
    mirrors.options.check_layers_up_to = UINT64_MAX;
    publish_car();
    put_wrong(mirrors.near, at_near(path), &tar);
    struct mirror_opened opened = mirror_case_open();
    unsigned asked = sl_server_request_count(mirrors.near);
    ck_assert_uint_ge(sl_server_request_count(mirrors.far), 1);
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), asked);
    mirror_case_close(&opened);
}

/* Right at first, wrong when the load reads it; or wrong from the beginning. */
SL_TEST_LOOP(a_packed_layer_that_is_wrong_at_a_mirror_is_unpacked_from_elsewhere, 0, 2)
{
    char path[200];
    size_t bytes;
    struct sl_err err;
    tar_entry(&tar, '0', "models/m.bin", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_end(&tar);
    sl_autofree uint8_t *packed = tar_gzip(tar.data, tar.used, &bytes);
    struct sl_buf layer = {.data = (char *)packed, .used = bytes};
    mirror_case_publish(packed, bytes, "application/vnd.oci.image.layer.v1.tar+gzip", "");
    if (_i)
        put_wrong(mirrors.near, at_near(path), &layer);
    struct mirror_opened opened = mirror_case_open();
    ck_assert_uint_ge(sl_server_request_count(mirrors.near), 1);
    ck_assert_uint_le(bytes, tar.used); /* other bytes, as many */
    sl_server_put(mirrors.near, at_near(path), tar.data, bytes, NULL);
    ck_assert_msg(mirror_case_read(&opened, SL_BLOB_BYTES / 2, true, &err) == 0, "%s", err.message);
    mirror_case_close(&opened);
}

SL_TEST(only_a_mirror_that_sent_bytes_is_blamed)
{
    struct sl_err why = {.kind = SL_E_INTEGRITY};
    struct mirror_opened opened = mirror_case_open();
    ck_assert(!sl_store_blame_mirrors(opened.store, &why));
    mirror_case_must_read(&opened, 5000, true);
    ck_assert(sl_store_blame_mirrors(opened.store, &why));
    ck_assert(!sl_store_blame_mirrors(opened.store, &why));
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 1);
    mirror_case_close(&opened);
}

/* Where the spec is read, so that nothing has to be opened. */
SL_TEST_LOOP(a_mirror_that_is_named_twice_is_refused, 0, 6)
{
    static const struct {
        const char *text;
        bool same;
    } lists[] = {
        {"a.internal,b.internal,a.internal/", true},
        {"http://a.internal/p,a.internal/p", true},
        {"ghcr.io=a.internal,a.internal", true},
        {"ghcr.io=a.internal,quay.io=a.internal", false},
        {"a.internal/p,a.internal/q,a.internal", false},
        {"a.internal,a.internal:8443", false},
    };
    struct sl_err err = SL_ERR_INIT;
    struct sl_oci_options options = {.plain_http = false};
    ck_assert_int_eq(sl_options_init(&sl_oci_table, &options, &err), 0);
    const struct sl_option *row = sl_options_row(&sl_oci_table, "mirrors", strlen("mirrors"));
    int result = sl_option_set(row, &options, lists[_i].text, false, &err);
    ck_assert_int_eq(result, lists[_i].same ? -1 : 0);
    if (lists[_i].same)
        ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "twice"), "%s", err.message);
    sl_options_release(&sl_oci_table, &options);
}

SL_TEST(too_many_mirrors_are_refused)
{
    struct mirror_opened opened;
    struct sl_err err;
    char texts[SL_PLACES_MAX + 1][32], *many[SL_PLACES_MAX + 1];
    for (unsigned i = 0; i < SL_COUNT(many); i++) {
        snprintf(texts[i], sizeof(texts[i]), "h%u.internal", i);
        many[i] = texts[i];
    }
    mirrors.options.mirrors = (struct sl_list){many, SL_COUNT(many)};
    ck_assert_int_eq(mirror_case_try(&opened, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "more than 8"), "%s", err.message);
    mirror_case_close(&opened);
}

SL_CASE(.setup = begin, .teardown = end, .prepare = mirror_case_prepare)
