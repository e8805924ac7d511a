/* Drawings. */
#include "bench_parts.h"

int sl_bench_svg(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err)
{
    (void)results;
    return sl_buf_text(out, "<svg xmlns=\"http://www.w3.org/2000/svg\"/>\n", err);
}
