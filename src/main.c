/*
 * sluice: model weights from object storage into memory.
 *
 *     spec ──▶ plan ──▶ reader ──▶ transform ──▶ sink ──▶ publish      observe/ sees every stage
 *               ▲          ▲                                           load/ alone names them all
 *             format     store
 *
 * The rooms of src/ and what is in them, bottom to top (docs/architecture.md has all of it):
 *
 *     core/     base: errors, memory, JSON, option rows, logs, threads; observe: metrics
 *     storage/  net: connections and HTTP; store: ranges of one version, retry; upload: new
 *               objects; file, http, s3, redis: one kind each; stores: which kinds there are
 *     model/    transform: hashes, ciphers, casts; spec: the YAML document; format: where
 *               tensors lie (formats.def); plan: which bytes of which object go where
 *     load/     concurrency: how many connections, threads, buffers; sink: where bytes land;
 *               reader: carries out a plan; publish: lock, staging, ready; load: one load
 *     device/   cuda: the driver, found at run time; gpu: a GPU and its memory; kernels: what
 *               it computes; fill: plans on their way into it
 *     node/     pool: models in slabs; pool_server: the socket that hands them out; node: the
 *               models of a machine; web: health, metrics, the page
 *     lib/      api: libsluice, for other programs
 *     tools/    cli: commands (commands.def); convert, initializer, bench
 */
#include "cli.h"

int main(int argc, char **argv)
{
    return sl_cli_main(argc, argv);
}
