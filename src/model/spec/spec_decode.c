/*
 * The rows drive the walk: each key of a mapping finds its row, the row's type says what the value
 * must be, and base/option turns text into the value. A mistake is noted with its place and the
 * walk goes on.
 */
#include "spec_decode.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES_MAX = 256 };

struct decoder {
    struct sl_complaints *complaints;
    struct sl_err *err;
};

static int decode_section(struct decoder *decoder, const struct sl_option_table *table,
                          const struct sl_yaml_node *node, struct sl_mark mark, const char *path,
                          void *values);

/* A mistake in a value is a complaint, anything else ends the decoding. */
static int judge(struct decoder *decoder, struct sl_mark mark, const struct sl_err *why)
{
    if (why->kind == SL_E_USAGE) {
        sl_complain(decoder->complaints, mark, "%s", why->message);
        return 0;
    }
    if (decoder->err)
        *decoder->err = *why;
    return -1;
}

static int set_text(struct decoder *decoder, const struct sl_option *row, void *values,
                    const struct sl_yaml_node *node, bool append)
{
    struct sl_err why = SL_ERR_INIT;
    if (node->broken || sl_option_set(row, values, node->text, append, &why) == 0)
        return 0;
    return judge(decoder, node->mark, &why);
}

static void complain_kind(struct decoder *decoder, const struct sl_yaml_node *node,
                          const char *path, const char *wanted)
{
    sl_complain(decoder->complaints, node->mark, "'%s' must be %s, not %s", path, wanted,
                sl_yaml_kind_name(node->kind));
}

static int decode_list(struct decoder *decoder, const struct sl_option *row,
                       const struct sl_yaml_node *node, const char *path, void *values)
{
    if (node->kind == SL_YAML_TEXT && node->mark.origin)
        return set_text(decoder, row, values, node, false);
    if (node->kind != SL_YAML_LIST) {
        complain_kind(decoder, node, path, "a list such as [one, two]");
        return 0;
    }
    for (size_t i = 0; i < node->count; i++) {
        const struct sl_yaml_node *item = node->items[i];
        if (item->kind != SL_YAML_TEXT)
            complain_kind(decoder, item, path, "a list of texts");
        else if (set_text(decoder, row, values, item, true) < 0)
            return -1;
    }
    return 0;
}

static int decode_map(struct decoder *decoder, const struct sl_option *row,
                      const struct sl_yaml_node *node, const char *path, void *values)
{
    struct sl_map *map = (struct sl_map *)((char *)values + row->offset);
    if (node->kind == SL_YAML_TEXT && node->mark.origin)
        return set_text(decoder, row, values, node, false);
    if (node->kind != SL_YAML_MAP) {
        complain_kind(decoder, node, path, "a mapping of names to texts");
        return 0;
    }
    for (size_t i = 0; i < node->count; i++) {
        const struct sl_yaml_node *value = node->pairs[i].value;
        struct sl_err why = SL_ERR_INIT;
        if (value->broken)
            continue;
        if (value->kind != SL_YAML_TEXT) {
            complain_kind(decoder, value, path, "a mapping of names to texts");
            continue;
        }
        if (row->check && row->check(value->text, &why) < 0) {
            sl_wrap(&why, "'%s'", path);
            if (judge(decoder, value->mark, &why) < 0)
                return -1;
        } else if (sl_map_add(map, node->pairs[i].key, value->text, &why) < 0 &&
                   judge(decoder, value->mark, &why) < 0) {
            return -1;
        }
    }
    return 0;
}

static int decode_items(struct decoder *decoder, const struct sl_option *row,
                        const struct sl_yaml_node *node, const char *path, void *values)
{
    struct sl_items *items = (struct sl_items *)((char *)values + row->offset);
    if (node->kind != SL_YAML_LIST) {
        complain_kind(decoder, node, path, "a list of mappings");
        return 0;
    }
    for (size_t i = 0; i < node->count; i++) {
        struct sl_err why = SL_ERR_INIT;
        void *item = sl_items_add(items, row->section, &why);
        if (!item)
            return judge(decoder, node->mark, &why);
        if (decode_section(decoder, row->section, node->items[i], node->items[i]->mark, path,
                           item) < 0)
            return -1;
    }
    return 0;
}

/* A text or a list, in the place of a section with nothing else in it. */
static int decode_brief(struct decoder *decoder, const struct sl_option *section,
                        const struct sl_yaml_node *node, const char *path, void *values)
{
    const struct sl_option *row = section->section->rows;
    while (strcmp(row->member, section->brief) != 0)
        row++;
    void *below = (char *)values + section->offset;
    return node->kind == SL_YAML_TEXT ? set_text(decoder, row, below, node, true)
                                      : decode_list(decoder, row, node, path, below);
}

static int decode_value(struct decoder *decoder, const struct sl_option *row,
                        const struct sl_yaml_pair *pair, const char *path, void *values)
{
    const struct sl_yaml_node *node = pair->value;
    if (row->brief && (node->kind == SL_YAML_TEXT || node->kind == SL_YAML_LIST))
        return decode_brief(decoder, row, node, path, values);
    if (row->type == SL_OPTION_SECTION)
        return decode_section(decoder, row->section, node, pair->mark, path,
                              (char *)values + row->offset);
    if (node->kind == SL_YAML_NULL)
        return 0;
    if (row->type == SL_OPTION_LIST)
        return decode_list(decoder, row, node, path, values);
    if (row->type == SL_OPTION_MAP)
        return decode_map(decoder, row, node, path, values);
    if (row->type == SL_OPTION_ITEMS)
        return decode_items(decoder, row, node, path, values);
    if (node->kind == SL_YAML_TEXT)
        return set_text(decoder, row, values, node, false);
    complain_kind(decoder, node, path, "one value");
    return 0;
}

/* Whether an unknown key, complained about already, looks like this one. */
static bool misspelt(const struct sl_option_table *table, const struct sl_yaml_node *node,
                     const char *key)
{
    for (size_t i = 0; i < node->count; i++)
        if (!sl_options_row(table, node->pairs[i].key, strlen(node->pairs[i].key)) &&
            sl_nearest(node->pairs[i].key, &key, 1))
            return true;
    return false;
}

static void complain_missing(struct decoder *decoder, const struct sl_option_table *table,
                             const struct sl_yaml_node *node, struct sl_mark mark, const char *path)
{
    for (const struct sl_option *row = table->rows; row->member; row++) {
        char key[64];
        if (!row->required)
            continue;
        const struct sl_yaml_pair *pair = sl_yaml_get(node, sl_option_key(row, key));
        bool given = pair && (row->type == SL_OPTION_SECTION ? pair->value->kind != SL_YAML_NULL
                                                             : sl_yaml_sets_anything(pair->value));
        if (given || (!pair && misspelt(table, node, key)))
            continue;
        if (pair)
            sl_complain(decoder->complaints, pair->mark, "'%s' must not be empty: %s", key,
                        row->help);
        else if (*path)
            sl_complain(decoder->complaints, mark, "'%s' is missing in '%s': %s", key, path,
                        row->help);
        else
            sl_complain(decoder->complaints, mark, "'%s' is missing: %s", key, row->help);
    }
}

static int decode_section(struct decoder *decoder, const struct sl_option_table *table,
                          const struct sl_yaml_node *node, struct sl_mark mark, const char *path,
                          void *values)
{
    if (node->kind == SL_YAML_NULL)
        return 0;
    if (node->kind != SL_YAML_MAP) {
        complain_kind(decoder, node, *path ? path : "the document", "a mapping");
        return 0;
    }
    struct sl_option_table named = *table;
    named.name = path;
    for (size_t i = 0; i < node->count; i++) {
        const struct sl_yaml_pair *pair = &node->pairs[i];
        const struct sl_option *row = sl_options_row(table, pair->key, strlen(pair->key));
        if (!row) {
            struct sl_err why = SL_ERR_INIT;
            sl_options_unknown(&named, pair->key, &why);
            sl_complain(decoder->complaints, pair->mark, "%s", why.message);
            continue;
        }
        char below[PATH_BYTES_MAX];
        snprintf(below, sizeof(below), "%s%s%s", path, *path ? "." : "", pair->key);
        if (decode_value(decoder, row, pair, below, values) < 0)
            return -1;
    }
    complain_missing(decoder, table, node, mark, path);
    return 0;
}

int sl_spec_decode_table(const struct sl_option_table *table, const struct sl_yaml_node *root,
                         void *values, struct sl_complaints *complaints, struct sl_err *err)
{
    struct decoder decoder = {complaints, err};
    if (sl_options_init(table, values, err) < 0)
        return -1;
    return decode_section(&decoder, table, root, root->mark, "", values);
}

int sl_spec_decode(const struct sl_yaml_node *root, struct sl_spec *spec,
                   struct sl_complaints *complaints, struct sl_err *err)
{
    return sl_spec_decode_table(sl_spec_table(), root, spec, complaints, err);
}
