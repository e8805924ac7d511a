/* How keys, flags, choices, sizes and truth are spelled; option.c makes values of them. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "mem.h"
#include "option.h"

bool sl_option_takes_auto(const struct sl_option *row)
{
    return row->initial && strcmp(row->initial, "auto") == 0 && row->type != SL_OPTION_CHOICE;
}

const char *sl_exact_bytes(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    while (bytes && bytes % 1024 == 0 && unit + 1 < SL_COUNT(units)) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, "%" PRIu64 " %s", bytes, units[unit]);
    return text;
}

/* The next letter of a key, of a member's name: media_type is mediaType. 0 at its end. */
static char next_of_key(const char **member)
{
    bool upper = **member == '_';
    while (**member == '_')
        ++*member;
    char letter = **member;
    *member += letter != 0;
    return upper ? (char)toupper((unsigned char)letter) : letter;
}

const char *sl_option_key(const struct sl_option *row, char text[64])
{
    size_t used = 0;
    const char *member = row->member;
    while (used < 63 && (text[used] = next_of_key(&member)) != 0)
        used++;
    text[used] = 0;
    return text;
}

bool sl_option_is_key(const struct sl_option *row, const char *key, size_t bytes)
{
    const char *member = row->member, *end = key + bytes;
    char letter;
    while ((letter = next_of_key(&member)) != 0)
        if (key == end || *key++ != letter)
            return false;
    return key == end;
}

const char *sl_option_kebab(const struct sl_option *row, char text[64])
{
    size_t used = 0;
    for (const char *p = row->member; *p && used < 63; p++)
        text[used++] = *p == '_' ? '-' : *p;
    text[used] = 0;
    return text;
}

const char *sl_option_value_name(const struct sl_option *row)
{
    if (row->value)
        return row->value;
    switch (row->type) {
    case SL_OPTION_BOOL:
        return "true|false";
    case SL_OPTION_UINT:
        return sl_option_takes_auto(row) ? "NUMBER|auto" : "NUMBER";
    case SL_OPTION_BYTES:
        return sl_option_takes_auto(row) ? "SIZE|auto" : "SIZE";
    case SL_OPTION_RATE:
        return "RATE";
    case SL_OPTION_CHOICE:
        return row->choices;
    case SL_OPTION_LIST:
        return "ITEM,…";
    case SL_OPTION_MAP:
        return "KEY=VALUE,…";
    default:
        return "TEXT";
    }
}

const char *sl_choice_name(const char *choices, int index, char text[64])
{
    const char *start = choices;
    for (; index > 0 && start; index--) {
        start = strchr(start, '|');
        start = start ? start + 1 : NULL;
    }
    if (!start)
        return NULL;
    snprintf(text, 64, "%.*s", (int)strcspn(start, "|"), start);
    return text;
}

int sl_parse_bool(const char *text, bool *value)
{
    static const char *const yes[] = {"true", "yes", "on", "y"}, *const no[] = {"false", "no",
                                                                                "off", "n"};
    for (size_t i = 0; i < SL_COUNT(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *value = strcasecmp(text, yes[i]) == 0;
            return 0;
        }
    }
    return -1;
}

int sl_choice_index(const char *choices, const char *text)
{
    bool value, negative = sl_parse_bool(text, &value) == 0 && !value;
    size_t bytes = strlen(text);
    for (int i = 0;; i++) {
        size_t here = strcspn(choices, "|");
        if ((here == bytes && memcmp(choices, text, bytes) == 0) ||
            (negative && here == 3 && memcmp(choices, "off", 3) == 0))
            return i;
        if (!choices[here])
            return -1;
        choices += here + 1;
    }
}

int sl_parse_bytes(const char *text, uint64_t *bytes)
{
    static const char letters[] = "KMGTPE";
    char *end;
    if (!isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    uint64_t whole = strtoull(text, &end, 10);
    if (errno)
        return -1;
    uint64_t fraction = 0, scale = 1;
    if (*end == '.') {
        const char *digit = ++end;
        while (isdigit((unsigned char)*end))
            end++;
        if (end == digit || end - digit > 6)
            return -1;
        for (; digit < end; digit++, scale *= 10)
            fraction = fraction * 10 + (uint64_t)(*digit - '0');
    }
    while (*end == ' ')
        end++;
    uint64_t unit = 1;
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter) {
        bool binary = end[1] == 'i';
        for (long power = letter - letters; power >= 0; power--)
            unit *= binary ? 1024 : 1000;
        end += binary ? 2 : 1;
    }
    if (*end == 'B')
        end++;
    if (*end || (fraction && unit == 1) || __builtin_mul_overflow(whole, unit, &whole))
        return -1;
    uint64_t part = (uint64_t)((__uint128_t)fraction * unit / scale);
    return __builtin_add_overflow(whole, part, bytes) || *bytes == SL_AUTO_VALUE ? -1 : 0;
}

int sl_parse_rate(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *text;
        unsigned divisor;
    } units[] = {{"bit/s", 8}, {"bps", 8}, {"/s", 1}, {"", 1}};
    char number[64];
    size_t used = strlen(text), unit = 0, suffix;
    for (; suffix = strlen(units[unit].text), suffix; unit++)
        if (used > suffix && strcmp(text + used - suffix, units[unit].text) == 0)
            break;
    used -= suffix;
    if (used >= sizeof(number))
        return -1;
    memcpy(number, text, used);
    number[used] = 0;
    bool bits = units[unit].divisor > 1;
    if (sl_parse_bytes(number, bytes) < 0 || (bits && used && number[used - 1] == 'B'))
        return -1;
    *bytes /= units[unit].divisor;
    return 0;
}
