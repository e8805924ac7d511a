/*
 * What of a published repository is loaded where the spec chooses nothing. Makers publish the same
 * weights for every framework; an engine reads one of them. Folder by folder safetensors are taken
 * before pickles, and both before what other frameworks read; a copy (original/, consolidated.*, a
 * variant beside the plain one) is none of its own. GGUF files of a repository are alternatives,
 * each a whole model, and nobody can guess which one is meant.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "plan_parts.h"

enum { NAMES_SHOWN = 5 };

enum weights { NONE, SAFETENSORS, PICKLE, GGUF, FOREIGN };

static bool matches(const char *const *patterns, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

static enum weights weights_of(const char *name)
{
    static const char *const pickles[] = {"*model*.bin",       "*model*.bin.index.json",
                                          "consolidated*.pt",  "consolidated*.pth",
                                          "pytorch_model*.pt", "pytorch_model*.pth"};
    static const char *const foreign[] = {
        "*.h5",        "*.h5.index.json", "*.msgpack", "*.msgpack.index.json", "*.ot", "*.onnx",
        "*.onnx_data", "*.tflite",        "*.mlmodel"};
    const char *base = sl_base_name(name);
    if (fnmatch("*.safetensors", base, 0) == 0)
        return SAFETENSORS;
    if (fnmatch("*.gguf", base, 0) == 0)
        return GGUF;
    if (matches(pickles, SL_COUNT(pickles), base))
        return PICKLE;
    return matches(foreign, SL_COUNT(foreign), base) ? FOREIGN : NONE;
}

/* Folders at the top that hold the same model once more. */
static bool is_copy_folder(const char *name)
{
    static const char *const folders[] = {"original/*", "onnx/*",  "openvino/*",
                                          "coreml/*",   "metal/*", "flax/*"};
    return matches(folders, SL_COUNT(folders), name);
}

/* ---- what is there --------------------------------------------------------------------------- */

/* Names, one or more of each folder that holds such files; sorted by folder. */
struct folders {
    const char **names;
    size_t count;
};

static int by_folder(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    size_t x_bytes = (size_t)(sl_base_name(x) - x), y_bytes = (size_t)(sl_base_name(y) - y);
    int order = memcmp(x, y, SL_MIN(x_bytes, y_bytes));
    return order ? order : (x_bytes > y_bytes) - (x_bytes < y_bytes);
}

static bool holds(const struct folders *folders, const char *name)
{
    return folders->count &&
           bsearch(&name, folders->names, folders->count, sizeof(name), by_folder) != NULL;
}

static bool is_safetensors(const char *name)
{
    return weights_of(name) == SAFETENSORS;
}

static bool is_pickle(const char *name)
{
    return weights_of(name) == PICKLE;
}

static bool is_plain_model(const char *name)
{
    return fnmatch("model*.safetensors", sl_base_name(name), 0) == 0;
}

static int find_folders(const struct sl_plan_own *own, bool (*wanted)(const char *name),
                        struct folders *folders, struct sl_err *err)
{
    folders->names = sl_alloc_array(own->candidate_count, sizeof(*folders->names), err);
    for (size_t i = 0; folders->names && i < own->candidate_count; i++)
        if (wanted(own->candidates[i].name))
            folders->names[folders->count++] = own->candidates[i].name;
    if (folders->count)
        qsort(folders->names, folders->count, sizeof(*folders->names), by_folder);
    return folders->names ? 0 : -1;
}

/* Outside of copies. */
static bool anywhere(const struct folders *folders)
{
    for (size_t i = 0; i < folders->count; i++)
        if (!is_copy_folder(folders->names[i]))
            return true;
    return false;
}

struct found {
    struct folders safetensors, pickles, plain;
    bool any_weights; /* outside of copies */
};

static void release_found(struct found *found)
{
    free(found->safetensors.names);
    free(found->pickles.names);
    free(found->plain.names);
}

static int find(const struct sl_plan_own *own, struct found *found, struct sl_err *err)
{
    if (find_folders(own, is_safetensors, &found->safetensors, err) < 0 ||
        find_folders(own, is_pickle, &found->pickles, err) < 0 ||
        find_folders(own, is_plain_model, &found->plain, err) < 0)
        return -1;
    found->any_weights = anywhere(&found->safetensors) || anywhere(&found->pickles);
    return 0;
}

static int by_name(const void *name, const void *candidate)
{
    return strcmp(name, ((const struct sl_candidate *)candidate)->name);
}

/* "model.fp16.safetensors" beside "model.safetensors", "consolidated*" beside "model*". */
static bool is_other_copy(const struct sl_plan_own *own, const struct found *found,
                          const char *name)
{
    static const char *const variants[] = {".fp16.", ".bf16.", ".fp32.", ".non_ema.", ".ema."};
    const char *base = sl_base_name(name);
    char plain[1100];
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        const char *at = strstr(base, variants[i]);
        if (!at || strlen(name) >= sizeof(plain))
            continue;
        snprintf(plain, sizeof(plain), "%.*s%s", (int)(at - name), name,
                 at + strlen(variants[i]) - 1);
        if (bsearch(plain, own->candidates, own->candidate_count, sizeof(*own->candidates),
                    by_name))
            return true;
    }
    return fnmatch("consolidated*.safetensors*", base, 0) == 0 && holds(&found->plain, name);
}

static bool is_left_out(const struct sl_plan_own *own, const struct found *found, const char *name)
{
    enum weights weights = weights_of(name);
    if (is_copy_folder(name))
        return true;
    if (weights == GGUF)
        return true;
    if (weights == PICKLE && holds(&found->safetensors, name))
        return true;
    if (weights == FOREIGN)
        return holds(&found->safetensors, name) || holds(&found->pickles, name);
    return is_other_copy(own, found, name);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

/* The part of a name that the parts of one split model share. */
static size_t set_bytes(const char *name)
{
    size_t bytes = strlen(name) - strlen(".gguf");
    const char *tail = name + bytes;
    bool split =
        bytes > 15 &&
        fnmatch("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", tail - 15, 0) == 0;
    return split ? bytes - 15 : bytes;
}

/* What is loaded beside a model: a projector of images. */
static bool is_companion(const char *name)
{
    return strncmp(sl_base_name(name), "mmproj", 6) == 0;
}

/* Candidates are sorted: the parts of one model follow one another. */
static int refuse_several(const struct sl_plan_own *own, struct sl_err *err)
{
    const char *last = NULL;
    unsigned models = 0;
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const char *name = own->candidates[i].name;
        if (weights_of(name) != GGUF || is_companion(name))
            continue;
        if (last && set_bytes(last) == set_bytes(name) && strncmp(last, name, set_bytes(name)) == 0)
            continue;
        last = name;
        if (models++ < NAMES_SHOWN && used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s'%.80s'",
                                     models > 1 ? ", " : "", name);
    }
    if (models < 2)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%.200s' holds %u models as GGUF (%s%s): choose one with source.include, or "
                   "name its file",
                   sl_store_uri(own->store), models, names, models > NAMES_SHOWN ? ", …" : "");
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int drop(struct sl_plan *plan, const bool *out, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    for (size_t i = 0; i < own->candidate_count; i++) {
        plan->unusual_count += out[i];
        if (out[i])
            plan->unusual_bytes = sl_add_capped(plan->unusual_bytes, own->candidates[i].bytes);
    }
    return sl_plan_leave_out(plan->own, out, err);
}

int sl_plan_choose_usual(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    __attribute__((cleanup(release_found))) struct found found = {0};
    sl_autofree bool *out = sl_alloc_array(own->candidate_count, sizeof(*out), err);
    if (!out || find(own, &found, err) < 0)
        return -1;
    if (!found.any_weights)
        return refuse_several(own, err);
    for (size_t i = 0; i < own->candidate_count; i++)
        out[i] = is_left_out(own, &found, own->candidates[i].name);
    if (drop(plan, out, err) < 0)
        return -1;
    bool one = plan->unusual_count == 1;
    if (plan->unusual_count)
        sl_log(
            SL_LOG_INFO,
            "%zu %s of '%s' %s the same weights in other forms, left out: source.include chooses "
            "otherwise",
            plan->unusual_count, one ? "object" : "objects", sl_store_uri(own->store),
            one ? "holds" : "hold");
    return 0;
}
