/* STORAGE_ALLOW_PATTERNS and STORAGE_IGNORE_PATTERNS: which files are wanted. */
#ifndef SL_PATTERNS_H
#define SL_PATTERNS_H

#include "option.h"

enum { SL_PATTERN_BYTES_MAX = 1024, SL_PATTERNS_MAX = 1000 };

/** Both lists, as the environment gives them; empty lists do not filter. */
struct sl_patterns {
    struct sl_list allow, ignore;
};

/**
 * Read one variable's text into a list: a JSON array of strings, or items with commas between them;
 * blanks around items and empty items are dropped. NULL or blank text is an empty list. SL_E_USAGE
 * names the variable and the item that is wrong.
 */
int sl_patterns_parse(const char *variable, const char *text, struct sl_list *list,
                      struct sl_err *err);
/** Both variables of the environment. */
int sl_patterns_read(struct sl_patterns *patterns, struct sl_err *err);
void sl_patterns_release(struct sl_patterns *patterns);

/** Allowed by one of the allow list, if there is one, and ignored by none of the other. */
bool sl_patterns_want(const struct sl_patterns *patterns, const char *name);

/**
 * Does the whole name match, in the way of Python's fnmatch? `*` is any text, slashes included, `?`
 * one character, `[ab-z]` and `[!ab]` one of a set; a `[` without its `]` and a backslash are
 * themselves.
 */
bool sl_pattern_matches(const char *pattern, const char *name);

#endif
