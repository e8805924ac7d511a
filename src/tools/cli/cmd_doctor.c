/*
 * sluice doctor: what of this machine a load depends on, checked one by one, and a store if a URI
 * is given. Every check ends in a line, also after others have failed; the first failure is the
 * exit code. Nothing is changed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ca.h"
#include "cache_doctor.h"
#include "cli.h"
#include "descriptors.h"
#include "doctor_host.h"
#include "gpu.h"
#include "json.h"
#include "log.h"
#include "operand.h"
#include "pages.h"
#include "publish.h"
#include "stores.h"
#include "through.h"

enum {
    JSON_BYTES_MAX = 256 * 1024,
    TEXT_BYTES = 1200,
    DESCRIPTORS_FEW = 1024,
    ATTEMPTS = 2,
    STALL_SECONDS = 10,
    LISTED_MAX = 1000,
};
#define MEMORY     "/dev/shm"
#define NEWER_THAN INT64_C(1767225600) /* 2026: this program is not older */

enum verdict { OK, WARN, FAIL };

struct doctor {
    struct sl_cli *cli;
    struct sl_json json;
    struct sl_err first; /* of the checks that failed */
    unsigned failures;
};

static void say(struct doctor *doctor, enum verdict verdict, const char *what, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

static void say(struct doctor *doctor, enum verdict verdict, const char *what, const char *format,
                ...)
{
    static const char *const names[] = {"ok", "warn", "FAIL"}, *const states[] = {"ok", "warning",
                                                                                  "failed"};
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    sl_sanitize_message(text, sizeof(text));
    if (!doctor->cli->json) {
        printf("%-5s %-14s %s\n", names[verdict], what, text);
        fflush(stdout);
        return;
    }
    sl_json_object(&doctor->json);
    sl_json_key_string(&doctor->json, "check", what);
    sl_json_key_string(&doctor->json, "state", states[verdict]);
    sl_json_key_string(&doctor->json, "text", text);
    sl_json_end(&doctor->json);
}

static void fail(struct doctor *doctor, const char *what, const struct sl_err *why)
{
    if (!doctor->failures++)
        doctor->first = *why;
    say(doctor, FAIL, what, "%s", why->message);
}

/* ---- this machine ---------------------------------------------------------------------------- */

static void check_clock(struct doctor *doctor)
{
    time_t now = (time_t)sl_wall_seconds();
    struct tm tm;
    char text[32] = "";
    if (gmtime_r(&now, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
    if (now >= NEWER_THAN) {
        say(doctor, OK, "clock", "%s", text);
        return;
    }
    struct sl_err why = SL_ERR_INIT;
    sl_fail(&why, SL_E_USAGE, "%s is in the past: set the clock; TLS and signatures need it", text);
    fail(doctor, "clock", &why);
}

static void check_memory(struct doctor *doctor)
{
    struct sl_room room = {0};
    struct sl_err why = SL_ERR_INIT;
    char available[32], limit[32];
    if (access(MEMORY, W_OK) < 0) {
        sl_fail_errno(&why, SL_E_NO_SPACE, errno, "cannot write to " MEMORY);
        fail(doctor, "shared memory", &why);
        return;
    }
    say(doctor, OK, "shared memory", MEMORY " is a %s", sl_pages_of_path(MEMORY));
    (void)sl_room_check(MEMORY, 0, 0, &room, &why);
    for (unsigned i = 0; i < room.count; i++)
        say(doctor, OK, i ? "" : "limits", "%s: %s free of %s", room.limits[i].what,
            sl_human_bytes(room.limits[i].available, available),
            sl_human_bytes(room.limits[i].limit, limit));
}

static void check_descriptors(struct doctor *doctor)
{
    unsigned count = sl_descriptors();
    if (count < DESCRIPTORS_FEW)
        say(doctor, WARN, "descriptors", "%u: few connections fit; raise ulimit -n", count);
    else
        say(doctor, OK, "descriptors", "%u", count);
}

static void check_trust(struct doctor *doctor)
{
    const struct sl_ca_choice choice = sl_ca_choose(NULL);
    struct sl_err why = SL_ERR_INIT;
    if (!choice.file && !choice.directory) {
        say(doctor, WARN, "certificates",
            "none found: install ca-certificates, or set SSL_CERT_FILE, for https");
    } else if (choice.file && access(choice.file, R_OK) < 0) {
        sl_fail_errno(&why, SL_E_USAGE, errno, "cannot read '%s' (from %s)", choice.file,
                      choice.from);
        fail(doctor, "certificates", &why);
    } else {
        say(doctor, OK, "certificates", "%s (from %s)",
            choice.file ? choice.file : choice.directory,
            choice.file ? choice.from : "SSL_CERT_DIR");
    }
}

static void check_gpus(struct doctor *doctor)
{
    struct sl_err why = SL_ERR_INIT;
    int count = 0;
    if (sl_gpu_count(&count, &why) < 0)
        say(doctor, OK, "GPU", "none (%s); only GPU destinations need one", why.message);
    else
        say(doctor, OK, "GPU", "%d %s, the driver answers", count, count == 1 ? "GPU" : "GPUs");
}

/* ---- a store --------------------------------------------------------------------------------- */

struct describing {
    struct doctor *doctor;
    char endpoint[512]; /* its URL; "": none was said */
};

static void describe(void *arg, const char *what, const char *text)
{
    struct describing *describing = arg;
    say(describing->doctor, OK, what, "%s", text);
    if (strcmp(what, "endpoint") == 0)
        snprintf(describing->endpoint, sizeof(describing->endpoint), "%.*s",
                 (int)strcspn(text, " "), text);
}

/* Name, address, TLS and clock of the host, before anything is signed. */
static void check_host(struct doctor *doctor, const char *url, const struct sl_tls_options *tls)
{
    struct sl_doctor_host host;
    struct sl_err why = SL_ERR_INIT;
    if (sl_doctor_host(url, tls, &host, &why) < 0) {
        fail(doctor, "host", &why);
        return;
    }
    say(doctor, OK, "name", "%s is %s, found in %.0f ms", host.name, host.address,
        host.lookup_seconds * 1000);
    say(doctor, OK, "connection", "%.0f ms%s%s", host.connect_seconds * 1000,
        host.tls ? ", TLS certificate trusted by " : "", host.tls ? host.trusted : "");
    if (host.dated && (host.skew_seconds > 300 || host.skew_seconds < -300)) {
        sl_fail(&why, SL_E_AUTH,
                "this machine's clock is %" PRId64 " s %s the server's: set it; signatures are "
                "refused from 15 minutes on",
                host.skew_seconds < 0 ? -host.skew_seconds : host.skew_seconds,
                host.skew_seconds < 0 ? "behind" : "ahead of");
        fail(doctor, "server's clock", &why);
    } else if (host.dated) {
        say(doctor, OK, "server's clock", "agrees to %" PRId64 " s",
            host.skew_seconds < 0 ? -host.skew_seconds : host.skew_seconds);
    }
}

/* One entry is enough. */
static int first_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    bool *any = arg;
    (void)entry;
    *any = true;
    return sl_fail(err, SL_E_CANCELED, "enough");
}

static void check_object(struct doctor *doctor, struct sl_store *store, const char *key)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_source) source = NULL;
    bool any = false;
    char size[32];
    if (*key && sl_source_open(store, key, 1, &source, &why) == 0)
        say(doctor, OK, "object", "%s, %s", sl_source_uri(source),
            sl_human_bytes(sl_source_bytes(source), size));
    else if (!*key && (sl_store_list(store, first_entry, &any, &why) == 0 || any))
        say(doctor, OK, "listing", "objects are below %s", sl_store_uri(store));
    else
        fail(doctor, *key ? "object" : "listing", &why);
}

/* ---- its caches ------------------------------------------------------------------------------ */

/* Some have no ranges to speak of: the one with several blocks and the shortest last one is best.
 */
struct choosing {
    uint64_t block_bytes;
    unsigned seen;
    char name[1024];
    uint64_t bytes;
};

static int choose(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct choosing *choosing = arg;
    uint64_t block = choosing->block_bytes;
    bool several = entry->bytes > block, had = choosing->bytes > block;
    bool better = several == had ? several ? entry->bytes % block < choosing->bytes % block
                                           : entry->bytes > choosing->bytes
                                 : several;
    if (better && strlen(entry->name) < sizeof(choosing->name)) {
        choosing->bytes = entry->bytes;
        snprintf(choosing->name, sizeof(choosing->name), "%s", entry->name);
    }
    if (++choosing->seen < LISTED_MAX)
        return 0;
    return sl_fail(err, SL_E_CANCELED, "enough");
}

static void judge_cache(struct doctor *doctor, const char *via,
                        const struct sl_cache_findings *findings)
{
    struct sl_err why = SL_ERR_INIT;
    char answered[40] = "";
    unsigned lacks = 0;
    if (findings->status)
        snprintf(answered, sizeof(answered), " (%d)", findings->status);
    for (unsigned i = 0; i < SL_CACHE_LACK_COUNT; i++) {
        if (!findings->lacks[i])
            continue;
        lacks++;
        sl_fail(&why, SL_E_USAGE, "'%s'%s %s", via, answered,
                sl_cache_lack_text((enum sl_cache_lack)i));
        if (i == SL_CACHE_LACK_HEAD)
            say(doctor, WARN, "cache", "%s", why.message);
        else
            fail(doctor, "cache", &why);
    }
    if (findings->hidden)
        say(doctor, WARN, "cache",
            "'%s' is not asked for these objects, whose requests carry a token, a login or a "
            "link: it needs https://",
            via);
    else if (findings->open && !lacks)
        say(doctor, WARN, "cache",
            "'%s' gives what the store gives; what it keeps is not known, since the store refuses "
            "no request",
            via);
    else if (!lacks)
        say(doctor, OK, "cache",
            "'%s' keeps ranges by version and fetches each once; it asks for no credentials: let "
            "only your nodes reach it",
            via);
}

static void check_cache(struct doctor *doctor, struct sl_source *source, const char *via,
                        uint64_t block_bytes)
{
    struct sl_cache_findings findings;
    struct sl_err why = SL_ERR_INIT;
    if (sl_cache_doctor(source, via, block_bytes, &findings, &why) == 0) {
        judge_cache(doctor, via, &findings);
        return;
    }
    sl_wrap(&why, "the cache '%s'", via);
    fail(doctor, "cache", &why);
}

/* Of the store that was opened with them, all that there are. */
static void ask_caches(struct doctor *doctor, struct sl_store *store, struct sl_source *source)
{
    struct sl_through *through = sl_store_through(store);
    sl_through_look_up(through);
    unsigned count = sl_through_states(through, NULL, 0);
    sl_autofree struct sl_through_state *states = sl_alloc_array(count, sizeof(*states), NULL);
    if (!states)
        return;
    count = SL_MIN(count, sl_through_states(through, states, count));
    for (unsigned i = 0; i < count && sl_cancel_check(doctor->cli->cancel, NULL) == 0; i++)
        if (!states[i].gone)
            check_cache(doctor, source, states[i].via, sl_through_block_bytes(through));
}

static void check_caches(struct doctor *doctor, struct sl_store *store, const char *key)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_source) source = NULL;
    struct choosing choosing = {.block_bytes = 0};
    if (!sl_store_through(store)) {
        say(doctor, WARN, "caches", "'%s' is read past them", sl_store_uri(store));
        return;
    }
    choosing.block_bytes = sl_through_block_bytes(sl_store_through(store));
    if (!*key && (sl_store_list(store, choose, &choosing, &why) == 0 || *choosing.name))
        key = choosing.name;
    if (!*key || sl_source_open(store, key, 1, &source, &why) < 0)
        say(doctor, WARN, "caches", "not asked, since there is nothing to ask them for");
    else if (!sl_source_bytes(source) || !sl_cache_doctor_can(source))
        say(doctor, WARN, "caches", "not asked: '%s' has no ranges", sl_source_uri(source));
    else
        ask_caches(doctor, store, source);
}

/* ---- the whole of a store -------------------------------------------------------------------- */

static void check_store(struct doctor *doctor, const struct sl_spec *spec)
{
    struct sl_source_config config;
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct describing describing = {.doctor = doctor};
    sl_spec_source_config(spec, doctor->cli->cancel, NULL, &config);
    config.attempts = ATTEMPTS;
    config.stall_seconds = STALL_SECONDS;
    config.unreachable_seconds = 0;
    if (sl_store_open(spec->source.uri, &config, &store, &key, &why) < 0) {
        fail(doctor, "source", &why);
        return;
    }
    say(doctor, OK, "source", "%s%s, kind %s", sl_store_uri(store), key, sl_store_kind(store));
    sl_store_describe(store, describe, &describing);
    bool web = sl_store_traits(store)->urls;
    const char *url = *describing.endpoint ? describing.endpoint : sl_store_uri(store);
    if (web || *describing.endpoint)
        check_host(doctor, url, &spec->source.tls);
    unsigned failed = doctor->failures;
    check_object(doctor, store, key);
    if (config.through.count && doctor->failures == failed)
        check_caches(doctor, store, key);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int check_sources(struct doctor *doctor, struct sl_err *err)
{
    struct sl_specs specs = {0};
    doctor->cli->pooled = true;
    int done = sl_operand_specs(doctor->cli, NULL, NULL, MEMORY, &specs, err);
    for (size_t i = 0; done == 0 && i < specs.count; i++)
        check_store(doctor, &specs.items[i]);
    sl_specs_release(&specs);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct doctor doctor = {.cli = cli};
    sl_json_init(&doctor.json, JSON_BYTES_MAX);
    sl_json_array(&doctor.json);
    say(&doctor, OK, "sluice", "%s", SLUICE_VERSION);
    check_clock(&doctor);
    check_memory(&doctor);
    check_descriptors(&doctor);
    check_trust(&doctor);
    check_gpus(&doctor);
    int done = cli->operand_count ? check_sources(&doctor, err) : 0;
    sl_json_end(&doctor.json);
    if (done == 0 && cli->json)
        done = sl_cli_print_json(&doctor.json, err);
    sl_json_release(&doctor.json);
    if (done < 0 || sl_cancel_check(cli->cancel, err) < 0)
        return -1;
    if (!doctor.failures)
        return 0;
    *err = doctor.first;
    return sl_wrap(err, "%u %s failed; the first", doctor.failures,
                   doctor.failures == 1 ? "check" : "checks");
}

const struct sl_command sl_cmd_doctor = {
    .name = "doctor",
    .usage = "sluice doctor [SPEC | URI]",
    .summary = "check what a load depends on: memory, limits, certificates, and a store",
    .description =
        "Checks the clock, shared memory and its pages, every limit on memory, descriptors, "
        "trusted certificates and the GPU driver. With a spec or a URI also the endpoint and "
        "credentials of a load and where they come from, the host's name, TLS and clock, and "
        "whether the object or the listing can be read. It asks each cache (source.through) for "
        "small ranges of one object, and says what its settings lack. Every check is one line; the "
        "exit code is that of the first that failed, or 0. Nothing is changed. Caches keep what "
        "they were asked for by names that no load uses.",
    .examples = "sluice doctor\n"
                "sluice doctor s3://bucket/model/\n"
                "sluice doctor s3://bucket/model/ --through http://10.0.0.11:8080\n"
                "sluice doctor https://host/m.safetensors --json   # for scripts",
    .spec_flags = true,
    .operand_min = 0,
    .operand_max = 1,
    .run = run,
};
