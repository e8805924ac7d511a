/* Which formats are changed, and what their plans share. */
#include "edit.h"

#include <string.h>

typedef int plan_fn(struct sl_edit *edit, struct sl_err *err);
static const struct {
    const char *name;
    plan_fn *plan;
} formats[] = {
    {"safetensors", sl_edit_safetensors},
    {"tensorizer", sl_edit_tensorizer},
    {"pytorch", sl_edit_pytorch},
};

int sl_edit_plan(struct sl_edit *edit, struct sl_err *err)
{
    const struct sl_index *index = edit->index;
    plan_fn *plan = NULL;
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (strcmp(index->format, formats[i].name) == 0)
            plan = formats[i].plan;
    if (!plan)
        return sl_fail(err, SL_E_USAGE,
                       "%s files are not changed in place: write a new one with sluice_create()",
                       index->format);
    if (index->source_count != 1)
        return sl_fail(err, SL_E_USAGE,
                       "an index of several files is not changed: name the file that the tensor is "
                       "in");
    if (index->encrypted)
        return sl_fail(err, SL_E_USAGE,
                       "an encrypted file is not changed in place: write a new one with "
                       "sluice_create()");
    return plan(edit, err);
}

void sl_edit_release(struct sl_edit *edit)
{
    free(edit->pieces);
    *edit = (struct sl_edit){0};
}
