/* What the tests of the model spec share: one parse at a time, with everything that came of it. */
#ifndef SL_SPEC_CASE_H
#define SL_SPEC_CASE_H

#include <check.h>

#include "buf.h"
#include "mem.h"
#include "spec.h"

#define HEAD "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
#define GOOD HEAD "source: {uri: /m/}\nsink: {tmpfs: {path: /t}}\n"
#define SAFE HEAD "source: {uri: /m}\nsink: {tmpfs: {path: /t, layout: safetensors}}\n"

/** A spec that uses most keys and is good. */
extern const char spec_everything[];
extern struct sl_specs specs;
extern struct sl_err err;
extern struct sl_buf complaints;

/** Frees what the parse before left. */
void spec_case_reset(void);
int parse(const char *text);
int parse_with(const char *text, const struct sl_spec_setting *settings, size_t count);
/** The text must be refused with exactly these complaints. */
void expect(const char *text, const char *wanted);
/** Runs the tests with an environment of BUCKET=models, EMPTY=, TRICK, and without UNSET. */
void spec_case_setup(void);

#endif
