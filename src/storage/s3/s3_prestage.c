/*
 * Objects that a store is asked to have at hand before they are read: HEAD of their first byte has
 * CoreWeave's accelerated endpoint fetch the whole object into the cache beside the nodes. It says
 * nothing else, and costs there what objects in that cache cost, so it is done only when asked for.
 */
#include <stdio.h>

#include "log.h"
#include "s3_store.h"

enum { ANSWER_BYTES_MAX = 64 * 1024, TRIES = 2 };

static int ask_for(struct sl_s3 *s3, struct sl_exchange *exchange, const char *name,
                   struct sl_err *err)
{
    static const struct sl_sigv4_header first_byte = {"range", "bytes=0-0"};
    char what[400];
    struct sl_answer answer = {0};
    sl_autofree char *key = sl_asprintf(err, "%s%s", s3->prefix, name);
    sl_autofree char *query = NULL;
    if (!key || sl_s3_version_query(s3, key, &query, err) < 0)
        return -1;
    snprintf(what, sizeof(what), "cannot ask the store to cache '%.200s%.150s'", s3->store->uri,
             name);
    const struct sl_s3_call call = {.what = what,
                                    .verb = SL_S3_READ,
                                    .method = "HEAD",
                                    .key = key,
                                    .query = query,
                                    .more = &first_byte,
                                    .more_count = 1,
                                    .answer_limit = ANSWER_BYTES_MAX,
                                    .attempts = TRIES};
    if (sl_s3_call(s3, exchange, &call, &answer, NULL, err) < 0)
        return -1;
    sl_answer_release(&answer);
    return 0;
}

int sl_s3_prestage(struct sl_store *store, const char *const *names, size_t count,
                   struct sl_cancel *stop, struct sl_err *err)
{
    struct sl_connect connect = sl_store_connect(store);
    connect.stop = stop;
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, err);
    if (!exchange)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (sl_cancel_check(stop, err) < 0 || ask_for(store->impl, exchange, names[i], err) < 0)
            return -1;
    char objects[40];
    sl_log(SL_LOG_INFO, "asked '%s' to cache %s", store->uri,
           sl_human_count(count, "object", objects));
    return 0;
}
