/* What `sluice sign --format oms` does: every file of a model is hashed, and model.sig written. */
#ifndef SL_SIGN_MODEL_H
#define SL_SIGN_MODEL_H

#include "oms_sign.h"
#include "spec.h"
#include "thread.h"

struct sl_model_signing {
    const struct sl_oms_key *key;
    uint64_t shard_bytes;            /* 0: whole files */
    uint64_t objects, ranges, bytes; /* counts, of all models */
};

/**
 * Read everything that a spec's source has once, and write the signature beside it: model.sig below
 * a prefix, NAME.sig beside one object. One that is there is replaced. What the source's include
 * and exclude leave out is written down as ignored.
 *
 * @place   out: where it was written, without secrets; free() it.
 * @return  0, or -1: SL_E_USAGE also before anything is read, if the store cannot be written to.
 *
 * Blocks.
 */
int sl_cli_sign_model(struct sl_model_signing *signing, const struct sl_spec *spec,
                      struct sl_cancel *cancel, char **place, struct sl_err *err);

#endif
