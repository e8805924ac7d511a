/* What `sluice load` does, for who holds a library. */
#include "load.h"
#include "open_parts.h"

struct pull {
    const struct sl_spec *spec;
    struct sl_progress *progress;
};

static int load_it(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    const struct pull *pull = arg;
    return sl_load_run(pull->spec, cancel, pull->progress, NULL, err);
}

static int pull_spec(struct sl_spec *spec, const struct sluice_open_options *options,
                     struct sl_open_secret *secret, struct sl_err *err)
{
    struct pull pull = {.spec = spec};
    if (sl_open_secret_take(options->key, secret, err) < 0)
        return -1;
    if (secret->bytes)
        spec->decrypt.secret = &secret->secret;
    pull.progress = sl_progress_new(spec->metadata.name, "", "", err);
    if (!pull.progress)
        return -1;
    const struct sl_open_limits limits = {options->timeout_ms, options->cancel_fd,
                                          options->progress, options->arg, pull.progress};
    int done = sl_open_within(&limits, NULL, false, load_it, &pull, err);
    sl_progress_free(pull.progress);
    return done;
}

int sluice_pull(const char *uri, const char *directory, const struct sluice_open_options *given,
                struct sluice_error *error)
{
    struct sluice_open_options options;
    struct sl_specs specs = {0};
    struct sl_open_secret secret = {0};
    struct sl_err err = SL_ERR_INIT;
    sl_open_begin();
    if (sl_open_take(&options, sizeof(options), given, &err) < 0 ||
        sl_open_check_flags(options.flags, 0, &err) < 0)
        return sl_open_fail(error, &err);
    const struct sl_open_wanted wanted = {
        .uri = uri, .to = directory, .spec = options.spec, .verify = options.verify};
    int done = -1;
    if (!directory || !*directory)
        sl_fail(&err, SL_E_USAGE, "there is no directory to load into");
    else
        done = sl_open_spec(&wanted, &specs, &err);
    if (done == 0)
        done = pull_spec(specs.items, &options, &secret, &err);
    sl_open_secret_release(&secret);
    sl_specs_release(&specs);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}
