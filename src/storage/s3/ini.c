/*
 * One pass over the lines. The AWS dialect is that of Python's configparser as botocore uses it: a
 * line that is indented deeper than the key above it belongs to that key, which is how the block
 * `s3 =` holds its own keys; a section whose keys are all indented is not nested. Continuations
 * without '=' (values over several lines) hold nothing that is needed here and are passed over.
 */
#include "ini.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "mem.h"

struct parser {
    const char *file_name;
    enum sl_ini_dialect dialect;
    int (*each)(const struct sl_ini_item *item, void *arg, struct sl_err *err);
    void *arg;
    unsigned line;
    size_t indent; /* of the last key that was not nested */
    bool has_key;  /* since the section began */
    char section[256], parent[128], line_text[SL_INI_LINE_MAX];
};

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t bytes = strlen(text);
    while (bytes && isspace((unsigned char)text[bytes - 1]))
        text[--bytes] = 0;
    return text;
}

static int parse_section(struct parser *p, char *text, struct sl_err *err)
{
    char *end = strchr(text, ']');
    if (!end)
        return sl_fail(err, SL_E_USAGE, "%s:%u: section name without ']'", p->file_name, p->line);
    *end = 0;
    const char *name = trim(text + 1);
    if (!*name || strlen(name) >= sizeof(p->section))
        return sl_fail(err, SL_E_USAGE, "%s:%u: section name of %zu bytes, expected 1 to %zu",
                       p->file_name, p->line, strlen(name), sizeof(p->section) - 1);
    snprintf(p->section, sizeof(p->section), "%s", name);
    p->has_key = false;
    p->parent[0] = 0;
    return 0;
}

/* " # comment" after a value, as the AWS tools other than botocore allow. */
static void cut_comment(char *value)
{
    for (char *c = value; *c; c++)
        if ((*c == '#' || *c == ';') && c > value && isspace((unsigned char)c[-1])) {
            *c = 0;
            return;
        }
}

static char *unquote(char *value)
{
    size_t bytes = strlen(value);
    if (bytes < 2 || value[0] != '"' || value[bytes - 1] != '"')
        return value;
    value[bytes - 1] = 0;
    return value + 1;
}

static int parse_item(struct parser *p, char *text, size_t indent, struct sl_err *err)
{
    bool nested = p->dialect == SL_INI_AWS && p->has_key && indent > p->indent;
    char *equals = strchr(text, '=');
    if (!equals && nested)
        return 0;
    if (!equals)
        return sl_fail(err, SL_E_USAGE, "%s:%u: expected 'key = value', a [section] or a # comment",
                       p->file_name, p->line);
    *equals = 0;
    char *key = trim(text), *value = equals + 1;
    if (p->dialect == SL_INI_AWS)
        cut_comment(value);
    value = trim(value);
    if (p->dialect == SL_INI_S3CMD)
        value = unquote(value);
    if (!*key || strlen(key) >= sizeof(p->parent))
        return sl_fail(err, SL_E_USAGE, "%s:%u: key of %zu bytes, expected 1 to %zu", p->file_name,
                       p->line, strlen(key), sizeof(p->parent) - 1);
    for (char *c = key; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (!nested) {
        p->has_key = true;
        p->indent = indent;
        snprintf(p->parent, sizeof(p->parent), "%s", key);
    }
    const struct sl_ini_item item = {.section = p->section,
                                     .parent = nested ? p->parent : "",
                                     .key = key,
                                     .value = value,
                                     .line = p->line};
    return p->each(&item, p->arg, err);
}

static int parse_line(struct parser *p, const char *data, size_t bytes, struct sl_err *err)
{
    if (bytes >= sizeof(p->line_text))
        return sl_fail(err, SL_E_USAGE, "%s:%u: line of %zu bytes, limit %d", p->file_name, p->line,
                       bytes, SL_INI_LINE_MAX - 1);
    if (memchr(data, 0, bytes))
        return sl_fail(err, SL_E_USAGE, "%s:%u: NUL byte: this is not a text file", p->file_name,
                       p->line);
    memcpy(p->line_text, data, bytes);
    p->line_text[bytes] = 0;
    size_t indent = strspn(p->line_text, " \t");
    char *text = trim(p->line_text);
    if (!*text || *text == '#' || (*text == ';' && p->dialect == SL_INI_AWS))
        return 0;
    if (*text == '[')
        return parse_section(p, text, err);
    return parse_item(p, text, indent, err);
}

/* Its line may hold a secret. */
static void free_parser(struct parser **p)
{
    if (*p)
        explicit_bzero(*p, sizeof(**p));
    free(*p);
}

int sl_ini_parse(const char *text, size_t bytes, const char *file_name, enum sl_ini_dialect dialect,
                 int (*each)(const struct sl_ini_item *item, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err)
{
    if (bytes > SL_INI_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: %zu bytes, limit %d", file_name, bytes,
                       SL_INI_BYTES_MAX);
    __attribute__((cleanup(free_parser))) struct parser *p = sl_alloc(sizeof(*p), err);
    if (!p)
        return -1;
    p->file_name = file_name;
    p->dialect = dialect;
    p->each = each;
    p->arg = arg;
    const char *end = text + bytes;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t line_bytes = (size_t)((stop ? stop : end) - text);
        p->line++;
        if (parse_line(p, text, line_bytes, err) < 0)
            return -1;
        text += line_bytes + (stop != NULL);
    }
    return 0;
}
