"""The package in any Python that it is for, with NumPy where that is there, and with nothing else."""
import asyncio
import contextlib
import importlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import sluice
from sluice._frameworks import aligned_array
from sluice._library import library

try:
    import numpy
except ImportError:
    numpy = None
needs_numpy = unittest.skipUnless(numpy, "no NumPy")
needs_writing = unittest.skipUnless(hasattr(library, "sluice_create"), "this libsluice does not write")
VALUES = bytes(range(48))


def write(path, count=3):
    """Tensors t0, t1, … of 3 x 4 float32."""
    head = {f"t{number}": {"dtype": "F32", "shape": [3, 4], "data_offsets": [48 * number, 48 * (number + 1)]} for number in range(count)}
    text = json.dumps({**head, "__metadata__": {"format": "pt"}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + VALUES * count)


class Plain(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "m.safetensors")
        write(self.path)

    def test_a_model_is_a_mapping_of_tensors(self):
        with sluice.open(self.path) as model:
            self.assertEqual((list(model), len(model), "t1" in model, "x" in model), (["t0", "t1", "t2"], 3, True, False))
            self.assertEqual(bytes(model["t1"].memoryview()), VALUES)
            self.assertEqual((model.meta("t1").shape, model.metadata(), model.format), ((3, 4), {"format": "pt"}, "safetensors"))
            again = pickle.loads(pickle.dumps(model))
            self.assertEqual((again.identity, bytes(again["t2"].memoryview())), (model.identity, VALUES))
        with self.assertRaises(sluice.SluiceError) as found:
            sluice.open(self.path + "x")
        self.assertEqual(found.exception.kind, "NOT_FOUND")

    def brought(self, use):
        """Modules, by a program that imports sluice and does this."""
        program = f"import sys; before = set(sys.modules); import sluice; {use}; print(*sorted(set(sys.modules) - before))"
        return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())

    def test_what_is_not_used_is_not_imported(self):
        large = {"asyncio", "logging", "tempfile", "shutil", "html", "hashlib", "secrets", "random", "numpy", "torch", "json"}
        alone = {name for name in self.brought("sluice") if name.startswith("sluice.")}
        self.assertEqual(alone, {"sluice._error", "sluice._library"})
        found = self.brought(f"list(sluice.open({self.path!r}))")
        self.assertIn("sluice._model", found)
        self.assertEqual(found & (large | {"sluice._pool", "sluice._write", "sluice._aio"}), set())
        self.assertIn("sluice._pool", self.brought("sluice.attach"))

    def test_each_name_is_there_as_its_module_has_it(self):
        self.assertEqual({*sluice._PLACES, *(name for name in sluice.__all__ if name.startswith("Sluice"))}, {*sluice.__all__, "open"})
        self.assertLessEqual({*sluice.__all__, "open", "__version__"}, set(dir(sluice)))
        for name in sluice._PLACES:
            module = importlib.import_module(f"sluice.{sluice._PLACES[name]}")
            self.assertIs(getattr(sluice, name), module if name == "pool" else getattr(module, "open_model" if name == "open" else name))
        self.assertEqual(repr(sluice.open).split()[1], "open")
        with self.assertRaisesRegex(AttributeError, "module 'sluice' has no attribute 'opne'"):
            sluice.opne
        there = {}
        exec("from sluice import *", there)
        self.assertIs(there["load"], sluice.load)
        self.assertNotIn("open", there)

    @needs_numpy
    def test_numpy_loads_slices_streams_and_saves(self):
        want = numpy.frombuffer(VALUES, "<f4").reshape(3, 4)
        with sluice.open(self.path, framework="numpy") as model:
            self.assertEqual(model["t0"].tobytes(), VALUES)
            self.assertEqual(model.slice("t1")[::-1, 1:].tobytes(), want[::-1, 1:].tobytes())
            self.assertEqual(model.shard("t1", 0, 1, 3).tobytes(), want[1:2].tobytes())
        self.assertEqual(dict(sluice.stream(self.path, framework="numpy", group_bytes=1)).keys(), {"t0", "t1", "t2"})
        self.assertEqual(numpy.from_dlpack(sluice.open(self.path)["t2"]).tobytes(), VALUES)
        if hasattr(library, "sluice_create"):
            for name in ("out.safetensors", "out.tensors"):
                sluice.save({"w": want}, os.path.join(self.folder, name))
                self.assertEqual(sluice.load(os.path.join(self.folder, name), framework="numpy")["w"].tobytes(), VALUES)

    @needs_numpy
    def test_arrays_to_read_into_begin_with_a_cache_line(self):
        for kind, shape in (("<f4", (1 << 20,)), ("<f2", (3, 5)), ("|u1", ()), ("<f8", (2, 0, 3)), ("?", (65,))):
            array = aligned_array(kind, shape)
            self.assertEqual((array.dtype, array.shape, array.ctypes.data % 64 if array.size else 0), (numpy.dtype(kind), shape, 0))
            self.assertTrue(array.flags.c_contiguous and array.flags.writeable)
            array[...] = 1
            self.assertEqual(int(array.sum()), array.size)

    def test_awaited_calls_and_objects_as_files(self):
        async def work():
            return await sluice.aopen(self.path)

        with asyncio.run(work()) as model:
            self.assertEqual(bytes(model["t0"].memoryview()), VALUES)
        self.assertEqual([one.name for one in sluice.ls(self.folder + "/")], ["m.safetensors"])
        with contextlib.closing(sluice.open_file(self.path)) as file:
            self.assertIsInstance(file, io.BufferedReader)
            file.seek(-48, io.SEEK_END)
            self.assertEqual(file.read(), VALUES)
        sluice.pull(self.path, os.path.join(self.folder, "pulled"))
        self.assertTrue(os.path.exists(os.path.join(self.folder, "pulled", "m.safetensors")))

    def test_an_interpreter_ends_with_everything_open(self):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", """
import os, sys, sluice
model = sluice.open(sys.argv[1])
kept, view = model["t0"], model["t1"].memoryview()
stream = model.stream(group_bytes=1)
next(stream)
child = os.fork()
if not child:
    sys.exit(0 if bytes(model["t2"].memoryview()) == bytes(view) else 3)
status = os.waitpid(child, 0)[1]
print(os.WEXITSTATUS(status), os.WIFEXITED(status), len(list(stream)))
""", self.path], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, "0 True 2\n"), done.stderr)

    def test_every_module_imports_without_a_framework(self):
        done = subprocess.run([sys.executable, "-c", """
import importlib, pkgutil, sluice
for module in pkgutil.walk_packages(sluice.__path__, "sluice."):
    if module.name.split(".")[-1] in ("vllm", "sglang", "transformers"):  # of an engine
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "jax", "flax"):
            raise
    print(module.name)
"""], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sluice.safetensors.numpy", done.stdout.split())


if __name__ == "__main__":
    unittest.main()
