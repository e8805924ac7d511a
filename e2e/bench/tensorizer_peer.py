"""The reference tensorizer package: makes the .tensors files of workload w5 and reads them beside sluice.

    tensorizer_peer.py make DIRECTORY            plain.tensors, key.tensors, passphrase.tensors, key, passphrase, sha256.json
    tensorizer_peer.py read URL READERS VERIFY [key FILE | passphrase FILE]

`read` prints SECONDS and CPU of the reading alone: start-up and imports are given to it. Runs in a Python that has
torch and tensorizer.
"""
import hashlib
import json
import os
import resource
import sys
import time

import torch
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

PASSPHRASE = b"correct horse battery staple"


def model():
    """1.0 GB in the shapes of a decoder: a few large matrices a layer, some vectors."""
    generator = torch.Generator().manual_seed(5)
    shapes = {}
    for layer in range(6):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (2048, 2048)
        for name in ("gate_proj", "up_proj"):
            shapes[f"model.layers.{layer}.mlp.{name}.weight"] = (8192, 2048)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (2048, 8192)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (2048,)
    shapes["model.embed_tokens.weight"] = (40000, 2048)
    bits = {name: torch.randint(-2**15, 2**15, shape, dtype=torch.int16, generator=generator) for name, shape in shapes.items()}
    return {name: value.view(torch.float16) for name, value in bits.items()}


def write(path, tensors, encryption=None):
    serializer = TensorSerializer(path, encryption=encryption)
    serializer.write_state_dict(tensors)
    serializer.close()


def make(directory):
    tensors, key = model(), os.urandom(32)
    for name, data in (("key", key), ("passphrase", PASSPHRASE)):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
        os.chmod(os.path.join(directory, name), 0o600)
    write(os.path.join(directory, "plain.tensors"), tensors)
    write(os.path.join(directory, "key.tensors"), tensors, EncryptionParams(key=key))
    write(os.path.join(directory, "passphrase.tensors"), tensors, EncryptionParams.from_string(PASSPHRASE))
    digests = {name: hashlib.sha256(value.contiguous().view(torch.int16).numpy().tobytes()).hexdigest() for name, value in tensors.items()}
    with open(os.path.join(directory, "sha256.json"), "w") as file:
        json.dump(digests, file)


def cpu():
    """Of this process and the curl processes it started, the living ones too."""
    total = 0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def read(url, readers, verify, kind=None, path=None):
    params = None
    if kind:
        with open(path, "rb") as file:
            secret = file.read()
        params = DecryptionParams.from_key(secret) if kind == "key" else DecryptionParams.from_string(secret)
    before, start = cpu(), time.monotonic()
    loaded = TensorDeserializer(url, device="cpu", num_readers=int(readers) or None, verify_hash=verify == "verify", encryption=params)
    count = sum(1 for _ in loaded.values())
    seconds = time.monotonic() - start
    loaded.close()
    print("TENSORS", count)
    print("SECONDS", seconds)
    print("CPU", cpu() - before)


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](*sys.argv[2:])
