"""What else is tested alone, crossed: encrypted or not, with meta tensors or without, all ways to read, one connection or many, a file or a
server; and what loading a module takes of memory."""
import contextlib
import itertools
import subprocess
import sys
import unittest

import torch
from case import Case, Server, needs_writing

import sluice
import sluice.tensorizer

KEY = sluice.Key.random()


def some():
    """Small ones, one that is read in pieces, one without elements; and a meta tensor, which reads as zeros."""
    torch.manual_seed(1)
    return {"wide": torch.randn(700, 300), "half": torch.randn(5, 7).half(), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5),
            "long": torch.arange(200000)}


def one_by_one(uri, **options):
    with sluice.open(uri, framework="torch", **options) as model:
        return {name: model[name] for name in model}


def lazily(uri, **options):
    with sluice.open(uri, **options) as model:
        return {name: tensor.torch() for name, tensor in model.items()}


def in_halves(uri, **options):
    """Slices, put together again."""
    with sluice.open(uri, framework="torch", **options) as model:
        return {name: torch.cat([model.slice(name)[:2], model.slice(name)[2:]]) if model.meta(name).shape else model.slice(name)[()] for name in model}


def in_parts(uri, **options):
    with sluice.open(uri, framework="torch", **options) as model:
        return {name: torch.cat([model.shard(name, 0, rank, 3) for rank in range(3)]) if model.meta(name).shape else model[name] for name in model}


def by_the_door(lazy, readers):
    def read(uri, key=None, **options):
        encryption = None if key is None else sluice.tensorizer.DecryptionParams.from_key(key.key)
        with sluice.tensorizer.TensorDeserializer(uri, device="cpu", lazy_load=lazy, num_readers=readers, encryption=encryption) as found:
            return {name: tensor.detach() for name, tensor in found.items()}

    return read


WAYS = (
    sluice.load, one_by_one, lazily, in_halves, in_parts, lambda uri, **options: dict(sluice.stream(uri, group_bytes=4096, **options)),
    lambda uri, **options: sluice.load(uri, verify="require", **options), by_the_door(True, 1), by_the_door(False, 3),
)


@needs_writing
class Crossed(Case):
    def test_every_way_reads_what_was_written(self):
        for key, with_meta in itertools.product((None, KEY), (False, True)):
            path, wanted = self.at("m.tensors"), some()
            with sluice.Writer(path, key=key) as writer:
                for name, tensor in wanted.items():
                    writer.write(name, tensor)
                if with_meta:
                    writer.write("meta", torch.empty(300, 11, device="meta"))
                    wanted["meta"] = torch.zeros(300, 11)
            with contextlib.closing(Server(path)) as server:
                for way, uri, connections in itertools.product(range(len(WAYS)), (path, server.url), (1, 8)):
                    options = {} if key is None else {"key": key}
                    if way < len(WAYS) - 2:
                        options["spec"] = {"readers": {"connections": connections}}
                    found = WAYS[way](uri, **options)
                    self.assertEqual(set(found), set(wanted))
                    for name, tensor in wanted.items():
                        self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape))
                        self.assertTrue(torch.equal(found[name], tensor), (key is None, with_meta, way, uri, connections, name))


# How much more memory than before, in MiB: what the process had at most, and what it has now.
MEMORY = """
import sys, torch, sluice
def memory(row):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith(row))
uri, device = sys.argv[1:]
torch.set_num_threads(1)
sluice.load(uri, names=["small"])
module = torch.nn.Module()
module.weight = torch.nn.Parameter(torch.empty(8192, 2048, device=device))
module.small = torch.nn.Parameter(torch.empty(3, device=device))
if device == "cpu":
    module.weight.data.fill_(1)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = memory("VmHWM:")
sluice.load_into_module(module, uri)
assert module.weight[-1, -1].item() == 7, module.weight
print(memory("VmHWM:") - before)
"""


class Memory(Case):
    """64 MiB of weights."""

    def most(self, path, device):
        with contextlib.closing(Server(path)) as server:
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY, server.url, device], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout)

    @needs_writing
    def test_a_module_takes_no_second_copy(self):
        made = {"weight": torch.full((8192, 2048), 7.0), "small": torch.ones(3)}
        for name in ("m.safetensors", "m.tensors"):
            sluice.save(made, self.at(name))
            self.assertLess(self.most(self.at(name), "meta"), 64 + 24, name)
            self.assertLess(self.most(self.at(name), "cpu"), 24, f"{name}: it was there")


if __name__ == "__main__":
    unittest.main()
