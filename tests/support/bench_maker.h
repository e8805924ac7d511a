/* Results with fixed figures, for the tests of tables and drawings. Whatever fails here aborts the
 * test. */
#ifndef SL_BENCH_MAKER_H
#define SL_BENCH_MAKER_H

#include "bench.h"

/** A sweep of two counts by three sizes with every way, two peers and one that failed. */
void sl_bench_sample_result(struct sl_bench_results *results);
/** So many nodes, one setting each; node 3 is the slowest. */
void sl_bench_sample_nodes(struct sl_bench_results *results, unsigned count);
/**
 * Compare text with tests/data/bench/NAME; with SLUICE_WRITE_GOLDEN in the environment it is
 * written there instead, to be looked at before it is committed.
 */
void sl_bench_expect_golden(const char *name, const struct sl_buf *text);

#endif
