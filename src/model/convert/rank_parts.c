/*
 * One file, or several, for each rank: a component of the job for each, which reads its part of
 * every tensor and is laid out by itself. A rank's plan is of the same objects as the others', so
 * heads are read once for each rank, and tensors that are cut along rows once in all.
 */
#include <string.h>

#include "job.h"

static int copy_list(const struct sl_list *from, struct sl_list *to, struct sl_err *err)
{
    for (size_t i = 0; i < from->count; i++)
        if (sl_list_add(to, from->items[i], strlen(from->items[i]), err) < 0)
            return -1;
    return 0;
}

/* What points into the old one's strings points into the new one's. */
static int copy_component(const struct sl_component *from, unsigned rank, unsigned ranks,
                          struct sl_component *to, struct sl_err *err)
{
    *to = (struct sl_component){.spec = from->spec, .rank = rank};
    to->spec.tensors.shard.rank = rank;
    to->spec.tensors.shard.of = ranks;
    to->folder = sl_strdup(from->folder, err);
    to->stem = to->folder ? sl_asprintf(err, "model-rank-%u", rank) : NULL;
    if (!to->stem || copy_list(&from->include, &to->include, err) < 0)
        return -1;
    if (from->include.count)
        to->spec.source.include = to->include;
    if (from->spec.source.listed_folder)
        to->spec.source.listed_folder = to->folder;
    if (!from->uri)
        return 0;
    to->uri = sl_strdup(from->uri, err);
    to->spec.source.uri = to->uri;
    return to->uri ? 0 : -1;
}

int sl_job_part_ranks(struct sl_job *job, struct sl_err *err)
{
    struct sl_component *whole = job->components;
    size_t count = job->component_count;
    unsigned ranks = job->config->ranks;
    job->components = NULL;
    job->component_count = job->component_capacity = 0;
    int done = sl_grow(&job->components, &job->component_capacity, count * ranks,
                       sizeof(*job->components), err);
    for (size_t i = 0; i < count * ranks && done == 0; i++)
        done = copy_component(&whole[i / ranks], (unsigned)(i % ranks), ranks,
                              &job->components[job->component_count++], err);
    for (size_t i = 0; i < count; i++)
        sl_component_release(&whole[i]);
    free(whole);
    return done;
}
