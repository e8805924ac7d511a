"""sluice.tensorizer beside tensorizer, on the same input: results, types, errors."""
import asyncio
import io
import threading
import unittest

import numpy
import tensorizer
import torch
from case import WRITES, Case, bits, needs_writing, tensors
from tensorizer._crypt import available

import sluice.tensorizer as door

EACH = (tensorizer, door)
# The original's way to it is not there in older torches.
PERSISTENT = {} if torch.__version__ < "2" else {"include_non_persistent_buffers": False}


def net():
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    made.register_parameter("root", torch.nn.Parameter(torch.arange(2.0)))
    made[0].register_buffer("unsaved", torch.ones(2), persistent=False)
    return made


class Beside(Case):
    def write(self, module, name, write, **options):
        serializer = module.TensorSerializer(self.at(name), **options)
        write(serializer)
        serializer.close()
        return self.at(name)

    def listed(self, module, path, **options):
        options.setdefault("lazy_load", True)  # tensorizer gives nothing twice
        with module.TensorDeserializer(path, device="cpu", **options) as found:
            return [
                (number, int(kind), name, type(tensor).__name__, tensor.dtype, tensor.requires_grad, tuple(tensor.shape), bits(tensor))
                for number, kind, name, tensor in found.read_tensors()
            ]

    def test_names_of_one_memory_are_written_as_the_original_writes_them(self):
        made = net()
        made.tied = made[0]
        state, base = {"a": torch.ones(8), "b": torch.zeros(0)}, torch.arange(12.0)
        state.update(c=state["a"], d=base[:8], e=base[4:])
        for write in (
            lambda serializer: serializer.write_module(made), lambda serializer: serializer.write_state_dict(made.state_dict()),
            lambda serializer: serializer.write_state_dict(state),
        ):
            theirs = self.write(tensorizer, "theirs", write)
            expected = self.listed(tensorizer, theirs)
            self.assertEqual(self.listed(door, theirs), expected)
            if WRITES:
                self.assertEqual(self.listed(tensorizer, self.write(door, "ours", write)), expected)
        for module in EACH:
            other = net()
            other.tied = other[0]
            with module.TensorDeserializer(self.write(tensorizer, "m", lambda serializer: serializer.write_module(made)), device="cpu") as found:
                found.load_into_module(other)
            self.assertIs(other.tied.weight, other[0].weight)
            self.assertEqual(bits(other.tied.weight), bits(made.tied.weight))

    def test_each_reads_what_the_other_writes(self):
        made = net()
        structure = {"a": torch.ones(2), "n": {"l": [torch.zeros(1), {"x": torch.arange(3)}]}}
        for write in (
            lambda serializer: serializer.write_module(made),
            lambda serializer: serializer.write_module(made, **PERSISTENT),
            lambda serializer: serializer.write_state_dict(made.state_dict()),
            lambda serializer: serializer.write_state_dict(tensors()),
            lambda serializer: serializer.write_state_dict(structure),
            lambda serializer: serializer.write_state_dict([torch.ones(1), torch.zeros(2)]),
            lambda serializer: serializer.write_tensor(3, "x", tensorizer.TensorType.BUFFER, numpy.arange(4.0)),
            lambda serializer: serializer.write_tensor(0, "m", tensorizer.TensorType.STATE_DICT, torch.empty(3, device="meta")),
        ):
            theirs = self.write(tensorizer, "theirs", write)
            expected = self.listed(tensorizer, theirs)
            self.assertTrue(expected)
            self.assertEqual(self.listed(door, theirs), expected)
            if WRITES:
                ours = self.write(door, "ours", write)
                self.assertEqual(self.listed(door, ours), expected)
                self.assertEqual(self.listed(tensorizer, ours, verify_hash=True), expected)

    def test_the_mapping_and_the_tree_are_the_same(self):
        structure = {"a": torch.ones(2), "n": {"l": [torch.zeros(1), {"x": torch.arange(3.0)}]}}
        path = self.write(tensorizer, "m", lambda serializer: serializer.write_state_dict(structure))
        theirs, ours = (module.TensorDeserializer(path, device="cpu") for module in EACH)
        self.assertEqual(list(ours.keys()), list(theirs.keys()))
        self.assertEqual((len(ours), "a" in ours, "x" in ours), (len(theirs), "a" in theirs, "x" in theirs))
        self.assertEqual(list(ours["n"]["l"].keys()), list(theirs["n"]["l"].keys()))
        self.assertEqual(repr(ours.tree()), repr(theirs.tree()))
        self.assertEqual(repr(ours.tree(("n", "l"))), repr(theirs.tree(("n", "l"))))
        self.assertEqual(ours.tree(("q",), default=5), theirs.tree(("q",), default=5))
        self.assertEqual(ours.total_tensor_bytes, theirs.total_tensor_bytes)
        for call in (lambda found: found["q"], lambda found: found.tree("n")):
            (_, wrong), (_, error) = self.both([lambda: call(ours), lambda: call(theirs)])
            self.assertEqual((wrong, error is None), (error, False))

    def test_options_and_their_errors(self):
        path = self.write(tensorizer, "m", lambda serializer: serializer.write_state_dict(tensors()))
        for options in (
            {"filter_func": lambda name: name in ("wide", "int8")}, {"dtype": torch.float16}, {"lazy_load": True}, {"num_readers": 1},
            {"verify_hash": True}, {"plaid_mode": True, "plaid_mode_buffers": 2},
        ):
            self.assertEqual(self.listed(door, path, **options), self.listed(tensorizer, path, **options), options)
        with open(self.at("other"), "wb") as file:
            file.write(b"nothing of the kind")
        for call in (
            lambda module: module.TensorDeserializer(path, device="cpu", num_readers=0),
            lambda module: module.TensorDeserializer(path, device="cpu", num_readers="1"),
            lambda module: module.TensorDeserializer(path, device="cpu", encryption=b"k"),
            lambda module: module.TensorDeserializer(path, device="cuda") if not torch.cuda.is_available() else 1 / 0,
            lambda module: module.TensorSerializer(self.at("x"), limit_cpu_concurrency=0),
            lambda module: module.TensorSerializer(self.at("x"), encryption=b"k"),
            lambda module: module.TensorDeserializer(self.at("other"), device="cpu"),
            lambda module: module.TensorDeserializer(self.at("none"), device="cpu"),
            lambda module: list(module.TensorDeserializer(path, device="cpu").read_tensors(num_tensors=-2)),
            lambda module: module.utils.no_init_or_tensor(5),
            lambda module: module.EncryptionParams("text"), lambda module: module.EncryptionParams(b"short"),
            lambda module: module.DecryptionParams.from_string(""), lambda module: module.DecryptionParams.from_key(b""),
        ):
            (_, wrong), (_, error) = self.both([lambda: call(door), lambda: call(tensorizer)])
            self.assertEqual((wrong, error is None), (error, False))

    def test_numpy_arrays(self):
        path = self.write(tensorizer, "m", lambda serializer: serializer.write_state_dict(tensors()))
        found = []
        for module in EACH:
            with module.TensorDeserializer(path, device="cpu", lazy_load=True) as opened:
                found.append([
                    (number, int(kind), name, array.tobytes(), array.shape, opaque, torch_type)
                    for number, kind, name, array, opaque, torch_type in opened.read_numpy_arrays(allow_raw_data=True)
                ])
            with module.TensorDeserializer(path, device="cpu", lazy_load=True) as opened:
                with self.assertRaises(ValueError):
                    list(opened.read_numpy_arrays())
        self.assertEqual(found[1], found[0])

    def test_modules(self):
        made = net()
        path = self.write(tensorizer, "m", lambda serializer: serializer.write_module(made))
        for module in EACH:
            other = net()
            with module.TensorDeserializer(path, device="cpu", lazy_load=True) as opened:
                self.assertEqual(opened.load_into_module(other), 9)
            self.assertEqual({name: other.state_dict()[name].tolist() for name in made.state_dict()},
                             {name: tensor.tolist() for name, tensor in made.state_dict().items()})
        self.assertEqual(list(other.state_dict()), list(made.state_dict()), "what was not saved is not saved now")
        self.assertNotIsInstance(other[1].running_mean, torch.nn.Parameter)
        with door.TensorDeserializer(path, device="cpu") as opened:
            passed, results = opened.verify_module(made)
            self.assertTrue(passed, results)
            with torch.no_grad():
                made[0].weight[0, 0] += 1
            passed, results = opened.verify_module(made)
            self.assertEqual((passed, [name for name, same in results if not same]), (False, ["0.weight"]))

    def test_files_that_are_open(self):
        made = tensors()
        for module in EACH if WRITES else EACH[:1]:
            with open(self.at("m"), "wb+") as file:
                serializer = module.TensorSerializer(file)
                serializer.write_state_dict(made)
                serializer.close()
                self.assertTrue(file.closed)
            with open(self.at("m"), "rb") as file:
                data = file.read()
            for source in (open(self.at("m"), "rb"), io.BytesIO(data), door.stream_io.open_stream(self.at("m"))):
                with door.TensorDeserializer(source, device="cpu") as opened:
                    self.assertEqual(list(opened), list(made))
                self.assertTrue(source.closed)

    @needs_writing
    @unittest.skipUnless(available, "tensorizer finds no libsodium")
    def test_encryption(self):
        made = {name: tensor for name, tensor in tensors().items() if tensor.numel()}
        key = tensorizer.EncryptionParams.random().key
        ours = self.write(door, "k", lambda one: one.write_state_dict(made), encryption=door.EncryptionParams(key))
        theirs = self.write(tensorizer, "t", lambda one: one.write_state_dict(made), encryption=tensorizer.EncryptionParams(key))
        for path in (ours, theirs):
            listed = [self.listed(module, path, encryption=module.DecryptionParams.from_key(key)) for module in EACH]
            self.assertEqual(listed[1], listed[0])
            for params in (None, "wrong"):
                for module in EACH:
                    with self.assertRaises(module.CryptographyError):
                        self.listed(module, path, encryption=params and module.DecryptionParams.from_string(params))
        phrase = self.write(door, "p", lambda one: one.write_state_dict(made), encryption=door.EncryptionParams.from_string("secret"))
        listed = [self.listed(module, phrase, encryption=module.DecryptionParams.from_string("secret")) for module in EACH]
        self.assertEqual(listed[1], listed[0])

    def test_modules_without_weights(self):
        for module in EACH:
            with module.utils.no_init_or_tensor():
                self.assertEqual(torch.nn.Linear(2, 2).weight.device.type, "meta")
                elsewhere = []
                thread = threading.Thread(target=lambda: elsewhere.append(torch.empty(1).device.type))
                thread.start()
                thread.join()
                self.assertEqual(elsewhere, ["cpu"])
            self.assertEqual(torch.empty(1).device.type, "cpu")
            self.assertEqual(module.utils.no_init_or_tensor(lambda: torch.nn.Linear(2, 2)).weight.device.type, "meta")
        for number in (0, 999, 1000, 123456789, 5e20):
            for decimal in (True, False):
                self.assertEqual(door.utils.convert_bytes(number, decimal), tensorizer.utils.convert_bytes(number, decimal))
        self.assertEqual(door.utils.get_device(), tensorizer.utils.get_device())
        self.assertEqual(door.utils.get_gpu_name(), tensorizer.utils.get_gpu_name())
        self.assertTrue(door.utils.get_mem_usage().startswith("CPU: (maxrss: "))


@needs_writing
@unittest.skipIf(torch.__version__ < "2", "tensorizer's own contexts, and ours, need torch 2")
class TorchCompat(Case):
    def setUp(self):
        super().setUp()
        shared = torch.arange(6.0)
        self.made = {"a": shared, "b": shared[2:4], "n": [torch.ones(2, 2).t()], "meta": torch.empty(3, device="meta"), "x": 5}
        self.load = {} if not hasattr(torch, "float8_e4m3fn") else {"weights_only": False}

    def same(self, found):
        self.assertEqual((found["a"].tolist(), found["b"].tolist()), (list(range(6)), [2, 3]))
        self.assertEqual(found["b"].data_ptr(), found["a"].data_ptr() + 8, "one storage")
        self.assertEqual((found["meta"].device.type, found["x"], found["n"][0].tolist()), ("meta", 5, [[1, 1], [1, 1]]))

    def test_each_loads_what_the_other_saved(self):
        for saving in EACH:
            for loading in EACH:
                with saving.torch_compat.tensorizer_saving():
                    torch.save(self.made, self.at("c.pt"))
                with loading.torch_compat.tensorizer_loading(device="cpu"):
                    self.same(torch.load(self.at("c.pt"), **self.load))

    def test_a_place_by_name_and_by_function_and_none(self):
        for where in (self.at("x.tensors"), lambda file: str(file) + ".side"):
            with door.torch_compat.tensorizer_saving(where):
                torch.save(self.made, self.at("c.pt"))
            with door.torch_compat.tensorizer_loading(where, device="cpu"):
                self.same(torch.load(self.at("c.pt"), **self.load))
        with door.torch_compat.tensorizer_saving(lambda file: None):
            torch.save({"a": torch.ones(1)}, self.at("plain.pt"))
        self.assertEqual(torch.load(self.at("plain.pt"))["a"].item(), 1)
        with door.torch_compat.tensorizer_loading(device="cpu"):
            self.assertEqual(torch.load(self.at("plain.pt"), **self.load)["a"].item(), 1)

    def test_functions_instead_of_files(self):
        kept = {}
        with door.torch_compat.tensorizer_saving("somewhere", save_func=lambda place, tensors, options: kept.update(t=tensors, p=place)):
            torch.save(self.made, self.at("c.pt"))
        self.assertEqual(kept["p"], "somewhere")
        with door.torch_compat.tensorizer_loading("somewhere", load_func=lambda place, options: kept["t"]):
            self.same(torch.load(self.at("c.pt"), **self.load))

    def test_other_threads_and_tasks_see_nothing_of_it(self):
        original = torch.save

        async def inside(name, wait):
            with door.torch_compat.tensorizer_saving():
                await wait.wait()
                torch.save(self.made, self.at(name))

        async def outside(wait):
            torch.save({"a": torch.ones(1)}, self.at("outside.pt"))
            wait.set()

        async def both():
            wait = asyncio.Event()
            await asyncio.gather(inside("inside.pt", wait), outside(wait))

        asyncio.run(both())
        self.assertEqual(torch.load(self.at("outside.pt"))["a"].item(), 1)
        self.assertIs(torch.save, original)

    def test_another_pickle_module_is_refused(self):
        import types

        for module in EACH:
            with module.torch_compat.tensorizer_saving():
                with self.assertRaises(ValueError):
                    torch.save({}, self.at("c.pt"), pickle_module=types.ModuleType("other"))


if __name__ == "__main__":
    unittest.main()
