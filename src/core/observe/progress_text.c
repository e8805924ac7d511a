/*
 * Lines for people, made without a terminal so that tests can read them. Widths count characters,
 * not bytes: names may hold UTF-8, and what the bar itself adds is one column a character.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "mem.h"
#include "progress_show.h"
#include "unsafe_text.h"

enum { BAR_COLUMNS_MIN = 8, BAR_COLUMNS_MAX = 40, NAME_COLUMNS_MAX = 28 };

unsigned sl_progress_percent(const struct sl_progress_view *view)
{
    if (!view->bytes_total)
        return view->state == SL_LOAD_PUBLISHED ? 100 : 0;
    if (view->bytes_done >= view->bytes_total)
        return 100;
    return (unsigned)((double)view->bytes_done / (double)view->bytes_total * 100.0);
}

const char *sl_progress_duration(double seconds, char text[32])
{
    text[0] = 0;
    if (!(seconds >= 0))
        return text;
    if (seconds > 360000000.0)
        seconds = 360000000.0;
    uint64_t whole = (uint64_t)seconds;
    if (seconds < 10)
        snprintf(text, 32, "%.1f s", seconds);
    else if (whole < 60)
        snprintf(text, 32, "%" PRIu64 " s", whole);
    else if (whole < 3600)
        snprintf(text, 32, "%" PRIu64 " min %" PRIu64 " s", whole / 60, whole % 60);
    else
        snprintf(text, 32, "%" PRIu64 " h %" PRIu64 " min", whole / 3600, whole / 60 % 60);
    return text;
}

/* Control characters of a hostile name would move the cursor; UTF-8 is kept only where the terminal
 * has it. */
static unsigned append_sanitized(char *line, const char *text, unsigned columns_max, bool utf8)
{
    size_t used = strlen(line), bytes = strlen(text);
    unsigned columns = 0;
    utf8 = utf8 && sl_is_utf8(text, bytes);
    for (size_t at = 0, unsafe; at < bytes && used + 5 < SL_PROGRESS_LINE_BYTES;
         at += unsafe ? unsafe : 1) {
        unsigned char c = (unsigned char)text[at];
        bool continues = utf8 && (c & 0xc0) == 0x80;
        unsafe = sl_unsafe_at(text, at, bytes);
        if (!continues && columns == columns_max)
            break;
        columns += !continues;
        line[used++] = unsafe || (c >= 0x80 && !utf8) ? '?' : text[at];
    }
    line[used] = 0;
    return columns;
}

static void append(char *line, const char *text)
{
    size_t used = strlen(line);
    snprintf(line + used, SL_PROGRESS_LINE_BYTES - used, "%s", text);
}

static void append_bar(char *line, const struct sl_progress_view *view, unsigned columns,
                       const struct sl_progress_style *style)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double part = view->bytes_total ? (double)view->bytes_done / (double)view->bytes_total : 0;
    unsigned filled = (unsigned)(SL_MIN(SL_MAX(part, 0.0), 1.0) * columns * 8);
    unsigned whole = filled / 8, rest = style->utf8 ? filled % 8 : 0;
    append(line, style->color ? "\x1b[36m" : "");
    append(line, style->utf8 ? "▕" : "[");
    for (unsigned i = 0; i < whole; i++)
        append(line, style->utf8 ? "█" : "#");
    append(line, eighths[rest]);
    for (unsigned i = whole + (rest > 0); i < columns; i++)
        append(line, style->utf8 ? " " : ".");
    append(line, style->utf8 ? "▏" : "]");
    append(line, style->color ? "\x1b[0m" : "");
}

/* "1.20/2.80 GiB": both in the unit of the total. */
static void done_of_total(const struct sl_progress_view *view, const char *between, char text[64])
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
    uint64_t total = view->bytes_total ? view->bytes_total : view->bytes_done;
    for (unsigned i = 0; i < SL_COUNT(units); i++)
        if ((double)total >= units[i].bytes) {
            snprintf(text, 64, "%.2f%s%.2f %s", (double)view->bytes_done / units[i].bytes, between,
                     (double)view->bytes_total / units[i].bytes, units[i].name);
            return;
        }
    snprintf(text, 64, "%" PRIu64 "%s%" PRIu64 " bytes", view->bytes_done, between,
             view->bytes_total);
}

static void figures(const struct sl_progress_view *view, char text[256])
{
    char amount[64], rate[32], left[32];
    done_of_total(view, "/", amount);
    int used = snprintf(text, 256, " %3u%%  %s  %s/s", sl_progress_percent(view), amount,
                        sl_human_bytes((uint64_t)view->bytes_per_second, rate));
    if (view->seconds_left >= 0)
        used += snprintf(text + used, 256 - (size_t)used, "  %s left",
                         sl_progress_duration(view->seconds_left, left));
    if (view->retries)
        snprintf(text + used, 256 - (size_t)used, "  %" PRIu64 " %s", view->retries,
                 view->retries == 1 ? "retry" : "retries");
}

/* Of the name as it is shown. */
static unsigned name_columns(const char *name, bool utf8)
{
    unsigned columns = 0;
    utf8 = utf8 && sl_is_utf8(name, strlen(name));
    for (; *name; name++)
        columns += !utf8 || ((unsigned char)*name & 0xc0) != 0x80;
    return columns;
}

void sl_progress_bar_columns(const struct sl_progress_view *view, struct sl_progress_style *style)
{
    char rest[256];
    unsigned name = SL_MIN(name_columns(view->name, style->utf8), (unsigned)NAME_COLUMNS_MAX);
    style->name_columns = SL_MAX(style->name_columns, name);
    if (view->state != SL_LOAD_READING)
        return;
    figures(view, rest);
    style->figure_columns = SL_MAX(style->figure_columns, (unsigned)strlen(rest));
}

/* A longer one ends in an ellipsis; a shorter one is filled up to where the others end. */
static unsigned append_name(char *text, const char *name, unsigned columns_max,
                            const struct sl_progress_style *style)
{
    const char *dots = style->utf8 ? "…" : "..";
    unsigned wanted = SL_MIN(style->name_columns, columns_max), columns;
    if (name_columns(name, style->utf8) > columns_max) {
        columns = append_sanitized(text, name, columns_max - (style->utf8 ? 1 : 2), style->utf8);
        append(text, dots);
        return columns + (style->utf8 ? 1 : 2);
    }
    for (columns = append_sanitized(text, name, columns_max, style->utf8); columns < wanted;
         columns++)
        append(text, " ");
    return columns;
}

void sl_progress_bar_line(const struct sl_progress_view *view,
                          const struct sl_progress_style *style, char text[SL_PROGRESS_LINE_BYTES])
{
    unsigned width = SL_MIN(SL_MAX(style->width, 20u), 200u) - 1;
    text[0] = 0;
    width -= append_name(text, view->name, SL_MIN(NAME_COLUMNS_MAX, width / 2), style);
    if (view->state != SL_LOAD_READING) {
        static const char *const words[] = {" queued",
                                            " waiting for another load of this directory",
                                            " planning", "", " checking the last hashes"};
        char state[SL_PROGRESS_LINE_BYTES];
        snprintf(state, sizeof(state), "%s%s%s", words[SL_MIN((unsigned)view->state, 4u)],
                 *view->trouble ? ", " : "", view->trouble);
        append_sanitized(text, state, width, false);
        return;
    }
    char rest[256];
    figures(view, rest);
    unsigned rest_columns = SL_MAX((unsigned)strlen(rest), style->figure_columns);
    if (width >= rest_columns + 3 + BAR_COLUMNS_MIN) {
        append(text, " ");
        append_bar(text, view, SL_MIN(BAR_COLUMNS_MAX, width - rest_columns - 3), style);
    }
    append_sanitized(text, rest, width, false);
}

/* "try 3: why", or "try 3" where the log has said why. */
static void append_trouble(char *text, const struct sl_progress_view *view)
{
    char trouble[SL_TROUBLE_BYTES];
    append(text, *view->trouble ? ", " : "");
    memcpy(trouble, view->trouble, sizeof(trouble));
    if (view->trouble_logged)
        trouble[strcspn(trouble, ":")] = 0;
    append_sanitized(text, trouble, SL_TROUBLE_BYTES, true);
}

void sl_progress_text_line(const struct sl_progress_view *view, char text[SL_PROGRESS_LINE_BYTES])
{
    char amount[64], rate[32], left[32];
    done_of_total(view, " of ", amount);
    text[0] = 0;
    append_sanitized(text, view->name, 64, true);
    append(text, ": ");
    append(text, sl_load_state_name(view->state));
    append_trouble(text, view);
    if (view->state < SL_LOAD_READING)
        return;
    size_t used = strlen(text);
    if (view->bytes_total) /* else it had nothing to read, or never came so far */
        snprintf(text + used, SL_PROGRESS_LINE_BYTES - used, ", %u%% (%s), %s/s",
                 sl_progress_percent(view), amount,
                 sl_human_bytes((uint64_t)view->bytes_per_second, rate));
    used = strlen(text);
    if (view->state == SL_LOAD_READING && view->seconds_left >= 0)
        snprintf(text + used, SL_PROGRESS_LINE_BYTES - used, ", %s left",
                 sl_progress_duration(view->seconds_left, left));
    used = strlen(text);
    if (view->retries)
        snprintf(text + used, SL_PROGRESS_LINE_BYTES - used, ", %" PRIu64 " retried",
                 view->retries);
}

const char *sl_load_state_name(enum sl_load_state state)
{
    static const char *const names[] = {"queued",   "waiting",   "planning", "reading",
                                        "checking", "published", "failed"};
    return (unsigned)state < SL_COUNT(names) ? names[state] : "unknown";
}
