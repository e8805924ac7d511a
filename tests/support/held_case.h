/* What the tests of held memory share: a node with three models of 320,000 bytes in its pool and a
 * budget of 1 MiB, and the ways in which a client keeps memory after its lease. */
#ifndef SL_HELD_CASE_H
#define SL_HELD_CASE_H

#include "node_case.h"

enum {
    HELD_ITEMS = 40 * 1000,
    HELD_MODEL_BYTES = 2 * HELD_ITEMS * 4,
    HELD_BUDGET = 1 << 20,
    HELD_SLAB = HELD_MODEL_BYTES
};
enum { HELD_WAIT_MS = 60000 };

enum held_how { BY_DESCRIPTOR, BY_MAPPING, BY_REOPENING, BY_PATH, BY_SOCKET, HOW_COUNT };
struct held_kept {
    int fds[2]; /* -1: none */
    void *map;
    uint64_t bytes, inode; /* bytes 0: nothing is kept here */
};
#define HELD_NONE                                                                                  \
    {                                                                                              \
        {-1, -1}, NULL, 0, 0                                                                       \
    }

extern struct node_case held_node;
#define HELD_MODELS                                                                                \
    "models: [{file: m0.yaml, pin: false}, {file: m1.yaml, pin: false}, {file: m2.yaml, pin: "     \
    "false}]\n"
/** Of the node's config, for slabs that are files of a tmpfs. */
extern char held_keys[SL_SCRATCH_PATH_BYTES + 32];

/** Fixture of every test. */
void held_setup(void);
void held_teardown(void);
/** A node with nothing in memory; more: keys of its pool. */
void held_open_node(const char *more);

struct held_kept held_keep(int fd, enum held_how how);
void held_let_go(struct held_kept *kept);
/** A slab's descriptor, borrowed. */
int held_slab_of(struct sluice_model *model, unsigned number);
/** Until so much is left of what was dropped. */
void held_await_left(uint64_t least, uint64_t most);
void held_await_no_references(void);
struct sluice_model *held_must_load(const char *name);
/** Until nobody has a lease of it, and it was dropped. */
void held_evict(const char *name);

#endif
