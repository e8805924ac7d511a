/* What can be said of a file of weights whatever its format: whether its name says that it is one,
 * and whether its first bytes say that it is none. */
#ifndef SL_WEIGHTS_H
#define SL_WEIGHTS_H

#include "format.h"

/** Is it called like weights, of a format that is read or of another one? Any thread. */
bool sl_weights_named(const char *name);

/**
 * An empty file, a pointer of git-lfs, a web page or an error of a store is nobody's weights:
 * SL_E_FORMAT, codes E_EMPTY, E_POINTER, E_PAGE. Any thread.
 */
int sl_weights_judge(const struct sl_format_head *head, struct sl_err *err);

/** A web page under a name that is not a page's: SL_E_FORMAT, code E_PAGE. Any thread. */
int sl_weights_judge_page(const struct sl_format_head *head, struct sl_err *err);

#endif
