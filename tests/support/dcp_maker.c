/* Opcodes of protocol 2, one object after another, without a memo. */
#include "dcp_maker.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zip_maker.h"

#define CHECKPOINT "torch.distributed.checkpoint."
enum { CHUNKS_MAX = 4, ELEMENTS_MAX = 64 };

static void add(struct sl_buf *out, const char *text)
{
    ck_assert_int_eq(sl_buf_append(out, text, strlen(text), NULL), 0);
}

static void add_text(struct sl_buf *out, const char *text)
{
    uint8_t head[5] = {'X', (uint8_t)strlen(text), 0, 0, 0};
    ck_assert_int_eq(sl_buf_append(out, head, sizeof(head), NULL), 0);
    add(out, text);
}

/* An object of a class, whose dict of attributes follows up to end_object(). */
static void begin_object(struct sl_buf *out, const char *module, const char *class)
{
    ck_assert_int_eq(sl_buf_printf(out, NULL, "c%s\n%s\n)\x81}(", module, class), 0);
}

static void end_object(struct sl_buf *out)
{
    add(out, "ub");
}

static void add_number(struct sl_buf *out, const char *digits)
{
    ck_assert_int_eq(sl_buf_printf(out, NULL, "L%sL\n", digits), 0);
}

static void add_tuple(struct sl_buf *out, const char *numbers)
{
    char copy[200], *state = NULL;
    snprintf(copy, sizeof(copy), "%s", numbers);
    add(out, "(");
    for (char *word = strtok_r(copy, " ", &state); word; word = strtok_r(NULL, " ", &state))
        add_number(out, word);
    add(out, "t");
}

/* torch.Size((…)) */
static void add_size(struct sl_buf *out, const char *numbers)
{
    add(out, "ctorch\nSize\n");
    add_tuple(out, numbers);
    add(out, "\x85R");
}

static const char *either(const char *given, const char *otherwise)
{
    return given ? given : otherwise;
}

/* ---- archives -------------------------------------------------------------------------------- */

static size_t product(const char *numbers)
{
    size_t count = 1;
    char *end = NULL;
    for (unsigned long long number; number = strtoull(numbers, &end, 10), end != numbers;
         numbers = end)
        count *= number;
    return count;
}

static void add_archive(struct sl_buf *file, const struct dcp_made_chunk *chunk)
{
    struct zip_maker zip = ZIP_MAKER_INIT;
    struct sl_buf pickle = SL_BUF_INIT(4096);
    const char *shape = either(chunk->stored, chunk->size);
    char row[32];
    float data[ELEMENTS_MAX];
    size_t count = product(shape);
    ck_assert_uint_le(count, ELEMENTS_MAX);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)i;
    snprintf(row, sizeof(row), "%s 1", strchr(shape, ' ') ? strchr(shape, ' ') + 1 : "1");
    ck_assert_int_eq(
        sl_buf_printf(&pickle, NULL, "%c%cctorch._utils\n_rebuild_tensor_v2\n((", 0x80, 2), 0);
    add_text(&pickle, "storage");
    ck_assert_int_eq(
        sl_buf_printf(&pickle, NULL, "ctorch\n%s\n", either(chunk->storage, "FloatStorage")), 0);
    add_text(&pickle, "0");
    add_text(&pickle, "cpu");
    ck_assert_int_eq(sl_buf_printf(&pickle, NULL, "L%zuL\ntQL0L\n", count), 0);
    add_tuple(&pickle, shape);
    add_tuple(&pickle, either(chunk->strides, row));
    add(&pickle, "\x89"
                 "ccollections\nOrderedDict\n)RtR.");
    zip_entry(&zip, "archive/data.pkl", 0, pickle.data, pickle.used);
    zip_entry(&zip, "archive/data/0", 0, data, count * sizeof(float));
    zip_entry(&zip, "archive/version", 0, "3\n", 2);
    zip_end(&zip);
    ck_assert_int_eq(sl_buf_append(file, zip.file.data, zip.file.used, NULL), 0);
    sl_buf_release(&zip.file);
    sl_buf_release(&zip.directory);
    sl_buf_release(&pickle);
}

/* ---- .metadata ------------------------------------------------------------------------------- */

static void add_tensor(struct sl_buf *out, const struct dcp_made *made)
{
    begin_object(out, CHECKPOINT "metadata", "TensorStorageMetadata");
    add_text(out, "properties");
    ck_assert_int_eq(sl_buf_printf(out, NULL,
                                   "c" CHECKPOINT "metadata\nTensorProperties\n)\x81(ctorch\n%s\n"
                                   "ctorch.serialization\n_get_layout\n",
                                   either(made->dtype, "float32")),
                     0);
    add_text(out, either(made->layout, "torch.strided"));
    add(out, "\x85R\x89"
             "c" CHECKPOINT "metadata\n_MEM_FORMAT_ENCODING\nL0L\n\x85R\x89tb");
    add_text(out, "size");
    add_size(out, made->shape);
    add_text(out, "chunks");
    add(out, "](");
    for (unsigned i = 0; i < CHUNKS_MAX && made->chunks[i].size; i++) {
        begin_object(out, CHECKPOINT "metadata", "ChunkStorageMetadata");
        add_text(out, "offsets");
        add_size(out, made->chunks[i].at);
        add_text(out, "sizes");
        add_size(out, made->chunks[i].size);
        end_object(out);
    }
    add(out, "e");
    end_object(out);
}

static void add_place(struct sl_buf *out, const struct dcp_made_chunk *chunk, size_t begin,
                      size_t end)
{
    char offset[24], length[24];
    snprintf(offset, sizeof(offset), "%zu", begin);
    snprintf(length, sizeof(length), "%zu", end - begin);
    begin_object(out, CHECKPOINT "metadata", "MetadataIndex");
    add_text(out, "fqn");
    add_text(out, "t");
    add_text(out, "offset");
    add_size(out, chunk->at);
    add_text(out, "index");
    add(out, "N");
    end_object(out);
    begin_object(out, CHECKPOINT "filesystem", "_StorageInfo");
    add_text(out, "relative_path");
    add_text(out, either(chunk->path, "__0_0.distcp"));
    add_text(out, "offset");
    add_number(out, either(chunk->offset, offset));
    add_text(out, "length");
    add_number(out, either(chunk->length, length));
    if (chunk->extension) {
        add_text(out, "transform_descriptors");
        add(out, "](");
        add_text(out, chunk->extension);
        add(out, "e");
    }
    end_object(out);
}

void dcp_make(const struct dcp_made *made, struct sl_buf *metadata, struct sl_buf *file)
{
    size_t ends[CHUNKS_MAX + 1] = {0};
    const char *opcodes = either(made->opcodes, "N");
    for (unsigned i = 0; i < CHUNKS_MAX && made->chunks[i].size; i++) {
        if (product(either(made->chunks[i].stored, made->chunks[i].size)) <= ELEMENTS_MAX)
            add_archive(file, &made->chunks[i]);
        ends[i + 1] = file->used;
    }
    ck_assert_int_eq(sl_buf_append(metadata, "\x80\2", 2, NULL), 0);
    begin_object(metadata, CHECKPOINT "metadata", "Metadata");
    add_text(metadata, "state_dict_metadata");
    add(metadata, "}(");
    add_text(metadata, "t");
    add_tensor(metadata, made);
    add_text(metadata, "step");
    add(metadata, "c" CHECKPOINT "metadata\nBytesStorageMetadata\n)\x81u");
    add_text(metadata, "planner_data");
    ck_assert_int_eq(sl_buf_append(metadata, opcodes,
                                   made->opcode_bytes ? made->opcode_bytes : strlen(opcodes), NULL),
                     0);
    add_text(metadata, "storage_data");
    add(metadata, "}(");
    for (unsigned i = 0; i < CHUNKS_MAX && made->chunks[i].size; i++)
        if (!made->chunks[i].lost)
            add_place(metadata, &made->chunks[i], ends[i], ends[i + 1]);
    add(metadata, "u");
    end_object(metadata);
    add(metadata, ".");
}
