/* What tests of loads into slabs share: objects of the memory source, models that are mapped and
 * compared with their source. Whatever fails here aborts the test. */
#ifndef SL_FILL_CASE_H
#define SL_FILL_CASE_H

#include "fill.h"
#include "pool_index.h"

enum { FILL_CASE_SLAB_BYTES = 64 * 1024 };

/** Where fill_case_load() makes slabs: memfds, after setup. */
extern struct sl_slab_place fill_case_place;
/** Where its loads decrypt, cast and hash: enum sl_pool_decrypt, auto after setup. */
extern int fill_case_where;
void fill_case_setup(void);
void fill_case_teardown(void);
unsigned fill_case_fds(void);

/** A model as a client maps it. */
struct fill_view {
    struct sl_pool_index index;
    const struct sl_wire_page *page;
    const uint8_t *slabs[64];
    size_t slab_count;
};
/** Of a model its first copy. */
void fill_view_open(const struct sl_pool_model *model, struct fill_view *view);
void fill_view_open_copy(const struct sl_pool_copy *copy, struct fill_view *view);
void fill_view_close(struct fill_view *view);
uint32_t fill_view_find(const struct fill_view *view, const char *name);
const uint8_t *fill_view_data(const struct fill_view *view, uint32_t number);

/** Make memory://NAME; a copy is kept until the test ends. */
void fill_case_put(const char *name, const void *data, size_t bytes);
/** A safetensors object: "a,b,c" of so many floats each. */
void fill_case_put_model(const char *name, const char *names, unsigned items);
void fill_case_spec(struct sl_specs *specs, const char *uri, const char *more);
/** A load into slabs of fill_case_place, unless the config has places; `more` are lines of the
 * spec. */
struct sl_pool_model *fill_case_try(const char *uri, const char *more,
                                    struct sl_fill_config *config, struct sl_err *err);
struct sl_pool_model *fill_case_load(const char *uri, const char *more);
/** Everything of the source lies in the pool, ready, and nothing else does. */
void fill_case_compare(const char *uri, const char *more, const struct sl_pool_model *model);
void fill_case_compare_copy(const char *uri, const char *more, const struct sl_pool_copy *copy);
/** The same of a golden .tensors file. */
void fill_case_compare_golden(const char *name, const char *more);
/** `decrypt` for a golden file, or nothing. */
void fill_case_decrypt(const char *name, const char *directory, char *more, size_t room);
void fill_case_digest(const uint8_t *data, size_t bytes, const uint8_t digest[32],
                      const char *name);

#endif
