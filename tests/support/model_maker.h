/* Models and specs for the tests of planning and loading. Whatever fails here aborts the test. */
#ifndef SL_MODEL_MAKER_H
#define SL_MODEL_MAKER_H

#include "json.h"
#include "plan.h"
#include "spec.h"

/** A safetensors file of F32 vectors: names "a,b,c" of `items` elements each. free() it. */
uint8_t *sl_model_safetensors(const char *names, unsigned items, size_t *bytes);
/** Bytes that look random, the same for a seed. free() them. */
uint8_t *sl_model_noise(size_t bytes, unsigned seed);
/**
 * A spec: source.uri, sink.tmpfs.path, and more YAML (may be "") at top level, with two blanks per
 * level. Release it with sl_specs_release().
 */
void sl_model_spec(struct sl_specs *specs, const char *uri, const char *path, const char *more);
/** Plan it without a source configuration. 0 or -1. */
int sl_model_plan(const struct sl_specs *specs, struct sl_plan **plan, struct sl_err *err);
/** The same in a layout that is not the spec's. */
int sl_model_plan_as(const struct sl_specs *specs, const struct sl_plan_output *wanted,
                     struct sl_plan **plan, struct sl_err *err);
/** The whole file DIRECTORY/NAME, NULL if absent. free() it. */
uint8_t *sl_model_read(const char *directory, const char *name, size_t *bytes);
/** What DIRECTORY/.sluice/manifest.json says, NULL if it is absent or broken. json_decref() it. */
json_t *sl_model_manifest(const char *directory);
/** 1 if the file holds exactly these bytes. */
int sl_model_same(const char *directory, const char *name, const void *data, size_t bytes);
int sl_model_exists(const char *directory, const char *name);

#endif
