"""Every element type, as each framework has it: written, read whole and in slices, kept from what lacks it."""
import json
import unittest

import ml_dtypes
import numpy
import tensorizer
import torch
from case import Case, bits, needs_writing

import sluice
import sluice.tensorizer
from sluice._dtypes import DTYPES

ROWS = 6
# Bytes of a tensor of six rows of four; types of which two lie in a byte have eight in a row.
BYTES = {bits: numpy.random.default_rng(1).integers(0, 2, ROWS * 4 * max(bits // 8, 1), numpy.uint8) for bits in (4, 8, 16, 32, 64, 128)}
SAFETENSORS = {
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16",
    "I32", "U32", "F32", "C64", "F64", "I64", "U64",
}


def made(row):
    """A tensor of it with six rows, or None: this torch has none."""
    if not hasattr(torch, row.torch):
        return None
    return torch.from_numpy(BYTES[row.bits].copy()).view(getattr(torch, row.torch)).reshape(ROWS, -1)


def all_made():
    """{name of ours: tensor}: one of each type of torch."""
    found = {name: made(row) for name, row in DTYPES.items() if name != "F4"}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def put(path, **rows):
    """A safetensors file by hand: name = (dtype, shape, bytes)."""
    head, data = {}, b""
    for name, (dtype, shape, value) in rows.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


class Types(Case):
    def same(self, found, tensor, name):
        self.assertEqual((found.dtype, found.shape, bits(found)), (tensor.dtype, tensor.shape, bits(tensor)), name)

    @needs_writing
    def test_each_type_of_torch_goes_to_a_tensors_file_and_back(self):
        tensors = all_made()
        self.assertGreater(len(tensors), 12)
        path = self.at("m.tensors")
        sluice.save(tensors, path)
        self.assertEqual({name: sluice.open(path).meta(name).dtype for name in tensors}, {name: name for name in tensors})
        for found in (sluice.load(path), sluice.load(path, verify="off"), dict(sluice.stream(path))):
            for name, tensor in tensors.items():
                self.same(found[name], tensor, name)
        model = sluice.open(path, framework="torch")
        for name, tensor in tensors.items():
            self.same(model.slice(name)[2:5], tensor[2:5], name)
            self.same(sluice.open(path)[name].torch(), tensor, name)

    @needs_writing
    def test_each_type_is_tensorizers_too(self):
        """Those that the original writes: each reads what the other wrote."""
        for name, tensor in all_made().items():
            files = {}
            for package in (tensorizer, sluice.tensorizer):
                files[package] = self.at(package.__name__)
                writer = package.TensorSerializer(files[package])
                try:
                    writer.write_state_dict({"t": tensor})
                    writer.close()
                except Exception:  # whatever it is: the original does not know the type
                    self.assertIs(package, tensorizer, name)
                    del files[package]
            for path in files.values():
                with sluice.tensorizer.TensorDeserializer(path, device="cpu") as found:
                    self.same(found["t"].detach(), tensor, name)
            if tensorizer in files:
                with tensorizer.TensorDeserializer(files[sluice.tensorizer], device="cpu", verify_hash=True) as found:
                    self.same(found["t"].detach(), tensor, name)

    @needs_writing
    def test_each_type_that_safetensors_has_goes_there(self):
        for name, tensor in all_made().items():
            path = self.at(name + ".safetensors")
            expected = "F4" if name == "F4_E2M1FN_X2" else name
            if expected in SAFETENSORS:
                sluice.save({"t": tensor}, path)
                self.assertEqual(sluice.open(path).meta("t").dtype, expected)
                self.same(sluice.load(path)["t"], tensor, name)
            else:
                with self.assertRaisesRegex(sluice.SluiceError, "safetensors"):
                    sluice.save({"t": tensor}, path)

    def test_pairs_of_four_bits_are_one_element_of_torch(self):
        path, data = self.at("m.safetensors"), bytes(range(24))
        put(path, even=("F4", [6, 8], data), odd=("F4", [2, 3, 1], data[:3]))
        model = sluice.open(path, framework="torch")
        self.assertEqual(model.meta("even").shape, (6, 8))
        self.assertEqual(sluice.open(path)["even"].tobytes(), data)
        if not hasattr(torch, "float4_e2m1fn_x2"):
            with self.assertRaisesRegex(TypeError, "float4_e2m1fn_x2.*memoryview"):
                model["even"]
            return
        self.assertEqual((model["even"].shape, bits(model["even"])), ((6, 4), data))
        self.assertEqual(bits(model.slice("even")[1:3]), data[4:12])
        with self.assertRaisesRegex(TypeError, "last dimension must be even"):
            model["odd"]

    def test_what_a_framework_lacks_is_said_and_has_its_bytes(self):
        path, data = self.at("m.safetensors"), bytes(range(24))
        put(path, six=("F6_E2M3", [8, 4], data), four=("F4", [6, 8], data))
        for name in ("six", "four"):
            for framework in ("torch", "numpy"):
                if framework == "torch" and name == "four" and hasattr(torch, "float4_e2m1fn_x2"):
                    continue
                with self.assertRaisesRegex(TypeError, "memoryview"):
                    sluice.open(path, framework=framework)[name]
            self.assertEqual(bytes(sluice.open(path)[name].memoryview()), data)

    @needs_writing
    def test_numpy_has_its_own_and_those_of_ml_dtypes(self):
        path = self.at("m.tensors")
        sluice.save(all_made(), path)
        model, whole = sluice.open(path, framework="numpy"), 0
        for name, tensor in all_made().items():
            row = DTYPES[name]
            if not row.numpy and not row.ml_dtypes:
                with self.assertRaisesRegex(TypeError, "NumPy has no type"):
                    model[name]
            elif row.numpy or hasattr(ml_dtypes, row.ml_dtypes):
                wanted = numpy.dtype(row.numpy or getattr(ml_dtypes, row.ml_dtypes))
                self.assertEqual((model[name].dtype, model[name].tobytes()), (wanted, bits(tensor)), name)
                self.assertEqual(model.slice(name)[::2].tobytes(), bits(tensor[::2]), name)
                whole += 1
        self.assertGreater(whole, 9)


if __name__ == "__main__":
    unittest.main()
