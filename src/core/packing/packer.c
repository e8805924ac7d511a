/* libzstd packs into one buffer, which goes out whenever there is something in it. */
#include "packer.h"

#include <zstd.h>

enum { OUT_BYTES = 256 * 1024 };

struct sl_packer {
    struct sl_packer_output output;
    ZSTD_CCtx *zstd;
    char out[OUT_BYTES];
};

struct sl_packer *sl_packer_new(const struct sl_packer_output *output, struct sl_err *err)
{
    SL_AUTO(sl_packer) packer = sl_alloc(sizeof(*packer), err);
    if (!packer)
        return NULL;
    packer->output = *output;
    packer->zstd = ZSTD_createCCtx();
    if (packer->zstd && !ZSTD_isError(ZSTD_CCtx_setParameter(packer->zstd, ZSTD_c_checksumFlag, 1)))
        return sl_steal(&packer);
    sl_fail(err, SL_E_NO_SPACE, "out of memory for packing");
    return NULL;
}

void sl_packer_free(struct sl_packer *packer)
{
    if (packer)
        ZSTD_freeCCtx(packer->zstd);
    free(packer);
}

/* Until all of the input is taken, or (at the end) nothing is left to hand on. */
static int run(struct sl_packer *packer, const void *data, size_t bytes, ZSTD_EndDirective end,
               struct sl_err *err)
{
    ZSTD_inBuffer in = {data, bytes, 0};
    size_t left;
    do {
        ZSTD_outBuffer out = {packer->out, OUT_BYTES, 0};
        left = ZSTD_compressStream2(packer->zstd, &out, &in, end);
        if (ZSTD_isError(left))
            return sl_fail(err, SL_E_NO_SPACE, "cannot pack: %s", ZSTD_getErrorName(left));
        if (out.pos && packer->output.put(packer->output.arg, packer->out, out.pos, err) < 0)
            return -1;
    } while (in.pos < in.size || (end == ZSTD_e_end && left));
    return 0;
}

int sl_packer_write(struct sl_packer *packer, const void *data, size_t bytes, struct sl_err *err)
{
    return run(packer, data, bytes, ZSTD_e_continue, err);
}

int sl_packer_end(struct sl_packer *packer, struct sl_err *err)
{
    return run(packer, NULL, 0, ZSTD_e_end, err);
}
