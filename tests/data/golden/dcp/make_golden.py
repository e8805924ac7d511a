#!/usr/bin/env python3
"""Distributed checkpoints as torch writes them, with the SHA-256 of every tensor's bytes beside each.

    make_golden.py TO [PREFIX]     with torch 2.1 or later: one process, then four on the loopback interface
"""
import hashlib
import io
import json
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

RANKS = 4


def values(dtype, *shape, seed=0):
    """Bytes that depend on their place alone."""
    count = 1
    for size in shape:
        count *= size
    if dtype == torch.bool:
        return ((torch.arange(count) * 7 + seed) % 3 == 0).reshape(shape)
    raw = (torch.arange(count * torch.empty(0, dtype=dtype).element_size()) * 31 + seed * 17 + 5) % 120
    return raw.to(torch.uint8).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def flat(state, path=()):
    if isinstance(state, dict):
        for key, value in state.items():
            yield from flat(value, path + (str(key),))
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from flat(value, path + (str(number),))
    elif isinstance(state, torch.Tensor):
        yield ".".join(path), state


def expected(state):
    rows = []
    for name, tensor in flat(state):
        bytes_ = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        rows.append({"name": name, "dtype": str(tensor.dtype).replace("torch.", ""), "shape": list(tensor.shape), "nbytes": len(bytes_),
                     "sha256": hashlib.sha256(bytes_).hexdigest()})
    return sorted(rows, key=lambda row: row["name"])


def save(state, folder, whole=None, alone=False):
    writer = dcp.FileSystemWriter(folder)
    if hasattr(dcp, "save"):
        dcp.save(state, storage_writer=writer, **({"no_dist": True} if alone else {}))
    else:
        dcp.save_state_dict(state, writer, no_dist=alone)
    if whole is not None and (alone or dist.get_rank() == 0):
        with open(folder + ".json", "w") as file:
            rows = ",\n".join(json.dumps(row) for row in expected(whole))
            file.write('{"tensors": [\n' + rows + "\n]}\n")


def can_save(name):
    try:
        torch.save(torch.empty(1, dtype=getattr(torch, name)), io.BytesIO())
        return True
    except (AttributeError, KeyError):
        return False


def one():
    """What a single process saves: every tensor is one chunk."""
    dtypes = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "float8_e4m3fn",
              "float8_e5m2"]
    state = {"types": {name: values(getattr(torch, name), 3, 2, seed=n) for n, name in enumerate(dtypes) if can_save(name)}}
    state["model"] = {"layers": [{"weight": values(torch.float32, 4, 3, seed=n), "bias": values(torch.bfloat16, 4, seed=n)} for n in range(2)]}
    state["number"] = values(torch.float32, seed=3)
    state["empty"] = values(torch.float32, 0, 4)
    state["transposed"] = values(torch.int32, 3, 5, seed=9).t()
    state["optimizer"] = {"state": {0: {"step": values(torch.float32, seed=4), "exp_avg": values(torch.float32, 4, 3, seed=5)}},
                          "param_groups": [{"lr": 0.5, "params": [0, 1], "foreach": None}]}
    state["epoch"], state["note"] = 7, "an ü"
    return state


def sharded(folder, prefix):
    """What four ranks save together."""
    try:
        from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    except ImportError:
        from torch.distributed._tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    two = torch.float64 if torch.__version__.startswith("2.1.") else torch.bfloat16  # which its gloo cannot send
    line, square = DeviceMesh("cpu", torch.arange(RANKS)), DeviceMesh("cpu", torch.arange(RANKS).reshape(2, 2))

    def put(name, whole, mesh, *placements):
        pieces = {key: distribute_tensor(tensor, mesh, list(placements)) for key, tensor in flat(whole)}
        pieces["step"] = 12
        save(pieces, os.path.join(folder, prefix + name), whole)

    wide = {"even": values(torch.float32, 8, 4), "uneven": values(two, 5, 3, seed=1), "line": values(torch.int64, 9, seed=2),
            "short": values(torch.float32, 2, 3, seed=3), "deep": values(torch.float16, 4, 2, 3, seed=4)}
    put("fsdp", wide, line, Shard(0))
    put("copies", {"a": values(torch.float32, 3, 3), "b": values(torch.uint8, 300)}, line, Replicate())
    columns = {"even": values(torch.float32, 3, 8), "uneven": values(two, 4, 6, seed=1), "deep": values(torch.int8, 2, 5, 3, seed=2)}
    put("tp", columns, line, Shard(1))
    put("square", {"both": values(torch.float32, 6, 6), "uneven": values(torch.int32, 5, 7, seed=1), "deep": values(torch.float32, 3, 4, 5, seed=2)},
        square, Shard(0), Shard(1))
    put("hybrid", {"rows": values(torch.float32, 6, 4)}, square, Replicate(), Shard(0))


def rank(number, port, folder, prefix):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sharded(folder, prefix)
    dist.destroy_process_group()


def main():
    folder, prefix = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    state = one()
    save(state, os.path.join(folder, prefix + "one"), state, alone=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mp.spawn(rank, (port, folder, prefix), RANKS)


if __name__ == "__main__":
    main()
