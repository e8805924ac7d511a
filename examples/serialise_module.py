"""A module as .tensors, encrypted, and back into a module that has no weights yet.

    python serialise_module.py model.tensors
"""
import sys

import torch

import sluice

if len(sys.argv) != 2:
    sys.exit(__doc__)

path, = sys.argv[1:]
key = sluice.Key.random()
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
sluice.save(net.state_dict(), path, format="tensorizer", key=key)

empty = torch.nn.Sequential(torch.nn.Linear(8, 16, device="meta"), torch.nn.ReLU(), torch.nn.Linear(16, 4, device="meta"))
sluice.load_into_module(empty, path, key=key)
assert torch.equal(empty(torch.ones(1, 8)), net(torch.ones(1, 8)))
print("the same answer")
