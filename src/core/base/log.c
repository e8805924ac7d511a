/* One lock around one write(): a line is whole or absent. */
#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "buf.h"
#include "err.h"
#include "json.h"
#include "thread.h"

enum { LINE_BYTES_MAX = 16384 };

static enum sl_log_level log_level = SL_LOG_INFO;
static bool log_json, log_silent, log_color;
static void (*hook_before)(void), (*hook_after)(void);
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
static const char *const words[] = {"error: ", "warning: ", "", "debug: ", "trace: "};
static const char *const colored[] = {"\x1b[1;31merror: \x1b[0m", "\x1b[33mwarning: \x1b[0m", "",
                                      "debug: ", "trace: "};

bool sl_log_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

bool sl_log_colors(void)
{
    const char *no_color = getenv("NO_COLOR");
    return sl_log_terminal() && !(no_color && *no_color);
}

void sl_log_setup(enum sl_log_level level, bool json)
{
    log_level = level;
    log_json = json;
    log_color = !json && sl_log_colors();
}

void sl_log_silence(void)
{
    log_silent = true;
}

bool sl_log_wants(enum sl_log_level level)
{
    return level <= log_level && !log_silent;
}

bool sl_log_is_json(void)
{
    return log_json;
}

void sl_log_set_hook(void (*before)(void), void (*after)(void))
{
    SL_LOCKED(&write_lock);
    hook_before = before;
    hook_after = after;
}

static void write_line(const char *text, size_t bytes)
{
    SL_LOCKED(&write_lock);
    if (hook_before)
        hook_before();
    while (bytes) {
        ssize_t wrote = write(STDERR_FILENO, text, bytes);
        if (wrote <= 0)
            break;
        text += wrote;
        bytes -= (size_t)wrote;
    }
    if (hook_after)
        hook_after();
}

void sl_log(enum sl_log_level level, const char *format, ...)
{
    if (!sl_log_wants(level))
        return;
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    sl_sanitize_message(message, sizeof(message));
    if (!log_json) {
        char line[4200];
        int length = snprintf(line, sizeof(line), "sluice: %s%s\n",
                              (log_color ? colored : words)[level], message);
        write_line(line, (size_t)length);
        return;
    }
    char time_text[SL_TIME_TEXT];
    struct sl_json out;
    sl_json_init(&out, LINE_BYTES_MAX);
    sl_json_object(&out);
    sl_json_key_string(&out, "time", sl_json_time(time_text));
    sl_json_key_string(&out, "level", names[level]);
    sl_json_key_string(&out, "message", message);
    sl_json_end(&out);
    sl_buf_append(&out.buf, "\n", 1, NULL);
    write_line(sl_buf_string(&out.buf), out.buf.used);
    sl_json_release(&out);
}

void sl_log_json_line(const char *json)
{
    if (!log_json || log_silent)
        return;
    char line[LINE_BYTES_MAX];
    int length = snprintf(line, sizeof(line), "%s\n", json);
    if (length > 0 && (size_t)length < sizeof(line))
        write_line(line, (size_t)length);
}
