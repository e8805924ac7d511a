/*
 * What is ready in the work places of one destination, on its way to its final names. Everything
 * is listed and judged first; only then is anything moved, and nothing that was not judged.
 */
#ifndef SL_MOVING_H
#define SL_MOVING_H

#include "err.h"
#include "mem.h"
#include "thread.h"

struct sl_moving;
/** to_fd (borrowed) is the destination, `path` its name in messages. One thread at a time. */
struct sl_moving *sl_moving_new(int to_fd, const char *path, struct sl_err *err);
void sl_moving_free(struct sl_moving *moving);
SL_AUTO_DEFINE(sl_moving)

/**
 * List what lies below from_fd (taken over, even on failure), but names of ours there. `strip`
 * is cut off the beginnings of names, with the slashes behind it, as KServe's own initializer cuts
 * a prefix off keys: it need not end at a slash. Every name is judged as it is afterwards:
 * SL_E_FORMAT, code E_NAME.
 */
int sl_moving_add(struct sl_moving *moving, int from_fd, const char *strip, struct sl_err *err);
/** A link out of the destination that the operator asked for, made by others: no link of a model
 * may pass through it. */
int sl_moving_add_local(struct sl_moving *moving, const char *name, struct sl_err *err);
/**
 * Two that would become one (but for files of two sources, of which the later one stays, as with
 * KServe's own): SL_E_FORMAT, code E_NAME. A link that leads out of the destination from where it
 * ends up, through whatever links are there by then, and links that lead through too many names:
 * code archive.link. SL_E_CANCELED; cancel may be NULL.
 */
int sl_moving_judge(struct sl_moving *moving, const struct sl_cancel *cancel, struct sl_err *err);
/** Is something in the way: a folder where a file goes, a file, a link or a folder of somebody else
 * where a folder goes? SL_E_NO_SPACE. */
int sl_moving_look(const struct sl_moving *moving, struct sl_err *err);
/** Move everything, over files that are there. Files get mode 0644 or 0755. */
int sl_moving_carry_out(const struct sl_moving *moving, struct sl_err *err);

#endif
