/*
 * Encrypted data are cut into blocks. A block is what is fetched and decrypted at a time: a piece,
 * or as many small pieces as make 64 KiB, or a window of a piece that is too large to be held. A
 * range takes whole blocks straight into the caller's memory, with one request for neighbours, and
 * decrypts them in place; of a block that it touches in part, the block is kept, so that ranges in
 * order decrypt each once.
 *
 * A piece can be trusted only when all of it was seen. One that is too large is therefore streamed
 * through its MAC first, and of each window a MAC under a random key of ours is noted on the way:
 * when the window is fetched again to be decrypted, it must be what it was, whatever the server
 * sends.
 */
#include "piece_reader.h"

#include <stdlib.h>
#include <string.h>

#include "gather.h"
#include "names.h"
#include "tensor_reader.h"

enum {
    BLOCK_BYTES = 64 * 1024,
    WHOLE_BYTES_MAX = 16 * 1024 * 1024, /* pieces that are held whole */
    WINDOW_BYTES = 2 * 1024 * 1024,
};

/* What is being read. */
struct job {
    struct sl_piece_reader *reader;
    const struct sl_index *index;
    struct sl_source *source;
    const struct sl_tensor *tensor;
    const struct sl_crypt *crypt;
};

struct block {
    uint64_t begin, end; /* in the data */
};

void sl_piece_reader_release(struct sl_piece_reader *reader)
{
    if (reader->block.data)
        sl_crypt_wipe(reader->block.data, reader->block.room);
    free(reader->block.data);
    free(reader->huge.macs);
    sl_crypt_wipe(reader, sizeof(*reader));
}

static bool is_huge(const struct job *job)
{
    return job->crypt->piece_bytes > WHOLE_BYTES_MAX;
}

static uint64_t piece_end(const struct job *job, uint64_t number)
{
    uint64_t left = job->tensor->bytes - number * job->crypt->piece_bytes;
    return number * job->crypt->piece_bytes + SL_MIN(left, job->crypt->piece_bytes);
}

static struct block block_at(const struct job *job, uint64_t at)
{
    uint64_t piece = job->crypt->piece_bytes, base = 0, step = piece, limit = job->tensor->bytes;
    if (is_huge(job)) {
        base = at / piece * piece;
        limit = piece_end(job, at / piece);
        step = WINDOW_BYTES;
    } else if (piece < BLOCK_BYTES) {
        step = BLOCK_BYTES / piece * piece;
    }
    uint64_t begin = base + (at - base) / step * step;
    return (struct block){begin, begin + SL_MIN(step, limit - begin)};
}

/* ---- pieces that are held whole -------------------------------------------------------------- */

static int open_pieces(const struct job *job, uint64_t begin, uint64_t end, uint8_t *data,
                       struct sl_err *err)
{
    while (begin < end) {
        uint64_t number = begin / job->crypt->piece_bytes, bytes = piece_end(job, number) - begin;
        struct sl_opening opening;
        sl_opening_begin(&opening, job->tensor->key, job->crypt->nonce, number);
        sl_opening_update(&opening, data, data, bytes);
        if (!sl_opening_end(&opening, job->crypt->macs + number * SL_MAC_BYTES))
            return sl_tensor_blame(job->index, job->tensor, number, err);
        begin += bytes;
        data += bytes;
    }
    return 0;
}

/* ---- pieces that are too large --------------------------------------------------------------- */

/* A huge piece on its way through its MAC. */
struct survey {
    struct sl_piece_reader *reader;
    struct sl_opening piece, window;
    uint64_t window_bytes; /* of this window so far */
};

static int end_window(struct survey *survey, struct sl_err *err)
{
    struct sl_piece_reader *reader = survey->reader;
    size_t number = reader->huge.count;
    if (sl_grow(&reader->huge.macs, &reader->huge.capacity, (number + 1) * SL_MAC_BYTES, 1, err) <
        0)
        return -1;
    sl_opening_mac(&survey->window, reader->huge.macs + number * SL_MAC_BYTES);
    reader->huge.count++;
    survey->window_bytes = 0;
    return 0;
}

static const uint8_t no_nonce[SL_NONCE_BYTES]; /* the key is new for each piece */

static int survey_bytes(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct survey *survey = arg;
    sl_opening_update(&survey->piece, data, NULL, bytes);
    while (bytes > 0) {
        size_t step = SL_MIN(bytes, WINDOW_BYTES - survey->window_bytes);
        if (survey->window_bytes == 0)
            sl_opening_begin(&survey->window, survey->reader->huge.key, no_nonce,
                             survey->reader->huge.count);
        sl_opening_update(&survey->window, data, NULL, step);
        survey->window_bytes += step;
        data += step;
        bytes -= step;
        if (survey->window_bytes == WINDOW_BYTES && end_window(survey, err) < 0)
            return -1;
    }
    return 0;
}

static int survey_piece(const struct job *job, uint64_t number, struct sl_err *err)
{
    struct sl_piece_reader *reader = job->reader;
    uint64_t begin = job->tensor->begin + number * job->crypt->piece_bytes,
             end = job->tensor->begin + piece_end(job, number);
    struct survey survey = {.reader = reader};
    reader->huge.of = NULL;
    reader->huge.count = 0;
    sl_crypt_random(reader->huge.key, sizeof(reader->huge.key));
    sl_opening_begin(&survey.piece, job->tensor->key, job->crypt->nonce, number);
    int result = sl_gather_stream(job->source, begin, end, survey_bytes, &survey, err);
    if (result == 0 && survey.window_bytes > 0)
        result = end_window(&survey, err);
    if (result == 0 && !sl_opening_end(&survey.piece, job->crypt->macs + number * SL_MAC_BYTES))
        result = sl_tensor_blame(job->index, job->tensor, number, err);
    sl_opening_release(&survey.piece);
    sl_opening_release(&survey.window);
    if (result < 0)
        return -1;
    reader->huge.of = job->crypt;
    reader->huge.number = number;
    return 0;
}

/* Decrypt windows [begin, end) of huge pieces in place. */
static int open_windows(const struct job *job, uint64_t begin, uint64_t end, uint8_t *data,
                        struct sl_err *err)
{
    while (begin < end) {
        struct block block = block_at(job, begin);
        uint64_t number = begin / job->crypt->piece_bytes, bytes = block.end - block.begin;
        uint64_t at = begin - number * job->crypt->piece_bytes;
        const struct sl_piece_reader *reader = job->reader;
        if ((reader->huge.of != job->crypt || reader->huge.number != number) &&
            survey_piece(job, number, err) < 0)
            return -1;
        struct sl_opening window;
        sl_opening_begin(&window, reader->huge.key, no_nonce, at / WINDOW_BYTES);
        sl_opening_update(&window, data, NULL, bytes);
        if (!sl_opening_end(&window, reader->huge.macs + at / WINDOW_BYTES * SL_MAC_BYTES))
            return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                                "tensor '%.*s': its bytes changed while they were read",
                                SL_NAME_ARGS(job->tensor->name, job->tensor->name_bytes));
        sl_crypt_xor(job->tensor->key, job->crypt->nonce, number, at, data, data, bytes);
        begin += bytes;
        data += bytes;
    }
    return 0;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Whole blocks [begin, end), fetched at once. */
static int read_blocks(const struct job *job, uint64_t begin, uint64_t end, uint8_t *data,
                       struct sl_err *err)
{
    if (sl_source_read(job->source, job->tensor->begin + begin, data, end - begin, err) < 0)
        return -1;
    return is_huge(job) ? open_windows(job, begin, end, data, err)
                        : open_pieces(job, begin, end, data, err);
}

static bool holds(const struct job *job, struct block block)
{
    return job->reader->block.of == job->crypt && job->reader->block.begin == block.begin;
}

static int hold(const struct job *job, struct block block, struct sl_err *err)
{
    struct sl_piece_reader *reader = job->reader;
    size_t bytes = block.end - block.begin;
    if (holds(job, block))
        return 0;
    reader->block.of = NULL;
    if (reader->block.room < bytes) {
        if (reader->block.data)
            sl_crypt_wipe(reader->block.data, reader->block.room);
        free(reader->block.data);
        reader->block.room = 0;
        reader->block.data = sl_alloc_aligned(64, bytes, err);
        if (!reader->block.data)
            return -1;
        reader->block.room = bytes;
    }
    if (read_blocks(job, block.begin, block.end, reader->block.data, err) < 0)
        return -1;
    reader->block.of = job->crypt;
    reader->block.begin = block.begin;
    reader->block.end = block.end;
    return 0;
}

/* Where the whole blocks from `at`, the begin of one, to `end` end. */
static uint64_t whole_end(const struct job *job, uint64_t at, uint64_t end)
{
    if (end == job->tensor->bytes || at == end)
        return end;
    struct block last = block_at(job, end);
    return SL_MAX(at, last.begin);
}

static int read_range(const struct job *job, uint64_t begin, uint64_t end, uint8_t *out,
                      struct sl_err *err)
{
    for (uint64_t at = begin; at < end;) {
        struct block block = block_at(job, at);
        uint64_t next = whole_end(job, at, end);
        if (at == block.begin && next > at && !holds(job, block)) {
            if (read_blocks(job, at, next, out + (at - begin), err) < 0)
                return -1;
        } else {
            next = SL_MIN(block.end, end);
            if (hold(job, block, err) < 0)
                return -1;
            memcpy(out + (at - begin), job->reader->block.data + (at - block.begin), next - at);
        }
        at = next;
    }
    return 0;
}

int sl_piece_reader_read(struct sl_piece_reader *reader, const struct sl_index *index,
                         struct sl_source *source, const struct sl_tensor *tensor, uint64_t begin,
                         uint64_t end, uint8_t *out, struct sl_err *err)
{
    struct job job = {reader, index, source, tensor, tensor->crypt};
    if (read_range(&job, begin, end, out, err) == 0)
        return 0;
    sl_crypt_wipe(out, end - begin); /* ciphertext, or what is damaged */
    return -1;
}
