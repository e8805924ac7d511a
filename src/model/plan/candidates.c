/* The objects that may be of the model: those that were listed, and those that were left out. */
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "plan_parts.h"

enum { PASSED_MAX = 100000, WHOLE_NAME_BYTES = 8192 };

static bool is_strong(const char *etag)
{
    size_t bytes = strlen(etag);
    return bytes > 2 && bytes < SL_VERSION_TEXT_MAX && etag[0] == '"' && etag[bytes - 1] == '"';
}

void sl_candidate_release(struct sl_candidate *candidate)
{
    free(candidate->name);
    free(candidate->etag);
    free(candidate->pin);
    free(candidate->sums);
    sl_source_free(candidate->source);
    sl_index_free(candidate->index);
    sl_plan_claim_free(candidate->claim);
}

int sl_plan_add_candidate(struct sl_plan *plan, const struct sl_entry *entry, bool probe,
                          struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (sl_grow(&own->candidates, &own->candidate_capacity, own->candidate_count + 1,
                sizeof(*own->candidates), err) < 0)
        return -1;
    struct sl_candidate *candidate = &own->candidates[own->candidate_count++];
    *candidate = (struct sl_candidate){.bytes = entry->bytes, .probe = probe};
    candidate->name = sl_strdup(entry->name, err);
    if (!candidate->name)
        return -1;
    if (entry->etag && is_strong(entry->etag)) {
        candidate->etag = sl_strdup(entry->etag, err);
        if (!candidate->etag)
            return -1;
    }
    if (entry->pin && *entry->pin && strlen(entry->pin) < SL_PIN_TEXT_MAX) {
        candidate->pin = sl_strdup(entry->pin, err);
        if (!candidate->pin)
            return -1;
    }
    candidate->sums = sl_checksums_copy(entry->sums, err);
    return entry->sums && !candidate->sums ? -1 : 0;
}

int sl_plan_leave_out(struct sl_plan_own *own, const bool *out, struct sl_err *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (out[i] && sl_plan_note_passed(own, own->candidates[i].name, err) < 0)
            return -1;
    for (size_t i = 0; i < own->candidate_count; i++) {
        struct sl_candidate *candidate = &own->candidates[i];
        if (!out[i]) {
            own->candidates[kept++] = *candidate;
            continue;
        }
        own->left_out_bytes = sl_add_capped(own->left_out_bytes, candidate->bytes);
        sl_candidate_release(candidate);
    }
    own->candidate_count = kept;
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int sl_plan_note_passed(struct sl_plan_own *own, const char *name, struct sl_err *err)
{
    if (own->passed_count == PASSED_MAX) {
        if (!own->passed_more)
            sl_log(
                SL_LOG_WARN,
                "more than %d objects below '%s' are left out: whether others are missing is not "
                "checked",
                PASSED_MAX, sl_store_uri(own->store));
        own->passed_more = true;
        return 0;
    }
    if (sl_grow(&own->passed, &own->passed_capacity, own->passed_count + 1, sizeof(*own->passed),
                err) < 0)
        return -1;
    char *copy = sl_strdup(name, err);
    if (!copy)
        return -1;
    own->passed[own->passed_count++] = copy;
    return 0;
}

void sl_plan_sort_passed(struct sl_plan_own *own)
{
    if (own->passed_count > 1)
        qsort(own->passed, own->passed_count, sizeof(*own->passed), by_text);
}

static bool was_passed(const struct sl_plan_own *own, const char *name)
{
    return own->passed_count &&
           bsearch(&name, own->passed, own->passed_count, sizeof(*own->passed), by_text);
}

bool sl_plan_left_out(const struct sl_plan_own *own, const char *name)
{
    const struct sl_spec_source *asked = &own->spec->source;
    char whole[WHOLE_NAME_BYTES];
    const char *full = name;
    if (asked->listed) { /* include names what was listed; the caller chose of that */
        snprintf(whole, sizeof(whole), "%s%s", asked->listed_folder, name);
        asked = asked->listed;
        full = whole;
    }
    return !sl_plan_matches(&asked->include, full, true) ||
           sl_plan_matches(&asked->exclude, full, false) || was_passed(own, name);
}

bool sl_plan_leaves_out(const struct sl_plan_own *own, const char *name)
{
    return own->passed_more || sl_plan_left_out(own, name);
}
