/*
 * A journal that a load left behind, or somebody else did. Whatever it says, nothing is kept that
 * lies outside its file. The first byte chooses whether the header and the checksums of records are
 * made right, so that what is behind them is reached.
 */
#include <string.h>

#include "fuzz_folder.h"
#include "hash.h"
#include "journal.h"
#include "mem.h"
#include "sink.h"

enum { FILE_BYTES = 300 * 1024, HEADER_BYTES = 64, RECORD_BYTES = 40, INPUT_BYTES_MAX = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct sl_sink_file files[] = {{"a", FILE_BYTES}, {"b", 100}};
static const uint8_t identity[32] = {7};

static int keep(uint32_t file, uint64_t begin, uint64_t end, void *arg, struct sl_err *err)
{
    (void)arg, (void)err;
    if (file >= SL_COUNT(files) || begin >= end || end > files[file].bytes)
        abort();
    return 0;
}

static void seal(uint8_t *record, size_t bytes)
{
    uint32_t crc = sl_crc32c(0, record, bytes - 4);
    for (int i = 0; i < 4; i++)
        record[bytes - 4 + (size_t)i] = (uint8_t)(crc >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t header[HEADER_BYTES] = "sluicej1";
    bool resumed, known[SL_COUNT(files)];
    uint32_t crcs[SL_COUNT(files)];
    if (bytes == 0 || bytes > INPUT_BYTES_MAX)
        return 0;
    bool right = data[0] % 2;
    uint8_t *records = malloc(bytes);
    memcpy(records, data + 1, --bytes);
    memcpy(header + 8, identity, sizeof(identity));
    seal(header, HEADER_BYTES);
    for (size_t at = 0; right && at + RECORD_BYTES <= bytes; at += RECORD_BYTES)
        seal(records + at, RECORD_BYTES);
    int folder = fuzz_folder_put("journal", header, right ? HEADER_BYTES : 0, records, bytes);
    SL_AUTO(sl_sink) sink = sl_heap_open(files, SL_COUNT(files), &err);
    SL_AUTO(sl_journal) journal = sl_journal_open(folder, "journal", identity, &resumed, &err);
    if (!sink || !journal || (right && !resumed))
        abort();
    if (sl_journal_replay(journal, sink, keep, NULL, &err) == 0)
        sl_journal_file_crcs(journal, sink, crcs, known, &err);
    free(records);
    return 0;
}
