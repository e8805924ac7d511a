/*
 * Opcodes of a pickle that push one number or string. Integers of any length are two's complement,
 * those of the text protocols too, so that a caller compares bytes; strings stay where they are.
 */

#include "buf.h"
#include "pickle_parts.h"

static int push_int(struct sl_pickle *pickle, int64_t value, struct sl_err *err)
{
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_INT, err);
    if (node)
        node->number = value;
    return sl_pickle_push(pickle, node, err);
}

/* Two's complement, little-endian. */
static int push_long(struct sl_pickle *pickle, const uint8_t *data, size_t bytes,
                     struct sl_err *err)
{
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_INT, err);
    if (!node)
        return -1;
    uint8_t sign = bytes && data[bytes - 1] & 0x80 ? 0xff : 0;
    uint64_t value = sign ? UINT64_MAX : 0;
    for (size_t i = 0; i < bytes; i++) {
        if (i < 8)
            value = (value & ~(UINT64_C(0xff) << (8 * i))) | (uint64_t)data[i] << (8 * i);
        else
            node->wide = node->wide || data[i] != sign;
    }
    node->number = (int64_t)value;
    node->wide = node->wide || (bytes >= 8 && (value >> 63 != 0) != (sign != 0));
    node->text = (const char *)data;
    node->bytes = bytes;
    return sl_pickle_push(pickle, node, err);
}

/* Decimal text, of protocols 0 and 1, into two's complement. */
static int push_decimal(struct sl_pickle *pickle, const char *text, size_t bytes,
                        struct sl_err *err)
{
    bool negative = bytes && text[0] == '-';
    uint8_t *value = sl_pickle_alloc(pickle, SL_PICKLE_INT_BYTES_MAX, err);
    if (!value)
        return -1;
    if (bytes == (size_t)negative)
        return sl_pickle_fail(pickle, "pkl.type", "an integer has no digits", err);
    for (size_t i = negative; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return sl_pickle_fail(pickle, "pkl.type", "an integer is not a decimal number", err);
        unsigned carry = (unsigned)(text[i] - '0');
        for (unsigned k = 0; k < SL_PICKLE_INT_BYTES_MAX; k++) {
            carry += value[k] * 10u;
            value[k] = (uint8_t)carry;
            carry >>= 8;
        }
        if (carry || value[SL_PICKLE_INT_BYTES_MAX - 1] & 0x80)
            return sl_pickle_limit(pickle, "an integer of more than 32 bytes", err);
    }
    unsigned carry = 1;
    for (unsigned k = 0; negative && k < SL_PICKLE_INT_BYTES_MAX; k++) {
        carry += (uint8_t)~value[k];
        value[k] = (uint8_t)carry;
        carry >>= 8;
    }
    return push_long(pickle, value, SL_PICKLE_INT_BYTES_MAX, err);
}

static int op_line_number(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    size_t bytes;
    const char *line = sl_pickle_take_line(pickle, &bytes, err);
    if (!line)
        return -1;
    if (op == 'F')
        return sl_pickle_push(pickle, sl_pickle_node(pickle, SL_PICKLE_FLOAT, err), err);
    if (op == 'I' && bytes == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
        return sl_pickle_push(pickle, line[1] == '1' ? &pickle->yes : &pickle->no, err);
    if (op == 'L' && bytes && line[bytes - 1] == 'L')
        bytes--;
    return push_decimal(pickle, line, bytes, err);
}

int sl_pickle_op_number(struct sl_pickle *pickle, uint8_t op, struct sl_err *err)
{
    uint64_t value = 0;
    const uint8_t *data;
    switch (op) {
    case 'J':
        return sl_pickle_take_number(pickle, 4, &value, err) < 0
                   ? -1
                   : push_int(pickle, (int32_t)(uint32_t)value, err);
    case 'K':
    case 'M':
        return sl_pickle_take_number(pickle, op == 'K' ? 1 : 2, &value, err) < 0
                   ? -1
                   : push_int(pickle, (int64_t)value, err);
    case 'G':
        return sl_pickle_take(pickle, 8, err)
                   ? sl_pickle_push(pickle, sl_pickle_node(pickle, SL_PICKLE_FLOAT, err), err)
                   : -1;
    case 0x8a:
    case 0x8b:
        if (sl_pickle_take_number(pickle, op == 0x8a ? 1 : 4, &value, err) < 0)
            return -1;
        if (value > INT32_MAX)
            return sl_pickle_fail(pickle, "pkl.truncated", "an integer of negative length", err);
        data = sl_pickle_take(pickle, value, err);
        if (!data)
            return -1;
        if (value > SL_PICKLE_INT_BYTES_MAX)
            return sl_pickle_limit(pickle, "an integer of more than 32 bytes", err);
        return push_long(pickle, data, value, err);
    default:
        return op_line_number(pickle, op, err);
    }
}

/* UTF-8 with the lone surrogates that Python lets through. */
static bool is_python_text(const char *text, size_t bytes)
{
    size_t begin = 0;
    for (size_t i = 0; i + 2 < bytes; i++) {
        const uint8_t *at = (const uint8_t *)text + i;
        if (at[0] != 0xed || at[1] < 0xa0 || at[1] > 0xbf || (at[2] & 0xc0) != 0x80)
            continue;
        if (!sl_is_utf8(text + begin, i - begin))
            return false;
        i += 2;
        begin = i + 1;
    }
    return sl_is_utf8(text + begin, bytes - begin);
}

/* Text (`X`), bytes (`B`), or a Python 2 string (`U`), which is text if it can be. */
int sl_pickle_op_string(struct sl_pickle *pickle, uint8_t kind, unsigned length_bytes,
                        struct sl_err *err)
{
    uint64_t bytes;
    if (sl_pickle_take_number(pickle, length_bytes, &bytes, err) < 0)
        return -1;
    const uint8_t *data = sl_pickle_take(pickle, bytes, err);
    if (!data)
        return -1;
    bool text = kind != 'B' && is_python_text((const char *)data, bytes);
    if (kind == 'X' && !text)
        return sl_pickle_fail(pickle, "pkl.utf8", "a text is not UTF-8", err);
    struct sl_pickle_node *node =
        sl_pickle_node(pickle, text ? SL_PICKLE_TEXT : SL_PICKLE_BYTES, err);
    if (!node)
        return -1;
    node->text = (const char *)data;
    node->bytes = bytes;
    if (text)
        pickle->text = node;
    return sl_pickle_push(pickle, node, err);
}
