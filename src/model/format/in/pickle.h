/* A pickle read into values. Nothing is imported, constructed or called. */
#ifndef SL_PICKLE_H
#define SL_PICKLE_H

#include "arena.h"
#include "err.h"

enum sl_pickle_kind {
    SL_PICKLE_NONE,
    SL_PICKLE_BOOL,
    SL_PICKLE_INT,
    SL_PICKLE_FLOAT, /* its value is of no use here and not kept */
    SL_PICKLE_TEXT,
    SL_PICKLE_BYTES,
    SL_PICKLE_LIST,
    SL_PICKLE_TUPLE,
    SL_PICKLE_DICT,   /* items: key, value, key, value … */
    SL_PICKLE_SET,    /* its items are dropped */
    SL_PICKLE_GLOBAL, /* what: a number of the rules */
    SL_PICKLE_OTHER,  /* made by the rules: what and data are theirs */
};

enum {
    SL_PICKLE_INT_BYTES_MAX = 32,
    SL_PICKLE_DEPTH_MAX = 1000,
    /* Memory for all that is made of pickles: so much, and so much for each byte that was read. A
     * checkpoint of torch.save takes about 15 bytes a byte, the densest pickle without references
     * 110. */
    SL_PICKLE_MEMORY_BASE = 16 * 1024 * 1024,
    SL_PICKLE_MEMORY_PER_BYTE = 256,
    SL_PICKLE_MEMORY_MAX = 768 * 1024 * 1024,
};

struct sl_pickle_node {
    enum sl_pickle_kind kind;
    unsigned what;
    uint32_t depth;   /* of containers below and with this one */
    bool busy;        /* for walks: on the way from the root */
    bool wide;        /* an INT that does not fit number; text and bytes: two's complement, LE */
    int64_t number;   /* INT, BOOL */
    const char *text; /* TEXT, BYTES: borrowed from the pickle's bytes */
    size_t bytes;
    struct sl_pickle_node **items;
    size_t count, capacity;
    void *data;
    struct sl_pickle_node *next_container;
};

struct sl_pickle;
/** The meaning of names in a pickle. Each returns a node, or NULL with err filled. */
struct sl_pickle_rules {
    struct sl_pickle_node *(*global)(struct sl_pickle *pickle, const char *module,
                                     size_t module_bytes, const char *name, size_t name_bytes,
                                     struct sl_err *err);
    struct sl_pickle_node *(*reduce)(struct sl_pickle *pickle, struct sl_pickle_node *callee,
                                     struct sl_pickle_node *args, struct sl_err *err);
    /** An object of a class, which is not constructed. */
    struct sl_pickle_node *(*make)(struct sl_pickle *pickle, struct sl_pickle_node *class,
                                   struct sl_pickle_node *args, struct sl_err *err);
    struct sl_pickle_node *(*persistent)(struct sl_pickle *pickle, struct sl_pickle_node *id,
                                         struct sl_err *err);
    /** 0 if the state may be dropped. */
    int (*build)(struct sl_pickle *pickle, struct sl_pickle_node *target,
                 struct sl_pickle_node *state, struct sl_err *err);
    void *arg;
};

/** The memory of nodes; one may read several pickles. Rules and bytes are borrowed. */
struct sl_pickle *sl_pickle_new(const struct sl_pickle_rules *rules, struct sl_err *err);
void sl_pickle_free(struct sl_pickle *pickle);
SL_AUTO_DEFINE(sl_pickle)
void *sl_pickle_arg(const struct sl_pickle *pickle);
/**
 * Take so many bytes from the memory that its length allows a pickle. References to one value cost
 * a byte or two each, so whatever grows with them is counted here before it is allocated: -1 with
 * pkl.limit.
 */
int sl_pickle_charge(struct sl_pickle *pickle, uint64_t bytes, struct sl_err *err);
/** Memory of its own, counted, that lives as long as the pickle; zeroed. */
void *sl_pickle_alloc(struct sl_pickle *pickle, size_t bytes, struct sl_err *err);
/**
 * As sl_grow(), counted by sl_pickle_charge().
 *
 * @array_pointer  the address of a pointer to the array, which may be NULL.
 * @capacity       items that there is room for; out: the new number.
 * @need           items that there must be room for.
 * @size           bytes of an item.
 * @return         0, or -1: pkl.limit, SL_E_NO_SPACE.
 */
int sl_pickle_grow(struct sl_pickle *pickle, void *array_pointer, size_t *capacity, size_t need,
                   size_t size, struct sl_err *err);
/** Values that were put into containers so far. */
uint64_t sl_pickle_items(const struct sl_pickle *pickle);
/** Put an item at the end of a list or dict. -1 with pkl.limit: nested too deep, or no memory. */
int sl_pickle_add(struct sl_pickle *pickle, struct sl_pickle_node *into,
                  struct sl_pickle_node *item, struct sl_err *err);
/** A new node of a kind, for rules. */
struct sl_pickle_node *sl_pickle_node(struct sl_pickle *pickle, enum sl_pickle_kind kind,
                                      struct sl_err *err);

/**
 * Read one pickle.
 *
 * @data    `bytes` bytes; borrowed as long as its values are used, whose texts lie there.
 * @used    out: how many bytes it has.
 * @return  its value, which lives as long as `pickle`. NULL: SL_E_FORMAT and a code pkl.* or one of
 *          the rules; SL_E_NO_SPACE.
 */
struct sl_pickle_node *sl_pickle_read(struct sl_pickle *pickle, const void *data, size_t bytes,
                                      size_t *used, struct sl_err *err);

/** Is it this text? */
bool sl_pickle_is_text(const struct sl_pickle_node *node, const char *text);

#endif
