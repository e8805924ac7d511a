/*
 * When to save: the engine says that it is ready, and then nothing of its caches changes any more
 * for some seconds. What is written later is left to the next engine.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "deadline.h"
#include "exchange.h"
#include "log.h"
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

static int wait_until_ready(const char *url, struct sl_cancel *cancel, struct sl_err *err)
{
    while (!is_ready(url, cancel))
        if (sl_sleep_ms(SL_SETS_LOOK_MS, cancel, err) < 0)
            return -1;
    return 0;
}

static int wait_until_still(const char *path, struct sl_cancel *cancel, struct sl_err *err)
{
    SL_AUTO_FOLDER folder;
    struct sl_sets_still still = {.looked = false};
    struct sl_sets_count count;
    if (sl_sets_folder_open(&folder, path, err) < 0)
        return -1;
    for (;;) {
        if (sl_sets_count(folder.fd, cancel, &count, err) < 0)
            return -1;
        if (sl_sets_stands_still(&still, &count, sl_now_ns()))
            return 0;
        if (sl_sleep_ms(SL_SETS_LOOK_MS, cancel, err) < 0)
            return -1;
    }
}

struct waiting {
    const struct sl_spec *spec;
    struct sl_sets_saved saved;
};

/* sl_deadline_run()'s work. */
static int wait_and_save(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct waiting *waiting = arg;
    const struct sl_spec_sets *sets = &waiting->spec->sink.caches;
    if (wait_until_ready(sets->ready, cancel, err) < 0 ||
        wait_until_still(sets->path, cancel, err) < 0)
        return -1;
    return sl_sets_save(waiting->spec, false, cancel, &waiting->saved, err);
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

void sl_sets_save_when_ready(const struct sl_spec *spec, struct sl_cancel *cancel)
{
    const struct sl_spec_sets *sets = &spec->sink.caches;
    struct waiting waiting = {.spec = spec};
    struct sl_err why = SL_ERR_INIT;
    if (!sets->ready) {
        sl_log(SL_LOG_WARN, "engine caches: not saved, since 'sink.caches' names no 'ready': give "
                            "the URL that the engine answers when it has started");
        return;
    }
    if (sl_deadline_run(sets->save_seconds, cancel, wait_and_save, &waiting, &why) == 0)
        log_saved(&waiting.saved);
    else if (why.kind == SL_E_TIMEOUT)
        sl_log(SL_LOG_WARN,
               "engine caches: not saved within 'saveSeconds' (%" PRIu64
               " s): the engine is not ready, or its caches do not stand still",
               sets->save_seconds);
    else if (why.kind != SL_E_CANCELED)
        sl_log(SL_LOG_WARN, "engine caches: not saved: %s", why.message);
}
