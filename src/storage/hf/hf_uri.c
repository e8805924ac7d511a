/* What an hf:// or ms:// URI names. The grammar is that of Hugging Face's client; KServe's
 * ORG/NAME:REVISION is taken too. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "hf_store.h"

enum { NAME_BYTES_MAX = 96 };

static int refuse(const char *uri, struct sl_err *err, const char *why)
{
    const char *scheme = strncasecmp(uri, "hf:", 3) == 0 ? "hf" : "ms";
    return sl_fail(err, SL_E_USAGE,
                   "'%.300s' %s: expected %s://ORG/NAME[@REVISION][/PATH], such as "
                   "%s://Qwen/Qwen2.5-7B-Instruct",
                   uri, why, scheme, scheme);
}

/* As hubs allow it: it becomes part of URLs and of folders' names. */
static bool is_name(const char *text, size_t bytes)
{
    if (bytes < 1 || bytes > NAME_BYTES_MAX || strchr("-.", text[0]) ||
        strchr("-.", text[bytes - 1]))
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!isalnum((unsigned char)text[i]) && !strchr("-_.", text[i]))
            return false;
        if (i && strchr("-.", text[i]) && text[i] == text[i - 1])
            return false;
    }
    return true;
}

/* "models/" and so on: what comes first, and is left out of `rest`. */
static int take_kind(const char *uri, const char **rest, struct sl_hf_uri *parts,
                     struct sl_err *err)
{
    static const char *const kinds[] = {"datasets/", "spaces/", "buckets/"};
    parts->kind = "";
    if (strncmp(*rest, "kernels/", 8) == 0)
        return refuse(uri, err, "names a kernel, which is a program and no model");
    if (strncmp(*rest, "models/", 7) == 0)
        *rest += 7;
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (strncmp(*rest, kinds[i], strlen(kinds[i])) == 0) {
            parts->kind = kinds[i];
            parts->bucket = kinds[i][0] == 'b';
            *rest += strlen(kinds[i]);
            return 0;
        }
    return 0;
}

/* Of what stands behind '@' or ':'. Refs of pull requests and conversions have slashes. */
static size_t revision_bytes(const char *text)
{
    static const char *const refs[] = {"refs/pr/", "refs/convert/"};
    for (size_t i = 0; i < SL_COUNT(refs); i++)
        if (strncmp(text, refs[i], strlen(refs[i])) == 0)
            return strlen(refs[i]) + strcspn(text + strlen(refs[i]), "/");
    return strcspn(text, "/");
}

static int take_revision(const char *uri, const char **rest, const char *usual,
                         struct sl_hf_uri *parts, struct sl_err *err)
{
    if (**rest != '@' && **rest != ':') {
        parts->revision = sl_strdup(usual, err);
        return parts->revision ? 0 : -1;
    }
    if (parts->bucket)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' names a revision, and buckets have none: expected "
                       "hf://buckets/ORG/NAME[/PATH]",
                       uri);
    size_t bytes = revision_bytes(*rest + 1);
    if (!bytes)
        return refuse(uri, err, "names no revision");
    if (bytes > SL_HF_REVISION_BYTES_MAX)
        return refuse(uri, err, "has a revision that is too long");
    parts->revision = sl_url_decode(*rest + 1, bytes, err);
    if (!parts->revision)
        return -1;
    for (const char *at = parts->revision; *at; at++)
        if ((unsigned char)*at <= 0x20 || *at == 0x7f)
            return refuse(uri, err, "has a blank or a control character in its revision");
    *rest += 1 + bytes;
    return 0;
}

int sl_hf_repository_parse(const char *uri, const char *rest, const char *usual,
                           struct sl_hf_uri *parts, struct sl_err *err)
{
    size_t org = strcspn(rest, "/"), name = rest[org] ? strcspn(rest + org + 1, "/@:") : 0;
    if (!is_name(rest, org) || !is_name(rest + org + 1, name))
        return refuse(uri, err, "names no repository");
    parts->repo = sl_strndup(rest, org + 1 + name, err);
    rest += org + 1 + name;
    if (!parts->repo || take_revision(uri, &rest, usual, parts, err) < 0)
        return -1;
    rest += *rest == '/';
    if (!sl_repository_path_is_plain(rest))
        return refuse(uri, err, "has an invalid path");
    parts->path = sl_strdup(rest, err);
    return parts->path ? 0 : -1;
}

int sl_hf_uri_parse(const char *uri, struct sl_hf_uri *parts, struct sl_err *err)
{
    *parts = (struct sl_hf_uri){.kind = ""};
    if (strncasecmp(uri, "hf://", 5) != 0)
        return refuse(uri, err, "is not an hf:// URI");
    const char *rest = uri + 5;
    return take_kind(uri, &rest, parts, err) < 0
               ? -1
               : sl_hf_repository_parse(uri, rest, parts->bucket ? "" : "main", parts, err);
}

void sl_hf_uri_release(struct sl_hf_uri *parts)
{
    free(parts->repo);
    free(parts->revision);
    free(parts->path);
    *parts = (struct sl_hf_uri){.kind = ""};
}
