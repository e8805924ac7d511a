/*
 * A table drives everything that is done with an option: a value is found at its offset, its type
 * says how text becomes a value and who owns it. Nothing here knows YAML or argv; both hand over
 * text and say where it came from.
 */
#include "option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "mem.h"

enum { PATH_BYTES_MAX = 256, CANDIDATES_MAX = 64, LIST_ITEMS_MAX = 10000, BARE_RATE_MIN = 65536 };

#define AT(type, row, values) (*(type *)((char *)(values) + (row)->offset))

/* ---- lists and maps ------------------------------------------------------------------------- */

static void list_release(struct sl_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct sl_list){NULL, 0};
}

static void map_release(struct sl_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        free(map->keys[i]);
        free(map->values[i]);
    }
    free(map->keys);
    free(map->values);
    *map = (struct sl_map){NULL, NULL, 0};
}

/* An array whose capacity is its count rounded up to a power of two needs no member for it. */
static int grow_one(void *array_pointer, size_t count, struct sl_err *err)
{
    if (count >= LIST_ITEMS_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %u items", LIST_ITEMS_MAX);
    if (count & (count - 1))
        return 0;
    if (count > 0 && count < 8)
        return 0;
    size_t capacity = count;
    return sl_grow(array_pointer, &capacity, count ? count * 2 : 8, sizeof(char *), err);
}

int sl_list_add(struct sl_list *list, const char *text, size_t bytes, struct sl_err *err)
{
    if (grow_one(&list->items, list->count, err) < 0)
        return -1;
    list->items[list->count] = sl_strndup(text, bytes, err);
    if (!list->items[list->count])
        return -1;
    list->count++;
    return 0;
}

int sl_map_add(struct sl_map *map, const char *key, const char *value, struct sl_err *err)
{
    for (size_t i = 0; i < map->count; i++) {
        if (strcmp(map->keys[i], key) != 0)
            continue;
        char *copy = sl_strdup(value, err);
        if (!copy)
            return -1;
        free(map->values[i]);
        map->values[i] = copy;
        return 0;
    }
    if (grow_one(&map->keys, map->count, err) < 0 || grow_one(&map->values, map->count, err) < 0)
        return -1;
    sl_autofree char *key_copy = sl_strdup(key, err);
    sl_autofree char *value_copy = key_copy ? sl_strdup(value, err) : NULL;
    if (!value_copy)
        return -1;
    map->keys[map->count] = sl_steal(&key_copy);
    map->values[map->count++] = sl_steal(&value_copy);
    return 0;
}

void *sl_items_add(struct sl_items *items, const struct sl_option_table *table, struct sl_err *err)
{
    if (items->count >= LIST_ITEMS_MAX) {
        sl_fail(err, SL_E_USAGE, "more than %u items", LIST_ITEMS_MAX);
        return NULL;
    }
    size_t capacity = items->count; /* short lists: one at a time */
    if (sl_grow(&items->items, &capacity, items->count + 1, table->struct_bytes, err) < 0)
        return NULL;
    void *item = (char *)items->items + items->count * table->struct_bytes;
    memset(item, 0, table->struct_bytes);
    items->count++;
    return sl_options_init(table, item, err) < 0 ? NULL : item;
}

/* ---- values from text ----------------------------------------------------------------------- */

static int out_of_bounds(const struct sl_option *row, struct sl_err *err)
{
    char low[32], high[32];
    const char *also = sl_option_takes_auto(row) ? " or 'auto'" : "";
    if (row->type == SL_OPTION_BYTES)
        return sl_fail(err, SL_E_USAGE, "expected a size from %s to %s%s",
                       sl_exact_bytes(row->minimum, low), sl_exact_bytes(row->maximum, high), also);
    return sl_fail(err, SL_E_USAGE, "expected a number from %" PRIu64 " to %" PRIu64 "%s",
                   row->minimum, row->maximum, also);
}

/* Whoever writes 5 for a rate means 5 MB/s, or Gbit/s: nothing so slow is of use. */
static int set_rate(const char *text, uint64_t *bytes, struct sl_err *err)
{
    if (sl_parse_rate(text, bytes) < 0)
        return sl_fail(err, SL_E_USAGE,
                       "expected a rate such as 500MB/s, 2GiB/s or 16Gbit/s, not '%.80s'", text);
    if (*bytes && *bytes < BARE_RATE_MIN && text[strspn(text, "0123456789")] == 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%.80s' without a unit is bytes per second: write %.80sMB/s if that is "
                       "meant, else %.64sB/s",
                       text, text, text);
    return 0;
}

static int set_number(const struct sl_option *row, uint64_t *value, const char *text,
                      struct sl_err *err)
{
    uint64_t number;
    if (sl_option_takes_auto(row) && strcmp(text, "auto") == 0) {
        *value = SL_AUTO_VALUE;
        return 0;
    }
    if (row->type == SL_OPTION_RATE) {
        if (set_rate(text, &number, err) < 0)
            return -1;
    } else if (row->type == SL_OPTION_BYTES) {
        if (sl_parse_bytes(text, &number) < 0)
            return sl_fail(err, SL_E_USAGE,
                           "expected a size such as 4096, 64Mi or 1.5GiB%s, not '%.80s'",
                           sl_option_takes_auto(row) ? " or 'auto'" : "", text);
    } else {
        char *end = NULL;
        errno = 0;
        number = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
        if (!end || *end || errno || number == SL_AUTO_VALUE)
            return sl_fail(err, SL_E_USAGE, "expected a whole number%s, not '%.80s'",
                           sl_option_takes_auto(row) ? " or 'auto'" : "", text);
    }
    if ((row->minimum || row->maximum) && (number < row->minimum || number > row->maximum)) {
        out_of_bounds(row, err);
        if (err) {
            size_t used = strlen(err->message);
            snprintf(err->message + used, sizeof(err->message) - used, ", not '%.80s'", text);
        }
        return -1;
    }
    *value = number;
    return 0;
}

static int set_choice(const struct sl_option *row, int *value, const char *text, struct sl_err *err)
{
    char names[CANDIDATES_MAX][64];
    const char *candidates[CANDIDATES_MAX];
    int index = sl_choice_index(row->choices, text), count = 0;
    if (index >= 0) {
        *value = index;
        return 0;
    }
    while (count < CANDIDATES_MAX && sl_choice_name(row->choices, count, names[count])) {
        candidates[count] = names[count];
        count++;
    }
    const char *near = sl_nearest(text, candidates, (size_t)count);
    if (near)
        return sl_fail(err, SL_E_USAGE, "expected one of %s, not '%.80s', did you mean '%s'?",
                       row->choices, text, near);
    return sl_fail(err, SL_E_USAGE, "expected one of %s, not '%.80s'", row->choices, text);
}

static int set_string(const struct sl_option *row, char **value, const char *text,
                      struct sl_err *err)
{
    if (*text && row->check && row->check(text, err) < 0)
        return -1;
    char *copy = *text ? sl_strdup(text, err) : NULL;
    if (*text && !copy)
        return -1;
    free(*value);
    *value = copy;
    return 0;
}

static int add_item(const struct sl_option *row, struct sl_list *list, const char *text,
                    struct sl_err *err)
{
    if (row->check && row->check(text, err) < 0)
        return -1;
    for (size_t i = 0; row->same && i < list->count; i++)
        if (row->same(list->items[i], text))
            return sl_fail(err, SL_E_USAGE, "'%.100s' is in the list twice", text);
    return sl_list_add(list, text, strlen(text), err);
}

static int set_list(const struct sl_option *row, struct sl_list *list, const char *text,
                    bool append, struct sl_err *err)
{
    if (append)
        return add_item(row, list, text, err);
    list_release(list);
    while (*text) {
        size_t bytes = strcspn(text, ",");
        sl_autofree char *item = sl_strndup(text, bytes, err);
        if (!item || add_item(row, list, item, err) < 0)
            return -1;
        text += bytes + (text[bytes] == ',');
    }
    return 0;
}

static int set_map(const struct sl_option *row, struct sl_map *map, const char *text, bool append,
                   struct sl_err *err)
{
    if (!append)
        map_release(map);
    while (*text) {
        size_t bytes = append ? strlen(text) : strcspn(text, ",");
        sl_autofree char *item = sl_strndup(text, bytes, err);
        if (!item)
            return -1;
        char *equals = strchr(item, '=');
        if (!equals || equals == item)
            return sl_fail(err, SL_E_USAGE, "expected KEY=VALUE, not '%.80s'", item);
        *equals = 0;
        if ((row->check && row->check(equals + 1, err) < 0) ||
            sl_map_add(map, item, equals + 1, err) < 0)
            return -1;
        text += bytes + (text[bytes] == ',');
    }
    return 0;
}

static int set_value(const struct sl_option *row, void *values, const char *text, bool append,
                     struct sl_err *err)
{
    switch (row->type) {
    case SL_OPTION_BOOL:
        if (sl_parse_bool(text, &AT(bool, row, values)) < 0)
            return sl_fail(err, SL_E_USAGE, "expected true or false, not '%.80s'", text);
        return 0;
    case SL_OPTION_STRING:
        return set_string(row, &AT(char *, row, values), text, err);
    case SL_OPTION_UINT:
    case SL_OPTION_BYTES:
    case SL_OPTION_RATE:
        return set_number(row, &AT(uint64_t, row, values), text, err);
    case SL_OPTION_CHOICE:
        return set_choice(row, &AT(int, row, values), text, err);
    case SL_OPTION_LIST:
        return set_list(row, &AT(struct sl_list, row, values), text, append, err);
    case SL_OPTION_MAP:
        return set_map(row, &AT(struct sl_map, row, values), text, append, err);
    case SL_OPTION_SECTION:
    case SL_OPTION_ITEMS:
        break;
    }
    return sl_fail(err, SL_E_USAGE, "is a section, name one of its keys");
}

int sl_option_set(const struct sl_option *row, void *values, const char *text, bool append,
                  struct sl_err *err)
{
    char key[64];
    struct sl_err why = SL_ERR_INIT;
    if (set_value(row, values, text, append, &why) == 0)
        return 0;
    if (err)
        *err = why;
    return why.kind == SL_E_USAGE ? sl_wrap(err, "'%s'", sl_option_key(row, key)) : -1;
}

/* ---- whole tables --------------------------------------------------------------------------- */

int sl_options_init(const struct sl_option_table *table, void *values, struct sl_err *err)
{
    for (const struct sl_option *row = table->rows; row->member; row++) {
        if (row->type == SL_OPTION_SECTION) {
            if (sl_options_init(row->section, (char *)values + row->offset, err) < 0)
                return -1;
        } else if (row->initial && *row->initial) {
            if (set_value(row, values, row->initial, false, err) < 0)
                return sl_wrap(err, "default of '%s' in '%s'", row->member, table->name);
        }
    }
    return 0;
}

static void items_release(const struct sl_option_table *table, struct sl_items *items)
{
    for (size_t i = 0; i < items->count; i++)
        sl_options_release(table, (char *)items->items + i * table->struct_bytes);
    free(items->items);
    *items = (struct sl_items){NULL, 0};
}

void sl_options_release(const struct sl_option_table *table, void *values)
{
    if (!values)
        return;
    for (const struct sl_option *row = table->rows; row->member; row++) {
        if (row->type == SL_OPTION_STRING)
            free(AT(char *, row, values));
        else if (row->type == SL_OPTION_LIST)
            list_release(&AT(struct sl_list, row, values));
        else if (row->type == SL_OPTION_MAP)
            map_release(&AT(struct sl_map, row, values));
        else if (row->type == SL_OPTION_ITEMS)
            items_release(row->section, &AT(struct sl_items, row, values));
        else if (row->type == SL_OPTION_SECTION)
            sl_options_release(row->section, (char *)values + row->offset);
    }
    memset(values, 0, table->struct_bytes);
}

const struct sl_option *sl_options_row(const struct sl_option_table *table, const char *key,
                                       size_t bytes)
{
    for (const struct sl_option *row = table->rows; row->member; row++)
        if (sl_option_is_key(row, key, bytes))
            return row;
    return NULL;
}

int sl_options_unknown(const struct sl_option_table *table, const char *key, struct sl_err *err)
{
    char names[CANDIDATES_MAX][64], where[96] = "";
    const char *candidates[CANDIDATES_MAX];
    size_t count = 0;
    for (const struct sl_option *row = table->rows; row->member && count < CANDIDATES_MAX;
         row++, count++)
        candidates[count] = sl_option_key(row, names[count]);
    if (table->name && *table->name)
        snprintf(where, sizeof(where), " in '%.80s'", table->name);
    const char *near = sl_nearest(key, candidates, count);
    if (near)
        return sl_fail(err, SL_E_USAGE, "unknown key '%.100s'%s, did you mean '%s'?", key, where,
                       near);
    return sl_fail(err, SL_E_USAGE, "unknown key '%.100s'%s", key, where);
}

static int walk(const struct sl_option_table *table, const char *prefix,
                int (*each)(const struct sl_option *row, const char *path, void *arg), void *arg)
{
    int done = 0;
    for (const struct sl_option *row = table->rows; row->member && !done; row++) {
        char key[64], path[PATH_BYTES_MAX];
        snprintf(path, sizeof(path), "%s%s", prefix, sl_option_key(row, key));
        done = each(row, path, arg);
        if (done || !row->section)
            continue;
        size_t used = strlen(path);
        snprintf(path + used, sizeof(path) - used, row->type == SL_OPTION_ITEMS ? "[]." : ".");
        done = walk(row->section, path, each, arg);
    }
    return done;
}

int sl_options_walk(const struct sl_option_table *table,
                    int (*each)(const struct sl_option *row, const char *path, void *arg),
                    void *arg)
{
    return walk(table, "", each, arg);
}
