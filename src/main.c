/*
 * sluice: model weights from object storage into memory.
 *
 *     spec ──▶ plan ──▶ reader ──▶ transform ──▶ sink ──▶ publish      observe/ sees every stage
 *               ▲          ▲                                           load/ alone names them all
 *             format     source
 *
 *     base/       errors, memory, bytes, JSON, option rows, logs, threads
 *     observe/    metrics and progress
 *     source/     where bytes come from: file, http, s3 (sources.def)
 *     spec/       the YAML document
 *     format/     where tensors lie inside an object: safetensors, tensorizer, GGUF
 *                 (formats.def)
 *     plan/       which bytes of which object go where
 *     transform/  hashes of bytes on their way
 *     sink/       where bytes land: tmpfs, memory; the journal of what has landed
 *     reader/     threads and connections that carry out a plan
 *     publish/    staging, lock, manifest and the ready marker
 *     load/       one load from spec to ready
 *     web/        health, metrics, the page
 *     cli/        commands (commands.def), one file each
 */
#include "cli.h"

int main(int argc, char **argv)
{
    return sl_cli_main(argc, argv);
}
