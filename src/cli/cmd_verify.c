/*
 * sluice verify: a published directory against its manifest, or objects against the hashes that
 * they carry (and those of verify.sha256), by reading them. Every wrong thing is told, not only the
 * first.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli.h"
#include "hash.h"
#include "load.h"
#include "operand.h"

enum { VERIFY_JSON_MAX = 256 * 1024 * 1024, CHUNK_BYTES = 1024 * 1024 };

/* What has been told so far. */
struct report {
    struct sl_json json;
    bool to_json;
    uint64_t good, bad, bare;
};

enum verdict { GOOD, BAD, BARE };
static const char *const words[] = {"ok", "BAD", "no hash"};

static void tell(struct report *report, const char *kind, const char *name, enum verdict verdict,
                 const char *why)
{
    *(verdict == GOOD ? &report->good : verdict == BAD ? &report->bad : &report->bare) += 1;
    if (!report->to_json) {
        printf("%-8s %-7s %s%s%s\n", words[verdict], kind, name, why ? ": " : "", why ? why : "");
        return;
    }
    sl_json_object(&report->json);
    sl_json_key_string(&report->json, "kind", kind);
    sl_json_key_string(&report->json, "name", name);
    sl_json_key_string(&report->json, "result",
                       verdict == GOOD  ? "ok"
                       : verdict == BAD ? "bad"
                                        : "unhashed");
    if (why)
        sl_json_key_string(&report->json, "why", why);
    sl_json_end(&report->json);
}

static void tell_file(const char *name, bool good, void *arg)
{
    tell(arg, "file", name, good ? GOOD : BAD, NULL);
}

/* ---- objects -------------------------------------------------------------------------------- */

static int check_tensor(struct report *report, struct sl_index *index,
                        const struct sl_tensor *tensor, struct sl_err *first)
{
    uint8_t digest[32];
    struct sl_err err = SL_ERR_INIT;
    if (tensor->hash_count == 0 || tensor->meta || tensor->encrypted) {
        tell(report, "tensor", tensor->name, BARE, tensor->encrypted ? "encrypted" : NULL);
        return 0;
    }
    if (sl_tensor_digest(index, tensor, true, digest, &err) == 0) {
        tell(report, "tensor", tensor->name, GOOD, NULL);
        return 0;
    }
    if (err.kind != SL_E_INTEGRITY) {
        *first = err;
        return -1;
    }
    tell(report, "tensor", tensor->name, BAD, err.message);
    if (!first->kind)
        *first = err;
    return 0;
}

static int hash_object(struct sl_source *source, uint8_t digest[32], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    sl_autofree uint8_t *chunk = sha ? sl_alloc_aligned(4096, CHUNK_BYTES, err) : NULL;
    if (!chunk)
        return -1;
    uint64_t bytes = sl_source_bytes(source);
    for (uint64_t at = 0; at < bytes;) {
        size_t part = (size_t)SL_MIN(bytes - at, (uint64_t)CHUNK_BYTES);
        if (sl_source_read(source, at, chunk, part, err) < 0)
            return -1;
        sl_sha256_update(sha, chunk, part);
        at += part;
    }
    sl_sha256_finish(sha, digest);
    return 0;
}

static int check_object(struct report *report, const struct sl_plan *plan,
                        const struct sl_check *check, struct sl_err *first)
{
    const struct sl_plan_source *source = &plan->sources[check->source];
    uint8_t digest[32];
    char expected[65], actual[65], why[200];
    if (hash_object(source->source, digest, first) < 0)
        return -1;
    if (memcmp(digest, check->expected, sizeof(digest)) == 0) {
        tell(report, "object", source->name, GOOD, NULL);
        return 0;
    }
    sl_hex(check->expected, 32, expected);
    sl_hex(digest, 32, actual);
    snprintf(why, sizeof(why), "sha256 is %s, expected %s", actual, expected);
    tell(report, "object", source->name, BAD, why);
    if (!first->kind)
        sl_fail(first, SL_E_INTEGRITY,
                "object '%s': %s: either is wrong; if it is the object, store it anew",
                source->name, why);
    return 0;
}

static int check_plan(struct report *report, const struct sl_plan *plan, struct sl_err *first)
{
    for (uint32_t i = 0; i < plan->source_count; i++) {
        struct sl_index *index = plan->sources[i].index;
        if (!index) {
            const struct sl_check *found = NULL;
            for (size_t c = 0; c < plan->check_count && !found; c++)
                found =
                    plan->checks[c].given && plan->checks[c].source == i ? &plan->checks[c] : NULL;
            if (!found)
                tell(report, "object", plan->sources[i].name, BARE, NULL);
        } else if (i == 0 || plan->sources[i - 1].index != index) {
            for (size_t t = 0; t < index->tensor_count; t++)
                if (check_tensor(report, index, &index->tensors[t], first) < 0)
                    return -1;
        }
    }
    for (size_t c = 0; c < plan->check_count; c++)
        if (plan->checks[c].given && check_object(report, plan, &plan->checks[c], first) < 0)
            return -1;
    return 0;
}

static int verify_objects(struct sl_cli *cli, struct report *report, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_source_config config;
    struct sl_err first = SL_ERR_INIT;
    int done = 0;
    if (sl_operand_specs(cli, NULL, NULL, "/", &specs, &first) < 0)
        done = -1;
    for (size_t i = 0; i < specs.count && done == 0; i++) {
        SL_AUTO(sl_plan) plan = NULL;
        specs.items[i].verify.hashes = SL_HASHES_ALL;
        specs.items[i].sink.tmpfs.layout = SL_LAYOUT_VERBATIM;
        sl_load_source_config(&specs.items[i], cli->cancel, NULL, &config);
        done = sl_plan_make(&specs.items[i], &config, &plan, &first);
        if (done == 0)
            done = check_plan(report, plan, &first);
    }
    sl_specs_release(&specs);
    if (first.kind) {
        *err = first;
        return -1;
    }
    if (done == 0 && report->good == 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "'%s' carries no hashes, so nothing could be verified: give SHA-256 with "
                       "--set verify.sha256.OBJECT=HEX",
                       sl_operand_tame(cli->operands[0]));
    return done;
}

/* ---- the command ---------------------------------------------------------------------------- */

static bool has(const char *operand, const char *name)
{
    struct stat status;
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%s", operand, name);
    return length > 0 && (size_t)length < sizeof(path) && stat(path, &status) == 0;
}

static int verify(struct sl_cli *cli, struct report *report, struct sl_err *err)
{
    const char *operand = cli->operands[0];
    if (has(operand, ".sluice/manifest.json"))
        return sl_publish_verify(operand, tell_file, report, cli->cancel, err);
    if (has(operand, ".sluice/lock"))
        return sl_fail(err, SL_E_NOT_FOUND,
                       "nothing is published in '%s' yet: run its load to the end, or wait for it "
                       "with `sluice wait`",
                       operand);
    return verify_objects(cli, report, err);
}

static int print_end(struct report *report, struct sl_err *err)
{
    if (!report->to_json) {
        printf("%" PRIu64 " right, %" PRIu64 " wrong, %" PRIu64 " without a hash\n", report->good,
               report->bad, report->bare);
        return 0;
    }
    sl_json_end(&report->json);
    sl_json_key_uint(&report->json, "good", report->good);
    sl_json_key_uint(&report->json, "bad", report->bad);
    sl_json_key_uint(&report->json, "unhashed", report->bare);
    sl_json_end(&report->json);
    return sl_cli_print_json(&report->json, err);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct report report = {.to_json = cli->json};
    sl_json_init(&report.json, VERIFY_JSON_MAX);
    sl_json_object(&report.json);
    sl_json_key(&report.json, "results");
    sl_json_array(&report.json);
    int done = verify(cli, &report, err);
    struct sl_err why = SL_ERR_INIT;
    if (report.good + report.bad + report.bare && print_end(&report, &why) < 0 && done == 0) {
        *err = why;
        done = -1;
    }
    sl_json_release(&report.json);
    return done;
}

const struct sl_command sl_cmd_verify = {
    .name = "verify",
    .usage = "sluice verify DIR | URI | SPEC",
    .summary = "check a published directory or objects against their hashes",
    .description = "A directory with a published model is compared, file by file, with the CRC32C "
                   "of its manifest. Objects, prefixes, indexes "
                   "and specs are read, and every tensor is compared with the hashes that came "
                   "with it, and every object with the SHA-256 that "
                   "verify.sha256 gives for it. Exits with 5 if anything is wrong, or if there is "
                   "no hash at all.",
    .examples = "sluice verify /dev/shm/model\n"
                "sluice verify s3://bucket/model.tensors\n"
                "sluice verify --set verify.sha256.model.gguf=9f86d0… https://host/model.gguf",
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
