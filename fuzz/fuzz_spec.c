/* Any text as a model spec, with and without settings over it: no crash, no leak, and refusals with
 * a place. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "mem.h"
#include "spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct sl_spec_setting settings[] = {
        {"readers.connections", "4", "--connections"},
        {"source.include", "[a, b]", "--set source.include"},
        {"verify.sha256.a.b", "x", "--set verify.sha256.a.b"},
    };
    for (size_t count = 0; count <= SL_COUNT(settings); count += SL_COUNT(settings)) {
        struct sl_specs specs = {0};
        struct sl_err err = SL_ERR_INIT;
        sl_autobuf complaints = SL_BUF_INIT(1 << 20);
        int done = sl_spec_parse((const char *)data, bytes, "fuzz.yaml", settings, count, &specs,
                                 &complaints, &err);
        if (done < 0 && err.kind == SL_E_USAGE && !complaints.used && bytes <= SL_SPEC_BYTES_MAX)
            abort();
        if ((done == 0) != (specs.count > 0))
            abort();
        sl_specs_release(&specs);
    }
    return 0;
}
