"""The reference packages at work, in a Python that has torch, tensorizer and safetensors.

    reference_peer.py make-torch DIRECTORY      checkpoints of torch.save: every dtype, views, nested, the old stream
    reference_peer.py make-tensors DIRECTORY    .tensors of tensorizer: plain, by key, by passphrase
    reference_peer.py torch FILE                what torch.load reads
    reference_peer.py tensors FILE [key FILE | passphrase FILE]     what tensorizer reads, hashes verified
    reference_peer.py safetensors FILE          what safetensors reads
    reference_peer.py many JSON                 several of these, [["torch", "FILE"], …]: torch takes long to start

Readers print JSON: a list of [path, dtype, shape, SHA-256 of the bytes, row-major].
"""
import hashlib
import json
import os
import sys
from collections.abc import Mapping

import torch

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"]


def entry(path, tensor):
    tensor = tensor.detach().contiguous()
    raw = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return [list(path), str(tensor.dtype).replace("torch.", ""), list(tensor.shape), hashlib.sha256(raw.numpy().tobytes()).hexdigest()]


def flatten(value, path=()):
    if isinstance(value, torch.Tensor):
        yield entry(path, value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from flatten(item, (*path, number))


def values(dtype, *shape):
    generator = torch.Generator().manual_seed(len(dtype))
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    if kind.is_complex:
        part = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
        return torch.view_as_complex(part).to(kind)
    if kind.is_floating_point:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(kind)
    return torch.randint(-100 if dtype[0] == "i" else 0, 100, shape, generator=generator).to(kind)


def make_torch(directory):
    large = values("float32", 300, 700)
    models = {
        "dtypes": {dtype: values(dtype, 5, 3) for dtype in DTYPES},
        "scalars": {"zero": torch.tensor(7.5), "none": torch.empty(0, 4), "one": torch.ones(1, dtype=torch.int64)},
        "views": {"whole": large, "transposed": large.t(), "rows": large[10:20], "columns": large[:, ::7], "tail": large.view(-1)[5:],
                  "expanded": torch.arange(4.0).expand(3, 4)},
        "nested": {"model": {"a.b": values("float16", 4), "layers": [{"w": values("bfloat16", 2, 2)}, {"w": values("int8", 9)}]},
                   "step": 12, "name": "run", "rates": [0.1, 0.2]},
        "parameters": {"weight": torch.nn.Parameter(values("float32", 8, 8)), "bias": torch.nn.Parameter(values("float32", 8))},
    }
    for name, model in models.items():
        torch.save(model, os.path.join(directory, name + ".pt"))
        torch.save(model, os.path.join(directory, name + "_old.pt"), _use_new_zipfile_serialization=False)


def make_tensors(directory):
    from tensorizer import EncryptionParams, TensorSerializer
    key = bytes(range(32))
    with open(os.path.join(directory, "key"), "wb") as file:
        file.write(key)
    with open(os.path.join(directory, "passphrase"), "wb") as file:
        file.write(b"correct horse battery staple")
    model = {dtype: values(dtype, 40, 11) for dtype in DTYPES}
    model["large"] = values("float32", 1300, 1000)  # three pieces
    how = {"plain": None, "key": EncryptionParams(key),
           "passphrase": EncryptionParams.from_string(b"correct horse battery staple", opslimit=EncryptionParams.OpsLimit.MIN,
                                                      memlimit=EncryptionParams.MemLimit.MIN)}
    for name, encryption in how.items():
        serializer = TensorSerializer(os.path.join(directory, name + ".tensors"), encryption=encryption)
        serializer.write_state_dict(model)
        serializer.close()


def read_tensors(path, how=None, secret=None):
    from tensorizer import DecryptionParams, TensorDeserializer
    encryption = None
    if how:
        with open(secret, "rb") as file:
            data = file.read()
        encryption = DecryptionParams.from_key(data) if how == "key" else DecryptionParams.from_string(data)
    deserializer = TensorDeserializer(path, device="cpu", verify_hash=True, encryption=encryption)
    return list(flatten(deserializer.tree()))


def read_safetensors(path):
    from safetensors import safe_open
    with safe_open(path, framework="pt") as file:
        return [entry([name], file.get_tensor(name)) for name in file.keys()]


def main(command, *arguments):
    if command.startswith("make-"):
        {"make-torch": make_torch, "make-tensors": make_tensors}[command](*arguments)
        return
    readers = {"torch": lambda path: list(flatten(torch.load(path, map_location="cpu"))), "tensors": read_tensors, "safetensors": read_safetensors}
    if command == "many":
        json.dump([readers[what](*rest) for what, *rest in json.loads(arguments[0])], sys.stdout)
    else:
        json.dump(readers[command](*arguments), sys.stdout)


main(*sys.argv[1:])
