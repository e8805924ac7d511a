/*
 * From libyaml's events to a tree. We walk the events ourselves because every complaint needs its
 * line, duplicate keys are mistakes, and aliases must not be able to grow a small file into a large
 * tree: an alias shares the node of its anchor and pays for all the nodes below it.
 */
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "spec_node.h"

enum {
    DEPTH_MAX = 32,
    NODES_MAX = 50000, /* of all documents of a file, aliases counted as often as they are used */
    PAIRS_MAX = 10000, /* keys of one mapping */
    ANCHORS_MAX = 1000,
    SCALAR_BYTES_MAX = 64 * 1024,
    TEXT_BYTES_MAX = 8 * 1024 * 1024, /* all scalars of a document after replacement */
};

struct anchor {
    char *name;
    struct sl_yaml_node *node;
};

struct sl_yaml {
    const uint8_t *text; /* borrowed */
    size_t bytes;
    yaml_parser_t parser;
    bool variables;
    struct sl_complaints *complaints;
    size_t nodes;
    struct anchor anchors[ANCHORS_MAX];
    size_t anchor_count;
};

static void forget_anchors(struct sl_yaml *yaml)
{
    for (size_t i = 0; i < yaml->anchor_count; i++)
        free(yaml->anchors[i].name);
    yaml->anchor_count = 0;
}

void sl_yaml_free(struct sl_yaml *yaml)
{
    if (!yaml)
        return;
    forget_anchors(yaml);
    yaml_parser_delete(&yaml->parser);
    free(yaml);
}

struct sl_yaml *sl_yaml_open(const char *text, size_t bytes, bool variables,
                             struct sl_complaints *complaints, struct sl_err *err)
{
    struct sl_yaml *yaml = sl_alloc(sizeof(*yaml), err);
    if (!yaml)
        return NULL;
    if (!yaml_parser_initialize(&yaml->parser)) {
        sl_fail(err, SL_E_NO_SPACE, "out of memory for a YAML parser");
        free(yaml);
        return NULL;
    }
    yaml_parser_set_input_string(&yaml->parser, (const unsigned char *)text, bytes);
    yaml->text = (const uint8_t *)text;
    yaml->bytes = bytes;
    yaml->variables = variables;
    yaml->complaints = complaints;
    return yaml;
}

static struct sl_mark mark_of(yaml_mark_t mark)
{
    return (struct sl_mark){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1, NULL};
}

/* A complaint after which no tree can be built. */
static int stop(struct sl_yaml *yaml, yaml_mark_t mark, struct sl_err *err, const char *why)
{
    sl_complain(yaml->complaints, mark_of(mark), "%s", why);
    return sl_fail(err, SL_E_USAGE, "%s", why);
}

/* The parser tells of bytes that are no text by their offset alone. Columns count characters. */
static yaml_mark_t mark_at_byte(const struct sl_yaml *yaml, size_t offset)
{
    yaml_mark_t mark = {0};
    for (size_t i = 0; i < offset && i < yaml->bytes; i++) {
        bool newline = yaml->text[i] == '\n';
        mark.line += newline;
        mark.column = newline ? 0 : mark.column + ((yaml->text[i] & 0xc0) != 0x80);
    }
    return mark;
}

static int refuse_byte(struct sl_yaml *yaml, struct sl_err *err)
{
    char why[256];
    size_t offset = yaml->parser.problem_offset;
    unsigned byte = offset < yaml->bytes ? yaml->text[offset] : 0;
    snprintf(why, sizeof(why), "%s (byte 0x%02x): the file must be UTF-8 text",
             yaml->parser.problem ? yaml->parser.problem : "no text", byte);
    return stop(yaml, mark_at_byte(yaml, offset), err, why);
}

/* Marks count characters; right where nothing but ASCII stands before it. 0: there is none. */
static char char_at(const struct sl_yaml *yaml, yaml_mark_t mark)
{
    const uint8_t *at = yaml->text, *end = yaml->text + yaml->bytes;
    for (size_t line = 0; at && line < mark.line; line++)
        if ((at = memchr(at, '\n', (size_t)(end - at))))
            at++;
    return at && (size_t)(end - at) > mark.column ? (char)at[mark.column] : 0;
}

/* A tab where a token should begin has nothing but blanks before it. */
static bool is_tab(const struct sl_yaml *yaml, yaml_mark_t mark)
{
    return char_at(yaml, mark) == '\t';
}

/* "include: *.safetensors" begins an alias, '@' and '`' are reserved. */
static bool is_unquoted(const struct sl_yaml *yaml, yaml_mark_t *mark)
{
    const char *context = yaml->parser.context ? yaml->parser.context : "";
    if (strstr(context, "an alias") || strstr(context, "an anchor"))
        *mark = yaml->parser.context_mark;
    char begins = char_at(yaml, *mark);
    return begins && strchr("*&@`%", begins);
}

/* "{path: ${DIR}/m}": within brackets the second one begins a mapping. */
static bool is_bare_variable(const struct sl_yaml *yaml, yaml_mark_t mark)
{
    const yaml_mark_t before = {.line = mark.line, .column = mark.column - 1};
    return mark.column && char_at(yaml, mark) == '{' && char_at(yaml, before) == '$';
}

/* What is missing is found only where the next thing begins, lines after the bracket. */
static bool is_open_bracket(const yaml_parser_t *parser)
{
    return parser->error == YAML_PARSER_ERROR && parser->problem && parser->context &&
           strstr(parser->context, " flow ") &&
           parser->problem_mark.line > parser->context_mark.line;
}

static int next_event(struct sl_yaml *yaml, yaml_event_t *event, struct sl_err *err)
{
    yaml_parser_t *parser = &yaml->parser;
    if (yaml_parser_parse(parser, event))
        return 0;
    if (parser->error == YAML_MEMORY_ERROR)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory while reading YAML");
    if (parser->error == YAML_READER_ERROR)
        return refuse_byte(yaml, err);
    char why[256];
    yaml_mark_t mark = parser->problem_mark;
    snprintf(why, sizeof(why), "%s%s%s", parser->problem ? parser->problem : "no YAML",
             parser->context ? ", " : "", parser->context ? parser->context : "");
    if (parser->error == YAML_SCANNER_ERROR && is_tab(yaml, mark))
        snprintf(why, sizeof(why), "a tab: YAML is indented with spaces");
    if (parser->error == YAML_SCANNER_ERROR && is_unquoted(yaml, &mark))
        snprintf(why, sizeof(why), "a value that begins with '%c' needs quotes around it",
                 char_at(yaml, mark));
    if (parser->error == YAML_PARSER_ERROR && is_bare_variable(yaml, mark))
        snprintf(why, sizeof(why), "between brackets a value with ${NAME} needs quotes around it");
    if (is_open_bracket(parser)) {
        mark = parser->context_mark;
        snprintf(why, sizeof(why), "this bracket is not closed: %s in line %zu", parser->problem,
                 parser->problem_mark.line + 1);
    }
    return stop(yaml, mark, err, why);
}

static int build(struct sl_yaml *yaml, struct sl_yaml_tree *tree, yaml_event_t *event,
                 unsigned depth, struct sl_yaml_node **out, struct sl_err *err);

/* Counts what a node or an alias adds; a bomb ends here. */
static int spend(struct sl_yaml *yaml, yaml_mark_t mark, size_t nodes, struct sl_err *err)
{
    yaml->nodes += nodes;
    if (yaml->nodes > NODES_MAX)
        return stop(yaml, mark, err, "more than 50000 values, aliases included");
    return 0;
}

/* ---- anchors and aliases -------------------------------------------------------------------- */

static int keep_anchor(struct sl_yaml *yaml, const char *name, struct sl_yaml_node *node,
                       yaml_mark_t mark, struct sl_err *err)
{
    if (!name)
        return 0;
    if (yaml->anchor_count >= ANCHORS_MAX)
        return stop(yaml, mark, err, "more than 1000 anchors");
    char *copy = sl_strdup(name, err);
    if (!copy)
        return -1;
    yaml->anchors[yaml->anchor_count++] = (struct anchor){copy, node};
    return 0;
}

/* Anchors are kept when their node is complete, so an alias inside its own anchor finds nothing: no
 * cycles. */
static int follow_alias(struct sl_yaml *yaml, struct sl_yaml_tree *tree, const yaml_event_t *event,
                        struct sl_yaml_node **out, struct sl_err *err)
{
    const char *name = (const char *)event->data.alias.anchor;
    for (size_t i = yaml->anchor_count; i-- > 0;) {
        if (strcmp(yaml->anchors[i].name, name) == 0) {
            *out = yaml->anchors[i].node;
            return spend(yaml, event->start_mark, (*out)->weight, err);
        }
    }
    sl_complain(yaml->complaints, mark_of(event->start_mark),
                "no anchor '&%.64s' before this alias", name);
    *out = sl_yaml_tree_node(tree, SL_YAML_NULL, mark_of(event->start_mark), err);
    return *out ? spend(yaml, event->start_mark, 1, err) : -1;
}

/* ---- scalars -------------------------------------------------------------------------------- */

static bool is_null(const char *text)
{
    return !*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
           strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0;
}

static void judge_tag(struct sl_yaml *yaml, const yaml_char_t *tag, yaml_mark_t mark)
{
    static const char *const known[] = {"str",  "int", "float", "bool",
                                        "null", "seq", "map",   "merge"};
    const char *name = (const char *)tag;
    if (!name || strcmp(name, "!") == 0)
        return;
    for (size_t i = 0; i < SL_COUNT(known); i++)
        if (strncmp(name, "tag:yaml.org,2002:", 18) == 0 && strcmp(name + 18, known[i]) == 0)
            return;
    sl_complain(yaml->complaints, mark_of(mark), "the tag '%.80s' means nothing here", name);
}

/* The text of a scalar, "" with a complaint if it cannot be used; NULL only without memory. */
static char *scalar_text(struct sl_yaml *yaml, const yaml_event_t *event, bool *broken,
                         struct sl_err *err)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t bytes = event->data.scalar.length;
    struct sl_mark mark = mark_of(event->start_mark);
    *broken = true;
    if (memchr(text, 0, bytes)) {
        sl_complain(yaml->complaints, mark, "a text with a NUL character");
        return sl_strdup("", err);
    }
    if (bytes > SCALAR_BYTES_MAX) {
        sl_complain(yaml->complaints, mark, "a text of %zu bytes, limit %u", bytes,
                    SCALAR_BYTES_MAX);
        return sl_strdup("", err);
    }
    *broken = false;
    if (!yaml->variables || !strstr(text, "${"))
        return sl_strndup(text, bytes, err);
    struct sl_err why = SL_ERR_INIT;
    char *expanded = sl_expand_variables(text, SCALAR_BYTES_MAX, &why);
    if (expanded)
        return expanded;
    if (why.kind == SL_E_NO_SPACE && strncmp(why.message, "out of", 6) == 0) {
        *err = why;
        return NULL;
    }
    *broken = true;
    sl_complain(yaml->complaints, mark, "%s", why.message);
    return sl_strdup("", err);
}

static int build_scalar(struct sl_yaml *yaml, struct sl_yaml_tree *tree, const yaml_event_t *event,
                        struct sl_yaml_node **out, struct sl_err *err)
{
    struct sl_yaml_node *node =
        sl_yaml_tree_node(tree, SL_YAML_TEXT, mark_of(event->start_mark), err);
    if (!node)
        return -1;
    judge_tag(yaml, event->data.scalar.tag, event->start_mark);
    node->text = scalar_text(yaml, event, &node->broken, err);
    if (!node->text)
        return -1;
    tree->text_bytes += strlen(node->text);
    if (tree->text_bytes > TEXT_BYTES_MAX)
        return stop(yaml, event->start_mark, err,
                    "more than 8 MiB of text after replacing variables");
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && is_null(node->text) && !node->broken)
        node->kind = SL_YAML_NULL;
    *out = node;
    return keep_anchor(yaml, (const char *)event->data.scalar.anchor, node, event->start_mark, err);
}

/* ---- lists and mappings --------------------------------------------------------------------- */

static int build_list(struct sl_yaml *yaml, struct sl_yaml_tree *tree, const yaml_event_t *start,
                      unsigned depth, struct sl_yaml_node **out, struct sl_err *err)
{
    struct sl_yaml_node *list =
        sl_yaml_tree_node(tree, SL_YAML_LIST, mark_of(start->start_mark), err);
    if (!list)
        return -1;
    judge_tag(yaml, start->data.sequence_start.tag, start->start_mark);
    for (;;) {
        yaml_event_t event;
        if (next_event(yaml, &event, err) < 0)
            return -1;
        struct sl_yaml_node *item = NULL;
        bool ended = event.type == YAML_SEQUENCE_END_EVENT;
        int done = ended ? 0 : build(yaml, tree, &event, depth + 1, &item, err);
        yaml_event_delete(&event);
        if (done < 0 || (item && sl_yaml_add_item(list, item, err) < 0))
            return -1;
        if (ended)
            break;
    }
    *out = list;
    return keep_anchor(yaml, (const char *)start->data.sequence_start.anchor, list,
                       start->start_mark, err);
}

static int compare_pairs(const void *a, const void *b)
{
    const struct sl_yaml_pair *const *left = a, *const *right = b;
    int order = strcmp((*left)->key, (*right)->key);
    if (order)
        return order;
    return *left < *right ? -1 : *left > *right;
}

/* Sorting finds duplicates without comparing every key with every other. Later ones are taken out.
 */
static int refuse_duplicates(struct sl_yaml *yaml, struct sl_yaml_node *map, struct sl_err *err)
{
    if (map->count < 2)
        return 0;
    sl_autofree struct sl_yaml_pair **sorted = sl_alloc_array(map->count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    for (size_t i = 0; i < map->count; i++)
        sorted[i] = &map->pairs[i];
    qsort(sorted, map->count, sizeof(*sorted), compare_pairs);
    size_t first = 0;
    for (size_t i = 1; i < map->count; i++) {
        if (strcmp(sorted[first]->key, sorted[i]->key) != 0) {
            first = i;
            continue;
        }
        sl_complain(yaml->complaints, sorted[i]->mark, "'%.100s' is here twice, first in line %u",
                    sorted[i]->key, sorted[first]->mark.line);
        sorted[i]->value = NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < map->count; i++) {
        if (map->pairs[i].value)
            map->pairs[kept++] = map->pairs[i];
        else
            free(map->pairs[i].key);
    }
    map->count = kept;
    return 0;
}

static int merge_map(struct sl_yaml *yaml, struct sl_yaml_node *map,
                     const struct sl_yaml_node *from, yaml_mark_t mark, struct sl_err *err)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct sl_yaml_pair *pair = &from->pairs[i];
        if (sl_yaml_get(map, pair->key))
            continue;
        if (map->count >= PAIRS_MAX)
            return stop(yaml, mark, err, "more than 10000 keys in one mapping");
        if (sl_yaml_add_pair(map, pair->key, pair->mark, pair->value, err) < 0)
            return -1;
    }
    return 0;
}

/* `<<: *a` and `<<: [*a, *b]`: keys of the mapping itself win, then the earlier ones of the list.
 */
static int merge(struct sl_yaml *yaml, struct sl_yaml_node *map, const struct sl_yaml_node *value,
                 yaml_mark_t mark, struct sl_err *err)
{
    if (value->kind == SL_YAML_MAP)
        return merge_map(yaml, map, value, mark, err);
    bool usable = value->kind == SL_YAML_LIST;
    for (size_t i = 0; usable && i < value->count; i++) {
        usable = value->items[i]->kind == SL_YAML_MAP;
        if (usable && merge_map(yaml, map, value->items[i], mark, err) < 0)
            return -1;
    }
    if (!usable)
        sl_complain(yaml->complaints, mark_of(mark), "'<<' merges a mapping or a list of mappings");
    return 0;
}

/* One key and its value; a merge is put off (*merged) until the mapping's own keys are known. */
static int build_pair(struct sl_yaml *yaml, struct sl_yaml_tree *tree, yaml_event_t *key,
                      unsigned depth, struct sl_yaml_node *map, struct sl_yaml_node **merged,
                      struct sl_err *err)
{
    struct sl_yaml_node *key_node = NULL, *value = NULL;
    yaml_event_t event;
    bool scalar = key->type == YAML_SCALAR_EVENT;
    const char *name = scalar ? (const char *)key->data.scalar.value : "";
    if (!scalar) {
        sl_complain(yaml->complaints, mark_of(key->start_mark), "a key must be a plain word");
        if (build(yaml, tree, key, depth + 1, &key_node, err) < 0)
            return -1;
    } else if (strlen(name) != key->data.scalar.length) {
        sl_complain(yaml->complaints, mark_of(key->start_mark), "a key with a NUL character");
        scalar = false;
    }
    if (next_event(yaml, &event, err) < 0)
        return -1;
    int done = build(yaml, tree, &event, depth + 1, &value, err);
    yaml_event_delete(&event);
    if (done < 0 || !scalar)
        return done;
    if (strcmp(name, "<<") == 0 && key->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !*merged) {
        *merged = value;
        return 0;
    }
    if (map->count >= PAIRS_MAX)
        return stop(yaml, key->start_mark, err, "more than 10000 keys in one mapping");
    return sl_yaml_add_pair(map, name, mark_of(key->start_mark), value, err);
}

static int build_map(struct sl_yaml *yaml, struct sl_yaml_tree *tree, const yaml_event_t *start,
                     unsigned depth, struct sl_yaml_node **out, struct sl_err *err)
{
    struct sl_yaml_node *map =
                            sl_yaml_tree_node(tree, SL_YAML_MAP, mark_of(start->start_mark), err),
                        *merged = NULL;
    if (!map)
        return -1;
    judge_tag(yaml, start->data.mapping_start.tag, start->start_mark);
    for (;;) {
        yaml_event_t key;
        if (next_event(yaml, &key, err) < 0)
            return -1;
        bool ended = key.type == YAML_MAPPING_END_EVENT;
        int done = ended ? 0 : build_pair(yaml, tree, &key, depth, map, &merged, err);
        yaml_event_delete(&key);
        if (done < 0)
            return -1;
        if (ended)
            break;
    }
    if (refuse_duplicates(yaml, map, err) < 0 ||
        (merged && merge(yaml, map, merged, start->start_mark, err) < 0))
        return -1;
    *out = map;
    return keep_anchor(yaml, (const char *)start->data.mapping_start.anchor, map, start->start_mark,
                       err);
}

static int build(struct sl_yaml *yaml, struct sl_yaml_tree *tree, yaml_event_t *event,
                 unsigned depth, struct sl_yaml_node **out, struct sl_err *err)
{
    if (depth > DEPTH_MAX)
        return stop(yaml, event->start_mark, err, "nested deeper than 32 levels");
    if (event->type == YAML_ALIAS_EVENT)
        return follow_alias(yaml, tree, event, out, err);
    if (spend(yaml, event->start_mark, 1, err) < 0)
        return -1;
    if (event->type == YAML_SEQUENCE_START_EVENT)
        return build_list(yaml, tree, event, depth, out, err);
    if (event->type == YAML_MAPPING_START_EVENT)
        return build_map(yaml, tree, event, depth, out, err);
    return build_scalar(yaml, tree, event, out, err);
}

/* ---- documents ------------------------------------------------------------------------------ */

int sl_yaml_next(struct sl_yaml *yaml, struct sl_yaml_tree *tree, struct sl_err *err)
{
    int found = 0;
    forget_anchors(yaml);
    for (;;) {
        yaml_event_t event;
        if (next_event(yaml, &event, err) < 0)
            return -1;
        yaml_event_type_t type = event.type;
        int done = 0;
        if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
            type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT &&
            type != YAML_NO_EVENT) {
            done = build(yaml, tree, &event, 0, &tree->root, err);
            found = 1;
        }
        yaml_event_delete(&event);
        if (done < 0)
            return -1;
        if (type == YAML_STREAM_END_EVENT || type == YAML_NO_EVENT ||
            (found && type == YAML_DOCUMENT_END_EVENT))
            return found;
    }
}
