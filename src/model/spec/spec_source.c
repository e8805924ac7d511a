/*
 * `source`: its own rows, and a section for each kind of store that has options.
 *
 * Which stores there are is known when the program runs, so the rows of the sections are made then;
 * the values lie one behind the other in sl_spec_source.stores.
 */
#include <assert.h>
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "concurrency.h"
#include "fork_guard.h"
#include "spec_decode.h"
#include "stores.h"
#include "url.h"

enum { SCHEMES_TEXT_BYTES = 400 };

/* One letter too many, too few or wrong: hardly the first. `ftp` is another protocol than `http`.
 */
static bool is_slip(const char *scheme, const char *near)
{
    size_t typed = strlen(scheme), meant = strlen(near);
    return tolower((unsigned char)*scheme) == *near && typed + 1 >= meant && typed <= meant + 1;
}

int sl_spec_check_uri(const char *text, struct sl_err *err)
{
    const char *schemes[SL_STORES_SCHEMES_MAX];
    size_t length = strcspn(text, ":/"), count = sl_stores_schemes(schemes);
    if (sl_uri_is_path(text))
        return 0;
    char scheme[32] = "";
    memcpy(scheme, text, length < sizeof(scheme) ? length : 0);
    for (size_t i = 0; i < count; i++)
        if (strcmp(scheme, schemes[i]) == 0)
            return sl_source_check_uri(text, err);
    const char *near = sl_nearest(scheme, schemes, count);
    if (near && !is_slip(scheme, near))
        near = NULL;
    char known[SCHEMES_TEXT_BYTES];
    sl_stores_name_schemes(known, sizeof(known));
    if (near)
        return sl_fail(err, SL_E_USAGE,
                       "'%s://' is not supported, did you mean '%s://'? There are: a path, %s",
                       scheme, near, known);
    return sl_fail(err, SL_E_USAGE, "'%.*s://' is not supported: use a path, or one of %s",
                   (int)SL_MIN(length, 64u), text, known);
}

static int check_cache(const char *text, struct sl_err *err)
{
    sl_autourl url = {0};
    if (sl_url_parse(text, &url, err) < 0)
        return -1;
    if (sl_url_is_host(&url))
        return 0;
    return sl_fail(err, SL_E_USAGE, "a cache is named as http://HOST:PORT, and no more");
}

/* "0.25" */
static int check_share(const char *text, struct sl_err *err)
{
    char *end;
    double share = strtod(text, &end);
    if (!text[strspn(text, "0123456789.")] && !*end && share > 0 && share <= 1)
        return 0;
    return sl_fail(err, SL_E_USAGE, "expected a number above 0 and at most 1, such as 0.25");
}

static const struct sl_option through_rows[] = {
    SL_OPTION(sl_spec_through, caches, LIST, "",
              "HTTP caches that ranges are asked of before the source itself, as http://HOST:PORT; "
              "a name with several addresses is as many caches",
              .check = check_cache, .flag = "through", .value = "URL"),
    SL_OPTION(
        sl_spec_through, block_bytes, BYTES, "8Mi",
        "each block of so many bytes has a cache of its own: the length of their slices, or a "
        "multiple of it",
        .minimum = 64 * 1024, .maximum = 1024 * 1024 * 1024),
    SL_OPTION(sl_spec_through, unverified, CHOICE, "refuse",
              "what nothing checks (no hash of it is known): refuse it, warn and compare samples "
              "with the source, or read it from the source directly",
              .choices = "refuse|warn|direct"),
    SL_OPTION(sl_spec_through, origin_share, STRING, "0.25",
              "of the blocks that are read at a time, at most this part is asked of the source "
              "because caches failed; the others wait for it, or for a cache. Above 0, up to 1",
              .pattern = "^(0?\\.[0-9]*[1-9][0-9]*|1(\\.0*)?)$", .check = check_share),
    SL_OPTION_END,
};
const struct sl_option_table sl_spec_through_table = {"through", sizeof(struct sl_spec_through),
                                                      through_rows};

static const struct sl_option rank_rows[] = {
    SL_OPTION(sl_spec_rank, index, UINT, "", "whose files to load, from 0", .minimum = 0,
              .maximum = 65535, .required = true),
    SL_OPTION(sl_spec_rank, of, UINT, "", "how many ranks the files were made for", .minimum = 1,
              .maximum = 65536, .required = true),
    SL_OPTION_END,
};
static const struct sl_option_table rank_table = {"rank", sizeof(struct sl_spec_rank), rank_rows};

static const struct sl_option before[] = {
    SL_OPTION(sl_spec_source, uri, STRING, "",
              "an object, a prefix with a slash at its end, or an index (*.index.json)",
              .required = true, .check = sl_spec_check_uri, .value = "URI"),
    SL_OPTION(sl_spec_source, include, LIST, "",
              "objects below a prefix to load, as shell patterns on the name below the prefix; "
              "without any, all of them"),
    SL_OPTION(sl_spec_source, exclude, LIST, "",
              "objects below a prefix to leave out, as shell patterns"),
    SL_OPTION(sl_spec_source, as_is, LIST, "",
              "objects to take as they are, whatever is in them, as shell patterns: files that are "
              "refused as broken, too"),
    SL_OPTION(
        sl_spec_source, incomplete, CHOICE, "refuse",
        "what becomes of a model of which something is missing that it names itself (shards of "
        "an index, numbered files, folders of a pipeline): refuse it, or warn and load it. "
        "What include and exclude leave out is not missing",
        .choices = "refuse|warn"),
    SL_OPTION(sl_spec_source, rank, SECTION, "",
              "of a folder whose files are one rank's each (model-rank-R-part-P.safetensors, "
              "rankR.safetensors, model-rank-00R.tensors and the like): load those of this rank, "
              "and files that hold no weights",
              .section = &rank_table),
    SL_OPTION(
        sl_spec_source, mirrors, LIST, "",
        "other URIs with the same bytes, tried in this order when the source cannot be reached",
        .check = sl_spec_check_uri),
    SL_OPTION(sl_spec_source, through, SECTION, "",
              "HTTP caches between here and the source; a URL, or a list of them, is its 'caches'; "
              "[] is none, whatever others name",
              .section = &sl_spec_through_table, .brief = "caches"),
};
static const struct sl_option after = SL_OPTION(
    sl_spec_source, tls, SECTION, "", "TLS of https, s3 and rediss", .section = &sl_tls_table);

static struct sl_option rows[SL_COUNT(before) + SL_STORE_KINDS_MAX + 2];
const struct sl_option_table sl_spec_source_table = {"source", sizeof(struct sl_spec_source), rows};

static struct {
    pthread_mutex_t mutex;
    size_t kinds, kinds_with_options, bytes;
} locked = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&locked.mutex, NULL)

/* Under the lock. A store that does not fit is a mistake of whoever wrote its row. */
static void add_kind(const struct sl_store_kind *kind)
{
    size_t number = SL_COUNT(before) + locked.kinds_with_options;
    size_t offset = (locked.bytes + _Alignof(max_align_t) - 1) & ~(_Alignof(max_align_t) - 1);
    if (!kind->options)
        return;
    assert(offset + kind->options->struct_bytes <= SL_SPEC_STORES_BYTES);
    rows[number + 1] = after;
    rows[number] = (struct sl_option){
        .member = kind->options->name,
        .type = SL_OPTION_SECTION,
        .offset = offsetof(struct sl_spec_source, stores) + offset,
        .initial = "",
        .help = kind->options_help,
        .section = kind->options,
    };
    locked.bytes = offset + kind->options->struct_bytes;
    locked.kinds_with_options++;
}

void sl_spec_add_stores(void)
{
    SL_LOCKED(&locked.mutex);
    if (!rows[0].member) {
        memcpy(rows, before, sizeof(before));
        rows[SL_COUNT(before)] = after;
    }
    for (; sl_stores_at(locked.kinds); locked.kinds++)
        add_kind(sl_stores_at(locked.kinds));
}

const void *sl_spec_store_options(const struct sl_spec *spec, const struct sl_option_table *table)
{
    for (const struct sl_option *row = rows; row->member; row++)
        if (row->section == table)
            return (const char *)&spec->source + row->offset;
    return NULL;
}

static bool names(const struct sl_yaml_node *section, const char *key)
{
    const struct sl_yaml_pair *pair = sl_yaml_get(section, key);
    return pair && pair->value->kind != SL_YAML_NULL;
}

void sl_spec_note_through(const struct sl_yaml_pair *pair, struct sl_spec_through *through)
{
    const struct sl_yaml_node *node = pair ? pair->value : NULL;
    bool in_brief = node && (node->kind == SL_YAML_TEXT || node->kind == SL_YAML_LIST);
    through->named.caches = in_brief || names(node, "caches");
    through->named.block_bytes = names(node, "blockBytes");
    through->named.unverified = names(node, "unverified");
    through->named.origin_share = names(node, "originShare");
}

int sl_spec_take_through(struct sl_spec *spec, const char *text, struct sl_err *err)
{
    struct sl_spec_through *through = &spec->source.through;
    if (through->named.caches || !text || !*text)
        return 0;
    return sl_option_set(&through_rows[0], through, text, false, err);
}

int sl_spec_inherit_through(struct sl_spec *spec, const struct sl_spec_through *from,
                            struct sl_err *err)
{
    struct sl_spec_through *through = &spec->source.through;
    if (through->named.caches)
        return 0;
    if (from->named.block_bytes && !through->named.block_bytes)
        through->block_bytes = from->block_bytes;
    if (from->named.unverified && !through->named.unverified)
        through->unverified = from->unverified;
    if (from->named.origin_share && !through->named.origin_share) {
        char *share = sl_strdup(from->origin_share, err);
        if (!share)
            return -1;
        free(through->origin_share);
        through->origin_share = share;
    }
    if (!from->named.caches)
        return 0;
    for (size_t i = 0; i < through->caches.count; i++) /* of the environment */
        free(through->caches.items[i]);
    through->caches.count = 0;
    for (size_t i = 0; i < from->caches.count; i++)
        if (sl_list_add(&through->caches, from->caches.items[i], strlen(from->caches.items[i]),
                        err) < 0)
            return -1;
    return 0;
}

/* A store may be about to start, and a Pod waits for it; a person has mistyped its name. */
static void set_patience(const struct sl_spec *spec, struct sl_source_config *config)
{
    enum { USUAL = 60, AT_A_TERMINAL = 10, FOR_A_NAME = 2 };
    bool chosen = spec->readers.unreachable_seconds != SL_AUTO_VALUE;
    bool watched = !chosen && isatty(STDERR_FILENO);
    config->unreachable_seconds = watched ? AT_A_TERMINAL : USUAL;
    if (chosen)
        config->unreachable_seconds = (unsigned)spec->readers.unreachable_seconds;
    config->unresolved_seconds = watched ? FOR_A_NAME : 0;
}

void sl_spec_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_progress *progress, struct sl_source_config *config)
{
    size_t used = 0;
    const char *origin_share = spec->source.through.origin_share;
    *config = (struct sl_source_config){
        .tls = &spec->source.tls,
        .stall_seconds = (unsigned)spec->readers.stall_seconds,
        .attempts = (unsigned)spec->readers.attempts,
        .hedge = (enum sl_hedge)spec->readers.hedge,
        .host_connections =
            sl_concurrency_per_host(spec->readers.connections_per_host, spec->readers.connections),
        .idle_seconds = (unsigned)spec->readers.idle_seconds,
        .preconnect_always = spec->fixed.on,
        .openings = sl_concurrency_openings(&spec->fixed, spec->readers.connections),
        .bandwidth = spec->readers.bandwidth,
        .cancel = cancel,
        .progress = progress,
        .beneath_bytes = spec->source.beneath_bytes,
        .credentials = *spec->source.credentials ? spec->source.credentials : NULL,
        .through = {.urls = (const char *const *)spec->source.through.caches.items,
                    .count = (unsigned)spec->source.through.caches.count,
                    .block_bytes = spec->source.through.block_bytes,
                    .unverified = (enum sl_unverified)spec->source.through.unverified,
                    .waits = spec->readers.hedge == SL_HEDGE_OFF,
                    .origin_share = origin_share ? strtod(origin_share, NULL) : 0},
    };
    set_patience(spec, config);
    for (size_t i = 0; sl_stores_at(i); i++) {
        const struct sl_option_table *table = sl_stores_at(i)->options;
        const void *values = table ? sl_spec_store_options(spec, table) : NULL;
        if (values)
            config->options[used++] = (struct sl_store_options){table, values};
    }
}
