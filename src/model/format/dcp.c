/*
 * Distributed checkpoints of PyTorch: .metadata names the tensors and says where their chunks are;
 * each chunk is an archive of torch.save within a file NAME.distcp (dcp_metadata.c, pytorch.c). In
 * a file the archives follow each other, so the end of one and the beginning of the next come in
 * one request: that is enough to find a chunk's bytes. Files are looked into side by side.
 *
 * What .metadata says is believed only as far as the archives agree: type and shape of each chunk
 * are those of the tensor in its archive, chunks cover their tensor exactly, and no two lie in the
 * same bytes, so a small checkpoint cannot stand for much.
 */
#include "dcp.h"

#include <inttypes.h>
#include <string.h>

#include "arena.h"
#include "chunked.h"
#include "format.h"
#include "gather.h"
#include "log.h"
#include "names.h"
#include "pytorch.h"
#include "side_by_side.h"
#include "zip.h"

enum {
    END_BYTES = 4096, /* of an archive, at either end: all but the tensor's bytes */
    BATCH = 256,      /* archives looked into at once: 2 MiB */
    FILES_AT_ONCE = 8,
    COMPARISONS_MAX = 64 * 1024 * 1024,
};
static const char metadata_name[] = ".metadata", suffix[] = ".distcp";

/* A file, and which of the chunks, sorted by place, are in it. */
struct file {
    const char *name; /* whole */
    size_t first, count;
    struct sl_source *source; /* until it is the index's */
};

struct reading {
    struct sl_dcp dcp;
    struct sl_dcp_chunk **sorted; /* by file and place */
    struct file *files;
    size_t file_count;
    pthread_mutex_t lock; /* of scratch */
    struct sl_index *scratch;
};

#define TENSOR_NAME(reading, chunk)                                                                \
    SL_NAME_ARGS((reading)->dcp.index->tensors[(chunk)->tensor].name,                              \
                 (reading)->dcp.index->tensors[(chunk)->tensor].name_bytes)

/* ---- files ----------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_dcp_chunk *x = *(struct sl_dcp_chunk *const *)a,
                              *y = *(struct sl_dcp_chunk *const *)b;
    int order = strcmp(x->file, y->file);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* .metadata names what lies below its own folder. */
static const char *whole_name(struct sl_index *index, const char *file, struct sl_err *err)
{
    const char *own = sl_source_name(index->sources[0]), *end = strrchr(own, '/');
    size_t folder = end ? (size_t)(end + 1 - own) : 0, bytes = strlen(file);
    char *name = sl_index_alloc(index, folder + bytes + 1, err);
    if (!name)
        return NULL;
    memcpy(name, own, folder);
    memcpy(name + folder, file, bytes);
    return name;
}

static int list_files(struct reading *reading, struct sl_err *err)
{
    size_t count = reading->dcp.chunk_count;
    reading->sorted = sl_alloc_array(count, sizeof(*reading->sorted), err);
    reading->files = reading->sorted ? sl_alloc_array(count, sizeof(*reading->files), err) : NULL;
    if (!reading->files)
        return -1;
    for (size_t i = 0; i < count; i++)
        reading->sorted[i] = &reading->dcp.chunks[i];
    if (count > 1)
        qsort(reading->sorted, count, sizeof(*reading->sorted), by_place);
    for (size_t i = 0; i < count; i++) {
        const char *name = reading->sorted[i]->file;
        if (i == 0 || strcmp(name, reading->sorted[i - 1]->file) != 0) {
            struct file *file = &reading->files[reading->file_count++];
            *file = (struct file){.name = whole_name(reading->dcp.index, name, err), .first = i};
            if (!file->name)
                return -1;
        }
        reading->files[reading->file_count - 1].count++;
    }
    return 0;
}

static int open_numbered(void *arg, size_t number, struct sl_err *err)
{
    struct reading *reading = arg;
    struct file *file = &reading->files[number];
    struct sl_store *store = sl_source_store(reading->dcp.index->sources[0]);
    struct sl_err why = SL_ERR_INIT;
    if (sl_source_open(store, file->name, 1, &file->source, &why) == 0)
        return 0;
    if (why.kind == SL_E_NOT_FOUND)
        return sl_fail_code(err, SL_E_FORMAT, "dcp.missing-file",
                            "it names '%s', which is not there (%.300s): store the checkpoint "
                            "again, all of it",
                            file->name, why.message);
    *err = why;
    return -1;
}

/* Archives of a file follow each other, within it. */
static int check_places(const struct reading *reading, const struct file *file, struct sl_err *err)
{
    uint64_t end = 0, bytes = sl_source_bytes(file->source);
    for (size_t i = file->first; i < file->first + file->count; i++) {
        const struct sl_dcp_chunk *chunk = reading->sorted[i];
        if (chunk->begin > bytes || chunk->bytes > bytes - chunk->begin)
            return sl_fail_code(err, SL_E_FORMAT, "dcp.bounds",
                                "a chunk of tensor '%.*s' ends at byte %" PRIu64
                                " of '%s', which has %" PRIu64 ": it is cut off, store it again",
                                TENSOR_NAME(reading, chunk),
                                sl_add_capped(chunk->begin, chunk->bytes), file->name, bytes);
        if (chunk->begin < end || chunk->bytes == 0)
            return sl_fail_code(err, SL_E_FORMAT, "dcp.bounds",
                                "a chunk of tensor '%.*s' has bytes of '%s' that another one has",
                                TENSOR_NAME(reading, chunk), file->name);
        end = chunk->begin + chunk->bytes;
    }
    return 0;
}

static int open_files(struct reading *reading, struct sl_err *err)
{
    struct sl_index *index = reading->dcp.index;
    unsigned most = sl_store_openings(sl_source_store(index->sources[0]), reading->file_count);
    if (sl_side_by_side(reading->file_count, most, "sl-index", open_numbered, reading, err) < 0)
        return -1;
    for (size_t i = 0; i < reading->file_count; i++)
        if (check_places(reading, &reading->files[i], err) < 0 ||
            sl_index_add_source(index, sl_steal(&reading->files[i].source), err) < 0)
            return -1;
    return 0;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The chunks of a tensor: begin is the number in dcp->chunks until it is a place. */
static int group_tensor(struct reading *reading, uint32_t number, size_t first, size_t count,
                        uint64_t *work, struct sl_err *err)
{
    struct sl_dcp *dcp = &reading->dcp;
    struct sl_tensor *tensor = &dcp->index->tensors[number];
    struct sl_tensor_chunk *slots =
        count ? sl_index_alloc(dcp->index, count * sizeof(*slots), err) : NULL;
    if (count && !slots)
        return -1;
    for (size_t i = 0; i < count; i++) {
        slots[i].at = dcp->chunks[first + i].at;
        slots[i].tensor = (struct sl_tensor){
            .begin = first + i, .rank = tensor->rank, .shape = dcp->chunks[first + i].shape};
    }
    if (sl_chunked_check(tensor, slots, count, work, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        dcp->chunks[slots[i].tensor.begin].slot = &slots[i];
    tensor->chunks = slots;
    tensor->chunk_count = count;
    return 0;
}

static int group_chunks(struct reading *reading, struct sl_err *err)
{
    struct sl_dcp *dcp = &reading->dcp;
    uint64_t work = COMPARISONS_MAX;
    size_t first = 0, end = 0;
    for (uint32_t i = 0; i < dcp->index->tensor_count; i++, first = end) {
        while (end < dcp->chunk_count && dcp->chunks[end].tensor == i)
            end++;
        if (group_tensor(reading, i, first, end - first, &work, err) < 0)
            return -1;
    }
    return 0;
}

/* Is what the archive holds the chunk? */
static int take_piece(struct reading *reading, const struct sl_dcp_chunk *chunk, uint32_t source,
                      struct sl_tensor *piece, struct sl_err *err)
{
    const struct sl_tensor *tensor = &reading->dcp.index->tensors[chunk->tensor];
    if (piece->refused)
        return sl_fail_code(err, (enum sl_err_kind)piece->refused, piece->refused_code, "%s",
                            piece->refused_why);
    if (piece->dtype != tensor->dtype || piece->rank != tensor->rank ||
        memcmp(piece->shape, chunk->shape, piece->rank * sizeof(*piece->shape)) != 0)
        return sl_fail_code(err, SL_E_FORMAT, "dcp.chunk",
                            "the archive holds a tensor of another type or shape than .metadata "
                            "says: store the checkpoint again");
    if (piece->end - piece->begin != piece->bytes)
        return sl_fail_code(err, SL_E_FORMAT, "dcp.chunk",
                            "its elements do not fill their place, as torch never writes");
    piece->source = source;
    piece->name = tensor->name;
    piece->name_bytes = tensor->name_bytes;
    piece->path = tensor->path;
    piece->path_count = tensor->path_count;
    chunk->slot->tensor = *piece;
    return 0;
}

/* ---- archives -------------------------------------------------------------------------------- */

/* Both ends of an archive; of a short one all of it, as its last bytes. */
struct ends {
    uint8_t head[END_BYTES], tail[2 * END_BYTES];
};

static struct sl_zip_window window_of(const struct sl_dcp_chunk *chunk, const struct ends *ends)
{
    bool all = chunk->bytes <= sizeof(ends->tail);
    return (struct sl_zip_window){.begin = chunk->begin,
                                  .bytes = chunk->bytes,
                                  .head = ends->head,
                                  .head_bytes = all ? 0 : END_BYTES,
                                  .tail = ends->tail,
                                  .tail_bytes = all ? (size_t)chunk->bytes : END_BYTES};
}

static int fetch_ends(struct sl_source *source, struct sl_dcp_chunk *const *chunks, size_t count,
                      struct ends *ends, struct sl_gather_item *items, struct sl_err *err)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const struct sl_zip_window window = window_of(chunks[i], &ends[i]);
        uint64_t begin = window.begin, end = begin + window.bytes;
        if (window.head_bytes)
            items[used++] = (struct sl_gather_item){begin, begin + window.head_bytes, ends[i].head};
        items[used++] = (struct sl_gather_item){end - window.tail_bytes, end, ends[i].tail};
    }
    return sl_gather(source, items, used, err);
}

static int read_batch(struct reading *reading, const struct file *file, uint32_t source,
                      struct sl_dcp_chunk *const *chunks, size_t count, const struct ends *ends,
                      struct sl_err *err)
{
    SL_LOCKED(&reading->lock);
    for (size_t i = 0; i < count; i++) {
        const struct sl_zip_window window = window_of(chunks[i], &ends[i]);
        struct sl_tensor piece;
        if (sl_pytorch_piece(reading->dcp.index->sources[source], &window, reading->scratch, &piece,
                             err) < 0 ||
            take_piece(reading, chunks[i], source, &piece, err) < 0)
            return sl_wrap(err, "tensor '%.*s': bytes %" PRIu64 " to %" PRIu64 " of '%s'",
                           TENSOR_NAME(reading, chunks[i]), window.begin,
                           window.begin + window.bytes, file->name);
    }
    return 0;
}

static int look_into(void *arg, size_t number, struct sl_err *err)
{
    struct reading *reading = arg;
    const struct file *file = &reading->files[number];
    uint32_t source = (uint32_t)number + 1;
    size_t most = SL_MIN(file->count, (size_t)BATCH);
    sl_autofree struct ends *ends = sl_alloc_array(most, sizeof(*ends), err);
    sl_autofree struct sl_gather_item *items =
        ends ? sl_alloc_array(2 * most, sizeof(*items), err) : NULL;
    if (!items)
        return -1;
    for (size_t done = 0; done < file->count; done += most) {
        struct sl_dcp_chunk **chunks = &reading->sorted[file->first + done];
        size_t count = SL_MIN(most, file->count - done);
        if (fetch_ends(reading->dcp.index->sources[source], chunks, count, ends, items, err) < 0 ||
            read_batch(reading, file, source, chunks, count, ends, err) < 0)
            return -1;
    }
    return 0;
}

/* One chunk is the tensor. */
static void simplify(struct sl_tensor *tensor)
{
    const struct sl_tensor_chunk *chunk = tensor->chunks;
    if (tensor->chunk_count == 0)
        tensor->chunks = NULL;
    if (tensor->chunk_count != 1)
        return;
    *tensor = chunk->tensor;
}

static int find_chunks(struct reading *reading, struct sl_err *err)
{
    struct sl_index *index = reading->dcp.index;
    reading->scratch = sl_index_new(index->format, err);
    if (!reading->scratch)
        return -1;
    unsigned most = sl_store_openings(sl_source_store(index->sources[0]), reading->file_count);
    if (sl_side_by_side(reading->file_count, SL_MIN(most, (unsigned)FILES_AT_ONCE), "sl-index",
                        look_into, reading, err) < 0)
        return -1;
    sl_arena_adopt(index->arena, reading->scratch->arena);
    for (size_t i = 0; i < index->tensor_count; i++)
        simplify(&index->tensors[i]);
    return 0;
}

/* ---- the format ------------------------------------------------------------------------------ */

static void release(struct reading *reading)
{
    for (size_t i = 0; i < reading->file_count; i++)
        sl_source_free(reading->files[i].source);
    sl_index_free(reading->scratch);
    free(reading->files);
    free(reading->sorted);
    free(reading->dcp.chunks);
}

static int read_all(struct reading *reading, bool outline, struct sl_err *err)
{
    struct sl_source *source = reading->dcp.index->sources[0];
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_PYTORCH_PICKLE_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "dcp.limit", "%" PRIu64 " bytes, limit %d", bytes,
                            SL_PYTORCH_PICKLE_BYTES_MAX);
    sl_autofree char *text = sl_format_read(source, 0, bytes, err);
    if (!text || sl_dcp_metadata(&reading->dcp, text, bytes, err) < 0 ||
        group_chunks(reading, err) < 0 || list_files(reading, err) < 0 ||
        open_files(reading, err) < 0)
        return -1;
    reading->dcp.index->outline = outline;
    return outline ? 0 : find_chunks(reading, err);
}

static void note_others(const struct reading *reading)
{
    const char *uri = sl_source_uri(reading->dcp.index->sources[0]);
    if (reading->dcp.other_count == 1)
        sl_log(SL_LOG_INFO, "'%s': '%s' holds no tensor and is left out", uri, reading->dcp.other);
    else if (reading->dcp.other_count)
        sl_log(SL_LOG_INFO, "'%s': '%s' and %zu others hold no tensor and are left out", uri,
               reading->dcp.other, reading->dcp.other_count - 1);
}

static int read_metadata(struct sl_index *index, bool outline, struct sl_err *err)
{
    struct reading reading = {.dcp = {.index = index}, .lock = PTHREAD_MUTEX_INITIALIZER};
    int done = read_all(&reading, outline, err);
    if (done == 0)
        note_others(&reading);
    release(&reading);
    return done;
}

/* A file of chunks says nothing of them. */
static int explain_file(struct sl_index *index, struct sl_err *err)
{
    struct sl_source *file = index->sources[0], *found = NULL;
    struct sl_err why = SL_ERR_INIT;
    const char *name = whole_name(index, metadata_name, err);
    if (!name)
        return -1;
    int there = sl_source_open(sl_source_store(file), name, 1, &found, &why);
    sl_source_free(found);
    if (there < 0 && why.kind != SL_E_NOT_FOUND) {
        *err = why;
        return -1;
    }
    if (there < 0)
        return sl_fail_code(err, SL_E_FORMAT, "dcp.unfinished",
                            "'%s', which torch writes last, is not there: the checkpoint was not "
                            "saved to its end",
                            name);
    return sl_fail_code(err, SL_E_FORMAT, "dcp.part",
                        "it is a part of a checkpoint: name its folder, or '%s'", name);
}

static int open_index(struct sl_source *source, bool outline, struct sl_index **out,
                      struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_dcp_format.name, source, err);
    if (!index)
        return -1;
    bool file = !sl_format_index_ending(&sl_dcp_format, index->source_names[0]);
    if ((file ? explain_file(index, err) : read_metadata(index, outline, err)) < 0)
        return sl_wrap(err, "cannot read '%s' as a distributed checkpoint of PyTorch",
                       sl_source_uri(index->sources[0]));
    *out = sl_steal(&index);
    return 0;
}

static int dcp_index(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, false, out, err);
}

static int dcp_outline(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, true, out, err);
}

/* Whole files go along as they are; one that is a single archive has checksums. */
static int dcp_files(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    if (sl_format_index_ending(&sl_dcp_format, sl_source_name(source))) {
        sl_source_free(source);
        return 0;
    }
    if (sl_pytorch_parts(source, out, err) < 0)
        return -1;
    if ((*out)->tensor_count == 0)
        sl_index_free(sl_steal(out));
    return 0;
}

static bool probe(const struct sl_format_head *head)
{
    if (head->bytes < 4)
        return false;
    if (sl_format_index_ending(&sl_dcp_format, head->name))
        return head->data[0] == 0x80 && head->data[1] <= 5;
    return sl_format_has_suffix(head->name, suffix) && memcmp(head->data, "PK\3\4", 4) == 0;
}

const struct sl_format sl_dcp_format = {
    .name = "dcp",
    .suffixes = {suffix},
    .tensors_only = true,
    .fallback = true,
    .index_name = metadata_name,
    .probe = probe,
    .index = dcp_index,
    .outline = dcp_outline,
    .index_files = dcp_files,
};
