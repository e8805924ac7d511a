/*
 * sluice initializer: what KServe starts instead of its own storage initializer. KServe gives the
 * sources and destinations as arguments and the rest through the environment; flags can only come
 * from the `command` of a ClusterStorageContainer, which KServe keeps.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "cli.h"
#include "initializer.h"
#include "log.h"
#include "progress.h"
#include "storage_env.h"

enum { RESULT_BYTES_MAX = 4 * 1024 * 1024 };

struct initializer_options {
    bool strict_prefix;
    int local;
};
static const struct sl_option rows[] = {
    SL_OPTION(initializer_options, strict_prefix, BOOL, "false",
              "of s3://bucket/model take the object of this name or what lies in this folder, and "
              "no neighbour such as model-v2"),
    SL_OPTION(initializer_options, local, CHOICE, "link",
              "what becomes of files on a mounted volume: a link to each, or a copy",
              .choices = "link|copy"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"initializer", sizeof(struct initializer_options),
                                             rows};

static void write_pair(struct sl_json *json, const char *uri, const char *to,
                       const struct sl_initialized *done)
{
    sl_json_object(json);
    sl_json_key_uri(json, "uri", uri ? uri : "");
    sl_json_key_uri(json, "path", to);
    sl_json_key_uint(json, "files", done->files);
    sl_json_key_uint(json, "bytes", done->bytes);
    sl_json_key_bool(json, "linked", done->linked);
    sl_json_key_bool(json, "unpacked", done->unpacked);
    sl_json_key(json, "load");
    if (done->load.path[0])
        sl_load_result_json(json, &done->load, uri ? uri : "");
    else
        sl_json_null(json);
    sl_json_end(json);
}

static int print_results(const struct sl_initializer *job, const struct sl_initialized *done,
                         struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, RESULT_BYTES_MAX);
    sl_json_array(&json);
    for (size_t i = 0; i < job->pair_count; i++) {
        sl_autofree char *uri = sl_storage_uri_sanitize(job->arguments[2 * i], NULL);
        write_pair(&json, uri, job->arguments[2 * i + 1], &done[i]);
    }
    sl_json_end(&json);
    int printed = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return printed;
}

static void report(const struct sl_initializer *job, const struct sl_initialized *done)
{
    char summary[512], bytes[32], files[40], line[2048] = "";
    for (size_t i = 0; i < job->pair_count; i++) {
        const char *to = job->arguments[2 * i + 1];
        sl_autofree char *uri = sl_storage_uri_sanitize(job->arguments[2 * i], NULL);
        const char *from = uri ? uri : "the model";
        if (done[i].unpacked)
            snprintf(line, sizeof(line), "'%s' is in %s: %s unpacked, %s", from, to,
                     sl_human_count(done[i].files, "file", files),
                     sl_human_bytes(done[i].bytes, bytes));
        else if (done[i].load.path[0])
            snprintf(line, sizeof(line), "'%s' is in %s: %s", from, to,
                     sl_load_summary(&done[i].load, summary));
        else
            snprintf(line, sizeof(line), "'%s' is in %s%s", from, to,
                     done[i].linked ? ", as links" : "");
        sl_log(SL_LOG_INFO, "%s", line);
        if (done[i].load.path[0])
            sl_log(SL_LOG_DEBUG, "'%s': %s", from, sl_load_details(&done[i].load, summary));
    }
    sl_cli_termination(job->pair_count == 1 ? line : "ok: all models are in their places");
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct initializer_options *options = cli->options;
    if (cli->operand_count == 0 || cli->operand_count % 2)
        return sl_fail(err, SL_E_USAGE,
                       "expected pairs of arguments, SRC DST [SRC DST …], but there %s %d",
                       cli->operand_count == 1 ? "is" : "are", cli->operand_count);
    const struct sl_initializer job = {.arguments = cli->operands,
                                       .pair_count = (size_t)cli->operand_count / 2,
                                       .strict_prefix = options->strict_prefix,
                                       .local = options->local,
                                       .settings = cli->settings,
                                       .setting_count = cli->setting_count,
                                       .cancel = cli->cancel};
    sl_autofree struct sl_initialized *done = sl_alloc_array(job.pair_count, sizeof(*done), err);
    if (!done)
        return -1;
    umask(022); /* engines run as other users */
    if (sl_storage_env_apply(err) < 0 ||
        sl_progress_show_start((enum sl_progress_mode)cli->progress, err) < 0)
        return -1;
    int result = sl_initializer_run(&job, done, err);
    sl_progress_show_stop();
    if (result < 0)
        return -1;
    report(&job, done);
    return cli->json ? print_results(&job, done, err) : 0;
}

static const char *const idle_flags[] = {"listen", NULL};

const struct sl_command sl_cmd_initializer = {
    .name = "initializer",
    .usage = "sluice initializer SRC DST [SRC DST …]",
    .summary = "put models where KServe wants them, as its storage initializer does",
    .description =
        "What KServe starts for a ClusterStorageContainer that names sluice; docs/kserve.md has "
        "its contract. SRC is s3://, http://, https://, file:// or a path; sluice+s3:// and "
        "sluice-WORD+s3:// mean s3://, sluice+https:HOST/PATH means https://HOST/PATH. DST is a "
        "directory, which is made.\n\n"
        "Nothing is in the destinations before every model is complete and checked, and then the "
        "models alone. A single archive (tar, tar.gz, zip) is unpacked. What was ended resumes.\n\n"
        "Credentials, endpoint, region, certificates and patterns come from the environment that "
        "KServe sets, STORAGE_CONFIG included; flags, from the container's command, count more. "
        "Every failure ends with 1, as KServe expects, and the reason in the last line.",
    .examples = "sluice initializer s3://bucket/model /mnt/models         # as KServe starts it\n"
                "sluice initializer --strict-prefix s3://bucket/model /m  # not model-v2, too\n"
                "sluice initializer s3://b/base /m/base s3://b/lora /m/lora  # several at once",
    .options = &table,
    .spec_flags = true,
    .idle_flags = idle_flags,
    .operand_min = 0,
    .operand_max = -1,
    .failure_exit = 1,
    .run = run,
};
