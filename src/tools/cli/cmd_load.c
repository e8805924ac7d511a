/*
 * sluice load: the main job. The models of one spec are loaded side by side, a few at a time;
 * results are told in the order of the spec. Then the process ends, stays (a sidecar), or becomes
 * the command after "--", which is executed and never given to a shell.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "cli.h"
#include "load.h"
#include "log.h"
#include "operand.h"
#include "sets.h"
#include "url.h"
#include "web.h"
#include "web_http.h"

enum {
    LOADS_AT_ONCE = 4,
    READER_MEMORY_BYTES = 48 * 1024 * 1024, /* of all loads together, where the spec does not say */
    RESULT_BYTES_MAX = 4 * 1024 * 1024,
    OUTCOME_BYTES_MAX = 64 * 1024,
    DRAIN_MS = 700, /* of the second that SIGTERM leaves */
};

struct load_options {
    char *to, *name;
    bool stay;
};
static const struct sl_option rows[] = {
    SL_OPTION(load_options, to, STRING, "",
              "publish into this directory; needed with a URI, and goes before the spec's path",
              .value = "DIR"),
    SL_OPTION(load_options, name, STRING, "", "name of the model in metrics and logs",
              .value = "NAME"),
    SL_OPTION(load_options, stay, BOOL, "false",
              "when published, keep serving health and metrics until SIGTERM, then exit with 0"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"load", sizeof(struct load_options), rows};

/* One model and what became of it. */
struct job {
    const struct sl_spec *spec;
    struct sl_progress *progress;
    struct sl_load_result result;
    struct sl_err err;
    int done;
};
struct jobs {
    struct job *items;
    size_t count;
    uint64_t began_ns;
    struct sl_cancel *cancel;
    pthread_mutex_t lock;
    struct {
        size_t next;
    } locked;
};

static void jobs_release(struct jobs *jobs)
{
    for (size_t i = 0; i < jobs->count; i++)
        sl_progress_free(jobs->items[i].progress);
    free(jobs->items);
}

/* A load that was stopped can go on, and its message says from where. */
static void describe_kept(const struct job *job, struct sl_err *err)
{
    struct sl_progress_view view;
    char done[32], total[32], why[sizeof(err->message)];
    sl_progress_view(job->progress, &view);
    if (err->kind != SL_E_CANCELED || !view.bytes_done)
        return;
    snprintf(why, sizeof(why), "%s", err->message);
    sl_fail(err, SL_E_CANCELED, "%s with %s of %s in %s: the next load %s", why,
            sl_human_bytes(view.bytes_done, done), sl_human_bytes(view.bytes_total, total),
            job->result.path,
            job->result.unversioned ? "starts over, since the source gives no version"
                                    : "resumes there");
}

static void describe_model(const struct job *job, struct sl_buf *text)
{
    char summary[512];
    sl_buf_printf(text, NULL, "'%s' is in %s: %s", job->spec->metadata.name, job->result.path,
                  sl_load_summary(&job->result, summary));
}

/* Each end is said once, when it happens: the others may take long. The failure of a single model
 * is the command's own. */
static void log_end(struct job *job, bool single)
{
    if (job->done < 0 && single)
        return;
    if (job->done < 0) {
        describe_kept(job, &job->err);
        sl_log(job->err.kind == SL_E_CANCELED ? SL_LOG_WARN : SL_LOG_ERROR, "model '%s': %s",
               job->spec->metadata.name, job->err.message);
        return;
    }
    sl_load_say(&job->result, job->progress, job->spec->metadata.name, job->result.path);
}

static void *run_jobs(void *arg)
{
    struct jobs *jobs = arg;
    for (;;) {
        struct job *job;
        {
            SL_LOCKED(&jobs->lock);
            if (jobs->locked.next == jobs->count)
                return NULL;
            job = &jobs->items[jobs->locked.next++];
        }
        job->done = sl_load_run(job->spec, jobs->cancel, job->progress, &job->result, &job->err);
        log_end(job, jobs->count == 1);
    }
}

static void run_all(struct jobs *jobs)
{
    pthread_t threads[LOADS_AT_ONCE];
    size_t started = 0;
    while (started + 1 < SL_MIN(jobs->count, (size_t)LOADS_AT_ONCE) &&
           sl_thread_start(&threads[started], "sluice-load", run_jobs, jobs, NULL) == 0)
        started++;
    run_jobs(jobs);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static int prepare(struct jobs *jobs, struct sl_specs *specs, struct sl_err *err)
{
    jobs->items = sl_alloc_array(specs->count, sizeof(*jobs->items), err);
    if (!jobs->items)
        return -1;
    size_t at_once = SL_MIN(specs->count, (size_t)LOADS_AT_ONCE);
    for (size_t i = 0; i < specs->count; i++) {
        struct sl_spec *spec = &specs->items[i];
        const char *path = spec->sink.tmpfs.path ? spec->sink.tmpfs.path : "";
        for (size_t other = 0; other < i; other++)
            if (specs->items[other].sink.tmpfs.path &&
                strcmp(specs->items[other].sink.tmpfs.path, path) == 0)
                return sl_fail(
                    err, SL_E_USAGE,
                    "the models '%s' and '%s' have the same path '%s': give each its own",
                    specs->items[other].metadata.name, spec->metadata.name, path);
        if (spec->readers.memory_bytes == SL_AUTO_VALUE && at_once > 1)
            spec->readers.memory_bytes = READER_MEMORY_BYTES / at_once;
        jobs->items[i].spec = spec;
        const char *uri = spec->source.uri;
        sl_autofree char *clean = sl_uri_sanitize(uri ? uri : "", err);
        jobs->items[i].progress =
            clean ? sl_progress_new(spec->metadata.name, clean, path, err) : NULL;
        if (!jobs->items[i].progress)
            return -1;
        jobs->count++;
    }
    return 0;
}

static void print_job(struct sl_json *json, const struct job *job)
{
    const char *name = job->spec->metadata.name;
    if (job->done == 0) {
        sl_load_result_json(json, &job->result, name);
        return;
    }
    sl_json_object(json);
    sl_json_key_string(json, "name", name);
    sl_json_key(json, "error");
    sl_json_object(json);
    sl_cli_error_json(json, &job->err);
    sl_json_end(json);
    sl_json_end(json);
}

static int print_json(const struct jobs *jobs, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, RESULT_BYTES_MAX);
    if (jobs->count > 1)
        sl_json_array(&json);
    for (size_t i = 0; i < jobs->count; i++)
        print_job(&json, &jobs->items[i]);
    if (jobs->count > 1)
        sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static double rate_of(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds : 0;
}

/* What all of them brought together, where there are several. */
static void describe_total(const struct jobs *jobs, struct sl_buf *text)
{
    char bytes_text[32], rate[32];
    double seconds = (double)(sl_now_ns() - jobs->began_ns) / (double)SL_NS_PER_S;
    uint64_t bytes = 0;
    for (size_t i = 0; i < jobs->count; i++)
        bytes += jobs->items[i].result.already ? 0 : jobs->items[i].result.bytes;
    sl_buf_printf(text, NULL, "%zu models are published, %s in %.2f s, %s/s: ", jobs->count,
                  sl_human_bytes(bytes, bytes_text), seconds,
                  sl_human_bytes((uint64_t)rate_of(bytes, seconds), rate));
}

/* The container's message: all that was published, and who goes on in this process. */
static void note_success(const struct jobs *jobs, const struct sl_cli *cli)
{
    sl_autobuf text = SL_BUF_INIT(OUTCOME_BYTES_MAX);
    sl_buf_text(&text, "ok: ", NULL);
    if (jobs->count > 1)
        describe_total(jobs, &text);
    for (size_t i = 0; i < jobs->count; i++) {
        sl_buf_text(&text, i ? "; " : "", NULL);
        describe_model(&jobs->items[i], &text);
    }
    if (cli->after_dashes)
        sl_buf_printf(&text, NULL, "; then '%s' took over", cli->after_dashes[0]);
    sl_cli_termination(text.used ? sl_buf_string(&text) : "ok: published"); /* no memory left */
}

/* Where one was stopped all were: that is how the command ended, whatever else went wrong before.
 */
static const struct job *decisive_failure(const struct jobs *jobs, size_t *failures)
{
    const struct job *failed = NULL;
    *failures = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        const struct job *job = &jobs->items[i];
        *failures += job->done < 0;
        if (job->done < 0 &&
            (!failed || (job->err.kind == SL_E_CANCELED && failed->err.kind != SL_E_CANCELED)))
            failed = job;
    }
    return failed;
}

/* The decisive failure is the command's. With --json each of several models is told. */
static int report(const struct jobs *jobs, struct sl_cli *cli, struct sl_err *err)
{
    size_t failures;
    const struct job *failed = decisive_failure(jobs, &failures);
    if (failed) {
        *err = failed->err;
        if (jobs->count == 1)
            describe_kept(failed, err);
        else if (cli->json)
            cli->reported = print_json(jobs, NULL) == 0;
        sl_wrap(err, "model '%s'", failed->spec->metadata.name);
        return failures > 1
                   ? sl_wrap(err, "%zu of %zu models are not loaded", failures, jobs->count)
                   : -1;
    }
    note_success(jobs, cli);
    return cli->json ? print_json(jobs, err) : 0;
}

/* Until SIGTERM; then nobody is told that it is ready, and whoever has asked is answered. */
static void stay(struct sl_web *web, struct sl_cancel *cancel)
{
    fflush(stdout);
    struct pollfd fd = {sl_cancel_fd(cancel), POLLIN, 0};
    while (!sl_cancel_raised(cancel))
        poll(&fd, 1, -1);
    if (web)
        sl_web_drain(web, DRAIN_MS);
}

/* ---- engine caches --------------------------------------------------------------------------- */

/* Of the one model that has some: restored beside the loads, saved while the process stays. */
struct caches {
    const struct sl_spec *spec; /* NULL: none has */
    struct sl_cancel *cancel;
    struct sl_cancel *stop, *ended; /* ends the restoring; tells that it has ended. NULL: none */
    struct sl_sets_result result;
};

static void caches_release(struct caches *caches)
{
    sl_cancel_free(caches->stop);
    sl_cancel_free(caches->ended);
}

static void *restore_caches(void *arg)
{
    struct caches *caches = arg;
    sl_sets_restore(caches->spec, caches->stop, &caches->result);
    sl_cancel_raise(caches->ended, 0);
    return NULL;
}

static void *follow_engine(void *arg)
{
    struct caches *caches = arg;
    sl_sets_when_ready(caches->spec, &caches->result, caches->cancel);
    return NULL;
}

/* For /readyz: what waits for a sidecar finds its caches, too. */
static bool caches_are_there(void *arg, struct sl_err *why_not)
{
    const struct caches *caches = arg;
    if (!caches->spec || sl_cancel_raised(caches->ended))
        return true;
    sl_fail(why_not, SL_E_NOT_FOUND, "engine caches are being restored");
    return false;
}

/* Beside what the caller does until pthread_join(); without a thread nothing of it is done. */
static bool start_caches(struct caches *caches, pthread_t *thread)
{
    struct sl_err why = SL_ERR_INIT;
    caches->result.outcome = SL_SETS_NO_PLACE;
    if (caches->spec && sl_thread_start(thread, "sluice-caches", restore_caches, caches, &why) == 0)
        return true;
    if (caches->spec)
        sl_log(SL_LOG_WARN, "engine caches: not used: %s", why.message);
    return false;
}

/* A load that failed, or was stopped, waits for no caches. */
static void end_restoring(struct caches *caches, bool failed, pthread_t thread)
{
    struct pollfd fds[2] = {{sl_cancel_fd(caches->cancel), POLLIN, 0},
                            {sl_cancel_fd(caches->ended), POLLIN, 0}};
    while (!failed && !sl_cancel_raised(caches->cancel) && !sl_cancel_raised(caches->ended))
        poll(fds, 2, -1);
    sl_cancel_raise(caches->stop, sl_cancel_signal(caches->cancel));
    pthread_join(thread, NULL);
}

/* listen of the first model that has it; NULL if none has. */
static const char *asked_address(const struct sl_specs *specs)
{
    for (size_t i = 0; i < specs->count; i++)
        if (specs->items[i].listen && *specs->items[i].listen)
            return specs->items[i].listen;
    return NULL;
}

/*
 * SLUICE_LISTEN may be set for all containers of a pod, which share its ports: a load that
 * nobody probes goes on without the port that a sidecar has. 0 with *web NULL: not served.
 */
static int serve(const struct sl_specs *specs, bool needed, struct caches *caches,
                 struct sl_web **web, struct sl_err *err)
{
    const char *asked = asked_address(specs), *usual = getenv("SLUICE_LISTEN");
    struct sl_web_config config = {.listen = asked ? asked : usual,
                                   .expected_loads = (unsigned)specs->count,
                                   .beside = {.is_ready = caches_are_there, .arg = caches}};
    struct sl_err why = SL_ERR_INIT;
    char url[SL_WEB_URL_BYTES];
    if (!config.listen || !*config.listen)
        return 0;
    *web = sl_web_start(&config, &why);
    if (*web) {
        if (sl_web_url(config.listen, sl_web_port(*web), url, &why) == 0)
            sl_log(SL_LOG_INFO, "health, metrics and the page: %s", url);
        return 0;
    }
    if (!asked && !needed) {
        sl_log(SL_LOG_WARN, "%s; loading without it (SLUICE_LISTEN)", why.message);
        return 0;
    }
    *err = why;
    return -1;
}

static int load_and_report(struct sl_cli *cli, struct jobs *jobs, struct caches *caches,
                           struct sl_err *err)
{
    pthread_t thread;
    size_t failures = 0;
    if (sl_progress_show_start((enum sl_progress_mode)cli->progress, err) < 0)
        return -1;
    jobs->began_ns = sl_now_ns();
    bool restoring = start_caches(caches, &thread);
    run_all(jobs);
    if (restoring)
        end_restoring(caches, decisive_failure(jobs, &failures) != NULL, thread);
    else if (caches->spec)
        sl_cancel_raise(caches->ended, 0);
    sl_progress_show_stop();
    return report(jobs, cli, err);
}

static void stay_with_engine(struct sl_web *web, struct caches *caches)
{
    pthread_t thread;
    bool following = caches->spec && sl_sets_waits(caches->spec, &caches->result) &&
                     sl_thread_start(&thread, "sluice-caches", follow_engine, caches, NULL) == 0;
    stay(web, caches->cancel);
    if (following)
        pthread_join(thread, NULL);
}

static int run_specs(struct sl_cli *cli, struct sl_specs *specs, struct caches *caches,
                     struct sl_err *err)
{
    const struct load_options *options = cli->options;
    __attribute__((cleanup(jobs_release))) struct jobs jobs = {.cancel = cli->cancel,
                                                               .lock = PTHREAD_MUTEX_INITIALIZER};
    SL_AUTO(sl_web) web = NULL;
    if (options->stay)
        sl_cli_shut_others_out();
    if (caches->spec &&
        (!(caches->stop = sl_cancel_new(err)) || !(caches->ended = sl_cancel_new(err))))
        return -1;
    if (prepare(&jobs, specs, err) < 0 || serve(specs, options->stay, caches, &web, err) < 0)
        return -1;
    if (load_and_report(cli, &jobs, caches, err) < 0)
        return -1;
    if (options->stay && !web)
        sl_log(SL_LOG_WARN, "--stay keeps this process, but it serves nothing: add --listen "
                            "ADDRESS for health and metrics");
    if (options->stay)
        stay_with_engine(web, caches);
    return 0;
}

static int become(struct sl_cli *cli, struct sl_err *err)
{
    fflush(stdout);
    sl_cli_restore_signals();
    execvp(cli->after_dashes[0], cli->after_dashes);
    return sl_fail_errno(err, errno == ENOENT ? SL_E_NOT_FOUND : SL_E_USAGE, errno,
                         "the model is published, but '%s' cannot be started: check its name, its "
                         "rights and PATH",
                         cli->after_dashes[0]);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct load_options *options = cli->options;
    if (cli->after_dashes && !cli->after_dashes[0])
        return sl_fail(err, SL_E_USAGE, "a command must follow '--'");
    if (cli->after_dashes && options->stay)
        return sl_fail(err, SL_E_USAGE, "--stay and a command after '--' exclude each other");
    struct sl_specs specs = {0};
    __attribute__((cleanup(caches_release))) struct caches caches = {.cancel = cli->cancel};
    int done = sl_operand_specs(cli, options->to, options->name, NULL, &specs, err);
    caches.spec = done == 0 ? sl_sets_find(&specs) : NULL;
    if (done == 0)
        done = run_specs(cli, &specs, &caches, err);
    bool known = caches.spec && caches.result.outcome != SL_SETS_NO_PLACE;
    if (done == 0 && cli->after_dashes && known)
        done = sl_sets_export(caches.spec->sink.caches.path, err);
    sl_specs_release(&specs);
    if (done == 0 && cli->after_dashes)
        return sl_cancel_check(cli->cancel, err) < 0 ? -1 : become(cli, err);
    return done;
}

const struct sl_command sl_cmd_load = {
    .name = "load",
    .usage = "sluice load SPEC | URI --to DIR [-- COMMAND ARGUMENT …]",
    .summary = "load models into directories and publish them",
    .description =
        "SPEC is a file that ends in .yaml or .yml, or - for standard input; see "
        "`sluice docs spec`. Anything else is a URI: an "
        "object, a prefix that ends in /, or an index (*.index.json).\n\n"
        "Nothing is visible in the directory until everything is complete and checked; "
        "then DIR/.sluice/ready appears. A load of what "
        "is there already reads nothing. A load that was ended resumes where it was. "
        "Several models of one file are loaded side by side.\n\n"
        "Engine caches (sink.caches) are restored beside the model, and the environment of the "
        "command names them; `sluice caches` has more.\n\n"
        "With a command after --, the process becomes that command once everything is "
        "published. It is not given to a shell. With --stay the process serves health, "
        "metrics and progress until SIGTERM, then answers /readyz with 503 while "
        "requests in progress finish, and exits with 0, as a sidecar does. SIGTERM "
        "during the load ends it within a second with 143.\n\n"
        "Where health and metrics are served comes from --listen or the spec, else "
        "from SLUICE_LISTEN; a port of SLUICE_LISTEN that is taken is not a failure "
        "without --stay.",
    .examples = "sluice load model.yaml                                # what the spec says\n"
                "sluice load s3://bucket/model/ --to /dev/shm/model    # no file needed\n"
                "sluice load --stay --listen :9464 model.yaml          # a sidecar\n"
                "sluice load model.yaml -- python serve.py             # become the engine",
    .options = &table,
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
