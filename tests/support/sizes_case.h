/* What the tests of claimed sizes share: the claims, files of holes, and what a run may cost. */
#ifndef SL_SIZES_CASE_H
#define SL_SIZES_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include "run_sluice.h"
#include "scratch.h"

enum {
    SIZES_PEAK_KIB = 64 * 1024,
    SIZES_SECONDS_MAX = 20, /* of a processor; what is wrong takes for ever */
    SIZES_CLAIMS = 12,
};
/** Decimal, as headers, listings and JSON have them; the last is "-1". */
extern const char *const sizes_claims[SIZES_CLAIMS];

extern char sizes_folder[SL_SCRATCH_PATH_BYTES];
extern int sizes_scratch;
extern bool sizes_clipped; /* the last file is shorter than asked for: the file system's limit */
/** A build whose own memory hides ours. */
extern const bool sizes_sanitized;
void sizes_open(void);
void sizes_close(void);

/** A claim of any magnitude, of a sequence (seed.h). */
void sizes_random(uint64_t *state, char *claim, size_t bytes);

/** A file of that many bytes or, if it cannot be so long, as many as can be; holes but for its
 * head. Returns how many it has. */
uint64_t sizes_make_file(const char *name, const void *head, size_t head_bytes, uint64_t bytes);
/** Write into it. */
void sizes_patch_file(const char *name, uint64_t at, const void *data, size_t bytes);

/** What a process has used of processors. */
uint64_t sizes_used_ns(const struct rusage *usage);
/** A run took little of a processor, at most `peak_kib` (sanitizers hide it), and failed with one
 * sentence. What it used, in ns: what came since the last call, so each run is judged. */
uint64_t sizes_judge(const char *what, const struct ran *ran, long peak_kib);

#endif
