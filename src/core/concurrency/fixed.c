/* The rows are those of a spec's section, so that values are read, printed and documented as there;
 * they stand in one text since it is what a load tells of itself, and what somebody copies. */
#include "fixed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mem.h"

enum { WORD_BYTES = 128 };

static const struct sl_option rows[] = {
    SL_OPTION(
        sl_fixed, connections, UINT, "",
        "connections that read ranges; usually `readers.connections`, else 8, 16 where ranges "
        "average less than 1 MiB, 2 from local files. Each has its own ranges: a thread has a "
        "part of them that lies together, and its connections take turns in it",
        .minimum = 1, .maximum = 1024),
    SL_OPTION(sl_fixed, threads, UINT, "",
              "threads that drive them; usually 2, below 4 connections 1", .minimum = 1,
              .maximum = 64),
    SL_OPTION(
        sl_fixed, range_bytes, BYTES, "",
        "bytes of one range request; usually `readers.rangeBytes`, whose `auto` is decided by "
        "the sizes of the objects",
        .minimum = 64 << 10, .maximum = 5ull << 30),
    SL_OPTION(sl_fixed, window_bytes, BYTES, "",
              "bytes that a connection reads before it writes them; usually 256 KiB, or 64 KiB "
              "where ranges average no more than that",
              .minimum = SL_FIXED_WINDOW_MIN, .maximum = 1 << 20),
    SL_OPTION(sl_fixed, request_worth, BYTES, "",
              "of slices: shorter gaps between rows are fetched with them; usually 64 KiB and "
              "`readers.requestPrice`, with `slices: least-bytes` and from local files 1 KiB",
              .minimum = 1024, .maximum = 8 << 20),
    SL_OPTION(sl_fixed, openings, UINT, "",
              "small requests at a time while objects are opened; usually 32, or as many as "
              "`readers.connections` or `connections=` says, if these are fewer",
              .minimum = 1, .maximum = 32),
    SL_OPTION(sl_fixed, preconnect, UINT, "",
              "connections made while the store's first answer is awaited; usually 0", .minimum = 0,
              .maximum = 63),
    SL_OPTION(sl_fixed, hedge, CHOICE, "",
              "a request that is slow is not sent again before `stallSeconds`; there is nothing "
              "else to choose",
              .choices = "off"),
    SL_OPTION(sl_fixed, decrypt, CHOICE, "", "where `sink.pool.decrypt: auto` is; usually the host",
              .choices = "host|gpu"),
    SL_OPTION(sl_fixed, cast, CHOICE, "", "where `sink.pool.cast: auto` is; usually the host",
              .choices = "host|gpu"),
    SL_OPTION(sl_fixed, crc, CHOICE, "", "where `sink.pool.crc: auto` is; usually the host",
              .choices = "host|gpu"),
    SL_OPTION_END,
};
const struct sl_option_table sl_fixed_table = {"fixed", sizeof(struct sl_fixed), rows};

static int *choice_of(const struct sl_option *row, struct sl_fixed *fixed)
{
    return (int *)((char *)fixed + row->offset);
}

static uint64_t *number_of(const struct sl_option *row, struct sl_fixed *fixed)
{
    return (uint64_t *)((char *)fixed + row->offset);
}

static bool is_left_out(const struct sl_option *row, struct sl_fixed *fixed)
{
    return row->type == SL_OPTION_CHOICE ? *choice_of(row, fixed) < 0
                                         : *number_of(row, fixed) == SL_AUTO_VALUE;
}

struct sl_fixed sl_fixed_none(void)
{
    struct sl_fixed none = {.on = false};
    for (const struct sl_option *row = rows; row->member; row++)
        if (row->type == SL_OPTION_CHOICE)
            *choice_of(row, &none) = -1;
        else
            *number_of(row, &none) = SL_AUTO_VALUE;
    return none;
}

uint64_t sl_fixed_or(uint64_t value, uint64_t usual)
{
    return value == SL_AUTO_VALUE ? usual : value;
}

/* Of these keys the nearest; or all, where none is near. */
static int refuse(const char *word, const char *key, struct sl_err *err)
{
    char keys[SL_COUNT(rows)][64];
    const char *names[SL_COUNT(rows)];
    size_t count = 0;
    for (const struct sl_option *row = rows; row->member; row++, count++)
        names[count] = sl_option_kebab(row, keys[count]);
    names[count++] = "usual";
    const char *near = sl_nearest(key, names, count);
    if (near)
        return sl_fail(err, SL_E_USAGE, "'%.80s' pins nothing, did you mean '%s%s'?", word, near,
                       strcmp(near, "usual") == 0 ? "" : "=…");
    char all[SL_FIXED_TEXT_BYTES] = "";
    for (size_t i = 0; i + 1 < count; i++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i ? ", " : "", names[i]);
    return sl_fail(err, SL_E_USAGE, "'%.80s' pins nothing: expected usual, or KEY=VALUE of %s",
                   word, all);
}

static int take_pair(char *word, struct sl_fixed *fixed, struct sl_err *err)
{
    char whole[WORD_BYTES], key[64];
    const struct sl_option *row = rows;
    struct sl_err why = SL_ERR_INIT;
    snprintf(whole, sizeof(whole), "%s", word);
    char *value = strchr(word, '=');
    if (value)
        *value++ = 0;
    while (row->member && strcmp(sl_option_kebab(row, key), word) != 0)
        row++;
    if (!row->member || !value)
        return refuse(whole, word, err);
    if (!is_left_out(row, fixed))
        return sl_fail(err, SL_E_USAGE, "'%s' is given twice", key);
    if (sl_option_set(row, fixed, value, false, &why) == 0)
        return 0;
    const char *text = strstr(why.message, "': "); /* the key in another spelling */
    return sl_fail(err, SL_E_USAGE, "'%s': %s", key, text ? text + 3 : why.message);
}

int sl_fixed_parse(const char *text, struct sl_fixed *fixed, struct sl_err *err)
{
    static const char gaps[] = " ,\t\r\n";
    struct sl_fixed read = sl_fixed_none();
    bool usual = false, pairs = false;
    for (text = text ? text : ""; *(text += strspn(text, gaps));) {
        char word[WORD_BYTES];
        size_t bytes = strcspn(text, gaps);
        snprintf(word, sizeof(word), "%.*s", (int)SL_MIN(bytes, sizeof(word) - 1), text);
        text += bytes;
        if (strcmp(word, "usual") == 0)
            usual = true;
        else if (take_pair(word, &read, err) < 0)
            return -1;
        else
            pairs = true;
    }
    if (usual && pairs)
        return sl_fail(err, SL_E_USAGE,
                       "'usual' stands alone: what the pairs leave out is as usual in any case");
    read.on = usual || pairs;
    *fixed = read;
    return 0;
}

/* "16MiB": without the gap, which parts the pairs. */
static void add_bytes(uint64_t bytes, char text[32])
{
    char exact[32];
    sl_exact_bytes(bytes, exact);
    char *gap = strchr(exact, ' ');
    bool plain = gap && strcmp(gap, " bytes") == 0;
    snprintf(text, 32, "%.*s%s", gap ? (int)(gap - exact) : 31, exact,
             gap && !plain ? gap + 1 : "");
}

const char *sl_fixed_print(const struct sl_fixed *fixed, char text[SL_FIXED_TEXT_BYTES])
{
    struct sl_fixed from = *fixed;
    size_t used = 0;
    text[0] = 0;
    for (const struct sl_option *row = rows; row->member; row++) {
        char key[64], value[64];
        if (is_left_out(row, &from))
            continue;
        if (row->type == SL_OPTION_CHOICE)
            sl_choice_name(row->choices, *choice_of(row, &from), value);
        else if (row->type == SL_OPTION_BYTES)
            add_bytes(*number_of(row, &from), value);
        else
            snprintf(value, sizeof(value), "%" PRIu64, *number_of(row, &from));
        used += (size_t)snprintf(text + used, SL_FIXED_TEXT_BYTES - used, "%s%s=%s",
                                 used ? " " : "", sl_option_kebab(row, key), value);
    }
    if (!used)
        snprintf(text, SL_FIXED_TEXT_BYTES, "%s", fixed->on ? "usual" : "");
    return text;
}
