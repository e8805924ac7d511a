/*
 * What a source holds. One object is one model. A folder is listed: objects that are called like
 * models are put together by the folder they lie in, so that a pipeline of several models (unet/,
 * vae/, text_encoder/) is converted one by one, each in its place; everything else (config.json,
 * tokenizers) goes along as it is. Where no name says model, the plan looks into large objects.
 */
#include <fnmatch.h>
#include <string.h>

#include "format.h"
#include "job.h"
#include "own_names.h"
#include "sidecar.h"
#include "sink.h"
#include "stores.h"
#include "url.h"

enum { DATA_FILES_MAX = 500, COMPONENTS_MAX = 1000 };

static bool matches(const struct sl_list *patterns, const char *name, bool otherwise)
{
    for (size_t i = 0; i < patterns->count; i++)
        if (fnmatch(patterns->items[i], name, 0) == 0)
            return true;
    return patterns->count == 0 && otherwise;
}

static size_t folder_bytes(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? (size_t)(slash - name) + 1 : 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_model_name(const char *name)
{
    return sl_format_name_says(name) >= SL_SAYS_LIKELY;
}

/* A signature or a sidecar is of the bytes of a model that is written anew: it would be of nothing.
 */
static int is_signature(const char *name, bool *signature, struct sl_err *err)
{
    static const char *const suffixes[] = {".minisig", SL_SIDECAR_SUFFIX};
    *signature = false;
    for (size_t i = 0; i < SL_COUNT(suffixes); i++) {
        size_t bytes = strlen(name), tail = strlen(suffixes[i]);
        if (bytes <= tail || strcmp(name + bytes - tail, suffixes[i]) != 0)
            continue;
        sl_autofree char *of = sl_strndup(name, bytes - tail, err);
        *signature = of && is_model_name(of);
        return of ? 0 : -1;
    }
    return 0;
}

/* "model-00001-of-00003": without the number. */
static size_t unnumbered_bytes(const char *stem, size_t bytes)
{
    static const char pattern[] = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]";
    const size_t tail = sizeof("-00001-of-00003") - 1;
    char end[32] = "";
    if (bytes <= tail)
        return bytes;
    memcpy(end, stem + bytes - tail, tail);
    return fnmatch(pattern, end, 0) == 0 ? bytes - tail : bytes;
}

/*
 * What the new files are called: engines look for "model", diffusers and adapters for names of
 * their own that end in "_model", variants stand behind a dot (model.fp16). A format's own stem
 * (pytorch_model) is its alone.
 */
static char *stem_of(const char *name, struct sl_err *err)
{
    size_t bytes;
    const char *file = name + folder_bytes(name);
    const struct sl_format *format = sl_format_of_name(file, &bytes);
    const char *own = format ? format->stem : NULL;
    bytes = unnumbered_bytes(file, bytes);
    if (own && bytes >= strlen(own) && strncmp(file, own, strlen(own)) == 0)
        return sl_asprintf(err, "model%.*s", (int)(bytes - strlen(own)), file + strlen(own));
    sl_autofree char *stem = sl_strndup(file, bytes, err);
    if (!stem)
        return NULL;
    bool kept = strncmp(stem, "model.", 6) == 0 || strstr(stem, "_model");
    return kept ? sl_steal(&stem) : sl_strdup("model", err);
}

/* A name as a pattern that matches nothing else. */
static char *exact_pattern(const char *name, struct sl_err *err)
{
    char *pattern = sl_alloc(2 * strlen(name) + 1, err), *to = pattern;
    for (; pattern && *name; name++) {
        if (strchr("*?[]\\", *name))
            *to++ = '\\';
        *to++ = *name;
    }
    return pattern;
}

/* ---- components ------------------------------------------------------------------------------ */

static char *folder_uri(const struct sl_job *job, const char *folder, struct sl_err *err)
{
    const char *uri = job->config->spec->source.uri;
    bool encoded = sl_uri_is_encoded(uri);
    const char *slash = uri[strlen(uri) - 1] == '/' ? "" : "/";
    sl_autofree char *below = encoded ? sl_url_encode(folder, true, err) : sl_strdup(folder, err);
    return below ? sl_asprintf(err, "%s%s%s", uri, slash, below) : NULL;
}

static struct sl_component *add_component(struct sl_job *job, const char *name, size_t folder,
                                          struct sl_err *err)
{
    if (job->component_count == COMPONENTS_MAX) {
        sl_fail(err, SL_E_USAGE, "models in more than %d folders: name one of them",
                COMPONENTS_MAX);
        return NULL;
    }
    if (sl_grow(&job->components, &job->component_capacity, job->component_count + 1,
                sizeof(*job->components), err) < 0)
        return NULL;
    struct sl_component *component = &job->components[job->component_count++];
    *component = (struct sl_component){.spec = *job->config->spec};
    component->folder = sl_strndup(name, folder, err);
    component->stem = component->folder ? stem_of(name, err) : NULL;
    return component->stem ? component : NULL;
}

static struct sl_component *find_component(struct sl_job *job, const char *name, size_t folder)
{
    for (size_t i = 0; i < job->component_count; i++) {
        struct sl_component *component = &job->components[i];
        if (strlen(component->folder) == folder && memcmp(component->folder, name, folder) == 0)
            return component;
    }
    return NULL;
}

/* One more object of the model in its folder. Names that disagree on the stem leave "model". */
static int add_model(struct sl_job *job, const char *name, struct sl_err *err)
{
    size_t folder = folder_bytes(name);
    struct sl_component *component = find_component(job, name, folder);
    if (!component && !(component = add_component(job, name, folder, err)))
        return -1;
    sl_autofree char *stem = stem_of(name, err);
    sl_autofree char *pattern = stem ? exact_pattern(name + folder, err) : NULL;
    if (!pattern)
        return -1;
    if (strcmp(stem, component->stem) != 0) {
        free(component->stem);
        component->stem = sl_strdup("model", err);
        if (!component->stem)
            return -1;
    }
    return sl_list_add(&component->include, pattern, strlen(pattern), err);
}

/* ---- the listing ----------------------------------------------------------------------------- */

int sl_job_add_data_file(struct sl_job *job, const char *name, struct sl_err *err)
{
    if (job->output_count == DATA_FILES_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "more than %d files beside the models: choose with source.include, or use "
                       "--no-data-files",
                       DATA_FILES_MAX);
    struct sl_source *source = NULL;
    if (sl_source_open(job->store, name, 1, &source, err) < 0)
        return -1;
    if (sl_job_add_output(job, "", name, sl_source_bytes(source), err) < 0) {
        sl_source_free(source);
        return -1;
    }
    job->outputs[job->output_count - 1].source = source;
    return 0;
}

struct listing {
    struct sl_job *job;
    struct sl_list data;
    bool pipeline; /* an object says which folders there must be */
};

static void listing_release(struct listing *listing)
{
    for (size_t i = 0; i < listing->data.count; i++)
        free(listing->data.items[i]);
    free(listing->data.items);
}

static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    const struct sl_spec_source *source = &listing->job->config->spec->source;
    bool signature;
    if (sl_own_name(entry->name, strlen(entry->name)) ||
        !matches(&source->include, entry->name, true) ||
        matches(&source->exclude, entry->name, false))
        return 0;
    if (sl_name_check(entry->name, strlen(entry->name), err) < 0)
        return -1;
    listing->pipeline |= strcmp(entry->name, "model_index.json") == 0;
    if (is_model_name(entry->name))
        return add_model(listing->job, entry->name, err);
    if (is_signature(entry->name, &signature, err) < 0)
        return -1;
    if (signature || !listing->job->config->data_files || listing->data.count > DATA_FILES_MAX)
        return 0;
    return sl_list_add(&listing->data, entry->name, strlen(entry->name), err);
}

/* The spec of each component, whose addresses do not change any more. */
static int point_specs(struct sl_job *job, bool by_names, struct sl_err *err)
{
    for (size_t i = 0; i < job->component_count; i++) {
        struct sl_component *component = &job->components[i];
        component->uri = folder_uri(job, component->folder, err);
        if (!component->uri)
            return -1;
        component->spec.source.uri = component->uri;
        if (!by_names)
            continue;
        component->spec.source.include = component->include;
        component->spec.source.exclude = (struct sl_list){0};
        component->spec.source.listed = &job->config->spec->source;
        component->spec.source.listed_folder = component->folder;
    }
    return 0;
}

/* Components are planned one by one: whether one is missing is seen in the whole alone. */
static int judge_pipeline(struct sl_job *job, struct sl_err *err)
{
    struct sl_spec spec = *job->config->spec; /* its strings are borrowed */
    struct sl_plan *plan = NULL;
    spec.verify = (struct sl_spec_verify){.sidecar = SL_SIDECAR_OFF};
    spec.decrypt = (struct sl_spec_decrypt){0};
    int done = sl_plan_make_listed(&spec, true, &job->source_config, &plan, err);
    sl_plan_free(plan);
    return done;
}

static int find_in_folder(struct sl_job *job, struct sl_err *err)
{
    __attribute__((cleanup(listing_release))) struct listing listing = {.job = job};
    if (sl_store_list(job->store, take_entry, &listing, err) < 0)
        return sl_wrap(err, "cannot list '%s'", sl_store_uri(job->store));
    if (listing.pipeline && judge_pipeline(job, err) < 0)
        return -1;
    bool by_names = job->component_count > 0;
    if (!by_names && !add_component(job, "model", 0, err))
        return -1;
    for (size_t i = 0; by_names && i < listing.data.count; i++)
        if (sl_job_add_data_file(job, listing.data.items[i], err) < 0)
            return -1;
    return point_specs(job, by_names, err);
}

/* What the caller has put together is one model, and its data files. */
static int take_given(struct sl_job *job, struct sl_err *err)
{
    const struct sl_convert_given *given = job->config->given;
    for (size_t i = 0; i < given->file_count; i++) {
        struct sl_source *from = given->files[i], *source = NULL;
        if (sl_source_known(sl_source_store(from), sl_source_name(from), sl_source_bytes(from),
                            sl_source_version(from), &source, err) < 0)
            return -1;
        if (sl_job_add_output(job, "", given->names[i], sl_source_bytes(source), err) < 0) {
            sl_source_free(source);
            return -1;
        }
        job->outputs[job->output_count - 1].source = source;
    }
    return add_component(job, "model", 0, err) ? 0 : -1;
}

static int find_components(struct sl_job *job, struct sl_err *err)
{
    const struct sl_spec *spec = job->config->spec;
    sl_autofree char *key = NULL;
    if (job->config->given)
        return take_given(job, err);
    if (sl_store_open(spec->source.uri, &job->source_config, &job->store, &key, err) < 0)
        return -1;
    if (!*key)
        return find_in_folder(job, err);
    return add_component(job, "model", 0, err) ? 0 : -1;
}

int sl_job_find(struct sl_job *job, struct sl_err *err)
{
    if (find_components(job, err) < 0)
        return -1;
    return job->config->ranks ? sl_job_part_ranks(job, err) : 0;
}
