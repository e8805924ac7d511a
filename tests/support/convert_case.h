/* For the tests of conversions: a scratch directory, one conversion, models compared. */
#ifndef SL_CONVERT_CASE_H
#define SL_CONVERT_CASE_H

#include "convert.h"
#include "scratch.h"

enum { SL_CASE_PATH_BYTES = 512, SL_CASE_BLOCK = 1024 };
/** The scratch directory of the test. */
extern char sl_case_scratch[SL_SCRATCH_PATH_BYTES];
/** Fixtures. */
void sl_case_setup(void);
void sl_case_teardown(void);

/** The path of a file in the scratch directory. Returns path. */
const char *sl_case_path(const char *name, char path[SL_CASE_PATH_BYTES]);
/** How many files lie below a directory. */
unsigned sl_case_files(const char *directory);

/** Conversions in tiny blocks by two threads, over what is there. */
extern const struct sl_convert_config sl_case_tensorizer, sl_case_safetensors;
/** A spec of a URI, with settings "key=value" up to a NULL (may be NULL itself); release it. */
void sl_case_spec(struct sl_specs *specs, const char *uri, const char *const *words);
/** Convert; result may be NULL. */
int sl_case_convert(const char *uri, const char *to, const struct sl_convert_config *base,
                    const char *const *words, struct sl_convert_result *result, struct sl_err *err);
/** Convert or fail the test. */
void sl_case_expect(const char *uri, const char *to, const struct sl_convert_config *base,
                    const char *const *words);

/** A model opened by path or memory URI, unlocked. */
struct sl_case_opened {
    struct sl_store *store;
    struct sl_index *index;
};
int sl_case_open(struct sl_case_opened *opened, const char *uri, struct sl_keys *keys,
                 struct sl_err *err);
void sl_case_close(struct sl_case_opened *opened);
/** The digest of a tensor whose hashes agree, or fail the test. */
void sl_case_digest(struct sl_index *index, const struct sl_tensor *tensor, uint8_t digest[32]);
/** The same tensors by name: dtype, shape, bytes; or fail the test. */
void sl_case_same(const char *uri, struct sl_keys *uri_keys, const char *other,
                  struct sl_keys *other_keys);

enum { SL_CASE_BIG = 1500, SL_CASE_SMALL = 7, SL_CASE_TENSORS = 23 };
/** memory:model, two F32 tensors [SL_CASE_BIG, 4] of many tiny blocks, 20 small ones, an empty one;
 * free() it after the test. */
uint8_t *sl_case_model(size_t *bytes);

#endif
