/*
 * When to save: the engine says that it is ready, and then nothing of its caches changes any more
 * for some seconds. What is written later is left to the next engine.
 *
 * What an engine reads of its caches leaves no trace on most volumes. But what it does not find it
 * compiles, and writes. So what it wrote tells whether a restored set was of use.
 */
#include <inttypes.h>
#include <string.h>

#include "deadline.h"
#include "exchange.h"
#include "log.h"
#include "metrics.h"
#include "sets_parts.h"

enum { ANSWER_BYTES_MAX = 1024 * 1024, ANSWER_SECONDS = 10 };

bool sl_sets_stands_still(struct sl_sets_still *still, const struct sl_sets_count *count,
                          uint64_t now_ns)
{
    const struct sl_sets_count *last = &still->last;
    bool same = still->looked && last->files == count->files && last->bytes == count->bytes &&
                last->newest_ns == count->newest_ns;
    if (!same)
        still->since_ns = now_ns;
    still->last = *count;
    still->looked = true;
    return count->files && now_ns - still->since_ns >= SL_SETS_STILL_SECONDS * SL_NS_PER_S;
}

static bool is_ready(const char *url, struct sl_cancel *cancel)
{
    const struct sl_connect connect = {.cancel = cancel,
                                       .stall_seconds = ANSWER_SECONDS,
                                       .connect_seconds = ANSWER_SECONDS,
                                       .direct = true};
    const struct sl_request request = {.method = "GET", .url = url};
    struct sl_answer answer = {0};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, NULL);
    struct sl_err why = SL_ERR_INIT;
    bool ready = exchange &&
                 sl_exchange_simple(exchange, &request, ANSWER_BYTES_MAX, &answer, &why) == 0 &&
                 answer.status == 200;
    sl_answer_release(&answer);
    return ready;
}

static int wait_until_ready(const char *url, enum sl_sets_outcome outcome, struct sl_cancel *cancel,
                            struct sl_err *err)
{
    uint64_t began = sl_now_ns();
    while (!is_ready(url, cancel))
        if (sl_sleep_ms(SL_SETS_LOOK_MS, cancel, err) < 0)
            return -1;
    if (outcome == SL_SETS_KEPT) /* this process was started again beside an engine that runs */
        return 0;
    double seconds = (double)(sl_now_ns() - began) / (double)SL_NS_PER_S;
    sl_metric_observe(SL_M_SETS_ENGINE, seconds);
    sl_log(SL_LOG_INFO, "engine caches: the engine was ready after %.0f s (%s)", seconds,
           sl_sets_outcome_name(outcome));
    return 0;
}

bool sl_sets_were_unused(const struct sl_sets_result *restored, const struct sl_sets_count *count)
{
    return restored->outcome == SL_SETS_RESTORED && count->later_files &&
           count->later_bytes >= restored->bytes / 2;
}

static int wait_until_still(const char *path, int64_t after_ns, struct sl_cancel *cancel,
                            struct sl_sets_count *count, struct sl_err *err)
{
    SL_AUTO_FOLDER folder;
    struct sl_sets_still still = {.looked = false};
    if (sl_sets_folder_open(&folder, path, err) < 0)
        return -1;
    for (;;) {
        if (sl_sets_count(folder.fd, after_ns, cancel, count, err) < 0)
            return -1;
        if (sl_sets_stands_still(&still, count, sl_now_ns()))
            return 0;
        if (sl_sleep_ms(SL_SETS_LOOK_MS, cancel, err) < 0)
            return -1;
    }
}

struct waiting {
    const struct sl_spec *spec;
    const struct sl_sets_result *restored;
    struct sl_sets_saved saved;
};

static void warn_if_unused(const struct sl_sets_result *restored, const struct sl_sets_count *count)
{
    char files[40], written[40], bytes[32], more[32];
    if (!sl_sets_were_unused(restored, count))
        return;
    sl_metric_add(SL_M_SETS_UNUSED, 1);
    sl_log(SL_LOG_WARN,
           "engine caches: of little use: %s, %s, were restored, and the engine wrote %s, %s. Tell "
           "versions and configurations apart by 'labels', or replace the set with `sluice caches "
           "save --replace`",
           sl_human_count(restored->files, "file", files), sl_human_bytes(restored->bytes, bytes),
           sl_human_count(count->later_files, "file", written),
           sl_human_bytes(count->later_bytes, more));
}

/* sl_deadline_run()'s work. */
static int wait_and_save(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct waiting *waiting = arg;
    const struct sl_spec_sets *sets = &waiting->spec->sink.caches;
    struct sl_sets_count count;
    if (wait_until_ready(sets->ready, waiting->restored->outcome, cancel, err) < 0 ||
        wait_until_still(sets->path, waiting->restored->newest_ns, cancel, &count, err) < 0)
        return -1;
    warn_if_unused(waiting->restored, &count);
    while (sets->save && sl_sets_save(waiting->spec, false, cancel, &waiting->saved, err) < 0) {
        if (strcmp(err->code, SL_SETS_CHANGED) != 0)
            return -1;
        *err = (struct sl_err)SL_ERR_INIT; /* its first requests made the engine compile more */
        if (wait_until_still(sets->path, 0, cancel, &count, err) < 0)
            return -1;
    }
    return 0;
}

static void log_saved(const struct sl_sets_saved *saved)
{
    char bytes[32], packed[32], files[40];
    if (saved->there)
        sl_log(SL_LOG_INFO, "engine caches: the store has the set %.16s already", saved->key);
    else if (saved->lost)
        sl_log(SL_LOG_INFO, "engine caches: another one saved the set %.16s first", saved->key);
    else
        sl_log(SL_LOG_INFO, "engine caches: saved %s, %s (%s packed), as the set %.16s",
               sl_human_count(saved->files, "file", files), sl_human_bytes(saved->bytes, bytes),
               sl_human_bytes(saved->packed_bytes, packed), saved->key);
}

bool sl_sets_waits(const struct sl_spec *spec, const struct sl_sets_result *restored)
{
    const struct sl_spec_sets *sets = &spec->sink.caches;
    return sets->save || (sets->ready && restored->outcome != SL_SETS_NO_PLACE);
}

void sl_sets_when_ready(const struct sl_spec *spec, const struct sl_sets_result *restored,
                        struct sl_cancel *cancel)
{
    const struct sl_spec_sets *sets = &spec->sink.caches;
    struct waiting waiting = {.spec = spec, .restored = restored};
    struct sl_err why = SL_ERR_INIT;
    if (!sets->ready) {
        sl_log(SL_LOG_WARN, "engine caches: not saved, since 'sink.caches' names no 'ready': give "
                            "the URL that the engine answers when it has started");
        return;
    }
    int done = sl_deadline_run(sets->save_seconds, cancel, wait_and_save, &waiting, &why);
    if (done == 0 && sets->save)
        log_saved(&waiting.saved);
    if (done == 0 || !sets->save)
        return;
    if (why.kind == SL_E_TIMEOUT)
        sl_log(SL_LOG_WARN,
               "engine caches: not saved within 'saveSeconds' (%" PRIu64
               " s): the engine is not ready, or its caches do not stand still",
               sets->save_seconds);
    else if (why.kind != SL_E_CANCELED)
        sl_log(SL_LOG_WARN, "engine caches: not saved: %s", why.message);
}
