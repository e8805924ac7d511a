/*
 * safetensors: eight bytes of length, a JSON header, the data. Rules and codes follow the
 * specification section by section and the Rust library in the order of its checks: length, UTF-8
 * and JSON (safetensors_header.c), offsets and sizes (safetensors_check.c).
 *
 * An object opened with SL_INDEX_HEAD_BYTES needs no second request unless its header is larger.
 * Nothing is allocated before the header's length is known to fit the object.
 */
#include "safetensors.h"

#include <inttypes.h>

#include "buf.h"
#include "format.h"

enum { LENGTH_BYTES = 8 };

/* A header's length that an existing object could have, then an object, white space allowed. */
static bool probe(const struct sl_format_head *head)
{
    if (head->bytes <= LENGTH_BYTES || sl_get_le64(head->data) > UINT64_C(1) << 40)
        return false;
    for (size_t i = LENGTH_BYTES; i < head->bytes; i++) {
        uint8_t c = head->data[i];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return c == '{';
    }
    return false;
}

static int read_length(struct sl_source *source, uint64_t *json_bytes, struct sl_err *err)
{
    uint8_t head[LENGTH_BYTES];
    uint64_t object_bytes = sl_source_bytes(source);
    if (object_bytes < LENGTH_BYTES) {
        char text[32];
        return sl_fail_code(err, SL_E_FORMAT, "st.too-small",
                            "too small for a header (%s): the file is cut off",
                            sl_human_bytes(object_bytes, text));
    }
    if (sl_source_read(source, 0, head, sizeof(head), err) < 0)
        return -1;
    *json_bytes = sl_get_le64(head);
    if (*json_bytes > SL_SAFETENSORS_JSON_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "st.header-too-large",
                            "a header of %" PRIu64 " bytes, limit %d: this is an error page, a "
                            "git-lfs pointer or another format",
                            *json_bytes, SL_SAFETENSORS_JSON_BYTES_MAX);
    if (*json_bytes > object_bytes - LENGTH_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "st.header-length",
                            "a header of %" PRIu64 " bytes in an object of %" PRIu64
                            ": the file is cut off",
                            *json_bytes, object_bytes);
    return 0;
}

static int read_index(struct sl_index *index, struct sl_err *err)
{
    struct sl_source *source = index->sources[0];
    uint64_t json_bytes = 0;
    if (read_length(source, &json_bytes, err) < 0)
        return -1;
    sl_autofree char *json = sl_format_read(source, LENGTH_BYTES, json_bytes, err);
    if (!json || sl_index_keep(index, json, err) < 0)
        return -1;
    char *kept = sl_steal(&json);
    if (sl_safetensors_parse(index, kept, json_bytes, err) < 0)
        return -1;
    return sl_safetensors_check(index, LENGTH_BYTES + json_bytes, sl_source_bytes(source), err);
}

static int open_index(struct sl_source *source, bool files, struct sl_index **out,
                      struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_safetensors_format.name, source, err);
    if (!index)
        return -1;
    index->files = files;
    if (read_index(index, err) < 0)
        return sl_wrap(err, "cannot read '%s' as safetensors", sl_source_uri(index->sources[0]));
    *out = sl_steal(&index);
    return 0;
}

/* Index one file; the source is consumed, also on failure. */
static int safetensors_index(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, false, out, err);
}

static int index_files(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, true, out, err);
}

const struct sl_format sl_safetensors_format = {
    .name = "safetensors",
    .suffixes = {".safetensors"},
    .index_suffix = ".safetensors.index.json",
    .probe = probe,
    .index = safetensors_index,
    .index_files = index_files,
};
