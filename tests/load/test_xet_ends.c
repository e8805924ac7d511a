/* Loads through Xet that do not end as others do: killed, canceled, or held to a bandwidth. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "hf_hub.h"
#include "kill_load.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "scratch.h"
#include "tree.h"
#include "xet_store.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_hub hub;
static struct sl_xet_store xet;
static struct sl_cancel *cancel;
static struct sl_progress *progress;
static struct sl_load_result result;
static struct sl_err err;

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    sl_hub_start(&hub);
    sl_xet_store_start(&xet);
    hub.xet_url = sl_server_url(xet.cas, "");
    sl_xet_store_put(&xet, sl_blob(), SL_BLOB_BYTES);
    sl_hub_put(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, true);
    memcpy(hub.files[0].xet, xet.file_hash, sizeof(xet.file_hash));
    cancel = sl_cancel_new(&err);
    progress = sl_progress_new("m", "", path, &err);
}

static void teardown(void)
{
    sl_progress_free(progress);
    sl_cancel_free(cancel);
    sl_hub_stop(&hub);
    sl_xet_store_stop(&xet);
    sl_scratch_close(scratch_fd, scratch);
}

static int load(const char *mode, const char *more, struct sl_progress *to)
{
    struct sl_specs specs;
    char text[400];
    snprintf(text, sizeof(text),
             "source: {uri: \"hf://org/name\", hf: {endpoint: \"%s\", xet: '%s'}}\n%s",
             sl_hub_url(&hub), mode, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], cancel, to, &result, &err);
    sl_specs_release(&specs);
    return done;
}

/* ---- killed ---------------------------------------------------------------------------------- */

#define ONE "readers: {connections: 1, rangeBytes: 128Ki}\n"

static void expect_load(void)
{
    ck_assert_msg(load("on", ONE, NULL) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
}

/* Whatever it was asking for: what it had written down is not fetched again, and nothing is twice.
 */
static void kill_everywhere(struct sl_server *server)
{
    char endpoint[128];
    snprintf(endpoint, sizeof(endpoint), "source.hf.endpoint=%s", sl_hub_url(&hub));
    const char *const words[] = {
        "load",  "hf://org/name",    "--to",          path, "--set",         endpoint,
        "--set", "source.hf.xet=on", "--connections", "1",  "--range-bytes", "128Ki",
        NULL};
    unsigned before = sl_server_request_count(server);
    expect_load();
    unsigned requests = sl_server_request_count(server) - before;
    uint64_t fetched = result.fetched, most = 0;
    for (unsigned nth = 1; nth <= requests; nth++) {
        ck_assert_int_eq(sl_tree_remove(scratch_fd, "model"), 0);
        sl_kill_load(server, words, nth);
        ck_assert(!sl_model_exists(path, ".sluice/ready"));
        expect_load();
        ck_assert_uint_eq(result.fetched, fetched - result.resumed);
        ck_assert_uint_ge(result.resumed, most);
        ck_assert_uint_eq(result.verified, SL_BLOB_BYTES);
        most = result.resumed;
    }
    ck_assert_uint_gt(most, SL_BLOB_BYTES / 2);
}

SL_TEST(a_load_that_was_killed_at_a_question_goes_on)
{
    kill_everywhere(xet.cas);
}

SL_TEST(a_load_that_was_killed_at_a_xorb_goes_on)
{
    kill_everywhere(xet.cdn);
}

/* ---- canceled -------------------------------------------------------------------------------- */

/* Who does not answer: the hub, with a token; Xet; the host of xorbs, without a head or in the
 * middle of a body. */
enum silent { AT_TOKEN, AT_NEW_TOKEN, AT_QUESTION, AT_XORB, IN_XORB, SILENT_ALL };

static void silence(enum silent where)
{
    static const char token[] = "/api/models/org/name/xet-read-token/" SL_HUB_COMMIT;
    if (where == AT_NEW_TOKEN)
        xet.oldest_token = 1000;
    if (where <= AT_NEW_TOKEN)
        SL_SCRIPT(hub.origin, {.path = token,
                               .first = where == AT_TOKEN ? 1 : 2,
                               .fault = SL_FAULT_STALL,
                               .after = -1,
                               .unhandled = true});
    else if (where == AT_QUESTION)
        SL_SCRIPT(xet.cas, {.fault = SL_FAULT_STALL, .after = -1, .unhandled = true});
    else
        SL_SCRIPT(xet.cdn, {.fault = SL_FAULT_STALL, .after = where == AT_XORB ? -1 : 1000});
}

static bool is_silent(enum silent where)
{
    if (where <= AT_NEW_TOKEN)
        return sl_hub_count(&hub, "/api/models/org/name/xet-read-token/") > (unsigned)where;
    if (where == IN_XORB)
        return sl_server_stalled_count(xet.cdn) > 0;
    return sl_server_request_count(where == AT_QUESTION ? xet.cas : xet.cdn) > 0;
}

struct canceled {
    const char *mode;
    struct fake_clock_work work;
};

static void load_until_canceled(void *arg)
{
    const struct canceled *canceled = arg;
    ck_assert_int_eq(load(canceled->mode, "", progress), -1);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
}

/* At once, and it is said to be that: nothing was wrong with Xet. */
SL_TEST_LOOP(a_canceled_load_waits_for_nobody, 0, 2 * SILENT_ALL)
{
    struct canceled canceled = {_i % 2 ? "auto" : "on"};
    enum silent where = (enum silent)(_i / 2);
    silence(where);
    fake_clock_hold();
    fake_clock_begin(&canceled.work, load_until_canceled, &canceled);
    SL_AWAIT(is_silent(where), "the request that is not answered");
    sl_cancel_raise(cancel, SIGTERM);
    fake_clock_end(&canceled.work);
    ck_assert_uint_eq(canceled.work.took_ns, 0);
    ck_assert_uint_eq(sl_progress_counts(progress).fallbacks, 0);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

/* ---- held to a bandwidth --------------------------------------------------------------------- */

static const uint64_t STEP_NS = 50 * SL_NS_PER_MS;

static void load_slowly(void *ignored)
{
    (void)ignored;
    ck_assert_msg(load("on", "readers: {bandwidth: 50k, stallSeconds: 1, attempts: 1}\n", NULL) ==
                      0,
                  "%s", err.message);
}

/* What comes over the network counts, and waiting for it is not a stall. */
SL_TEST(a_load_is_held_to_its_bandwidth)
{
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, load_slowly, NULL);
    SL_AWAIT(sl_xet_store_fetched(&xet), "the first xorb");
    fake_clock_turn_until(&work.done, STEP_NS, 1);
    fake_clock_end(&work);
    ck_assert_uint_ge(work.took_ns, SL_BLOB_BYTES / 2 * SL_NS_PER_S / 50000);
    ck_assert_uint_eq(result.retries, 0);
    ck_assert_uint_eq(result.hedged, 0);
    ck_assert(sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
}

SL_CASE(.setup = setup, .teardown = teardown)
