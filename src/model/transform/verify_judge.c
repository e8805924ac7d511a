/* Whether a check's hash is the expected one, and what follows: told, fetched again, judged once
 * more. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "hash_workers.h"
#include "metrics.h"
#include "minisign.h"

enum { READ_BACK_BYTES = 256 * 1024 };

/* Which other fault it may be than damage on the way, and what to do then. */
static const char *other_fault(const struct sl_check *check)
{
    return check->of_signature ? ", or the object was changed after the model was signed"
           : check->range      ? ", or the object was changed after its sidecar was made"
           : check->given      ? ", or the hash in the spec is of another file"
                               : "";
}

static const char *other_cure(const struct sl_check *check)
{
    return check->of_signature ? "; if it is right, have the model signed again"
           : check->range      ? ", or make its sidecar again with `sluice sign`"
                               : "";
}

int sl_verify_mismatch(const struct sl_check *check, const uint8_t digest[SL_HASH_BYTES_MAX],
                       struct sl_err *err)
{
    char expected[2 * SL_HASH_BYTES_MAX + 1], actual[2 * SL_HASH_BYTES_MAX + 1], code[32], *end;
    const char *name = sl_hash_name(check->kind);
    char where[64] = "";
    if (check->range)
        snprintf(where, sizeof(where), ", bytes %" PRIu64 " to %" PRIu64, check->begin, check->end);
    if (check->signer)
        return sl_fail_code(
            err, SL_E_INTEGRITY, "E_SIGNATURE",
            "%s: its signature does not match these bytes: they were changed, or signed again "
            "since; do not use them, or sign with `minisign -S` again if they are right",
            check->what);
    sl_hex(check->expected, sl_hash_bytes(check->kind), expected);
    sl_hex(digest, sl_hash_bytes(check->kind), actual);
    snprintf(code, sizeof(code), "E_HASH_%s", name);
    for (end = code; *end; end++)
        *end = (char)toupper((unsigned char)*end);
    return sl_fail_code(err, SL_E_INTEGRITY, code,
                        "%s%s: its %s is %s, expected %s: the bytes are damaged%s; load again, and "
                        "upload the object again if this persists%s",
                        check->what, where, name, actual, expected, other_fault(check),
                        other_cure(check));
}

bool sl_verify_agrees(const struct sl_check *check, const uint8_t digest[SL_HASH_BYTES_MAX])
{
    if (check->signer)
        return sl_minisign_matches(check->signer, check->expected, digest, SL_HASH_BYTES_MAX);
    return memcmp(digest, check->expected, sl_hash_bytes(check->kind)) == 0;
}

void sl_verify_conclude(struct sl_verify *verify, const struct sl_verify_item *item,
                        const struct sl_err *why)
{
    if (!why && !item->check->computed) {
        sl_progress_add_verified(verify->config.progress, item->fresh);
        sl_metric_add(SL_M_VERIFIED_BYTES, (int64_t)item->fresh);
    } else if (why && !item->check->computed && verify->config.mismatch) {
        verify->config.mismatch(verify->config.arg, item->check);
    }
    if (!why && !item->check->computed && verify->config.agreed)
        verify->config.agreed(verify->config.arg, item->check);
    SL_LOCKED(&verify->lock);
    verify->locked.remaining--;
    if (why && !verify->locked.err.kind)
        verify->locked.err = *why;
    pthread_cond_broadcast(&verify->idle);
}

/* A check that does not match gets another chance: true if it waits for that now. */
static bool put_off(struct sl_verify *verify, struct sl_verify_item *item, struct sl_err *why)
{
    const struct sl_check *check = item->check;
    if (check->repair == SL_REPAIR_NEVER || item->last || !verify->config.repair)
        return false;
    bool fetch = check->repair == SL_REPAIR_FETCH;
    {
        SL_LOCKED(&verify->lock);
        item->later = !fetch;
        *(fetch ? &verify->locked.doubtful : &verify->locked.later) += 1;
        pthread_cond_broadcast(&verify->idle);
    }
    struct sl_err problem = SL_ERR_INIT;
    if (!fetch || verify->config.repair(verify->config.arg, check, &problem) == 0)
        return true;
    *why = problem;
    SL_LOCKED(&verify->lock);
    verify->locked.doubtful--;
    return false;
}

int sl_verify_complete(struct sl_verify *verify, struct sl_verify_item *item,
                       const uint8_t digest[SL_HASH_BYTES_MAX], struct sl_err *err)
{
    const struct sl_check *check = item->check;
    struct sl_err why = SL_ERR_INIT;
    bool right = check->computed
                     ? verify->config.computed(verify->config.arg, check, digest, &why) == 0
                     : sl_verify_agrees(check, digest);
    if (!right && !check->computed) {
        sl_verify_mismatch(check, digest, &why);
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
        if (put_off(verify, item, &why))
            return 0;
    }
    sl_verify_conclude(verify, item, right ? NULL : &why);
    if (!right && err)
        *err = why;
    return right ? 0 : -1;
}

/* The hash of all its bytes, read back. */
static int judge_again(struct sl_verify *verify, struct sl_verify_item *item, struct sl_err *err)
{
    const struct sl_check *check = item->check;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_autodigest sum = {0};
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, READ_BACK_BYTES, err);
    if (!buffer || sl_digest_begin(&sum, check->kind, check->prefix, check->prefix_bytes, err) < 0)
        return -1;
    for (uint64_t at = check->begin; at < check->end;) {
        size_t bytes = (size_t)SL_MIN(check->end - at, (uint64_t)READ_BACK_BYTES);
        if (verify->config.read(verify->config.arg, check->file,
                                check->file_offset + (at - check->begin), buffer, bytes, err) < 0)
            return -1;
        sl_digest_update(&sum, buffer, bytes);
        at += bytes;
    }
    sl_digest_finish(&sum, digest);
    return sl_verify_complete(verify, item, digest, err);
}

int sl_verify_judge_later(struct sl_verify *verify, struct sl_err *err)
{
    for (size_t i = 0; i < verify->item_count; i++) {
        struct sl_verify_item *item = &verify->items[i];
        if (!item->later)
            continue;
        item->later = false;
        item->last = true;
        if (judge_again(verify, item, err) < 0)
            return -1;
    }
    return 0;
}
