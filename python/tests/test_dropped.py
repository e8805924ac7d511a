"""What is dropped is gone at once: the collector of cycles is off. Each way to read × store × framework, and what exceptions keep."""
import contextlib
import ctypes
import gc
import itertools
import os
import unittest
from unittest import mock

import torch
from case import Case, Server, make

import sluice
from sluice import _ahead, safetensors, tensorizer, zipslicer

COUNT, NBYTES = 8, 8 << 20
# What a way has at once: one tensor; what was taken and three groups.
ONE, GROUPS = NBYTES, 4 * NBYTES


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def memory(peak=False):
    with open("/proc/self/status") as file:
        told = dict(line.split(":", 1) for line in file)
    return int(told["VmHWM" if peak else "VmRSS"].split()[0]) * 1024


def grown_by(work):
    """How much memory this process has at most, beside what it had before."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory()
    work()
    return memory(peak=True) - before


def each(model):
    for name in list(model):
        touched(model[name])


def parts(model):
    for name in list(model):
        touched(model.slice(name)[1:])


def groups(model):
    for _, array in model.stream(group_bytes=NBYTES):
        touched(array)


def loads(model):
    for name in list(model):
        touched(model.load([name])[name])


def touched(array):
    """A mapping has no pages before somebody looks."""
    array.sum()


# Of a server two groups of those that come next, too, which are of one tensor here.
WAYS = {"model[name]": (each, GROUPS), "slice": (parts, ONE), "load": (loads, GROUPS), "stream": (groups, GROUPS)}


class Dropped(Case):
    @classmethod
    def setUpClass(cls):
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: what is given back goes to the system, and is seen to
        gc.collect()
        gc.disable()

    @classmethod
    def tearDownClass(cls):
        gc.enable()

    def setUp(self):
        super().setUp()
        self.path = self.at("m.safetensors")
        make({f"t{number:02}": torch.full((NBYTES // 4,), float(number)) for number in range(COUNT)}, self.path)
        self.server = Server(self.path)
        self.addCleanup(self.server.close)
        ahead = mock.patch.multiple(_ahead, AHEAD_BYTES=NBYTES, FIRST_BYTES=NBYTES)
        ahead.start()
        self.addCleanup(ahead.stop)

    def assertBounded(self, work, most, what):
        work()  # what is imported and kept once
        self.assertLess(grown_by(work) / NBYTES, most / NBYTES + 1, what)

    def test_each_way_to_read_from_each_store_with_each_framework(self):
        for (way, (read, most)), uri, framework in itertools.product(WAYS.items(), (self.path, self.server.url), ("torch", "numpy")):
            with self.subTest(way=way, uri=uri, framework=framework), sluice.open(uri, framework=framework) as model:
                self.assertBounded(lambda: read(model), most, (way, uri, framework))

    def test_tensors_without_a_framework(self):
        for uri in (self.path, self.server.url):
            with self.subTest(uri=uri), sluice.open(uri) as model:
                self.assertBounded(lambda: [model[name].numpy().sum() for name in model], ONE, uri)

    def test_the_doors(self):
        tensors, checkpoint = self.at("m.tensors"), self.at("m.pt")
        sluice.save({name: array for name, array in sluice.load(self.path).items()}, tensors)
        torch.save(sluice.load(self.path), checkpoint)

        def door(path):
            with safetensors.safe_open(path, framework="pt") as file:
                for name in list(file.keys()):
                    touched(file.get_tensor(name))

        def serialized(uri):  # which keeps what it gave, as the original does
            with tensorizer.TensorDeserializer(uri, lazy_load=True) as file:
                for name in list(file.keys()):
                    touched(file[name])

        def again(uri):
            for _ in range(3):
                serialized(uri)

        def sliced(path):
            file = zipslicer.load(path)
            for name in list(file):
                touched(file[name])
            file.close()

        with contextlib.closing(Server(tensors)) as server:
            for what, read, where, most in (("safetensors", door, self.path, ONE), ("zipslicer", sliced, checkpoint, ONE),
                                            ("tensorizer", again, tensors, COUNT * NBYTES),
                                            ("tensorizer, HTTP", again, server.url, COUNT * NBYTES)):
                with self.subTest(door=what):
                    self.assertBounded(lambda: read(where), most, what)

    def test_what_was_cast_is_not_kept_twice(self):
        def work():
            found = sluice.load(self.server.url, dtype=torch.float64)
            self.assertEqual(found["t03"][7], 3.0)

        self.assertBounded(work, 3 * COUNT * NBYTES, "what was read, and what it became")
        self.assertBounded(lambda: sluice.load(self.server.url), COUNT * NBYTES, "again and again")


class Raised(Case):
    def setUp(self):
        super().setUp()
        self.path = self.at("m.safetensors")
        make({f"t{number}": torch.arange(64.0) for number in range(40)}, self.path)
        self.server = Server(self.path)
        self.addCleanup(self.server.close)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def assertNothingLeft(self, work):
        work()
        before = descriptors()
        for _ in range(20):
            work()
        self.server.await_idle(10)
        self.assertLessEqual(descriptors(), before + 10, "what ended leaves some open")

    def test_a_stream_that_is_left(self):
        def work():
            for _ in sluice.stream(self.server.url, group_bytes=256):
                break

        self.assertNothingLeft(work)

    def test_a_callback_that_raises(self):
        def stop(done, total):
            raise KeyError("enough")

        for way in (sluice.load, lambda uri, progress: list(sluice.stream(uri, progress=progress)), sluice.open):
            def work():
                with self.assertRaises(KeyError):
                    way(self.server.url, progress=stop)

            self.assertNothingLeft(work)

    def test_a_load_that_fails(self):
        def work():
            with self.assertRaises(sluice.SluiceError):
                sluice.load(self.path + ".not")

        self.assertNothingLeft(work)


if __name__ == "__main__":
    unittest.main()
