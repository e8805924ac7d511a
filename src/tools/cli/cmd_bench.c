/*
 * sluice bench: measure, or gather what was measured on many nodes; then tell it as text, JSON, CSV
 * and SVG. Where the results go is looked at before anything is measured, since a benchmark may
 * take an hour.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "bench.h"
#include "cli.h"
#include "exact_io.h"
#include "log.h"
#include "operand.h"

struct bench_options {
    char *to, *range_bytes, *connections, *measure, *peers, *csv, *svg, *json_file, *start_at;
    uint64_t rounds, warmups, bytes, peer_seconds;
    bool loopback, gather, replace;
};
static const struct sl_option rows[] = {
    SL_OPTION(bench_options, to, STRING, "/dev/shm",
              "loads and peers write below this directory, in the folder sluice-bench, which is "
              "removed afterwards",
              .value = "DIR"),
    SL_OPTION(bench_options, range_bytes, STRING, "1MiB,8MiB,64MiB",
              "range sizes to try, 64KiB to 5GiB; 256KiB..256MiB doubles", .value = "LIST"),
    SL_OPTION(bench_options, connections, STRING, "1,4,16",
              "numbers of connections to try, 1 to 256; 1..64 doubles", .value = "LIST"),
    SL_OPTION(bench_options, measure, STRING, "network,store,load",
              "what to measure: network is recv() alone, store our source layer without a "
              "destination, load a whole load, checked and published, memory the same into memory "
              "that is there",
              .value = "LIST"),
    SL_OPTION(bench_options, rounds, UINT, "5",
              "how often everything is measured, each setting once a round", .minimum = 1,
              .maximum = SL_BENCH_ROUNDS_MAX),
    SL_OPTION(bench_options, warmups, UINT, "1", "rounds before these that do not count",
              .maximum = 100),
    SL_OPTION(bench_options, bytes, BYTES, "auto",
              "network and store read no more of the model than this; with --loopback, the size "
              "of the model (auto: 256 MiB)",
              .minimum = 65536, .maximum = UINT64_C(1) << 50),
    SL_OPTION(bench_options, loopback, BOOL, "false",
              "measure with a synthetic .tensors model that a `sluice share` of its own serves on "
              "this machine"),
    SL_OPTION(bench_options, peers, STRING, "auto",
              "other programs to measure: auto (those in PATH that can read the model), none, or "
              "some of curl, wget, aria2c, rclone, s5cmd, aws, tensorizer, cp with commas",
              .value = "LIST"),
    SL_OPTION(bench_options, peer_seconds, UINT, "600", "how long one run of a peer may take",
              .minimum = 1, .maximum = 86400),
    SL_OPTION(bench_options, start_at, STRING, "",
              "wait until then, so that many nodes begin together: +SECONDS, /SECONDS (the next "
              "full multiple of the clock) or 2026-11-21T12:00:00Z",
              .value = "TIME"),
    SL_OPTION(bench_options, gather, BOOL, "false",
              "measure nothing: take the results out of files, folders or - (logs of Jobs) and "
              "put all nodes into one table"),
    SL_OPTION(bench_options, csv, STRING, "", "write all figures to this file", .value = "FILE"),
    SL_OPTION(bench_options, json_file, STRING, "",
              "write the lines of --json to this file, for --gather", .value = "FILE"),
    SL_OPTION(bench_options, svg, STRING, "", "draw into this file", .value = "FILE"),
    SL_OPTION(bench_options, replace, BOOL, "false", "replace files that are there"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"bench", sizeof(struct bench_options), rows};

enum { LOOPBACK_BYTES = 256 * 1024 * 1024 };

/* ---- where results go ------------------------------------------------------------------------ */

static int refuse_existing(const char *path, bool replace, struct sl_err *err)
{
    struct stat status;
    if (!path || replace || stat(path, &status) < 0 || !S_ISREG(status.st_mode))
        return 0;
    return sl_fail(err, SL_E_USAGE, "'%s' exists: name another file, or replace it with --replace",
                   path);
}

static int check_files(const struct bench_options *options, struct sl_err *err)
{
    const char *const paths[] = {options->csv, options->json_file, options->svg};
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        if (refuse_existing(paths[i], options->replace, err) < 0)
            return -1;
        for (size_t k = 0; paths[i] && k < i; k++)
            if (paths[k] && strcmp(paths[i], paths[k]) == 0)
                return sl_fail(err, SL_E_USAGE, "'%s' is named twice", paths[i]);
    }
    return 0;
}

static int write_file(const char *path, bool replace, const struct sl_buf *text, struct sl_err *err)
{
    struct stat status;
    bool device = stat(path, &status) == 0 && !S_ISREG(status.st_mode);
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;
    flags |= device ? 0 : replace ? O_TRUNC : O_EXCL;
    sl_autoclose int fd = open(path, flags, 0644);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", path);
    if (sl_write_all(fd, text->data, text->used) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", path);
    return 0;
}

static int write_lines(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err)
{
    for (size_t i = 0; i < results->count; i++) {
        struct sl_json json;
        sl_json_init(&json, SL_BENCH_TEXT_MAX);
        sl_bench_json(&json, &results->items[i]);
        const char *text = sl_json_text(&json, err);
        int done = text ? sl_buf_printf(out, err, "%s\n", text) : -1;
        sl_json_release(&json);
        if (done < 0)
            return -1;
    }
    return 0;
}

static int write_as(const char *path, bool replace, const struct sl_bench_results *results,
                    int (*write_text)(struct sl_buf *out, const struct sl_bench_results *results,
                                      struct sl_err *err),
                    struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    if (!path)
        return 0;
    if (write_text(&text, results, err) < 0)
        return -1;
    return write_file(path, replace, &text, err);
}

static int print_summary(const struct sl_bench_results *results, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SL_BENCH_TEXT_MAX);
    int done = sl_bench_summary_json(&json, results, err);
    if (done == 0)
        done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

/* A terminal that is told to be of another character set gets '#'. */
static bool speaks_utf8(void)
{
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

/* Many nodes in one table, but each model that was measured here in full. */
static int write_tables(struct sl_buf *out, const struct sl_bench_results *results, bool gathered,
                        struct sl_err *err)
{
    if (gathered)
        return sl_bench_table(out, results, speaks_utf8(), err);
    for (size_t i = 0; i < results->count; i++) {
        const struct sl_bench_results one = {.items = &results->items[i], .count = 1};
        if ((i && sl_buf_text(out, "\n", err) < 0) ||
            sl_bench_table(out, &one, speaks_utf8(), err) < 0)
            return -1;
    }
    return 0;
}

static int print_results(const struct sl_cli *cli, const struct sl_bench_results *results,
                         struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    if (cli->json && options->gather)
        return print_summary(results, err);
    int done = cli->json ? write_lines(&text, results, err)
                         : write_tables(&text, results, options->gather, err);
    if (done == 0)
        fwrite(sl_buf_string(&text), 1, text.used, stdout);
    return done;
}

static int report(const struct sl_cli *cli, const struct sl_bench_results *results,
                  struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    bool replace = options->replace;
    if (print_results(cli, results, err) < 0 ||
        write_as(options->csv, replace, results, sl_bench_csv, err) < 0 ||
        write_as(options->json_file, replace, results, write_lines, err) < 0)
        return -1;
    return write_as(options->svg, replace, results, sl_bench_svg, err);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int read_config(const struct bench_options *options, struct sl_bench_config *config,
                       struct sl_err *err)
{
    *config = (struct sl_bench_config){.rounds = options->rounds,
                                       .warmups = options->warmups,
                                       .to = options->to,
                                       .peers = options->peers,
                                       .peer_seconds = options->peer_seconds};
    if (options->bytes != SL_AUTO_VALUE && !options->loopback)
        config->bytes = options->bytes;
    if (sl_bench_parse_sizes(options->range_bytes ? options->range_bytes : "", config->range_bytes,
                             &config->range_count, err) < 0 ||
        sl_bench_parse_counts(options->connections ? options->connections : "", config->connections,
                              &config->connection_count, err) < 0)
        return -1;
    return sl_bench_parse_ways(options->measure ? options->measure : "", config->ways, err);
}

static int wait_for_start(const struct sl_cli *cli, struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    struct timeval now;
    double start;
    gettimeofday(&now, NULL);
    double seconds = (double)now.tv_sec + (double)now.tv_usec / 1e6;
    if (!options->start_at)
        return 0;
    if (sl_bench_parse_start(options->start_at, seconds, &start, err) < 0)
        return -1;
    if (start <= seconds)
        return 0;
    sl_log(SL_LOG_INFO, "the benchmark begins in %.1f s", start - seconds);
    return sl_sleep_ms((unsigned)((start - seconds) * 1000), cli->cancel, err);
}

static int measure_specs(const struct sl_cli *cli, const struct sl_specs *specs,
                         const struct sl_bench_config *config, struct sl_bench_results *results,
                         struct sl_err *err)
{
    for (size_t i = 0; i < specs->count; i++) {
        struct sl_bench_result *result = sl_bench_results_add(results, err);
        if (!result || sl_bench_run(&specs->items[i], config, cli->cancel, result, err) < 0)
            return -1;
    }
    return 0;
}

/* Each operand is a spec or a URI. */
static int measure_operand(struct sl_cli *cli, char *operand, const struct sl_bench_config *config,
                           struct sl_bench_results *results, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_cli one = *cli;
    char *operands[] = {operand, NULL};
    one.operands = operands;
    one.operand_count = 1;
    int done = sl_operand_specs(&one, NULL, NULL, config->to, &specs, err);
    if (done == 0)
        done = measure_specs(cli, &specs, config, results, err);
    sl_specs_release(&specs);
    return done;
}

static int measure_loopback(struct sl_cli *cli, const struct sl_bench_config *config,
                            struct sl_bench_results *results, struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    uint64_t bytes = options->bytes == SL_AUTO_VALUE ? LOOPBACK_BYTES : options->bytes;
    SL_AUTO(sl_bench_loopback)
    loopback = sl_bench_loopback_start("/proc/self/exe", config->to, bytes, cli->cancel, err);
    if (!loopback)
        return -1;
    sl_autofree char *uri = sl_strdup(sl_bench_loopback_uri(loopback), err);
    return uri ? measure_operand(cli, uri, config, results, err) : -1;
}

static int measure(struct sl_cli *cli, struct sl_bench_results *results, struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    struct sl_bench_config config;
    if (options->loopback && cli->operand_count)
        return sl_fail(err, SL_E_USAGE, "--loopback brings its own model: leave '%.100s' out",
                       cli->operands[0]);
    if (!options->loopback && !cli->operand_count)
        return sl_fail(err, SL_E_USAGE,
                       "name a spec or a URI to measure with, or try it with --loopback");
    if (read_config(options, &config, err) < 0 || wait_for_start(cli, err) < 0)
        return -1;
    if (options->loopback)
        return measure_loopback(cli, &config, results, err);
    for (int i = 0; i < cli->operand_count; i++)
        if (measure_operand(cli, cli->operands[i], &config, results, err) < 0)
            return -1;
    return 0;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static int gather(struct sl_cli *cli, struct sl_bench_results *results, struct sl_err *err)
{
    if (!cli->operand_count)
        return sl_fail(err, SL_E_USAGE, "name files or folders to gather, or - for standard input");
    for (int i = 0; i < cli->operand_count; i++)
        if (sl_bench_gather_path(results, cli->operands[i], err) < 0)
            return -1;
    if (results->count || results->wrong_lines)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND,
                   "no results in what was named: they are lines with %s, as `sluice bench "
                   "--json` prints them",
                   SL_BENCH_MARKER);
}

/* What `kubectl describe` shows of the last model. */
static void leave_message(const struct sl_bench_results *results)
{
    char text[1024], network[48] = "", load[48] = "";
    const struct sl_bench_result *last = &results->items[results->count - 1];
    double rates[2];
    sl_bench_rates(last, &rates[0], &rates[1]);
    if (rates[0] > 0)
        snprintf(network, sizeof(network), ", network %.2f GB/s", rates[0] / 1e9);
    if (rates[1] > 0)
        snprintf(load, sizeof(load), ", sluice %.2f GB/s", rates[1] / 1e9);
    snprintf(text, sizeof(text), "ok: '%.300s' was measured in %.0f s%s%s", last->source,
             last->seconds, network, load);
    sl_cli_termination(text);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct bench_options *options = cli->options;
    struct sl_bench_results results = {0};
    char wrong[40];
    int done = check_files(options, err);
    if (done == 0)
        done = options->gather ? gather(cli, &results, err) : measure(cli, &results, err);
    if (done == 0)
        done = report(cli, &results, err);
    if (done == 0 && results.wrong_lines)
        done =
            sl_fail(err, SL_E_FORMAT, "%s could not be read, and left out of the table: see above",
                    sl_human_count(results.wrong_lines, "result", wrong));
    if (done == 0 && !options->gather)
        leave_message(&results);
    sl_bench_results_release(&results);
    return done;
}

static const char *const idle_flags[] = {"listen", NULL};

const struct sl_command sl_cmd_bench = {
    .name = "bench",
    .usage = "sluice bench [SPEC | URI …]",
    .summary = "measure the network, the store, sluice and other programs",
    .description =
        "Reads the same model in turns, at each range size and number of connections: by recv() "
        "alone (network), through sluice's source layer without a destination (store), and by "
        "whole loads, checked and published (load). Then it measures the other programs that are "
        "installed. Every round takes each setting once. The load is also "
        "measured as it "
        "comes, with nothing chosen.\n\n"
        "The result is a table and bars on standard output. With --json it is one line per model, "
        "which also describes this machine (SLUICE_NODE or NODE_NAME name it). Lines of many nodes "
        "are put into one table by --gather, from files or from the logs of Jobs; other lines are "
        "skipped; broken results are named, and the exit code is then 10.\n\n"
        "A GB is 10^9 bytes. Peers are started without a shell, with the environment of this "
        "process, and ended after --peer-seconds.",
    .examples = "sluice bench --loopback --bytes 64MiB --rounds 2    # needs nothing else\n"
                "sluice bench s3://bucket/model/ --svg m.svg         # all sizes, and drawn\n"
                "sluice bench m.yaml --range-bytes 256KiB..256MiB --connections 16 --csv m.csv\n"
                "kubectl logs -l job-name=sluice-benchmark --tail=-1 | sluice bench --gather -",
    .options = &table,
    .spec_flags = true,
    .idle_flags = idle_flags,
    .operand_min = 0,
    .operand_max = -1,
    .run = run,
};
