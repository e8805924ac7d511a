/*
 * sluice: model weights from object storage into memory.
 *
 *     spec ──▶ plan ──▶ reader ──▶ transform ──▶ sink ──▶ publish      observe/ sees every stage
 *               ▲          ▲                                           load/ alone names them all
 *             format     store
 *
 * The floors of src/ and their rooms, the lowest first (docs/architecture.md has all of it). A room
 * may see what stands above it here; sluice_layer() in CMakeLists.txt says which of that it does:
 *
 *     client/   cuda: the driver, found at run time; api: attaching to a pool, with libc alone
 *     core/     base: errors, memory, JSON, option rows, logs, threads; observe: metrics,
 *               progress, history; packing: bytes that gzip or zstd has packed; concurrency: how
 *               many connections, threads, buffers; sink: where bytes land
 *     storage/  net: connections and HTTP; store: ranges of one version, retry; upload: new
 *               objects; file, http, s3, gs, az, hf, ms, oci, redis: one kind each; cloud: what
 *               gs, az, hf and oci share; stores: which kinds there are
 *     model/    transform: hashes, ciphers, casts; signing: who signed a model; spec: the YAML
 *               document; format: where tensors lie (formats.def); plan: which bytes of which
 *               object go where; convert: a new object from a model in any format
 *     load/     reader: carries out a plan; publish: lock, staging, ready; unpack: archives into
 *               a folder; load: one load; sets: caches of engines, beside a load
 *     device/   kernels: what a GPU computes; gpu: a GPU and its memory; fill: plans on their
 *               way into it
 *     lib/      open: models for other programs, wherever they are; edit: model files changed where
 *               they lie (libsluice's, not in this program)
 *     node/     pool: models in slabs; pool_server: the socket that hands them out; node: the
 *               models of a machine; grpc: unary calls on a socket; volumes: models at paths, for
 *               pods; csi: the driver that a kubelet calls; web: health, metrics, the page
 *     tools/    initializer, bench, cli: commands (commands.def)
 */
#include "cli.h"

int main(int argc, char **argv)
{
    return sl_cli_main(argc, argv);
}
