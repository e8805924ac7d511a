/* Models in every format and in every state of being whole, for tests of all that publishes one.
 * Whatever fails here aborts the test. */
#ifndef SL_WHOLE_CASE_H
#define SL_WHOLE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct whole_format {
    const char *name, *part[2]; /* one file; and two numbered ones */
    const char *index;          /* of the two; NULL: the format has none */
    uint8_t *(*make)(size_t *bytes);
};
enum { WHOLE_FORMATS = 5 };
extern const struct whole_format whole_formats[WHOLE_FORMATS];

enum whole_state { WHOLE, CUT, CUT_EARLY, EMPTY, POINTER, PAGE, PART_MISSING, INDEX_STALE, STATES };
extern const char *const whole_states[STATES];

/** Give `put` each file of a model in this state; data are the callback's until it returns. */
void whole_put(const struct whole_format *format, enum whole_state state,
               void (*put)(const char *name, const void *data, size_t bytes, void *arg), void *arg);
/** Does the format have the state? */
bool whole_has(const struct whole_format *format, enum whole_state state);
/** What a refusal must name. */
const char *whole_named(const struct whole_format *format, enum whole_state state);

#endif
