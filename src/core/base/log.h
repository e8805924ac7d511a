/*
 * Events on stderr: text for a person, one JSON object a line for a container.
 *
 * Secrets never come here: no key, token, Authorization header or query string of a signed URL.
 */
#ifndef SL_LOG_H
#define SL_LOG_H

#include <stdbool.h>

enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG, SL_LOG_TRACE };

/** Set once before threads start. */
void sl_log_setup(enum sl_log_level level, bool json);
/** From now on nothing is written: for a library, whose stderr is another's. As setup(). */
void sl_log_silence(void);
/** Are events of this level written? Any thread. */
bool sl_log_wants(enum sl_log_level level);
/** Whether events are JSON objects. */
bool sl_log_is_json(void);
/** Is stderr a terminal that moves its cursor? And shows colors, which NO_COLOR forbids? Any
 * thread.
 */
bool sl_log_terminal(void);
bool sl_log_colors(void);

/**
 * One event: a short sentence without a full stop. Text: "sluice: warning: MESSAGE", in colors
 * at a terminal. JSON:
 * {"time":"…Z","level":"warn","message":"…"}. Any thread; lines never mix. Blocks as stderr does.
 */
void sl_log(enum sl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Write a finished JSON line (one object, no newline) or, in text mode, nothing. For progress
 * events. As sl_log().
 */
void sl_log_json_line(const char *json);

/**
 * Called around every write to stderr so that a progress bar can step aside; NULL for none. Both
 * run on the thread that logs and must not log; none runs any more when this returns.
 */
void sl_log_set_hook(void (*before)(void), void (*after)(void));

#endif
