/* Pickles alone, with the rules of checkpoints; tensors are made of what comes out. */
#include <stdlib.h>

#include "pytorch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pytorch torch = {.index = sl_index_new("pytorch", &err)};
    struct sl_pickle_rules rules = sl_pytorch_rules;
    size_t used = 0;
    rules.arg = &torch;
    torch.pickle = sl_pickle_new(&rules, &err);
    struct sl_pickle_node *root =
        torch.pickle ? sl_pickle_read(torch.pickle, data, bytes, &used, &err) : NULL;
    if (root && sl_pytorch_storages(&torch, &err) == 0)
        sl_pytorch_tensors(&torch, root, &err);
    sl_pytorch_release(&torch);
    sl_index_free(torch.index);
    return 0;
}
