/*
 * Names that vLLM, SGLang, Megatron, DeepSpeed, TensorRT-LLM and Llama give to the files of ranks.
 */
#include "rank_name.h"

#include <stdlib.h>
#include <string.h>

#include "plan_parts.h"
#include "weights.h"

enum { RANK_DIGITS_MAX = 6 };

bool sl_rank_name(const char *name, struct sl_rank_name *rank)
{
    static const char *const marks[] = {"model-rank-", "pp_rank_", "tp_rank_", "mp_rank_"};
    static const char *const beginnings[] = {"rank", "consolidated."};
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *number = NULL;
    for (size_t i = 0; i < SL_COUNT(marks) && !number; i++)
        if ((number = strstr(base, marks[i])))
            number += strlen(marks[i]);
    for (size_t i = 0; i < SL_COUNT(beginnings) && !number; i++)
        if (strncmp(base, beginnings[i], strlen(beginnings[i])) == 0)
            number = base + strlen(beginnings[i]);
    size_t digits = number ? strspn(number, "0123456789") : 0;
    if (!digits || digits > RANK_DIGITS_MAX ||
        !(sl_weights_named(base) || sl_plan_names_files(base)))
        return false;
    *rank =
        (struct sl_rank_name){(size_t)(number - name), number + digits, strtoul(number, NULL, 10)};
    return true;
}
