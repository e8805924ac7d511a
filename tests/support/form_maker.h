/* Plans of tensors that are decrypted, cut and cast on their way, made without spec and formats,
 * and what their file must hold. Whatever fails here aborts the test. */
#ifndef SL_FORM_MAKER_H
#define SL_FORM_MAKER_H

#include "plan_parts.h"

/** One tensor. Arrays are copied. */
struct sl_form_tensor {
    enum sl_dtype dtype, cast; /* cast NONE: none */
    unsigned rank;
    uint64_t shape[4];
    bool sliced;
    uint64_t begin[4], end[4]; /* of the slice */
    bool encrypted;
    uint64_t piece_bytes; /* 0: one piece */
    bool swapped;         /* stored big-endian */
    bool turned;          /* a view: its first dimension is the one that lies together */
    bool crc32, sha256;   /* hashes that come with it */
    uint64_t gap;         /* bytes before it in the object */
};
struct sl_form;

struct sl_form *sl_form_new(void);
void sl_form_free(struct sl_form *form);
void sl_form_add(struct sl_form *form, const struct sl_form_tensor *tensor);
/** Tensors by chance; encrypted: all of them. */
void sl_form_add_random(struct sl_form *form, unsigned seed, bool encrypted);
/** The object's bytes, so that a test can serve or damage them; until sl_form_free(). */
uint8_t *sl_form_object(struct sl_form *form, size_t *bytes);
/** Where the data of tensor `number` begin in the object. */
uint64_t sl_form_begin(const struct sl_form *form, unsigned number);
/** Their plaintext, and its length. */
const uint8_t *sl_form_plaintext(const struct sl_form *form, unsigned number, size_t *bytes);

/** What the spec would say. */
struct sl_form_options {
    const char *uri;                       /* NULL: the object is put into memory */
    const struct sl_source_config *config; /* NULL: none */
    int hashes;
    uint64_t range_bytes; /* 0: auto */
    bool least_bytes;     /* a request for each row of a slice */
    const uint8_t *key;   /* NULL: the right one */
};
/** The plan; -1 with err as sl_plan_make(). Once. */
int sl_form_plan(struct sl_form *form, const struct sl_form_options *wanted, struct sl_err *err);
struct sl_plan *sl_form_planned(struct sl_form *form);
/** For the sink: one file. */
const struct sl_sink_file *sl_form_file(const struct sl_form *form);
/** Does the file hold what it must? */
bool sl_form_matches(const struct sl_form *form, struct sl_sink *sink);
/** Bytes that each of the selected ranges of tensors holds, together. */
uint64_t sl_form_taken(const struct sl_form *form);

#endif
