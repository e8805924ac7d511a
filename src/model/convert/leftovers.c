/*
 * A folder that had another conversion: files of the same model that are not written anew, as when
 * three parts become one, or eight ranks four. Engines take whatever is called like a part, or
 * what an index names, so that the old weights would be loaded with the new ones, or in their
 * place. Nothing is removed; whoever owns the folder is told. A destination that cannot be listed
 * is taken as it is.
 */
#include <fnmatch.h>
#include <string.h>

#include "job.h"
#include "mem.h"
#include "stores.h"

static const char SUFFIX[] = ".safetensors", INDEX[] = ".safetensors.index.json";
static const char RANKS[] = "model-rank-";
static const char NUMBERED[] = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]"
                               ".safetensors";

struct looking {
    const struct sl_job *job;
    const char *begin; /* of the names of one model's files */
    bool found;
};

static bool is_written(const struct sl_job *job, const char *name)
{
    for (size_t i = 0; i < job->output_count; i++)
        if (strcmp(job->outputs[i].name, name) == 0)
            return true;
    return false;
}

/* Is it called like a file of this model, by what follows the beginning? */
static bool is_of_model(const struct sl_job *job, const char *rest)
{
    if (job->config->ranks)
        return *rest >= '0' && *rest <= '9' && !strchr(rest, '/') &&
               (sl_ends_with(rest, SUFFIX) || sl_ends_with(rest, INDEX));
    return strcmp(rest, SUFFIX) == 0 || strcmp(rest, INDEX) == 0 || fnmatch(NUMBERED, rest, 0) == 0;
}

static int look_at(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct looking *looking = arg;
    size_t bytes = strlen(looking->begin);
    if (strncmp(entry->name, looking->begin, bytes) != 0 ||
        !is_of_model(looking->job, entry->name + bytes) || is_written(looking->job, entry->name))
        return 0;
    looking->found = true;
    return sl_fail(
        err, SL_E_USAGE,
        "the destination has '%.300s' of an earlier conversion, which would be read with "
        "the new files: remove it first, or name another folder",
        entry->name);
}

static int look_for(const struct sl_job *job, struct sl_store *store, const char *folder,
                    const char *stem, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    sl_autofree char *begin = sl_asprintf(err, "%s%s", folder, stem);
    struct looking looking = {.job = job, .begin = begin};
    if (!begin)
        return -1;
    if (sl_store_list_begin(store, begin, look_at, &looking, &why) == 0 ||
        !(looking.found || why.kind == SL_E_NO_SPACE))
        return 0;
    *err = why;
    return -1;
}

int sl_job_check_leftovers(const struct sl_job *job, struct sl_err *err)
{
    const struct sl_convert_config *config = job->config;
    struct sl_source_config plain = job->source_config;
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    if (job->in_order || config->format != SL_CONVERT_SAFETENSORS || !sl_ends_with(config->to, "/"))
        return 0;
    plain.through = (struct sl_through_options){0};
    plain.no_mirrors = true;
    plain.beneath_bytes = plain.hold_bytes = 0;
    plain.preconnect = 0;
    if (sl_store_open(config->to, &plain, &store, &key, &why) < 0) {
        if (why.kind != SL_E_NO_SPACE) /* what is wrong with it, the uploads say */
            return 0;
        *err = why;
        return -1;
    }
    for (size_t i = 0; i < job->component_count; i++) {
        const struct sl_component *component = &job->components[i];
        if (!component->rank && /* all ranks of a folder have one beginning */
            look_for(job, store, component->folder, config->ranks ? RANKS : component->stem, err) <
                0)
            return -1;
    }
    return 0;
}
