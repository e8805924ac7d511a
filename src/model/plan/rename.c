/*
 * New names by rules. The spec was checked, so every expression compiles and every group that a
 * replacement names exists; a group that took no part in the match is empty. What a rule does not
 * match stays as it is around the replacement, as with sed's s///.
 *
 * Two tensors of one path are two tensors of one name for every format. Tensors of .tensors files
 * may share a plain name with different paths, which is theirs; a rename must not bring it about.
 */
#include <regex.h>

#include "log.h"
#include "plan_parts.h"
#include "rank_name.h"

enum { GROUPS_MAX = 10, NAME_BYTES_MAX = 64 * 1024 };

struct sl_renaming {
    const struct sl_spec_rename_rule *rules;
    size_t count, compiled;
    regex_t *expressions;
    uint64_t *used;
};

void sl_renaming_free(struct sl_renaming *renaming)
{
    if (!renaming)
        return;
    for (size_t i = 0; i < renaming->compiled; i++)
        regfree(&renaming->expressions[i]);
    free(renaming->expressions);
    free(renaming->used);
    free(renaming);
}

struct sl_renaming *sl_renaming_new(const struct sl_items *rules, struct sl_err *err)
{
    SL_AUTO(sl_renaming) renaming = sl_alloc(sizeof(*renaming), err);
    if (!renaming)
        return NULL;
    renaming->rules = rules->items;
    renaming->count = rules->count;
    renaming->expressions = sl_alloc_array(rules->count, sizeof(*renaming->expressions), err);
    renaming->used = sl_alloc_array(rules->count, sizeof(*renaming->used), err);
    if (!renaming->expressions || !renaming->used)
        return NULL;
    for (; renaming->compiled < renaming->count; renaming->compiled++)
        if (regcomp(&renaming->expressions[renaming->compiled],
                    renaming->rules[renaming->compiled].match, REG_EXTENDED) != 0) {
            sl_fail(err, SL_E_USAGE, "tensors.rename: '%s' is not a regular expression",
                    renaming->rules[renaming->compiled].match);
            return NULL;
        }
    return sl_steal(&renaming);
}

static int add(struct sl_buf *name, const char *text, size_t bytes, struct sl_err *err)
{
    if (bytes > NAME_BYTES_MAX - name->used)
        return sl_fail(err, SL_E_USAGE, "its new name would be longer than %d bytes",
                       NAME_BYTES_MAX);
    return sl_buf_append(name, text, bytes, err);
}

/* The replacement, with its groups, at the end of `name`. */
static int add_replacement(struct sl_buf *name, const char *to, const char *old,
                           const regmatch_t groups[GROUPS_MAX], struct sl_err *err)
{
    for (; to && *to; to++) {
        const char *text = to;
        size_t bytes = 1;
        if (*to == '\\' && *++to >= '1' && *to <= '9') {
            const regmatch_t *group = &groups[*to - '0'];
            text = old + SL_MAX(group->rm_so, 0);
            bytes = (size_t)(group->rm_eo - group->rm_so); /* -1 twice: took no part */
        }
        if (add(name, text, bytes, err) < 0)
            return -1;
    }
    return 0;
}

static int replace(const struct sl_spec_rename_rule *rule, const struct sl_tensor *tensor,
                   const regmatch_t groups[GROUPS_MAX], struct sl_buf *name, struct sl_err *err)
{
    const char *old = tensor->name;
    size_t begin = (size_t)groups[0].rm_so, end = (size_t)groups[0].rm_eo;
    if (add(name, old, begin, err) < 0 || add_replacement(name, rule->to, old, groups, err) < 0 ||
        add(name, old + end, tensor->name_bytes - end, err) < 0)
        return sl_wrap(err, "tensors.rename: tensor '%.200s'", old);
    if (name->used == 0)
        return sl_fail(err, SL_E_USAGE,
                       "tensors.rename: '%s' leaves tensor '%.200s' without a name", rule->match,
                       old);
    return 0;
}

int sl_rename(struct sl_renaming *renaming, struct sl_index *index, struct sl_tensor *tensor,
              struct sl_err *err)
{
    regmatch_t groups[GROUPS_MAX];
    for (size_t i = 0; i < renaming->count; i++) {
        groups[0] = (regmatch_t){.rm_so = 0, .rm_eo = (regoff_t)tensor->name_bytes};
        if (regexec(&renaming->expressions[i], tensor->name, GROUPS_MAX, groups, REG_STARTEND) != 0)
            continue;
        struct sl_buf name = SL_BUF_INIT(NAME_BYTES_MAX);
        int done = replace(&renaming->rules[i], tensor, groups, &name, err);
        char *kept = done == 0 ? sl_index_alloc(index, name.used + 1, err) : NULL;
        size_t bytes = name.used;
        if (kept)
            memcpy(kept, name.data, bytes);
        sl_buf_release(&name);
        if (!kept)
            return -1;
        renaming->used[i]++;
        return sl_index_plain_name(index, tensor, kept, bytes, err);
    }
    return 0;
}

void sl_renaming_warn(const struct sl_renaming *renaming)
{
    for (size_t i = 0; i < renaming->count; i++)
        if (!renaming->used[i])
            sl_log(SL_LOG_WARN,
                   "tensors.rename: '%s' renames no tensor: it matches none, or rules before it "
                   "match the same",
                   renaming->rules[i].match);
}

/* ---- names that meet ------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    const struct sl_tensor *x = &(*(struct sl_target *const *)a)->out,
                           *y = &(*(struct sl_target *const *)b)->out;
    int order = memcmp(x->name, y->name, SL_MIN(x->name_bytes, y->name_bytes));
    if (order)
        return order;
    if (x->name_bytes != y->name_bytes)
        return x->name_bytes < y->name_bytes ? -1 : 1;
    return x < y ? -1 : x > y; /* in their own order */
}

static bool same_path(const struct sl_tensor *x, const struct sl_tensor *y)
{
    if (x->path_count != y->path_count)
        return false;
    for (unsigned i = 0; i < x->path_count; i++) {
        const struct sl_path_part *a = &x->path[i], *b = &y->path[i];
        if (!a->text != !b->text || a->text_bytes != b->text_bytes || a->number != b->number ||
            (a->text && memcmp(a->text, b->text, a->text_bytes) != 0))
            return false;
    }
    return true;
}

/* Each rank of torch's HuggingFaceStorageWriter writes its parts under the names of the wholes. */
static bool are_parts(const struct sl_index *index)
{
    for (size_t i = 0; i < index->metadata_count; i++)
        if (strcmp(index->metadata[i].key, "DCP_SHARDING_INFO") == 0)
            return true;
    return false;
}

static const char *advice_on_meeting(const struct sl_plan *plan, const struct sl_target *one,
                                     const struct sl_target *two, bool renamed)
{
    struct sl_rank_name rank;
    if (renamed)
        return "change tensors.rename";
    if (are_parts(one->index) && are_parts(two->index))
        return "they are parts of one tensor (DCP_SHARDING_INFO), which ranks of torch saved: join "
               "them first, with torch's consolidate_safetensors_files";
    if (sl_rank_name(plan->sources[one->source].name, &rank) &&
        sl_rank_name(plan->sources[two->source].name, &rank))
        return "say with source.rank whose files are wanted";
    return "leave one out with source.exclude or tensors.exclude, or tell folders apart with "
           "tensors.prefix: object";
}

static int refuse_meeting(const struct sl_plan *plan, const struct sl_target *one,
                          const struct sl_target *two, struct sl_err *err)
{
    bool renamed = one->out.name != one->from->name || two->out.name != two->from->name;
    if (!renamed && !same_path(&one->out, &two->out))
        return 0;
    const char *of = plan->sources[one->source].name, *and = plan->sources[two->source].name;
    return sl_fail_code(
        err, SL_E_FORMAT, "E_NAME",
        "tensor '%.300s' of '%s' and tensor '%.300s' of '%s' would both be called '%.300s': %s",
        one->from->name, of, two->from->name, and, one->out.name,
        advice_on_meeting(plan, one, two, renamed));
}

/* One rank's parts alone look like tensors. */
static void warn_of_parts(const struct sl_plan *plan)
{
    for (size_t i = 0; i < plan->source_count; i++)
        if (plan->sources[i].index && are_parts(plan->sources[i].index)) {
            sl_log(SL_LOG_WARN,
                   "'%s' says that its tensors may be parts of larger ones (DCP_SHARDING_INFO): "
                   "join the files of all ranks first, with torch's consolidate_safetensors_files",
                   plan->sources[i].name);
            return;
        }
}

int sl_plan_check_names(const struct sl_plan *plan, struct sl_err *err)
{
    warn_of_parts(plan);
    sl_autofree struct sl_target **targets =
        sl_alloc_array(plan->target_count, sizeof(*targets), err);
    if (!targets)
        return -1;
    for (size_t i = 0; i < plan->target_count; i++)
        targets[i] = &plan->targets[i];
    qsort(targets, plan->target_count, sizeof(*targets), compare_names);
    for (size_t i = 1; i < plan->target_count; i++) {
        const struct sl_tensor *x = &targets[i - 1]->out, *y = &targets[i]->out;
        if (x->name_bytes == y->name_bytes && memcmp(x->name, y->name, x->name_bytes) == 0 &&
            refuse_meeting(plan, targets[i - 1], targets[i], err) < 0)
            return -1;
    }
    return 0;
}
