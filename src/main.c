/*
 * sluice: model weights from object storage into memory.
 *
 *     spec ──▶ plan ──▶ reader ──▶ transform ──▶ sink ──▶ publish      observe/ sees every stage
 *               ▲          ▲                                           load/ alone names them all
 *             format     source
 *
 *     base/       errors, memory, bytes, JSON, option rows, logs, threads
 *     observe/    metrics and progress
 *     stores/     where bytes come from and where new objects go: file, s3, http, redis
 *                 (stores.def), a folder each beside it
 *     spec/       the YAML document
 *     format/     where tensors lie inside an object: safetensors, tensorizer, PyTorch, GGUF
 *                 (formats.def); how to lay out a new one; any part of a tensor as plaintext
 *     plan/       which tensors, as what, and which bytes of which object go where
 *     transform/  bytes on their way: hashes, signatures, ciphers and keys, casts
 *     sink/       where bytes land: tmpfs, memory; the journal of what has landed
 *     reader/     threads and connections that carry out a plan
 *     publish/    staging, lock, manifest and the ready marker
 *     load/       one load from spec to ready
 *     convert/    from a model in any format to a new object
 *     initializer/  KServe's contract: its environment, its choice of objects, archives
 *     bench/      how fast a server can be read, and the results of many nodes
 *     cuda/       NVIDIA's driver, found at run time
 *     kernels/    what GPUs compute, from one source for them and for the host, and its launching
 *     gpu/        a GPU's thread, its shareable memory, the ring that fills it
 *     api/        libsluice, for other programs: attach to the pool; the pool's wire format
 *     pool/       models in slabs of shareable memory, and the server that hands them out
 *     node/       the models of one machine: one load each, references, budget, eviction
 *     web/        health, metrics, the page, requests to the node
 *     cli/        commands (commands.def), one file each
 */
#include "cli.h"

int main(int argc, char **argv)
{
    return sl_cli_main(argc, argv);
}
