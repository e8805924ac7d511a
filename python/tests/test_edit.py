"""sluice.edit: files that are changed where they lie, read afterwards by their own packages."""
import inspect
import os
import unittest

import safetensors
import safetensors.torch
import torch
from case import Case, bits, needs_editing, needs_writing

import sluice
import sluice.zipslicer as door


@needs_editing
class Edited(Case):
    def setUp(self):
        super().setUp()
        self.made = {"a": torch.arange(1000.0), "b": torch.arange(12).reshape(3, 4), "c": torch.ones(7, dtype=torch.bfloat16)}

    def safetensors_file(self):
        path = self.at("m.safetensors")
        safetensors.torch.save_file(self.made, path, metadata={"kept": "yes"})
        return path

    def torch_file(self, made=None):
        path = self.at("m.pt")
        torch.save(self.made if made is None else made, path)
        return path

    def change(self, path, **options):
        """Replaced with the same size and with another one, appended, deleted."""
        new = {"a": torch.zeros(1000), "b": torch.full((2, 2), 5, dtype=torch.int16), "d": torch.tensor(2.5), "e": torch.ones(3, 3).half()}
        with sluice.edit(path, **options) as changes:
            for name, tensor in new.items():
                changes[name] = tensor
            del changes["c"]
        return new

    def assertAll(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, tensor in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape, bits(found[name])), (tensor.dtype, tensor.shape, bits(tensor)), name)

    def test_safetensors_reads_what_was_changed(self):
        for copy in (False, True):
            path = self.safetensors_file()
            new = self.change(path, copy=copy)
            self.assertAll(safetensors.torch.load_file(path), new)
            with safetensors.safe_open(path, "pt") as file:
                self.assertEqual(file.metadata(), {"kept": "yes"})

    def test_appending_again_leaves_the_file_where_it_is(self):
        path = self.safetensors_file()
        with sluice.edit(path) as changes:
            changes["small"] = torch.ones(3, dtype=torch.uint8)  # what comes next begins at an odd place
        node = os.stat(path).st_ino
        for number in range(20):
            with sluice.edit(path) as changes:
                changes.append(f"more.{number}", torch.full((number,), float(number)))
        self.assertEqual(os.stat(path).st_ino, node)
        found = safetensors.torch.load_file(path)
        self.assertEqual(found["more.19"].tolist(), [19.0] * 19)
        self.assertEqual(len(found), 24)

    def test_torch_reads_what_was_changed(self):
        path = self.torch_file()
        mapped = [{"mmap": True}] if "mmap" in inspect.signature(torch.load).parameters else []  # torch 2.1
        for _ in range(3):  # over and over
            new = self.change(path)
            for options in ({"weights_only": True}, {"weights_only": False}, *mapped):
                self.assertAll(torch.load(path, **options), new)
            self.assertAll(sluice.load(path), new)
            with sluice.edit(path) as changes:
                changes["c"] = self.made["c"]

    def test_torch_keeps_what_is_around_and_shared(self):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        module[1].weight = module[0].weight
        small = getattr(torch, "float8_e4m3fn", torch.bfloat16)  # torch 2.1
        path = self.torch_file({"model": module.state_dict(), "epoch": 7, "rate": 0.25, "names": ["x", None, True], "more": {1: (2, b"b")}})
        before = torch.load(path, weights_only=False)
        with sluice.edit(path) as changes:
            changes["model.0.weight"] = torch.zeros(2, 2)
            changes["model.1.bias"] = torch.ones(4).to(small)
        after = torch.load(path, weights_only=False)
        self.assertEqual({name: after[name] for name in before if name != "model"}, {name: before[name] for name in before if name != "model"})
        self.assertEqual(after["model"]["0.weight"].tolist(), [[0, 0], [0, 0]])
        self.assertEqual(bits(after["model"]["1.weight"]), bits(before["model"]["1.weight"]))
        self.assertEqual(after["model"]["1.bias"].dtype, small)
        self.assertEqual(after["model"]._metadata, before["model"]._metadata)

    @needs_writing
    def test_tensorizer_reads_what_was_changed(self):
        import tensorizer

        path = self.at("m.tensors")
        sluice.save(self.made, path)
        new = self.change(path)
        for readers in (1, 4):
            with tensorizer.TensorDeserializer(path, device="cpu", verify_hash=True, num_readers=readers) as found:
                self.assertAll({name: found[name] for name in found.keys()}, new)
        node = os.stat(path).st_ino
        with sluice.edit(path) as changes:
            changes["a"], changes["z"] = torch.ones(1000), torch.ones(5)
        self.assertEqual(os.stat(path).st_ino, node)
        with tensorizer.TensorDeserializer(path, device="cpu", verify_hash=True) as found:
            self.assertEqual(found["z"].tolist(), [1] * 5)

    def test_an_exception_drops_all_changes(self):
        path = self.safetensors_file()
        with self.assertRaises(ZeroDivisionError), sluice.edit(path) as changes:
            changes["a"] = torch.zeros(1)
            raise ZeroDivisionError
        self.assertAll(safetensors.torch.load_file(path), self.made)
        with self.assertRaises(ValueError):
            changes.commit()

    def test_what_cannot_be_done_is_said(self):
        path = self.safetensors_file()
        with sluice.edit(path) as changes:
            with self.assertRaises(sluice.SluiceError) as found:
                sluice.edit(path)
            self.assertEqual(found.exception.code, "busy")
            with self.assertRaises(KeyError):
                changes.replace("absent", torch.ones(1))
            with self.assertRaises(KeyError):
                del changes["absent"]
            with self.assertRaises(TypeError):
                changes[3] = torch.ones(1)
            with self.assertRaises(sluice.SluiceError):
                changes.append("a", torch.ones(1))
        with self.assertRaises(sluice.SluiceError):
            sluice.edit("s3://bucket/key")
        self.assertAll(safetensors.torch.load_file(path), self.made)

    def test_the_door_of_zipslicer_saves_changes(self):
        path = self.torch_file()
        lazy = door.load(path)
        lazy["new"] = torch.ones(2)
        del lazy["a"]
        lazy.save_changes()
        self.assertEqual(list(torch.load(path)), ["b", "c", "new"])
        self.assertEqual((list(lazy), lazy.changed(), lazy.deleted()), (["b", "c", "new"], [], []))


if __name__ == "__main__":
    unittest.main()
