/*
 * The format is found from the first bytes, because names lie: each row of formats.def is asked in
 * turn. Only an object too short or too broken to be recognised is given to the format that its
 * name suggests, and only if the caller wants a reason for the refusal instead of "unknown".
 */
#include "format.h"

#include <string.h>

#include "log.h"
#include "weights.h"

static const struct sl_format *const formats[] = {
#define SL_FORMAT(name, help) &sl_##name##_format,
#include "formats.def"
#undef SL_FORMAT
};

const struct sl_format *sl_format_by_name(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

int sl_format_read_head(struct sl_source *source, uint8_t data[SL_FORMAT_PROBE_BYTES],
                        struct sl_format_head *head, struct sl_err *err)
{
    *head = (struct sl_format_head){
        .data = data,
        .bytes = SL_MIN(sl_source_bytes(source), (uint64_t)SL_FORMAT_PROBE_BYTES),
        .object_bytes = sl_source_bytes(source),
        .name = sl_source_name(source)};
    return head->bytes > 0 ? sl_source_read(source, 0, data, head->bytes, err) : 0;
}

const struct sl_format *sl_format_recognise(struct sl_source *source, struct sl_err *err)
{
    uint8_t data[SL_FORMAT_PROBE_BYTES];
    struct sl_format_head head;
    if (sl_format_read_head(source, data, &head, err) < 0)
        return NULL;
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (formats[i]->probe(&head))
            return formats[i];
    return NULL;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const struct sl_format *by_suffix(const char *name, size_t *suffix_bytes)
{
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        for (const char *const *suffix = formats[i]->suffixes; *suffix; suffix++)
            if (sl_format_has_suffix(name, *suffix)) {
                *suffix_bytes = strlen(*suffix);
                return formats[i];
            }
    return NULL;
}

const struct sl_format *sl_format_of_index(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (sl_format_index_ending(formats[i], name))
            return formats[i];
    return NULL;
}

const struct sl_format *sl_format_of_name(const char *name, size_t *stem_bytes)
{
    const char *slash = strrchr(name, '/'), *dot = strrchr(name, '.');
    const struct sl_format *format = sl_format_of_index(name);
    size_t suffix_bytes = 0;
    if (format)
        suffix_bytes = sl_format_index_ending(format, name);
    else if (!(format = by_suffix(name, &suffix_bytes)) && dot && (!slash || dot > slash + 1))
        suffix_bytes = strlen(dot);
    if (stem_bytes)
        *stem_bytes = strlen(name) - suffix_bytes;
    return format == &sl_shard_index_format ? NULL : format;
}

static bool is_state(const struct sl_format *format, const char *file)
{
    for (const char *const *state = format->states; *state; state++)
        if (strncmp(file, *state, strlen(*state)) == 0)
            return true;
    return false;
}

enum sl_format_says sl_format_name_says(const char *name)
{
    const struct sl_format *format = sl_format_of_name(name, NULL);
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    if (!format)
        return SL_SAYS_NOTHING;
    if (sl_format_of_index(name))
        return SL_SAYS_INDEX;
    if (!format->ambiguous)
        return SL_SAYS_MODEL;
    if (is_state(format, file))
        return SL_SAYS_STATE;
    bool is_ambiguous =
        format->ambiguous_suffix && sl_format_has_suffix(file, format->ambiguous_suffix);
    return is_ambiguous && !strstr(file, format->hint) ? SL_SAYS_PERHAPS : SL_SAYS_LIKELY;
}

/* ---- indexing -------------------------------------------------------------------------------- */

/* What no format knows may still be none of anybody's weights. */
static int judge_unknown(struct sl_source *source, struct sl_err *err)
{
    uint8_t data[SL_FORMAT_PROBE_BYTES];
    struct sl_format_head head;
    if (!sl_weights_named(sl_source_name(source)))
        return 0;
    if (sl_format_read_head(source, data, &head, err) < 0 || sl_weights_judge(&head, err) < 0)
        return sl_wrap(err, "cannot take '%s' as weights", sl_source_uri(source));
    return 0;
}

int sl_format_index(struct sl_source *source, struct sl_index **index, struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    struct sl_err failure = SL_ERR_INIT;
    *index = NULL;
    const struct sl_format *format = sl_format_recognise(source, &failure);
    if (format)
        return format->index(sl_steal(&held), index, err);
    if (failure.kind == SL_OK)
        return judge_unknown(source, err);
    if (err)
        *err = failure;
    return -1;
}

static int index_parts(const struct sl_format *format, struct sl_source *source,
                       struct sl_index **index, struct sl_err *err)
{
    if (format->parts(source, index, err) < 0)
        return -1;
    if ((*index)->tensor_count == 0)
        sl_index_free(sl_steal(index));
    return 0;
}

static int index_whole(const struct sl_format *format, struct sl_source *source,
                       struct sl_index **index, struct sl_err *err)
{
    if (format->index_files)
        return format->index_files(source, index, err);
    return format->tensors_only ? index_parts(format, source, index, err)
                                : format->index(source, index, err);
}

static bool is_unread(const struct sl_format *format, const char *code)
{
    for (const char *const *unread = format->unread; *unread; unread++)
        if (strcmp(*unread, code) == 0)
            return true;
    return false;
}

static void warn_unread(const char *uri, const char *why)
{
    sl_log(SL_LOG_WARN, "'%s' is taken as it is, and its tensors are not offered: %s", uri, why);
}

static const struct sl_format *by_name_of_model(const char *name)
{
    return name && sl_format_name_says(name) == SL_SAYS_MODEL ? by_suffix(name, &(size_t){0})
                                                              : NULL;
}

int sl_format_index_files(struct sl_source *source, const char *name, struct sl_index **index,
                          struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    struct sl_err why = SL_ERR_INIT;
    *index = NULL;
    sl_autofree char *uri = sl_strdup(sl_source_uri(source), err);
    if (!uri)
        return -1;
    const struct sl_format *format = sl_format_recognise(source, &why);
    if (!format && why.kind == SL_OK) {
        if (judge_unknown(source, err) < 0)
            return -1;
        format = by_name_of_model(name);
        if (!format)
            return 0;
    }
    if (format && index_whole(format, sl_steal(&held), index, &why) == 0) {
        if (*index && (*index)->unread)
            warn_unread(uri, (*index)->unread);
        return 0;
    }
    if (format && why.kind == SL_E_FORMAT && is_unread(format, why.code)) {
        warn_unread(uri, why.message);
        return 0;
    }
    if (err)
        *err = why;
    return -1;
}

static int index_strictly(bool outline, struct sl_source *source, const char *name_hint,
                          struct sl_index **index, struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    struct sl_err failure = SL_ERR_INIT;
    *index = NULL;
    const struct sl_format *format = sl_format_recognise(source, &failure);
    if (!format && failure.kind != SL_OK) {
        if (err)
            *err = failure;
        return -1;
    }
    if (!format && name_hint)
        format = by_suffix(name_hint, &(size_t){0});
    sl_autofree char *uri = sl_strdup(sl_source_uri(source), err);
    if (!uri)
        return -1;
    outline = outline && format && format->outline;
    if (format && (outline ? format->outline : format->index)(sl_steal(&held), index, err) < 0)
        return -1;
    if (!*index)
        return sl_fail_code(err, SL_E_FORMAT, "E_UNKNOWN",
                            "'%s' is not a file whose tensors sluice can read ('sluice docs "
                            "formats' lists formats)",
                            uri);
    return 0;
}

int sl_format_index_strict(struct sl_source *source, const char *name_hint, struct sl_index **index,
                           struct sl_err *err)
{
    return index_strictly(false, source, name_hint, index, err);
}

int sl_format_outline(struct sl_source *source, const char *name_hint, struct sl_index **index,
                      struct sl_err *err)
{
    return index_strictly(true, source, name_hint, index, err);
}

/* ---- sets ------------------------------------------------------------------------------------ */

char *sl_format_part_name(const struct sl_index *index, uint32_t number, struct sl_err *err)
{
    const struct sl_format *format = sl_format_by_name(index->format);
    if (format && format->part_name)
        return format->part_name(index, number, err);
    sl_fail(err, SL_E_FORMAT, "'%s' is not part of a set", index->source_names[0]);
    return NULL;
}

int sl_format_check_sets(const struct sl_index *const *indexes, size_t count, struct sl_err *err)
{
    sl_autofree const struct sl_index **parts = sl_alloc_array(count, sizeof(*parts), err);
    if (!parts)
        return -1;
    for (size_t i = 0; i < SL_COUNT(formats); i++) {
        size_t part_count = 0;
        for (size_t k = 0; k < count; k++)
            if (indexes[k]->part.count > 0 && strcmp(indexes[k]->format, formats[i]->name) == 0)
                parts[part_count++] = indexes[k];
        if (part_count > 0 && formats[i]->check_sets &&
            formats[i]->check_sets(parts, part_count, err) < 0)
            return -1;
    }
    return 0;
}
