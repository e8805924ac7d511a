/* A registry with two mirrors of it, on range servers, and reading a blob of it as a load does. Of
 * one thread. */
#ifndef SL_MIRROR_CASE_H
#define SL_MIRROR_CASE_H

#include "fetch.h"
#include "oci_options.h"
#include "range_blob.h"

enum { MIRROR_READ_BYTES = 1000 };

/** The mirrors in the order of the spec; `near` has its repositories below "hub/". */
struct mirror_case {
    struct sl_server *registry, *near, *far;
    struct sl_source_config config; /* a single try */
    struct sl_oci_options options;
    char names[2][64], *list[2]; /* of options.mirrors */
    char uri[256];               /* of the model, by tag */
    char digest[80], blob[128];  /* of its only layer; its path at the registry */
    char manifest_digest[80];
};
extern struct mirror_case mirrors;

/** For SL_CASE: the artifact is sl_blob() as m.bin. */
void mirror_case_begin(void);
void mirror_case_end(void);
bool mirror_case_prepare(void);
/** It has one layer now, of these bytes, this media type and what else is said of it. */
void mirror_case_publish(const void *data, size_t bytes, const char *type, const char *more);

struct mirror_opened {
    struct sl_store *store;
    struct sl_source *source;
};
/** 0, or -1 with err; close it after both. */
int mirror_case_try(struct mirror_opened *opened, struct sl_err *err);
struct mirror_opened mirror_case_open(void);
void mirror_case_close(struct mirror_opened *opened);
/** MIRROR_READ_BYTES from there on, compared with sl_blob(); vouched: as what is hashed as a
 * whole. */
int mirror_case_read(struct mirror_opened *opened, uint64_t offset, bool vouched,
                     struct sl_err *err);
void mirror_case_must_read(struct mirror_opened *opened, uint64_t offset, bool vouched);
/** Ranges of blobs that were asked for there. */
unsigned mirror_case_blobs(struct sl_server *of);

#endif
