/*
 * sluice convert: any model to .tensors or safetensors. Its flags for tensors are keys of the spec
 * under shorter names: each is put into words of the spec, which judges it.
 */
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "converting.h"
#include "json.h"
#include "operand.h"

enum {
    TEXT_BYTES_MAX = 1024 * 1024,
    THREADS_MAX = 64,
    ALIGN_MAX = 1024 * 1024,
    RANKS_MAX = 1024,
};

struct convert_options {
    int to_format;
    struct sl_list include, exclude, rename, cast, shard_rule;
    char *shard;
    const char *ranks;
    char *rank_rules;
    uint64_t shard_bytes;
    bool encrypt;
    char *seal_key_file, *seal_passphrase_file;
    int kdf;
    uint64_t opslimit, memlimit;
    char *salt;
    uint64_t align, threads;
    bool replace, data_files;
};
static const struct sl_option rows[] = {
    SL_OPTION(convert_options, to_format, CHOICE, "auto",
              "format of the destination; auto is what its name says, and safetensors for a folder",
              .choices = "auto|tensorizer|safetensors"),
    SL_OPTION(convert_options, include, LIST, "",
              "tensors to convert, as a shell pattern on their names", .value = "PATTERN"),
    SL_OPTION(convert_options, exclude, LIST, "", "tensors to leave out, as a shell pattern",
              .value = "PATTERN"),
    SL_OPTION(convert_options, rename, LIST, "",
              "new names: the first part that the POSIX extended regular expression matches is "
              "replaced, \\1 to \\9 are its groups; the first match counts",
              .value = "REGEX=TO"),
    SL_OPTION(convert_options, cast, LIST, "", "change floating types, such as F32:BF16",
              .value = "FROM:TO"),
    SL_OPTION(convert_options, shard, STRING, "",
              "write one part of each tensor that a --shard-rule matches, such as 0/8",
              .value = "RANK/OF"),
    SL_OPTION(convert_options, shard_rule, LIST, "",
              "which tensors are cut, and along which dimension, such as '*.q_proj.weight=0'; "
              "the first match counts",
              .value = "PATTERN=DIM"),
    SL_OPTION(convert_options, ranks, STRING, "",
              "write files for so many ranks, model-rank-R-part-P.safetensors, each with its part "
              "of every tensor; 1 to 1024",
              .value = "NUMBER"),
    SL_OPTION(convert_options, rank_rules, STRING, "",
              "with --ranks: a YAML list of rules as under tensors.shard.rules, such as "
              "[{match: '*.q_proj.weight', dim: 0}, {match: '*norm.weight', whole: true}]; every "
              "tensor needs one. Without it those of models that are named as Llama's",
              .value = "FILE"),
    SL_OPTION(convert_options, shard_bytes, BYTES, "0",
              "write several safetensors files of at most this size, with an index; 0 is one file"),
    SL_OPTION(convert_options, encrypt, BOOL, "false",
              "encrypt the .tensors file, with --seal-key-file or --seal-passphrase-file"),
    SL_OPTION(convert_options, seal_key_file, STRING, "",
              "32 bytes to encrypt with; `sluice keygen` makes them", .value = "FILE"),
    SL_OPTION(convert_options, seal_passphrase_file, STRING, "",
              "a passphrase to encrypt with; - asks at the terminal", .value = "FILE"),
    SL_KDF_ROWS(convert_options),
    SL_OPTION(convert_options, align, BYTES, "0",
              ".tensors: let data begin at multiples of this, a power of two; 0 is as close as "
              "they come",
              .maximum = ALIGN_MAX),
    SL_OPTION(convert_options, replace, BOOL, "false", "replace what is at the destination"),
    SL_OPTION(convert_options, data_files, BOOL, "true",
              "whether config.json, tokenizers and the like go along from folder to folder"),
    SL_OPTION(convert_options, threads, UINT, "0",
              "threads that read, cast, hash and encrypt; 0 is one a processor, at most 8",
              .maximum = THREADS_MAX),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"convert", sizeof(struct convert_options), rows};

/* ---- flags as keys of the spec --------------------------------------------------------------- */

enum { SETTINGS_MAX = 12 };
struct words {
    struct sl_spec_setting settings[SETTINGS_MAX];
    struct sl_json texts[SETTINGS_MAX]; /* what the settings' values point to */
    size_t count;
    struct sl_buf rank_rules;
    uint64_t ranks; /* 0: files are not those of ranks */
};

static void words_release(struct words *words)
{
    sl_buf_release(&words->rank_rules);
    for (size_t i = 0; i < words->count; i++)
        sl_json_release(&words->texts[i]);
}

static struct sl_json *begin_setting(struct words *words, const char *path, const char *origin)
{
    words->settings[words->count] = (struct sl_spec_setting){path, NULL, origin};
    struct sl_json *json = &words->texts[words->count++];
    sl_json_init(json, TEXT_BYTES_MAX);
    return json;
}

static int end_setting(struct words *words, struct sl_err *err)
{
    struct sl_spec_setting *setting = &words->settings[words->count - 1];
    setting->value = sl_json_text(&words->texts[words->count - 1], err);
    return setting->value ? 0 : -1;
}

static int add_patterns(struct words *words, const char *path, const char *origin,
                        const struct sl_list *list, struct sl_err *err)
{
    if (list->count == 0)
        return 0;
    struct sl_json *json = begin_setting(words, path, origin);
    sl_json_array(json);
    for (size_t i = 0; i < list->count; i++)
        sl_json_string(json, list->items[i]);
    sl_json_end(json);
    return end_setting(words, err);
}

static int add_casts(struct words *words, const struct sl_list *list, struct sl_err *err)
{
    if (list->count == 0)
        return 0;
    struct sl_json *json = begin_setting(words, "tensors.cast", "--cast");
    sl_json_object(json);
    for (size_t i = 0; i < list->count; i++) {
        const char *colon = strchr(list->items[i], ':');
        if (!colon)
            return sl_fail(err, SL_E_USAGE, "--cast takes FROM:TO, such as F32:BF16, not '%.100s'",
                           list->items[i]);
        sl_json_key_n(json, list->items[i], (size_t)(colon - list->items[i]));
        sl_json_string(json, colon + 1);
    }
    sl_json_end(json);
    return end_setting(words, err);
}

static int add_renames(struct words *words, const struct sl_list *list, struct sl_err *err)
{
    if (list->count == 0)
        return 0;
    struct sl_json *json = begin_setting(words, "tensors.rename", "--rename");
    sl_json_array(json);
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strrchr(list->items[i], '=');
        if (!equals || equals == list->items[i])
            return sl_fail(err, SL_E_USAGE,
                           "--rename takes REGEX=TO, such as '^module\\.=', not '%.100s'",
                           list->items[i]);
        sl_json_object(json);
        sl_json_key(json, "match");
        sl_json_string_n(json, list->items[i], (size_t)(equals - list->items[i]));
        sl_json_key_string(json, "to", equals + 1);
        sl_json_end(json);
    }
    sl_json_end(json);
    return end_setting(words, err);
}

static int parse_number(const char *text, uint64_t *number)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9 || text[digits])
        return -1;
    *number = strtoull(text, NULL, 10);
    return 0;
}

static int add_shard(struct words *words, const char *shard, struct sl_err *err)
{
    if (!shard)
        return 0;
    uint64_t rank, of;
    const char *slash = strchr(shard, '/');
    sl_autofree char *left = slash ? sl_strndup(shard, (size_t)(slash - shard), err) : NULL;
    if (slash && !left)
        return -1;
    if (!slash || parse_number(left, &rank) < 0 || parse_number(slash + 1, &of) < 0)
        return sl_fail(err, SL_E_USAGE, "--shard takes RANK/OF, such as 0/8, not '%.100s'", shard);
    sl_json_uint(begin_setting(words, "tensors.shard.rank", "--shard"), rank);
    if (end_setting(words, err) < 0)
        return -1;
    sl_json_uint(begin_setting(words, "tensors.shard.of", "--shard"), of);
    return end_setting(words, err);
}

static int add_shard_rules(struct words *words, const struct sl_list *list, struct sl_err *err)
{
    if (list->count == 0)
        return 0;
    struct sl_json *json = begin_setting(words, "tensors.shard.rules", "--shard-rule");
    sl_json_array(json);
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strrchr(list->items[i], '=');
        uint64_t dim;
        if (!equals || equals == list->items[i] || parse_number(equals + 1, &dim) < 0)
            return sl_fail(err, SL_E_USAGE,
                           "--shard-rule takes PATTERN=DIM, such as '*.q_proj.weight=0', not "
                           "'%.100s'",
                           list->items[i]);
        sl_json_object(json);
        sl_json_key(json, "match");
        sl_json_string_n(json, list->items[i], (size_t)(equals - list->items[i]));
        sl_json_key_uint(json, "dim", dim);
        sl_json_end(json);
    }
    sl_json_end(json);
    return end_setting(words, err);
}

/* ---- ranks -------------------------------------------------------------------------------- */

/* Layers as Llama, Mistral, Qwen, Mixtral and their like call them: what makes an engine's columns
 * is cut into rows, what adds them up again into columns, and what each rank needs stays whole. */
static const struct {
    const char *match, *how;
} usual_rules[] = {
    {"*embed_tokens.weight", "dim: 0"},
    {"*lm_head.weight", "dim: 0"},
    {"*.[qkv]_proj.weight", "dim: 0"},
    {"*.[qkv]_proj.bias", "dim: 0"},
    {"*.o_proj.weight", "dim: 1"},
    {"*.o_proj.bias", "whole: true"},
    {"*.gate_proj.weight", "dim: 0"},
    {"*.up_proj.weight", "dim: 0"},
    {"*.down_proj.weight", "dim: 1"},
    {"*.experts.*.w[13].weight", "dim: 0"},
    {"*.experts.*.w2.weight", "dim: 1"},
    {"*.block_sparse_moe.gate.weight", "whole: true"},
    {"*.mlp.gate.weight", "whole: true"},
    {"*.shared_expert_gate.weight", "whole: true"},
    {"*.rotary_emb.inv_freq", "whole: true"},
    {"*norm.weight", "whole: true"},
};

static int write_usual_rules(struct sl_buf *text, struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(usual_rules); i++)
        if (sl_buf_printf(text, err, "- {match: '%s', %s}\n", usual_rules[i].match,
                          usual_rules[i].how) < 0)
            return -1;
    return 0;
}

static void add_setting(struct words *words, const char *path, const char *value,
                        const char *origin)
{
    words->settings[words->count++] = (struct sl_spec_setting){path, value, origin};
}

static int check_ranks(struct words *words, const struct convert_options *options,
                       struct sl_err *err)
{
    if (options->ranks && (parse_number(options->ranks, &words->ranks) < 0 || !words->ranks ||
                           words->ranks > RANKS_MAX))
        return sl_fail(err, SL_E_USAGE, "--ranks takes a number from 1 to %d, not '%.80s'",
                       RANKS_MAX, options->ranks);
    if (words->ranks && options->encrypt)
        return sl_fail(
            err, SL_E_USAGE,
            "--ranks writes safetensors, which cannot be encrypted: leave --encrypt out, "
            "or encrypt one .tensors file, of which each rank loads its part (tensors.shard)");
    if (options->rank_rules && !options->ranks)
        return sl_fail(err, SL_E_USAGE, "--rank-rules needs --ranks N: how many ranks are there?");
    if (options->ranks && (options->shard || options->shard_rule.count))
        return sl_fail(err, SL_E_USAGE,
                       "--ranks writes all parts, --shard one of them: give one of the two");
    return 0;
}

static int add_ranks(struct words *words, const struct convert_options *options, struct sl_err *err)
{
    if (check_ranks(words, options, err) < 0)
        return -1;
    if (!options->ranks)
        return 0;
    words->rank_rules = (struct sl_buf)SL_BUF_INIT(TEXT_BYTES_MAX);
    if (options->rank_rules ? sl_buf_read_file(&words->rank_rules, options->rank_rules, err) < 0
                            : write_usual_rules(&words->rank_rules, err) < 0)
        return -1;
    sl_json_uint(begin_setting(words, "tensors.shard.of", "--ranks"), words->ranks);
    if (end_setting(words, err) < 0)
        return -1;
    add_setting(words, "tensors.shard.rank", "0", "--ranks");
    add_setting(words, "tensors.shard.others", "refuse", "--ranks");
    add_setting(words, "tensors.shard.rules", sl_buf_string(&words->rank_rules), "--rank-rules");
    return 0;
}

static int say(struct words *words, const struct convert_options *options, struct sl_err *err)
{
    if (add_patterns(words, "tensors.include", "--include", &options->include, err) < 0 ||
        add_patterns(words, "tensors.exclude", "--exclude", &options->exclude, err) < 0 ||
        add_renames(words, &options->rename, err) < 0 ||
        add_casts(words, &options->cast, err) < 0 || add_shard(words, options->shard, err) < 0 ||
        add_ranks(words, options, err) < 0)
        return -1;
    return add_shard_rules(words, &options->shard_rule, err);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Rules alone would cut nothing, unless a spec or --set says into how many parts. */
static int check_shard(const struct sl_cli *cli, const struct convert_options *options,
                       struct sl_err *err)
{
    bool parts = options->shard || sl_operand_is_spec(cli->operands[0]);
    for (size_t i = 0; i < cli->setting_count; i++)
        parts = parts || strncmp(cli->settings[i].path, "tensors.shard", 13) == 0;
    if (options->shard_rule.count && !parts)
        return sl_fail(err, SL_E_USAGE,
                       "--shard-rule needs --shard RANK/OF, such as 0/8: which part of how many?");
    return 0;
}

static int check_seal(const struct convert_options *options, struct sl_err *err)
{
    bool key = options->seal_key_file || options->seal_passphrase_file;
    if (options->encrypt && !key)
        return sl_fail(err, SL_E_USAGE,
                       "--encrypt needs --seal-key-file FILE (see `sluice keygen`) or "
                       "--seal-passphrase-file FILE");
    if (key && !options->encrypt)
        return sl_fail(err, SL_E_USAGE,
                       "--seal-key-file and --seal-passphrase-file go with --encrypt; the key of "
                       "the source is --key-file or --passphrase-file");
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct convert_options *options = cli->options;
    const struct sl_kdf_options kdf = {options->kdf, options->opslimit, options->memlimit,
                                       options->salt};
    __attribute__((cleanup(words_release))) struct words words = {.count = 0};
    SL_AUTO(sl_keys) seal = NULL;
    struct sl_converting converting = {
        .config = {.shard_bytes = options->shard_bytes,
                   .align = options->align,
                   .data_files = options->data_files,
                   .replace = options->replace,
                   .threads = (unsigned)options->threads},
        .to_format = options->to_format == 0 ? -1 : options->to_format - 1,
        .verb = "converted",
    };
    if (check_seal(options, err) < 0 || say(&words, options, err) < 0 ||
        check_shard(cli, options, err) < 0)
        return -1;
    if (options->encrypt &&
        sl_converting_seal(options->seal_key_file, options->seal_passphrase_file, &kdf, &seal,
                           &converting.config.kdf, err) < 0)
        return -1;
    converting.config.seal = seal;
    converting.config.ranks = (unsigned)words.ranks;
    converting.settings = words.settings;
    converting.setting_count = words.count;
    return sl_converting_run(cli, &converting, err);
}

const struct sl_command sl_cmd_convert = {
    .name = "convert",
    .usage = "sluice convert SRC DST",
    .summary = "write the model again, as .tensors or safetensors",
    .description =
        "SRC is a URI, a folder, an index, or a spec (a file that ends in .yaml): .tensors, "
        "safetensors, PyTorch checkpoints and unquantised GGUF, plain or encrypted. DST is a file, "
        "an object (s3://, https:// by PUT), a Redis prefix, or a folder that ends in /. Its name "
        "says the format: .tensors, .safetensors, and safetensors for a folder.\n\n"
        "Tensors stream through bounded memory, whatever their size, and hashes that came with "
        "them are checked on the way. Nothing is visible at the destination until everything is "
        "complete; whatever ends before leaves nothing behind.\n\n"
        "From folder to folder config.json, tokenizers and the like go along, and models in "
        "several folders (unet/, vae/) are converted one by one. .tensors files that are read in "
        "order only (https:// by PUT) are read twice, since hashes stand before the data.",
    .examples = "sluice convert pytorch_model.bin model.safetensors\n"
                "sluice convert ./hf-model/ s3://bucket/model.tensors --cast F32:F16\n"
                "sluice convert model.tensors out/ --shard-bytes 5GiB          # with an index\n"
                "sluice convert s3://bucket/llama/ s3://bucket/llama-tp8/ --ranks 8\n"
                "sluice convert model.safetensors m.tensors --encrypt --seal-key-file key",
    .options = &table,
    .spec_flags = true,
    .idle_flags = sl_converting_idle_flags,
    .operand_min = 2,
    .operand_max = 2,
    .run = run,
};
