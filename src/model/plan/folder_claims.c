/*
 * What one object says of the others in its folder: an index of shards, diffusers'
 * model_index.json, the .metadata of torch's distributed checkpoints. They are read while objects
 * are opened, and cost one request each.
 */
#include "folder_claims.h"

#include <inttypes.h>
#include <string.h>

#include "format.h"
#include "json_pull.h"
#include "log.h"

enum {
    FILES_MAX = 100000,
    NAMES_TEXT_BYTES_MAX = 64 * 1024 * 1024, /* of .metadata */
    COMPONENTS_TEXT_BYTES_MAX = 1024 * 1024, /* of model_index.json */
};

/* ---- names ----------------------------------------------------------------------------------- */

/* "model.safetensors.index.json", "model.safetensors.index.fp16.json" */
static bool is_index_name(const char *base)
{
    const char *index = strstr(base, ".index.");
    return index && sl_format_has_suffix(base, ".json");
}

static enum sl_claim_kind kind_of(const char *name)
{
    const char *base = sl_base_name(name);
    if (strcmp(base, "model_index.json") == 0)
        return SL_CLAIM_FOLDERS;
    if (strcmp(base, ".metadata") == 0)
        return SL_CLAIM_FILES;
    return is_index_name(base) ? SL_CLAIM_SHARDS : SL_CLAIM_NONE;
}

bool sl_plan_claims(const char *name)
{
    return kind_of(name) != SL_CLAIM_NONE;
}

bool sl_plan_names_files(const char *name)
{
    return kind_of(name) == SL_CLAIM_SHARDS;
}

void sl_plan_claim_free(struct sl_plan_claim *claim)
{
    if (!claim)
        return;
    sl_shard_map_release(&claim->map);
    for (size_t i = 0; i < claim->name_count; i++)
        free(claim->names[i]);
    free(claim->names);
    free(claim->text);
    free(claim);
}

/* ---- what they say --------------------------------------------------------------------------- */

static int add_name(struct sl_plan_claim *claim, const char *name, size_t bytes, struct sl_err *err)
{
    if (sl_grow(&claim->names, &claim->name_capacity, claim->name_count + 1, sizeof(*claim->names),
                err) < 0)
        return -1;
    char *copy = sl_strndup(name, bytes, err);
    if (!copy)
        return -1;
    claim->names[claim->name_count++] = copy;
    return 0;
}

/* An array of two texts: the library and the class of a component. false: it is none. */
static bool take_component(struct sl_pull *pull, enum sl_pull_token token)
{
    unsigned texts = 0, others = 0;
    if (token != SL_PULL_ARRAY) {
        (void)sl_pull_skip(pull, token, NULL);
        return false;
    }
    while ((token = sl_pull_next(pull)) != SL_PULL_CLOSE) {
        texts += token == SL_PULL_STRING;
        others += token != SL_PULL_STRING;
        if (!sl_pull_skip(pull, token, NULL))
            return false;
    }
    return texts == 2 && others == 0;
}

/* {"_class_name": "…", "unet": ["diffusers", "UNet"], "safety_checker": [null, null], …} */
static int parse_folders(struct sl_plan_claim *claim, size_t bytes, struct sl_err *err)
{
    struct sl_pull pull;
    enum sl_pull_token token = SL_PULL_ERROR;
    sl_pull_init(&pull, claim->text, bytes);
    if (sl_is_utf8(claim->text, bytes) && sl_pull_next(&pull) == SL_PULL_OBJECT)
        while ((token = sl_pull_next(&pull)) == SL_PULL_KEY) {
            const char *key = pull.string;
            bool fine = *key && *key != '_' && *key != '.' && !strpbrk(key, "/\\") &&
                        strlen(key) == pull.string_bytes;
            if (take_component(&pull, sl_pull_next(&pull)) && fine &&
                add_name(claim, key, strlen(key), err) < 0)
                return -1;
        }
    if (token == SL_PULL_CLOSE && sl_pull_next(&pull) == SL_PULL_DONE)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "E_INCOMPLETE",
                        "it is not JSON (at byte %zu): it is cut off, store it again", pull.at);
}

/* How long the text of a pickle is that ends here, by the length in front of it: of one byte, or of
 * four. 0: there is none. */
static size_t text_before(const uint8_t *text, const uint8_t *end, size_t least)
{
    for (size_t bytes = least; bytes < 256 && bytes + 2 <= (size_t)(end - text); bytes++) {
        const uint8_t *begin = end - bytes;
        if (*begin < ' ')
            break;
        bool is_long = begin - text >= 5 && begin[-5] == 'X' && sl_get_le32(begin - 4) == bytes;
        if (is_long || (begin[-2] == 0x8c && begin[-1] == bytes))
            return bytes;
    }
    return 0;
}

static int parse_files(struct sl_plan_claim *claim, size_t bytes, struct sl_err *err)
{
    static const char suffix[] = ".distcp";
    const size_t tail = sizeof(suffix) - 1;
    const uint8_t *text = (const uint8_t *)claim->text, *end = text + bytes, *at = text;
    while ((at = memmem(at, (size_t)(end - at), suffix, tail))) {
        at += tail;
        size_t name = text_before(text, at, tail + 1);
        const char *last = claim->name_count ? claim->names[claim->name_count - 1] : "";
        bool again = strlen(last) == name && memcmp(last, at - name, name) == 0;
        if (name && !again && claim->name_count < FILES_MAX &&
            add_name(claim, (const char *)at - name, name, err) < 0)
            return -1;
    }
    return 0;
}

static int parse_shards(struct sl_plan_claim *claim, const char *name, size_t bytes,
                        struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_shard_map_parse(claim->text, bytes, &claim->map, &why) == 0) {
        claim->kind = claim->map.is_map ? SL_CLAIM_SHARDS : SL_CLAIM_NONE;
        return 0;
    }
    claim->kind = SL_CLAIM_NONE;
    if (why.kind == SL_E_FORMAT && !sl_format_of_index(name)) {
        sl_log(SL_LOG_DEBUG, "'%s' is not an index of shards: %s", name, why.message);
        return 0;
    }
    *err = why;
    return sl_wrap(err, "as an index of a model's files");
}

int sl_plan_read_claim(struct sl_candidate *candidate, struct sl_source *source, struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    enum sl_claim_kind kind = kind_of(candidate->name);
    uint64_t bytes = sl_source_bytes(source);
    uint64_t most = kind == SL_CLAIM_SHARDS    ? SL_SHARD_MAP_BYTES_MAX
                    : kind == SL_CLAIM_FOLDERS ? COMPONENTS_TEXT_BYTES_MAX
                                               : NAMES_TEXT_BYTES_MAX;
    if (bytes > most) {
        sl_log(SL_LOG_WARN,
               "'%s' has %" PRIu64 " bytes, limit %" PRIu64
               ": whether all is there that it names is not checked",
               candidate->name, bytes, most);
        return 0;
    }
    SL_AUTO(sl_plan_claim) claim = sl_alloc(sizeof(*claim), err);
    if (!claim || !(claim->text = sl_format_read(source, 0, bytes, err)))
        return -1;
    claim->kind = kind;
    int done = kind == SL_CLAIM_SHARDS    ? parse_shards(claim, candidate->name, bytes, err)
               : kind == SL_CLAIM_FOLDERS ? parse_folders(claim, bytes, err)
                                          : parse_files(claim, bytes, err);
    if (done == 0)
        candidate->claim = sl_steal(&claim);
    return done;
}
