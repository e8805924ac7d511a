/*
 * Option rows. One row is a YAML key, a command-line flag, a default, a line of help, a line of the
 * reference page and a property of the JSON schema.
 *
 * A table describes one struct of plain values. Strings set by rows are owned by the struct and
 * released by sl_options_release(). Tables are constants; any thread, a struct by one at a time.
 * What is said to be text of a size is returned. Errors are SL_E_USAGE and SL_E_NO_SPACE.
 */
#ifndef SL_OPTION_H
#define SL_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum sl_option_type {
    SL_OPTION_BOOL,    /* bool; true/false and YAML's spellings */
    SL_OPTION_STRING,  /* char *; NULL when unset and the default is "" */
    SL_OPTION_UINT,    /* uint64_t; "auto" is SL_AUTO_VALUE where the default is "auto" */
    SL_OPTION_BYTES,   /* uint64_t; 64Mi, 1.5GiB, 8M, plain bytes; "auto" as above */
    SL_OPTION_RATE,    /* uint64_t, bytes/s: 2GB/s, 500MiB/s, 16Gbit/s, 10Gbps, plain bytes/s */
    SL_OPTION_CHOICE,  /* int: index into `choices`, "a|b|c" */
    SL_OPTION_LIST,    /* struct sl_list: strings */
    SL_OPTION_MAP,     /* struct sl_map: string to string */
    SL_OPTION_SECTION, /* a nested struct described by `section`; present if the document names it
                        */
    SL_OPTION_ITEMS,   /* struct sl_items: a list of structs described by `section` */
};

#define SL_AUTO_VALUE UINT64_MAX

struct sl_list {
    char **items;
    size_t count;
};
struct sl_map {
    char **keys, **values;
    size_t count;
};
struct sl_items {
    void *items; /* array of structs of section->struct_bytes */
    size_t count;
};

struct sl_option;
/** A table: rows for one struct. */
struct sl_option_table {
    const char *name; /* of the section: "readers" */
    size_t struct_bytes;
    const struct sl_option *rows; /* ended by a row without key */
};

struct sl_option {
    const char
        *member; /* C member, snake_case; the YAML key is its camelCase, the flag its kebab-case */
    enum sl_option_type type;
    size_t offset;
    const char *initial;                   /* the default as text; "" is none */
    const char *help;                      /* one sentence without a full stop */
    const char *choices;                   /* CHOICE: "auto|all|off"; else NULL */
    const struct sl_option_table *section; /* SECTION, ITEMS */
    const char *flag;   /* a short flag's own name ("connections"); NULL: only --set a.b.c=VALUE */
    const char *served; /* `sluice serve` alone takes it: elsewhere refused, with this advice */
    uint64_t minimum, maximum; /* UINT, BYTES; 0,0 is any */
    bool required;             /* the document must set it wherever its section is named */
    const char *pattern; /* STRING, and values of LIST and MAP: a regular expression for the JSON
                            schema, which … */
    /** … `check` enforces: 0, or -1 with "expected 64 hex digits". NULL: any text. */
    int (*check)(const char *text, struct sl_err *err);
    /** LIST: whether two items, both checked, mean the same: then the second is refused. NULL: a
     * list may repeat itself. */
    bool (*same)(const char *a, const char *b);
    const char *brief; /* SECTION: a text or a list in its place is the value of this member */
    const char *value; /* the value's name in help: "DIR", "URL"; NULL: from the type */
};

/**
 * One row: the struct's name, the member, the type without its prefix, the default, the help, and
 * what else is to be set, by name:
 *
 *     static const struct sl_option tries_rows[] = {
 *         SL_OPTION(sl_NAME, attempts, UINT, "8", "tries of one range", .minimum = 1,
 *                   .maximum = 100),
 *         SL_OPTION_END,
 *     };
 */
#define SL_OPTION(type_name, member_name, TYPE, default_text, help_text, ...)                      \
    {                                                                                              \
        .member = #member_name, .type = SL_OPTION_##TYPE,                                          \
        .offset = offsetof(struct type_name, member_name), .initial = default_text,                \
        .help = help_text, ##__VA_ARGS__                                                           \
    }
#define SL_OPTION_END                                                                              \
    {                                                                                              \
        .member = NULL                                                                             \
    }

/** Fill a struct (zeroed first) with the defaults of its table. */
int sl_options_init(const struct sl_option_table *table, void *values, struct sl_err *err);
/** Free all strings, lists and maps, nested ones included; the struct is zeroed. */
void sl_options_release(const struct sl_option_table *table, void *values);
/**
 * Set one value from text, for a flag or --set.
 *
 * @row     which option of the values.
 * @values  the struct that the rows describe.
 * @text    borrowed. A LIST takes items with commas between them,
 * @append  or, if this is true, one more item each time.
 * @return  0, or -1 with SL_E_USAGE, which names the key and what was expected.
 */
int sl_option_set(const struct sl_option *row, void *values, const char *text, bool append,
                  struct sl_err *err);
/**
 * Call back for every row with its dotted path ("source.s3.region"), sections before their members;
 * the path of members of ITEMS has "[]" ("tensors.shard.rules[].match"). Stops at the first call
 * that does not return 0 and returns that.
 */
int sl_options_walk(const struct sl_option_table *table,
                    int (*each)(const struct sl_option *row, const char *path, void *arg),
                    void *arg);
/** The form of a value, for help and pages: "auto|all|off", "SIZE", or the row's own `value`. */
const char *sl_option_value_name(const struct sl_option *row);
/** Whether "auto" is one of the values of a number or size. */
bool sl_option_takes_auto(const struct sl_option *row);
/** "64 KiB", "5 GiB": a size without rounding; text holds 32. */
const char *sl_exact_bytes(uint64_t bytes, char text[32]);
/** The index of text in "a|b|c", -1 if it is none of them. YAML's spellings of false are good for
 * "off". */
int sl_choice_index(const char *choices, const char *text);
/** The n-th of "a|b|c" into text (64 bytes); NULL past the end. */
const char *sl_choice_name(const char *choices, int index, char text[64]);
/** "true", "yes", "on" and "false", "no", "off" in YAML 1.1's ways of writing them; -1 if it is
 * none. */
int sl_parse_bool(const char *text, bool *value);

/** The row whose YAML key is the `bytes` bytes at key, NULL if the table has none. */
const struct sl_option *sl_options_row(const struct sl_option_table *table, const char *key,
                                       size_t bytes);
/** Always -1: "unknown key 'includes' in 'tensors', did you mean 'include'?". */
int sl_options_unknown(const struct sl_option_table *table, const char *key, struct sl_err *err);

/** Append a copy; lists and maps hold at most 10,000 items (SL_E_USAGE). */
int sl_list_add(struct sl_list *list, const char *text, size_t bytes, struct sl_err *err);
/** Add, or replace the value of a key that is there. */
int sl_map_add(struct sl_map *map, const char *key, const char *value, struct sl_err *err);
/** Append one struct with its defaults; borrowed until the next one is added. */
void *sl_items_add(struct sl_items *items, const struct sl_option_table *table, struct sl_err *err);

/** camelCase of a member: range_bytes gives rangeBytes. text holds 64. */
const char *sl_option_key(const struct sl_option *row, char text[64]);
bool sl_option_is_key(const struct sl_option *row, const char *key, size_t bytes);
/** kebab-case of a member: range_bytes gives range-bytes. text holds 64. */
const char *sl_option_kebab(const struct sl_option *row, char text[64]);

/** The candidate nearest to word by edit distance, NULL if none is near. */
const char *sl_nearest(const char *word, const char *const *candidates, size_t count);

/** 64Mi, 8MB, 1.5GiB, 4096; -1 if it is not a size. */
int sl_parse_bytes(const char *text, uint64_t *bytes);
/** Bytes in a second: a size with "/s" or without, or bits: "16Gbit/s", "10Gbps". */
int sl_parse_rate(const char *text, uint64_t *bytes);

#endif
