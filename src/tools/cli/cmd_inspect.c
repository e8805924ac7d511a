/*
 * sluice inspect: what tensors an object holds. One object gives one report; below a prefix it is
 * the index of a sharded model if there is exactly one, else the tensor file if there is exactly
 * one, else all of both kinds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "file_edit.h"
#include "file_store.h"
#include "format.h"
#include "inspect_report.h"
#include "inspect_signature.h"
#include "plan.h"
#include "stores.h"

enum { JSON_BYTES_MAX = 1 << 30, OBJECTS_MAX = 10000 };

struct inspect_options {
    bool digest, complete_edit;
    struct sl_list slice;
    int hashes; /* 0 auto, 1 off */
};
static const struct sl_option rows[] = {
    SL_OPTION(
        inspect_options, digest, BOOL, "false",
        "read the tensors and show the SHA-256 of each one's bytes, row-major and little-endian"),
    SL_OPTION(
        inspect_options, slice, LIST, "",
        "show the SHA-256 of a part, 'NAME[0:4,:,2:]', fetching only what it needs; repeatable",
        .value = "SLICE"),
    SL_OPTION(inspect_options, hashes, CHOICE, "auto",
              "with --digest: check the hashes that came with the tensors first, or not",
              .choices = "auto|off"),
    SL_OPTION(inspect_options, complete_edit, BOOL, "false",
              "first complete a change of this local file in which an editor was killed"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"inspect", sizeof(struct inspect_options), rows};

/* Where objects are, and what opens them. */
struct place {
    struct sl_store *store;
    struct sl_keys *keys; /* NULL: none were given */
};

/* ---- one object ------------------------------------------------------------------------------ */

/* Keeps the digests as they come. */
struct digesting {
    struct sl_inspect_report *report;
    struct sl_cancel *cancel;
};

static int keep_digest(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                       struct sl_err *err)
{
    struct digesting *digesting = arg;
    size_t number = (size_t)(tensor - digesting->report->index->tensors);
    if (digest) /* those of meta tensors are never shown */
        memcpy(digesting->report->digests[number], digest, 32);
    return sl_cancel_check(digesting->cancel, err);
}

/* With keys they must fit what was asked for; without, an encrypted file is listed all the same. */
static int unlock(struct sl_index *index, struct sl_keys *keys, bool reads, struct sl_err *err)
{
    if (!keys && !reads)
        return 0;
    return sl_index_unlock(index, keys, err);
}

static int digest_all(struct sl_cli *cli, struct sl_inspect_report *report, struct sl_err *err)
{
    const struct inspect_options *options = cli->options;
    struct digesting digesting = {report, cli->cancel};
    report->digests = sl_alloc_array(report->index->tensor_count, sizeof(*report->digests), err);
    if (!report->digests)
        return -1;
    return sl_index_digest(report->index, options->hashes == 0, keep_digest, &digesting, err);
}

static int digest_slices(struct sl_cli *cli, struct sl_inspect_report *report, struct sl_err *err)
{
    const struct inspect_options *options = cli->options;
    report->slices = sl_alloc_array(options->slice.count, sizeof(*report->slices), err);
    if (!report->slices)
        return -1;
    for (size_t i = 0; i < options->slice.count; i++) {
        struct sl_inspect_slice *slice = &report->slices[i];
        slice->text = options->slice.items[i];
        slice->tensor =
            sl_index_find(report->index, slice->text, sl_slice_name_bytes(slice->text), err);
        if (!slice->tensor || sl_slice_parse(slice->text, slice->tensor, &slice->slice, err) < 0 ||
            sl_slice_digest(report->index, slice->tensor, &slice->slice, slice->sha256, err) < 0 ||
            sl_cancel_check(cli->cancel, err) < 0)
            return -1;
        report->slice_count++;
    }
    return 0;
}

static int read_report(struct sl_cli *cli, const struct place *place, const char *name,
                       struct sl_inspect_report *report, struct sl_err *err)
{
    const struct inspect_options *options = cli->options;
    struct sl_source *source;
    bool reads = options->digest || options->slice.count > 0;
    if (sl_source_open(place->store, name, SL_INDEX_HEAD_BYTES, &source, err) < 0)
        return -1;
    int done = reads || place->keys ? sl_format_index_strict(source, name, &report->index, err)
                                    : sl_format_outline(source, name, &report->index, err);
    if (done < 0)
        return -1;
    if (unlock(report->index, place->keys, reads, err) < 0)
        return -1;
    if (options->digest && digest_all(cli, report, err) < 0)
        return sl_wrap(err, "cannot digest '%s'", sl_source_uri(report->index->sources[0]));
    if (options->slice.count > 0 && digest_slices(cli, report, err) < 0)
        return -1;
    return 0;
}

/* Read, then show: nothing is printed of an object that is refused. */
static int inspect_object(struct sl_cli *cli, const struct place *place, const char *name,
                          struct sl_json *json, struct sl_err *err)
{
    struct sl_inspect_report report = {0};
    int result = read_report(cli, place, name, &report, err);
    if (result == 0 && cli->json)
        sl_inspect_report_json(json, &report);
    else if (result == 0)
        sl_inspect_report_print(&report);
    sl_inspect_report_release(&report);
    return result;
}

/* The signature of a model has no tensors. */
static int inspect_signature(struct sl_cli *cli, const struct place *place, const char *name,
                             struct sl_json *json, struct sl_err *err)
{
    const struct inspect_options *options = cli->options;
    if (options->digest || options->slice.count)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' is a signature: it has no tensors for --digest and --slice", name);
    return sl_inspect_signature(place->store, name, cli->json ? json : NULL, err);
}

/* ---- a prefix -------------------------------------------------------------------------------- */

/* The names below a prefix that may hold tensors; [1]: second choice. */
struct found {
    struct sl_list indexes[2], files[2];
};

static void found_release(struct found *found)
{
    struct sl_list *lists[] = {&found->indexes[0], &found->indexes[1], &found->files[0],
                               &found->files[1]};
    for (unsigned k = 0; k < SL_COUNT(lists); k++) {
        for (size_t i = 0; i < lists[k]->count; i++)
            free(lists[k]->items[i]);
        free(lists[k]->items);
    }
}

static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct found *found = arg;
    const char *name = entry->name;
    enum sl_format_says says = sl_format_name_says(name);
    if (says < SL_SAYS_LIKELY)
        return 0;
    bool second = sl_format_of_name(name, NULL)->fallback;
    struct sl_list *list = says == SL_SAYS_INDEX ? &found->indexes[second] : &found->files[second];
    if (list->count == OBJECTS_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d tensor files below the prefix: name one",
                       OBJECTS_MAX);
    return sl_list_add(list, name, strlen(name), err);
}

/* Files that nothing but their index explains; where one is among the names, it does. */
static bool is_explained(const char *name, bool indexed)
{
    const struct sl_format *format = sl_format_of_name(name, NULL);
    return indexed && format->index_name && !sl_format_of_index(name);
}

static int inspect_list(struct sl_cli *cli, const struct place *place, const struct sl_list *names,
                        bool indexed, struct sl_json *json, struct sl_err *err)
{
    for (size_t i = 0; i < names->count; i++) {
        if (is_explained(names->items[i], indexed))
            continue;
        if (!cli->json && i)
            printf("\n");
        if (inspect_object(cli, place, names->items[i], json, err) < 0)
            return -1;
    }
    return 0;
}

static int inspect_found(struct sl_cli *cli, const struct place *place, const struct found *found,
                         struct sl_json *json, struct sl_err *err)
{
    bool second = found->indexes[0].count + found->files[0].count == 0;
    const struct sl_list *indexes = &found->indexes[second], *files = &found->files[second];
    if (indexes->count + files->count == 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no object below '%s' is called like a model that can be read: 'sluice docs "
                       "formats' lists them",
                       sl_store_uri(place->store));
    if (indexes->count == 1 || (indexes->count == 0 && files->count == 1))
        return inspect_list(cli, place, indexes->count ? indexes : files, false, json, err);
    sl_json_array(json);
    int result = inspect_list(cli, place, indexes, false, json, err);
    if (result == 0)
        result = inspect_list(cli, place, files, indexes->count > 0, json, err);
    sl_json_end(json);
    return result;
}

static int inspect_prefix(struct sl_cli *cli, const struct place *place, struct sl_json *json,
                          struct sl_err *err)
{
    struct found found = {0};
    int result = sl_store_list(place->store, take_entry, &found, err);
    if (result == 0)
        result = inspect_found(cli, place, &found, json, err);
    found_release(&found);
    return result;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The only way in which a command writes to a model that is there. */
static int complete_edit(const char *uri, struct sl_err *err)
{
    SL_AUTO(sl_file_edit) edit = NULL;
    if (sl_stores_find(uri) != &sl_file_store)
        return sl_fail(err, SL_E_USAGE, "'%s' is not a local file: only those are edited", uri);
    sl_autofree char *path = sl_file_path(uri, err);
    return path ? sl_file_edit_open(path, &edit, err) : -1;
}

static int inspect_uri(struct sl_cli *cli, const struct sl_spec *spec, struct sl_json *json,
                       struct sl_err *err)
{
    struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_keys) keys = NULL;
    sl_autofree char *key = NULL;
    const struct inspect_options *options = cli->options;
    if (options->complete_edit && complete_edit(spec->source.uri, err) < 0)
        return -1;
    sl_spec_source_config(spec, cli->cancel, NULL, &config);
    if (sl_keys_open(spec->decrypt.key_file, spec->decrypt.passphrase_file, &keys, err) < 0 ||
        sl_store_open(spec->source.uri, &config, &store, &key, err) < 0)
        return -1;
    if (keys)
        sl_keys_heed(keys, cli->cancel);
    struct place place = {store, keys};
    int result = !key[0]                        ? inspect_prefix(cli, &place, json, err)
                 : sl_inspect_is_signature(key) ? inspect_signature(cli, &place, key, json, err)
                                                : inspect_object(cli, &place, key, json, err);
    if (result < 0 || !cli->json)
        return result;
    const char *text = sl_json_text(json, err);
    if (text)
        printf("%s\n", text);
    return text ? 0 : -1;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_json json;
    sl_json_init(&json, JSON_BYTES_MAX);
    cli->looks = true;
    /* The destination is never touched: a spec wants one. */
    int result = sl_cli_uri_specs(cli, cli->operands[0], "/dev/shm", &specs, err);
    if (result == 0)
        result = inspect_uri(cli, &specs.items[0], &json, err);
    sl_json_release(&json);
    sl_specs_release(&specs);
    return result;
}

const struct sl_command sl_cmd_inspect = {
    .name = "inspect",
    .usage = "sluice inspect URI",
    .summary = "show the tensors of a model file, or what a signature says",
    .description =
        "Reads headers only and shows name, dtype, shape and size of every tensor, for "
        ".tensors, safetensors, PyTorch checkpoints and GGUF, in one file or several (name the "
        "index, or the folder). The format is found from the first bytes, and nothing in a file is "
        "executed. --digest reads the tensors "
        "too and shows the SHA-256 of each; hashes that came with them are checked. "
        "Of a large .tensors file, whose headers lie among its data, only the metadata are read "
        "(JSON: outline), unless --digest, a slice or a key is given. "
        "Encrypted files are listed without a key; "
        "--key-file or --passphrase-file open them. A file that breaks the rules of its format is "
        "refused with exit "
        "code 10 and the code of the rule, "
        "for example E_DTYPE or st.offset. A file in which an editor was killed is refused until "
        "the "
        "next editor, or --complete-edit, has completed the change. Of a signature (model.sig) it "
        "shows who signed what, as it stands there: nothing is verified. A store that cannot be "
        "reached "
        "is given up after 2 s "
        "(--unreachable-seconds).",
    .examples = "sluice inspect s3://bucket/gpt-j-6b.tensors\n"
                "sluice inspect --json --digest model.safetensors   # for scripts\n"
                "sluice inspect hf://org/model/model.sig   # who signed it\n"
                "sluice inspect --slice 'wte.weight[0:4,:]' model/  # hash of four rows",
    .options = &table,
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
