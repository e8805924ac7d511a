/*
 * Results out of logs. `kubectl logs` mixes what pods wrote to stdout and stderr, and may put a
 * pod's name in front of each line; so a result begins where the marker is, and a line without it
 * is not a result. What has the marker and cannot be read is named: a node that silently fell out
 * would make the total wrong.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_parts.h"
#include "log.h"

enum { LINE_BYTES_MAX = 8 * 1024 * 1024 };

/* The same run twice, as when logs are gathered again with a file that was made of them. */
static bool is_repeated(const struct sl_bench_results *results)
{
    const struct sl_bench_result *last = &results->items[results->count - 1];
    for (size_t i = 0; i + 1 < results->count; i++) {
        const struct sl_bench_result *other = &results->items[i];
        if (strcmp(other->facts.node, last->facts.node) == 0 &&
            strcmp(other->facts.pod, last->facts.pod) == 0 &&
            strcmp(other->source, last->source) == 0 && strcmp(other->started, last->started) == 0)
            return true;
    }
    return false;
}

static void drop_last(struct sl_bench_results *results)
{
    free(results->items[--results->count].points);
}

static int take_line(struct sl_bench_results *results, const char *line, size_t bytes,
                     struct sl_err *err)
{
    if (bytes > LINE_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "a result of %zu bytes, limit %d", bytes, LINE_BYTES_MAX);
    struct sl_bench_result *result = sl_bench_results_add(results, err);
    if (!result)
        return -1;
    if (sl_bench_json_read(line, bytes, result, err) < 0) {
        drop_last(results);
        return -1;
    }
    if (!is_repeated(results))
        return 0;
    drop_last(results);
    return sl_fail(err, SL_E_FORMAT, "it repeats an earlier line");
}

int sl_bench_gather(struct sl_bench_results *results, const char *name, const char *text,
                    size_t bytes, struct sl_err *err)
{
    uint64_t number = 0;
    for (size_t at = 0; at < bytes; number++) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', bytes - at);
        size_t length = end ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        const char *marked = memmem(line, length, SL_BENCH_MARKER, strlen(SL_BENCH_MARKER));
        if (!marked)
            continue;
        struct sl_err why = SL_ERR_INIT;
        if (take_line(results, marked, length - (size_t)(marked - line), &why) == 0)
            continue;
        if (why.kind != SL_E_FORMAT) {
            if (err)
                *err = why;
            return -1;
        }
        results->wrong_lines++;
        sl_log(SL_LOG_WARN, "%s:%llu: %s", name, (unsigned long long)number + 1, why.message);
    }
    return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

static int gather_file(struct sl_bench_results *results, const char *path, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    int done = strcmp(path, "-") == 0
                   ? sl_buf_read_fd(&text, STDIN_FILENO, "standard input", SL_E_USAGE, err)
                   : sl_buf_read_file(&text, path, err);
    if (done < 0)
        return -1;
    return sl_bench_gather(results, strcmp(path, "-") == 0 ? "standard input" : path,
                           sl_buf_string(&text), text.used, err);
}

static int only_files(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int gather_folder(struct sl_bench_results *results, const char *path, struct sl_err *err)
{
    struct dirent **entries;
    int count = scandir(path, &entries, only_files, alphasort), done = 0;
    if (count < 0)
        return sl_fail_errno(err, SL_E_NOT_FOUND, errno, "cannot list '%s'", path);
    for (int i = 0; i < count; i++) {
        struct stat status;
        sl_autofree char *file =
            done < 0 ? NULL : sl_asprintf(err, "%s/%s", path, entries[i]->d_name);
        if (done == 0 && !file)
            done = -1;
        if (done == 0 && stat(file, &status) == 0 && S_ISREG(status.st_mode))
            done = gather_file(results, file, err);
        free(entries[i]);
    }
    free(entries);
    return done;
}

int sl_bench_gather_path(struct sl_bench_results *results, const char *path, struct sl_err *err)
{
    struct stat status;
    if (strcmp(path, "-") != 0 && stat(path, &status) == 0 && S_ISDIR(status.st_mode))
        return gather_folder(results, path, err);
    return gather_file(results, path, err);
}
