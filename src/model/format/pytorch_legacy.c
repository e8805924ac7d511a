/*
 * Before 1.6, torch.save wrote five pickles (magic, version, byte order, object, keys of storages)
 * and then each storage: its count of elements, its bytes. Where the pickles end is not written
 * down, so they are read from the object's head, which is doubled until it holds them. All places
 * follow from the persistent ids; each count is read and must agree.
 */
#include <inttypes.h>
#include <string.h>

#include "buf.h"
#include "format.h"
#include "gather.h"
#include "lower_bound.h"
#include "names.h"
#include "pytorch.h"

enum { COUNT_BYTES = 8, PROTOCOL = 1001 };
/* 0x1950a86a20f9469cfc6c */
static const uint8_t magic[10] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

/* The pickles as they were read, and what follows them. */
struct stream {
    struct sl_pytorch *torch;
    const uint8_t *data;
    size_t bytes, at;
    unsigned number; /* of the pickle that is read, from 1 */
    struct sl_pickle_node *object, *keys;
};

static struct sl_pickle_node *next(struct stream *stream, struct sl_err *err)
{
    static const char *const names[] = {"magic number", "version", "byte order", "object",
                                        "list of storages"};
    size_t used = 0;
    struct sl_pickle_node *node = sl_pickle_read(stream->torch->pickle, stream->data + stream->at,
                                                 stream->bytes - stream->at, &used, err);
    stream->at += used;
    if (!node)
        sl_wrap(err, "%s, from byte %zu of the file on",
                names[SL_MIN(stream->number, (unsigned)SL_COUNT(names) - 1)], stream->at);
    stream->number++;
    return node;
}

static bool is_magic(const struct sl_pickle_node *node)
{
    if (node->kind != SL_PICKLE_INT || !node->wide || node->bytes < sizeof(magic) ||
        memcmp(node->text, magic, sizeof(magic)) != 0)
        return false;
    for (size_t i = sizeof(magic); i < node->bytes; i++)
        if (node->text[i] != 0)
            return false;
    return true;
}

static int bad_magic(struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "lg.magic",
                        "a pickle, but not one of torch.save: its magic number is missing");
}

/* Magic, version, byte order. */
static int read_start(struct stream *stream, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_pickle_node *node = next(stream, &why);
    if (!node && (why.kind != SL_E_FORMAT || strcmp(why.code, "pkl.truncated") == 0)) {
        if (err)
            *err = why;
        return -1;
    }
    if (!node || !is_magic(node))
        return bad_magic(err);
    node = next(stream, err);
    if (!node)
        return -1;
    if (node->kind != SL_PICKLE_INT || node->wide || node->number != PROTOCOL)
        return sl_fail_code(err, SL_E_FORMAT, "pt.version", "a legacy stream of another version");
    node = next(stream, err);
    if (!node)
        return -1;
    if (node->kind != SL_PICKLE_DICT)
        return sl_fail_code(err, SL_E_FORMAT, "pt.byteorder", "the byte order is not given");
    for (size_t i = 0; i < node->count; i += 2)
        if (sl_pickle_is_text(node->items[i], "little_endian"))
            stream->torch->big_endian =
                node->items[i + 1]->kind == SL_PICKLE_BOOL && node->items[i + 1]->number == 0;
    return 0;
}

static int read_pickles(struct stream *stream, struct sl_err *err)
{
    if (read_start(stream, err) < 0)
        return -1;
    stream->object = next(stream, err);
    stream->keys = stream->object ? next(stream, err) : NULL;
    if (!stream->keys)
        return -1;
    if (stream->keys->kind != SL_PICKLE_LIST)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.type",
                            "what ends before byte %zu of the file is not a list of storages",
                            stream->at);
    return 0;
}

/* ---- storages -------------------------------------------------------------------------------- */

static size_t find_storage(const struct sl_pytorch *torch, const struct sl_pickle_node *key)
{
    size_t at = SL_LOWER_BOUND(i, torch->storage_count,
                               strncmp(torch->storages[i]->key, key->text, key->bytes) < 0);
    bool found = at < torch->storage_count && strlen(torch->storages[at]->key) == key->bytes &&
                 memcmp(torch->storages[at]->key, key->text, key->bytes) == 0;
    return found ? at : SIZE_MAX;
}

static int truncated(uint64_t have, const char *what, uint64_t at, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "lg.truncated",
                        "storage '%s', which begins at byte %" PRIu64
                        ", and those behind it do not fit the %" PRIu64
                        " bytes of the file: it is cut off, store it again",
                        what, at, have);
}

static int bad_key(const struct sl_pickle_node *key, size_t item, bool unknown, struct sl_err *err)
{
    bool text = key->kind == SL_PICKLE_TEXT;
    return sl_fail_code(err, SL_E_FORMAT, "lg.storage-size",
                        "item %zu of the list of storages, '%.*s', %s: do not use the file", item,
                        text ? sl_names_shown(key->text, key->bytes) : 1, text ? key->text : "?",
                        unknown ? "is the key of no tensor's storage" : "is there twice");
}

/* Place one storage of the list at `at`, for all that share it. */
static int place_storage(struct sl_pytorch *torch, const struct sl_pickle_node *key, size_t item,
                         uint64_t have, uint64_t *at, struct sl_pytorch_storage **out,
                         struct sl_err *err)
{
    bool text = key->kind == SL_PICKLE_TEXT && key->bytes &&
                key->bytes <= SL_PYTORCH_KEY_BYTES_MAX && !memchr(key->text, 0, key->bytes);
    size_t number = text ? find_storage(torch, key) : SIZE_MAX;
    if (number == SIZE_MAX || torch->storages[number]->begin)
        return bad_key(key, item, number == SIZE_MAX, err);
    struct sl_pytorch_storage *storage = torch->storages[number];
    uint64_t bytes = sl_pytorch_storage_bytes(storage);
    if (have - *at < COUNT_BYTES || have - *at - COUNT_BYTES < bytes)
        return truncated(have, storage->key, *at, err);
    for (size_t i = number;
         i < torch->storage_count && strcmp(torch->storages[i]->key, storage->key) == 0; i++)
        torch->storages[i]->begin = *at + COUNT_BYTES;
    *at += COUNT_BYTES + bytes;
    *out = storage;
    return 0;
}

static int check_counts(struct sl_source *source, struct sl_pytorch_storage *const *placed,
                        size_t count, struct sl_err *err)
{
    sl_autofree struct sl_gather_item *items = sl_alloc_array(count, sizeof(*items), err);
    sl_autofree uint8_t *data = items ? sl_alloc_array(count, COUNT_BYTES, err) : NULL;
    if (!data)
        return -1;
    for (size_t i = 0; i < count; i++)
        items[i] = (struct sl_gather_item){placed[i]->begin - COUNT_BYTES, placed[i]->begin,
                                           data + i * COUNT_BYTES};
    if (count && sl_gather(source, items, count, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t elements = sl_get_le64(data + i * COUNT_BYTES);
        if (elements != placed[i]->count)
            return sl_fail_code(err, SL_E_FORMAT, "lg.storage-size",
                                "storage '%s' says it has %" PRIu64
                                " elements, its tensors %" PRIu64,
                                placed[i]->key, elements, placed[i]->count);
    }
    return 0;
}

static int place_storages(struct stream *stream, struct sl_source *source, struct sl_err *err)
{
    struct sl_pytorch *torch = stream->torch;
    uint64_t at = stream->at, have = sl_source_bytes(source);
    size_t count = stream->keys->count;
    if (sl_pytorch_storages(torch, err) < 0)
        return -1;
    sl_autofree struct sl_pytorch_storage **placed = sl_alloc_array(count, sizeof(*placed), err);
    if (!placed)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (place_storage(torch, stream->keys->items[i], i, have, &at, &placed[i], err) < 0)
            return -1;
    for (size_t i = 0; i < torch->storage_count; i++)
        if (!torch->storages[i]->begin)
            return sl_fail_code(err, SL_E_FORMAT, "pt.storage-missing",
                                "storage '%s' is not in the list of storages",
                                torch->storages[i]->key);
    if (at != have)
        return sl_fail_code(err, SL_E_FORMAT, "zip.trailing",
                            "%" PRIu64 " bytes follow the last storage", have - at);
    return check_counts(source, placed, count, err);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Values of an earlier, shorter head are dropped. */
static int restart(struct sl_pytorch *torch, const struct sl_pickle_rules *rules,
                   struct sl_err *err)
{
    sl_pytorch_release(torch);
    torch->storage_count = torch->storage_capacity = 0;
    torch->pickle = sl_pickle_new(rules, err);
    return torch->pickle ? 0 : -1;
}

static int finish(struct stream *stream, struct sl_source *source, struct sl_err *err)
{
    if (place_storages(stream, source, err) < 0)
        return -1;
    return sl_pytorch_tensors(stream->torch, stream->object, err);
}

int sl_pytorch_legacy(struct sl_pytorch *torch, struct sl_err *err)
{
    struct sl_source *source = torch->index->sources[0];
    struct sl_pickle_rules rules = sl_pytorch_rules;
    uint64_t most = SL_MIN(sl_source_bytes(source), (uint64_t)SL_PYTORCH_PICKLE_BYTES_MAX);
    rules.arg = torch;
    torch->legacy = true;
    for (uint64_t bytes = SL_MIN(most, (uint64_t)SL_INDEX_HEAD_BYTES);;
         bytes = SL_MIN(bytes * 4, most)) {
        struct sl_err why = SL_ERR_INIT;
        sl_autofree char *head = sl_format_read(source, 0, bytes, err);
        if (!head || restart(torch, &rules, err) < 0)
            return -1;
        struct stream stream = {.torch = torch, .data = (uint8_t *)head, .bytes = bytes};
        int result = read_pickles(&stream, &why);
        if (result == 0)
            result = finish(&stream, source, &why);
        bool more = result < 0 && strcmp(why.code, "pkl.truncated") == 0;
        if (more && bytes < most)
            continue;
        if (more && bytes == sl_source_bytes(source))
            return sl_fail_code(
                err, SL_E_FORMAT, "lg.truncated",
                "the file ends at byte %" PRIu64
                ", inside the pickles before its storages: it is cut off, store it again",
                bytes);
        if (result < 0 && err)
            *err = why;
        return result;
    }
}
