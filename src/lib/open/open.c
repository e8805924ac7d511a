/*
 * A source's life: opened by planning without reading, shared by owners, closed by the last one. In
 * a process that was forked it is left as it is: its threads are not there, its locks may be taken
 * for ever, and its descriptors are the parent's, too.
 */
#include <unistd.h>

#include "open_parts.h"
#include "places.h"
#include "pool_words.h"
#include "retry.h"
#include "url.h"

static void source_free(struct sluice_source *source)
{
    if (!source)
        return;
    for (size_t i = 0; source->paths && source->plan && i < source->plan->source_count; i++)
        free(source->paths[i]);
    free(source->paths);
    free(source->files);
    free(source->sizes);
    free(source->by_name);
    free(source->uri);
    sl_plan_free(source->plan);
    sl_specs_release(&source->specs);
    sl_open_secret_release(&source->secret);
    sl_progress_free(source->progress);
    sl_cancel_free(source->cancel);
    pthread_mutex_destroy(&source->lock);
    free(source);
}

/* Hashes of whole objects cannot be told of their tensors. */
static int refuse_whole_hashes(const struct sl_spec *spec, struct sl_err *err)
{
    if (!spec->verify.sha256.count)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'verify.sha256' is of whole objects, and parts of them are read: check it with "
                   "sluice_pull(), or leave it out");
}

static int plan_it(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct sluice_source *source = arg;
    const struct sl_spec *spec = source->specs.items;
    const struct sl_spec_source *from = &spec->source;
    struct sl_spec *own = source->specs.items;
    char *uri = own->source.uri;
    struct sl_err why = SL_ERR_INIT;
    (void)cancel; /* it is the source's */
    sl_spec_source_config(spec, source->cancel, source->progress, &source->config);
    if (source->whole)
        source->config.hold_bytes = sl_plan_may_hold(spec, SL_LAYOUT_SLABS);
    int done = sl_plan_make_listed(spec, source->as_files, &source->config, &source->plan, &why);
    for (size_t i = 0; done < 0 && i < from->mirrors.count && sl_places_move_loads(&why); i++) {
        own->source.uri = from->mirrors.items[i];
        done = sl_plan_make_listed(spec, source->as_files, &source->config, &source->plan, err);
    }
    own->source.uri = uri;
    if (done < 0 && why.kind)
        *err = why;
    return done < 0 ? -1 : sl_open_tables(source, err);
}

static int open_it(struct sluice_source *source, const char *uri,
                   const struct sluice_open_options *options, struct sl_err *err)
{
    const struct sl_open_wanted wanted = {
        .uri = uri, .spec = options->spec, .verify = options->verify};
    if (sl_open_spec(&wanted, &source->specs, err) < 0 ||
        refuse_whole_hashes(source->specs.items, err) < 0 ||
        sl_open_secret_take(options->key, &source->secret, err) < 0)
        return -1;
    struct sl_spec *spec = source->specs.items;
    if (source->secret.bytes)
        spec->decrypt.secret = &source->secret.secret;
    /* Programs read parts, of which few are covered, and may not know of caches (SLUICE_THROUGH).
     */
    spec->source.through.unverified = SL_UNVERIFIED_DIRECT;
    if (source->as_files) { /* what is broken is still a file */
        spec->verify.hashes = SL_HASHES_OFF;
        spec->source.incomplete = SL_INCOMPLETE_WARN;
    }
    source->uri = sl_uri_sanitize(uri, err);
    source->cancel = source->uri ? sl_cancel_new(err) : NULL;
    source->progress =
        source->cancel ? sl_progress_new(spec->metadata.name, source->uri, "", err) : NULL;
    if (!source->progress)
        return -1;
    const struct sl_open_limits limits = {options->timeout_ms, options->cancel_fd,
                                          options->progress, options->arg, source->progress};
    return sl_open_within(&limits, source->cancel, true, plan_it, source, err);
}

int sluice_open(const char *uri, const struct sluice_open_options *given,
                struct sluice_source **out, struct sluice_error *error)
{
    struct sluice_open_options options;
    struct sl_err err = SL_ERR_INIT;
    sl_open_begin();
    bool taken = sl_open_take(&options, sizeof(options), given, &err) == 0 &&
                 sl_open_check_flags(options.flags, SLUICE_AS_FILES | SLUICE_WHOLE, &err) == 0;
    struct sluice_source *source = taken ? sl_alloc(sizeof(*source), &err) : NULL;
    if (!source)
        return sl_open_fail(error, &err);
    source->owners = 1;
    source->process = getpid();
    source->as_files = options.flags & SLUICE_AS_FILES;
    source->whole = options.flags & SLUICE_WHOLE;
    pthread_mutex_init(&source->lock, NULL);
    if (open_it(source, uri, &options, &err) < 0) {
        source_free(source);
        return sl_open_fail(error, &err);
    }
    *out = source;
    return 0;
}

void sluice_close(struct sluice_source *source)
{
    if (source && source->process == getpid() && sl_refcount_drop(&source->owners))
        source_free(source);
}

void sluice_source_forget(struct sluice_source *source)
{
    for (size_t i = 0; source->process == getpid() && i < source->plan->source_count; i++)
        sl_source_forget(source->plan->sources[i].source);
}

void sluice_source_hold(struct sluice_source *source)
{
    sl_refcount_add(&source->owners);
}

void sluice_cancel(struct sluice_source *source)
{
    if (source->process == getpid()) /* else the parent's calls would hear of it */
        sl_cancel_raise(source->cancel, 0);
}

uint64_t sluice_waits_for(char *text, size_t bytes)
{
    return sl_retry_waits_for(text, bytes);
}
