/* Trees own their nodes in one array, so that shared nodes are freed once and a half-built tree is
 * freed whole. */
#include "spec_node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "spec.h"

void sl_complain(struct sl_complaints *complaints, struct sl_mark mark, const char *format, ...)
{
    complaints->total++;
    if (complaints->count >= SL_SPEC_COMPLAINTS_MAX)
        return;
    struct sl_complaint *item = &complaints->items[complaints->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(item->text, sizeof(item->text), format, args);
    va_end(args);
    sl_sanitize_message(item->text, sizeof(item->text));
    item->mark = mark;
    item->document = complaints->document;
}

static void node_free(struct sl_yaml_node *node)
{
    for (size_t i = 0; node->pairs && i < node->count; i++)
        free(node->pairs[i].key);
    free(node->pairs);
    free(node->items);
    free(node->text);
    free(node);
}

void sl_yaml_tree_release(struct sl_yaml_tree *tree)
{
    for (size_t i = 0; i < tree->count; i++)
        node_free(tree->nodes[i]);
    free(tree->nodes);
    memset(tree, 0, sizeof(*tree));
}

struct sl_yaml_node *sl_yaml_tree_node(struct sl_yaml_tree *tree, enum sl_yaml_kind kind,
                                       struct sl_mark mark, struct sl_err *err)
{
    if (sl_grow(&tree->nodes, &tree->capacity, tree->count + 1, sizeof(*tree->nodes), err) < 0)
        return NULL;
    struct sl_yaml_node *node = sl_alloc(sizeof(*node), err);
    if (!node)
        return NULL;
    node->kind = kind;
    node->mark = mark;
    node->weight = 1;
    tree->nodes[tree->count++] = node;
    return node;
}

const char *sl_yaml_kind_name(enum sl_yaml_kind kind)
{
    static const char *const names[] = {"nothing", "a text", "a list", "a mapping"};
    return names[kind];
}

int sl_yaml_add_pair(struct sl_yaml_node *map, const char *key, struct sl_mark mark,
                     struct sl_yaml_node *value, struct sl_err *err)
{
    if (sl_grow(&map->pairs, &map->capacity, map->count + 1, sizeof(*map->pairs), err) < 0)
        return -1;
    char *copy = sl_strdup(key, err);
    if (!copy)
        return -1;
    map->pairs[map->count++] = (struct sl_yaml_pair){copy, mark, value};
    map->weight += value->weight;
    return 0;
}

int sl_yaml_add_item(struct sl_yaml_node *list, struct sl_yaml_node *item, struct sl_err *err)
{
    if (sl_grow(&list->items, &list->capacity, list->count + 1, sizeof(*list->items), err) < 0)
        return -1;
    list->items[list->count++] = item;
    list->weight += item->weight;
    return 0;
}

static struct sl_yaml_pair *get(const struct sl_yaml_node *map, const char *key, size_t bytes)
{
    for (size_t i = 0; map && map->kind == SL_YAML_MAP && i < map->count; i++)
        if (strncmp(map->pairs[i].key, key, bytes) == 0 && !map->pairs[i].key[bytes])
            return &map->pairs[i];
    return NULL;
}

struct sl_yaml_pair *sl_yaml_get(const struct sl_yaml_node *map, const char *key)
{
    return get(map, key, strlen(key));
}

struct sl_yaml_pair *sl_yaml_find(const struct sl_yaml_node *root, const char *path)
{
    for (;;) {
        size_t bytes = strcspn(path, ".");
        struct sl_yaml_pair *pair = get(root, path, bytes);
        if (!pair || !path[bytes])
            return pair;
        root = pair->value;
        path += bytes + 1;
    }
}

bool sl_yaml_sets_anything(const struct sl_yaml_node *node)
{
    if (!node || node->kind == SL_YAML_NULL)
        return false;
    if (node->kind == SL_YAML_TEXT)
        return *node->text || node->broken;
    for (size_t i = 0; i < node->count; i++)
        if (sl_yaml_sets_anything(node->kind == SL_YAML_LIST ? node->items[i]
                                                             : node->pairs[i].value))
            return true;
    return false;
}
