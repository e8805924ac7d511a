/* Logs that are gathered, and what is told of them: the drawing must be XML whatever they hold. */
#include <expat.h>
#include <stdlib.h>

#include "bench.h"
#include "log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef int write_text(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err);

static int write_table(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err)
{
    return sl_bench_table(out, results, true, err);
}

static void check_xml(const struct sl_buf *text)
{
    XML_Parser parser = XML_ParserCreate("UTF-8");
    if (parser && XML_Parse(parser, text->data, (int)text->used, 1) != XML_STATUS_OK)
        abort();
    XML_ParserFree(parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static write_text *const writers[] = {write_table, sl_bench_csv, sl_bench_svg};
    struct sl_bench_results results = {0};
    sl_log_setup(SL_LOG_ERROR, false);
    if (sl_bench_gather(&results, "log", (const char *)data, bytes, NULL) == 0)
        for (size_t i = 0; i < SL_COUNT(writers); i++) {
            sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
            if (writers[i](&text, &results, NULL) == 0 && writers[i] == sl_bench_svg)
                check_xml(&text);
        }
    sl_bench_results_release(&results);
    return 0;
}
