/*
 * Other programs that bring the same bytes to the same place, at the settings that were best for
 * each. A row says what a program can read; its arguments are a vector, with {uri} and the like
 * replaced, and never go through a shell.
 */
#include <string.h>

#include "bench_parts.h"
#include "file_store.h"
#include "http_store.h"
#include "s3_options.h"
#include "stores.h"

enum { ARGUMENT_BYTES_MAX = 16 * 1024, PROBE_SECONDS = 60 };

/* tensorizer has no program of its own; sys.argv[1] is the URI. */
static const char tensorizer_script[] =
    "import sys\n"
    "from tensorizer import TensorDeserializer, stream_io\n"
    "uri, endpoint = sys.argv[1], sys.argv[2]\n"
    "more = {}\n"
    "if endpoint:\n"
    "    more = {'s3_endpoint': endpoint.split('://')[-1], 'force_http': endpoint[:5] == 'http:'}\n"
    "with stream_io.open_stream(uri, 'rb', **more) as stream:\n"
    "    TensorDeserializer(stream, device='cpu').close()\n";

/* Which kinds of store, and whether many objects. */
enum { HTTP = 1, S3 = 2, LOCAL = 4, MANY = 8, TENSORS = 16 };

struct sl_bench_peer {
    const char *name, *program;
    unsigned takes;
    /* One argument each. {uri} {dir} {file} {origin} {path} {bucket} {key} {script}; those that
     * begin with '?' stand only with an endpoint of S3, with '!' only without credentials, with
     * '*' only for a folder and with '%' only for an object. */
    const char *arguments[24];
};

static const struct sl_bench_peer peers[] = {
    {"curl", "curl", HTTP, {"-sSf", "-o", "{file}", "{uri}"}},
    {"wget", "wget", HTTP, {"-q", "-O", "{file}", "{uri}"}},
    {"aria2c",
     "aria2c",
     HTTP,
     {"-q", "-x16", "-s16", "-k1M", "--file-allocation=none", "-d", "{dir}", "-o", "object",
      "{uri}"}},
    {"rclone",
     "rclone",
     HTTP | S3 | MANY,
     {"%copyto",
      "*copy",
      "{remote}",
      "%{file}",
      "*{dir}",
      "--multi-thread-streams",
      "4",
      "--multi-thread-cutoff",
      "10M",
      "--transfers",
      "8",
      "--checkers",
      "8",
      "--http-url",
      "{origin}",
      "--s3-provider",
      "Other",
      "--s3-env-auth",
      "--s3-force-path-style",
      "?--s3-endpoint",
      "?{endpoint}"}},
    {"s5cmd",
     "s5cmd",
     S3 | MANY,
     {"?--endpoint-url", "?{endpoint}", "!--no-sign-request", "cp", "%{uri}", "%{file}", "*{uri}*",
      "*{dir}/"}},
    {"aws",
     "aws",
     S3 | MANY,
     {"?--endpoint-url", "?{endpoint}", "!--no-sign-request", "s3", "cp", "--only-show-errors",
      "*--recursive", "{uri}", "%{file}", "*{dir}"}},
    {"tensorizer", "python3", HTTP | S3 | TENSORS, {"-c", "{script}", "{uri}", "{endpoint}"}},
    {"cp",
     "cp",
     LOCAL | MANY,
     {"%--", "%{path}", "%{file}", "*-r", "*--", "*{path}", "*{dir}/copy"}},
};

const struct sl_bench_peer *sl_bench_peer_at(size_t index)
{
    return index < SL_COUNT(peers) ? &peers[index] : NULL;
}

const struct sl_bench_peer *sl_bench_peer_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(peers); i++)
        if (strcmp(peers[i].name, name) == 0)
            return &peers[i];
    return NULL;
}

const char *sl_bench_peer_name(const struct sl_bench_peer *peer)
{
    return peer->name;
}

bool sl_bench_peer_writes(const struct sl_bench_peer *peer)
{
    return !(peer->takes & TENSORS);
}

static unsigned kind_of(const struct sl_bench_target *target)
{
    static const struct {
        const struct sl_store_kind *store;
        unsigned bit;
    } kinds[] = {{&sl_http_store, HTTP}, {&sl_s3_store, S3}, {&sl_file_store, LOCAL}};
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (strcmp(target->kind, kinds[i].store->name) == 0)
            return kinds[i].bit;
    return 0;
}

static bool is_tensors(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 8 && strcmp(name + bytes - 8, ".tensors") == 0;
}

static bool has_tensorizer(void)
{
    char program[] = "python3", flag[] = "-c", script[] = "import tensorizer";
    char *const argv[] = {program, flag, script, NULL};
    const struct sl_bench_child child = {argv, PROBE_SECONDS, NULL};
    struct sl_bench_sample sample;
    return sl_bench_child_run(&child, &sample, NULL) == 0;
}

const char *sl_bench_peer_unfit(const struct sl_bench_peer *peer,
                                const struct sl_bench_target *target)
{
    unsigned kind = kind_of(target);
    if (!(peer->takes & kind))
        return "it does not read from there";
    if (target->folder && (!(peer->takes & MANY) || kind == HTTP))
        return "it takes one object";
    if (target->chosen || (target->objects > 1 && !target->folder))
        return "it has no way to name the objects";
    if (strchr(target->uri, '@') || (kind == HTTP && strchr(target->uri, '?')))
        return "the URI may hold a secret, which would show in the list of processes";
    if ((peer->takes & TENSORS) && !is_tensors(target->name))
        return "it takes .tensors files";
    if (!sl_bench_program_found(peer->program))
        return "there is no such program in PATH";
    return (peer->takes & TENSORS) && !has_tensorizer() ? "python3 has no package of that name"
                                                        : NULL;
}

/* ---- arguments ------------------------------------------------------------------------------- */

void sl_bench_arguments_release(struct sl_bench_arguments *arguments)
{
    for (size_t i = 0; i < arguments->count; i++)
        free(arguments->items[i]);
    *arguments = (struct sl_bench_arguments){0};
}

/* "http://host:8080" of a URL, "host:8080/a" behind it is left out; the rest of it without '/'. */
static size_t origin_bytes(const char *uri)
{
    const char *host = strstr(uri, "://");
    return host ? (size_t)(host - uri) + 3 + strcspn(host + 3, "/") : 0;
}

static int put_remote(const struct sl_bench_target *target, struct sl_buf *out, struct sl_err *err)
{
    size_t origin = origin_bytes(target->uri);
    if (kind_of(target) == S3)
        return sl_buf_printf(out, err, ":s3:%s", target->uri + strlen("s3://"));
    return sl_buf_printf(out, err, ":http:%s", target->uri[origin] ? target->uri + origin + 1 : "");
}

/* Of a local file; another URI as it is. */
static int put_path(const char *uri, struct sl_buf *out, struct sl_err *err)
{
    sl_autofree char *path = sl_uri_is_local(uri) ? sl_file_path(uri, err) : sl_strdup(uri, err);
    return path ? sl_buf_text(out, path, err) : -1;
}

static int put_word(const struct sl_bench_target *target, const char *word, size_t bytes,
                    struct sl_buf *out, struct sl_err *err)
{
#define IS(text) (bytes == sizeof(text) - 1 && memcmp(word, text, bytes) == 0)
    const char *uri = target->uri;
    if (IS("uri"))
        return sl_buf_text(out, uri, err);
    if (IS("dir"))
        return sl_buf_text(out, target->directory, err);
    if (IS("file"))
        return sl_buf_printf(out, err, "%s/object", target->directory);
    if (IS("path"))
        return put_path(uri, out, err);
    if (IS("origin"))
        return kind_of(target) == HTTP ? sl_buf_append(out, uri, origin_bytes(uri), err) : 0;
    if (IS("endpoint"))
        return sl_buf_text(out, target->endpoint, err);
    if (IS("script"))
        return sl_buf_text(out, tensorizer_script, err);
    return put_remote(target, out, err);
#undef IS
}

static int expand(const struct sl_bench_target *target, const char *pattern, struct sl_buf *out,
                  struct sl_err *err)
{
    while (*pattern) {
        size_t plain = strcspn(pattern, "{");
        if (sl_buf_append(out, pattern, plain, err) < 0)
            return -1;
        pattern += plain;
        size_t word = *pattern ? strcspn(pattern, "}") : 0;
        if (word && put_word(target, pattern + 1, word - 1, out, err) < 0)
            return -1;
        pattern += word + (word > 0);
    }
    return 0;
}

/* Whether the argument stands for this target; *pattern loses its mark. */
static bool is_wanted(const struct sl_bench_target *target, const char **pattern)
{
    char mark = **pattern;
    *pattern += strchr("?!*%", mark) != NULL;
    return mark == '?'   ? *target->endpoint != 0
           : mark == '!' ? target->anonymous
           : mark == '*' ? target->folder
           : mark == '%' ? !target->folder
                         : true;
}

static int add(struct sl_bench_arguments *arguments, char *text, struct sl_err *err)
{
    if (!text)
        return -1;
    if (arguments->count == SL_BENCH_ARGUMENTS_MAX) {
        free(text);
        return sl_fail(err, SL_E_INTERNAL, "too many arguments of a peer");
    }
    arguments->items[arguments->count++] = text;
    return 0;
}

int sl_bench_peer_arguments(const struct sl_bench_peer *peer, const struct sl_bench_target *target,
                            struct sl_bench_arguments *arguments, struct sl_err *err)
{
    if (add(arguments, sl_strdup(peer->program, err), err) < 0)
        return -1;
    for (const char *const *row = peer->arguments; *row; row++) {
        const char *pattern = *row;
        sl_autobuf text = SL_BUF_INIT(ARGUMENT_BYTES_MAX);
        if (!is_wanted(target, &pattern))
            continue;
        if (expand(target, pattern, &text, err) < 0 ||
            add(arguments, sl_strdup(sl_buf_string(&text), err), err) < 0)
            return -1;
    }
    return 0;
}

int sl_bench_peer_run(const struct sl_bench_peer *peer, const struct sl_bench_target *target,
                      uint64_t limit_seconds, struct sl_cancel *cancel,
                      struct sl_bench_sample *sample, struct sl_err *err)
{
    struct sl_bench_arguments arguments = {0};
    int done = sl_bench_peer_arguments(peer, target, &arguments, err);
    if (done == 0) {
        const struct sl_bench_child child = {arguments.items, limit_seconds, cancel};
        done = sl_bench_child_run(&child, sample, err);
    }
    sl_bench_arguments_release(&arguments);
    return done;
}
