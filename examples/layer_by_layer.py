"""A model that is larger than memory, from a bucket: each layer is read, used and dropped before the next one comes.

    python layer_by_layer.py s3://bucket/model/
"""
import itertools
import re
import resource
import sys

import torch

import sluice

if len(sys.argv) != 2:
    sys.exit(__doc__)


def layer_of(name):
    """"model.layers.12" of "model.layers.12.mlp.up_proj.weight"; a tensor outside of the layers is one by itself."""
    found = re.match(r".*?\.\d+(?=\.)", name)
    return found[0] if found else name


torch.ones(1 << 20).norm()  # what torch takes for itself the first time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with sluice.open(sys.argv[1], framework="torch") as model:
    largest = read = 0
    for layer, names in itertools.groupby(model.offset_keys(), layer_of):
        tensors = model.load(names)
        norm = sum(tensor.float().norm().item() ** 2 for tensor in tensors.values()) ** 0.5
        nbytes = sum(model.meta(name).nbytes for name in tensors)
        print(f"{layer}: {len(tensors)} tensors, norm {norm:.4g}")
        largest, read = max(largest, nbytes), read + nbytes
        del tensors
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(f"{read >> 20} MiB read, of which at most {largest >> 20} at once; memory grew by {grown >> 10} MiB")
