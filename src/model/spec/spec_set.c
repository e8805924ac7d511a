/*
 * Flags and --set over a document, before it is checked, so that a value from the command line
 * meets the same rows and the same complaints as one from the file. The path from the root to the
 * value is copied first: what the document shares through aliases stays as it is elsewhere.
 */
#include <stdio.h>
#include <string.h>

#include "spec_decode.h"

/* What stands in brief for the whole section (sl_option.brief) goes where it stands at length. */
static int spell_out(struct sl_yaml_tree *tree, struct sl_yaml_node *old, const char *brief,
                     struct sl_yaml_node *map, struct sl_err *err)
{
    struct sl_yaml_node *list = old;
    if (old->kind == SL_YAML_TEXT) {
        list = sl_yaml_tree_node(tree, SL_YAML_LIST, old->mark, err);
        if (!list || sl_yaml_add_item(list, old, err) < 0)
            return -1;
    }
    return sl_yaml_add_pair(map, brief, old->mark, list, err);
}

/* A mapping in place of *slot that this setting may change. section: NULL for the root. */
static struct sl_yaml_node *own_map(struct sl_yaml_tree *tree, const struct sl_option *section,
                                    struct sl_yaml_node **slot, struct sl_mark mark,
                                    struct sl_err *err)
{
    struct sl_yaml_node *old = *slot;
    bool keep = old && old->kind == SL_YAML_MAP;
    struct sl_yaml_node *map = sl_yaml_tree_node(tree, SL_YAML_MAP, old ? old->mark : mark, err);
    if (!map)
        return NULL;
    if (section && section->brief && old &&
        (old->kind == SL_YAML_TEXT || old->kind == SL_YAML_LIST) &&
        spell_out(tree, old, section->brief, map, err) < 0)
        return NULL;
    for (size_t i = 0; keep && i < old->count; i++)
        if (sl_yaml_add_pair(map, old->pairs[i].key, old->pairs[i].mark, old->pairs[i].value, err) <
            0)
            return NULL;
    *slot = map;
    return map;
}

/* The pair of a key in a mapping of our own, made with a null value if it is missing. */
static struct sl_yaml_pair *own_pair(struct sl_yaml_tree *tree, struct sl_yaml_node *map,
                                     const char *key, struct sl_mark mark, struct sl_err *err)
{
    struct sl_yaml_pair *pair = sl_yaml_get(map, key);
    if (pair)
        return pair;
    struct sl_yaml_node *null = sl_yaml_tree_node(tree, SL_YAML_NULL, mark, err);
    if (!null || sl_yaml_add_pair(map, key, mark, null, err) < 0)
        return NULL;
    return sl_yaml_get(map, key);
}

/* `[a, b]` and `{a: b}` are YAML where a list or a mapping is wanted, and any text is for a list of
 * mappings; *out stays NULL if the text is none. */
static int flow_value(struct sl_yaml_tree *tree, const char *text, struct sl_mark mark,
                      struct sl_yaml_node **out, struct sl_err *err)
{
    struct sl_complaint scratch[SL_SPEC_COMPLAINTS_MAX];
    struct sl_complaints complaints = {.items = scratch};
    struct sl_yaml_tree side = {0};
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_yaml) yaml = sl_yaml_open(text, strlen(text), false, &complaints, err);
    if (!yaml)
        return -1;
    int found = sl_yaml_next(yaml, &side, &why);
    if (found < 0 && why.kind != SL_E_USAGE) {
        sl_yaml_tree_release(&side);
        if (err)
            *err = why;
        return -1;
    }
    for (size_t i = 0; found == 1 && !complaints.total && i < side.count; i++) {
        struct sl_yaml_node *node = side.nodes[i];
        node->mark = mark;
        for (size_t j = 0; node->kind == SL_YAML_MAP && j < node->count; j++)
            node->pairs[j].mark = mark;
    }
    if (found == 1 && !complaints.total) {
        if (sl_grow(&tree->nodes, &tree->capacity, tree->count + side.count, sizeof(*tree->nodes),
                    err) < 0) {
            sl_yaml_tree_release(&side);
            return -1;
        }
        *out = side.root;
        memcpy(tree->nodes + tree->count, side.nodes, side.count * sizeof(*side.nodes));
        tree->count += side.count;
        side.count = 0;
    }
    sl_yaml_tree_release(&side);
    return 0;
}

static int make_value(struct sl_yaml_tree *tree, const struct sl_option *row, const char *text,
                      struct sl_mark mark, struct sl_yaml_node **out, struct sl_err *err)
{
    bool structured = row->type == SL_OPTION_LIST || row->type == SL_OPTION_MAP;
    bool flow = structured && (*text == '[' || *text == '{');
    *out = NULL;
    if ((flow || row->type == SL_OPTION_ITEMS) && flow_value(tree, text, mark, out, err) < 0)
        return -1;
    if (*out)
        return 0;
    struct sl_yaml_node *node = sl_yaml_tree_node(tree, SL_YAML_TEXT, mark, err);
    if (!node)
        return -1;
    node->text = sl_strdup(text, err);
    *out = node;
    return node->text ? 0 : -1;
}

/* The row a path leads to, with a complaint if it leads nowhere; *tail is what is left for a MAP's
 * key. */
static const struct sl_option *find_row(const struct sl_spec_setting *setting, const char **tail,
                                        struct sl_complaints *complaints)
{
    struct sl_mark mark = {.origin = setting->origin};
    struct sl_option_table table = *sl_spec_table();
    const char *part = setting->path;
    char done[256] = "";
    for (;;) {
        size_t bytes = strcspn(part, ".");
        const struct sl_option *row = sl_options_row(&table, part, bytes);
        *tail = part[bytes] ? part + bytes + 1 : NULL;
        if (!row) {
            char key[128];
            struct sl_err why = SL_ERR_INIT;
            snprintf(key, sizeof(key), "%.*s", (int)SL_MIN(bytes, sizeof(key) - 1), part);
            table.name = done;
            sl_options_unknown(&table, key, &why);
            sl_complain(complaints, mark, "%s", why.message);
            return NULL;
        }
        if (row->type != SL_OPTION_SECTION && (!*tail || (row->type == SL_OPTION_MAP && **tail)))
            return row;
        if (row->type != SL_OPTION_SECTION || !*tail) {
            sl_complain(complaints, mark,
                        row->type == SL_OPTION_SECTION
                            ? "'%s' is a section: name one of its keys, such as '%s.KEY'"
                            : "'%s' has no keys below it: '%s' is too long",
                        row->type == SL_OPTION_SECTION ? setting->path : row->member,
                        setting->path);
            return NULL;
        }
        size_t used = strlen(done);
        snprintf(done + used, sizeof(done) - used, "%s%.*s", used ? "." : "", (int)bytes, part);
        table = *row->section;
        part += bytes + 1;
    }
}

int sl_spec_apply(const struct sl_spec_setting *setting, struct sl_yaml_tree *tree,
                  struct sl_complaints *complaints, struct sl_err *err)
{
    struct sl_mark mark = {.origin = setting->origin};
    const char *tail;
    const struct sl_option *row = find_row(setting, &tail, complaints);
    struct sl_yaml_node *value, **slot = &tree->root;
    if (!row)
        return 0;
    if (make_value(tree, row, setting->value, mark, &value, err) < 0)
        return -1;
    const char *part = setting->path;
    struct sl_yaml_pair *pair = NULL;
    const struct sl_option_table *table = sl_spec_table();
    const struct sl_option *section = NULL;
    while (part) {
        size_t bytes = part == tail ? strlen(part) : strcspn(part, ".");
        sl_autofree char *key = sl_strndup(part, bytes, err);
        struct sl_yaml_node *map = key ? own_map(tree, section, slot, mark, err) : NULL;
        pair = map ? own_pair(tree, map, key, mark, err) : NULL;
        if (!pair)
            return -1;
        slot = &pair->value;
        section = table ? sl_options_row(table, part, bytes) : NULL; /* NULL: a MAP's key */
        table = section ? section->section : NULL;
        part = part[bytes] ? part + bytes + 1 : NULL;
    }
    pair->mark = mark;
    *slot = value;
    return 0;
}
