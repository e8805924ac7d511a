/*
 * A pickle is a program for a stack machine, and Python runs it: whoever writes the file chooses
 * what is imported and called. This machine has the same stack, marks and memo, but only values: a
 * GLOBAL asks the rules for a symbolic node, REDUCE hands callee and arguments to the rules, and
 * what they do not know is refused. Opcodes and limits: formats, section 3.
 *
 * Every pointer is into the pickle's own bytes or into one arena; containers hold their items in
 * arrays of their own, which a list of containers frees. Depth is kept as a number per container,
 * so that no recursion follows what a file chooses.
 */
#include "pickle.h"

#include <inttypes.h>
#include <string.h>

#include "names.h"
#include "pickle_parts.h"

enum {
    MEMO_MAX = 1 << 22,
    MEMO_GAP_MAX = 65536, /* writers number slots as they come */
    PROTOCOL_MAX = 5,
    TEXT_SHOWN_MAX = 80,
};

struct sl_pickle *sl_pickle_new(const struct sl_pickle_rules *rules, struct sl_err *err)
{
    SL_AUTO(sl_pickle) pickle = sl_alloc(sizeof(*pickle), err);
    if (!pickle)
        return NULL;
    pickle->rules = rules;
    pickle->none.kind = SL_PICKLE_NONE;
    pickle->yes = (struct sl_pickle_node){.kind = SL_PICKLE_BOOL, .number = 1};
    pickle->no = (struct sl_pickle_node){.kind = SL_PICKLE_BOOL};
    pickle->arena = sl_arena_new(err);
    return pickle->arena ? sl_steal(&pickle) : NULL;
}

void sl_pickle_free(struct sl_pickle *pickle)
{
    if (!pickle)
        return;
    for (struct sl_pickle_node *node = pickle->containers; node; node = node->next_container)
        free(node->items);
    sl_arena_free(pickle->arena);
    free(pickle->stack);
    free(pickle->memo);
    free(pickle);
}

void *sl_pickle_arg(const struct sl_pickle *pickle)
{
    return pickle->rules->arg;
}

bool sl_pickle_is_text(const struct sl_pickle_node *node, const char *text)
{
    return (node->kind == SL_PICKLE_TEXT || node->kind == SL_PICKLE_BYTES) &&
           node->bytes == strlen(text) && memcmp(node->text, text, node->bytes) == 0;
}

/* ---- nodes and stack ------------------------------------------------------------------------- */

/* Values above the topmost mark. */
static size_t above_mark(const struct sl_pickle *pickle)
{
    return pickle->height - (pickle->mark_count ? pickle->marks[pickle->mark_count - 1] : 0);
}

static struct sl_pickle_node *pop(struct sl_pickle *pickle, struct sl_err *err)
{
    if (above_mark(pickle) == 0) {
        sl_pickle_fail(pickle, "pkl.stack", "a value is taken from an empty stack", err);
        return NULL;
    }
    return pickle->stack[--pickle->height];
}

static struct sl_pickle_node *top(struct sl_pickle *pickle, struct sl_err *err)
{
    struct sl_pickle_node *node = pop(pickle, err);
    pickle->height += node != NULL;
    return node;
}

/* Drop the mark: the values above it begin at *first. */
static int pop_mark(struct sl_pickle *pickle, size_t *first, struct sl_err *err)
{
    if (pickle->mark_count == 0)
        return sl_pickle_fail(pickle, "pkl.stack", "there is no mark", err);
    *first = pickle->marks[--pickle->mark_count];
    return 0;
}

static bool is_key(const struct sl_pickle_node *node)
{
    if (node->kind == SL_PICKLE_LIST || node->kind == SL_PICKLE_DICT || node->kind == SL_PICKLE_SET)
        return false;
    return true;
}

/* Values [first, height) of the stack into a container; they leave the stack. */
static int fill(struct sl_pickle *pickle, struct sl_pickle_node *into, size_t first,
                struct sl_err *err)
{
    if (into->kind == SL_PICKLE_DICT && (pickle->height - first) % 2)
        return sl_pickle_fail(pickle, "pkl.stack", "a key has no value", err);
    for (size_t i = first; i < pickle->height; i++) {
        if (into->kind == SL_PICKLE_DICT && (i - first) % 2 == 0 && !is_key(pickle->stack[i]))
            return sl_pickle_fail(pickle, "pkl.type", "a container is the key of a dict", err);
        if (into->kind != SL_PICKLE_SET && sl_pickle_add(pickle, into, pickle->stack[i], err) < 0)
            return -1;
    }
    pickle->height = first;
    return 0;
}

/* A tuple never grows: its items lie in the arena. */
static int make_room(struct sl_pickle *pickle, struct sl_pickle_node *tuple, size_t first,
                     struct sl_err *err)
{
    tuple->capacity = pickle->height - first;
    if (tuple->capacity == 0)
        return 0;
    tuple->items = sl_pickle_alloc(pickle, tuple->capacity * sizeof(*tuple->items), err);
    return tuple->items ? 0 : -1;
}

/* A new container of the stack's last values. */
static int collect(struct sl_pickle *pickle, enum sl_pickle_kind kind, size_t first,
                   struct sl_err *err)
{
    struct sl_pickle_node *node = sl_pickle_node(pickle, kind, err);
    if (!node || (kind == SL_PICKLE_TUPLE && make_room(pickle, node, first, err) < 0) ||
        fill(pickle, node, first, err) < 0)
        return -1;
    return sl_pickle_push(pickle, node, err);
}

/* The last values go into the container below them. */
static int extend(struct sl_pickle *pickle, enum sl_pickle_kind kind, size_t first,
                  struct sl_err *err)
{
    if (first == 0 || (pickle->mark_count && first <= pickle->marks[pickle->mark_count - 1]))
        return sl_pickle_fail(pickle, "pkl.stack", "there is no container below the values", err);
    struct sl_pickle_node *into = pickle->stack[first - 1];
    if (into->kind != kind)
        return sl_pickle_fail(pickle, "pkl.type",
                              "values are added to something that does not hold them", err);
    return fill(pickle, into, first, err);
}

static int collect_last(struct sl_pickle *pickle, size_t count, struct sl_err *err)
{
    if (above_mark(pickle) < count)
        return sl_pickle_fail(pickle, "pkl.stack", "a tuple of values that are not there", err);
    return collect(pickle, SL_PICKLE_TUPLE, pickle->height - count, err);
}

static int extend_last(struct sl_pickle *pickle, enum sl_pickle_kind kind, size_t count,
                       struct sl_err *err)
{
    if (above_mark(pickle) < count + 1)
        return sl_pickle_fail(pickle, "pkl.stack", "values are added that are not there", err);
    return extend(pickle, kind, pickle->height - count, err);
}

/* ---- memo ------------------------------------------------------------------------------------ */

static int put(struct sl_pickle *pickle, uint64_t slot, struct sl_err *err)
{
    struct sl_pickle_node *node = top(pickle, err);
    if (!node)
        return -1;
    if (slot >= MEMO_MAX || slot > pickle->memo_end + MEMO_GAP_MAX)
        return sl_pickle_limit(pickle, "a memo slot beyond all others", err);
    if (sl_pickle_grow(pickle, &pickle->memo, &pickle->memo_capacity, slot + 1,
                       sizeof(struct sl_pickle_node *), err) < 0)
        return -1;
    while (pickle->memo_end <= slot)
        pickle->memo[pickle->memo_end++] = NULL;
    pickle->memo_used += !pickle->memo[slot];
    pickle->memo[slot] = node;
    return 0;
}

static int op_put(struct sl_pickle *pickle, unsigned bytes, struct sl_err *err)
{
    uint64_t slot;
    return sl_pickle_take_number(pickle, bytes, &slot, err) < 0 ? -1 : put(pickle, slot, err);
}

static int op_get(struct sl_pickle *pickle, unsigned bytes, struct sl_err *err)
{
    uint64_t slot;
    if (sl_pickle_take_number(pickle, bytes, &slot, err) < 0)
        return -1;
    if (slot >= pickle->memo_end || !pickle->memo[slot])
        return sl_fail_code(err, SL_E_FORMAT, "pkl.memo",
                            "memo slot %" PRIu64 " is read before anything is put there", slot);
    return sl_pickle_push(pickle, pickle->memo[slot], err);
}

/* ---- names and calls ------------------------------------------------------------------------- */

static int op_global(struct sl_pickle *pickle, struct sl_err *err)
{
    size_t module_bytes, name_bytes;
    const char *module = sl_pickle_take_line(pickle, &module_bytes, err);
    const char *name = module ? sl_pickle_take_line(pickle, &name_bytes, err) : NULL;
    if (!name)
        return -1;
    return sl_pickle_push(
        pickle, pickle->rules->global(pickle, module, module_bytes, name, name_bytes, err), err);
}

static int op_stack_global(struct sl_pickle *pickle, struct sl_err *err)
{
    struct sl_pickle_node *name = pop(pickle, err), *module = name ? pop(pickle, err) : NULL;
    if (!module)
        return -1;
    if (name->kind != SL_PICKLE_TEXT || module->kind != SL_PICKLE_TEXT)
        return sl_pickle_fail(pickle, "pkl.type", "a global's name is not a text", err);
    return sl_pickle_push(
        pickle,
        pickle->rules->global(pickle, module->text, module->bytes, name->text, name->bytes, err),
        err);
}

/* An object of a class is made (NEWOBJ), or a function called. */
static int op_call(struct sl_pickle *pickle, bool new, struct sl_err *err)
{
    struct sl_pickle_node *args = pop(pickle, err), *callee = args ? pop(pickle, err) : NULL;
    if (!callee)
        return -1;
    if (callee->kind != SL_PICKLE_GLOBAL || args->kind != SL_PICKLE_TUPLE)
        return sl_pickle_fail(pickle, "pkl.call", "something that is not a function is called",
                              err);
    return sl_pickle_push(pickle,
                          new ? pickle->rules->make(pickle, callee, args, err)
                              : pickle->rules->reduce(pickle, callee, args, err),
                          err);
}

static int op_build(struct sl_pickle *pickle, struct sl_err *err)
{
    struct sl_pickle_node *state = pop(pickle, err), *target = state ? top(pickle, err) : NULL;
    return target ? pickle->rules->build(pickle, target, state, err) : -1;
}

static int op_persistent(struct sl_pickle *pickle, struct sl_err *err)
{
    struct sl_pickle_node *id = pop(pickle, err);
    return id ? sl_pickle_push(pickle, pickle->rules->persistent(pickle, id, err), err) : -1;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static int op_mark(struct sl_pickle *pickle, struct sl_err *err)
{
    if (pickle->mark_count == SL_PICKLE_MARKS_MAX)
        return sl_pickle_limit(pickle, "more than 1000 marks", err);
    pickle->marks[pickle->mark_count++] = pickle->height;
    return 0;
}

static int op_protocol(struct sl_pickle *pickle, struct sl_err *err)
{
    uint64_t version;
    if (sl_pickle_take_number(pickle, 1, &version, err) < 0)
        return -1;
    return version <= PROTOCOL_MAX ? 0
                                   : sl_fail_code(err, SL_E_FORMAT, "pkl.proto",
                                                  "pickle protocol %" PRIu64 ", known are 0 to %d",
                                                  version, PROTOCOL_MAX);
}

static int op_frame(struct sl_pickle *pickle, struct sl_err *err)
{
    uint64_t bytes;
    if (sl_pickle_take_number(pickle, 8, &bytes, err) < 0)
        return -1;
    return bytes <= pickle->bytes - pickle->at
               ? 0
               : sl_pickle_fail(pickle, "pkl.truncated", "a frame is longer than the pickle", err);
}

/* Opcodes that end at the topmost mark. */
static int op_to_mark(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    size_t first = 0;
    if (pop_mark(pickle, &first, err) < 0)
        return -1;
    switch (op) {
    case 't':
        return collect(pickle, SL_PICKLE_TUPLE, first, err);
    case 'l':
        return collect(pickle, SL_PICKLE_LIST, first, err);
    case 0x91:
        return collect(pickle, SL_PICKLE_SET, first, err);
    case 'e':
        return extend(pickle, SL_PICKLE_LIST, first, err);
    case 'u':
        return extend(pickle, SL_PICKLE_DICT, first, err);
    case 0x90:
        return extend(pickle, SL_PICKLE_SET, first, err);
    default: /* '1' */
        pickle->height = first;
        return 0;
    }
}

static int bad_opcode(const struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    if (op == 0x92)
        return sl_pickle_fail(pickle, "pkl.call", "an object is made (save a state_dict instead?)",
                              err);
    return sl_fail_code(err, SL_E_FORMAT, "pkl.opcode",
                        "opcode %u at byte %zu of the pickle is not one that torch.save writes", op,
                        pickle->at - 1);
}

/* Globals, calls and what is built of them. */
static int step_name(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    switch (op) {
    case 'c':
        return op_global(pickle, err);
    case 0x93:
        return op_stack_global(pickle, err);
    case 'R':
        return op_call(pickle, false, err);
    case 0x81:
        return op_call(pickle, true, err);
    case 'b':
        return op_build(pickle, err);
    case 'Q':
        return op_persistent(pickle, err);
    default:
        return bad_opcode(pickle, op, err);
    }
}

/* Tuples, lists, dicts, sets. */
static int step_container(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    switch (op) {
    case ')':
        return collect(pickle, SL_PICKLE_TUPLE, pickle->height, err);
    case ']':
        return collect(pickle, SL_PICKLE_LIST, pickle->height, err);
    case '}':
        return collect(pickle, SL_PICKLE_DICT, pickle->height, err);
    case 0x8f:
        return collect(pickle, SL_PICKLE_SET, pickle->height, err);
    case 0x85:
    case 0x86:
    case 0x87:
        return collect_last(pickle, op - 0x84u, err);
    case 't':
    case 'l':
    case 'e':
    case 'u':
    case '1':
    case 0x90:
    case 0x91:
        return op_to_mark(pickle, op, err);
    case 'a':
        return extend_last(pickle, SL_PICKLE_LIST, 1, err);
    case 's':
        return extend_last(pickle, SL_PICKLE_DICT, 2, err);
    default:
        return step_name(pickle, op, err);
    }
}

/* Numbers and strings. */
static int step_scalar(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    switch (op) {
    case 'I':
    case 'L':
    case 'F':
    case 'J':
    case 'K':
    case 'M':
    case 'G':
    case 0x8a:
    case 0x8b:
        return sl_pickle_op_number(pickle, op, err);
    case 'X':
        return sl_pickle_op_string(pickle, 'X', 4, err);
    case 0x8c:
        return sl_pickle_op_string(pickle, 'X', 1, err);
    case 0x8d:
        return sl_pickle_op_string(pickle, 'X', 8, err);
    case 'U':
        return sl_pickle_op_string(pickle, 'U', 1, err);
    case 'T':
        return sl_pickle_op_string(pickle, 'U', 4, err);
    case 'C':
        return sl_pickle_op_string(pickle, 'B', 1, err);
    case 'B':
        return sl_pickle_op_string(pickle, 'B', 4, err);
    case 0x8e:
    case 0x96:
        return sl_pickle_op_string(pickle, 'B', 8, err);
    default:
        return step_container(pickle, op, err);
    }
}

static int step(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    switch (op) {
    case 0x80:
        return op_protocol(pickle, err);
    case 0x95:
        return op_frame(pickle, err);
    case '.':
        pickle->stopped = true;
        return 0;
    case '(':
        return op_mark(pickle, err);
    case '0':
        return pop(pickle, err) ? 0 : -1;
    case 'N':
        return sl_pickle_push(pickle, &pickle->none, err);
    case 0x88:
        return sl_pickle_push(pickle, &pickle->yes, err);
    case 0x89:
        return sl_pickle_push(pickle, &pickle->no, err);
    case 'q':
        return op_put(pickle, 1, err);
    case 'r':
        return op_put(pickle, 4, err);
    case 0x94:
        return put(pickle, pickle->memo_used, err);
    case 'h':
        return op_get(pickle, 1, err);
    case 'j':
        return op_get(pickle, 4, err);
    default:
        return step_scalar(pickle, op, err);
    }
}

/* Keys are texts: the last one says more than a number. */
static void say_where(const struct sl_pickle *pickle, size_t begin, struct sl_err *err)
{
    const struct sl_pickle_node *text = pickle->text;
    if (text)
        sl_wrap(err, "opcode at byte %zu, after '%.*s'", begin,
                sl_names_shown(text->text, SL_MIN(text->bytes, (size_t)TEXT_SHOWN_MAX)),
                text->text);
    else
        sl_wrap(err, "opcode at byte %zu", begin);
}

struct sl_pickle_node *sl_pickle_read(struct sl_pickle *pickle, const void *data, size_t bytes,
                                      size_t *used, struct sl_err *err)
{
    pickle->data = data;
    pickle->bytes = bytes;
    pickle->at = pickle->height = pickle->mark_count = pickle->memo_end = pickle->memo_used = 0;
    pickle->stopped = false;
    pickle->text = NULL;
    while (!pickle->stopped) {
        size_t begin = pickle->at;
        const uint8_t *op = sl_pickle_take(pickle, 1, err);
        if (!op || step(pickle, *op, err) < 0) {
            say_where(pickle, begin, err);
            return NULL;
        }
    }
    struct sl_pickle_node *result = pop(pickle, err);
    if (!result)
        return NULL;
    if (pickle->height || pickle->mark_count) {
        sl_pickle_fail(pickle, "pkl.stack", "values are left over at the end", err);
        return NULL;
    }
    *used = pickle->at;
    pickle->read += pickle->at;
    pickle->at = 0;
    return result;
}
