"""Tensors, names, keys and numbers that are odd: each is taken as what it is, or refused with a sentence; none becomes another."""
import contextlib
import gc
import os
import unittest

import numpy
import torch
from case import Case, Server, needs_writing
from torch._subclasses.fake_tensor import FakeTensorMode

import sluice
import sluice.safetensors.numpy
import sluice.safetensors.torch
import sluice.tensorizer


def without_memory():
    """Tensors that have not all of their elements."""
    freed, short, view = torch.ones(4), torch.ones(4), torch.ones(4, 4)[:, 1]
    for tensor, elements in ((freed, 0), (short, 2), (view, 4)):
        if hasattr(tensor, "untyped_storage"):
            tensor.untyped_storage().resize_(4 * elements)
        else:  # before torch 2
            tensor.storage().resize_(elements)
    with FakeTensorMode():
        fake = torch.ones(4)
    return {"freed": freed, "short": short, "view": view, "fake": fake}


def secrets():
    """How many memories of credentials are open."""
    places = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum("sluice-credentials" in os.readlink(place) for place in places if os.path.lexists(place))


@needs_writing
class Written(Case):
    def written_by(self, tensor):
        """Everybody who writes."""
        def edited():
            sluice.safetensors.torch.save_file({"a": torch.ones(1)}, self.at("e.safetensors"))
            with sluice.edit(self.at("e.safetensors")) as changes:
                changes["a"] = tensor

        def serialized():
            writer = sluice.tensorizer.TensorSerializer(self.at("s.tensors"))
            writer.write_state_dict({"a": tensor})
            writer.close()

        yield self.at("o.safetensors"), lambda: sluice.save({"a": tensor}, self.at("o.safetensors"))
        yield self.at("o.tensors"), lambda: sluice.save({"a": tensor}, self.at("o.tensors"))
        if isinstance(tensor, torch.Tensor):
            yield self.at("s.tensors"), serialized
        if isinstance(tensor, torch.Tensor) and tensor.is_contiguous():
            yield self.at("d.safetensors"), lambda: sluice.safetensors.torch.save_file({"a": tensor}, self.at("d.safetensors"))
        elif isinstance(tensor, numpy.ndarray):
            yield self.at("d.safetensors"), lambda: sluice.safetensors.numpy.save_file({"a": tensor}, self.at("d.safetensors"))
        if hasattr(sluice._library, "sluice_edit"):
            yield self.at("e.safetensors"), edited

    def test_what_is_not_in_memory_is_not_written(self):
        for what, tensor in without_memory().items():
            for path, write in self.written_by(tensor):
                with self.subTest(what=what, path=path), self.assertRaisesRegex(ValueError, "elements in memory"):
                    write()

    def test_what_is_conjugated_or_negated_is_written_so(self):
        made = torch.tensor([1 + 2j, 3 + 4j])
        for tensor in (made.conj(), made.conj().imag):
            for path, write in self.written_by(tensor):
                with self.subTest(path=path, dtype=tensor.dtype):
                    write()
                    self.assertEqual(sluice.load(path)["a"].tolist(), tensor.tolist())

    def test_masks_are_not_dropped(self):
        masked = numpy.ma.masked_array([1.0, 2.0], mask=[False, True])
        for path, write in self.written_by(masked):
            with self.subTest(path=path), self.assertRaisesRegex(TypeError, "masked array"):
                write()
        for path, write in self.written_by(numpy.ma.masked_array([1.0, 2.0])):
            with self.subTest(path=path):
                write()
                self.assertEqual(sluice.load(path, framework="numpy")["a"].tolist(), [1, 2])

    def test_a_module_without_memory_is_not_what_a_file_says(self):
        net = torch.nn.Linear(2, 2)
        writer = sluice.tensorizer.TensorSerializer(self.at("m.tensors"))
        writer.write_module(net)
        writer.close()
        with sluice.tensorizer.TensorDeserializer(self.at("m.tensors"), verify_hash=True) as found:
            self.assertTrue(found.verify_module(net)[0])
            self.assertEqual(found.verify_module(torch.nn.Linear(2, 2, device="meta"))[0], False)

    def test_a_model_is_written_where_its_writer_was_made(self):
        folder = self.at("folder")
        os.mkdir(folder)
        self.addCleanup(os.chdir, os.getcwd())
        for name in ("o.safetensors", "./o.tensors", "shards/"):
            os.chdir(self.folder)
            writer = sluice.Writer(name, format="tensorizer" if name.endswith(".tensors") else "safetensors")
            writer.write("a", torch.ones(1))
            os.chdir(folder)
            writer.finish()
            self.assertEqual(os.listdir(folder), [])
            self.assertEqual(sluice.load(self.at(name))["a"].tolist(), [1])

    def test_a_forked_process_waits_for_no_thread_of_its_parents_writers(self):
        sluice.safetensors.torch.save_file({"a": torch.ones(1)}, self.at("e.safetensors"))
        writer = sluice.Writer(self.at("w.safetensors"))
        writers = [writer] + ([sluice.edit(self.at("e.safetensors"))] if hasattr(sluice._library, "sluice_edit") else [])
        for one in writers:
            one._lock.acquire()  # as if another thread were inside
            child = os.fork()
            if not child:
                os._exit(0 if one._lock.acquire(blocking=False) else 3)
            one._lock.release()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, one)
            one.abandon()

    def test_nested_tensors_are_refused(self):
        for layout in ({}, {"layout": torch.jagged}) if hasattr(torch, "jagged") else ({},):
            with self.assertRaisesRegex(TypeError, "cannot write 'a': a nested tensor"):
                sluice.save({"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **layout)}, self.at("n.tensors"))

    def test_an_error_says_of_which_tensor(self):
        for call in (
            lambda: sluice.save({"layer.3": torch.eye(2).to_sparse()}, self.at("n.tensors")),
            lambda: sluice.save({"layer.3": numpy.array([None])}, self.at("n.tensors")),
            lambda: sluice.save({"layer.3": [1]}, self.at("n.tensors")),
        ):
            with self.assertRaisesRegex(TypeError, "cannot write 'layer.3': "):
                call()

    def test_a_number_is_taken_for_no_other(self):
        path, tensor = self.at("n.tensors"), torch.ones(1)
        for name in (("a", 1 << 64), ("a", -1), ("a", (1 << 70) + 3)):
            with self.assertRaisesRegex(ValueError, "a number in a name"):
                sluice.save({name: tensor}, path)
        sluice.save({("a", numpy.int64(3)): tensor}, path)
        self.assertEqual(list(sluice.open(path)), ["a.3"])
        for shard_bytes in (-1, (1 << 64) + 5):
            with self.assertRaisesRegex(ValueError, "is a number from 0 to"):
                sluice.save({"a": tensor}, path, shard_bytes=shard_bytes)
        for limits in ({"memlimit": (1 << 64) + 8192}, {"opslimit": (1 << 64) + 1}):
            with self.assertRaisesRegex(ValueError, "is a number from 0 to"):
                sluice.Key.from_string("x", **limits)
        for module in (-1, (1 << 32) + 1):
            with self.assertRaisesRegex(ValueError, "module is a number"), sluice.Writer(path) as writer:
                writer.write("a", tensor, module=module)
        with self.assertRaisesRegex(ValueError, "role is one of entry, parameter, buffer, not 'x'"), sluice.Writer(path) as writer:
            writer.write("a", tensor, role="x")


class Asked(Case):
    def test_a_key_is_made_of_bytes_not_of_how_many(self):
        for wrong in (32, True, [0] * 32, 1.5, numpy.int64(32)):
            with self.subTest(wrong=wrong), self.assertRaises((TypeError, ValueError)):
                sluice.Key(wrong)
        for right in (bytes(32), bytearray(32), memoryview(bytes(32)), numpy.zeros(32, numpy.uint8)):
            self.assertEqual(sluice.Key(right).key, bytes(32))

    def test_a_name_that_no_bytes_make_is_one_that_is_not_there(self):
        sluice.safetensors.torch.save_file({"a": torch.ones(1)}, self.at("m.safetensors"))
        for name in ("\ud800", "a\udfff", "\udc80"):
            with sluice.open(self.at("m.safetensors"), framework="torch") as model:
                self.assertNotIn(name, model)
            with sluice.open(self.at("m.safetensors"), framework="torch") as model:
                for call in (model.__getitem__, model.slice, model.meta, lambda name: model.load([name])):
                    with self.assertRaises(KeyError):
                        call(name)

    def test_a_step_may_be_longer_than_any_tensor(self):
        made = torch.arange(24.0).reshape(4, 6)
        sluice.safetensors.torch.save_file({"a": made}, self.at("m.safetensors"))
        with contextlib.closing(Server(self.at("m.safetensors"))) as server:
            for place in (self.at("m.safetensors"), server.url):
                with sluice.open(place, framework="numpy") as model, sluice.safetensors.safe_open(place, "np") as door:
                    for step in (1 << 64, 1 << 65, (1 << 64) + 1):
                        self.assertEqual(model.slice("a")[1::step].tolist(), made[1:2].tolist())
                        self.assertEqual(model.slice("a")[:, ::-step].tolist(), made[:, 5:].tolist())
                        self.assertEqual(door.get_slice("a")[1:4:step].tolist(), made[1:2].tolist())

    def test_a_part_of_a_file_has_nothing_before_it(self):
        with open(self.at("m"), "wb") as file:
            file.write(bytes(range(100)))
        with sluice.open_file(self.at("m"), begin=50, buffer_size=0) as file:
            for offset in (-1, -50, -(1 << 70)):
                with self.assertRaisesRegex(ValueError, "before the beginning"):
                    file.read_at(offset, bytearray(4))
        for call in (file.tell, lambda: file.seek(0), lambda: file.read_at(0, bytearray(4))):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def test_secrets_stay_as_long_as_a_file_is_read_with_them(self):
        with open(self.at("m"), "wb") as file:
            file.write(bytes(100))
        with sluice.open_file(self.at("m"), credentials=sluice.credentials(secret_access_key="s", access_key_id="a"), buffer_size=0) as file:
            gc.collect()
            self.assertEqual(secrets(), 1)
        del file
        self.assertEqual(secrets(), 0)

    @unittest.skipUnless(hasattr(torch.device, "__enter__"), "this torch has no device for new tensors")
    def test_no_tensor_goes_to_the_device_that_new_ones_have(self):
        path, made = self.at("m.safetensors"), {"a": torch.ones(3, 4), "empty": torch.empty(0, 3)}
        sluice.safetensors.torch.save_file(made, path)
        with open(path, "rb") as file:
            data = file.read()
        with torch.device("meta"):
            for found in (
                sluice.load(path), sluice.safetensors.torch.load(data), {name: tensor.torch() for name, tensor in sluice.open(path).items()},
                {name: sluice.open(path, framework="torch").slice(name)[0:2] for name in made},
            ):
                self.assertEqual({tensor.device.type for tensor in found.values()}, {"cpu"})

    def test_an_array_of_another_type_is_no_view(self):
        sluice.safetensors.torch.save_file({"a": torch.ones(3)}, self.at("m.safetensors"))
        tensor = sluice.open(self.at("m.safetensors"))["a"]
        with self.assertRaisesRegex(ValueError, "as float16 it is a copy"):
            tensor.__array__(numpy.float16, copy=False)
        self.assertEqual(tensor.__array__(numpy.float32, copy=False).tolist(), [1, 1, 1])
        self.assertEqual(numpy.asarray(tensor, dtype=numpy.float16).dtype, numpy.float16)


if __name__ == "__main__":
    unittest.main()
