/* What a load tells when it is over: to programs as JSON, to people in one line that says how much
 * came how fast, and what was not as usual. A second one, for --log-level debug, has the rest; what
 * the load decided is a line of its own (load.c), in words that pin the next one. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "load.h"
#include "log.h"

/* What auto came to, and why: runs can be told apart by it. */
static void json_reading(struct sl_json *json, const struct sl_load_result *result)
{
    const struct sl_reader_outcome *reading = &result->reading;
    sl_json_key_uint(json, "connections", reading->first);
    sl_json_key_uint(json, "connections_most", reading->most);
    sl_json_key_string(json, "connections_why", sl_connections_why_name(reading->why));
    sl_json_key_string(json, "connections_bound", sl_connections_bound_name(reading->bound));
    sl_json_key_uint(json, "connections_last", reading->last);
    sl_json_key_string(json, "connections_last_why",
                       reading->threads ? sl_growth_why_name(reading->last_why) : "");
    sl_json_key_uint(json, "threads", reading->threads);
    sl_json_key_string(json, "threads_why",
                       reading->threads ? sl_threads_why_name(reading->threads_why) : "");
    sl_json_key_uint(json, "files_shared", reading->shared_files);
    sl_json_key_uint(json, "range_bytes", result->range_bytes);
    sl_json_key_uint(json, "buffer_bytes", reading->buffer_bytes);
    sl_json_key_string(json, "decided", reading->decided);
}

/* Slices that take rows: what they were asked for with. */
static void json_rows(struct sl_json *json, const struct sl_reader_outcome *reading)
{
    sl_json_key_uint(json, "rows", reading->rows);
    sl_json_key_uint(json, "dropped_bytes", reading->dropped);
    sl_json_key_uint(json, "request_worth_bytes", reading->worth);
    sl_json_key_string(json, "request_worth_why", sl_worth_why_name(reading->worth_why));
}

void sl_load_result_json(struct sl_json *json, const struct sl_load_result *result,
                         const char *name)
{
    sl_json_object(json);
    sl_json_key_string(json, "name", name);
    sl_json_key_uri(json, "uri", result->uri);
    sl_json_key_uri(json, "path", result->path);
    sl_json_key_bool(json, "already", result->already);
    sl_json_key_uint(json, "bytes", result->bytes);
    sl_json_key_uint(json, "fetched", result->fetched);
    sl_json_key_uint(json, "resumed", result->resumed);
    sl_json_key_uint(json, "inherited", result->inherited);
    sl_json_key_uint(json, "verified", result->verified);
    sl_json_key_uint(json, "unhashed", result->unhashed);
    sl_json_key_uint(json, "checks", result->checks);
    sl_json_key_uint(json, "sidecars", result->sidecars);
    sl_json_key_uint(json, "tensors", result->tensors);
    sl_json_key_uint(json, "decrypted", result->decrypted);
    sl_json_key_uint(json, "cast", result->cast);
    sl_json_key_uint(json, "sliced", result->sliced);
    sl_json_key_uint(json, "gpu_decrypted", result->gpu_decrypted);
    sl_json_key_uint(json, "gpu_cast", result->gpu_cast);
    sl_json_key_uint(json, "objects", result->objects);
    sl_json_key_uint(json, "unversioned", result->unversioned);
    sl_json_key_uint(json, "files", result->files);
    sl_json_key_uint(json, "index_requests", result->index_requests);
    sl_json_key_uint(json, "requests", result->reading.requests);
    sl_json_key_uint(json, "retries", result->retries);
    sl_json_key_uint(json, "refetched_ranges", result->refetched_ranges);
    sl_json_key_uint(json, "hedged", result->hedged);
    sl_json_key_uint(json, "wasted_bytes", result->wasted);
    sl_json_key_uint(json, "fallbacks", result->fallbacks);
    sl_json_key_uint(json, "mirrored", result->mirrored);
    sl_json_key_uint(json, "cached", result->cached);
    sl_signed_by_json(json, &result->signed_by);
    sl_json_key(json, "places");
    sl_suppliers_json(json, result->places, result->place_count);
    json_reading(json, result);
    if (result->reading.rows)
        json_rows(json, &result->reading);
    sl_json_key_string(json, "destination", result->destination ? result->destination : "");
    sl_json_key_double(json, "seconds", result->seconds);
    sl_json_key_double(json, "plan_seconds", result->plan_seconds);
    sl_json_key_double(json, "key_seconds", result->key_seconds);
    sl_json_key_double(json, "read_seconds", result->read_seconds);
    sl_json_key_double(json, "publish_seconds", result->publish_seconds);
    sl_json_end(json);
}

enum { SUMMARY_BYTES = 512, SAID_BYTES = 2048 };

/* Behind what is there; what does not fit is cut. */
__attribute__((format(printf, 2, 3))) static void add(char text[SUMMARY_BYTES], const char *format,
                                                      ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, SUMMARY_BYTES - used, format, args);
    va_end(args);
}

static void add_reading(char text[SUMMARY_BYTES], const struct sl_load_result *result)
{
    char connections[40];
    if (result->reading.threads && result->reading.why != SL_CONNECTIONS_LOCAL)
        add(text, ", %s", sl_human_count(result->reading.most, "connection", connections));
}

static void add_changes(char text[SUMMARY_BYTES], const struct sl_load_result *result)
{
    const struct {
        uint64_t count;
        const char *what;
        uint64_t by_gpu;
    } changes[] = {{result->decrypted, "decrypted", result->gpu_decrypted},
                   {result->cast, "cast", result->gpu_cast},
                   {result->sliced, "sliced", 0}};
    for (size_t i = 0; i < SL_COUNT(changes); i++) {
        if (changes[i].count)
            add(text, ", %" PRIu64 " %s", changes[i].count, changes[i].what);
        if (changes[i].by_gpu)
            add(text, " (%" PRIu64 " by the GPU)", changes[i].by_gpu);
    }
}

static void add_rows(char text[SUMMARY_BYTES], const struct sl_load_result *result)
{
    const struct sl_reader_outcome *reading = &result->reading;
    char rows[40], requests[40], dropped[32], fetched[32];
    if (reading->rows)
        add(text, ", %s of slices by %s, %s of %s dropped",
            sl_human_count(reading->rows, "row", rows),
            sl_human_count(reading->requests, "request", requests),
            sl_human_bytes(reading->dropped, dropped), sl_human_bytes(result->fetched, fetched));
}

/* How much came from how many caches, and the first of those that did badly. */
static void add_places(char text[SUMMARY_BYTES], const struct sl_load_result *result)
{
    uint64_t caches = 0, bad = 0;
    char count[40], trouble[192] = "", first[192] = "";
    for (size_t i = 0; i < SL_MIN(result->place_count, (size_t)SL_SUPPLIERS_MAX); i++) {
        const struct sl_supplier *place = &result->places[i];
        if (place->kind != SL_SUPPLIER_CACHE)
            continue;
        caches += place->bytes > 0;
        if (!*sl_supplier_trouble(place, trouble))
            continue;
        if (!bad++)
            memcpy(first, trouble, sizeof(first));
    }
    if (result->cached)
        add(text, ", %.0f %% from %s", 100.0 * (double)result->cached / (double)result->fetched,
            sl_human_count(caches, "cache", count));
    if (bad)
        add(text, "; %s", first);
    if (bad > 1)
        add(text, ", and %s did badly", sl_human_count(bad - 1, "more cache", count));
}

static void add_unusual(char text[SUMMARY_BYTES], const struct sl_load_result *result)
{
    char times[40], bytes[32];
    if (result->resumed)
        add(text, ", %s kept from an earlier run", sl_human_bytes(result->resumed, bytes));
    if (result->inherited)
        add(text, ", %s taken over from another version", sl_human_bytes(result->inherited, bytes));
    if (result->refetched_ranges)
        add(text, "; fetched again after checksum mismatches: %s",
            sl_human_count(result->refetched_ranges, "time", times));
    if (result->mirrored)
        add(text, ", %s from mirrors", sl_human_bytes(result->mirrored, bytes));
    add_places(text, result);
    if (result->fallbacks)
        add(text, "; read without Xet, which failed");
    if (*result->signed_by.by) {
        char signer[SL_SIGNED_BY_TEXT];
        add(text, "; signed by %s", sl_signed_by_text(&result->signed_by, signer));
    }
    if (result->unhashed_matters)
        add(text, "; %s came without a hash", sl_human_bytes(result->unhashed, bytes));
}

double sl_load_rate(const struct sl_load_result *result)
{
    uint64_t read = result->bytes - SL_MIN(result->bytes, result->resumed + result->inherited);
    return result->seconds > 0 && !result->already ? (double)read / result->seconds : 0;
}

const char *sl_load_summary(const struct sl_load_result *result, char text[SUMMARY_BYTES])
{
    char bytes[32], rate[32], files[40];
    sl_human_bytes(result->bytes, bytes);
    sl_human_count(result->files, "file", files);
    text[0] = 0;
    if (result->already) {
        add(text, "this version is there already (%s, %s)", bytes, files);
        return text;
    }
    sl_human_bytes((uint64_t)sl_load_rate(result), rate);
    add(text, "%s in %.*f s, %s/s", bytes, result->seconds < 10 ? 2 : 1, result->seconds, rate);
    add_reading(text, result);
    add_unusual(text, result);
    return text;
}

const char *sl_load_details(const struct sl_load_result *result, char text[SUMMARY_BYTES])
{
    char files[40], tensors[40], hashes[40], bytes[32];
    text[0] = 0;
    add(text, "%s, %s", sl_human_count(result->files, "file", files),
        sl_human_count(result->tensors, "tensor", tensors));
    if (result->reading.threads)
        add(text, ", connections %s", sl_connections_why_name(result->reading.why));
    add_changes(text, result);
    add_rows(text, result);
    if (result->checks)
        add(text, "; %s checked and right", sl_human_count(result->checks, "hash", hashes));
    if (result->unhashed)
        add(text, "; %s without a hash", sl_human_bytes(result->unhashed, bytes));
    return text;
}

void sl_load_say(const struct sl_load_result *result, struct sl_progress *progress,
                 const char *name, const char *where)
{
    char line[SAID_BYTES], text[SUMMARY_BYTES];
    snprintf(line, sizeof(line), "'%s' is in %s: %s", name, where, sl_load_summary(result, text));
    sl_progress_say(progress, line);
    sl_log(SL_LOG_DEBUG, "model '%s': %s", name, sl_load_details(result, text));
}
