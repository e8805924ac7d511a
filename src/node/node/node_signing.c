/*
 * Names are compared in one form: the first scheme of their kind ("http" for https), no user, no
 * default port, escapes undone, revisions and tags cut off, all letters small. So a rule may catch
 * more than it says, and never less. What could still lead elsewhere (dots, empty parts,
 * backslashes) is refused where there are rules.
 */
#include "node_signing.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stores.h"
#include "uri_text.h"
#include "url.h"

enum { NAME_MAX_BYTES = 8192 };

/* A kind of store whose names may have more than one spelling. */
static const struct kind {
    const char *schemes[5]; /* the first stands for all */
    const char *port;       /* that need not be written */
    bool revisions;         /* "@REV" or ":TAG" behind a part */
    const char *skips;      /* a first part that says what is said already */
} kinds[] = {
    {{"http", "https"}, ":80", false, NULL},
    {{"s3"}, NULL, false, NULL},
    {{"gs"}, NULL, false, NULL},
    {{"az", "azure", "abfs", "abfss"}, NULL, false, NULL},
    {{"hf"}, NULL, true, "models/"},
    {{"ms", "modelscope"}, NULL, true, "models/"},
    {{"oci"}, NULL, true, NULL},
    {{"redis", "rediss"}, ":6379", false, NULL},
};

static const struct kind *find_kind(const char *scheme, size_t bytes)
{
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        for (size_t s = 0; s < SL_COUNT(kinds[i].schemes) && kinds[i].schemes[s]; s++)
            if (strlen(kinds[i].schemes[s]) == bytes &&
                strncasecmp(kinds[i].schemes[s], scheme, bytes) == 0)
                return &kinds[i];
    return NULL;
}

static void drop_end(char *text, const char *end)
{
    size_t bytes = strlen(text), suffix = strlen(end);
    if (bytes > suffix && strcmp(text + bytes - suffix, end) == 0)
        text[bytes - suffix] = 0;
}

/* "abfs://container@account.dfs.core.windows.net" is "account/container". */
static void write_authority(const struct kind *kind, const char *from, size_t bytes,
                            char to[NAME_MAX_BYTES])
{
    char text[NAME_MAX_BYTES];
    snprintf(text, sizeof(text), "%.*s", (int)bytes, from);
    char *at = strrchr(text, '@'), *host = at ? at + 1 : text;
    bool container = kind && strcmp(kind->schemes[0], "az") == 0 && at;
    if (container) {
        *at = 0;
        host[strcspn(host, ".")] = 0;
        snprintf(to, NAME_MAX_BYTES, "%s/%s", host, text);
        return;
    }
    if (kind && kind->port)
        drop_end(host, kind->port);
    if (kind && strcmp(kind->schemes[0], "http") == 0)
        drop_end(host, ":443");
    drop_end(host, ".");
    snprintf(to, NAME_MAX_BYTES, "%s", host);
}

/* The path part by part, without revisions where the kind has them. */
static int write_path(const struct kind *kind, const char *path, char to[NAME_MAX_BYTES])
{
    size_t used = 0;
    for (const char *part = path; *part;) {
        size_t bytes = strcspn(part, "/"), kept = bytes;
        bool dots = (bytes == 1 && *part == '.') || (bytes == 2 && memcmp(part, "..", 2) == 0);
        if (dots || !bytes || memchr(part, '\\', bytes))
            return -1;
        if (kind && kind->revisions)
            kept = SL_MIN(kept, strcspn(part, "@:"));
        if (used + kept + 2 > NAME_MAX_BYTES)
            return -1;
        memcpy(to + used, part, kept);
        used += kept;
        part += bytes;
        if (*part == '/') {
            to[used++] = '/';
            part++;
        }
    }
    to[used] = 0;
    return 0;
}

/* Of a path of this machine: where links lead, as far as it exists. */
static void follow_links(const char *path, char to[NAME_MAX_BYTES])
{
    char real[PATH_MAX];
    bool folder = *path && path[strlen(path) - 1] == '/';
    if (realpath(path, real))
        snprintf(to, NAME_MAX_BYTES, "%s%s", real, folder && strcmp(real, "/") != 0 ? "/" : "");
    else
        snprintf(to, NAME_MAX_BYTES, "%s", path);
}

/* The one form of a name; -1: it could mean another place. */
static int write_form(const char *uri, char form[NAME_MAX_BYTES])
{
    const char *scheme = strstr(uri, "://"), *path = scheme ? scheme + 3 : uri;
    const struct kind *kind = scheme ? find_kind(uri, (size_t)(scheme - uri)) : NULL;
    char authority[NAME_MAX_BYTES] = "", rest[NAME_MAX_BYTES], real[NAME_MAX_BYTES],
         bare[NAME_MAX_BYTES];
    if (strncmp(uri, "file:", 5) == 0)
        scheme = NULL, path = uri + 5 + (strncmp(uri + 5, "//", 2) == 0 ? 2 : 0);
    if (!scheme) {
        follow_links(path, real);
        path = real + (*real == '/');
    } else {
        size_t bytes = strcspn(path, "/?#");
        write_authority(kind, path, bytes, authority);
        path += bytes + (path[bytes] == '/');
    }
    if (kind && kind->skips && strncmp(authority, "models", 7) == 0)
        *authority = 0;
    snprintf(bare, sizeof(bare), "%.*s", (int)strcspn(path, scheme ? "?#" : ""), path);
    if (strlen(path) >= sizeof(bare) || write_path(kind, bare, rest) < 0)
        return -1;
    int length = snprintf(form, NAME_MAX_BYTES, "%.*s://%s%s%s",
                          kind     ? (int)strlen(kind->schemes[0])
                          : scheme ? (int)(scheme - uri)
                                   : 4,
                          kind     ? kind->schemes[0]
                          : scheme ? uri
                                   : "file",
                          authority, *authority ? "/" : "", rest);
    for (char *c = form; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return length > 0 && length < NAME_MAX_BYTES ? 0 : -1;
}

/* By whole parts of the path. */
static bool is_below(const char *prefix, const char *name)
{
    size_t bytes = strlen(prefix);
    if (strncmp(prefix, name, bytes) == 0 &&
        (!bytes || prefix[bytes - 1] == '/' || !name[bytes] || name[bytes] == '/'))
        return true;
    /* the folder itself, without its slash */
    return bytes && prefix[bytes - 1] == '/' && strlen(name) == bytes - 1 &&
           strncmp(prefix, name, bytes - 1) == 0;
}

static bool is_every(const struct sl_node_spec_signing *rule)
{
    return strcmp(rule->prefix, "*") == 0;
}

/* As it is written, and with its escapes undone: a server may read it either way. */
struct forms {
    char written[NAME_MAX_BYTES], read[NAME_MAX_BYTES];
};

static int make_forms(const char *uri, struct forms *forms)
{
    sl_autofree char *decoded = sl_url_decode(uri, strlen(uri), NULL);
    return decoded && write_form(uri, forms->written) == 0 ? write_form(decoded, forms->read) : -1;
}

static bool wants(const struct sl_node_spec_signing *rule, const char *uri,
                  const struct forms *forms)
{
    char prefix[NAME_MAX_BYTES];
    if (is_every(rule))
        return true;
    if (!sl_spec_signing_is_set(&rule->model_signing)) /* it takes away: to the letter */
        return is_below(rule->prefix, uri);
    return write_form(rule->prefix, prefix) == 0 &&
           (is_below(prefix, forms->written) || is_below(prefix, forms->read));
}

/* In one form, so that they can be compared. */
static size_t length_of(const struct sl_node_spec_signing *rule)
{
    char prefix[NAME_MAX_BYTES];
    return is_every(rule) || write_form(rule->prefix, prefix) < 0 ? 0 : strlen(prefix);
}

int sl_node_signing_find(const struct sl_items *rules, const char *uri,
                         const struct sl_node_spec_signing **found, struct sl_err *err)
{
    const struct sl_node_spec_signing *rule = rules->items;
    struct forms forms;
    bool by_name = false;
    *found = NULL;
    for (size_t i = 0; i < rules->count; i++)
        by_name = by_name || !is_every(&rule[i]);
    if (by_name && make_forms(uri, &forms) < 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' could mean another place than it says, and this node has rules "
                       "for who signs what: write it without '.', '..', empty parts, '\\' and "
                       "broken escapes",
                       uri);
    for (size_t i = 0; i < rules->count; i++)
        if (wants(&rule[i], uri, &forms) && (!*found || length_of(&rule[i]) > length_of(*found)))
            *found = &rule[i];
    if (*found && !sl_spec_signing_is_set(&(*found)->model_signing))
        *found = NULL;
    return 0;
}

int sl_node_signing_rule(const struct sl_items *rules, struct sl_spec *spec, struct sl_err *err)
{
    const struct sl_spec_source *source = &spec->source;
    const struct sl_node_spec_signing *rule = NULL, *other;
    if (!rules->count || !source->uri)
        return 0;
    if (sl_node_signing_find(rules, source->uri, &rule, err) < 0)
        return -1;
    for (size_t i = 0; i < source->mirrors.count; i++) {
        if (sl_node_signing_find(rules, source->mirrors.items[i], &other, err) < 0)
            return -1;
        if (rule && other && rule != other)
            return sl_fail(err, SL_E_USAGE,
                           "this node has one rule for who signs '%.200s' and another for its "
                           "mirror '%.200s': name the mirror in a model of its own",
                           source->uri, source->mirrors.items[i]);
        rule = rule ? rule : other;
    }
    if (!rule)
        return 0;
    return sl_spec_signing_copy(&rule->model_signing, &spec->verify.rule, err);
}
