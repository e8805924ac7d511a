/* What `sluice inspect` found out about one object, and how it is shown. */
#ifndef SL_INSPECT_REPORT_H
#define SL_INSPECT_REPORT_H

#include "index.h"
#include "json.h"

/** One --slice that was digested. */
struct sl_inspect_slice {
    const struct sl_tensor *tensor;
    const char *text; /* as given; borrowed */
    struct sl_slice slice;
    uint8_t sha256[32];
};

struct sl_inspect_report {
    struct sl_index *index;          /* owned */
    uint8_t (*digests)[32];          /* by tensor number; NULL without --digest. Owned */
    struct sl_inspect_slice *slices; /* owned */
    size_t slice_count;
};

void sl_inspect_report_release(struct sl_inspect_report *report);
/** The object of `sluice inspect --json`. */
void sl_inspect_report_json(struct sl_json *json, const struct sl_inspect_report *report);
/** The table, on stdout. */
void sl_inspect_report_print(const struct sl_inspect_report *report);
/** Text of a file, on stdout; control characters, which would make lines of their own, become '?'.
 */
void sl_print_sanitized(const char *text);

#endif
