"""Edits that are killed at each of their calls, and what safetensors, torch, tensorizer and zipslicer then make of the file: argument path,
whose name says the kind. edit_killer.c is preloaded. It prints, as JSON, how often each reader found the old content, the new one, or refused
the file; after the next edit has completed it, what was refused must be read, as the new content. Anything else ends it with an error.

With a second argument the file is there, and is left between the mark and the end of such an edit."""
import ctypes
import inspect
import json
import os
import shutil
import signal
import sys

import numpy
import safetensors.numpy
import safetensors.torch
import tensorizer
import torch
import zipslicer

import sluice

KILLER = ctypes.CDLL(None)
OLD = {"a": torch.arange(3000.0), "b": torch.arange(12).reshape(3, 4), "c": torch.ones(7, dtype=torch.float16)}
SAME = {**OLD, "a": torch.full((3000,), 0.5), "b": torch.full((3, 4), 7)}  # where it lies
MORE = {**SAME, "d": torch.full((500,), 3.0), "e": torch.tensor(2.5)}  # and behind


def keep_all(found):
    return {name: found[name].detach().clone() for name in found.keys()}  # zipslicer's has no names to walk over


def by_safe_open(path):
    with safetensors.safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}


def by_safetensors_numpy(path):
    return {name: torch.from_numpy(numpy.array(array)) for name, array in safetensors.numpy.load_file(path).items()}


def by_safetensors_bytes(path):
    with open(path, "rb") as file:
        return safetensors.torch.load(file.read())


def by_tensorizer(**options):
    def read(path):
        with tensorizer.TensorDeserializer(path, device="cpu", **options) as found:
            return keep_all(found)

    return read


def by_torch(**options):
    return lambda path: keep_all(torch.load(path, **options))


MAPPED = {"torch.load mmap": by_torch(mmap=True)} if "mmap" in inspect.signature(torch.load).parameters else {}  # torch 2.1
READERS = {
    "m.safetensors": {"safe_open": by_safe_open, "load_file": lambda path: keep_all(safetensors.torch.load_file(path)),
                      "safetensors.numpy": by_safetensors_numpy, "safetensors bytes": by_safetensors_bytes},
    "m.tensors": {"tensorizer": by_tensorizer(), "tensorizer lazy": by_tensorizer(lazy_load=True),
                  "tensorizer readers": by_tensorizer(num_readers=2), "tensorizer verify": by_tensorizer(verify_hash=True)},
    "m.pt": {"torch.load": by_torch(), "weights_only": by_torch(weights_only=True),
             "zipslicer": lambda path: keep_all(zipslicer.load(path)), **MAPPED},
}


def make(path):
    if path.endswith(".pt"):
        torch.save(OLD, path)
    elif path.endswith(".tensors"):
        writer = tensorizer.TensorSerializer(path)
        writer.write_state_dict(OLD)
        writer.close()
    else:
        safetensors.torch.save_file(OLD, path)
        with sluice.edit(path) as changes:  # its head has room from now on
            changes["room"] = torch.ones(1)
        with sluice.edit(path) as changes:
            del changes["room"]


def edit(path, wanted):
    with sluice.edit(path) as changes:
        for name, tensor in wanted.items():
            if tensor is not OLD.get(name):
                changes[name] = tensor


def killed_at(nth, path, wanted):
    """Was the edit killed? It may need fewer calls."""
    child = os.fork()
    if child == 0:
        KILLER.edit_killer_arm(nth)
        edit(path, wanted)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0


def equal(found, wanted):
    return set(found) == set(wanted) and all(found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name]) for name in wanted)


def verdict(read, path, new):
    try:
        found = read(path)
    except Exception:  # whatever the original raises
        return "refused"
    assert equal(found, OLD) or equal(found, new), f"neither the old content nor the new one: {found}"
    return "new" if equal(found, new) else "old"


def try_all(path, saved, wanted, counts):
    """Whether the edit was killed between its mark and its end at least once."""
    readers, node, nth = READERS[os.path.basename(path)], os.stat(path).st_ino, 1
    refused = 0
    while True:
        shutil.copyfile(saved, path)
        killed = killed_at(nth, path, wanted)
        assert os.stat(path).st_ino == node, "it was not changed where it lies"
        said = {name: verdict(read, path, wanted) for name, read in readers.items()}
        assert len(set(said.values())) == 1, f"call {nth}: {said}"
        with sluice.edit(path):
            pass
        with sluice.open(path, framework="torch") as model:
            after = "new" if equal(keep_all(model), wanted) else "old"
        assert after == ("new" if "refused" in said.values() else said[next(iter(said))]), f"call {nth}: {said}, then {after}"
        for name, read in readers.items():
            assert verdict(read, path, wanted) == after, f"call {nth}: {name} after sluice"
            counts[name][said[name]] += 1
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)] or after == "old", os.listdir(os.path.dirname(path))
        refused += "refused" in said.values()
        if not killed:
            return refused
        nth += 1


def leave(path):
    saved = path + ".saved"
    shutil.copyfile(path, saved)
    read, nth = next(iter(READERS[os.path.basename(path)].values())), 1
    while verdict(read, path, SAME) != "refused":
        shutil.copyfile(saved, path)
        assert killed_at(nth, path, SAME), "never between mark and end"
        nth += 1
    os.unlink(saved)


def main(path, *left):
    if left:
        leave(path)
        return
    counts = {name: {"old": 0, "refused": 0, "new": 0} for name in READERS[os.path.basename(path)]}
    make(path)
    saved = os.path.dirname(path) + ".saved"
    shutil.copyfile(path, saved)
    for wanted in (SAME, MORE):
        assert try_all(path, saved, wanted, counts) > 0, "never between mark and end"
    print(json.dumps(counts))


main(*sys.argv[1:])
