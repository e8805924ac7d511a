"""What is small costs little: no threads, no lists that nobody asked for; and it is as right as what is large."""
import contextlib
import os
import threading
import unittest
from unittest import mock

import torch
from case import Case, Server, bits, make, needs_writing, tensors

import sluice
import sluice.safetensors


@contextlib.contextmanager
def threads():
    """Of those that begin: their names."""
    begun, start = [], threading.Thread.start

    def counted(thread):
        begun.append(thread.name)
        start(thread)

    with mock.patch.object(threading.Thread, "start", counted):
        yield begun


class Small(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        make(self.made, self.path)

    def look(self, model):
        self.assertEqual(model["wide"].tolist(), self.made["wide"].tolist())
        self.assertEqual(model.slice("wide")[1:3, ::2].tolist(), self.made["wide"][1:3, ::2].tolist())

    def test_a_small_read_of_a_local_file_begins_no_thread(self):
        with threads() as begun:
            for place in (self.path, f"file://{self.path}", os.path.relpath(self.path)):
                with sluice.open(place, framework="torch") as model:
                    self.look(model)
                sluice.open(place)["wide"].numpy()
        self.assertEqual(begun, [])

    @needs_writing
    def test_what_is_checked_is_read_without_a_thread_and_checked(self):
        path = self.at("m.tensors")
        sluice.save({"a": torch.arange(1000.0), "b": torch.ones(9)}, path)
        with threads() as begun, sluice.open(path, framework="torch") as model:
            self.assertEqual(model["a"].tolist(), list(range(1000)))
        self.assertEqual(begun, [])
        with open(path, "r+b") as file:
            data = file.read()
            file.seek(data.rindex(bits(torch.arange(1000.0))))
            file.write(b"!")
        with sluice.open(path, framework="torch") as model, self.assertRaises(sluice.SluiceError) as found:
            model["a"]
        self.assertEqual(found.exception.kind, "INTEGRITY")

    def test_what_may_wait_can_be_interrupted(self):
        large = self.at("large.safetensors")
        make({"rows": torch.zeros(1 << 10, 1 << 10)}, large)
        with contextlib.closing(Server(self.path)) as server, threads() as begun:
            with sluice.open(server.url, framework="torch") as model:
                self.look(model)
            self.assertGreaterEqual(begun.count("sluice"), 3, "of a server")
            del begun[:]
            with sluice.open(large, framework="torch", timeout=60) as model:
                model.slice("rows")[:, 1:]
            self.assertEqual(begun.count("sluice"), 2, "of much, or with a limit")

    def test_names_are_found_alone_as_in_the_list(self):
        names = list(self.made)
        with sluice.open(self.path, framework="torch") as alone, sluice.open(self.path, framework="torch") as listed:
            self.assertEqual(set(listed), set(names))
            for name in names[:6]:
                self.assertEqual(alone.meta(name), listed.meta(name))
            self.assertNotIn("_tensors", alone.__dict__)
            for name in ("missing", "", "wide\0", 5, None):
                for model in (alone, listed):
                    with self.assertRaises(KeyError) as found:
                        model[name]
                    self.assertEqual(found.exception.args, (name,))

    def test_the_door_of_safetensors_lists_nothing_that_nobody_asked_for(self):
        with sluice.safetensors.safe_open(self.path, "pt") as file:
            self.assertEqual(file.get_tensor("wide").tolist(), self.made["wide"].tolist())
            self.assertEqual(file.get_slice("wide")[1:3].tolist(), self.made["wide"][1:3].tolist())
            self.assertNotIn("_tensors", file._inner.model.__dict__)
            with self.assertRaisesRegex(sluice.safetensors.SafetensorError, "does not contain tensor missing"):
                file.get_tensor("missing")
            self.assertEqual(file.keys(), sorted(self.made))

    def test_a_data_file_is_not_a_tensor(self):
        with open(self.at("config.json"), "w") as file:
            file.write("{}")
        with sluice.open(self.folder + "/") as model:
            with self.assertRaises(KeyError):
                model["config.json"]
            self.assertEqual(bytes(model.files["config.json"].memoryview()), b"{}")


if __name__ == "__main__":
    unittest.main()
