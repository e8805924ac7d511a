/*
 * `sink.caches`: engine caches beside the model. A set of them is code that the engine will run, so
 * what is checked here is above all who may have written it: a key's owner, or whoever writes to a
 * place that is of no model of the file.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "spec_decode.h"
#include "stores.h"
#include "url.h"

enum { LABEL_BYTES_MAX = 256 };

/* ---- one value ------------------------------------------------------------------------------ */

/* Does a path have this component? */
static bool has_component(const char *path, const char *component)
{
    size_t bytes = strlen(component);
    for (const char *at = path; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (strncmp(at, component, bytes) == 0 && (at[bytes] == '/' || !at[bytes]))
            return true;
    }
    return false;
}

static int check_path(const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (bytes > 1 && bytes < 1024 && *text == '/' && text[bytes - 1] != '/' &&
        !strstr(text, "//") && !has_component(text, ".") && !has_component(text, ".."))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%.200s' is not an absolute path without '.', '..' and a slash at its end: "
                   "engines find their caches by the same path alone",
                   text);
}

static int check_url(const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (!bytes || text[bytes - 1] != '/' || has_component(text, ".") || has_component(text, ".."))
        return sl_fail(err, SL_E_USAGE,
                       "'%.200s' is not a prefix: end it in '/', without '.' and '..'", text);
    return sl_spec_check_uri(text, err);
}

static int check_label(const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return sl_fail(err, SL_E_USAGE, "a label has no control characters");
    if (bytes <= LABEL_BYTES_MAX)
        return 0;
    return sl_fail(err, SL_E_USAGE, "a label has at most %d bytes", LABEL_BYTES_MAX);
}

static int check_ready(const char *text, struct sl_err *err)
{
    sl_autourl url = {0};
    return sl_url_parse(text, &url, err);
}

static const struct sl_option rows[] = {
    SL_OPTION(sl_spec_sets, path, STRING, "",
              "where they are, absolute, in a folder of their own that is not in the model's; each "
              "path has sets of its own, since engines know their caches by it",
              .required = true, .check = check_path, .value = "DIR"),
    SL_OPTION(sl_spec_sets, url, STRING, "",
              "the prefix, ending in /, below which a store keeps sets; not within the folder or "
              "path of any model of the file, nor around one. Options and credentials are those of "
              "'source'",
              .required = true, .check = check_url, .value = "URI"),
    SL_OPTION(sl_spec_sets, labels, MAP, "",
              "what else a set depends on, such as {engine: vllm-0.25.1, "
              "torch: 2.11.0, cuda: 13.0}: another label is another set",
              .check = check_label),
    SL_OPTION(sl_spec_sets, variant, STRING, "",
              "one more such text, for settings of the engine, such as tp8-fp8",
              .check = check_label),
    SL_OPTION(sl_spec_sets, trust, CHOICE, "signed",
              "which sets are used: signed, by the key that is named here, or all that the store "
              "has. Who can write a set runs code in every engine that restores it",
              .choices = "signed|store"),
    SL_OPTION(sl_spec_sets, public_key, STRING, "",
              "the key of minisign that signs sets, 56 characters", .check = sl_spec_check_minisign,
              .pattern = "^RW[A-Za-z0-9+/]{54}$", .value = "KEY"),
    SL_OPTION(sl_spec_sets, public_key_file, STRING, "",
              "a file that holds the key, as `minisign -G` writes it", .value = "FILE"),
    SL_OPTION(sl_spec_sets, restore_seconds, UINT, "60",
              "limit for restoring; then the engine starts without", .minimum = 1,
              .maximum = 86400),
    SL_OPTION(sl_spec_sets, save, BOOL, "false",
              "whether `sluice caches save` and `sluice load --stay` may save a set"),
    SL_OPTION(sl_spec_sets, secret_key_file, STRING, "",
              "secret key to sign what is saved, a file of `minisign -G -W`, without a password",
              .value = "FILE"),
    SL_OPTION(sl_spec_sets, ready, STRING, "",
              "with `sluice load --stay`: what the engine answers with 200 when it has started; "
              "then, once its caches stand still, they are saved",
              .check = check_ready, .value = "URL"),
    SL_OPTION(sl_spec_sets, save_seconds, UINT, "3600", "limit for waiting for that and for saving",
              .minimum = 1, .maximum = 604800),
    SL_OPTION_END,
};
const struct sl_option_table sl_spec_sets_table = {"caches", sizeof(struct sl_spec_sets), rows};

/* ---- who may write there --------------------------------------------------------------------- */

/* The folder of a URI, so that two of one folder have one beginning: without a scheme for files,
 * without doubled slashes and ".", ".." gone up, decoded. NULL: no memory, or none can be made. */
static char *canonical_folder(const char *uri)
{
    sl_autofree char *text = NULL;
    bool url = sl_uri_is_encoded(uri);
    text = url ? sl_url_decode(uri, strcspn(uri, "?#"), NULL) : sl_strdup(uri, NULL);
    char *folder = text ? sl_alloc(strlen(text) + 2, NULL) : NULL;
    if (!folder)
        return NULL;
    const char *at = strncasecmp(text, "file:", 5) == 0 ? text + 5 : text;
    const char *authority = strstr(at, "://");
    size_t used = 0, least = 0;
    if (authority) {
        least = (size_t)(authority - at) + 3;
        least += strcspn(at + least, "/");
        for (; used < least; used++)
            folder[used] = (char)tolower((unsigned char)at[used]);
        at += least;
    }
    for (const char *slash; (slash = strchr(at, '/')); at = slash + 1) {
        size_t bytes = (size_t)(slash - at);
        if (bytes == 2 && memcmp(at, "..", 2) == 0) {
            while (used > least && folder[--used] != '/')
                ;
        } else if (bytes && !(bytes == 1 && *at == '.')) {
            folder[used++] = '/';
            memcpy(folder + used, at, bytes);
            used += bytes;
        }
    }
    folder[used] = '/';
    folder[used + 1] = 0;
    return folder;
}

/* Does one of two folders lie in the other? Unknown counts as yes. */
static bool meet(const char *a, const char *b)
{
    sl_autofree char *x = canonical_folder(a), *y = canonical_folder(b);
    return !x || !y || strncmp(x, y, SL_MIN(strlen(x), strlen(y))) == 0;
}

/* May whoever wrote this model write the caches of that one, or their sets? */
static void check_apart(const struct sl_spec_sets *sets, const struct sl_spec *model,
                        struct sl_mark mark, struct sl_complaints *complaints)
{
    char path[1026] = "", published[1026] = "";
    const struct sl_spec_source *source = &model->source;
    const char *name = model->metadata.name ? model->metadata.name : "";
    bool met = false;
    if (model->sink.tmpfs.path)
        snprintf(published, sizeof(published), "%.1024s/", model->sink.tmpfs.path);
    if (sets->path)
        snprintf(path, sizeof(path), "%.1024s/", sets->path);
    for (size_t i = 0; sets->url && i <= source->mirrors.count; i++) {
        const char *uri = i ? source->mirrors.items[i - 1] : source->uri;
        met |= uri && meet(sets->url, uri);
    }
    met |= sets->url && *published && meet(sets->url, published);
    if (met)
        sl_complain(complaints, mark,
                    "'caches.url' and a folder of the model '%.64s' lie within each other "
                    "(%.160s): the model's writers could write code for the engine; name another "
                    "prefix",
                    name, sets->url);
    if (*path && *published && meet(path, published))
        sl_complain(complaints, mark,
                    "'caches.path' and the path of the model '%.64s' lie within each other: give "
                    "each a folder of its own",
                    name);
}

void sl_spec_check_all_sets(const struct sl_specs *specs, struct sl_complaints *complaints)
{
    const struct sl_spec *owner = NULL;
    const struct sl_mark nowhere = {.line = 0};
    for (size_t i = 0; i < specs->count; i++) {
        const struct sl_spec *spec = &specs->items[i];
        if (!spec->sink.caches.path)
            continue;
        if (owner)
            sl_complain(complaints, nowhere,
                        "the models '%.64s' and '%.64s' both have 'sink.caches', and an engine has "
                        "one environment: leave it out of one of them",
                        owner->metadata.name, spec->metadata.name);
        owner = spec;
    }
    for (size_t i = 0; owner && i < specs->count; i++)
        if (&specs->items[i] != owner)
            check_apart(&owner->sink.caches, &specs->items[i], nowhere, complaints);
}

static void check_trust(const struct sl_spec_sets *sets, struct sl_mark mark,
                        struct sl_complaints *complaints)
{
    bool key = sets->public_key || sets->public_key_file;
    if (sets->public_key && sets->public_key_file)
        sl_complain(complaints, mark,
                    "'caches' takes either 'publicKey' or 'publicKeyFile', not both");
    if (sets->trust == SL_SETS_SIGNED && !key)
        sl_complain(complaints, mark,
                    "engine caches are code: name the key that signs them by 'publicKey' or "
                    "'publicKeyFile', or write 'trust: store' if only you can write to 'url'");
    if (sets->trust == SL_SETS_STORE && key)
        sl_complain(complaints, mark,
                    "'trust: store' uses what anybody wrote, signed or not: leave out that, or the "
                    "public key");
    if (sets->save && sets->trust == SL_SETS_SIGNED && !sets->secret_key_file)
        sl_complain(complaints, mark,
                    "'save: true' needs 'secretKeyFile', since what is not signed is not used");
}

void sl_spec_check_sets(const struct sl_yaml_node *root, const struct sl_spec *spec, bool placed,
                        struct sl_complaints *complaints)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "sink.caches");
    if (!pair || pair->value->kind == SL_YAML_NULL)
        return;
    if (placed)
        sl_complain(complaints, pair->mark,
                    "only `sluice load` restores engine caches: leave out 'caches' here");
    if (pair->value->kind != SL_YAML_MAP)
        return; /* said already */
    check_apart(&spec->sink.caches, spec, pair->mark, complaints);
    check_trust(&spec->sink.caches, pair->mark, complaints);
}
