/*
 * sluice sign: sidecars for an object or for all below a prefix, by reading them once; or, with
 * --check, whether those that are there are right; or, with --format oms, one signature of them
 * all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli.h"
#include "crypt.h"
#include "inspect_report.h"
#include "keys.h"
#include "log.h"
#include "operand.h"
#include "own_names.h"
#include "plan.h"
#include "sign_model.h"
#include "signing.h"
#include "stores.h"

enum { OBJECTS_MAX = 50000, PASSWORD_BYTES_MAX = 1024, PEM_BYTES_MAX = 256 * 1024 };
enum { FORMAT_SIDECARS, FORMAT_OMS };

struct sign_options {
    int format;
    char *key, *certificate, *chain;
    uint64_t shard_bytes;
    char *minisign_key, *password_file;
    bool check;
};
static const struct sl_option rows[] = {
    SL_OPTION(
        sign_options, format, CHOICE, "sidecars",
        "sidecars beside each object, or oms: one model.sig for all, of OpenSSF Model Signing",
        .choices = "sidecars|oms"),
    SL_OPTION(sign_options, key, STRING, "",
              "oms: private key in PEM, encrypted or not: ECDSA over P-256, P-384 or P-521",
              .value = "FILE"),
    SL_OPTION(sign_options, certificate, STRING, "",
              "oms: certificate of that key in PEM, by which the signer is known then",
              .value = "FILE"),
    SL_OPTION(sign_options, chain, STRING, "",
              "oms: further certificates in PEM, from the issuer of that one on", .value = "FILE"),
    SL_OPTION(sign_options, shard_bytes, BYTES, "0",
              "oms: sign ranges of this size, so that a load can fetch a wrong one again alone; 0 "
              "signs whole files"),
    SL_OPTION(sign_options, minisign_key, STRING, "",
              "secret key to sign with, a file of `minisign -G`, encrypted or not",
              .value = "FILE"),
    SL_OPTION(sign_options, password_file, STRING, "",
              "the password of the key; - asks at the terminal", .value = "FILE"),
    SL_OPTION(sign_options, check, BOOL, "false",
              "write nothing: read the sidecars that are there and hold them against the objects"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"sign", sizeof(struct sign_options), rows};
static const char *const idle_flags[] = {"connections", "memory-bytes",    "listen",
                                         "key-file",    "passphrase-file", NULL};

/* ---- which objects --------------------------------------------------------------------------- */

struct names {
    const struct sl_spec *spec;
    char **items;
    size_t count, capacity;
};

static void release_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
}

static int add_name(struct names *names, const char *name, struct sl_err *err)
{
    if (names->count == OBJECTS_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "more than %d objects: choose with source.include, or name a longer prefix",
                       OBJECTS_MAX);
    if (sl_grow(&names->items, &names->capacity, names->count + 1, sizeof(*names->items), err) < 0)
        return -1;
    names->items[names->count] = sl_strdup(name, err);
    return names->items[names->count] ? (names->count++, 0) : -1;
}

/* Neither sidecars nor signatures, nor what sluice keeps beside models. */
static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct names *names = arg;
    if (sl_ends_with(entry->name, SL_SIDECAR_SUFFIX) || sl_ends_with(entry->name, ".minisig") ||
        strcmp(entry->name, SL_OMS_FILE_NAME) == 0 ||
        sl_own_name(entry->name, strlen(entry->name)) ||
        !sl_plan_matches(&names->spec->source.include, entry->name, true) ||
        sl_plan_matches(&names->spec->source.exclude, entry->name, false))
        return 0;
    if (sl_name_check(entry->name, strlen(entry->name), err) < 0)
        return -1;
    return add_name(names, entry->name, err);
}

/* ---- one source ------------------------------------------------------------------------------ */

static int sign_all(struct sl_cli *cli, struct sl_cli_signing *signing, const struct names *names,
                    struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    struct sl_err first = SL_ERR_INIT;
    for (size_t i = 0; i < names->count; i++) {
        struct sl_err why = SL_ERR_INIT;
        int done = options->check ? sl_cli_check_object(signing, names->items[i], &why)
                                  : sl_cli_sign_object(signing, names->items[i], &why);
        if (done < 0 && (!options->check || why.kind != SL_E_INTEGRITY)) {
            *err = why;
            return -1;
        }
        if (done < 0 && !first.kind)
            first = why;
        if (cli->json)
            continue;
        printf("%-8s ", done < 0 ? "BAD" : options->check ? "ok" : "written");
        sl_print_sanitized(names->items[i]);
        printf("%s\n", SL_SIDECAR_SUFFIX);
    }
    if (!first.kind)
        return 0;
    *err = first;
    return -1;
}

static bool is_folder(const char *uri)
{
    struct stat status;
    return !strstr(uri, "://") && stat(uri, &status) == 0 && S_ISDIR(status.st_mode);
}

static int sign_source(struct sl_cli *cli, struct sl_spec *spec, struct sl_cli_signing *signing,
                       struct sl_err *err)
{
    struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL, *uri = NULL;
    struct names names = {.spec = spec};
    uint64_t range_bytes = spec->readers.range_bytes;
    sl_spec_source_config(spec, cli->cancel, NULL, &config);
    uri =
        sl_asprintf(err, "%s%s", spec->source.uri,
                    is_folder(spec->source.uri) && !sl_ends_with(spec->source.uri, "/") ? "/" : "");
    if (!uri || sl_store_open(uri, &config, &store, &key, err) < 0)
        return -1;
    if (range_bytes != SL_AUTO_VALUE && range_bytes > SL_SIDECAR_RANGE_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "--range-bytes: at most 1 GiB for a sidecar");
    signing->range_bytes = range_bytes == SL_AUTO_VALUE ? SL_SIDECAR_RANGE_BYTES : range_bytes;
    signing->store = store;
    signing->config = &config;
    signing->uri = uri;
    signing->single = *key != 0;
    int done = *key ? add_name(&names, key, err) : sl_store_list(store, take_entry, &names, err);
    if (done == 0 && names.count == 0)
        done = sl_fail(err, SL_E_NOT_FOUND, "nothing to sign lies below '%s'", sl_store_uri(store));
    if (done == 0)
        done = sign_all(cli, signing, &names, err);
    release_names(&names);
    return done;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The password that --password-file has, if there is one; *there. */
static int read_password(const struct sl_cli *cli, char password[PASSWORD_BYTES_MAX + 1],
                         bool *there, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    SL_AUTO(sl_keys) keys = NULL;
    if (sl_keys_open(NULL, options->password_file, &keys, err) < 0 ||
        (keys && sl_keys_passphrase(keys, password, PASSWORD_BYTES_MAX + 1, err) < 0))
        return -1;
    *there = keys != NULL;
    return 0;
}

static int read_secret(const struct sl_cli *cli, struct sl_minisign_secret *secret,
                       struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    sl_autosecretbuf text = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    char password[PASSWORD_BYTES_MAX + 1] = "";
    bool there = false;
    if (sl_buf_read_file(&text, options->minisign_key, err) < 0)
        return -1;
    int done = sl_minisign_secret_is_locked(text.data, text.used)
                   ? read_password(cli, password, &there, err)
                   : 0;
    if (done == 0)
        done = sl_minisign_secret_parse(text.data, text.used, there ? password : NULL, cli->cancel,
                                        secret, err);
    sl_crypt_wipe(password, sizeof(password));
    return done < 0 ? sl_wrap(err, "'%s'", options->minisign_key) : 0;
}

static int read_key(const struct sl_cli *cli, struct sl_oms_key **key, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    sl_autosecretbuf text = SL_BUF_INIT(PEM_BYTES_MAX);
    sl_autobuf certificate = SL_BUF_INIT(PEM_BYTES_MAX), chain = SL_BUF_INIT(PEM_BYTES_MAX);
    char password[PASSWORD_BYTES_MAX + 1] = "";
    bool there = false;
    if (sl_buf_read_file(&text, options->key, err) < 0 ||
        (options->certificate && sl_buf_read_file(&certificate, options->certificate, err) < 0) ||
        (options->chain && sl_buf_read_file(&chain, options->chain, err) < 0))
        return -1;
    const char *pem = sl_buf_string(&text);
    int done = sl_oms_key_is_locked(pem) ? read_password(cli, password, &there, err) : 0;
    const struct sl_oms_key_texts texts = {
        .key = pem,
        .password = there ? password : NULL,
        .certificate = options->certificate ? sl_buf_string(&certificate) : NULL,
        .chain = options->chain ? sl_buf_string(&chain) : NULL};
    if (done == 0)
        done = sl_oms_key_open(&texts, sl_wall_seconds(), key, err);
    sl_crypt_wipe(password, sizeof(password));
    return done < 0 ? sl_wrap(err, "'%s'", options->key) : 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int report(struct sl_cli *cli, const struct sl_cli_signing *signing, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    char bytes[32], objects[40], ranges[40];
    if (!cli->json) {
        printf("%s, %s, %s%s\n", sl_human_count(signing->objects, "object", objects),
               sl_human_count(signing->ranges, "range", ranges),
               sl_human_bytes(signing->bytes, bytes), signing->secret ? ", signed" : "");
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_json_key_uint(&json, "objects", signing->objects);
    sl_json_key_uint(&json, "ranges", signing->ranges);
    sl_json_key_uint(&json, "bytes", signing->bytes);
    sl_json_key_bool(&json, "signed", signing->secret || signing->key);
    if (options->check)
        sl_json_key_uint(&json, "wrong_ranges", signing->wrong);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int sign_specs(struct sl_cli *cli, struct sl_cli_signing *signing, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_minisign_key key;
    int done = sl_operand_specs(cli, NULL, NULL, "/", &specs, err);
    for (size_t i = 0; i < specs.count && done == 0; i++) {
        struct sl_spec *spec = &specs.items[i];
        const struct sl_spec_minisign *named = &spec->verify.minisign;
        signing->key = named->public_key || named->public_key_file ? &key : NULL;
        if (signing->key)
            done = sl_plan_signer(spec, &key, err);
        if (done == 0)
            done = sign_source(cli, spec, signing, err);
    }
    sl_specs_release(&specs);
    return done;
}

static int run_sidecars(struct sl_cli *cli, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    struct sl_minisign_secret secret = {{0}, {0}};
    struct sl_cli_signing signing = {0};
    struct sl_err why = SL_ERR_INIT;
    if (options->minisign_key && read_secret(cli, &secret, err) < 0)
        return -1;
    signing.secret = options->minisign_key ? &secret : NULL;
    int done = sign_specs(cli, &signing, &why);
    sl_minisign_secret_release(&secret);
    if ((done == 0 || signing.objects) && report(cli, &signing, err) < 0)
        return -1;
    if (done < 0)
        *err = why;
    return done;
}

/* ---- models ---------------------------------------------------------------------------------- */

static int report_models(struct sl_cli *cli, const struct sl_model_signing *signing,
                         const struct sl_list *places, struct sl_err *err)
{
    char bytes[32], objects[40], ranges[40];
    if (!cli->json) {
        for (size_t i = 0; i < places->count; i++) {
            printf("written  ");
            sl_print_sanitized(places->items[i]);
            printf("\n");
        }
        printf("%s, %s%s%s, signed by ", sl_human_count(signing->objects, "file", objects),
               signing->shard_bytes ? sl_human_count(signing->ranges, "range", ranges) : "",
               signing->shard_bytes ? ", " : "", sl_human_bytes(signing->bytes, bytes));
        sl_print_sanitized(sl_oms_key_who(signing->key));
        printf("\n");
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, 1024 * 1024);
    sl_json_object(&json);
    sl_json_key(&json, "signatures");
    sl_json_array(&json);
    for (size_t i = 0; i < places->count; i++)
        sl_json_string(&json, places->items[i]);
    sl_json_end(&json);
    sl_json_key_uint(&json, "files", signing->objects);
    sl_json_key_uint(&json, "resources", signing->ranges);
    sl_json_key_uint(&json, "bytes", signing->bytes);
    sl_json_key_string(&json, "signed_by", sl_oms_key_who(signing->key));
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int sign_models(struct sl_cli *cli, struct sl_model_signing *signing, struct sl_list *places,
                       struct sl_err *err)
{
    struct sl_specs specs = {0};
    int done = sl_operand_specs(cli, NULL, NULL, "/", &specs, err);
    for (size_t i = 0; i < specs.count && done == 0; i++) {
        sl_autofree char *place = NULL;
        done = sl_cli_sign_model(signing, &specs.items[i], cli->cancel, &place, err);
        if (done == 0)
            done = sl_list_add(places, place, strlen(place), err);
    }
    sl_specs_release(&specs);
    return done;
}

static int run_models(struct sl_cli *cli, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    SL_AUTO(sl_oms_key) key = NULL;
    struct sl_list places = {0};
    if (!options->key)
        return sl_fail(err, SL_E_USAGE,
                       "--format oms signs with a private key: name it with --key");
    if (read_key(cli, &key, err) < 0)
        return -1;
    struct sl_model_signing signing = {.key = key, .shard_bytes = options->shard_bytes};
    int done = sign_models(cli, &signing, &places, err);
    if (done == 0)
        done = report_models(cli, &signing, &places, err);
    for (size_t i = 0; i < places.count; i++)
        free(places.items[i]);
    free(places.items);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct sign_options *options = cli->options;
    bool oms = options->format == FORMAT_OMS;
    if (sl_crypt_init(err) < 0)
        return -1;
    if (options->check && oms)
        return sl_fail(err, SL_E_USAGE,
                       "--check is for sidecars: `sluice verify` checks a signed model");
    if (options->check && options->minisign_key)
        return sl_fail(err, SL_E_USAGE,
                       "--check signs nothing: give the public key with --set "
                       "verify.minisign.publicKeyFile=FILE, or leave out --check");
    if (oms && options->minisign_key)
        return sl_fail(err, SL_E_USAGE,
                       "--minisign-key signs sidecars: --format oms takes --key, or leave one out");
    if (!oms && (options->key || options->certificate || options->chain || options->shard_bytes))
        return sl_fail(err, SL_E_USAGE,
                       "--key, --certificate, --chain and --shard-bytes are for --format oms");
    return oms ? run_models(cli, err) : run_sidecars(cli, err);
}

const struct sl_command sl_cmd_sign = {
    .name = "sign",
    .usage = "sluice sign DIR | URI | SPEC",
    .summary = "write hashes beside objects, or one signature of a model",
    .description =
        "Reads an object, or all below a prefix, and writes NAME.sluice.json beside each. It holds "
        "a CRC32C and a SHA-256 for every range (8 MiB; --range-bytes), a tree hash over them, and "
        "a signature of minisign with --minisign-key. A load that finds one checks every range as "
        "it comes and fetches a wrong one again alone; a signed one makes sure that every byte is "
        "the signer's. With --check nothing is written: sidecars that are there are held against "
        "the objects, and their signatures against verify.minisign if that names a key. Sidecars "
        "that are there are replaced. docs/sidecars.md has the format. With --format oms a model "
        "is signed as a whole, by the format of OpenSSF Model Signing. It writes model.sig beside "
        "the files, or NAME.sig beside one object: the SHA-256 of each file, or of each range of "
        "--shard-bytes, under one signature. The package model-signing verifies it, too. What "
        "source.include and source.exclude leave out is named as ignored, and so are sidecars, "
        ".minisig, .sluice and what git keeps.",
    .examples = "sluice sign /srv/models/llama/\n"
                "sluice sign s3://bucket/model/ --minisign-key minisign.key --password-file -\n"
                "sluice sign --check s3://bucket/model/ \\\n"
                "    --set verify.minisign.publicKeyFile=minisign.pub\n"
                "sluice sign --format oms --key sign.key.pem --shard-bytes 16Mi s3://b/model/",
    .options = &table,
    .spec_flags = true,
    .idle_flags = idle_flags,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
