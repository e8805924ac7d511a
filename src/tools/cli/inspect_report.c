/*
 * Two ways to show an index: JSON with everything, exactly, and a table for people. Names come from
 * files and may hold anything, so the table replaces control characters: no file may paint on a
 * terminal.
 */
#include "inspect_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unsafe_text.h"

enum { NAME_WIDTH_MAX = 72, SHAPE_TEXT_BYTES = 256, SHOWN_METADATA_BYTES = 200 };

void sl_inspect_report_release(struct sl_inspect_report *report)
{
    sl_index_free(report->index);
    free(report->digests);
    free(report->slices);
    memset(report, 0, sizeof(*report));
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_sizes(struct sl_json *json, const char *key, const uint64_t *sizes, unsigned count)
{
    sl_json_key(json, key);
    sl_json_array(json);
    for (unsigned i = 0; i < count; i++)
        sl_json_uint(json, sizes[i]);
    sl_json_end(json);
}

static void json_name(struct sl_json *json, const struct sl_tensor *tensor)
{
    sl_json_key(json, "name");
    sl_json_string_n(json, tensor->name, tensor->name_bytes);
}

static void json_sha256(struct sl_json *json, const uint8_t digest[32])
{
    char hex[65];
    sl_hex(digest, 32, hex);
    sl_json_key_string(json, "sha256", hex);
}

static void json_tensor(struct sl_json *json, const struct sl_tensor *tensor, const uint8_t *digest)
{
    sl_json_object(json);
    json_name(json, tensor);
    sl_json_key(json, "path");
    sl_json_array(json);
    for (unsigned i = 0; i < tensor->path_count; i++) {
        const struct sl_path_part *part = &tensor->path[i];
        if (part->text)
            sl_json_string_n(json, part->text, part->text_bytes);
        else
            sl_json_uint(json, part->number);
    }
    sl_json_end(json);
    sl_json_key_string(json, "dtype", tensor->dtype_name);
    json_sizes(json, "shape", tensor->shape, tensor->rank);
    sl_json_key_uint(json, "bytes", tensor->bytes);
    if (tensor->meta)
        sl_json_key_bool(json, "meta", true);
    if (digest && tensor->meta && !tensor->refused) {
        sl_json_key(json, "sha256");
        sl_json_null(json);
    } else if (digest && !tensor->refused) {
        json_sha256(json, digest);
    }
    if (tensor->refused) {
        sl_json_key(json, "error");
        sl_json_object(json);
        sl_json_key_string(json, "kind", sl_err_row((enum sl_err_kind)tensor->refused)->name);
        sl_json_key_string(json, "code", tensor->refused_code);
        sl_json_key_string(json, "message", tensor->refused_why);
        sl_json_end(json);
    }
    sl_json_end(json);
}

static void json_slice(struct sl_json *json, const struct sl_inspect_slice *slice)
{
    const struct sl_tensor *tensor = slice->tensor;
    uint64_t shape[SL_SLICE_RANK_MAX];
    for (unsigned i = 0; i < tensor->rank; i++)
        shape[i] = slice->slice.end[i] - slice->slice.begin[i];
    sl_json_object(json);
    json_name(json, tensor);
    sl_json_key(json, "slice");
    sl_json_array(json);
    for (unsigned i = 0; i < tensor->rank; i++) {
        sl_json_array(json);
        sl_json_uint(json, slice->slice.begin[i]);
        sl_json_uint(json, slice->slice.end[i]);
        sl_json_end(json);
    }
    sl_json_end(json);
    json_sizes(json, "shape", shape, tensor->rank);
    json_sha256(json, slice->sha256);
    sl_json_end(json);
}

static void json_lists(struct sl_json *json, const struct sl_inspect_report *report)
{
    const struct sl_index *index = report->index;
    sl_json_key(json, "tensors");
    sl_json_array(json);
    for (size_t i = 0; i < index->tensor_count; i++)
        json_tensor(json, &index->tensors[i], report->digests ? report->digests[i] : NULL);
    sl_json_end(json);
    if (report->slice_count > 0) {
        sl_json_key(json, "slices");
        sl_json_array(json);
        for (size_t i = 0; i < report->slice_count; i++)
            json_slice(json, &report->slices[i]);
        sl_json_end(json);
    }
    if (index->metadata_count > 0) {
        sl_json_key(json, "metadata");
        sl_json_object(json);
        for (size_t i = 0; i < index->metadata_count; i++)
            sl_json_key_string(json, index->metadata[i].key, index->metadata[i].value);
        sl_json_end(json);
    }
}

void sl_inspect_report_json(struct sl_json *json, const struct sl_inspect_report *report)
{
    const struct sl_index *index = report->index;
    uint64_t object_bytes, requests, bytes;
    sl_index_counts(index, &object_bytes, &requests, &bytes);
    sl_json_object(json);
    sl_json_key_uri(json, "uri", sl_source_uri(index->sources[0]));
    sl_json_key_string(json, "format", index->format);
    sl_json_key_uint(json, "format_version", index->format_version);
    sl_json_key_bool(json, "encrypted", index->encrypted);
    if (index->outline)
        sl_json_key_bool(json, "outline", true);
    sl_json_key_uint(json, "object_bytes", object_bytes);
    sl_json_key_uint(json, "read_requests", requests);
    sl_json_key_uint(json, "read_bytes", bytes);
    json_lists(json, report);
    sl_json_end(json);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Text of a file, at most `width` characters wide, padded to it; control characters become '?'. */
static void print_sanitized(const char *text, size_t bytes, size_t width)
{
    size_t shown = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool begins = (c & 0xc0) != 0x80; /* of a character in UTF-8 */
        if (begins && shown == width)
            break;
        shown += begins;
        size_t unsafe = sl_unsafe_at(text, i, bytes);
        putchar(unsafe ? '?' : c);
        i += unsafe ? unsafe - 1 : 0;
    }
    for (; shown < width; shown++)
        putchar(' ');
}

static size_t characters(const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* A text without padding, cut at `limit` characters. */
static void print_whole(const char *text, size_t limit)
{
    size_t bytes = strlen(text);
    print_sanitized(text, bytes, SL_MIN(characters(text, bytes), limit));
}

void sl_print_sanitized(const char *text)
{
    print_whole(text, SIZE_MAX);
}

/* "[4096, 4096]", cut if it is very long. */
static const char *shape_text(const struct sl_tensor *tensor, char text[SHAPE_TEXT_BYTES])
{
    size_t used = 0;
    text[used++] = '[';
    for (unsigned i = 0; i < tensor->rank; i++) {
        if (used > SHAPE_TEXT_BYTES - 40) {
            used += (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, ", …");
            break;
        }
        used += (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, "%s%" PRIu64, i ? ", " : "",
                                 tensor->shape[i]);
    }
    text[used++] = ']';
    text[used] = 0;
    return text;
}

static void print_head(const struct sl_index *index, uint64_t tensor_bytes)
{
    uint64_t object_bytes, requests, bytes;
    char size[32], read[32], total[32], version[32] = "", objects[40], tensors[40], asked[40];
    sl_index_counts(index, &object_bytes, &requests, &bytes);
    if (index->format_version)
        snprintf(version, sizeof(version), " version %u", index->format_version);
    print_whole(sl_source_uri(index->sources[0]), SIZE_MAX);
    printf("\n%s%s%s, %s in %s; %s of %s; read %s in %s\n", index->format, version,
           index->encrypted ? ", encrypted" : "", sl_human_bytes(object_bytes, size),
           sl_human_count(index->source_count, "object", objects),
           sl_human_count(index->tensor_count, "tensor", tensors),
           sl_human_bytes(tensor_bytes, total), sl_human_bytes(bytes, read),
           sl_human_count(requests, "request", asked));
    if (index->encrypted && index->tensor_count > 0 && index->tensors[0].refused)
        printf("its tensors can be read with a key only\n");
    if (index->outline)
        printf("the headers before each tensor were not read: --digest checks them and the data\n");
    for (size_t i = 0; i < index->metadata_count; i++) {
        printf("  ");
        print_whole(index->metadata[i].key, NAME_WIDTH_MAX);
        printf(": ");
        print_whole(index->metadata[i].value, SHOWN_METADATA_BYTES);
        printf("\n");
    }
}

static void print_tensor(const struct sl_inspect_report *report, size_t number, size_t name_width,
                         int shape_width)
{
    const struct sl_tensor *tensor = &report->index->tensors[number];
    char shape[SHAPE_TEXT_BYTES], size[32], hex[65];
    print_sanitized(tensor->name, tensor->name_bytes, name_width);
    printf("  %-11s %-*s %12s", tensor->dtype_name, shape_width, shape_text(tensor, shape),
           sl_human_bytes(tensor->bytes, size));
    if (tensor->refused && !report->index->encrypted) {
        printf("  %s: %s", tensor->refused_code, tensor->refused_why);
    } else if (tensor->meta) {
        printf("  meta: no data, read as zeros");
    } else if (report->digests && !tensor->refused) {
        sl_hex(report->digests[number], 32, hex);
        printf("  %s", hex);
    }
    printf("\n");
}

void sl_inspect_report_print(const struct sl_inspect_report *report)
{
    const struct sl_index *index = report->index;
    char shape[SHAPE_TEXT_BYTES], hex[65];
    uint64_t tensor_bytes = 0;
    size_t name_width = 4;
    int shape_width = 5;
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct sl_tensor *tensor = &index->tensors[i];
        tensor_bytes += tensor->bytes;
        name_width = SL_MAX(name_width, characters(tensor->name, tensor->name_bytes));
        shape_width = SL_MAX(shape_width, (int)strlen(shape_text(tensor, shape)));
    }
    name_width = SL_MIN(name_width, (size_t)NAME_WIDTH_MAX);
    print_head(index, tensor_bytes);
    printf("\n%-*s  %-11s %-*s %12s%s\n", (int)name_width, "NAME", "DTYPE", shape_width, "SHAPE",
           "SIZE", report->digests ? "  SHA-256" : "");
    for (size_t i = 0; i < index->tensor_count; i++)
        print_tensor(report, i, name_width, shape_width);
    for (size_t i = 0; i < report->slice_count; i++) {
        sl_hex(report->slices[i].sha256, 32, hex);
        printf("%s%s  %s\n", i ? "" : "\n", hex, report->slices[i].text);
    }
}
