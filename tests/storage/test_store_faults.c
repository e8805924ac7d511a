/* Every fault of a server on every kind of store in the cloud: a table of stores, each a strict
 * mock, and tables of faults that the host of their bytes makes in mid-load. Xet has its own
 * (test_xet_store.c), S3 and web servers theirs (test_fetch.c, test_s3.c, test_http.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "cloud_case.h"
#include "fake_clock.h"
#include "fetch.h"
#include "http_case.h"
#include "stores.h"

/* One fault on those requests for bytes; all others are answered as they should be. */
static void script(int number, struct sl_step step)
{
    struct sl_server *bytes = cloud.cdn ? cloud.cdn : cloud.api;
    static const char *const objects[] = {[2] = "/models/m.bin", [3] = "/sluicetest/models/m.bin"};
    const char *path = cloud.cdn ? NULL : objects[number];
    step.path = path;
    if (!step.headers)
        step.headers = cloud_stores[number].headers;
    sl_server_script(
        bytes,
        (const struct sl_step[]){step, {.path = path, .headers = cloud_stores[number].headers}}, 2);
}

static int load_all(struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(cloud.uri, &cloud.config, 1000, 400000, err);
}

/* ---- what passes ----------------------------------------------------------------------------- */

static const struct sl_step passing[] = {
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_RESET, .after = 900},
    {.fault = SL_FAULT_SHORT, .after = -1},
    {.fault = SL_FAULT_SHORT, .after = 900},
    {.fault = SL_FAULT_STALL, .after = -1},
    {.fault = SL_FAULT_STALL, .after = 900},
    {.fault = SL_FAULT_TRICKLE, .after = 900},
    {.fault = SL_FAULT_SLOW, .after = 20},
    {.fault = SL_FAULT_CHUNKED},
    {.fault = SL_FAULT_CLOSE},
    {.fault = SL_FAULT_DROP_AFTER},
    {.fault = SL_FAULT_UNTIL_CLOSE},
    {.fault = SL_FAULT_STATUS, .status = 408},
    {.fault = SL_FAULT_STATUS, .status = 429},
    {.fault = SL_FAULT_STATUS,
     .status = 429,
     .headers = "Retry-After: 0\r\n",
     .last = 4}, /* storm */
    {.fault = SL_FAULT_STATUS, .status = 500},
    {.fault = SL_FAULT_STATUS, .status = 502},
    {.fault = SL_FAULT_STATUS, .status = 503},
    {.fault = SL_FAULT_STATUS, .status = 504},
};
enum { PASSING = SL_COUNT(passing) };

static bool stalls(const struct sl_step *step)
{
    return step->fault == SL_FAULT_STALL || step->fault == SL_FAULT_TRICKLE;
}

SL_TEST_LOOP(what_passes_is_got_over, 0, CLOUD_STORES *PASSING)
{
    struct sl_err err;
    struct sl_step step = passing[_i % PASSING];
    int number = _i / PASSING;
    cloud_begin(number);
    step.first = 2;
    script(number, step);
    if (stalls(&step))
        cloud.config.stall_seconds = 1;
    ck_assert_msg(load_all(&err) == 0, "%s: %s", cloud.uri, err.message);
    cloud_end(number);
}

SL_TEST_LOOP(what_passes_at_the_opening_is_got_over, 0, CLOUD_STORES *PASSING)
{
    struct sl_err err;
    struct sl_step step = passing[_i % PASSING];
    int number = _i / PASSING;
    if (stalls(&step))
        return; /* test_hedged_opening.c */
    cloud_begin(number);
    step.first = 1;
    script(number, step);
    ck_assert_msg(load_all(&err) == 0, "%s: %s", cloud.uri, err.message);
    cloud_end(number);
}

/* ---- what passes, anywhere ------------------------------------------------------------------- */

static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)err;
    *(unsigned *)arg += strcmp(entry->name, "m.bin") == 0 && entry->bytes == SL_BLOB_BYTES;
    return 0;
}

/* All that a load asks a store for: a listing, an opening, all bytes; commits, manifests, tokens
 * and links where there are some. */
static void talk(unsigned failing)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned found = 0;
    sl_autofree char *folder_uri = strndup(cloud.uri, strlen(cloud.uri) - strlen("m.bin"));
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(folder_uri, &cloud.config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, count_entry, &found, &err) == 0, "request %u: %s", failing,
                  err.message);
    ck_assert_uint_eq(found, 1);
    ck_assert_msg(load_all(&err) == 0, "request %u: %s", failing, err.message);
}

static const struct sl_step once[] = {
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_SHORT, .after = -1},
    {.fault = SL_FAULT_STATUS, .status = 429, .headers = "Retry-After: 0\r\n"},
    {.fault = SL_FAULT_STATUS, .status = 503, .headers = "Retry-After: 0\r\n"},
};
enum { ONCE = SL_COUNT(once) };

/* The nth request that comes to one of a store's hosts, for each n. */
SL_TEST_LOOP(whichever_request_fails_once_is_sent_again, 0, 2 * CLOUD_STORES * ONCE)
{
    int number = _i / (2 * ONCE);
    bool of_links = _i / ONCE % 2, more = true;
    for (unsigned failing = 1; more; failing++) {
        struct sl_step step = once[_i % ONCE];
        cloud_begin(number);
        struct sl_server *host = of_links ? cloud.cdn : cloud.api;
        script(number, (struct sl_step){.first = 9999});
        step.first = failing;
        step.unhandled = true;
        if (host)
            sl_server_script(
                host, (const struct sl_step[]){step, {.headers = cloud_stores[number].headers}}, 2);
        talk(failing);
        more = host && sl_server_request_count(host) >= failing;
        ck_assert(failing > 1 || more || !host);
        cloud_end(number);
    }
}

/* ---- what does not --------------------------------------------------------------------------- */

static const struct {
    enum sl_fault fault;
    enum sl_err_kind kind;
} lasting[] = {
    {SL_FAULT_WRONG_RANGE, SL_E_NET},
    {SL_FAULT_NO_RANGE, SL_E_NET},
    {SL_FAULT_LONG, SL_E_NET},
    {SL_FAULT_GZIP, SL_E_NET},
    {SL_FAULT_MULTIPART, SL_E_NET},
    {SL_FAULT_WHOLE, SL_E_NET},
    {SL_FAULT_CHANGED, SL_E_INTEGRITY},
    {SL_FAULT_WRONG_TOTAL, SL_E_INTEGRITY},
    {SL_FAULT_BARE, SL_E_NET},
    {SL_FAULT_HEAD, SL_E_NET},
    {SL_FAULT_WRONG_ETAG, SL_E_INTEGRITY},
};
enum { LASTING = SL_COUNT(lasting) };

SL_TEST_LOOP(what_does_not_pass_is_named, 0, CLOUD_STORES *LASTING)
{
    struct sl_err err;
    int number = _i / LASTING, fault = _i % LASTING;
    cloud_begin(number);
    script(number, (struct sl_step){.first = 2,
                                    .last = 99,
                                    .fault = lasting[fault].fault,
                                    .text = "SSH-2.0-OpenSSH_9.2\r\n\r\n"});
    bool good = (lasting[fault].fault == SL_FAULT_WHOLE && cloud_stores[number].cuts) ||
                (lasting[fault].fault == SL_FAULT_GZIP && cloud_stores[number].labels) ||
                (lasting[fault].fault == SL_FAULT_WRONG_ETAG && !cloud_stores[number].etags);
    enum sl_err_kind kind = lasting[fault].kind;
    int done = load_all(&err);
    if (lasting[fault].fault == SL_FAULT_BARE && cloud_stores[number].cuts) {
        good = done == 0; /* asked for all of it next; or it counts as an object of that length */
        kind = SL_E_INTEGRITY;
    }
    ck_assert_msg(done == (good ? 0 : -1), "%s: %s", cloud.uri, err.message);
    if (!good)
        ck_assert_msg(err.kind == kind, "%s: %d: %s", cloud.uri, err.kind, err.message);
    cloud_end(number);
}

SL_TEST_LOOP(refusals_for_ever_are_given_up, 0, CLOUD_STORES)
{
    struct sl_err err;
    cloud_begin(_i);
    cloud.config.attempts = 3;
    script(_i, (struct sl_step){.first = 2, .last = 99, .fault = SL_FAULT_STATUS, .status = 429});
    ck_assert_int_eq(load_all(&err), -1);
    ck_assert_msg(err.kind == SL_E_NET && err.http_status == 429, "%s: %s", cloud.uri, err.message);
    cloud_end(_i);
}

/* It would be refused again, whenever it is sent. */
SL_TEST_LOOP(a_request_that_is_refused_for_good_is_no_fault_of_the_network, 0, CLOUD_STORES * 3)
{
    static const int statuses[] = {400, 405, 422};
    struct sl_err err;
    cloud_begin(_i / 3);
    script(_i / 3,
           (struct sl_step){.first = 2, .fault = SL_FAULT_STATUS, .status = statuses[_i % 3]});
    ck_assert_int_eq(load_all(&err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && err.http_status == statuses[_i % 3], "%s: %d: %s",
                  cloud.uri, err.kind, err.message);
    ck_assert_msg(!err.retryable && strstr(err.message, "the server takes no such request"),
                  "%s: %s", cloud.uri, err.message);
    cloud_end(_i / 3);
}

/* ---- what has expired ------------------------------------------------------------------------ */

SL_TEST_LOOP(tokens_and_links_that_expire_in_mid_load_are_replaced, 0, CLOUD_STORES)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[1000];
    cloud_begin(_i);
    script(_i, (struct sl_step){.first = 99});
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(cloud.uri, &cloud.config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    cloud_stores[_i].expire(2);
    ck_assert_msg(sl_source_read(source, 5000, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 5000, sizeof(data));
    cloud_stores[_i].expire(1000);
    ck_assert_int_eq(sl_source_read(source, 90000, data, sizeof(data), &err), -1);
    ck_assert_msg(err.http_status == 401 || err.http_status == 403, "%d", err.http_status);
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    cloud_end(_i);
}

SL_CASE(.prepare = cloud_prepare)
