#!/usr/bin/env python3
"""An engine whose second start takes milliseconds.

    examples/torch_deposit.py --make DIRECTORY               a small model to try it with: model.safetensors, config.json
    examples/torch_deposit.py NAME [--socket PATH]           start; do it twice

A checkpoint is not what an engine computes with: it fuses tensors, transposes them, changes their type. The first start attaches
to the checkpoint in the pool, does all that, and deposits what comes out under a key that says how it was made. Every later start
with the same key maps that. With a model of your own, whose tensors have the names of Llama's, it works as well.

Needs torch, and the module in python/. Whoever starts it must be allowed to deposit (pool.depositUids); who is not still starts,
but makes everything anew each time.
"""
import argparse
import json
import os
import sys
import time

import sluice
import torch

ENGINE, ENGINE_VERSION = "torch_deposit", 1  # change the version whenever process() makes other tensors
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
NOT_THERE = ("absent", "stale", "busy")  # codes of an attach by key: nobody deposited it; from another version; soon


def key_of(arguments):
    """Everything that must be equal for the tensors to be of use. The version of the checkpoint is not in it: the daemon binds
    each deposit to the one that it was made from."""
    return json.dumps({
        "engine": ENGINE,
        "engine_version": ENGINE_VERSION,
        "torch": torch.__version__,
        "architecture": "llama",
        "dtype": arguments.dtype,
        "quantization": None,
        "kernels": "linear-transposed",  # which layout of weights the code below wants
        "tensor_parallel": [arguments.rank, arguments.of],
        "capability": "cpu",
    }, sort_keys=True)


# ---- what an engine does to a checkpoint -----------------------------------------------------------


def part(tensor, dim, arguments):
    """This rank's part of a tensor."""
    return tensor.chunk(arguments.of, dim)[arguments.rank] if arguments.of > 1 else tensor


def process(checkpoint, arguments):
    """{name: tensor}: q, k and v fused, gate and up too; linear weights transposed; of the wanted type; this rank's part."""
    dtype = getattr(torch, arguments.dtype)
    made = {}

    def take(name, dim):
        return part(checkpoint[name].torch(), dim, arguments)

    def keep(name, *parts):
        made[name] = torch.cat(parts).to(dtype).t().contiguous()

    number = 0
    while f"model.layers.{number}.self_attn.q_proj.weight" in checkpoint:
        layer = f"model.layers.{number}."
        keep(layer + "qkv", *(take(f"{layer}self_attn.{which}_proj.weight", 0) for which in "qkv"))
        keep(layer + "o", take(layer + "self_attn.o_proj.weight", 1))
        keep(layer + "gate_up", *(take(f"{layer}mlp.{which}_proj.weight", 0) for which in ("gate", "up")))
        keep(layer + "down", take(layer + "mlp.down_proj.weight", 1))
        number += 1
    made["embedding"] = checkpoint["model.embed_tokens.weight"].torch().to(dtype)
    keep("head", checkpoint["lm_head.weight"].torch())
    return made


def answer(weights, tokens):
    """The token that follows; one head of attention and no norms, for it is only to show that the weights are right."""
    x = weights["embedding"][tokens]
    number = 0
    while f"model.layers.{number}.qkv" in weights:
        layer = f"model.layers.{number}."
        q, k, v = (x @ weights[layer + "qkv"]).chunk(3, -1)
        x = x + torch.softmax(q @ k.t() / k.shape[-1] ** 0.5, -1) @ v @ weights[layer + "o"]
        gate, up = (x @ weights[layer + "gate_up"]).chunk(2, -1)
        x = x + torch.nn.functional.silu(gate) * up @ weights[layer + "down"]
        number += 1
    return int((x[-1] @ weights["head"]).argmax())


# ---- the two ways to start -------------------------------------------------------------------------


def bytes_of(tensor):
    """Its bytes as a buffer, for any type: NumPy lacks some."""
    return memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B")


def attach_derived(arguments, key):
    """What an earlier start made, and the seconds that it took to make; None if there is nothing of use."""
    try:
        derived = sluice.attach(arguments.name, deposit=key, socket=arguments.socket, writable=True)
    except sluice.SluiceError as error:
        if error.code not in NOT_THERE:
            raise
        print(f"nothing deposited yet ({error.code}): {error}", file=sys.stderr)
        return None
    weights = {name: tensor.torch() for name, tensor in derived.items()}
    return weights, float(weights.pop("seconds"))


def deposit(arguments, key, checkpoint, weights, seconds):
    """For later starts; that it fails is not a reason not to run."""
    weights = {**weights, "seconds": torch.tensor(seconds, dtype=torch.float64)}
    room = sum((tensor.numel() * tensor.element_size() + 255) // 256 * 256 for tensor in weights.values())
    try:
        with sluice.Deposit(checkpoint, key, room, socket=arguments.socket) as new:
            for name, tensor in weights.items():
                data = tensor.reshape(1) if tensor.dim() == 0 else tensor
                new.add(name, DTYPES[tensor.dtype], tuple(tensor.shape), bytes_of(data))
    except sluice.SluiceError as error:  # "exists" or "busy": another process was faster
        print(f"not deposited: {error}", file=sys.stderr)
        return False
    return True


def start(arguments):
    key, begin = key_of(arguments), time.perf_counter()
    found = attach_derived(arguments, key)
    if found:
        weights, made_in = found
        took = time.perf_counter() - begin
        print(f"attached to processed weights in {1000 * took:.2f} ms; the first start took {1000 * made_in:.2f} ms")
        return weights
    checkpoint = sluice.attach(arguments.name, socket=arguments.socket, writable=True)
    weights = process(checkpoint, arguments)
    took = time.perf_counter() - begin
    kept = deposit(arguments, key, checkpoint, weights, took)
    print(f"loaded and processed in {1000 * took:.2f} ms{'; deposited for the next start' if kept else ''}")
    return weights


# ---- a model to try it with ------------------------------------------------------------------------


def make(directory, hidden=512, layers=8, words=4096):
    """Random weights with Llama's names, as one safetensors file."""
    torch.manual_seed(1)
    shapes = {"model.embed_tokens.weight": (words, hidden), "lm_head.weight": (words, hidden)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        shapes.update({f"{layer}self_attn.{which}_proj.weight": (hidden, hidden) for which in "qkvo"})
        shapes.update({f"{layer}mlp.{which}_proj.weight": (4 * hidden, hidden) for which in ("gate", "up")})
        shapes[layer + "mlp.down_proj.weight"] = (hidden, 4 * hidden)
    head, at = {}, 0
    for name, (rows, columns) in shapes.items():
        head[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + 2 * rows * columns]}
        at += 2 * rows * columns
    text = json.dumps(head).encode()
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(bytes_of((torch.randn(shape) / hidden ** 0.5).to(torch.bfloat16)))
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers}, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="of the model in the pool")
    parser.add_argument("--socket", help="the daemon's; $SLUICE_POOL_SOCKET, else /run/sluice/pool.sock")
    parser.add_argument("--dtype", default="float32", choices=[str(dtype).split(".")[1] for dtype in DTYPES])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--of", type=int, default=1, help="ranks that share the model")
    parser.add_argument("--make", metavar="DIRECTORY", help="write a small model and end")
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make)
    elif not arguments.name:
        parser.error("name a model of the pool, or --make one")
    else:
        weights = start(arguments)
        if arguments.of == 1:
            print("next token:", answer(weights, list(range(1, 9))))


if __name__ == "__main__":
    main()
