/*
 * A YAML document as a tree in which every node remembers where it came from; for the files of this
 * folder.
 *
 * Aliases share nodes, so a tree is a graph without cycles; the tree owns every node. Not for
 * several threads.
 */
#ifndef SL_SPEC_NODE_H
#define SL_SPEC_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"

/** Where something was written: a place in the file (1 is the first line and column; 0 is nowhere)
 * or a flag. */
struct sl_mark {
    uint32_t line, column;
    const char *origin; /* "--range-bytes"; borrowed; NULL: the file */
};

/* ---- complaints ----------------------------------------------------------------------------- */

enum { SL_COMPLAINT_BYTES = 512 };
struct sl_complaint {
    struct sl_mark mark;
    unsigned document;
    char text[SL_COMPLAINT_BYTES];
};
/** The mistakes found so far. Beyond SL_SPEC_COMPLAINTS_MAX they are only counted. */
struct sl_complaints {
    struct sl_complaint *items; /* room for SL_SPEC_COMPLAINTS_MAX */
    size_t count, total;
    unsigned document; /* the one being read, from 0 */
};

/**
 * Add a mistake in the document that is being read.
 *
 * @mark    where it is.
 * @format  of one line, as of printf(); what is longer than SL_COMPLAINT_BYTES is cut.
 */
void sl_complain(struct sl_complaints *complaints, struct sl_mark mark, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- trees ---------------------------------------------------------------------------------- */

enum sl_yaml_kind { SL_YAML_NULL, SL_YAML_TEXT, SL_YAML_LIST, SL_YAML_MAP };

struct sl_yaml_node;
struct sl_yaml_pair {
    char *key;
    struct sl_mark mark; /* of the key */
    struct sl_yaml_node *value;
};
struct sl_yaml_node {
    enum sl_yaml_kind kind;
    struct sl_mark mark;
    uint32_t
        weight;  /* nodes below and including this one, aliases counted as often as they are used */
    char *text;  /* TEXT */
    bool broken; /* complained about already: it stands for something, but not for this text */
    size_t count, capacity;
    struct sl_yaml_node **items; /* LIST */
    struct sl_yaml_pair *pairs;  /* MAP; keys are unique */
};
struct sl_yaml_tree {
    struct sl_yaml_node **nodes;
    size_t count, capacity;
    size_t text_bytes; /* of all texts after replacement */
    struct sl_yaml_node *root;
};

void sl_yaml_tree_release(struct sl_yaml_tree *tree);
/** A node owned by the tree. */
struct sl_yaml_node *sl_yaml_tree_node(struct sl_yaml_tree *tree, enum sl_yaml_kind kind,
                                       struct sl_mark mark, struct sl_err *err);
/** "a list", "a mapping", …, for messages. */
const char *sl_yaml_kind_name(enum sl_yaml_kind kind);
/**
 * Append a pair to a MAP. The caller sees to uniqueness.
 *
 * @key     copied.
 * @mark    of the key.
 * @value   of the same tree, which owns it.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_yaml_add_pair(struct sl_yaml_node *map, const char *key, struct sl_mark mark,
                     struct sl_yaml_node *value, struct sl_err *err);
int sl_yaml_add_item(struct sl_yaml_node *list, struct sl_yaml_node *item, struct sl_err *err);
/** The pair of a key, NULL if there is none or the node is not a MAP (NULL included). */
struct sl_yaml_pair *sl_yaml_get(const struct sl_yaml_node *map, const char *key);
/** The pair at "sink.tmpfs.layout"; keys with dots cannot be named. */
struct sl_yaml_pair *sl_yaml_find(const struct sl_yaml_node *root, const char *path);
/** False for null, "" and for what holds nothing else. */
bool sl_yaml_sets_anything(const struct sl_yaml_node *node);

/* ---- reading -------------------------------------------------------------------------------- */

struct sl_yaml;
void sl_yaml_free(struct sl_yaml *yaml);
SL_AUTO_DEFINE(sl_yaml)
/**
 * Begin to read YAML.
 *
 * @text        `bytes` bytes; borrowed until sl_yaml_free().
 * @variables   replace ${VAR} in scalars.
 * @complaints  gets the mistakes; borrowed as well.
 * @return      free it. NULL: SL_E_NO_SPACE.
 */
struct sl_yaml *sl_yaml_open(const char *text, size_t bytes, bool variables,
                             struct sl_complaints *complaints, struct sl_err *err);
/**
 * The next document: 1 and tree->root, 0 at the end, -1. Mistakes that leave a tree are complaints
 * only; a syntax error, or a limit that was met, is a complaint and SL_E_USAGE.
 */
int sl_yaml_next(struct sl_yaml *yaml, struct sl_yaml_tree *tree, struct sl_err *err);

/**
 * Replace ${VAR} by the environment's value; $${ stands for ${ and any other $ for itself.
 * SL_E_USAGE if a variable is unset or badly named, or if the text would be longer than limit. The
 * result is malloc'ed.
 */
char *sl_expand_variables(const char *text, size_t limit, struct sl_err *err);

#endif
