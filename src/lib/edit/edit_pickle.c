/*
 * The opcodes of a pickle are read into terms: what each pushes, what it takes from the stack, and
 * what is done to it afterwards (items, state). A term that is used more than once was in the memo.
 * So a value can be taken out although later ones refer to parts of it: whatever is still used is
 * written where it is used first, and remembered anew. Nothing is known of what it means, and
 * nothing gets lost: opcodes are written with their own bytes.
 */
#include "edit_pickle.h"

#include <string.h>

#include "arena.h"
#include "names.h"

enum { DEPTH_MAX = 3000, MARKS_MAX = 1000 };

struct term;
/* An opcode and what it takes. */
struct action {
    const uint8_t *op;
    size_t op_bytes;
    bool mark; /* what it takes begins at a mark */
    struct term **parts;
    size_t count;
    struct action *next;
};
struct term {
    struct action made;
    struct action *first, *last; /* done to it, in their order */
    unsigned uses;
    uint32_t slot;
    enum { NOT_YET, ON_THE_WAY, WRITTEN } state;
};
struct machine {
    const uint8_t *data;
    size_t bytes, at;
    struct sl_arena *arena;
    struct term **stack, **memo;
    size_t height, stack_capacity, memo_end, memo_capacity, memo_used;
    size_t marks[MARKS_MAX], mark_count;
    struct term *root;
    struct sl_buf *out;
    uint32_t slots;
};

static int broken(const struct machine *machine, struct sl_err *err)
{
    return sl_fail_code(
        err, SL_E_FORMAT, "pkl.opcode",
        "the pickle cannot be changed at byte %zu: save the file again with torch.save",
        machine->at);
}

/* ---- read ------------------------------------------------------------------------------------ */

static uint64_t number_at(const struct machine *machine, size_t at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | (at + i < machine->bytes ? machine->data[at + i] : 0);
    return value;
}

static size_t lines(const struct machine *machine, unsigned count)
{
    size_t end = machine->at + 1;
    while (count && end < machine->bytes)
        count -= machine->data[end++] == '\n';
    return end - machine->at;
}

/* How an opcode's own bytes are counted: so many, or a length of so many bytes and as many more. */
struct shape {
    uint8_t op, bytes, length_bytes;
    int8_t takes; /* from the stack; -1: down to a mark */
    enum { PUSHES, CHANGES } does;
};
static const struct shape shapes[] = {
    {'J', 5, 0, 0, PUSHES},   {'K', 2, 0, 0, PUSHES},    {'M', 3, 0, 0, PUSHES},
    {'G', 9, 0, 0, PUSHES},   {0x8a, 2, 1, 0, PUSHES},   {0x8b, 5, 4, 0, PUSHES},
    {'X', 5, 4, 0, PUSHES},   {0x8c, 2, 1, 0, PUSHES},   {0x8d, 9, 8, 0, PUSHES},
    {'U', 2, 1, 0, PUSHES},   {'T', 5, 4, 0, PUSHES},    {'C', 2, 1, 0, PUSHES},
    {'B', 5, 4, 0, PUSHES},   {0x8e, 9, 8, 0, PUSHES},   {0x96, 9, 8, 0, PUSHES},
    {'N', 1, 0, 0, PUSHES},   {0x88, 1, 0, 0, PUSHES},   {0x89, 1, 0, 0, PUSHES},
    {')', 1, 0, 0, PUSHES},   {']', 1, 0, 0, PUSHES},    {'}', 1, 0, 0, PUSHES},
    {0x8f, 1, 0, 0, PUSHES},  {0x85, 1, 0, 1, PUSHES},   {0x86, 1, 0, 2, PUSHES},
    {0x87, 1, 0, 3, PUSHES},  {'R', 1, 0, 2, PUSHES},    {'Q', 1, 0, 1, PUSHES},
    {0x81, 1, 0, 2, PUSHES},  {0x93, 1, 0, 2, PUSHES},   {'t', 1, 0, -1, PUSHES},
    {'l', 1, 0, -1, PUSHES},  {0x91, 1, 0, -1, PUSHES},  {'a', 1, 0, 1, CHANGES},
    {'s', 1, 0, 2, CHANGES},  {'b', 1, 0, 1, CHANGES},   {'e', 1, 0, -1, CHANGES},
    {'u', 1, 0, -1, CHANGES}, {0x90, 1, 0, -1, CHANGES}, {'I', 0, 1, 0, PUSHES},
    {'L', 0, 1, 0, PUSHES},   {'F', 0, 1, 0, PUSHES},    {'c', 0, 2, 0, PUSHES},
};

static const struct shape *shape_of(uint8_t op)
{
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        if (shapes[i].op == op)
            return &shapes[i];
    return NULL;
}

static size_t op_bytes(const struct machine *machine, const struct shape *shape)
{
    if (!shape->bytes)
        return lines(machine, shape->length_bytes);
    uint64_t more =
        shape->length_bytes ? number_at(machine, machine->at + 1, shape->length_bytes) : 0;
    return more < machine->bytes ? shape->bytes + (size_t)more : SIZE_MAX / 2;
}

static int push(struct machine *machine, struct term *term, struct sl_err *err)
{
    if (sl_grow(&machine->stack, &machine->stack_capacity, machine->height + 1,
                sizeof(*machine->stack), err) < 0)
        return -1;
    machine->stack[machine->height++] = term;
    return 0;
}

/* What an opcode takes leaves the stack. */
static int take(struct machine *machine, const struct shape *shape, struct action *action,
                struct sl_err *err)
{
    size_t floor = machine->mark_count ? machine->marks[machine->mark_count - 1] : 0;
    action->mark = shape->takes < 0;
    if (action->mark && !machine->mark_count)
        return broken(machine, err);
    action->count = action->mark ? machine->height - floor : (size_t)shape->takes;
    if (machine->height - floor < action->count)
        return broken(machine, err);
    machine->mark_count -= action->mark;
    machine->height -= action->count;
    action->parts =
        sl_arena_alloc(machine->arena, (action->count + 1) * sizeof(struct term *), err);
    if (!action->parts)
        return -1;
    for (size_t i = 0; i < action->count; i++) {
        action->parts[i] = machine->stack[machine->height + i];
        action->parts[i]->uses++;
    }
    return 0;
}

static void add_action(struct term *term, struct action *action)
{
    if (term->last)
        term->last->next = action;
    else
        term->first = action;
    term->last = action;
}

/* An opcode that pushes something, or changes what is on top. */
static int step_value(struct machine *machine, const struct shape *shape, struct sl_err *err)
{
    size_t bytes = op_bytes(machine, shape);
    if (bytes > machine->bytes - machine->at)
        return broken(machine, err);
    struct action action = {.op = machine->data + machine->at, .op_bytes = bytes};
    if (take(machine, shape, &action, err) < 0)
        return -1;
    machine->at += bytes;
    if (shape->does == PUSHES) {
        struct term *term = sl_arena_alloc(machine->arena, sizeof(*term), err);
        if (!term)
            return -1;
        term->made = action;
        return push(machine, term, err);
    }
    struct action *kept = sl_arena_alloc(machine->arena, sizeof(*kept), err);
    if (!kept)
        return -1;
    *kept = action;
    if (!machine->height)
        return broken(machine, err);
    add_action(machine->stack[machine->height - 1], kept);
    return 0;
}

static int put(struct machine *machine, uint64_t slot, struct sl_err *err)
{
    if (!machine->height || slot > machine->bytes)
        return broken(machine, err);
    if (sl_grow(&machine->memo, &machine->memo_capacity, slot + 1, sizeof(*machine->memo), err) < 0)
        return -1;
    while (machine->memo_end <= slot)
        machine->memo[machine->memo_end++] = NULL;
    machine->memo_used += !machine->memo[slot];
    machine->memo[slot] = machine->stack[machine->height - 1];
    return 0;
}

static int get(struct machine *machine, uint64_t slot, struct sl_err *err)
{
    if (slot >= machine->memo_end || !machine->memo[slot])
        return broken(machine, err);
    return push(machine, machine->memo[slot], err);
}

static int mark(struct machine *machine, struct sl_err *err)
{
    if (machine->mark_count == MARKS_MAX)
        return broken(machine, err);
    machine->marks[machine->mark_count++] = machine->height;
    return 0;
}

/* What nobody uses afterwards is not written. */
static int drop(struct machine *machine, bool to_mark, struct sl_err *err)
{
    size_t floor = machine->mark_count ? machine->marks[machine->mark_count - 1] : 0;
    if (to_mark ? !machine->mark_count : machine->height == floor)
        return broken(machine, err);
    machine->height = to_mark ? floor : machine->height - 1;
    machine->mark_count -= to_mark;
    machine->at++;
    return 0;
}

/* Opcodes of stack and memo, which are made anew. */
static int step(struct machine *machine, struct sl_err *err)
{
    size_t at = machine->at;
    uint8_t op = machine->data[at];
    const struct shape *shape = shape_of(op);
    if (shape)
        return step_value(machine, shape, err);
    switch (op) {
    case '(':
        machine->at++;
        return mark(machine, err);
    case 'q':
    case 'h':
        machine->at += 2;
        return op == 'q' ? put(machine, number_at(machine, at + 1, 1), err)
                         : get(machine, number_at(machine, at + 1, 1), err);
    case 'r':
    case 'j':
        machine->at += 5;
        return op == 'r' ? put(machine, number_at(machine, at + 1, 4), err)
                         : get(machine, number_at(machine, at + 1, 4), err);
    case 0x94:
        machine->at++;
        return put(machine, machine->memo_used, err);
    case '0':
    case '1':
        return drop(machine, op == '1', err);
    case 0x80: /* the protocol: kept by who writes */
        machine->at += 2;
        return 0;
    case 0x95: /* a frame: lengths change */
        machine->at += 9;
        return 0;
    default:
        return broken(machine, err);
    }
}

static int read_all(struct machine *machine, struct sl_err *err)
{
    while (machine->at < machine->bytes && machine->data[machine->at] != '.')
        if (step(machine, err) < 0)
            return -1;
    if (machine->at >= machine->bytes || machine->height != 1 || machine->mark_count)
        return broken(machine, err);
    machine->root = machine->stack[0];
    machine->root->uses++;
    return 0;
}

/* ---- changed --------------------------------------------------------------------------------- */

static bool is_key(const struct term *term, const struct sl_path_part *part)
{
    const uint8_t *op = term->made.op;
    const struct shape *shape = shape_of(*op);
    if (!part->text) {
        const struct machine bytes = {.data = op, .bytes = term->made.op_bytes};
        return (*op == 'K' || *op == 'M' || *op == 'J') &&
               number_at(&bytes, 1, shape->bytes - 1u) == part->number;
    }
    bool text = *op == 'X' || *op == 0x8c || *op == 0x8d || *op == 'U' || *op == 'T';
    return text && term->made.op_bytes - shape->bytes == part->text_bytes &&
           memcmp(op + shape->bytes, part->text, part->text_bytes) == 0;
}

static bool sets_items(const struct action *action)
{
    return *action->op == 'u' || *action->op == 's';
}

/* Where a dict sets a key: the action, and which of its parts is the value. NULL: nowhere. */
static struct action *find_key(const struct term *dict, const struct sl_path_part *part,
                               size_t *value)
{
    for (struct action *action = dict->first; action; action = action->next)
        for (size_t i = 0; sets_items(action) && i + 1 < action->count; i += 2)
            if (is_key(action->parts[i], part)) {
                *value = i + 1;
                return action;
            }
    return NULL;
}

static int no_dict(const struct sl_edit_pickle_change *change, struct sl_err *err)
{
    const struct sl_path_part *part = &change->path[change->path_count - 1];
    return sl_fail(
        err, SL_E_USAGE,
        "'%.*s' is not an item of a dict in the checkpoint: save it again with torch.save",
        SL_NAME_ARGS(part->text ? part->text : "", part->text ? part->text_bytes : 0));
}

static struct term *raw_term(struct machine *machine, const uint8_t *op, size_t bytes,
                             struct sl_err *err)
{
    struct term *term = sl_arena_alloc(machine->arena, sizeof(*term), err);
    if (term)
        *term = (struct term){.made = {.op = op, .op_bytes = bytes}, .uses = 1};
    return term;
}

/* One more item of the outermost dict. */
static int add_item(struct machine *machine, const struct sl_edit_pickle_change *change,
                    struct sl_err *err)
{
    static const uint8_t set[] = {'s'};
    const struct sl_path_part *part = change->path;
    uint8_t *key = sl_arena_alloc(machine->arena, 5 + part->text_bytes, err);
    struct action *action = sl_arena_alloc(machine->arena, sizeof(*action), err);
    struct term **parts = sl_arena_alloc(machine->arena, 2 * sizeof(*parts), err);
    const uint8_t root = *machine->root->made.op;
    if (!key || !action || !parts)
        return -1;
    if (root != '}' && root != 'R')
        return no_dict(change, err);
    key[0] = 'X';
    for (unsigned i = 0; i < 4; i++)
        key[1 + i] = (uint8_t)(part->text_bytes >> (8 * i));
    memcpy(key + 5, part->text, part->text_bytes);
    parts[0] = raw_term(machine, key, 5 + part->text_bytes, err);
    parts[1] = raw_term(machine, change->value, change->value_bytes, err);
    *action = (struct action){.op = set, .op_bytes = 1, .parts = parts, .count = 2};
    add_action(machine->root, action);
    return parts[0] && parts[1] ? 0 : -1;
}

static void remove_item(struct action *action, size_t value)
{
    action->parts[value - 1]->uses--;
    action->parts[value]->uses--;
    memmove(action->parts + value - 1, action->parts + value + 1,
            (action->count - value - 1) * sizeof(*action->parts));
    action->count -= 2;
}

static int change_one(struct machine *machine, const struct sl_edit_pickle_change *change,
                      struct sl_err *err)
{
    const struct term *dict = machine->root;
    struct action *action = NULL;
    size_t value = 0;
    if (change->fresh)
        return add_item(machine, change, err);
    for (unsigned i = 0; i < change->path_count; i++) {
        action = find_key(dict, &change->path[i], &value);
        if (!action)
            return no_dict(change, err);
        dict = action->parts[value];
    }
    if (!change->value) {
        remove_item(action, value);
        return 0;
    }
    action->parts[value]->uses--;
    action->parts[value] = raw_term(machine, change->value, change->value_bytes, err);
    return action->parts[value] ? 0 : -1;
}

/* ---- written --------------------------------------------------------------------------------- */

static int write_slot(struct machine *machine, const char ops[2], uint32_t slot, struct sl_err *err)
{
    const uint8_t bytes[5] = {(uint8_t)(slot > 255 ? ops[1] : ops[0]), (uint8_t)slot,
                              (uint8_t)(slot >> 8), (uint8_t)(slot >> 16), (uint8_t)(slot >> 24)};
    return sl_buf_append(machine->out, bytes, slot > 255 ? 5 : 2, err);
}

static int write_term(struct machine *machine, struct term *term, unsigned depth,
                      struct sl_err *err);

static int write_action(struct machine *machine, const struct action *action, unsigned depth,
                        struct sl_err *err)
{
    if (action->mark && sl_buf_append(machine->out, "(", 1, err) < 0)
        return -1;
    for (size_t i = 0; i < action->count; i++)
        if (write_term(machine, action->parts[i], depth + 1, err) < 0)
            return -1;
    return sl_buf_append(machine->out, action->op, action->op_bytes, err);
}

/* Depth is bounded, so that a file does not choose how much of our stack is used. */
static int write_term(struct machine *machine, struct term *term, unsigned depth,
                      struct sl_err *err)
{
    if (term->state == WRITTEN)
        return write_slot(machine, "hj", term->slot, err);
    if (term->state == ON_THE_WAY || depth > DEPTH_MAX)
        return broken(machine, err);
    term->state = ON_THE_WAY;
    if (write_action(machine, &term->made, depth, err) < 0)
        return -1;
    if (term->uses > 1) {
        term->slot = machine->slots++;
        if (write_slot(machine, "qr", term->slot, err) < 0)
            return -1;
    }
    term->state = WRITTEN;
    for (const struct action *action = term->first; action; action = action->next)
        if ((action->count || !sets_items(action)) && write_action(machine, action, depth, err) < 0)
            return -1;
    return 0;
}

static int edit(struct machine *machine, const struct sl_edit_pickle_change *changes, size_t count,
                struct sl_err *err)
{
    const bool has_protocol = machine->bytes > 2 && machine->data[0] == 0x80;
    if (read_all(machine, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (change_one(machine, &changes[i], err) < 0)
            return -1;
    if ((has_protocol && sl_buf_append(machine->out, machine->data, 2, err) < 0) ||
        write_term(machine, machine->root, 0, err) < 0)
        return -1;
    return sl_buf_append(machine->out, ".", 1, err);
}

int sl_edit_pickle(const void *data, size_t bytes, const struct sl_edit_pickle_change *changes,
                   size_t count, struct sl_buf *out, struct sl_err *err)
{
    if (bytes > SL_EDIT_PICKLE_BYTES_MAX)
        return sl_fail_code(
            err, SL_E_FORMAT, "pkl.limit",
            "a pickle of %zu bytes is not changed, at most %d: save the file again with torch.save",
            bytes, SL_EDIT_PICKLE_BYTES_MAX);
    SL_AUTO(sl_arena) arena = sl_arena_new(err);
    struct machine machine = {.data = data, .bytes = bytes, .arena = arena, .out = out};
    int done = arena ? edit(&machine, changes, count, err) : -1;
    free(machine.stack);
    free(machine.memo);
    return done;
}
