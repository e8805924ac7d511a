/*
 * One thread shows all live loads. On a terminal it owns the last lines of the screen: it draws
 * them, goes up and draws again, and whoever logs or ends a load first takes them away. Elsewhere
 * it says one line per load every five seconds, and why something is tried again once. How a load
 * ended is for its command to say, once.
 *
 * Locks: the log's, then ours. The log's hooks hold ours from before its line until after it, so
 * the thread never draws into the middle of a line. Nothing here logs while it holds ours.
 */
#include "progress_show.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "thread.h"

enum { REDRAW_MS = 200, LINE_MS = 5000, LINES_MAX = 8, JSON_BYTES_MAX = 15000 };

static struct {
    pthread_t thread;
    struct sl_cancel *stop; /* NULL while nothing is shown */
    bool bar;
    struct sl_progress_style style; /* width is looked up at each drawing */
    char cause[SL_TROUBLE_BYTES];   /* of lines: the last that was said */
    pthread_mutex_t lock;
    struct {
        unsigned lines_drawn;
        unsigned last_width;
    } locked;
} show = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void put(const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t wrote = write(STDERR_FILENO, text, bytes);
        if (wrote <= 0)
            return;
        text += wrote;
        bytes -= (size_t)wrote;
    }
}

/* ---- the bar -------------------------------------------------------------------------------- */

struct drawing {
    char text[(LINES_MAX + 2) * SL_PROGRESS_LINE_BYTES];
    size_t used;
    unsigned lines, lines_max, hidden, aligned;
    struct sl_progress_style style;
};

static void draw_text(struct drawing *drawing, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes >= sizeof(drawing->text) - drawing->used)
        return;
    memcpy(drawing->text + drawing->used, text, bytes + 1);
    drawing->used += bytes;
}

static bool is_shown(const struct sl_progress_view *view)
{
    return view->state != SL_LOAD_PUBLISHED && view->state != SL_LOAD_FAILED;
}

static void align_load(const struct sl_progress_view *view, void *arg)
{
    struct drawing *drawing = arg;
    if (is_shown(view) && drawing->aligned++ < drawing->lines_max)
        sl_progress_bar_columns(view, &drawing->style);
}

static void draw_load(const struct sl_progress_view *view, void *arg)
{
    struct drawing *drawing = arg;
    char line[SL_PROGRESS_LINE_BYTES];
    if (!is_shown(view))
        return;
    if (drawing->lines >= drawing->lines_max) {
        drawing->hidden++;
        return;
    }
    sl_progress_bar_line(view, &drawing->style, line);
    draw_text(drawing, line);
    draw_text(drawing, "\x1b[K\n");
    drawing->lines++;
}

/* Up to the first line that was drawn; what follows overwrites, \x1b[J takes away what is left
 * over. */
static void draw_home(struct drawing *drawing)
{
    char up[32];
    if (!show.locked.lines_drawn)
        return;
    snprintf(up, sizeof(up), "\r\x1b[%uA", show.locked.lines_drawn);
    draw_text(drawing, up);
    show.locked.lines_drawn = 0;
}

static void erase(void)
{
    struct drawing drawing = {.used = 0};
    if (!show.locked.lines_drawn)
        return;
    draw_home(&drawing);
    draw_text(&drawing, "\x1b[J");
    put(drawing.text, drawing.used);
}

static void draw(void)
{
    struct drawing drawing = {.lines_max = LINES_MAX, .style = show.style};
    struct winsize size = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        drawing.style.width = size.ws_col;
    if (size.ws_row > 2 && size.ws_row - 2 < LINES_MAX)
        drawing.lines_max = size.ws_row - 2u;
    draw_home(&drawing);
    if (drawing.style.width != show.locked.last_width)
        draw_text(&drawing, "\x1b[J");
    show.locked.last_width = drawing.style.width;
    sl_progress_each(align_load, &drawing);
    sl_progress_each(draw_load, &drawing);
    if (drawing.hidden) {
        char more[64];
        snprintf(more, sizeof(more), "and %u more\x1b[K\n", drawing.hidden);
        draw_text(&drawing, more);
        drawing.lines++;
    }
    draw_text(&drawing, "\x1b[J");
    put(drawing.text, drawing.used);
    show.locked.lines_drawn = drawing.lines;
}

static void before_log(void)
{
    pthread_mutex_lock(&show.lock);
    erase();
}

static void after_log(void)
{
    draw();
    pthread_mutex_unlock(&show.lock);
}

/* ---- lines ---------------------------------------------------------------------------------- */

static void say_json(const struct sl_progress_view *view, const char *message)
{
    char time_text[SL_TIME_TEXT];
    struct sl_json json;
    sl_json_init(&json, JSON_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "time", sl_json_time(time_text));
    sl_json_key_string(&json, "level", "info");
    sl_json_key_string(&json, "message", message);
    sl_json_key(&json, "progress");
    sl_progress_json(&json, view);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, NULL);
    if (text)
        sl_log_json_line(text);
    sl_json_release(&json);
}

static void say(const struct sl_progress_view *view, const char *line)
{
    if (!sl_log_wants(SL_LOG_INFO))
        return;
    if (sl_log_is_json())
        say_json(view, line);
    else
        sl_log(SL_LOG_INFO, "%s", line);
}

/* Of "try 3: why" the reason, which a log has once. */
static bool cause_is_said(const struct sl_progress_view *view)
{
    const char *cause = view->trouble + strcspn(view->trouble, ":");
    if (view->trouble_logged || strcmp(show.cause, cause) == 0)
        return true;
    if (*cause)
        memcpy(show.cause, cause, strlen(cause) + 1);
    return false;
}

static void say_live(const struct sl_progress_view *view, void *arg)
{
    unsigned *said = arg;
    char line[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_view shown = *view;
    if (!is_shown(view) || (*said)++ >= LINES_MAX)
        return;
    shown.trouble_logged = cause_is_said(view);
    sl_progress_text_line(&shown, line);
    say(view, line);
}

void sl_progress_say(struct sl_progress *progress, const char *line)
{
    struct sl_progress_view view;
    sl_progress_view(progress, &view);
    say(&view, line);
}

/* ---- both ----------------------------------------------------------------------------------- */

static void redraw(const struct sl_progress_view *view)
{
    (void)view;
    SL_LOCKED(&show.lock);
    draw();
}

static void *run(void *arg)
{
    struct sl_cancel *stop = arg;
    if (show.bar) {
        SL_LOCKED(&show.lock);
        draw();
    }
    while (sl_sleep_ms(show.bar ? REDRAW_MS : LINE_MS, stop, NULL) == 0) {
        unsigned said = 0;
        if (!show.bar) {
            sl_progress_each(say_live, &said);
            continue;
        }
        SL_LOCKED(&show.lock);
        draw();
    }
    return NULL;
}

static bool terminal_is_utf8(void)
{
    const char *locale = getenv("LC_ALL");
    if (!locale || !*locale)
        locale = getenv("LC_CTYPE");
    if (!locale || !*locale)
        locale = getenv("LANG");
    return locale && (strcasestr(locale, "utf-8") || strcasestr(locale, "utf8"));
}

int sl_progress_show_start(enum sl_progress_mode mode, struct sl_err *err)
{
    if (mode == SL_PROGRESS_NONE || show.stop)
        return 0;
    show.bar = mode == SL_PROGRESS_BAR ||
               (mode == SL_PROGRESS_AUTO && sl_log_terminal() && !sl_log_is_json());
    show.style = (struct sl_progress_style){
        .width = 80,
        .utf8 = terminal_is_utf8(),
        .color = sl_log_colors(),
    };
    struct sl_cancel *stop = sl_cancel_new(err);
    if (!stop)
        return sl_wrap(err, "progress");
    if (sl_thread_start(&show.thread, "progress", run, stop, err) < 0) {
        sl_cancel_free(stop);
        return sl_wrap(err, "progress");
    }
    show.stop = stop;
    if (!show.bar)
        return 0;
    sl_log_set_hook(before_log, after_log);
    sl_progress_on_finish(redraw);
    return 0;
}

void sl_progress_show_stop(void)
{
    if (!show.stop)
        return;
    sl_progress_on_finish(NULL);
    sl_cancel_raise(show.stop, 0);
    pthread_join(show.thread, NULL);
    if (show.bar) {
        sl_log_set_hook(NULL, NULL);
        SL_LOCKED(&show.lock);
        draw(); /* loads that were cut short keep their last line on the screen */
        show.locked.lines_drawn = 0;
    }
    sl_cancel_free(show.stop);
    show.stop = NULL;
}
