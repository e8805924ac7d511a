/*
 * The destination's name says the format: .tensors, .safetensors, a folder (safetensors, what
 * engines read), a Redis prefix (tensorizer, whose layout it is).
 */
#include "converting.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"
#include "log.h"
#include "operand.h"
#include "progress.h"
#include "stores.h"
#include "url.h"

enum { RESULT_BYTES_MAX = 16 * 1024 };
const char *const sl_converting_idle_flags[] = {"range-bytes", "listen", NULL};

/* ---- keys ------------------------------------------------------------------------------------ */

int sl_converting_seal(const char *key_file, const char *passphrase_file,
                       const struct sl_kdf_options *options, struct sl_keys **keys,
                       struct sl_kdf *kdf, struct sl_err *err)
{
    static const struct {
        uint64_t opslimit, memlimit;
    } presets[] = {{1, 8192},
                   {2, UINT64_C(64) * 1024 * 1024},
                   {3, UINT64_C(256) * 1024 * 1024},
                   {4, UINT64_C(1024) * 1024 * 1024}};
    enum { MEMLIMIT_MIN = 8192, ARGON2ID13 = 2 };
    if (sl_crypt_init(err) < 0 || sl_keys_open(key_file, passphrase_file, keys, err) < 0)
        return -1;
    *kdf = (struct sl_kdf){
        .opslimit = options->opslimit ? options->opslimit : presets[options->kdf].opslimit,
        .memlimit = options->memlimit ? options->memlimit : presets[options->kdf].memlimit,
        .alg = ARGON2ID13,
        .salt_bytes = SL_SALT_BYTES,
    };
    if (kdf->memlimit < MEMLIMIT_MIN)
        return sl_fail(err, SL_E_USAGE, "--memlimit: at least 8 KiB");
    if (!options->salt)
        sl_crypt_random(kdf->salt, SL_SALT_BYTES);
    else if (sl_unhex(options->salt, kdf->salt, SL_SALT_BYTES) < 0)
        return sl_fail(err, SL_E_USAGE, "--salt: expected 32 hex digits");
    return 0;
}

/* ---- the destination ------------------------------------------------------------------------- */

static const char *format_name(int format)
{
    return format == SL_CONVERT_TENSORIZER ? "tensorizer" : "safetensors";
}

/* The format that the name says, -1 if it says none. */
static int format_of(const char *to)
{
    const struct sl_store_kind *kind = sl_stores_find(to);
    if (sl_ends_with(to, ".tensors") || (kind && kind->traits.tensors))
        return SL_CONVERT_TENSORIZER;
    if (sl_ends_with(to, ".safetensors"))
        return SL_CONVERT_SAFETENSORS;
    return -1;
}

/* By the name without its query: presigned URLs have one. */
static int choose_format(const char *to, int wanted, enum sl_convert_format *format,
                         struct sl_err *err)
{
    int said = format_of(to);
    if (said < 0 && sl_ends_with(to, "/"))
        said = wanted >= 0 ? wanted : SL_CONVERT_SAFETENSORS;
    if (said < 0 && wanted < 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' does not say its format: let it end in .tensors or .safetensors, or "
                       "in '/' for a folder of safetensors files, or add --to-format",
                       to);
    if (said >= 0 && wanted >= 0 && said != wanted)
        return sl_fail(err, SL_E_USAGE, "'%s' is called like a %s object, and --to-format says %s",
                       to, format_name(said), format_name(wanted));
    *format = (enum sl_convert_format)(said >= 0 ? said : wanted);
    return 0;
}

/* A directory that is there is a folder, with or without a '/' at the end. */
static char *destination(const char *to, struct sl_err *err)
{
    struct stat status;
    if (sl_uri_is_of_models(to))
        return sl_uri_of_model(to, err);
    if (*to && !strstr(to, "://") && !sl_ends_with(to, "/") && stat(to, &status) == 0 &&
        S_ISDIR(status.st_mode))
        return sl_asprintf(err, "%s/", to);
    return sl_strdup(to, err);
}

/* ---- one run --------------------------------------------------------------------------------- */

static int print_json(const struct sl_convert_result *result, const char *to, int format,
                      struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, RESULT_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_uri(&json, "to", to);
    sl_json_key_string(&json, "format", format_name(format));
    sl_json_key_uint(&json, "tensors", result->tensors);
    sl_json_key_uint(&json, "objects", result->objects);
    sl_json_key_uint(&json, "files", result->files);
    sl_json_key_uint(&json, "bytes_read", result->bytes_read);
    sl_json_key_uint(&json, "bytes_written", result->bytes_written);
    sl_json_key_uint(&json, "checks", result->checks);
    sl_json_key_double(&json, "seconds", result->seconds);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static void summarise(const struct sl_convert_result *result, const char *verb, const char *to)
{
    char bytes[32], rate[32], tensors[40], hashes[40], line[1024];
    double seconds = result->seconds > 0 ? result->seconds : 1e-9;
    snprintf(line, sizeof(line), "%s into '%s': %s in %.2f s, %s/s, %s%s%s%s", verb, to,
             sl_human_bytes(result->bytes_written, bytes), result->seconds,
             sl_human_bytes((uint64_t)((double)result->bytes_written / seconds), rate),
             sl_human_count(result->tensors, "tensor", tensors), result->checks ? "; " : "",
             result->checks ? sl_human_count(result->checks, "hash", hashes) : "",
             result->checks ? " checked and right" : "");
    sl_log(SL_LOG_INFO, "%s", line);
    sl_cli_termination(line);
}

static int run_spec(struct sl_cli *cli, struct sl_converting *converting,
                    const struct sl_spec *spec, const char *to, struct sl_err *err)
{
    struct sl_convert_config *config = &converting->config;
    struct sl_convert_result result;
    struct sl_err why = SL_ERR_INIT;
    config->spec = spec;
    config->cancel = cli->cancel;
    if (sl_progress_show_start((enum sl_progress_mode)cli->progress, err) < 0)
        return -1;
    int done = sl_convert_run(config, &result, &why);
    sl_progress_finish(config->progress, done < 0 ? &why : NULL);
    sl_progress_show_stop();
    if (done < 0) {
        *err = why;
        return -1;
    }
    summarise(&result, converting->verb, to);
    return cli->json ? print_json(&result, to, config->format, err) : 0;
}

/* The spec of the first operand; it writes nowhere, so any place is good for its sink, and the
 * layout is one under which a spec may select: the plan of a conversion looks at neither. */
static int read_spec(const struct sl_cli *cli, const struct sl_converting *converting,
                     struct sl_specs *specs, struct sl_err *err)
{
    struct sl_cli with = *cli;
    with.setting_count = cli->setting_count + converting->setting_count + 1;
    sl_autofree struct sl_spec_setting *settings =
        sl_alloc_array(with.setting_count, sizeof(*settings), err);
    if (!settings)
        return -1;
    struct sl_spec_setting *next = settings;
    *next++ = (struct sl_spec_setting){"sink.tmpfs.layout", "safetensors", "convert"};
    if (cli->setting_count)
        memcpy(next, cli->settings, cli->setting_count * sizeof(*settings));
    next += cli->setting_count;
    if (converting->setting_count)
        memcpy(next, converting->settings, converting->setting_count * sizeof(*settings));
    with.settings = settings;
    return sl_operand_is_spec(cli->operands[0])
               ? sl_cli_read_specs(&with, cli->operands[0], specs, err)
               : sl_cli_uri_specs(&with, cli->operands[0], "/dev/shm", specs, err);
}

int sl_converting_run(struct sl_cli *cli, struct sl_converting *converting, struct sl_err *err)
{
    struct sl_convert_config *config = &converting->config;
    struct sl_specs specs = {0};
    sl_autofree char *to = destination(cli->operands[1], err);
    sl_autofree char *clean = to ? sl_uri_sanitize(to, err) : NULL;
    if (!clean || choose_format(clean, converting->to_format, &config->format, err) < 0)
        return -1;
    config->to = to;
    int done = read_spec(cli, converting, &specs, err);
    if (done == 0 && specs.count != 1)
        done = sl_fail(err, SL_E_USAGE, "'%s' has %zu models: convert them one by one",
                       cli->operands[0], specs.count);
    if (done == 0) {
        const struct sl_spec *spec = &specs.items[0];
        sl_autofree char *from = sl_uri_sanitize(spec->source.uri, err);
        config->progress = from ? sl_progress_new(spec->metadata.name, from, clean, err) : NULL;
        done = config->progress ? run_spec(cli, converting, spec, clean, err) : -1;
        sl_progress_free(config->progress);
    }
    sl_specs_release(&specs);
    config->progress = NULL;
    config->to = NULL;
    return done;
}
