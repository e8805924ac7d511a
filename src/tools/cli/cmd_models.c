/*
 * sluice models: the public pre-tensorized models as a list to search, and a spec for each. The
 * list is models.def and nothing is asked of the network, so it says what was published, not what
 * is there today.
 *
 * A row of the list is one object. --spec takes the name of a row, of a model (a diffusion model is
 * several objects: its spec has a document for each, so that no listing is needed), or of a family.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "cli.h"
#include "json.h"
#include "mem.h"
#include "operand.h"

#define ENDPOINT "https://accel-object.ord1.coreweave.com"

enum {
    NAME_BYTES = SL_MODELS_NAME_BYTES,
    URI_BYTES = 160,
    LIST_BYTES_MAX = 256 * 1024,
    NEAR_BYTES_MIN = 4
};

static const struct {
    const char *family, *repository, *files, *millions;
} published[] = {
#define SL_MODEL(family, repository, files, millions) {family, repository, files, millions},
#include "models.def"
#undef SL_MODEL
};

/* One object. */
struct row {
    const char *family, *precision;
    char model[NAME_BYTES]; /* lower case, without organisation, with the precision if not fp32 */
    char name[NAME_BYTES];  /* of the spec: the model, and the file if it has several */
    char uri[URI_BYTES];
    uint64_t about_bytes; /* parameters times their size: header and buffers not counted */
};

struct models_options {
    char *spec;
};
static const struct sl_option rows[] = {
    SL_OPTION(models_options, spec, STRING, "",
              "print a spec for this model, part of a model, or family instead of the list",
              .value = "NAME"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"models", sizeof(struct models_options), rows};

/* The number that belongs to this word of files. */
static uint64_t millions_of(size_t number, const char *file)
{
    const char *at = published[number].millions;
    for (const char *before = published[number].files; before < file; before++)
        if (*before == ' ')
            at = strchr(at, ' ') + 1;
    return strtoull(at, NULL, 10);
}

static void make_row(size_t number, bool half, const char *file, size_t file_bytes, struct row *row)
{
    const char *repository = published[number].repository, *files = published[number].files;
    row->family = published[number].family;
    row->precision = half ? "fp16" : "fp32";
    row->about_bytes = millions_of(number, file) * 1000000 * (half ? 2 : 4);
    snprintf(row->model, sizeof(row->model), "%s%s", strchr(repository, '/') + 1,
             half ? "-fp16" : "");
    snprintf(row->uri, sizeof(row->uri), "s3://tensorized/%s/%s%.*s.tensors", repository,
             half ? "fp16/" : "", (int)file_bytes, file);
    for (char *c = row->model; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (strchr(files, ' '))
        snprintf(row->name, sizeof(row->name), "%.40s-%.*s", row->model, (int)file_bytes, file);
    else
        memcpy(row->name, row->model, sizeof(row->name));
    for (char *c = row->name; *c; c++)
        *c = *c == '_' ? '-' : *c;
}

/* Every object in order, until each() returns something else than 0. */
static int each_row(int (*each)(const struct row *row, void *arg, struct sl_err *err), void *arg,
                    struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(published); i++) {
        for (int half = 0; half < 2; half++) {
            const char *file = published[i].files;
            while (*file) {
                struct row row;
                size_t bytes = strcspn(file, " ");
                make_row(i, half, file, bytes, &row);
                int result = each(&row, arg, err);
                if (result)
                    return result;
                file += bytes + (file[bytes] == ' ');
            }
        }
    }
    return 0;
}

/* ---- the list -------------------------------------------------------------------------------- */

struct listing {
    struct sl_cli *cli;
    struct sl_buf text;
    struct sl_json json;
    size_t count;
};

/* Letters and digits alone: gptj is gpt-j. */
static void strip(const char *name, char out[NAME_BYTES])
{
    size_t used = 0;
    for (; *name && used + 1 < NAME_BYTES; name++)
        if (isalnum((unsigned char)*name))
            out[used++] = (char)tolower((unsigned char)*name);
    out[used] = '\0';
}

static bool is_name_like(const struct row *row, const char *word)
{
    char name[NAME_BYTES], wanted[NAME_BYTES];
    strip(row->name, name);
    strip(word, wanted);
    return *wanted && strstr(name, wanted);
}

/* Every word must stand somewhere in the row. */
static bool matches(const struct sl_cli *cli, const struct row *row)
{
    for (int i = 0; i < cli->operand_count; i++) {
        const char *word = cli->operands[i];
        if (!is_name_like(row, word) && !strcasestr(row->name, word) &&
            !strcasestr(row->family, word) && !strcasestr(row->precision, word) &&
            !strcasestr(row->uri, word))
            return false;
    }
    return true;
}

static int list_row(const struct row *row, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    char bytes[32];
    if (!matches(listing->cli, row))
        return 0;
    listing->count++;
    sl_json_object(&listing->json);
    sl_json_key_string(&listing->json, "name", row->name);
    sl_json_key_string(&listing->json, "family", row->family);
    sl_json_key_string(&listing->json, "model", row->model);
    sl_json_key_string(&listing->json, "precision", row->precision);
    sl_json_key_uint(&listing->json, "about_bytes", row->about_bytes);
    sl_json_key_uri(&listing->json, "uri", row->uri);
    sl_json_end(&listing->json);
    return sl_buf_printf(&listing->text, err, "%-50s %-17s %-10s %8s  %s\n", row->name, row->family,
                         row->precision, sl_human_bytes(row->about_bytes, bytes), row->uri);
}

static int print_list(struct sl_cli *cli, struct sl_err *err)
{
    struct listing listing = {.cli = cli, .text = SL_BUF_INIT(LIST_BYTES_MAX)};
    sl_json_init(&listing.json, LIST_BYTES_MAX);
    sl_json_object(&listing.json);
    sl_json_key_string(&listing.json, "endpoint", ENDPOINT);
    sl_json_key(&listing.json, "models");
    sl_json_array(&listing.json);
    int result = each_row(list_row, &listing, err);
    sl_json_end(&listing.json);
    sl_json_end(&listing.json);
    if (result == 0 && cli->json)
        result = sl_cli_print_json(&listing.json, err);
    else if (result == 0 && !listing.count)
        result = sl_fail(err, SL_E_NOT_FOUND,
                         "no public model has all of these words: see "
                         "`sluice models` for all of them");
    else if (result == 0)
        printf("%-50s %-17s %-10s %8s  %s\n%s", "NAME", "FAMILY", "PRECISION", "ABOUT", "URI",
               sl_buf_string(&listing.text));
    sl_buf_release(&listing.text);
    sl_json_release(&listing.json);
    return result;
}

/* ---- specs ----------------------------------------------------------------------------------- */

struct wanted {
    const char *name;
    enum { BY_NAME, BY_MODEL, BY_FAMILY, NOT_AT_ALL } by;
    struct sl_buf text;
    char near[NAME_BYTES]; /* a model with such a name; "" */
};

static bool is_wanted(const struct wanted *wanted, const struct row *row)
{
    const char *value = wanted->by == BY_NAME    ? row->name
                        : wanted->by == BY_MODEL ? row->model
                                                 : row->family;
    return strcasecmp(value, wanted->name) == 0;
}

static int find_row(const struct row *row, void *arg, struct sl_err *err)
{
    (void)err;
    return is_wanted(arg, row);
}

static void find_model(struct wanted *wanted)
{
    while (wanted->by < NOT_AT_ALL && each_row(find_row, wanted, NULL) == 0)
        wanted->by++;
}

static int find_near(const struct row *row, void *arg, struct sl_err *err)
{
    struct wanted *wanted = arg;
    const char *model = row->model;
    (void)err;
    if (!is_name_like(row, wanted->name) && !sl_nearest(wanted->name, &model, 1))
        return 0;
    snprintf(wanted->near, sizeof(wanted->near), "%s", row->model);
    return 1;
}

/* Stricter than among words for this command: what is no path can be many things. */
static int find_meant(const struct row *row, void *arg, struct sl_err *err)
{
    struct wanted *wanted = arg;
    const char *model = row->model;
    char name[NAME_BYTES], typed[NAME_BYTES];
    (void)err;
    strip(row->name, name);
    strip(wanted->name, typed);
    bool begins = strlen(typed) >= NEAR_BYTES_MIN && strncmp(name, typed, strlen(typed)) == 0;
    if (!begins && !sl_nearest(wanted->name, &model, 1))
        return 0;
    snprintf(wanted->near, sizeof(wanted->near), "%s", row->model);
    return 1;
}

bool sl_models_near(const char *name, char near[SL_MODELS_NAME_BYTES])
{
    struct wanted wanted = {.name = name};
    find_model(&wanted);
    if (wanted.by == NOT_AT_ALL && each_row(find_meant, &wanted, NULL) != 1)
        return false;
    snprintf(near, SL_MODELS_NAME_BYTES, "%s", wanted.by == NOT_AT_ALL ? wanted.near : name);
    return true;
}

static int write_spec(const struct row *row, void *arg, struct sl_err *err)
{
    struct wanted *wanted = arg;
    if (!is_wanted(wanted, row))
        return 0;
    return sl_buf_printf(&wanted->text, err,
                         "%sapiVersion: sluice/v1alpha1\n"
                         "kind: Model\n"
                         "metadata:\n"
                         "  name: %s\n"
                         "source:\n"
                         "  uri: %s\n"
                         "  s3: {endpoint: \"" ENDPOINT "\", anonymous: true}\n"
                         "sink:\n"
                         "  tmpfs: {path: /models/%s}\n",
                         wanted->text.used ? "---\n" : "", row->name, row->uri, row->name);
}

static int print_spec(const char *name, struct sl_err *err)
{
    struct wanted wanted = {.name = name, .text = SL_BUF_INIT(LIST_BYTES_MAX)};
    find_model(&wanted);
    if (wanted.by == NOT_AT_ALL && each_row(find_near, &wanted, NULL) == 1)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no public model or family is called '%s', did you mean '%s'?", name,
                       wanted.near);
    if (wanted.by == NOT_AT_ALL)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no public model or family is called '%s': `sluice models` lists them",
                       name);
    int result = each_row(write_spec, &wanted, err);
    if (result == 0)
        fputs(sl_buf_string(&wanted.text), stdout);
    sl_buf_release(&wanted.text);
    return result;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct models_options *options = cli->options;
    if (!options->spec)
        return print_list(cli, err);
    if (cli->operand_count || cli->json)
        return sl_fail(err, SL_E_USAGE, "--spec prints one spec: leave out words and --json");
    return print_spec(options->spec, err);
}

const struct sl_command sl_cmd_models = {
    .name = "models",
    .usage = "sluice models [WORD …]",
    .summary = "list public models that are .tensors files already, and print specs for them",
    .description =
        "The models that CoreWeave published in its bucket `tensorized`: 27 language models and 3 "
        "diffusion models, each in fp32 and fp16. Words narrow the list; each must stand in a row, "
        "in capitals or not, with or without dashes. Sizes are those of the parameters. The list "
        "is part of the program: whether the endpoint still serves "
        "them is not known before a load.",
    .examples = "sluice models pythia fp16                      # what there is\n"
                "sluice models --spec gpt-j-6b-fp16 > gpt.yaml  # for `sluice load`",
    .options = &table,
    .operand_min = 0,
    .operand_max = -1,
    .run = run,
};
