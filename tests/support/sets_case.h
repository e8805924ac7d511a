/* A model with engine caches in a folder of the test's own, and a store of sets, which is a folder
 * there, too, unless a test names another. */
#ifndef SL_SETS_CASE_H
#define SL_SETS_CASE_H

#include "buf.h"
#include "scratch.h"
#include "sets.h"

extern char sets_scratch[SL_SCRATCH_PATH_BYTES];
extern int sets_scratch_fd;
extern char sets_path[SL_SCRATCH_PATH_BYTES + 32];  /* of the caches */
extern char sets_store[SL_SCRATCH_PATH_BYTES + 32]; /* as a URI, with a slash */
extern struct sl_err sets_err;

void sets_case_setup(void);
void sets_case_teardown(void);

#define SETS_SIGNED                                                                                \
    "publicKeyFile: " SL_TEST_DATA "/minisign/plain.pub, secretKeyFile: " SL_TEST_DATA             \
    "/minisign/plain.key"
/** The spec with these keys of `sink.caches` beside path, url and save; borrowed until the next. */
const struct sl_spec *sets_spec(const char *keys);

/** A file of the caches, with the folders above it. */
void sets_put(const char *name, const char *text);
/** What is in a file of the caches; "" where it is not. */
const char *sets_get(const char *name);
/** As if the machine were another one: nothing at the path. */
void sets_forget(void);
/** Is the path an empty folder, and nothing else beside it? */
bool sets_are_empty(void);

/** Save what is there; it must come out. */
struct sl_sets_saved sets_save_well(const char *keys);
/** Restore: what came of it. */
struct sl_sets_result sets_restore(const char *keys);
/** Store these bytes as the blob of the set, by who trusts the store: restored with "trust: store".
 */
void sets_plant(const void *data, size_t bytes);
/** latest.json of the key, as a path of the local store; borrowed. */
const char *sets_name_file(const char *key);

#endif
