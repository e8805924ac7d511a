/* What tests of a node with GPUs share: the fake driver, a node, clients. Whatever fails here
 * aborts the test. */
#ifndef SL_GPU_CASE_H
#define SL_GPU_CASE_H

#include "fake_cuda.h"
#include "node_case.h"

enum { GPU_CASE_ITEMS = 1000, GPU_CASE_MIB = 1024 * 1024 };

#define GPU_CASE_ON(name, object, device)                                                          \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"memory://m/" object "\"}\nsink: {pool: {device: \"" device "\"}}\n"

/** Set by main(). */
extern const struct fake_cuda_control *gpu_case_fake;
extern struct node_case gpu_case;
/** Of the last attach that failed. */
extern struct sluice_error gpu_case_error;

/** The object memory://m/small has GPU_CASE_ITEMS. */
void gpu_case_setup(void);
/** Nothing of the driver is left. */
void gpu_case_teardown(void);
struct sluice_model *gpu_case_attach(const char *name, const char *key, const char *device);
void gpu_case_refused(const char *name, const char *device, int kind, const char *code,
                      const char *words);
/** What `small` holds; the fake driver's addresses can be read. */
void gpu_case_bytes(struct sluice_model *model);
/** Deposit one tensor t of GPU_CASE_ITEMS floats, which count up; -1 with gpu_case_error. */
int gpu_case_deposit(const char *key, const char *device, struct sluice_model *source);
/** The last load of this model failed so; words are looked for in all that the registry tells. */
void gpu_case_failure(const char *name, const char *words);
/** The config again, with these models; their loads are not waited for. */
void gpu_case_define(const char *models);
/** The same, and they are. */
void gpu_case_reload(const char *models);

#endif
