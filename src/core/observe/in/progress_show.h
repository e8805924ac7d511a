/* How progress looks to a person: pure functions from a view to a line of text. Used by
 * progress_show.c. */
#ifndef SL_PROGRESS_SHOW_H
#define SL_PROGRESS_SHOW_H

#include <stdbool.h>
#include <stddef.h>

#include "progress.h"

enum { SL_PROGRESS_LINE_BYTES = 1024 };

/** Of the terminal; width counts columns and is at least 20. */
struct sl_progress_style {
    unsigned width;
    bool utf8, color;
    unsigned name_columns, figure_columns; /* of the lines that are shown together, as below */
};

/** Make the style's columns at least as wide as this load's line wants them. */
void sl_progress_bar_columns(const struct sl_progress_view *view, struct sl_progress_style *style);

/** A load that has not ended on one line of at most style->width - 1 columns, no newline. */
void sl_progress_bar_line(const struct sl_progress_view *view,
                          const struct sl_progress_style *style, char text[SL_PROGRESS_LINE_BYTES]);
/** The same for a log: "gpt-j-6b: reading, 43% (1.20 of 2.80 GiB), 512 MiB/s, 3 s left". */
void sl_progress_text_line(const struct sl_progress_view *view, char text[SL_PROGRESS_LINE_BYTES]);
/** "45 s", "3 min 20 s", "2 h 5 min"; "" if negative. Returns text. */
const char *sl_progress_duration(double seconds, char text[32]);
/** 0 to 100, rounded down, so that 100 means all; 0 if the total is not known. */
unsigned sl_progress_percent(const struct sl_progress_view *view);

/** progress.c tells what ended, on the thread that ended it, under no lock; NULL for nobody. */
void sl_progress_on_finish(void (*call)(const struct sl_progress_view *view));

#endif
