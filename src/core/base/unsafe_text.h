/* Characters that are not for people. Any thread, nothing blocks. */
#ifndef SL_UNSAFE_TEXT_H
#define SL_UNSAFE_TEXT_H

#include <stddef.h>

/**
 * Bytes of the character that begins at `at` of a text, if it is not for people: a terminal obeys
 * it, it turns a line around or ends it, or nobody sees it. 0: it is. U+200C and U+200D are where
 * they stand between letters of scripts that need them, or between emoji. What is not UTF-8 is.
 */
size_t sl_unsafe_at(const char *text, size_t at, size_t bytes);

#endif
