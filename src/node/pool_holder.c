/*
 * The registry has one count of each model: from when it can be attached to, while it is still
 * being filled, until it is dropped. Clients have counts of their own by the server.
 */
#include "pool_holder.h"

#include <fcntl.h>
#include <unistd.h>

#include "fill.h"
#include "log.h"

struct sl_pool_holder {
    int directory_fd;
    struct sl_slab_place place;
    struct sl_holder ops;
};

struct filling {
    const struct sl_holder_job *job;
    struct sl_pool_model *opened; /* the registry's count */
};

static int admit(void *arg, uint64_t bytes, const uint8_t identity[32], struct sl_err *err)
{
    struct filling *filling = arg;
    char version[SL_VERSION_TEXT];
    return filling->job->admit(filling->job->arg, identity, bytes, version, err);
}

static void planned(void *arg, struct sl_pool_model *model)
{
    struct filling *filling = arg;
    filling->opened = sl_pool_model_hold(model);
    sl_pool_model_free(filling->job->opened(filling->job->arg, filling->opened));
}

static int load(void *self, const struct sl_holder_job *job, void **body, struct sl_err *err)
{
    const struct sl_pool_holder *holder = self;
    struct filling filling = {.job = job};
    const struct sl_fill_config config = {.name = job->name,
                                          .place = &holder->place,
                                          .admit = admit,
                                          .planned = planned,
                                          .arg = &filling,
                                          .cancel = job->cancel,
                                          .progress = job->progress};
    struct sl_load_result result;
    SL_AUTO(sl_pool_model) model = NULL;
    char text[512];
    *body = NULL;
    if (sl_fill_run(job->spec, &config, &model, &result, err) < 0)
        return -1;
    if (!model)
        return 0; /* it was there */
    *body = model == filling.opened ? (void *)model : (void *)sl_pool_model_hold(model);
    sl_log(SL_LOG_INFO, "'%s' is in the pool (%s): %s", job->name, sl_pool_model_memory(model),
           sl_load_summary(&result, text));
    return 0;
}

static int drop(void *self, const char *name, const char *version, void *body, struct sl_err *err)
{
    (void)self;
    (void)name;
    (void)version;
    (void)err;
    sl_pool_model_free(body);
    return 0;
}

struct sl_pool_holder *sl_pool_holder_new(const char *huge_directory, struct sl_err *err)
{
    struct sl_pool_holder *holder = sl_alloc(sizeof(*holder), err);
    if (!holder)
        return NULL;
    holder->directory_fd =
        huge_directory ? open(huge_directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    sl_slab_place_probe(holder->directory_fd, &holder->place);
    sl_log(SL_LOG_DEBUG, "the pool's memory: %s", holder->place.why);
    holder->ops = (struct sl_holder){.name = "pool", .self = holder, .load = load, .drop = drop};
    return holder;
}

void sl_pool_holder_free(struct sl_pool_holder *holder)
{
    if (!holder)
        return;
    sl_autoclose_(&holder->directory_fd);
    free(holder);
}

const struct sl_holder *sl_pool_holder_ops(struct sl_pool_holder *holder)
{
    return &holder->ops;
}
