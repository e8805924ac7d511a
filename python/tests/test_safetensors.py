"""sluice.safetensors beside safetensors, on the same input: results, types, errors."""
import unittest
import warnings

import numpy
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from case import Case, needs_writing, tensors

import sluice.safetensors as door
import sluice.safetensors.numpy
import sluice.safetensors.torch


class Beside(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        safetensors.torch.save_file(self.made, self.path, metadata={"a": "b"})

    @needs_writing
    def test_bytes_are_equal(self):
        self.assertEqual(sluice.safetensors.torch.save(self.made, {"a": "b"}), safetensors.torch.save(self.made, {"a": "b"}))
        arrays = {"x": numpy.arange(6).reshape(2, 3), "y": numpy.ones(3, numpy.float16), "z": numpy.zeros((0, 2))}
        self.assertEqual(sluice.safetensors.numpy.save(arrays), safetensors.numpy.save(arrays))
        sluice.safetensors.torch.save_file(self.made, self.at("ours.safetensors"), {"a": "b"})
        with open(self.path, "rb") as theirs, open(self.at("ours.safetensors"), "rb") as ours:
            self.assertEqual(ours.read(), theirs.read())

    @needs_writing
    def test_files_of_numpy_are_the_same(self):
        arrays, doors = {"x": numpy.arange(6).reshape(2, 3), "y": numpy.ones(3, numpy.float16)}, (sluice.safetensors.numpy, safetensors.numpy)
        for writes in doors:
            writes.save_file(arrays, self.at("n.safetensors"), {"a": "b"})
            with open(self.at("n.safetensors"), "rb") as file:
                data = file.read()
            for reads in doors:
                for found in (reads.load_file(self.at("n.safetensors")), reads.load(data)):
                    self.assertEqual({name: (array.dtype, array.tolist()) for name, array in found.items()},
                                     {name: (array.dtype, array.tolist()) for name, array in arrays.items()})
        for call in (lambda door: door.load_file(self.at("none")), lambda door: door.load(b"abc"), lambda door: door.save_file({"a": 5}, self.at("x"))):
            (_, wrong), (_, error) = self.both([lambda: call(doors[0]), lambda: call(doors[1])])
            self.assertEqual((wrong, error is None), (error, False))

    def test_tensors_are_equal(self):
        self.assertSame(sluice.safetensors.torch.load_file(self.path), safetensors.torch.load_file(self.path))
        with open(self.path, "rb") as file:
            data = file.read()
        ours, theirs = sluice.safetensors.torch.load(data), safetensors.torch.load(data)
        self.assertSame({name: ours[name] for name in sorted(ours)}, {name: theirs[name] for name in sorted(theirs)})
        self.assertEqual(
            sorted((name, view["dtype"], view["shape"], bytes(view["data"])) for name, view in door.deserialize(data)),
            sorted((name, view["dtype"], view["shape"], bytes(view["data"])) for name, view in safetensors.deserialize(data)),
        )

    def test_an_open_file_answers_the_same(self):
        with door.safe_open(self.path, "pt") as ours, safetensors.safe_open(self.path, "pt") as theirs:
            self.assertIs(ours.__enter__(), ours)
            self.assertIs(theirs.__enter__(), theirs)
            for call in ("keys", "offset_keys", "metadata"):
                self.assertEqual(getattr(ours, call)(), getattr(theirs, call)(), call)
            self.assertSame(ours.get_tensors(), theirs.get_tensors())
            for name in theirs.keys():
                self.assertEqual(ours.get_slice(name).get_shape(), theirs.get_slice(name).get_shape())
                self.assertEqual(ours.get_slice(name).get_dtype(), theirs.get_slice(name).get_dtype())

    def test_slices_and_their_errors_are_the_same(self):
        for options in ({"framework": "pt"}, {"framework": "np"}, {"framework": "pt", "backend": "pread"}):
            self.compare_slices(options)

    def compare_slices(self, options):
        warnings.simplefilter("ignore")
        with door.safe_open(self.path, **options) as ours, safetensors.safe_open(self.path, **options) as theirs:
            for index in (
                numpy.s_[:], (), numpy.s_[:2], numpy.s_[:, :2], 0, -1, numpy.s_[1, 2], numpy.s_[..., 1], numpy.s_[::2],
                numpy.s_[:, 1:5:3], numpy.s_[3:3], numpy.s_[9:], numpy.s_[:9], 4, -5, numpy.s_[::-1], numpy.s_[::0], numpy.s_[-2:], numpy.s_[4:], numpy.s_[5:5], True,
                (0, 0, 0), (..., ...), [], [0], "a", None, numpy.s_[0:0], torch.tensor([0]), torch.tensor(0), torch.tensor(True), [torch.tensor([0])],
                numpy.array([0]), (torch.tensor([1]), 0),
            ):
                (mine, wrong), (yours, error) = self.both([lambda: ours.get_slice("wide")[index], lambda: theirs.get_slice("wide")[index]])
                self.assertEqual(wrong, error, (options, index))
                if error is None:
                    self.assertEqual((tuple(mine.shape), mine.tolist()), (tuple(yours.shape), yours.tolist()), (options, index))

    def test_errors_are_the_same(self):
        bad = {}
        for name, data in (
            ("short", b"abc"), ("long", b"\xff" * 8), ("json", b"\x02\0\0\0\0\0\0\0[]"), ("cut", b"\x20\0\0\0\0\0\0\0{"),
            ("type", b'\x3a\0\0\0\0\0\0\0{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}     abcd'),
            ("size", b'\x3a\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}    abcd'),
        ):
            bad[name] = self.at(name)
            with open(bad[name], "wb") as file:
                file.write(data)
        for make in (
            lambda module: module.safe_open(self.at("none"), "pt"), lambda module: module.safe_open(self.path, "nope"),
            lambda module: module.safe_open(self.path, "pt", device="nope"), lambda module: module.safe_open(self.path, "pt", backend="x"),
            lambda module: module.safe_open(self.path, "pt").get_tensor("none"), lambda module: module.safe_open(self.path, "pt").get_slice("none"),
            lambda module: module.TensorSpec(dtype="nope", shape=[1], data_ptr=0, data_len=0),
            lambda module: module.serialize({"a": {}}), lambda module: module.deserialize(b"abc"),
            *(lambda module, path=path: module.safe_open(path, "pt") for path in bad.values()),
        ):
            (_, wrong), (_, error) = self.both([lambda: make(door), lambda: make(safetensors)])
            self.assertEqual(wrong, error)
            self.assertIsNotNone(error)

    @needs_writing
    def test_saving_refuses_the_same(self):
        shared = torch.zeros(4)
        for made in (
            {"a": shared, "b": shared[:2]}, {"a": shared[::2]}, [shared], {"a": 5}, {"a": shared, "b": shared},
            {"a": torch.zeros(2, device="meta")},
        ):
            (_, wrong), (_, error) = self.both(
                [lambda: sluice.safetensors.torch.save(made), lambda: safetensors.torch.save(made)]
            )
            self.assertEqual((wrong, error is None), (error, False), made)

    @needs_writing
    def test_modules_with_tied_weights(self):
        def module():
            made = torch.nn.Sequential(torch.nn.Linear(3, 3))
            made.tied = made[0]
            return made

        first = module()
        sluice.safetensors.torch.save_model(first, self.at("ours"))
        safetensors.torch.save_model(first, self.at("theirs"))
        for path in (self.at("ours"), self.at("theirs")):
            for load_model in (sluice.safetensors.torch.load_model, safetensors.torch.load_model):
                second = module()
                missing, unexpected = load_model(second, path)
                self.assertEqual((set(missing), list(unexpected)), (set(), []))
                self.assertSame(second.state_dict(), first.state_dict())
            with door.safe_open(path, "pt") as ours:
                self.assertEqual(ours.metadata(), {"tied.bias": "0.bias", "tied.weight": "0.weight"})
        with self.assertRaises(RuntimeError):
            sluice.safetensors.torch.load_model(torch.nn.Linear(3, 3), self.at("ours"))


if __name__ == "__main__":
    unittest.main()
