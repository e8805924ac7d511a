/*
 * The patterns are those of Python's fnmatch, since that is what KServe's users tried them with;
 * the C library's differ in backslashes, in `[^a]` and in classes. A `*` that fails is extended by
 * one character and only the last one is ever extended, so the time is at most pattern times name.
 */
#include "patterns.h"

#include <ctype.h>
#include <string.h>

#include "json.h"

/* ---- matching ------------------------------------------------------------------------------- */

/* One character of UTF-8 at *text, which moves behind it; a byte that is none counts as itself. */
static uint32_t next_character(const char **text)
{
    const unsigned char *p = (const unsigned char *)*text;
    unsigned bytes = p[0] < 0xc0 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t value = bytes == 1 ? p[0] : p[0] & (0x7fu >> bytes);
    for (unsigned i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            bytes = 1;
            value = p[0];
            break;
        }
        value = value << 6 | (p[i] & 0x3f);
    }
    *text += bytes;
    return value;
}

/* Behind the `]` of the set whose inside begins here, NULL if there is none. */
static const char *set_end(const char *inside)
{
    const char *p = inside + (*inside == '!');
    p = strchr(*p == ']' ? p + 1 : p, ']');
    return p ? p + 1 : NULL;
}

static bool in_set(const char *inside, const char *end, uint32_t character)
{
    bool negated = *inside == '!', found = false;
    const char *p = inside + negated, *last = end - 1;
    while (p < last) {
        uint32_t low = next_character(&p), high = low;
        if (p + 1 < last && *p == '-') {
            p++;
            high = next_character(&p);
        }
        found |= low <= character && character <= high;
    }
    return found != negated;
}

/* One character of the name against the part of the pattern at *pattern, which moves behind it. */
static bool match_one(const char **pattern, uint32_t character)
{
    const char *p = *pattern, *end;
    if (*p == '?') {
        ++*pattern;
        return true;
    }
    if (*p == '[' && (end = set_end(p + 1))) {
        *pattern = end;
        return in_set(p + 1, end, character);
    }
    return next_character(pattern) == character;
}

bool sl_pattern_matches(const char *pattern, const char *name)
{
    const char *after_star = NULL, *star_name = NULL;
    while (*name) {
        const char *p = pattern, *n = name;
        if (*p == '*') {
            after_star = pattern = p + 1;
            star_name = name;
            continue;
        }
        if (*p && match_one(&p, next_character(&n))) {
            pattern = p;
            name = n;
            continue;
        }
        if (!after_star)
            return false;
        next_character(&star_name);
        pattern = after_star;
        name = star_name;
    }
    return pattern[strspn(pattern, "*")] == 0;
}

static bool any_matches(const struct sl_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (sl_pattern_matches(list->items[i], name))
            return true;
    return false;
}

bool sl_patterns_want(const struct sl_patterns *patterns, const char *name)
{
    return (patterns->allow.count == 0 || any_matches(&patterns->allow, name)) &&
           !any_matches(&patterns->ignore, name);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int add(const char *variable, const char *text, size_t bytes, struct sl_list *list,
               struct sl_err *err)
{
    while (bytes && isspace((unsigned char)text[bytes - 1]))
        bytes--;
    for (; bytes && isspace((unsigned char)*text); bytes--)
        text++;
    if (bytes == 0)
        return 0;
    if (bytes > SL_PATTERN_BYTES_MAX || list->count == SL_PATTERNS_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: pattern %zu is %s", variable, list->count + 1,
                       bytes > SL_PATTERN_BYTES_MAX ? "longer than 1024 bytes"
                                                    : "one too many, the limit is 1000");
    return sl_list_add(list, text, bytes, err);
}

static int split(const char *variable, const char *text, struct sl_list *list, struct sl_err *err)
{
    for (;; text++) {
        size_t bytes = strcspn(text, ",");
        if (add(variable, text, bytes, list, err) < 0)
            return -1;
        text += bytes;
        if (!*text)
            return 0;
    }
}

static int take_items(const char *variable, const json_t *array, struct sl_list *list,
                      struct sl_err *err)
{
    const json_t *item;
    size_t i;
    json_array_foreach(array, i, item)
    {
        if (!json_is_string(item))
            return sl_fail(err, SL_E_USAGE, "%s: item %zu is not a string", variable, i + 1);
        if (add(variable, json_string_value(item), json_string_length(item), list, err) < 0)
            return -1;
    }
    return 0;
}

/* "[ab]*.json" begins like an array, too, but holds no string there. */
static bool is_json(const char *text)
{
    const char *next = text + 1 + strspn(text + 1, " \t\r\n");
    return *text == '"' || *text == '{' || (*text == '[' && (*next == '"' || *next == ']'));
}

int sl_patterns_parse(const char *variable, const char *text, struct sl_list *list,
                      struct sl_err *err)
{
    text += text ? strspn(text, " \t\r\n") : 0;
    if (!text || !*text)
        return 0;
    json_t *document = strchr("[\"{", *text) ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    int done = 0;
    if (json_is_array(document))
        done = take_items(variable, document, list, err);
    else if (json_is_string(document))
        done = add(variable, json_string_value(document), json_string_length(document), list, err);
    else if (document || is_json(text))
        done = sl_fail(err, SL_E_USAGE,
                       "%s is not a list of patterns: expected [\"*.safetensors\", \"*.json\"] or "
                       "*.safetensors,*.json",
                       variable);
    else
        done = split(variable, text, list, err);
    json_decref(document);
    return done;
}

int sl_patterns_read(struct sl_patterns *patterns, struct sl_err *err)
{
    static const char allow[] = "STORAGE_ALLOW_PATTERNS", ignore[] = "STORAGE_IGNORE_PATTERNS";
    if (sl_patterns_parse(allow, getenv(allow), &patterns->allow, err) < 0)
        return -1;
    return sl_patterns_parse(ignore, getenv(ignore), &patterns->ignore, err);
}

static void release_list(struct sl_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct sl_list){0};
}

void sl_patterns_release(struct sl_patterns *patterns)
{
    release_list(&patterns->allow);
    release_list(&patterns->ignore);
}
