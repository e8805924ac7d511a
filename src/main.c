/*
 * sluice: model weights from object storage into memory.
 *
 *     spec ──▶ plan ──▶ reader ──▶ transform ──▶ sink ──▶ publish      observe/ sees every stage
 *               ▲          ▲                                           load/ alone names them all
 *             format     store
 *
 * The rooms of src/ and what is in them, bottom to top (docs/architecture.md has all of it):
 *
 *     core/     base: errors, memory, JSON, option rows, logs, threads; observe: metrics,
 *               progress, history; packing: bytes that gzip or zstd has packed
 *     storage/  net: connections and HTTP; store: ranges of one version, retry; upload: new
 *               objects; file, http, s3, gs, az, hf, ms, oci, redis: one kind each; cloud: what
 *               gs, az and oci share; stores: which kinds there are
 *     model/    transform: hashes, ciphers, casts; spec: the YAML document; format: where
 *               tensors lie (formats.def); plan: which bytes of which object go where
 *     load/     concurrency: how many connections, threads, buffers; sink: where bytes land;
 *               reader: carries out a plan; publish: lock, staging, ready; load: one load
 *     device/   cuda: the driver, found at run time; gpu: a GPU and its memory; kernels: what
 *               it computes; fill: plans on their way into it
 *     node/     pool: models in slabs; pool_server: the socket that hands them out; node: the
 *               models of a machine; volumes: these at paths, for pods; grpc: unary calls on a
 *               socket; csi: the driver that a kubelet calls; web: health, metrics, the page
 *     lib/      for other programs: api: attaching, with libc alone; open: all the rest
 *     tools/    cli: commands (commands.def); convert, initializer, bench
 */
#include "cli.h"

int main(int argc, char **argv)
{
    return sl_cli_main(argc, argv);
}
