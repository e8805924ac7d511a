/*
 * sluice verify: a published directory against its manifest, or objects against the hashes that
 * they carry (and those of verify.sha256, and signatures), by reading them; where there are none,
 * against those that the store lists. Encrypted ones with a key: their MACs, and the hashes of what
 * they hold. Every wrong thing is told, not only the first.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli.h"
#include "hash.h"
#include "inspect_report.h"
#include "load.h"
#include "log.h"
#include "operand.h"
#include "url.h"
#include "verify.h"

struct verify_options {
    bool require;
};
static const struct sl_option rows[] = {
    SL_OPTION(verify_options, require, BOOL, "false",
              "fail if anything has neither a hash nor a signature"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"verify", sizeof(struct verify_options), rows};

enum { VERIFY_JSON_MAX = 256 * 1024 * 1024, CHUNK_BYTES = 1024 * 1024 };

/* What has been told so far. */
struct report {
    struct sl_json json;
    bool to_json;
    uint64_t good, bad, bare;
    bool require;                  /* what has no hash is wrong too */
    struct sl_signed_by signed_by; /* for JSON */
};

enum verdict { GOOD, BAD, BARE };
static const char *const words[] = {"ok", "BAD", "no hash"};

static void add_verdict(struct report *report, const char *kind, const char *name,
                        enum verdict verdict, const char *why)
{
    *(verdict == GOOD ? &report->good : verdict == BAD ? &report->bad : &report->bare) += 1;
    if (!report->to_json) {
        printf("%-8s %-7s ", words[verdict], kind);
        sl_print_sanitized(name);
        printf("%s%s\n", why ? ": " : "", why ? why : "");
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

static void report_file(const char *name, bool good, void *arg)
{
    add_verdict(arg, "file", name, good ? GOOD : BAD, NULL);
}

/* Who signed it, before what came of its files. */
static void report_signer(struct report *report, const struct sl_signed_by *signed_by)
{
    char text[SL_SIGNED_BY_TEXT];
    report->signed_by = *signed_by;
    if (report->to_json)
        return;
    printf("signed   by      ");
    sl_print_sanitized(sl_signed_by_text(signed_by, text));
    printf(" (%s)\n", signed_by->file);
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* A wrong thing is told and remembered, anything else ends the command. */
static int judge(struct report *report, const char *kind, const char *name,
                 const struct sl_err *why, struct sl_err *first)
{
    if (why->kind != SL_E_INTEGRITY) {
        *first = *why;
        return -1;
    }
    add_verdict(report, kind, name, BAD, why->message);
    if (!first->kind)
        *first = *why;
    return 0;
}

/* Why a tensor cannot be checked; NULL if it can. */
static const char *why_bare(const struct sl_tensor *tensor)
{
    if (tensor->encrypted && !tensor->key && !tensor->meta)
        return "encrypted: give its key";
    if (tensor->refused)
        return tensor->refused_why ? tensor->refused_why : "cannot be read";
    if (tensor->encrypted && !tensor->meta)
        return NULL;
    return tensor->hash_count ? NULL : tensor->meta ? "no data" : "";
}

/* The tensors that can be checked: an index of copies, and which of them were right. */
struct checking {
    struct report *report;
    struct sl_cancel *cancel;
    struct sl_index view;
    bool *done;
};

static const char *kind_of(const struct sl_tensor *tensor)
{
    return tensor->part ? "entry" : "tensor";
}

static int report_right(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                        struct sl_err *err)
{
    struct checking *checking = arg;
    (void)digest;
    add_verdict(checking->report, kind_of(tensor), tensor->name, GOOD, NULL);
    checking->done[tensor - checking->view.tensors] = true;
    return sl_cancel_check(checking->cancel, err);
}

/* Neighbours are read together, until one is wrong; those that are left then one by one. */
static int check_view(struct checking *checking, struct sl_err *first)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_index_digest(&checking->view, true, report_right, checking, &why) == 0)
        return 0;
    if (why.kind != SL_E_INTEGRITY) {
        *first = why;
        return -1;
    }
    for (size_t i = 0; i < checking->view.tensor_count; i++) {
        uint8_t digest[32];
        const struct sl_tensor *tensor = &checking->view.tensors[i];
        if (checking->done[i])
            continue;
        why = (struct sl_err)SL_ERR_INIT;
        if (sl_tensor_digest(&checking->view, tensor, true, digest, &why) < 0) {
            if (judge(checking->report, kind_of(tensor), tensor->name, &why, first) < 0)
                return -1;
        } else if (report_right(checking, tensor, digest, first) < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_index(struct report *report, struct sl_index *index, struct sl_cancel *cancel,
                       struct sl_err *first)
{
    struct checking checking = {.report = report, .cancel = cancel, .view = *index};
    sl_autofree struct sl_tensor *tensors =
        sl_alloc_array(index->tensor_count, sizeof(*tensors), first);
    sl_autofree bool *done = sl_alloc_array(index->tensor_count, sizeof(*done), first);
    if (!tensors || !done)
        return -1;
    checking.view.tensors = tensors;
    checking.view.tensor_count = 0;
    checking.done = done;
    for (size_t i = 0; i < index->tensor_count; i++) {
        const char *why = why_bare(&index->tensors[i]);
        if (why) {
            add_verdict(report, kind_of(&index->tensors[i]), index->tensors[i].name, BARE,
                        *why ? why : NULL);
            continue;
        }
        struct sl_tensor *tensor = &tensors[checking.view.tensor_count++];
        *tensor = index->tensors[i];
        if (tensor->meta) { /* its hashes are over its header alone, not over zeros */
            tensor->encrypted = false;
            tensor->bytes = 0;
        }
    }
    return check_view(&checking, first);
}

/* ---- objects -------------------------------------------------------------------------------- */

/* sum NULL: the bytes are only read. */
static int read_bytes(struct sl_source *source, uint64_t begin, uint64_t end, struct sl_digest *sum,
                      struct sl_err *err)
{
    sl_autofree uint8_t *chunk = sl_alloc_aligned(4096, CHUNK_BYTES, err);
    if (!chunk)
        return -1;
    for (uint64_t at = begin; at < end;) {
        size_t part = (size_t)SL_MIN(end - at, (uint64_t)CHUNK_BYTES);
        if (sl_source_read(source, at, chunk, part, err) < 0)
            return -1;
        if (sum)
            sl_digest_update(sum, chunk, part);
        at += part;
    }
    return 0;
}

static int hash_bytes(struct sl_source *source, const struct sl_check *check,
                      uint8_t digest[SL_HASH_BYTES_MAX], struct sl_err *err)
{
    sl_autodigest sum = {0};
    if (sl_digest_begin(&sum, check->kind, check->prefix, check->prefix_bytes, err) < 0 ||
        read_bytes(source, check->begin, check->end, &sum, err) < 0)
        return -1;
    sl_digest_finish(&sum, digest);
    return 0;
}

/* 1 if it is right, 0 if it was told to be wrong. */
static int check_bytes(struct report *report, const struct sl_plan *plan,
                       const struct sl_check *check, struct sl_err *first)
{
    const struct sl_plan_source *source = &plan->sources[check->source];
    uint8_t digest[SL_HASH_BYTES_MAX];
    struct sl_err why = SL_ERR_INIT;
    if (hash_bytes(source->source, check, digest, first) < 0)
        return -1;
    if (sl_verify_agrees(check, digest))
        return 1;
    sl_verify_mismatch(check, digest, &why);
    return judge(report, "object", source->name, &why, first);
}

/* What the user gave of one object: a hash, a signature, or all ranges of its sidecar, which end
 * before the check that is returned. */
static size_t check_object(struct report *report, const struct sl_plan *plan, size_t number,
                           struct sl_err *first)
{
    const struct sl_check *check = &plan->checks[number];
    bool right = true;
    size_t end = number;
    do {
        int done = check_bytes(report, plan, &plan->checks[end++], first);
        if (done < 0)
            return 0;
        right = right && done;
    } while (check->range && end < plan->check_count && plan->checks[end].range &&
             plan->checks[end].source == check->source);
    if (right)
        add_verdict(report, "object", plan->sources[check->source].name, GOOD,
                    check->of_signature ? "signature of the model"
                    : check->range      ? "sidecar"
                    : check->signer     ? "signature of minisign"
                                        : NULL);
    return end;
}

/* Of each source: whether the user gave a hash or a signature of it, and the first of its other
 * checks, which is the store's where the format has none. */
struct found {
    bool given;
    const struct sl_check *other;
};

static struct found *find_checks(const struct sl_plan *plan, struct sl_err *err)
{
    struct found *found = sl_alloc_array(plan->source_count, sizeof(*found), err);
    for (size_t i = 0; found && i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        struct found *of = &found[check->source];
        of->given |= check->given;
        if (!check->given && !of->other)
            of->other = check;
    }
    return found;
}

/* Whoever delivers it may check all of it by a hash that nobody else can compute. */
static int check_delivered(struct report *report, const struct sl_plan_source *from,
                           struct sl_err *first)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_source_delivery(from->source) != SL_DELIVERY_UNCHECKED) {
        if (read_bytes(from->source, 0, sl_source_bytes(from->source), NULL, &why) < 0)
            return judge(report, "object", from->name, &why, first);
        if (sl_source_delivery(from->source) == SL_DELIVERY_CHECKED) {
            add_verdict(report, "object", from->name, GOOD, "the store's hash, as it came");
            return 0;
        }
    }
    add_verdict(report, "object", from->name, BARE,
                from->index ? "its format carries none, or its writer left them out" : NULL);
    return 0;
}

/* Neither its format nor the user has a hash of it: the store may list one. */
static int check_listed(struct report *report, const struct sl_plan *plan, uint32_t number,
                        const struct sl_check *check, struct sl_err *first)
{
    const struct sl_plan_source *from = &plan->sources[number];
    char text[64];
    if (!check)
        return check_delivered(report, from, first);
    int done = check_bytes(report, plan, check, first);
    snprintf(text, sizeof(text), "%s of the store", sl_hash_name(check->kind));
    if (done > 0)
        add_verdict(report, "object", from->name, GOOD, text);
    return done < 0 ? -1 : 0;
}

static bool has_hashes(const struct sl_index *index)
{
    for (size_t i = 0; i < index->tensor_count; i++)
        if (index->tensors[i].hash_count || index->tensors[i].encrypted)
            return true;
    return false;
}

static int check_plan(struct report *report, const struct sl_plan *plan, struct sl_cancel *cancel,
                      struct sl_err *first)
{
    sl_autofree struct found *found = find_checks(plan, first);
    if (!found)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        struct sl_index *index = plan->sources[i].index;
        if (index && has_hashes(index)) {
            if ((i == 0 || plan->sources[i - 1].index != index) &&
                check_index(report, index, cancel, first) < 0)
                return -1;
        } else if (!found[i].given && (sl_cancel_check(cancel, first) < 0 ||
                                       check_listed(report, plan, i, found[i].other, first) < 0)) {
            return -1;
        }
    }
    const struct sl_signed_by signed_by = sl_plan_signed_by(plan);
    if (*signed_by.by)
        report_signer(report, &signed_by);
    for (size_t c = 0; c < plan->check_count;) {
        if (!plan->checks[c].given)
            c++;
        else if ((c = check_object(report, plan, c, first)) == 0)
            return -1;
    }
    return 0;
}

/* Keys for every index, if there are any: MACs are checked then, and hashes of plaintext. */
static int unlock_all(const struct sl_plan *plan, struct sl_keys *keys, struct sl_err *err)
{
    for (size_t i = 0; i < plan->source_count && keys; i++) {
        struct sl_index *index = plan->sources[i].index;
        bool parts = index && index->tensor_count && index->tensors[0].part; /* never encrypted */
        if (index && !parts && (i == 0 || plan->sources[i - 1].index != index) &&
            sl_index_unlock(index, keys, err) < 0)
            return -1;
    }
    return 0;
}

/* One model, as it lies in the store: whole, and encrypted if it is. */
static int verify_model(struct sl_cli *cli, struct sl_spec *spec, struct report *report,
                        struct sl_err *first)
{
    SL_AUTO(sl_keys) keys = NULL;
    SL_AUTO(sl_plan) plan = NULL;
    struct sl_source_config config;
    struct sl_spec_decrypt decrypt = spec->decrypt;
    const struct sl_plan_output whole = {SL_LAYOUT_VERBATIM};
    const struct verify_options *options = cli->options;
    report->require |= options->require || spec->verify.hashes == SL_HASHES_REQUIRE;
    if (sl_keys_open(decrypt.key_file, decrypt.passphrase_file, &keys, first) < 0)
        return -1;
    if (keys)
        sl_keys_heed(keys, cli->cancel);
    spec->verify.hashes = SL_HASHES_ALL;
    spec->decrypt = (struct sl_spec_decrypt){NULL, NULL}; /* whole objects stay encrypted */
    /* Samples compare what caches give with the source. They do not check the source itself. */
    spec->source.through.unverified = SL_UNVERIFIED_DIRECT;
    sl_spec_source_config(spec, cli->cancel, NULL, &config);
    int done = sl_plan_make(spec, &whole, &config, &plan, first);
    spec->decrypt = decrypt;
    if (done < 0 || unlock_all(plan, keys, first) < 0)
        return -1;
    return check_plan(report, plan, cli->cancel, first);
}

static int judge_all(const struct report *report, const char *operand, struct sl_err *err)
{
    if (report->require && report->bare)
        return sl_fail(err, SL_E_INTEGRITY,
                       "%" PRIu64 " of what '%s' holds has no hash, and hashes are required: give "
                       "the SHA-256 of objects in verify.sha256, or sign them",
                       report->bare, operand);
    if (report->good == 0)
        sl_log(SL_LOG_WARN,
               "'%s' carries no hashes, so nothing was verified: give SHA-256 with --set "
               "verify.sha256.OBJECT=HEX, and --require to insist",
               operand);
    return 0;
}

static int verify_objects(struct sl_cli *cli, struct report *report, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_err first = SL_ERR_INIT;
    int done = 0;
    if (sl_operand_specs(cli, NULL, NULL, "/", &specs, &first) < 0)
        done = -1;
    for (size_t i = 0; i < specs.count && done == 0; i++)
        done = verify_model(cli, &specs.items[i], report, &first);
    sl_specs_release(&specs);
    if (first.kind) {
        *err = first;
        return -1;
    }
    sl_autofree char *clean = done < 0 ? NULL : sl_uri_sanitize(cli->operands[0], err);
    return clean ? judge_all(report, clean, err) : -1;
}

/* ---- the command ---------------------------------------------------------------------------- */

static bool has(const char *operand, const char *name)
{
    struct stat status;
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%s", operand, name);
    return length > 0 && (size_t)length < sizeof(path) && stat(path, &status) == 0;
}

static bool names_signers(const struct sl_cli *cli)
{
    static const char KEY[] = "verify.modelSigning";
    for (size_t i = 0; i < cli->setting_count; i++)
        if (strncmp(cli->settings[i].path, KEY, sizeof(KEY) - 1) == 0)
            return true;
    return false;
}

/* Against the manifest, which says who had signed it; and against a signature that is given now. */
static int verify_published(struct sl_cli *cli, struct report *report, struct sl_err *err)
{
    struct sl_publish_facts facts;
    bool there;
    if (names_signers(cli) && verify_objects(cli, report, err) < 0)
        return -1;
    if (!*report->signed_by.by && sl_publish_look(cli->operands[0], &facts, &there, NULL) == 0 &&
        *facts.signed_by.by)
        report_signer(report, &facts.signed_by);
    return sl_publish_verify(cli->operands[0], report_file, report, cli->cancel, err);
}

static int verify(struct sl_cli *cli, struct report *report, struct sl_err *err)
{
    const char *operand = cli->operands[0];
    if (has(operand, ".sluice/manifest.json"))
        return verify_published(cli, report, err);
    if (has(operand, ".sluice"))
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
    sl_signed_by_json(&report->json, &report->signed_by);
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
    .description =
        "A directory with a published model is compared, file by file, with the CRC32C of its "
        "manifest. Objects, prefixes, indexes and specs are read, whatever their format. Every "
        "tensor is compared with the hashes in its file. Every object is compared with the SHA-256 "
        "that verify.sha256 gives for it, and with its signature if verify.minisign or "
        "verify.modelSigning names a key; without these, with the hash that the store lists. "
        "Encrypted tensors are checked with "
        "--key-file or --passphrase-file: the MAC of every "
        "piece, and the hashes of the plaintext. Nothing is written. Exits with 5 if anything is "
        "wrong, naming it and both values. What has no hash is listed as such, and is wrong only "
        "with --require or 'verify.hashes: require'.",
    .examples = "sluice verify /dev/shm/model\n"
                "sluice verify s3://bucket/model.tensors\n"
                "sluice verify --key-file model.key s3://bucket/encrypted.tensors\n"
                "sluice verify --set verify.sha256.model.gguf=9f86d0… https://host/model.gguf\n"
                "sluice verify --require --set verify.minisign.publicKeyFile=team.pub \\\n"
                "    s3://bucket/model/\n"
                "sluice verify --signed-by team.pub.pem s3://bucket/model/  # OpenSSF\n"
                "sluice verify --signed-by team.pub.pem --signature model.sig /dev/shm/model",
    .options = &table,
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
