/* Links to what is there already on a mounted volume. */
#ifndef SL_LOCAL_LINKS_H
#define SL_LOCAL_LINKS_H

#include "destination.h"
#include "patterns.h"

/** Paths to link to, each under its own last component. */
struct sl_local_links {
    struct sl_list paths;
};
/**
 * What a path stands for: itself, or, a directory, its entries that do not begin with a dot and are
 * wanted by their names. SL_E_NOT_FOUND if that is nothing.
 */
int sl_local_links_find(struct sl_local_links *links, const char *path,
                        const struct sl_patterns *patterns, struct sl_err *err);
void sl_local_links_release(struct sl_local_links *links);
/** List them in the destination, where they will be. */
int sl_local_links_list(const struct sl_local_links *links, struct sl_destination *destination,
                        struct sl_err *err);
/** Make them in the destination; what is there already stays. */
int sl_local_links_make(const struct sl_local_links *links, struct sl_destination *destination,
                        struct sl_err *err);

#endif
