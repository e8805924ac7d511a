"""Slices and little tensors of a local file, one after another: it is mapped once, and each is as right as the first."""
import os
import shutil
import threading
import unittest
from unittest import mock

import numpy
import torch
from case import Case, make, tensors

import sluice
import sluice.safetensors
from sluice._native import Source

FRAMEWORKS = ("torch", "numpy")


def mappings(path):
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum(path in line for line in file)


class Looks(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        make(self.made, self.path)

    def test_slices_map_their_tensor_once(self):
        for framework in FRAMEWORKS:
            with sluice.open(self.path, framework=framework) as model, mock.patch.object(Source, "map", autospec=True, side_effect=Source.map) as mapped:
                kept = model.slice("wide")
                for row in range(4):
                    for found in (kept[row], model.slice("wide")[row], model.shard("wide", 0, row, 4)[0]):
                        self.assertEqual(found.tolist(), self.made["wide"][row].tolist())
                        found[:] = -1  # the caller's own
                self.assertEqual(mapped.call_count, 1)
            self.assertEqual(mappings(self.path), 0)

    def test_so_do_those_of_the_door(self):
        with sluice.safetensors.safe_open(self.path, "np") as file, mock.patch.object(Source, "map", autospec=True, side_effect=Source.map) as mapped:
            for _ in range(3):
                self.assertEqual(file.get_slice("wide")[1:3, 2:4].tolist(), self.made["wide"][1:3, 2:4].tolist())
            self.assertEqual(mapped.call_count, 1)

    def replaced(self):
        shutil.copyfile(self.path, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def changed(self):
        with open(self.path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")

    def fifo(self):
        os.remove(self.path)
        os.mkfifo(self.path)

    def test_a_file_that_is_not_what_it_was_is_noticed(self):
        ways = {
            "replaced": (self.replaced, "INTEGRITY"), "changed": (self.changed, "INTEGRITY"), "touched": (lambda: os.utime(self.path, (1, 1)), "INTEGRITY"),
            "shorter": (lambda: os.truncate(self.path, os.path.getsize(self.path) - 1), "INTEGRITY"), "gone": (lambda: os.remove(self.path), "NOT_FOUND"),
            "a pipe": (self.fifo, "USAGE"),
        }
        for framework in FRAMEWORKS:
            for what, (happens, kind) in ways.items():
                if os.path.lexists(self.path):
                    os.remove(self.path)
                make(self.made, self.path)
                with self.subTest(framework=framework, what=what), sluice.open(self.path, framework=framework) as model:
                    kept = model.slice("wide")
                    self.assertEqual(kept[0, 0], 0)
                    self.assertEqual(model["wide"][0, 0], 0)
                    happens()
                    for taken in (lambda: kept[0, 0], lambda: model.slice("wide")[0, 0], lambda: kept[0, 0], lambda: model["wide"], lambda: model["int8"]):
                        with self.assertRaises(sluice.SluiceError) as found:
                            taken()
                        self.assertEqual(found.exception.kind, kind)

    def test_what_is_little_is_mapped_once_a_file_and_right(self):
        """All but the first are read to their place."""
        for framework in FRAMEWORKS:
            with sluice.open(self.path, framework=framework) as model, mock.patch.object(Source, "map", autospec=True, side_effect=Source.map) as mapped:
                for _ in range(2):
                    for name, made in self.made.items():
                        if framework == "torch" or hasattr(numpy, str(made.dtype)[len("torch."):]):
                            found = model[name]
                            self.assertEqual((found.tolist(), tuple(found.shape)), (made.tolist(), tuple(made.shape)), name)
                            if made.numel():
                                found[...] = 0  # the caller's own
                self.assertEqual(mapped.call_count, 1)
            self.assertEqual(mappings(self.path), 0)

    def test_a_model_that_is_closed_or_canceled_gives_no_slice(self):
        for framework in FRAMEWORKS:
            model = sluice.open(self.path, framework=framework)
            kept = model.slice("wide")
            self.assertEqual(kept[1, 1], 7)
            self.assertEqual(model["wide"][1, 1], 7)
            model.cancel()
            self.assertEqual(mappings(self.path), 0)
            with self.assertRaises(sluice.SluiceError) as found:
                kept[1, 1]
            self.assertEqual(found.exception.kind, "CANCELED")
            with self.assertRaises(sluice.SluiceError):
                model["wide"]
            model.close()
            with self.assertRaisesRegex(ValueError, "the model is closed"):
                kept[1, 1]
            with self.assertRaisesRegex(ValueError, "the model is closed"):
                model["wide"]

    def test_what_was_mapped_while_the_model_was_closed_is_not_kept(self):
        model, inside, goes_on, real = sluice.open(self.path, framework="torch"), threading.Event(), threading.Event(), Source.map

        def slow(source, number):
            held = real(source, number)
            inside.set()
            goes_on.wait()
            return held

        with mock.patch.object(Source, "map", slow):
            thread = threading.Thread(target=lambda: model.slice("wide")[1])
            thread.start()
            inside.wait()
            model.close()
            goes_on.set()
            thread.join()
        self.assertEqual(mappings(self.path), 0)

    def test_only_the_last_tensor_stays_mapped(self):
        many, count = self.at("many.safetensors"), 6
        make({f"t{number}": torch.full((5,), number) for number in range(count)}, many)
        for framework in FRAMEWORKS:
            with sluice.open(many, framework=framework) as model:
                for _ in range(2):
                    for number in range(count):
                        self.assertEqual(model.slice(f"t{number}")[2:4].tolist(), [number] * 2)
                        self.assertEqual(mappings(many), 1)

    def test_a_process_that_was_forked_looks_for_itself(self):
        model = sluice.open(self.path, framework="numpy")
        kept = model.slice("wide")
        self.assertEqual(kept[1, 1], 7)
        child = os.fork()
        if not child:
            right = mappings(self.path) == 0 and kept[1, 1] == 7 and mappings(self.path) == 1
            self.replaced()
            try:
                kept[1, 1]
            except sluice.SluiceError as error:
                os._exit(0 if right and error.kind == "INTEGRITY" else 3)
            os._exit(4)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        with self.assertRaises(sluice.SluiceError):
            kept[1, 1]


if __name__ == "__main__":
    unittest.main()
