"""sluice.open, load, stream, save and what is around them."""
import asyncio
import copy
import ctypes
import importlib.util
import inspect
import io
import itertools
import os
import pickle
import shutil
import sys
import tempfile
import unittest
from unittest import mock

import numpy
import torch
from case import WRITES, Case, Server, bits, make, needs_writing, tensors

import sluice
import sluice.tensorizer
from sluice._native import Read


class Opened(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        make(self.made, self.path, {"who": "me"})

    def test_a_model_is_a_mapping_of_lazy_tensors(self):
        with sluice.open(self.path) as model:
            self.assertEqual(set(model), set(self.made))
            self.assertEqual(len(model), len(self.made))
            self.assertIn("wide", model)
            self.assertNotIn("other", model)
            self.assertEqual(model.metadata(), {"who": "me"})
            self.assertEqual(model.meta("wide"), sluice.Meta("wide", "F32", (4, 6), 96, False, ()))
            self.assertEqual(model.format, "safetensors")
            for name, tensor in model.items():
                self.assertEqual(tensor.tobytes(), bits(self.made[name]), name)
                self.assertEqual(bits(tensor.torch()), bits(self.made[name]), name)
            with self.assertRaises(KeyError):
                model["other"]

    def test_arrays_are_of_the_framework_that_was_asked_for(self):
        for name, tensor in sluice.open(self.path, framework="torch").items():
            self.assertEqual(tensor.dtype, self.made[name].dtype)
            self.assertEqual(bits(tensor), bits(self.made[name]), name)
        array = sluice.open(self.path, framework="numpy")["wide"]
        self.assertEqual((array.dtype, array.tolist()), (numpy.float32, self.made["wide"].tolist()))
        with self.assertRaises(ValueError):
            sluice.open(self.path, framework="fortran")

    def test_what_is_read_may_be_written_and_nobody_else_sees_it(self):
        model = sluice.open(self.path, framework="torch")
        model["wide"].fill_(7)
        self.assertEqual(bits(model["wide"]), bits(self.made["wide"]))

    def test_slices_are_torchs_and_steps_may_be_negative(self):
        model = sluice.open(self.path, framework="torch")
        part, whole = model.slice("wide"), self.made["wide"].numpy()
        for index in (
            numpy.s_[0:2], numpy.s_[:, ::2], numpy.s_[..., 1], numpy.s_[-1], numpy.s_[::-1, 5:0:-2], numpy.s_[None, 1:3, None],
            numpy.s_[5:], (), numpy.s_[-3:-1, 2], numpy.s_[1:1], numpy.s_[3, 5], numpy.s_[:99], numpy.s_[numpy.int64(1)],
        ):
            self.assertEqual(part[index].numpy().tolist(), whole[index].tolist(), index)
            self.assertEqual(tuple(part[index].shape), whole[index].shape, index)
        for index in (4, (0, 6), (0, 0, 0), (..., ...)):
            with self.assertRaises(IndexError):
                part[index]
        for index in ("a", [0, 1], True, 1.5, torch.tensor([0]), [torch.tensor([0])], torch.tensor(True), numpy.array([1]), numpy.bool_(True)):
            with self.assertRaises(TypeError):
                part[index]
        with self.assertRaises(ValueError):
            part[::0]

    def test_a_slice_of_a_local_file_is_the_callers_own(self):
        for framework, size in itertools.product(("torch", "numpy"), (1 << 20, 0)):
            with mock.patch.object(sluice._model, "COPIED_BYTES", size), sluice.open(self.path, framework=framework) as model:
                part = model.slice("wide")[1:3, ::2]
                self.assertEqual(part.tolist(), self.made["wide"][1:3, ::2].tolist())
                self.assertTrue(part.is_contiguous() if framework == "torch" else part.flags.c_contiguous)
                part[:] = 9
                rows = model.slice("wide")[1:3]
                self.assertEqual(rows.tolist(), self.made["wide"][1:3].tolist())
                rows[:] = 9
                self.assertEqual(model.slice("wide")[1:3].tolist(), self.made["wide"][1:3].tolist())
                for name in set(self.made) - {"scalar", "empty"}:
                    if framework == "torch" or name in ("int8", "float16", "complex64", "bool"):
                        self.assertEqual(model.slice(name)[1].tolist(), self.made[name][1].tolist(), name)
                self.assertEqual(float(model.slice("scalar")[()]), 2.5)
                del rows
            with open("/proc/self/maps", encoding="utf-8") as maps:
                self.assertNotIn(self.path, maps.read())

    def test_no_slice_of_a_local_file_is_read_by_threads(self):
        made = {"w": torch.arange(3 << 18).reshape(3, 512, 512)}
        make(made, self.at("l.safetensors"))
        for framework, index in itertools.product(
            ("torch", "numpy"), (numpy.s_[1], numpy.s_[0:2], numpy.s_[:, :, 64:500], numpy.s_[:, 100:400], numpy.s_[:2, ::-2], numpy.s_[2, 7:9, ::3]),
        ):
            with self.subTest(framework=framework, index=index), sluice.open(self.at("l.safetensors"), framework=framework) as model:
                with mock.patch.object(model._source, "read", side_effect=AssertionError("threads")):
                    part = model.slice("w")[index]
                self.assertTrue(numpy.array_equal(part, made["w"].numpy()[index]))

    def test_one_text_is_one_name_or_one_pattern(self):
        self.assertEqual(list(sluice.open(self.path, include="w*")), ["wide"])
        self.assertEqual(set(sluice.open(self.path, exclude="w*")), set(self.made) - {"wide"})
        self.assertEqual(list(sluice.load(self.path, names="wide")), ["wide"])
        self.assertEqual([name for name, _ in sluice.stream(self.path, names="wide")], ["wide"])
        self.assertEqual(list(sluice.open(self.path).load("wide")), ["wide"])
        self.assertEqual([found.name for found in sluice.ls(self.folder + "/", include="*.safetensors")], ["m.safetensors"])
        for call in (lambda: sluice.open(self.path, include=[1]), lambda: sluice.load(self.path, names=[1]), lambda: sluice.ls(self.folder, include=[b"x"])):
            with self.assertRaisesRegex(TypeError, "a str, or several"):
                call()

    def test_the_parts_of_all_ranks_are_the_whole(self):
        model = sluice.open(self.path, framework="torch")
        for dim in (0, 1, -1):
            parts = [model.shard("wide", dim, rank, 3) for rank in range(3)]
            self.assertTrue(torch.equal(torch.cat(parts, dim), self.made["wide"]))
        with self.assertRaises(ValueError):
            model.shard("wide", 0, 3, 3)

    def test_a_local_file_is_mapped_where_no_hash_is_checked(self):
        path = self.at("m.pt")
        torch.save({"a": torch.arange(1 << 14), "b": torch.arange(7)}, path)
        for verify, mapped in (("auto", False), ("off", True)):
            how = {"framework": "torch", "verify": verify}
            for model in (dict(sluice.stream(path, **how)), sluice.load(path, **how), sluice.open(path, **how)):
                found = model["a"]
                self.assertTrue(torch.equal(found, torch.arange(1 << 14)))
                with open("/proc/self/maps", encoding="utf-8") as maps:
                    places = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(path)]
                inside = any(int(low, 16) <= found.data_ptr() < int(high, 16) for low, high in places)
                self.assertEqual(inside, mapped, (verify, places))
                found[0] = 9
                self.assertEqual(torch.load(path)["a"][0], 0)

    def test_a_pickle_opens_the_same_version_again(self):
        model = sluice.open(self.path, framework="torch")
        for again in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
            self.assertSame({"wide": again["wide"]}, {"wide": self.made["wide"]})
        kept = pickle.dumps(model)
        make({"wide": torch.zeros(1)}, self.path)
        os.utime(self.path, (1, 1))
        with self.assertRaises(sluice.SluiceError) as raised:
            pickle.loads(kept)
        self.assertEqual(raised.exception.kind, "INTEGRITY")

    def test_load_takes_names_filters_and_types(self):
        everything = sluice.load(self.path)
        self.assertSame({name: everything[name] for name in self.made}, self.made)
        self.assertEqual(list(sluice.load(self.path, names=["wide", "scalar"])), ["wide", "scalar"])
        self.assertEqual(list(sluice.load(self.path, filter=lambda name: name == "wide")), ["wide"])
        cast = sluice.load(self.path, dtype=torch.float16)
        self.assertEqual((cast["wide"].dtype, cast["int64"].dtype), (torch.float16, torch.int64))
        with self.assertRaises(KeyError):
            sluice.load(self.path, names=["none"])

    def test_a_type_has_whatever_name_somebody_gives_it(self):
        for dtype in ("bf16", "BF16", "bfloat16", "torch.bfloat16"):
            self.assertEqual(sluice.load(self.path, dtype=dtype)["wide"].dtype, torch.bfloat16)
        for dtype in ("half", "f16", "fp16", "float16", numpy.float16, numpy.dtype("float16"), torch.float16):
            self.assertEqual(sluice.load(self.path, dtype=dtype)["wide"].dtype, torch.float16)
            self.assertEqual(sluice.load(self.path, framework="numpy", dtype=dtype, names=["wide"])["wide"].dtype, numpy.float16)
        for dtype in ("bf17", "", 3, "U"):
            with self.assertRaises(TypeError, msg=dtype):
                sluice.load(self.path, dtype=dtype)

    @needs_writing
    def test_a_meta_tensor_may_stay_one(self):
        path = self.at("m.tensors")
        sluice.save({"a": torch.arange(6.0), "m": torch.empty(4, 3, dtype=torch.bfloat16, device="meta")}, path)
        with sluice.open(path, framework="torch") as model:
            self.assertEqual((model.meta("m").is_meta, model.meta("a").is_meta), (True, False))
            self.assertTrue(torch.equal(model["m"], torch.zeros(4, 3, dtype=torch.bfloat16)))
        with sluice.open(path, framework="torch", meta="keep") as model:
            again = pickle.loads(pickle.dumps(model))
            ways = (model["m"], model.load()["m"], dict(model.stream())["m"], dict(model.items())["m"], again["m"], sluice.load(path, meta="keep")["m"],
                    dict(sluice.stream(path, meta="keep"))["m"])
            for found in ways:
                self.assertEqual((found.device.type, tuple(found.shape), found.dtype), ("meta", (4, 3), torch.bfloat16))
            self.assertEqual((model.slice("m")[1:, 0].device.type, tuple(model.slice("m")[1:, 0].shape)), ("meta", (3,)))
            self.assertTrue(torch.equal(model["a"], torch.arange(6.0)))
            again.close()
            module = torch.nn.ParameterDict({"a": torch.ones(6), "m": torch.ones(4, 3, dtype=torch.bfloat16)})
            self.assertEqual(sluice.load_into_module(module, model), ([], []))
            self.assertEqual((module["m"].device.type, float(module["a"][5].detach())), ("meta", 5.0))
        for kind, meta in (("cpu", "zeros"), ("meta", "keep")):
            with sluice.tensorizer.TensorDeserializer(path, device="cpu", meta=meta) as found:
                self.assertEqual((found["m"].device.type, tuple(found["m"].shape), found["a"].device.type), (kind, (4, 3), "cpu"))
        for options in ({"meta": "keep", "framework": "numpy"}, {"meta": "none"}):
            with self.assertRaisesRegex(ValueError, "meta is 'zeros'"):
                sluice.open(path, **options)

    def test_names_of_one_tensor_are_one_array(self):
        one = torch.arange(70000.0).reshape(100, 700)
        torch.save({"a": one, "b": one, "turned": one.t(), "part": one[1:], "other": one.clone()}, self.at("m.pt"))
        self.assertTied(self.at("m.pt"))
        server = Server(self.at("m.pt"))
        self.addCleanup(server.close)
        self.assertTied(server.url)

    def assertTied(self, uri):
        for options in ({}, {"verify": "off"}, {"dtype": "bf16"}):
            found = sluice.load(uri, **options)
            self.assertEqual(found["a"].data_ptr(), found["b"].data_ptr())
            self.assertEqual(len({found[name].data_ptr() for name in found}), 4)
        self.assertSame(found, {name: tensor.to(torch.bfloat16) for name, tensor in torch.load(self.at("m.pt")).items()})
        with sluice.open(uri) as model:
            self.assertEqual([tensor.name for tensor in model.load().values()], list(model))

    def test_a_stream_brings_each_once_in_groups(self):
        other = self.at("other.safetensors")
        make({"last": torch.ones(2)}, other)
        for group_bytes in (1, 64, 1 << 20):
            found = dict(sluice.stream([self.path, other], group_bytes=group_bytes))
            self.assertSame({name: found[name] for name in self.made}, self.made)
            self.assertEqual(set(found), {*self.made, "last"})
        self.assertEqual({name for name, _ in sluice.stream([self.path, other], names=["last", "wide"])}, {"last", "wide"})
        with self.assertRaises(KeyError):
            list(sluice.stream(self.path, names=["none"]))
        arriving = sluice.stream(self.path, group_bytes=1)
        next(arriving)
        arriving.close()

    def test_who_waits_may_do_so_in_an_event_loop(self):
        async def all_of_it():
            model = await sluice.aopen(self.path)
            loaded = await sluice.aload(self.path)
            names = [name async for name, _ in sluice.astream(self.path)]
            return len(model), set(loaded), set(names)

        async def within():
            async with await sluice.aopen(self.path, framework="torch") as model:
                wide = model["wide"]
            return model, wide

        model, wide = asyncio.run(within())
        self.assertEqual(bits(wide), bits(self.made["wide"]))
        with self.assertRaisesRegex(ValueError, "closed"):
            model["wide"]
        self.assertEqual(inspect.signature(sluice.aload), inspect.signature(sluice.load))
        count, loaded, names = asyncio.run(all_of_it())
        self.assertEqual((count, loaded, names), (len(self.made), set(self.made), set(self.made)))

    def test_progress_is_told_and_an_exception_in_it_ends_the_load(self):
        told = []
        with sluice.open(self.path) as model:
            entry = model.entries()[-1]
            room = (ctypes.c_uint8 * entry.nbytes)()
            read = Read(entry.number, None, ctypes.addressof(room), entry.nbytes)
            model.read_into([read], lambda *now: told.append(now))
            self.assertEqual(told[-1], (entry.nbytes, entry.nbytes))

            def raising(done, total):
                raise RuntimeError("enough")

            with self.assertRaisesRegex(RuntimeError, "enough"):
                model.read_into([read], raising)
            model.read_into([read])

    def test_errors_are_those_of_python_too_and_speak_it(self):
        with self.assertRaises(FileNotFoundError) as found:
            sluice.open(self.at("none.safetensors"))
        again = pickle.loads(pickle.dumps(found.exception))
        for error in (found.exception, again):
            self.assertIsInstance(error, sluice.SluiceNotFoundError)
            self.assertEqual((error.kind, str(error)), ("NOT_FOUND", str(found.exception)))
        for kind, python in (("NOT_FOUND", FileNotFoundError), ("AUTH", PermissionError), ("TIMEOUT", TimeoutError), ("NET", ConnectionError),
                             ("USAGE", ValueError), ("FORMAT", ValueError)):
            error = sluice.SluiceError("so it is", kind, "c")
            self.assertTrue(isinstance(error, python) and isinstance(error, sluice.SluiceError))
            self.assertEqual((str(error), error.kind, error.code), ("so it is", kind, "c"))
        for kind in ("INTEGRITY", "CANCELED", "GPU", "NO_SPACE", "INTERNAL"):
            self.assertIs(type(sluice.SluiceError("x", kind)), sluice.SluiceError)
        with self.assertRaises(ValueError):
            sluice.open(self.path, spec="sourse: {}")
        with self.assertRaisesRegex(ValueError, "replace=True"):
            sluice.save(self.made, self.path, replace=False)
        if WRITES:
            sluice.save({"a": torch.ones(2)}, self.at("e.tensors"), key="secret")
            with self.assertRaisesRegex(sluice.SluicePermissionError, "'a'.*give key=") as found:
                sluice.load(self.at("e.tensors"))
            self.assertNotIn("--", str(found.exception))

    def test_arrays_are_of_what_is_installed(self):
        self.assertIsInstance(sluice.load(self.path)["wide"], torch.Tensor)
        with mock.patch.dict(sys.modules), mock.patch.object(importlib.util, "find_spec", lambda name: name == "numpy" or None):
            del sys.modules["torch"]
            self.assertIsInstance(sluice.load(self.path, names="wide")["wide"], numpy.ndarray)
            self.assertIsInstance(next(sluice.stream(self.path, names="wide"))[1], numpy.ndarray)
            del sys.modules["numpy"]
            importlib.util.find_spec = lambda name: None
            with self.assertRaisesRegex(ImportError, "neither torch nor NumPy"):
                sluice.load(self.path)

    def test_a_star_leaves_pythons_open_as_it_is(self):
        names = {}
        exec("from sluice import *", names)
        self.assertNotIn("open", names)
        self.assertIn("load", names)
        self.assertIs(sluice.open, sluice._model.open_model)

    def test_a_notebook_shows_a_table(self):
        with sluice.open(self.path) as model:
            shown = model._repr_html_()
            self.assertIn("<td>wide</td><td>F32</td><td>[4, 6]</td>", shown)
            self.assertIn(f"{len(self.made)} tensors", shown)
        make({f"<b{number}>": torch.ones(1) for number in range(90)}, self.at("many.safetensors"))
        shown = sluice.open(self.at("many.safetensors"))._repr_html_()
        self.assertIn("and 40 more", shown)
        self.assertNotIn("<b1>", shown)

    def test_errors_have_a_kind_and_say_what_failed(self):
        with self.assertRaises(sluice.SluiceError) as raised:
            sluice.open(self.at("none.safetensors"))
        self.assertEqual(raised.exception.kind, "NOT_FOUND")
        with self.assertRaises(ValueError):
            sluice.open("a\0b")
        with self.assertRaises(TypeError):
            sluice.open(5)
        model = sluice.open(self.path)
        model.close()
        model.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            model["wide"].numpy()


class Files(Case):
    def setUp(self):
        super().setUp()
        self.bytes = bytes(range(256)) * 40
        with open(self.at("data.bin"), "wb") as file:
            file.write(self.bytes)

    def test_an_object_is_a_file(self):
        for buffer_size in (0, 7, 1 << 20):
            with sluice.open_file(self.at("data.bin"), buffer_size=buffer_size) as file:
                self.assertEqual(file.read(10), self.bytes[:10])
                self.assertEqual(file.seek(-5, 2), len(self.bytes) - 5)
                self.assertEqual(file.read(), self.bytes[-5:])
                self.assertEqual(file.read(1), b"")
                file.seek(300)
                self.assertEqual(file.read(20), self.bytes[300:320])
                with self.assertRaises((ValueError, OSError)):
                    file.seek(-1)
        with sluice.open_file(self.at("data.bin"), begin=100, end=200) as file:
            self.assertEqual(file.read(), self.bytes[100:200])

    def test_a_folder_is_listed_and_pulled(self):
        with open(self.at("config.json"), "w") as file:
            file.write("{}")
        listed = sluice.ls(self.folder + "/")
        self.assertEqual({found.name for found in listed}, {"data.bin", "config.json"})
        self.assertEqual({found.name for found in sluice.ls(self.folder + "/", include=["*.json"])}, {"config.json"})
        target = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, target)
        sluice.pull(self.folder + "/", target, include=["*.json"])
        with open(os.path.join(target, "config.json")) as file:
            self.assertEqual(file.read(), "{}")

    def test_a_pull_tells_how_far_it_is_and_what_is_wrong(self):
        target = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, target)
        told = []
        sluice.pull(self.at("data.bin"), target, progress=lambda done, total: told.append((done, total)))
        self.assertEqual(told[-1], (len(self.bytes), len(self.bytes)))
        with self.assertRaises(sluice.SluiceError) as found:
            sluice.pull(self.folder + "/", self.at("inside"), progress=lambda done, total: None)
        self.assertEqual(found.exception.kind, "USAGE")
        self.assertIn("over its own files", str(found.exception))


@needs_writing
class Written(Case):
    def test_formats_keys_and_files(self):
        made = {"a": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.bfloat16)}
        for name, options in (
            ("m.safetensors", {}), ("m.tensors", {}), ("e.tensors", {"key": sluice.Key.from_string("secret")}),
        ):
            sluice.save(made, self.at(name), **options)
            key = options.get("key")
            self.assertSame(sluice.load(self.at(name), key=key), made)
        with self.assertRaises(sluice.SluiceError):
            sluice.load(self.at("e.tensors"))
        with self.assertRaises(sluice.SluiceError):
            sluice.load(self.at("e.tensors"), key="other")
        file = io.BytesIO()
        sluice.save(made, file, format="safetensors")
        with open(self.at("m.safetensors"), "rb") as saved:
            self.assertEqual(file.getvalue(), saved.read())

    @needs_writing
    def test_an_encrypted_model_is_listed_without_its_key(self):
        sluice.save({"a": torch.ones(2, 3), "b": torch.ones(4)}, self.at("e.tensors"), key="secret")
        with sluice.open(self.at("e.tensors"), framework="torch") as model:
            self.assertEqual((sorted(model), model.encrypted, model.meta("a").shape, model.meta("a").encrypted), (["a", "b"], True, (2, 3), True))
            for read in (lambda: model["a"], lambda: model.slice("b")[1:2], model.load, lambda: list(model.stream())):
                with self.assertRaisesRegex(sluice.SluicePermissionError, "is encrypted: give key="):
                    read()

    def test_what_is_wrong_is_said_before_a_bar_begins(self):
        bad = (({"metadata": {"epoch": 3}}, TypeError, "texts"), ({"key": b"x"}, ValueError, "32 bytes"),
               ({"spec": "source: {}", "credentials": sluice.credentials(region="x")}, ValueError, "stands alone"))
        for (options, kind, said), progress in itertools.product(bad, (None, True)):
            with self.assertRaisesRegex(kind, said):
                sluice.save({"a": torch.ones(2)}, self.at("m.tensors"), progress=progress, **options)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_key_has_one_name_and_the_old_one_says_so(self):
        with self.assertWarnsRegex(DeprecationWarning, r"called save\(key=…\)"):
            sluice.save({"a": torch.ones(2)}, self.at("m.tensors"), encryption="secret")
        self.assertEqual(sluice.load(self.at("m.tensors"), key="secret")["a"].tolist(), [1, 1])
        with self.assertWarnsRegex(DeprecationWarning, r"called Writer\(key=…\)"), sluice.Writer(self.at("w.tensors"), encryption="secret") as writer:
            writer.write("a", torch.ones(2))
        self.assertEqual(sluice.load(self.at("w.tensors"), key="secret")["a"].tolist(), [1, 1])
        with self.assertWarnsRegex(DeprecationWarning, r"called attach\(deposit=…\)"), self.assertRaises(sluice.SluiceError):
            sluice.attach("m", socket=self.at("none"), key="k")

    def test_an_exception_in_a_block_leaves_nothing(self):
        with self.assertRaises(RuntimeError):
            with sluice.Writer(self.at("m.safetensors")) as writer:
                writer.write("a", numpy.ones(3))
                raise RuntimeError
        self.assertEqual(os.listdir(self.folder), [])
        with self.assertRaises(sluice.SluiceError):
            with sluice.Writer(self.at("m.safetensors")) as writer:
                writer.write("a", numpy.ones(3))
                writer.write("a", numpy.ones(3))
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_is_written_is_what_was_there_at_that_moment(self):
        array = numpy.ones(4)
        with sluice.Writer(self.at("m.safetensors")) as writer:
            writer.write("a", array)
            array[:] = 0
        self.assertEqual(sluice.load(self.at("m.safetensors"), framework="numpy")["a"].tolist(), [1, 1, 1, 1])

    def test_arrays_that_do_not_lie_row_by_row_are_written_as_they_look(self):
        wide = torch.arange(12.0).reshape(3, 4)
        made = {"t": wide.t(), "s": wide[:, ::2], "n": numpy.arange(6).reshape(2, 3).T, "b": numpy.arange(3, dtype=">i4")}
        sluice.save(made, self.at("m.safetensors"))
        found = sluice.load(self.at("m.safetensors"))
        self.assertTrue(torch.equal(found["t"], wide.t()) and torch.equal(found["s"], wide[:, ::2]))
        self.assertEqual((found["n"].tolist(), found["b"].tolist()), (made["n"].tolist(), [0, 1, 2]))

    def test_what_has_no_names_is_told_how_to_give_some(self):
        for tensors, said in (([torch.ones(2)], "names"), (torch.ones(2), "names"), (net(), "state_dict"), ({1: torch.ones(2)}, "not 1")):
            with self.assertRaisesRegex(TypeError, said):
                sluice.save(tensors, self.at("n.safetensors"))
        self.assertFalse(os.path.exists(self.at("n.safetensors")))

    def test_what_is_no_tensor_and_no_key_is_refused(self):
        for bad in ("text", 5, None, object()):
            with self.assertRaises(TypeError):
                sluice.save({"a": bad}, self.at("m.safetensors"))
        with self.assertRaises(ValueError):
            sluice.Key(b"short")
        with self.assertRaises(ValueError):
            sluice.save({}, self.at("m"), format="zip")
        self.assertNotIn("secret", repr(sluice.Key("secret")))

    def test_nothing_prints_the_secret_of_a_uri(self):
        make({"a": torch.ones(3)}, self.at("m.safetensors"))
        server = Server(self.at("m.safetensors"))
        self.addCleanup(server.close)
        uri = server.url.replace("//", "//bob:hush@") + "?X-Amz-Signature=hush"
        with sluice.open(uri) as model, sluice.open_file(uri) as file, sluice.open_file(uri, buffer_size=0) as raw:
            for what in (model, file, raw, file.name):
                self.assertIn("m.safetensors", repr(what))
                self.assertNotIn("hush", repr(what))


def net():
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    made.tied = made[1]
    return made


class Modules(Case):
    def setUp(self):
        super().setUp()
        self.net = net()
        state = {name: tensor for name, tensor in self.net.state_dict().items() if not name.startswith("tied")}
        make(state, self.at("m.safetensors"))

    def test_a_module_is_filled_in_place(self):
        other = net()
        places = {name: tensor.data_ptr() for name, tensor in other.state_dict().items()}
        self.assertEqual(sluice.load_into_module(other, self.at("m.safetensors")), ([], []))
        self.assertSame(other.state_dict(), self.net.state_dict())
        self.assertEqual({name: tensor.data_ptr() for name, tensor in other.state_dict().items()}, places)

    def test_a_module_of_the_meta_device_gets_tensors_and_ties_stay(self):
        other = torch.nn.Sequential(
            torch.nn.Linear(3, 4, device="meta"), torch.nn.Linear(4, 4, device="meta"), torch.nn.BatchNorm1d(4, device="meta")
        )
        other.tied = other[1]
        sluice.load_into_module(other, self.at("m.safetensors"))
        self.assertSame(other.state_dict(), self.net.state_dict())
        self.assertIs(other.tied.weight, other[1].weight)
        self.assertIsInstance(other[0].weight, torch.nn.Parameter)
        self.assertNotIsInstance(other[2].running_mean, torch.nn.Parameter)

    @needs_writing
    def test_names_of_one_memory_are_written_once_where_the_caller_says_so(self):
        from sluice.safetensors.torch import save_model

        state = self.net.state_dict()
        for ending in (".safetensors", ".tensors"):
            sluice.save(state, self.at("each" + ending))  # neither format lets two names have the same bytes
            with sluice.open(self.at("each" + ending)) as model:
                self.assertEqual(sorted(model), sorted(state))
        save_model(self.net, self.at("once.safetensors"))
        with sluice.open(self.at("once.safetensors")) as model:
            self.assertEqual(model.metadata(), {"tied.weight": "1.weight", "tied.bias": "1.bias"})
            self.assertEqual(sorted(model), sorted(name for name in state if not name.startswith("tied")))
        for saved in ("each.safetensors", "each.tensors", "once.safetensors"):
            other = net()
            self.assertEqual(sluice.load_into_module(other, self.at(saved)), ([], []))
            self.assertIs(other.tied.weight, other[1].weight)
            self.assertSame(other.state_dict(), self.net.state_dict())

    def test_a_buffer_that_nobody_saved_is_missing_where_it_has_no_memory(self):
        class Rotary(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(2, 2)
                self.register_buffer("inv_freq", torch.ones(3), persistent=False)

        made, path = Rotary(), self.at("r.safetensors")
        make(dict(made.state_dict()), path)
        self.assertEqual(sluice.load_into_module(Rotary(), path), ([], []))
        with self.assertRaisesRegex(RuntimeError, "missing: inv_freq"):
            sluice.load_into_module(Rotary().to("meta"), path)
        other = Rotary().to("meta")
        self.assertEqual(sluice.load_into_module(other, path, strict=False), (["inv_freq"], []))
        self.assertSame(other.state_dict(), made.state_dict())

    def test_a_tensor_of_the_module_itself_may_have_tensorizers_dot(self):
        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.inner = torch.nn.Parameter(torch.rand(3)), torch.nn.Linear(3, 2)

        made, names = Scaled(), ["scale", "inner.weight", "inner.bias"]
        for dotted, unexpected in (({".scale"}, []), ({".scale", "scale"}, [".scale"]), ({".none", "scale"}, [".none"])):
            state = {**made.state_dict(), **{name: made.scale.data * (1 if len(dotted) == 1 else 9) for name in dotted}}
            if "scale" not in dotted:
                del state["scale"]
            else:
                state["scale"] = made.scale.data
            sluice.save(state, self.at("m.tensors"))
            for other in (Scaled(), Scaled().to("meta")):
                self.assertEqual(sluice.load_into_module(other, self.at("m.tensors"), strict=False), ([], unexpected))
                self.assertSame(other.state_dict(), made.state_dict())
        self.assertEqual(list(made.state_dict()), names)

    def test_what_does_not_fit_is_told_before_anything_is_read(self):
        other = torch.nn.Sequential(torch.nn.Linear(3, 5))
        before = bits(other[0].weight)
        with self.assertRaisesRegex(RuntimeError, "size mismatch for 0.weight"):
            sluice.load_into_module(other, self.at("m.safetensors"), strict=False)
        with self.assertRaisesRegex(RuntimeError, "unexpected"):
            sluice.load_into_module(other, self.at("m.safetensors"))
        self.assertEqual(bits(other[0].weight), before)
        small = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
        small.more = torch.nn.Linear(1, 1)
        missing, unexpected = sluice.load_into_module(small, self.at("m.safetensors"), strict=False)
        self.assertEqual(missing, ["more.weight", "more.bias"])
        self.assertTrue(unexpected and all(name.startswith("2.") for name in unexpected))


if __name__ == "__main__":
    unittest.main()
